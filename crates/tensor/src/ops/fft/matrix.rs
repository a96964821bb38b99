//! Long lines as matrices whose columns and rows are transformed across lanes.
//!
//! The four steps are Bailey's, as in `long.rs`: columns, roots, rows, and the matrix is turned. Here the roots are
//! multiplied with while the columns are written, and rows become columns while they are read, so that memory is gone
//! through twice. It is faster than one long transform even on one thread, since both sides are short.

use millrace_core::Threads;
use num_complex::Complex32;

use super::{
    across::{Lanes, Place, Plan, Work, fits, root},
    cpu::Shared,
    cpu_plan::Kept,
    long::Line,
};
use crate::cpu::worth_threads;

/// What rows of the matrix are apart beyond their length, so that rows do not compete for places in the cache.
const APART: usize = 8;
/// Nanoseconds per element on one thread, roughly.
const COST: f64 = 1.8;
/// Turns of every thread, so that one that was held up does not hold up all.
const TURNS: usize = 4;

/// A plan for lines of one length.
pub(super) struct Matrix {
    lanes: Lanes,
    columns: Plan,
    rows: Plan,
    /// For every group of columns, the roots of the first one.
    first: Vec<f32>,
    /// What the other columns' roots are apart from it.
    others: Vec<f32>,
}

/// The matrix that is most like a square: how many rows and columns. None if one of them is narrower than the lanes, or
/// cannot be transformed across them.
pub(super) fn sides(n: usize, lanes: Lanes) -> Option<(usize, usize)> {
    if !fits(n) {
        return None;
    }
    let side = (lanes.count()..=n.isqrt()).rev().find(|&side| n.is_multiple_of(side))?;
    Some((side, n / side))
}

impl Matrix {
    /// None if the sides are not of the above.
    pub(super) fn new((a, b): (usize, usize), lanes: Lanes) -> Option<Self> {
        let (n, width) = (a * b, lanes.count());
        let starts = (0..b.div_ceil(width)).map(|group| first_of(group, b, width));
        let first = starts.flat_map(|column| (0..a).flat_map(move |k| root(column * k, n))).collect();
        let part = |k: usize, part: usize| (0..width).map(move |lane| root(lane * k, n)[part]);
        let others = (0..a).flat_map(|k| part(k, 0).chain(part(k, 1))).collect();
        Some(Self { lanes, columns: Plan::new(a)?, rows: Plan::new(b)?, first, others })
    }

    /// Elements of the matrix between the steps.
    pub(super) fn between(&self) -> usize {
        (self.columns.n * (self.rows.n + APART)).next_multiple_of(APART)
    }

    /// Elements that every thread needs.
    pub(super) fn room(&self) -> usize {
        self.lanes.room(self.columns.n.max(self.rows.n))
    }

    /// Whether a line is worth several threads.
    pub(super) fn worth_threads(&self, threads: &dyn Threads) -> bool {
        worth_threads(threads, (self.columns.n * self.rows.n) as f64 * COST)
    }

    /// Columns of a group, with their roots.
    ///
    /// # Safety
    /// The line is inside the memory that `from` is of, and nobody writes it; the group's columns of the matrix between
    /// are this call's alone.
    unsafe fn columns(
        &self,
        group: usize,
        (from, line): Source<'_>,
        between: Between<'_>,
        inverse: bool,
        room: Room<'_>,
    ) {
        let (a, b) = (self.columns.n, self.rows.n);
        let first = first_of(group, b, self.lanes.count()) as isize;
        let (step, pitch) = (line.step, (b + APART) as isize);
        // SAFETY: columns of the line that the caller vouches for, and of the matrix.
        unsafe {
            let from = Place {
                at: from.0.offset(line.at + first * step).cast_const().cast(),
                line: 2 * step,
                step: 2 * step * b as isize,
            };
            let to = Place { at: between.0.offset(first).cast(), line: 2, step: 2 * pitch };
            let roots = Some((&self.first[2 * a * group..][..2 * a], &self.others[..]));
            let lanes = self.lanes.count();
            self.lanes.transform(&self.columns, &Work { lanes, from, to, roots, scale: 1.0, inverse }, room);
        }
    }

    /// Rows of a group, which become columns.
    ///
    /// # Safety
    /// The line is inside the memory that `to` is of, and its elements in the group's columns are this call's alone; the
    /// matrix between is written by nobody.
    unsafe fn rows(
        &self,
        group: usize,
        between: Between<'_>,
        (to, line): Source<'_>,
        (inverse, scale): (bool, f32),
        room: Room<'_>,
    ) {
        let (a, b) = (self.columns.n, self.rows.n);
        let first = first_of(group, a, self.lanes.count()) as isize;
        let (step, pitch) = (line.step, (b + APART) as isize);
        // SAFETY: rows of the matrix, and columns of the line that the caller vouches for.
        unsafe {
            let from = Place { at: between.0.offset(first * pitch).cast_const().cast(), line: 2 * pitch, step: 2 };
            let to =
                Place { at: to.0.offset(line.at + first * step).cast(), line: 2 * step, step: 2 * step * a as isize };
            let lanes = self.lanes.count();
            self.lanes.transform(&self.rows, &Work { lanes, from, to, roots: None, scale, inverse }, room);
        }
    }

