//! Folding on the CPU: many lanes at a time, blocks of them one after the other.

use bytemuck::{Pod, Zeroable};
use millrace_core::{CpuKernel, Launched};
use pulp::{Simd, WithSimd};

use super::Params;
use crate::{
    cpu::{
        BLOCK, PIECE, pieces,
        source::gather,
        stream::{AHEAD, asks_ahead, prefetch_behind},
        worth_threads,
    },
    math,
    simd::arch,
};

/// Elements that are folded side by side: four of the widest registers.
const LANES: usize = 64;
/// Rows of them that are folded at a time.
const ROWS: usize = 4;
/// Columns that are folded side by side when the folded axis is not the last.
const COLUMNS: usize = 512;
/// Elements per lane before lanes are taken into the accumulator, which is more precise.
const DEPTH: usize = 64;

/// A way to fold. Lanes fold elements; an accumulator folds lanes.
pub(crate) trait Fold: 'static {
    type X: Pod + Send + Sync + PartialEq;
    type Lane: Copy;
    type Acc: Copy + Send + Sync;
    const LANE: Self::Lane;
    const ACC: Self::Acc;
    fn step(lane: Self::Lane, x: Self::X) -> Self::Lane;
    fn join(a: Self::Lane, b: Self::Lane) -> Self::Lane;
    fn take(acc: Self::Acc, lane: Self::Lane) -> Self::Acc;
    fn merge(a: Self::Acc, b: Self::Acc) -> Self::Acc;
    fn finish(acc: Self::Acc, divisor: f32) -> Self::X;
    /// For [`arg`]: whether it is NaN.
    fn is_nan(_: Self::X) -> bool {
        false
    }
    /// Whether [`Self::quick`] is quicker than [`Self::step`], with elements of 32 bits.
    const QUICK: bool = false;
    /// The same as [`Self::step`] for elements other than NaN.
    #[inline(always)]
    fn quick(lane: Self::Lane, x: Self::X) -> Self::Lane {
        Self::step(lane, x)
    }
}

macro_rules! folds {
    ($($name:ident: $x:ty, $lane:ty, $acc:ty, $zero:expr, $x_lane:expr, $join:expr, $finish:expr
        $(, quick $quick:expr)?;)+) => {$(
        pub(crate) enum $name {}
        impl Fold for $name {
            type X = $x;
            type Lane = $lane;
            type Acc = $acc;
            const LANE: $lane = $zero as $lane;
            const ACC: $acc = $zero as $acc;
            #[inline(always)]
            fn step(lane: $lane, x: $x) -> $lane {
                $join(lane, $x_lane(x))
            }
            #[inline(always)]
            fn join(a: $lane, b: $lane) -> $lane {
                $join(a, b)
            }
            #[inline(always)]
            fn take(acc: $acc, lane: $lane) -> $acc {
                $join(acc, lane as $acc)
            }
            #[inline(always)]
            fn merge(a: $acc, b: $acc) -> $acc {
                $join(a, b)
            }
            #[inline(always)]
            fn finish(acc: $acc, divisor: f32) -> $x {
                $finish(acc, divisor)
            }
            #[allow(clippy::eq_op, reason = "this is what NaN is")]
            #[inline(always)]
            fn is_nan(x: $x) -> bool {
                x != x
            }
            $(const QUICK: bool = true;
            #[inline(always)]
            fn quick(lane: $lane, x: $x) -> $lane {
                $quick(lane, x)
            })?
        }
    )+};
}
use std::{
    convert::identity,
    ops::{Add, Mul},
};
folds! {
    Sum: f32, f32, f64, 0, identity, Add::add, |acc: f64, divisor: f32| (acc / f64::from(divisor)) as f32;
    SumI32: i32, i32, i32, 0, identity, i32::wrapping_add, |acc, _| acc;
    Prod: f32, f64, f64, 1, f64::from, Mul::mul, |acc: f64, _| acc as f32;
    ProdI32: i32, i32, i32, 1, identity, i32::wrapping_mul, |acc, _| acc;
    Max: f32, f32, f32, f32::NEG_INFINITY, identity, math::max, |acc, _| acc,
        quick |lane, x| if x > lane { x } else { lane };
    MaxI32: i32, i32, i32, i32::MIN, identity, Ord::max, |acc, _| acc;
    Min: f32, f32, f32, f32::INFINITY, identity, math::min, |acc, _| acc,
        quick |lane, x| if x < lane { x } else { lane };
    MinI32: i32, i32, i32, i32::MAX, identity, Ord::min, |acc, _| acc;
}

