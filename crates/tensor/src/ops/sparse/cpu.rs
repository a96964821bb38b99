use millrace_core::{CpuKernel, Launched};
use pulp::{Simd, WithSimd};

use super::{
    Params,
    gather::{Factors, Level, rows_times_vector},
};
use crate::cpu::worth_threads;
use crate::simd::arch;

/// Nanoseconds per entry and column on one thread, roughly,
const COST: f64 = 0.5;
/// and per row.
const ROW: f64 = 1.0;
/// Vectors of columns whose sums are kept at a time.
const SUMS: usize = 4;

pub(crate) fn product() -> CpuKernel {
    CpuKernel::whole(run)
}

/// Adds what pieces have of rows that end in later pieces. Piece `i` carries for the row that piece `i + 1` starts with.
pub(crate) fn carry() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Params>();
        let (starts, carries) = (launch.input::<u32>(0), launch.input::<f32>(1));
        let (out, n) = (launch.output::<f32>(2), params.n as usize);
        for (row, carry) in starts[1..].iter().zip(carries.chunks_exact(n)) {
            // The last piece has gone past the last row.
            if let Some(out) = out.chunks_exact_mut(n).nth(*row as usize) {
                out.iter_mut().zip(carry).for_each(|(out, carry)| *out += carry);
            }
        }
    })
}

/// The row that begins a piece: how many of the first `diagonal` items are ends of rows. It is looked for around `near` first, in
/// steps that double, then by bisection: in the whole matrix every look would be at memory that nobody has looked at lately.
fn row_at(pointers: &[u32], entries: usize, diagonal: usize, near: usize) -> usize {
    let rows = pointers.len() - 1;
    // Whether the end of that row comes before the entry that is there otherwise.
    let ends_before = |row: usize| (pointers[row + 1] as usize) < diagonal - row;
    let (mut low, mut high) = (diagonal.saturating_sub(entries), diagonal.min(rows));
    let mut step = 1;
    let mut next = near.clamp(low, high);
    while next < high && ends_before(next) {
        low = next + 1;
        next = (low + step).min(high);
        step *= 2;
    }
    high = next;
    next = high.saturating_sub(step).max(low);
    while next > low && !ends_before(next) {
        high = next;
        step *= 2;
        next = high.saturating_sub(step).max(low);
    }
    low = next;
    while low < high {
        let middle = (low + high) / 2;
        if ends_before(middle) { low = middle + 1 } else { high = middle }
    }
    low
}

/// Fills in where pieces start: rows that never fall.
fn divide(pointers: &[u32], params: &Params, starts: &mut [u32]) {
    let total = (params.rows + params.entries) as usize;
    let (mut row, mut rows) = (0, 0);
    for (piece, start) in starts.iter_mut().enumerate() {
        let diagonal = total.min(piece * params.items as usize);
        // Many pieces have about as many rows as the one before.
        let found = row_at(pointers, params.entries as usize, diagonal, row + rows).max(row);
        (row, rows) = (found, found - row);
        *start = row as u32;
    }
}

/// What all pieces see of a product.
struct Product<'a> {
    params: Params,
    pointers: &'a [u32],
    factors: Factors<'a>,
    starts: &'a [u32],
    carries: *mut f32,
    out: *mut f32,
}

// SAFETY: pieces write disjoint rows of the output and carries of their own.
unsafe impl Sync for Product<'_> {}

fn run(launch: &mut Launched<'_>) {
    let params = launch.params::<Params>();
    let (rows, n, pieces) = (params.rows as usize, params.n as usize, params.pieces as usize);
    let pointers = &launch.input::<u32>(0)[..=rows];
    let entries = params.entries as usize;
    let (indices, values) = (&launch.input::<u32>(1)[..entries], &launch.input::<f32>(2)[..entries]);
    let x = &launch.input::<f32>(3)[params.offset as usize..][..params.depth as usize * n];
    let starts = &mut launch.output::<u32>(4)[..=pieces];
    let carries = &mut launch.output::<f32>(5)[..pieces * n];
    let out = &mut launch.output::<f32>(6)[..rows * n];
    divide(pointers, &params, starts);
    let parallel = worth_threads(launch.threads(), (entries * n) as f64 * COST + rows as f64 * ROW);
    let (carries, out) = (carries.as_mut_ptr(), out.as_mut_ptr());
    let product = Product { params, pointers, factors: Factors { indices, values, x }, starts, carries, out };
    let level = Level::new();
    let each = |piece: u64| product.piece(piece as usize, level);
    match parallel {
        true => launch.threads().for_each(pieces as u64, &each),
        false => (0..pieces as u64).for_each(each),
    }
}

