//! Products with a vector on the left, on the CPU. The order in which products are added up depends on the sizes alone, not
//! on how many threads there are.

#![allow(clippy::needless_range_loop, reason = "loops over registers, which have to be unrolled")]

use millrace_core::{CpuKernel, Launched, Threads};
use pulp::{Arch, Simd, WithSimd};

use super::{super::small::Small, Dots};
use crate::{
    cpu::{BLOCK, PIECE, Target, pieces, scratch::Scratch, source::gather, worth_threads},
    simd::arch,
};

/// Nanoseconds per multiplication and addition on one thread, roughly: memory is what is waited for.
const COST: f64 = 0.1;
/// Registers whose sums do not wait for each other.
const REGISTERS: usize = 4;
/// Products per lane before lanes are taken into a sum that is more precise.
const DEPTH: usize = 64;
/// Columns from which on threads share them; of fewer they share the common axis,
const WIDE: usize = 1024;
/// in pieces of so many rows at most, as their sums have no more digits than the result,
const DEEP: usize = 4096;
/// unless they were more than so many.
const PIECES: usize = 1024;
/// Slabs of columns are a multiple of this many.
const UNIT: usize = 64;

pub(super) fn kernel() -> CpuKernel {
    let scratch = Scratch::default();
    CpuKernel::whole(move |launch| run(launch, &scratch))
}

fn run(launch: &mut Launched<'_>, scratch: &Scratch) {
    let params = launch.params::<Dots>();
    let (a, b) = (launch.input::<f32>(0), launch.input::<f32>(1));
    let out = &mut launch.output::<f32>(2)[..params.outputs as usize];
    let (n, k) = (params.n as usize, params.k as usize);
    let (threads, arch) = (launch.threads(), arch());
    let parallel = worth_threads(threads, (out.len() * k) as f64 * COST);
    if n > 1 && !params.in_order() {
        let one = |matrix: usize, out: &mut [f32], threads: Option<&dyn Threads>| {
            let (a, b) = (params.left(a, matrix), params.right(b, matrix, 0));
            Row { k, a, b }.multiply(arch, out, threads, scratch);
        };
        return if parallel && out.len() / n >= 2 * threads.count() {
            pieces(threads, true, out, n, |matrix, out| one(matrix, out, None));
        } else {
            let threads = parallel.then_some(threads);
            out.chunks_mut(n).enumerate().for_each(|(matrix, out)| one(matrix, out, threads));
        };
    }
    let parts = k.div_ceil(PIECE);
    // Few elements of many products: the threads share each.
    if parallel && out.len() < 4 * threads.count() && parts >= 2 {
        let mut sums = vec![0.0; out.len() * parts];
        pieces(threads, true, &mut sums, 1, |at, sum| {
            sum[0] = arch.dispatch(Part { of: Whole { params: &params, a, b }, output: at / parts, part: at % parts });
        });
        let whole = sums.chunks_exact(parts).map(|sums| sums.iter().sum::<f64>() as f32);
        return out.iter_mut().zip(whole).for_each(|(out, sum)| *out = sum);
    }
    let per_piece = (PIECE / k).max(1);
    pieces(threads, parallel, out, per_piece, |piece, out| {
        arch.dispatch(Elements { of: Whole { params: &params, a, b }, first: piece * per_piece, out });
    });
}

/// Elements that are so many places apart.
#[derive(Clone, Copy)]
struct Line<'a> {
    from: &'a [f32],
    step: usize,
}

impl Line<'_> {
    /// Those from `start` to `end`, in place or in `room`.
    #[inline(always)]
    fn block<'b>(&'b self, start: usize, end: usize, room: &'b mut [f32; BLOCK]) -> &'b [f32] {
        if self.step == 1 {
            return &self.from[start..end];
        }
        let room = &mut room[..end - start];
        gather(self.from, &[u32::MAX], &[self.step as i32], 0, start, room);
        room
    }
}

impl Dots {
    /// Where the matrices of number `matrix` begin.
    fn place(&self, offset: u32, strides: &[i32], matrix: usize) -> usize {
        let (mut rest, mut place) = (matrix, offset as isize);
        for axis in (0..self.rank as usize).rev() {
            let dim = self.shape[axis] as usize;
            place += (rest % dim) as isize * strides[axis] as isize;
            rest /= dim;
        }
        place as usize
    }

    /// The vector of a product.
    fn left<'a>(&self, a: &'a [f32], matrix: usize) -> Line<'a> {
        Line { from: &a[self.place(self.a_offset, &self.a_strides, matrix)..], step: self.a_column as usize }
    }

    /// A column of its matrix.
    fn right<'a>(&self, b: &'a [f32], matrix: usize, column: usize) -> Line<'a> {
        let first = self.place(self.b_offset, &self.b_strides, matrix) + column * self.b_column as usize;
        Line { from: &b[first..], step: self.b_row as usize }
    }
}