    /// Transforms one line on this thread.
    ///
    /// # Safety
    /// Both lines are inside the memory that `from` and `to` are of. They may be the same line, and nobody else reads or
    /// writes the second, or writes the first.
    pub(super) unsafe fn transform(&self, from: Source<'_>, to: Source<'_>, how: (bool, f32), room: Room<'_>) {
        let (between, room) = room.split_at_mut(self.between());
        let between = Shared(between.as_mut_ptr());
        let width = self.lanes.count();
        for group in 0..self.rows.n.div_ceil(width) {
            // SAFETY: as the caller vouches; the matrix is as long as it has to be, and borrowed.
            unsafe { self.columns(group, from, &between, how.0, room) };
        }
        for group in 0..self.columns.n.div_ceil(width) {
            // SAFETY: as above.
            unsafe { self.rows(group, &between, to, how, room) };
        }
    }

    /// The same on all threads.
    ///
    /// # Safety
    /// As above.
    pub(super) unsafe fn transform_on(
        &self,
        threads: &dyn Threads,
        kept: &Kept,
        from: Source<'_>,
        to: Source<'_>,
        how: (bool, f32),
    ) {
        let width = self.lanes.count();
        kept.with_scratch(self.between(), |between| {
            let between = Shared(between.as_mut_ptr());
            let between = &between;
            // SAFETY: as the caller vouches; the matrix is as long as it has to be, borrowed, and groups of different turns
            // have different columns, or rows.
            let columns = |group: usize, room: Room<'_>| unsafe { self.columns(group, from, between, how.0, room) };
            // SAFETY: as above; all columns are written.
            let rows = |group: usize, room: Room<'_>| unsafe { self.rows(group, between, to, how, room) };
            self.turns(threads, kept, self.rows.n, width, columns);
            self.turns(threads, kept, self.columns.n, width, rows);
        });
    }

    /// Calls `each` for all groups of so many lines. The last group has lines of the one before it if there are not enough
    /// for all lanes, and is of the same turn therefore.
    fn turns(
        &self,
        threads: &dyn Threads,
        kept: &Kept,
        count: usize,
        width: usize,
        each: impl Fn(usize, Room<'_>) + Sync,
    ) {
        let (whole, all) = (count / width, count.div_ceil(width));
        let groups = whole.div_ceil(TURNS * threads.count());
        let turns = whole.div_ceil(groups);
        threads.for_each(turns as u64, &|turn| {
            let turn = turn as usize;
            let end = if turn + 1 == turns { all } else { (turn + 1) * groups };
            kept.with_scratch(self.room(), |room| (turn * groups..end).for_each(|group| each(group, room)));
        });
    }
}

/// Where a line is.
type Source<'a> = (&'a Shared<Complex32>, Line);
type Between<'a> = &'a Shared<Complex32>;
type Room<'a> = &'a mut [Complex32];

/// The first line of a group: the last group ends where the lines end.
fn first_of(group: usize, count: usize, width: usize) -> usize {
    (group * width).min(count - width)
}

#[cfg(test)]
mod tests {
    use super::{
        super::across::tests::{error, levels, noise, wanted},
        *,
    };

    /// Two threads.
    struct Two;

    impl Threads for Two {
        fn count(&self) -> usize {
            2
        }

        fn for_each(&self, n: u64, each: &(dyn Fn(u64) + Sync)) {
            std::thread::scope(|scope| {
                scope.spawn(|| (0..n / 2).for_each(each));
                (n / 2..n).for_each(each);
            });
        }
    }

    #[test]
    fn long_lines_are_transformed_on_one_thread_and_on_two() {
        let kept = Kept::default();
        for lanes in levels() {
            for (n, step) in [(256, 1), (400, 1), (1000, 2), (1024, 1), (4096, 3), (6000, -1), (16_384, 1)] {
                let plan = Matrix::new(sides(n, lanes).unwrap(), lanes).unwrap();
                let x = noise(n);
                let line = Line { at: if step < 0 { n as isize - 1 } else { 0 }, step };
                let at = |i: usize| (line.at + i as isize * step) as usize;
                for (inverse, two) in [(false, false), (true, false), (false, true), (true, true)] {
                    let mut memory = vec![Complex32::ZERO; n * step.unsigned_abs()];
                    (0..n).for_each(|i| memory[at(i)] = x[i]);
                    let all = Shared(memory.as_mut_ptr());
                    let (place, how) = ((&all, line), (inverse, 0.25));
                    // SAFETY: the line is inside, in place, and nobody else has it.
                    unsafe {
                        if two {
                            plan.transform_on(&Two, &kept, place, place, how);
                        } else {
                            kept.with_scratch(plan.between() + plan.room(), |room| {
                                plan.transform(place, place, how, room)
                            });
                        }
                    }
                    let got: Vec<_> = (0..n).map(|i| memory[at(i)] * 4.0).collect();
                    let error = error(&got, &wanted(&x, inverse));
                    assert!(error < 3e-7, "{lanes:?}, {n}, {step}, inverse {inverse}, two {two}: {error}");
                }
            }
        }
    }

    #[test]
    fn a_matrix_is_no_narrower_than_the_lanes() {
        assert_eq!(sides(1024, Lanes::Avx512), Some((32, 32)));
        assert_eq!(sides(1000, Lanes::Avx512), Some((25, 40)));
        assert_eq!(sides(128, Lanes::Avx512), None);
        assert_eq!(sides(128, Lanes::Avx2), Some((8, 16)));
        assert_eq!(sides(1022, Lanes::Avx2), None, "it has a factor of seven");
    }
}