impl Product<'_> {
    fn piece(&self, piece: usize, level: Level) {
        let n = self.params.n as usize;
        let (first, last) = (self.starts[piece] as usize, self.starts[piece + 1] as usize);
        let (total, items) = ((self.params.rows + self.params.entries) as usize, self.params.items as usize);
        let entry = (piece * items).saturating_sub(first);
        let end = total.min((piece + 1) * items).saturating_sub(last).min(self.factors.indices.len());
        assert!(piece < self.params.pieces as usize && first <= last && last <= self.params.rows as usize);
        // SAFETY: both slices were cut to the lengths that `run` checked; `starts` never falls, so rows `first..last` are no
        // other piece's, and every piece is done once.
        let (out, carry) = unsafe {
            let out = std::slice::from_raw_parts_mut(self.out.add(first * n), (last - first) * n);
            (out, std::slice::from_raw_parts_mut(self.carries.add(piece * n), n))
        };
        let ends = &self.pointers[first + 1..=last];
        let range = Range { entry, ends, end };
        if n == 1 {
            carry[0] = rows_times_vector(level, &range, self.factors, out);
        } else {
            arch().dispatch(RowsTimesMatrix { range, factors: self.factors, n, out, carry });
        }
    }
}

/// A piece: rows that end at `ends`, the first of them from `entry` on, and then entries up to `end` of one more row.
pub(super) struct Range<'a> {
    pub(super) entry: usize,
    pub(super) ends: &'a [u32],
    pub(super) end: usize,
}

struct RowsTimesMatrix<'a> {
    range: Range<'a>,
    factors: Factors<'a>,
    n: usize,
    out: &'a mut [f32],
    carry: &'a mut [f32],
}

impl WithSimd for RowsTimesMatrix<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { range, factors: Factors { indices, values, x }, n, out, carry } = self;
        let mut from = range.entry;
        for (end, out) in range.ends.iter().zip(out.chunks_exact_mut(n)) {
            let end = (*end as usize).min(indices.len()).max(from);
            row_times_matrix(simd, &indices[from..end], &values[from..end], x, out);
            from = end;
        }
        let end = range.end.max(from);
        row_times_matrix(simd, &indices[from..end], &values[from..end], x, carry);
    }
}