/// All of a product.
#[derive(Clone, Copy)]
struct Whole<'a> {
    params: &'a Dots,
    a: &'a [f32],
    b: &'a [f32],
}

impl Whole<'_> {
    /// A part of an element, of [`PIECE`] products.
    #[inline(always)]
    fn part<S: Simd>(&self, simd: S, output: usize, part: usize) -> f64 {
        let (n, k, start) = (self.params.n as usize, self.params.k as usize, part * PIECE);
        let (matrix, column) = (output / n, output % n);
        let (a, b) = (self.params.left(self.a, matrix), self.params.right(self.b, matrix, column));
        between(simd, a, b, start, k.min(start + PIECE))
    }
}

struct Part<'a> {
    of: Whole<'a>,
    output: usize,
    part: usize,
}

impl WithSimd for Part<'_> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        self.of.part(simd, self.output, self.part)
    }
}

/// Some elements, from `first` on.
struct Elements<'a> {
    of: Whole<'a>,
    first: usize,
    out: &'a mut [f32],
}

impl WithSimd for Elements<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { of, first, out } = self;
        let parts = (of.params.k as usize).div_ceil(PIECE);
        for (i, out) in out.iter_mut().enumerate() {
            let mut sum = 0.0;
            for part in 0..parts {
                sum += of.part(simd, first + i, part);
            }
            *out = sum as f32;
        }
    }
}

/// The sum of the products from `start` to `end`.
#[inline(always)]
fn between<S: Simd>(simd: S, a: Line<'_>, b: Line<'_>, start: usize, end: usize) -> f64 {
    if a.step == 1 && b.step == 1 {
        return dot(simd, &a.from[start..end], &b.from[start..end]);
    }
    let mut rooms = [[0.0; BLOCK]; 2];
    let [left, right] = &mut rooms;
    let mut sum = 0.0;
    for at in (start..end).step_by(BLOCK) {
        let end = end.min(at + BLOCK);
        sum += dot(simd, a.block(at, end, left), b.block(at, end, right));
    }
    sum
}

/// The sum of the products of elements that lie in order. All of these are loops, not adaptors: what an adaptor calls need not
/// be compiled for the instructions at hand.
#[inline(always)]
fn dot<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f64 {
    let most = REGISTERS * S::F32_LANES * DEPTH;
    let mut sum = 0.0;
    for (a, b) in a.chunks(most).zip(b.chunks(most)) {
        sum += f64::from(block(simd, a, b));
    }
    sum
}

/// The same of so few that an `f32` holds the sum.
#[inline(always)]
fn block<S: Simd>(simd: S, a: &[f32], b: &[f32]) -> f32 {
    let ((a, a_rest), (b, b_rest)) = (S::as_simd_f32s(a), S::as_simd_f32s(b));
    let ((a, a_single), (b, b_single)) = (a.as_chunks::<REGISTERS>(), b.as_chunks::<REGISTERS>());
    let mut sums = [simd.splat_f32s(0.0); REGISTERS];
    for (a, b) in a.iter().zip(b) {
        for i in 0..REGISTERS {
            sums[i] = simd.mul_add_e_f32s(a[i], b[i], sums[i]);
        }
    }
    let [mut even, mut odd, third, fourth] = sums;
    for (&a, &b) in a_single.iter().zip(b_single) {
        even = simd.mul_add_e_f32s(a, b, even);
    }
    if !a_rest.is_empty() {
        odd = simd.mul_add_e_f32s(simd.partial_load_f32s(a_rest), simd.partial_load_f32s(b_rest), odd);
    }
    simd.reduce_sum_f32s(simd.add_f32s(simd.add_f32s(even, odd), simd.add_f32s(third, fourth)))
}

/// A row times a matrix whose rows lie in order.
#[derive(Clone, Copy)]
struct Row<'a> {
    k: usize,
    a: Line<'a>,
    b: Line<'a>,
}

