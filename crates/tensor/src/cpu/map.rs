//! Elementwise loops.

use bytemuck::{AnyBitPattern, Pod, Zeroable};
use millrace_core::{CpuKernel, Launched};
use pulp::{Simd, WithSimd};

use super::{
    BLOCK, PIECE, pieces,
    source::Source,
    stream::{AHEAD, STREAMED_FROM, before_line, fence, prefetch_behind, store},
    worth_threads,
};
use crate::ops::Walk;
use crate::simd::arch;

/// What an operation does with one element of each of its operands.
pub(crate) trait Map<const N: usize>: 'static {
    /// What operands are stored as.
    type In: Pod + Send + Sync;
    /// What the result is stored as.
    type Out: Pod + Send + Sync;
    /// Nanoseconds per element on one thread, roughly: whether waking others is worth it.
    const COST: f64 = 0.3;
    /// One element. It must be `#[inline(always)]` and free of branches to become vector code.
    fn apply(x: [Self::In; N]) -> Self::Out;
    /// Corrects a block's rare elements that `apply` does not do right.
    #[inline(always)]
    fn repair(_x: [&[Self::In]; N], _out: &mut [Self::Out]) {}
}

/// The kernel of a map whose operands are bound in order, before the output.
pub(crate) fn kernel<M: Map<N>, const N: usize>() -> CpuKernel {
    CpuKernel::whole(|launch| run::<M, N>(launch))
}

fn run<M: Map<N>, const N: usize>(launch: &mut Launched<'_>) {
    let walk = launch.params::<Walk>();
    let sources = std::array::from_fn(|n| Source::of(&walk, n, input::<M::In>(launch, n)));
    let out = &mut launch.output::<M::Out>(N)[..walk.n as usize];
    let streamed = size_of_val(out) >= STREAMED_FROM;
    let parallel = worth_threads(launch.threads(), out.len() as f64 * M::COST);
    let arch = arch();
    pieces(launch.threads(), parallel, out, PIECE, |piece, out| {
        arch.dispatch(Piece::<M, N> { sources: &sources, start: piece * PIECE, out, streamed });
    });
}

fn input<'a, T: AnyBitPattern>(launch: &Launched<'a>, n: usize) -> &'a [T] {
    launch.input(n)
}

/// A thread's piece of the output.
struct Piece<'a, M: Map<N>, const N: usize> {
    sources: &'a [Source<'a, M::In>; N],
    start: usize,
    out: &'a mut [M::Out],
    streamed: bool,
}

impl<M: Map<N>, const N: usize> WithSimd for Piece<'_, M, N> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { sources, start, out, streamed } = self;
        // More would be asked for at a time than can be under way, and of the widest registers four lines are enough.
        match (streamed, size_of::<S::f32s>()) {
            (false, _) => stored::<M, N>(sources, start, out),
            (true, 64) => streamed_by::<M, N, 64>(sources, start, out, 64),
            (true, register) => streamed_by::<M, N, 256>(sources, start, out, register),
        }
    }
}

/// Elements from `start` on, into the caches.
#[inline(always)]
fn stored<M: Map<N>, const N: usize>(sources: &[Source<'_, M::In>; N], start: usize, out: &mut [M::Out]) {
    let in_place = sources.each_ref().map(|source| match source {
        Source::Packed(elements) => elements.get(start..start + out.len()),
        _ => None,
    });
    if in_place.iter().all(Option::is_some) {
        let x = in_place.map(Option::unwrap_or_default);
        for (n, out) in out.chunks_mut(BLOCK).enumerate() {
            block::<M, N>(x.map(|x| &x[n * BLOCK..n * BLOCK + out.len()]), out);
        }
        return;
    }
    let mut rooms = [[M::In::zeroed(); BLOCK]; N];
    for (n, out) in out.chunks_mut(BLOCK).enumerate() {
        let rooms = rooms.each_mut().map(|room| &mut room[..out.len()]);
        block::<M, N>(gathered(sources, start + n * BLOCK, rooms), out);
    }
}

/// Elements from `start` on, `B` at a time past the caches, in registers of so many bytes.
#[inline(always)]
fn streamed_by<M: Map<N>, const N: usize, const B: usize>(
    sources: &[Source<'_, M::In>; N],
    start: usize,
    out: &mut [M::Out],
    register: usize,
) {
    let (head, out) = out.split_at_mut(before_line(out));
    let (blocks, tail) = out.as_chunks_mut::<B>();
    stored::<M, N>(sources, start, head);
    let mut at = start + head.len();
    let mut rooms = [[M::In::zeroed(); B]; N];
    for out in blocks {
        // Stores past the caches keep the processor from running ahead to the next page by itself.
        for source in sources {
            if let Source::Packed(elements) = source {
                prefetch_behind(&elements[at..at + B], AHEAD);
            }
        }
        let mut result = [M::Out::zeroed(); B];
        block::<M, N>(gathered(sources, at, rooms.each_mut().map(|room| &mut room[..])), &mut result);
        store(out, &result, register);
        at += B;
    }
    stored::<M, N>(sources, at, tail);
    fence();
}

/// What lies in every source from `start` on, as many as the rooms have place for.
#[inline(always)]
fn gathered<'a, T: Pod, const N: usize>(
    sources: &[Source<'a, T>; N],
    start: usize,
    rooms: [&'a mut [T]; N],
) -> [&'a [T]; N] {
    let mut sources = sources.iter();
    rooms.map(|room| match sources.next() {
        Some(source) => source.block(start, room),
        None => &[],
    })
}

#[inline(always)]
fn block<M: Map<N>, const N: usize>(x: [&[M::In]; N], out: &mut [M::Out]) {
    let len = out.len();
    // The lengths are known to be the same, so that the loop needs no checks.
    let x = x.map(|x| &x[..len]);
    for i in 0..len {
        out[i] = M::apply(x.map(|x| x[i]));
    }
    M::repair(x, out);
}