/// Folds elements that lie in order.
#[inline(always)]
pub(crate) fn fold<F: Fold>(x: &[F::X], acc: F::Acc) -> F::Acc {
    if x.len() <= LANES * DEPTH {
        return F::take(acc, joined(lanes::<F>(x), F::join));
    }
    // Every lane has an accumulator, and only those are joined, in the end.
    let mut accs = [F::ACC; LANES];
    for block in x.chunks(LANES * DEPTH) {
        accs.iter_mut().zip(lanes::<F>(block)).for_each(|(acc, lane)| *acc = F::take(*acc, lane));
    }
    F::merge(acc, joined(accs, F::merge))
}

/// All lanes as one.
#[inline(always)]
fn joined<T: Copy>(mut lanes: [T; LANES], join: impl Fn(T, T) -> T) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        let (low, high) = lanes.split_at_mut(half);
        low.iter_mut().zip(&*high).for_each(|(a, &b)| *a = join(*a, b));
        half /= 2;
    }
    lanes[0]
}

/// The lanes of a block, by the quick way if there is one and it has no NaN.
#[inline(always)]
fn lanes<F: Fold>(block: &[F::X]) -> [F::Lane; LANES] {
    if F::QUICK {
        // NaN is what is larger than infinity, as an integer without its sign. Nothing else waits for these lanes.
        let mut largest = [0u32; LANES];
        let lanes = stepped::<F>(block, F::quick, |row| {
            let bits = |x: &F::X| bytemuck::cast::<F::X, u32>(*x) & (u32::MAX >> 1);
            largest.iter_mut().zip(row).for_each(|(largest, x)| *largest = bits(x).max(*largest));
        });
        if joined(largest, u32::max) <= f32::INFINITY.to_bits() {
            return lanes;
        }
    }
    stepped::<F>(block, F::step, |_| ())
}

/// The lanes of a block. `look` is shown every row.
#[inline(always)]
fn stepped<F: Fold>(
    block: &[F::X],
    step: impl Fn(F::Lane, F::X) -> F::Lane,
    mut look: impl FnMut(&[F::X]),
) -> [F::Lane; LANES] {
    let (asks_ahead, mut lanes) = (asks_ahead(), [F::LANE; LANES]);
    let (rows, rest) = block.as_chunks::<LANES>();
    let (fours, single) = rows.as_chunks::<ROWS>();
    // Several rows at a time: what a lane waits for goes through memory, and only once for all of them.
    for rows in fours {
        if asks_ahead {
            prefetch_behind(rows, AHEAD);
        }
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = rows.iter().fold(*lane, |lane, row| step(lane, row[i]));
        }
        rows.iter().for_each(|row| look(row));
    }
    for row in single.iter().map(|row| &row[..]).chain([rest]) {
        lanes.iter_mut().zip(row).for_each(|(lane, &x)| *lane = step(*lane, x));
        look(row);
    }
    lanes
}

/// What both kinds of kernels walk: for every output its elements, in order.
struct Outputs<'a, T> {
    params: &'a Params,
    x: &'a [T],
}

impl<'a, T: Pod> Outputs<'a, T> {
    /// Where the elements of an output begin.
    fn base(&self, output: usize) -> usize {
        let kept = self.params.kept as usize;
        let (mut rest, mut place) = (output, self.params.offset as isize);
        for axis in (0..kept).rev() {
            let dim = self.params.shape[axis] as usize;
            place += (rest % dim) as isize * self.params.strides[axis] as isize;
            rest /= dim;
        }
        place as usize
    }

    fn folded(&self) -> std::ops::Range<usize> {
        self.params.kept as usize..(self.params.kept + self.params.folded) as usize
    }

    /// An output's elements, if they lie in order.
    fn in_order(&self, output: usize) -> Option<&'a [T]> {
        let first = self.params.kept as usize;
        let packed = self.params.folded == 1 && (self.params.strides[first] == 1 || self.params.length == 1);
        packed.then(|| {
            let base = self.base(output);
            &self.x[base..base + self.params.length as usize]
        })
    }

    /// Calls `each` with blocks of an output's elements, from `start` to `end`, gathered, and where each block starts.
    #[inline(always)]
    fn blocks(&self, output: usize, start: usize, end: usize, mut each: impl FnMut(usize, &[T])) {
        let (mut room, base) = ([T::zeroed(); BLOCK], self.base(output));
        let (shape, strides) = (&self.params.shape[self.folded()], &self.params.strides[self.folded()]);
        for at in (start..end).step_by(BLOCK) {
            let room = &mut room[..BLOCK.min(end - at)];
            gather(self.x, shape, strides, base, at, room);
            each(at, room);
        }
    }
}

