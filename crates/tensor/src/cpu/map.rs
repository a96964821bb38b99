//! Elementwise loops.

use bytemuck::{AnyBitPattern, Pod, Zeroable};
use millrace_core::{CpuKernel, Launched};
use pulp::{Simd, WithSimd};

use super::{
    BLOCK, PIECE, pieces,
    source::Source,
    stream::{STREAMED_FROM, fence, prefetch, store},
    worth_threads,
};
use crate::ops::Walk;
use crate::simd::arch;

/// Elements of a block whose result goes past the caches, with registers of so many bytes: more would be asked for at a time than
/// can be under way, and of those with the widest registers four lines are enough.
const fn streamed_block(register: usize) -> usize {
    if register == 64 { 64 } else { 256 }
}

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
        let range = self.start..self.start + self.out.len();
        let in_place = self.sources.each_ref().map(|source| match source {
            Source::Packed(elements) if !self.streamed => elements.get(range.clone()),
            _ => None,
        });
        if in_place.iter().all(Option::is_some) {
            let x = in_place.map(Option::unwrap_or_default);
            for (n, out) in self.out.chunks_mut(BLOCK).enumerate() {
                block::<M, N>(x.map(|x| &x[n * BLOCK..n * BLOCK + out.len()]), out);
            }
            return;
        }
        let mut rooms = [[M::In::zeroed(); BLOCK]; N];
        let mut result = [M::Out::zeroed(); BLOCK];
        let block_of = if self.streamed { streamed_block(size_of::<S::f32s>()) } else { BLOCK };
        for (n, out) in self.out.chunks_mut(block_of).enumerate() {
            let (start, len) = (self.start + n * block_of, out.len());
            let mut source = self.sources.iter();
            let blocks = rooms.each_mut().map(|room| match source.next() {
                Some(source) => source.block(start, &mut room[..len]),
                None => &[],
            });
            if self.streamed {
                // Stores past the caches keep the processor from running ahead to the next page by itself.
                for source in self.sources {
                    if let Source::Packed(elements) = source {
                        prefetch(elements.get(start + len..start + 2 * len).unwrap_or_default());
                    }
                }
                block::<M, N>(blocks, &mut result[..len]);
                store(out, &result[..len], size_of::<S::f32s>());
            } else {
                block::<M, N>(blocks, out);
            }
        }
        if self.streamed {
            fence();
        }
    }
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
