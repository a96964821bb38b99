use gemm::{Parallelism, gemm};
use millrace_core::{CpuKernel, Launched, Threads};

use super::{
    Params,
    packed::{Factor, Packed},
    small::Small,
};
use crate::{
    Simd,
    cpu::{Target, scratch::Scratch, worth_threads},
    simd::arch,
};

/// Nanoseconds per multiplication and addition on one thread, roughly,
const COST: f64 = 0.02;
/// and per element that is read or written.
const TOUCHED: f64 = 0.04;
/// Slabs are a multiple of this many rows or columns: what the inner loops work on.
const UNIT: usize = 64;
/// Rows or columns from which on a slab is large: packing the other factor once more is nothing beside it.
const LARGE: usize = 128;

/// A product is done without arranging its factors first if it has at most so many multiplications, where registers are
/// many and wide, and where they are not,
const SMALL: usize = 1 << 21;
const SMALL_NARROW: usize = 1 << 15;
/// as many for each element of the result, and columns, at least,
const DEEP: usize = 8;
/// and at most so many elements of the right factor, which is gone through in narrow strips.
const NEAR: usize = 1 << 16;

/// A matrix multiplication that replaces the output, or that adds to it.
pub(crate) fn kernel(adds: bool) -> CpuKernel {
    let scratch = Scratch::default();
    CpuKernel::whole(move |launch| run(launch, adds, &scratch))
}

fn run(launch: &mut Launched<'_>, adds: bool, scratch: &Scratch) {
    let params = launch.params::<Params>();
    let (a, b) = (launch.input::<f32>(0), launch.input::<f32>(1));
    let out = launch.output::<f32>(2);
    let (m, n, k) = (params.m as usize, params.n as usize, (params.k_end - params.k_start) as usize);
    let batch = out.len() / (m * n);
    let threads = launch.threads();
    let work = (m * n * k) as f64 * COST + (m * k + k * n + m * n) as f64 * TOUCHED;
    let parallel = worth_threads(threads, work * batch as f64);
    // Matrices are enough of them, or they are cut into slabs: two for each thread if they stay large, so that a thread
    // that was held up does not hold up all. By columns where there are enough and factors are worth arranging: the left
    // one once more costs less than the right one.
    let by_rows = m >= n && (k < UNIT || n < threads.count() * LARGE);
    let side = if by_rows { m } else { n };
    let slabs = match threads.count() {
        count if params.slabs > 0 => params.slabs as usize * count,
        count if !parallel || batch >= 2 * count => 1,
        count if side >= 2 * count * LARGE => 2 * count,
        count => count,
    };
    let slab = side.div_ceil(slabs).next_multiple_of(UNIT);
    let slabs = side.div_ceil(slab);
    let target = Target::new(out);
    let most = if Simd::in_use() >= Simd::Avx512 { SMALL } else { SMALL_NARROW };
    let small = !adds && params.b_column == 1 && n >= DEEP && m * n * k <= most && k >= DEEP && k * n <= NEAR;
    let arch = arch();
    if !small && params.slabs == 0 && Packed::pays(m, n, k) {
        let one = |matrix: usize, threads: Option<&dyn Threads>| {
            let (a_at, b_at) = places(&params, matrix);
            let a = Factor { of: &a[a_at..], row: params.a_row as usize, column: params.a_column as usize };
            let b = Factor { of: &b[b_at..], row: params.b_row as usize, column: params.b_column as usize };
            // SAFETY: matrix `matrix` of the output, of which there are `batch`; nobody else has it.
            unsafe {
                Packed { m, n, k, a, b, out: &target, first: matrix * m * n, adds }.multiply(arch, threads, scratch)
            };
        };
        return if parallel && batch >= 2 * threads.count() {
            threads.for_each(batch as u64, &|matrix| one(matrix as usize, None));
        } else {
            (0..batch).for_each(|matrix| one(matrix, parallel.then_some(threads)));
        };
    }
    let task = |task: u64| {
        let (matrix, start) = (task as usize / slabs, task as usize % slabs * slab);
        let size = slab.min(side - start);
        let (rows, columns) = if by_rows { (start..start + size, 0..n) } else { (0..m, start..start + size) };
        let (a_at, b_at) = places(&params, matrix);
        let a = at(a, a_at, params.a_row, rows.start);
        let b = at(b, b_at, params.b_column, columns.start);
        let (m_here, n_here) = (rows.len(), columns.len());
        let (a_row, a_column) = (params.a_row as usize, params.a_column as usize);
        let (b_row, b_column) = (params.b_row as usize, params.b_column as usize);
        assert!((m_here - 1) * a_row + (k - 1) * a_column < a.len(), "a is inside its buffer");
        assert!((k - 1) * b_row + (n_here - 1) * b_column < b.len(), "b is inside its buffer");
        let first = (matrix * m + rows.start) * n + columns.start;
        // SAFETY: strides are not negative, and the assertions put the last element of each factor inside its slice; both
        // are only read. `first` and all rows and columns from there are inside matrix `matrix` of the output, which has
        // `batch` of them; tasks have disjoint rows or columns, or matrices.
        unsafe {
            let to = target.start().add(first);
            if small {
                let (m, n, out_row, a, b) = (m_here, n_here, n, a.as_ptr(), b.as_ptr());
                return Small { m, n, k, a, a_row, a_column, b, b_row, out: to, out_row }.multiply(arch);
            }
            let (a_row, a_column, b_row, b_column) =
                (a_row as isize, a_column as isize, b_row as isize, b_column as isize);
            #[rustfmt::skip]
            gemm(
                m_here, n_here, k,
                to, 1, n as isize, adds,
                a.as_ptr(), a_column, a_row,
                b.as_ptr(), b_column, b_row,
                1.0, 1.0, false, false, false, Parallelism::None,
            );
        }
    };
    let tasks = (batch * slabs) as u64;
    if parallel { threads.for_each(tasks, &task) } else { (0..tasks).for_each(task) }
}

/// The elements from row or column `n` on.
fn at(x: &[f32], place: usize, stride: i32, n: usize) -> &[f32] {
    &x[place + n * stride as usize..]
}

/// Where the factors of a matrix of the batch begin.
fn places(params: &Params, matrix: usize) -> (usize, usize) {
    let (mut rest, start) = (matrix, params.k_start as isize);
    let mut a = params.a_offset as isize + start * params.a_column as isize;
    let mut b = params.b_offset as isize + start * params.b_row as isize;
    for axis in (0..params.rank as usize).rev() {
        let (dim, at) = (params.shape[axis] as usize, (rest % params.shape[axis] as usize) as isize);
        a += at * params.a_strides[axis] as isize;
        b += at * params.b_strides[axis] as isize;
        rest /= dim;
    }
    (a as usize, b as usize)
}