/// One row of the result: `SUMS` vectors of columns at a time, all entries of the row for each.
#[inline(always)]
fn row_times_matrix<S: Simd>(simd: S, indices: &[u32], values: &[f32], x: &[f32], out: &mut [f32]) {
    let n = out.len();
    let (vectors, rest) = S::as_mut_simd_f32s(out);
    let (lanes, mut column) = (S::F32_LANES, 0);
    let mut blocks = vectors.chunks_exact_mut(SUMS);
    for block in &mut blocks {
        let mut sums = [simd.splat_f32s(0.0); SUMS];
        for (&index, &value) in indices.iter().zip(values) {
            let Some(x) = x.get(index as usize * n + column..).and_then(|x| x.get(..SUMS * lanes)) else { continue };
            let value = simd.splat_f32s(value);
            for (sum, x) in sums.iter_mut().zip(S::as_simd_f32s(x).0) {
                *sum = simd.mul_add_f32s(value, *x, *sum);
            }
        }
        block.copy_from_slice(&sums);
        column += SUMS * lanes;
    }
    for vector in blocks.into_remainder() {
        let mut sum = simd.splat_f32s(0.0);
        for (&index, &value) in indices.iter().zip(values) {
            let Some(x) = x.get(index as usize * n + column..).and_then(|x| x.get(..lanes)) else { continue };
            if let [x] = S::as_simd_f32s(x).0 {
                sum = simd.mul_add_f32s(simd.splat_f32s(value), *x, sum);
            }
        }
        *vector = sum;
        column += lanes;
    }
    rest.fill(0.0);
    for (&index, &value) in indices.iter().zip(values) {
        let Some(x) = x.get(index as usize * n + column..) else { continue };
        rest.iter_mut().zip(x).for_each(|(sum, x)| *sum += value * x);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(pointers: &[u32], items: u32) -> (Params, Vec<u32>) {
        let (rows, entries) = (pointers.len() as u32 - 1, pointers[pointers.len() - 1]);
        let pieces = (rows + entries).div_ceil(items);
        let params = Params { rows, entries, depth: 1, n: 1, items, pieces, offset: 0 };
        let mut starts = vec![0; pieces as usize + 1];
        divide(pointers, &params, &mut starts);
        (params, starts)
    }

    /// Rows and entries of every piece, as the kernel takes them.
    fn shares(pointers: &[u32], items: u32) -> Vec<(usize, usize)> {
        let (params, starts) = divided(pointers, items);
        let total = params.rows + params.entries;
        let entry = |piece: u32| total.min(piece * items) - starts[piece as usize];
        let share = |piece: u32| (starts[piece as usize + 1] - starts[piece as usize], entry(piece + 1) - entry(piece));
        (0..params.pieces).map(share).map(|(rows, entries)| (rows as usize, entries as usize)).collect()
    }

    #[test]
    fn a_row_with_half_of_all_entries_is_as_many_equal_pieces_as_the_other_half() {
        // Row 500 has 10,000 entries, the other 1000 have ten each.
        let mut pointers = vec![0u32];
        (0..1001).for_each(|row| pointers.push(pointers[row] + if row == 500 { 10_000 } else { 10 }));
        let shares = shares(&pointers, 1000);
        let (last, whole) = shares.split_last().unwrap();
        assert!(whole.iter().all(|(rows, entries)| rows + entries == 1000), "{shares:?}");
        assert!(last.0 + last.1 <= 1000);
        // Cutting by rows would have put all of the heavy row into one piece.
        assert!(shares.iter().all(|(_, entries)| *entries <= 1000));
        assert!(shares.iter().filter(|(rows, _)| *rows == 0).count() >= 8, "pieces inside the heavy row: {shares:?}");
        assert_eq!(shares.iter().map(|share| share.0).sum::<usize>(), 1001);
        assert_eq!(shares.iter().map(|share| share.1).sum::<usize>(), 20_000);
    }

    #[test]
    fn empty_rows_are_work_too() {
        let shares = shares(&[0; 5001], 100);
        assert_eq!(shares.len(), 50);
        assert!(shares.iter().all(|share| *share == (100, 0)));
    }

    #[test]
    fn pieces_begin_where_the_ones_before_end_whatever_the_pointers_say() {
        // What a device may hold if somebody wrote into its buffers.
        let (params, starts) = divided(&[0, 900, 3, 700, 2, 1_000_000, 8], 3);
        assert!(starts.windows(2).all(|pair| pair[0] <= pair[1]) && *starts.last().unwrap() <= params.rows);
    }

    #[test]
    fn the_rows_that_begin_pieces_are_found_from_anywhere() {
        for lengths in
            [vec![3; 100], vec![0; 50], vec![1, 0, 0, 90, 0, 2, 2, 2, 700, 1, 0], (0..60).map(|i| i * i % 23).collect()]
        {
            let mut pointers = vec![0u32];
            lengths.iter().for_each(|length| pointers.push(pointers[pointers.len() - 1] + length));
            let (rows, entries) = (lengths.len(), pointers[lengths.len()] as usize);
            // All items in order: an end of a row after the row's entries.
            let ends: Vec<bool> = lengths.iter().flat_map(|&n| (0..=n).map(move |i| i == n)).collect();
            for diagonal in 0..=rows + entries {
                let before = ends[..diagonal].iter().filter(|end| **end).count();
                for near in 0..rows + 3 {
                    assert_eq!(row_at(&pointers, entries, diagonal, near), before, "{lengths:?} {diagonal} {near}");
                }
            }
        }
    }
}