impl Row<'_> {
    fn multiply(self, arch: Arch, out: &mut [f32], threads: Option<&dyn Threads>, scratch: &Scratch) {
        let (n, k) = (out.len(), self.k);
        let each = |tasks: usize, task: &(dyn Fn(u64) + Sync)| match threads {
            Some(threads) => threads.for_each(tasks as u64, task),
            None => (0..tasks as u64).for_each(task),
        };
        if n >= WIDE {
            let slabs = threads.map_or(1, |threads| 2 * threads.count());
            let slab = n.div_ceil(slabs).next_multiple_of(UNIT);
            let out = Target::new(out);
            return each(n.div_ceil(slab), &|task| {
                let first = task as usize * slab;
                // SAFETY: every task has columns of its own.
                self.some(arch, (0, k), first, unsafe { out.part(first, slab.min(n - first)) });
            });
        }
        let depth = (PIECE / n).min(DEEP).max(k.div_ceil(PIECES));
        let parts = k.div_ceil(depth);
        if parts == 1 {
            return self.some(arch, (0, k), 0, out);
        }
        scratch.with(parts * n, |sums| {
            let target = Target::new(sums);
            each(parts, &|part| {
                let part = part as usize;
                // SAFETY: every part of the common axis has a row of sums of its own.
                let to = unsafe { target.part(part * n, n) };
                self.some(arch, (part * depth, k.min((part + 1) * depth)), 0, to);
            });
            for (column, out) in out.iter_mut().enumerate() {
                *out = sums[column..].iter().step_by(n).map(|&sum| f64::from(sum)).sum::<f64>() as f32;
            }
        });
    }

    /// As many columns as `out` has from `first` on, of the rows from `start` to `end`.
    fn some(&self, arch: Arch, (start, end): (usize, usize), first: usize, out: &mut [f32]) {
        let (n, k) = (out.len(), end - start);
        let (a, b) = (&self.a.from[start * self.a.step..], &self.b.from[start * self.b.step + first..]);
        assert!((k - 1) * self.a.step < a.len(), "a is inside its buffer");
        assert!((k - 1) * self.b.step + n <= b.len(), "b is inside its buffer");
        let (a_column, b_row, out_row) = (self.a.step, self.b.step, n);
        let (a, b, out) = (a.as_ptr(), b.as_ptr(), out.as_mut_ptr());
        let row = Small { m: 1, n, k, a, a_row: 0, a_column, b, b_row, out, out_row };
        // SAFETY: the assertions put the last element of each factor inside its slice, and `out` is ours.
        unsafe { row.multiply(arch) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::arch_of;

    struct Between<'a> {
        a: Line<'a>,
        b: Line<'a>,
        start: usize,
        end: usize,
    }

    impl WithSimd for Between<'_> {
        type Output = f64;

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) -> f64 {
            between(simd, self.a, self.b, self.start, self.end)
        }
    }

    #[test]
    fn dot_products_are_exact_with_every_width_of_vectors_and_wherever_their_elements_are() {
        let number = |i: usize| ((i * 37 + 11) % 64) as f32 - 31.0; // sums of their products are exact
        let lengths = [1, 63, 64, 65, 256, 300, 1023, 1025, 4096, 4097, 9000];
        for arch in crate::Simd::all().into_iter().filter_map(arch_of) {
            for (len, steps) in lengths.into_iter().flat_map(|len| [(1, 1), (1, 3), (2, 1), (2, 2)].map(|s| (len, s))) {
                let (a, b): (Vec<f32>, Vec<f32>) = (0..3 * len).map(|i| (number(i), number(i + 5))).unzip();
                let line = |from, step| Line { from, step };
                let (start, end) = (len / 5, len);
                let got = arch.dispatch(Between { a: line(&a, steps.0), b: line(&b, steps.1), start, end });
                let want: f32 = (start..end).map(|i| a[i * steps.0] * b[i * steps.1]).sum();
                assert_eq!(got, f64::from(want), "{start}..{end} with steps {steps:?}");
            }
        }
    }

    /// So many threads, of which there is one.
    struct Several(usize);

    impl Threads for Several {
        fn count(&self) -> usize {
            self.0
        }

        fn for_each(&self, n: u64, each: &(dyn Fn(u64) + Sync)) {
            (0..n).rev().for_each(each);
        }
    }

    #[test]
    fn a_row_times_a_matrix_is_the_same_on_any_number_of_threads() {
        for (n, k) in [(2, 10_000), (5, 70_001), (700, 300), (1500, 90)] {
            let number = |i: usize| ((i * 7919 + 11) % 1021) as f32 / 1021.0 - 0.4;
            let (a, b): (Vec<f32>, Vec<f32>) = ((0..k).map(number).collect(), (0..n * k).map(number).collect());
            let row = Row { k, a: Line { from: &a, step: 1 }, b: Line { from: &b, step: n } };
            let (mut one, scratch) = (vec![0.0; n], Scratch::default());
            row.multiply(arch(), &mut one, None, &scratch);
            for threads in [2, 3, 8] {
                let mut several = vec![0.0; n];
                row.multiply(arch(), &mut several, Some(&Several(threads)), &scratch);
                assert_eq!(one, several, "{k}x{n} on {threads} threads");
            }
            let want: f64 = (0..k).map(|p| f64::from(a[p]) * f64::from(b[p * n + n - 1])).sum();
            assert!((f64::from(one[n - 1]) - want).abs() < 1e-6 * k as f64, "{} for {want}", one[n - 1]);
        }
    }
}
