//! Elementwise loops.

use bytemuck::{AnyBitPattern, Pod, Zeroable};
use millrace_core::{CpuKernel, Launched};
use pulp::{Simd, WithSimd};

use super::{
    BLOCK, PIECE, pieces,
    source::Source,
    stream::{STREAMED_FROM, before_line, fence, prefetch, store},
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
                prefetch(elements.get(at + B..at + 2 * B).unwrap_or_default());
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{layout::WALKED, simd::arch_of};

    /// Twice the first and the second, except where the first is negative, which is put right afterwards.
    enum Mixed {}

    impl Map<2> for Mixed {
        type In = f32;
        type Out = f32;

        #[inline(always)]
        fn apply([a, b]: [f32; 2]) -> f32 {
            a + a + b
        }

        #[inline(always)]
        fn repair([a, b]: [&[f32]; 2], out: &mut [f32]) {
            for i in (0..out.len()).filter(|&i| a[i] < 0.0) {
                out[i] = -b[i];
            }
        }
    }

    /// How a piece is written.
    #[derive(Debug, Clone, Copy)]
    enum By {
        /// As kernels do.
        Choice { streamed: bool },
        /// In registers of so many bytes.
        Register(usize),
    }

    struct Task<'a> {
        sources: &'a [Source<'a, f32>; 2],
        start: usize,
        out: &'a mut [f32],
        by: By,
    }

    impl WithSimd for Task<'_> {
        type Output = ();

        #[inline(always)]
        fn with_simd<S: Simd>(self, simd: S) {
            let Self { sources, start, out, by } = self;
            match by {
                By::Choice { streamed } => Piece::<Mixed, 2> { sources, start, out, streamed }.with_simd(simd),
                By::Register(64) => streamed_by::<Mixed, 2, 64>(sources, start, out, 64),
                By::Register(register) => streamed_by::<Mixed, 2, 256>(sources, start, out, register),
            }
        }
    }

    /// All registers that there are stores for.
    fn registers() -> Vec<By> {
        let mut all = vec![By::Register(16), By::Register(32)];
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") {
            all.push(By::Register(64));
        }
        all
    }

    #[test]
    fn pieces_are_written_whole_and_nothing_beside_them_whatever_the_registers() {
        const LARGEST: usize = 1300;
        let at = |n: usize| ((n * 37 + 11) % 64) as f32 - 20.0;
        let (a, b): (Vec<f32>, Vec<f32>) = (0..4 * LARGEST).map(|n| (at(n), at(n + 9))).unzip();
        let (mut shape, mut strides) = ([0; WALKED], [0; WALKED]);
        shape[..2].copy_from_slice(&[LARGEST as u32 / 7 + 1, 7]);
        strides[..2].copy_from_slice(&[20, 2]);
        let strided = Source::Strided { elements: &a, rank: 2, shape, strides, offset: 5 };
        let strided_at = |i: usize| a[5 + i / 7 * 20 + i % 7 * 2];
        type Wanted<'a> = &'a dyn Fn(usize) -> [f32; 2];
        let sources: [([Source<'_, f32>; 2], Wanted<'_>); 4] = [
            ([Source::Packed(&a), Source::Packed(&b)], &|i| [a[i], b[i]]),
            ([Source::Packed(&a), Source::Constant(0.5)], &|i| [a[i], 0.5]),
            ([strided, Source::Packed(&b)], &|i| [strided_at(i), b[i]]),
            ([Source::Constant(-2.0), strided], &|i| [-2.0, strided_at(i)]),
        ];
        let ways = [By::Choice { streamed: false }, By::Choice { streamed: true }].into_iter().chain(registers());
        let lengths = [0, 1, 15, 16, 17, 63, 64, 65, 127, 128, 255, 256, 257, 320, 511, 512, 513, 1024, 1027, 1290];
        let mut room = vec![0.0f32; LARGEST + 64];
        for (arch, by) in
            crate::Simd::all().into_iter().filter_map(arch_of).flat_map(|arch| ways.clone().map(move |by| (arch, by)))
        {
            for ((sources, wanted), len) in sources.iter().flat_map(|sources| lengths.map(|len| (sources, len))) {
                for (misaligned, start) in [(0, 0), (1, 0), (15, 3), (16, 3), (13, 1)] {
                    room.fill(f32::MAX);
                    let first = before_line(&room) + misaligned;
                    let out = &mut room[first..first + len];
                    arch.dispatch(Task { sources, start, out, by });
                    for (at, &got) in room.iter().enumerate() {
                        let want = match at.checked_sub(first).filter(|i| *i < len) {
                            Some(i) => match wanted(start + i) {
                                [a, b] if a < 0.0 => -b,
                                [a, b] => a + a + b,
                            },
                            None => f32::MAX,
                        };
                        assert_eq!(got, want, "{at} of {len} from {first}, {by:?}");
                    }
                }
            }
        }
    }
}