pub(crate) fn kernel<F: Fold>() -> CpuKernel {
    CpuKernel::whole(run::<F>)
}

fn run<F: Fold>(launch: &mut Launched<'_>) {
    let params = launch.params::<Params>();
    let x = launch.input::<F::X>(0);
    let out = &mut launch.output::<F::X>(1)[..params.outputs as usize];
    let (outputs, length) = (out.len(), params.length as usize);
    let walk = &Outputs { params: &params, x };
    let divisor = f32::from_bits(params.divisor);
    let (threads, arch) = (launch.threads(), arch());
    let parallel = worth_threads(threads, (outputs * length) as f64 * 0.15);

    // The last kept axis lies in order: fold its columns side by side.
    let (last, first) = (params.kept as usize - 1, params.kept as usize);
    let columns = params.shape[last] as usize;
    if params.folded == 1 && params.strides[last] == 1 && params.strides[first] != 1 && columns >= LANES {
        let width = COLUMNS.min(columns);
        if columns.is_multiple_of(width) || outputs == columns {
            return pieces(threads, parallel, out, width, |piece, out| {
                let base = walk.base(piece * width);
                let stride = params.strides[first] as isize;
                arch.dispatch(Columns::<F> { x, base, stride, length, out, divisor });
            });
        }
    }
    // Few outputs of many elements: the threads share each output.
    if parallel && outputs < 4 * threads.count() && length >= 2 * PIECE {
        for (output, out) in out.iter_mut().enumerate() {
            let mut partials = vec![F::ACC; length.div_ceil(PIECE)];
            pieces(threads, true, &mut partials, 1, |piece, partial| {
                let (start, end) = (piece * PIECE, ((piece + 1) * PIECE).min(length));
                partial[0] = arch.dispatch(Part::<F> { walk, output, start, end });
            });
            *out = F::finish(partials.into_iter().fold(F::ACC, F::merge), divisor);
        }
        return;
    }
    let per_piece = (PIECE / length.max(1)).max(1);
    pieces(threads, parallel, out, per_piece, |piece, out| {
        for (n, out) in out.iter_mut().enumerate() {
            let acc = arch.dispatch(Part::<F> { walk, output: piece * per_piece + n, start: 0, end: length });
            *out = F::finish(acc, divisor);
        }
    });
}

/// Some elements of one output.
struct Part<'a, F: Fold> {
    walk: &'a Outputs<'a, F::X>,
    output: usize,
    start: usize,
    end: usize,
}

impl<F: Fold> WithSimd for Part<'_, F> {
    type Output = F::Acc;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> F::Acc {
        if let Some(x) = self.walk.in_order(self.output) {
            return fold::<F>(&x[self.start..self.end], F::ACC);
        }
        let mut acc = F::ACC;
        self.walk.blocks(self.output, self.start, self.end, |_, x| acc = fold::<F>(x, acc));
        acc
    }
}

/// Neighbouring outputs whose elements are neighbours as well.
struct Columns<'a, F: Fold> {
    x: &'a [F::X],
    base: usize,
    stride: isize,
    length: usize,
    out: &'a mut [F::X],
    divisor: f32,
}

impl<F: Fold> WithSimd for Columns<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let width = self.out.len();
        let mut accs = [F::ACC; COLUMNS];
        for start in (0..self.length).step_by(DEPTH) {
            let mut lanes = [F::LANE; COLUMNS];
            for row in start..(start + DEPTH).min(self.length) {
                let at = (self.base as isize + row as isize * self.stride) as usize;
                for (lane, &x) in lanes[..width].iter_mut().zip(&self.x[at..at + width]) {
                    *lane = F::step(*lane, x);
                }
            }
            accs.iter_mut().zip(&lanes).for_each(|(acc, &lane)| *acc = F::take(*acc, lane));
        }
        self.out.iter_mut().zip(accs).for_each(|(out, acc)| *out = F::finish(acc, self.divisor));
    }
}

