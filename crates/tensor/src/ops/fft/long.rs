//! Long lines on the CPU: Bailey's four steps (FFTs in external or hierarchical memory, 1990).
//!
//! A line of `n = a · b` elements is a matrix. Its columns are transformed, multiplied with roots of unity, and its rows
//! are transformed. All of these are short: they stay in a thread's cache, and there are enough of them for all threads.

use std::{f64::consts::TAU, sync::Arc};

use millrace_core::Threads;
use millrace_fourier::{Fft, FftDirection, complex};
use num_complex::Complex32;

use super::{
    cpu::{APART, GATHERED, NEIGHBOURS, Shared},
    cpu_plan::Kept,
    strips::{gather, scatter},
};
use crate::cpu::worth_threads;

/// The shortest length that is worth it: shorter ones are in the cache anyway.
const FROM: usize = 1 << 18;
/// The shorter side of the matrix is at least this long.
const SIDE: usize = 32;
/// Nanoseconds per element on one thread, roughly.
const COST: f64 = 5.0;

/// A plan for lines of one length.
pub(super) struct Long {
    columns: Arc<dyn Fft<f32>>,
    rows: Arc<dyn Fft<f32>>,
    /// The roots for every element of every column, column by column.
    roots: Vec<Complex32>,
}

/// Where a line is: its first element, and steps between elements.
#[derive(Clone, Copy)]
pub(super) struct Line {
    pub(super) at: isize,
    pub(super) step: isize,
}

/// The matrix that is most like a square: how many rows and columns. None if `n` has no such divisors, if lines are short,
/// or if there are enough of them for all threads: on one thread the library alone is faster.
pub(super) fn sides(n: usize, lines: usize, threads: usize) -> Option<(usize, usize)> {
    if n < FROM || lines >= threads {
        return None;
    }
    any_sides(n)
}

/// The same for lines of any length and number.
pub(super) fn any_sides(n: usize) -> Option<(usize, usize)> {
    let rows = (SIDE..=n.isqrt()).rev().find(|&side| n.is_multiple_of(side))?;
    Some((rows, n / rows))
}

impl Long {
    pub(super) fn new((a, b): (usize, usize), direction: FftDirection) -> Self {
        let (n, sign) = (a * b, if direction == FftDirection::Forward { -TAU } else { TAU });
        let root = |k: usize| {
            let (sin, cos) = (sign * k as f64 / n as f64).sin_cos();
            Complex32::new(cos as f32, sin as f32)
        };
        let roots = (0..b).flat_map(|column| (0..a).map(move |k| column * k)).map(root).collect();
        Self { columns: complex(a, direction), rows: complex(b, direction), roots }
    }

    /// Transforms one line; `room` is as long.
    ///
    /// # Safety
    /// Both lines are inside the memory that `from` and `to` are of. They may be the same line, and nobody else reads or
    /// writes the second, or writes the first.
    pub(super) unsafe fn transform(
        &self,
        threads: &dyn Threads,
        kept: &Kept,
        (from, source): (&Shared<Complex32>, Line),
        (to, target): (&Shared<Complex32>, Line),
        room: &mut [Complex32],
        scale: f32,
    ) {
        let (a, b) = (self.columns.len(), self.rows.len());
        let parallel = worth_threads(threads, (a * b) as f64 * COST);
        let needed = self.columns.get_outofplace_scratch_len().max(self.rows.get_inplace_scratch_len());
        let room = Shared(room.as_mut_ptr());
        let room = &room;
        strips(threads, parallel, b, a, |first, lines| {
            kept.with_scratch(lines * (a + APART) + needed, |scratch| {
                let (rows, scratch) = scratch.split_at_mut(lines * (a + APART));
                // SAFETY: columns `first` and on of the matrix are elements of the line.
                unsafe {
                    let start = from.0.offset(source.at + first as isize * source.step).cast_const();
                    gather(start, source.step, b as isize * source.step, lines, a, rows, a + APART);
                }
                for line in 0..lines {
                    let at = (first + line) * a;
                    // SAFETY: `room` has `a * b` elements, and this column's are this task's alone.
                    let out = unsafe { std::slice::from_raw_parts_mut(room.0.add(at), a) };
                    let row = &mut rows[line * (a + APART)..][..a];
                    self.columns.process_outofplace_with_scratch(row, out, scratch);
                    out.iter_mut().zip(&self.roots[at..at + a]).for_each(|(x, root)| *x *= root);
                }
            });
        });
        strips(threads, parallel, a, b, |first, lines| {
            kept.with_scratch(lines * (b + APART) + needed, |scratch| {
                let (rows, scratch) = scratch.split_at_mut(lines * (b + APART));
                // SAFETY: `room` has `b` columns of `a` elements, which nobody writes any more.
                unsafe { gather(room.0.add(first).cast_const(), 1, a as isize, lines, b, rows, b + APART) };
                for line in 0..lines {
                    let row = &mut rows[line * (b + APART)..][..b];
                    self.rows.process_with_scratch(row, scratch);
                    if scale != 1.0 {
                        row.iter_mut().for_each(|x| *x *= scale);
                    }
                }
                // SAFETY: elements of the line, every `a`th from `first` and its neighbours on: this task's alone.
                unsafe {
                    let start = to.0.offset(target.at + first as isize * target.step);
                    scatter(rows, b + APART, start, target.step, a as isize * target.step, lines, b);
                }
            });
        });
    }
}

/// Calls `each` with the first and the number of some neighbouring lines of length `n`, until all `count` were called.
fn strips(threads: &dyn Threads, parallel: bool, count: usize, n: usize, each: impl Fn(usize, usize) + Sync) {
    // Some for every thread, so that one that was held up does not hold up all.
    let share = if parallel { count.div_ceil(4 * threads.count()) } else { count };
    let width = (GATHERED / n).min(share).next_multiple_of(NEIGHBOURS);
    let strip = |number: u64| {
        let first = number as usize * width;
        each(first, width.min(count - first));
    };
    let tasks = count.div_ceil(width) as u64;
    if parallel { threads.for_each(tasks, &strip) } else { (0..tasks).for_each(strip) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_matrix_that_is_nearly_square_if_it_can_be() {
        assert_eq!(sides(1 << 18, 1, 2), Some((512, 512)));
        assert_eq!(sides(1 << 19, 1, 2), Some((512, 1024)));
        assert_eq!(sides(1_000_000, 3, 4), Some((1000, 1000)));
        assert_eq!(sides(1 << 18, 2, 2), None, "every thread has a line");
        assert_eq!(sides(1 << 18, 1, 1), None, "there is one thread");
        assert_eq!(sides(1 << 17, 1, 2), None, "short");
        assert_eq!(sides(31 * 100_003, 1, 2), None, "too narrow");
    }
}