/// Where the most extreme element is. `F` is the fold that finds what it is.
pub(crate) fn arg<F: Fold<Lane = <F as Fold>::X, Acc = <F as Fold>::X>>() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Params>();
        let x = launch.input::<F::X>(0);
        let out = &mut launch.output::<u32>(1)[..params.outputs as usize];
        let walk = &Outputs { params: &params, x };
        let (threads, arch, length) = (launch.threads(), arch(), params.length as usize);
        let parallel = worth_threads(threads, (out.len() * length) as f64 * 0.15);
        if parallel && out.len() < 4 * threads.count() && length >= 2 * PIECE {
            for (output, out) in out.iter_mut().enumerate() {
                let mut partials = vec![(0, F::X::zeroed()); length.div_ceil(PIECE)];
                pieces(threads, true, &mut partials, 1, |piece, partial| {
                    let (start, end) = (piece * PIECE, ((piece + 1) * PIECE).min(length));
                    partial[0] = arch.dispatch(Winner::<F>(Part { walk, output, start, end }));
                });
                // The first piece whose winner is not beaten by a later one.
                let mut best = partials[0];
                for &(at, value) in &partials[1..] {
                    if beats::<F>(value, best.1) {
                        best = (at, value);
                    }
                }
                *out = best.0;
            }
            return;
        }
        let per_piece = (PIECE / length.max(1)).max(1);
        pieces(threads, parallel, out, per_piece, |piece, out| {
            for (n, out) in out.iter_mut().enumerate() {
                let part = Part { walk, output: piece * per_piece + n, start: 0, end: length };
                *out = arch.dispatch(Winner::<F>(part)).0;
            }
        });
    })
}

/// Whether a later element is more extreme than the best before it.
#[inline(always)]
fn beats<F: Fold<Lane = <F as Fold>::X>>(later: F::X, best: F::X) -> bool {
    !F::is_nan(best) && (F::is_nan(later) || (F::join(later, best) != best))
}

/// Takes note of the block with the most extreme element, of blocks from `at` on, if it beats the best before them.
#[inline(always)]
fn better<F: Fold<Lane = <F as Fold>::X, Acc = <F as Fold>::X>>(
    x: &[F::X],
    at: usize,
    best: &mut Option<(usize, F::X)>,
) {
    for (n, block) in x.chunks(BLOCK).enumerate() {
        let extreme = fold::<F>(block, F::ACC);
        if best.is_none_or(|(_, best)| beats::<F>(extreme, best)) {
            *best = Some((at + n * BLOCK, extreme));
        }
    }
}

/// Where in a block the most extreme element is.
#[inline(always)]
fn locate<F: Fold>(block: &[F::X], extreme: F::X) -> usize {
    let is_it = |x: F::X| x == extreme || F::is_nan(x);
    // Whether it is in a row is found without branches.
    let has_it = |row: &[F::X]| row.iter().fold(false, |found, &x| found | is_it(x));
    let row = block.chunks(LANES).position(has_it).unwrap_or(0) * LANES;
    row + block[row..].iter().position(|&x| is_it(x)).unwrap_or(0)
}

struct Winner<'a, F: Fold>(Part<'a, F>);

impl<F: Fold<Lane = <F as Fold>::X, Acc = <F as Fold>::X>> WithSimd for Winner<'_, F> {
    type Output = (u32, F::X);

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> (u32, F::X) {
        let Part { walk, output, start, end } = self.0;
        let mut best = None;
        if let Some(x) = walk.in_order(output) {
            better::<F>(&x[start..end], start, &mut best);
        } else {
            walk.blocks(output, start, end, |at, x| better::<F>(x, at, &mut best));
        }
        let Some((block, extreme)) = best else { return (0, F::X::zeroed()) };
        let end = end.min(block + BLOCK);
        let inside = if let Some(x) = walk.in_order(output) {
            locate::<F>(&x[block..end], extreme)
        } else {
            let mut inside = 0;
            walk.blocks(output, block, end, |_, x| inside = locate::<F>(x, extreme));
            inside
        };
        ((block + inside) as u32, extreme)
    }
}

/// Of the winners of an earlier launch, the winner.
pub(crate) fn merge<F: Fold<Lane = <F as Fold>::X>>() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Params>();
        let (x, winners) = (launch.input::<F::X>(0), launch.input::<u32>(1));
        let (chunks, partials) = (params.chunks as usize, params.partials as usize);
        let out = &mut launch.output::<u32>(2)[..params.outputs as usize * chunks];
        let walk = &Outputs { params: &params, x };
        let (shape, strides) = (&params.shape[walk.folded()], &params.strides[walk.folded()]);
        for (id, out) in out.iter_mut().enumerate() {
            let (output, base) = (id / chunks, walk.base(id / chunks));
            let mut value = [F::X::zeroed()];
            let mut best: Option<(u32, F::X)> = None;
            for &at in winners[output * partials..][..partials].iter().skip(id % chunks).step_by(chunks) {
                gather(x, shape, strides, base, at as usize, &mut value);
                let earlier = |(first, best): (u32, F::X)| (value[0] == best || F::is_nan(value[0])) && at < first;
                if best
                    .is_none_or(|best| beats::<F>(value[0], best.1) || (!beats::<F>(best.1, value[0]) && earlier(best)))
                {
                    best = Some((at, value[0]));
                }
            }
            *out = best.map_or(0, |(at, _)| at);
        }
    })
}
