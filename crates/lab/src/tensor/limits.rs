//! What the machine's memory allows, plain copies and plain reads, and what the standard library's functions do: all on all
//! threads.
//!
//! Threads are started before and wait spinning, and each has the same part every time: nothing is taken from what the memory
//! and the caches in front of it can do by waking somebody, or by reading with one core what another one's cache has.

use std::{
    hint::{black_box, spin_loop},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use memmap2::MmapMut;
use millrace::cpu::CpuInfo;

use super::Effort;
use crate::{
    Error, Result,
    gpu::numbers,
    measure::{Metric, Side, each_timed, warm_up},
};

/// Memory on large pages where the system has them, as the buffers of the CPU device are: a limit that is measured on
/// slower memory would be none.
struct Pages(MmapMut);

impl Pages {
    fn new(elements: usize) -> Result<Self> {
        let failed = |error: std::io::Error| Error::System(error.to_string());
        let mut pages = MmapMut::map_anon(4 * elements).map_err(failed)?;
        #[cfg(target_os = "linux")]
        let _ = pages.advise(memmap2::Advice::HugePage); // a system without them has no faster memory either
        pages.copy_from_slice(bytemuck::cast_slice(&numbers(elements, 1)));
        Ok(Self(pages))
    }
}

/// Bytes of a thread's part: one for each thread, so that large ones are copied past the caches.
fn part(bytes: usize) -> usize {
    bytes.div_ceil(CpuInfo::get().cores).next_multiple_of(4096)
}

/// Copies an array to another. Bytes read and bytes written both count.
pub(super) fn copy(effort: &Effort, elements: usize) -> Side {
    let effort = effort.clone();
    Side::new("copy", move || {
        let (from, mut to) = (Pages::new(elements)?, Pages::new(elements)?);
        let part = part(from.0.len());
        let copies = to.0.chunks_mut(part).zip(from.0.chunks(part));
        let copies = copies.map(|(to, from)| || black_box(&mut *to).copy_from_slice(from));
        rate(&effort, 8 * elements, copies.collect())
    })
}

/// Reads an array, and adds its words up, since something has to be done with them.
pub(super) fn read(effort: &Effort, elements: usize) -> Side {
    let effort = effort.clone();
    Side::new("read", move || {
        let from = Pages::new(elements)?;
        let arch = pulp::Arch::new();
        let reads = from.0.chunks(part(from.0.len()));
        let reads = reads.map(|from| move || _ = black_box(arch.dispatch(|| words(black_box(from)))));
        rate(&effort, 4 * elements, reads.collect())
    })
}

/// The standard library's functions, one number at a time.
pub(super) fn functions(effort: &Effort, elements: usize) -> Side {
    let effort = effort.clone();
    Side::new("std", move || {
        let functions =
            [("exp", f32::exp as fn(f32) -> f32), ("tanh", f32::tanh), ("sigmoid", |x| 1.0 / (1.0 + (-x).exp()))];
        let (from, mut to) = (numbers(elements, 1), vec![0f32; elements]);
        let part = elements.div_ceil(CpuInfo::get().cores);
        let mut metrics = Vec::new();
        for (name, function) in functions {
            let parts = to.chunks_mut(part).zip(from.chunks(part));
            let applied = parts.map(|(to, from)| {
                move || {
                    to.iter_mut().zip(from).for_each(|(to, from)| *to = function(*from));
                    black_box(&mut *to);
                }
            });
            let mut timed = rate(&effort, 8 * elements, applied.collect())?;
            timed.iter_mut().for_each(|metric| metric.case = name.into());
            metrics.append(&mut timed);
        }
        Ok(metrics)
    })
}

/// The sum of words, in many sums so that no addition waits for another.
#[inline(always)]
fn words(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 32];
    let lines = bytemuck::cast_slice::<u8, u64>(bytes).chunks_exact(32);
    let rest = lines.remainder().iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
    for line in lines {
        for (sum, word) in sums.iter_mut().zip(line) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.into_iter().fold(rest, u64::wrapping_add)
}

/// Bytes per nanosecond if each thread does one of the works, again and again, all at the same time.
fn rate<W: FnMut() + Send>(effort: &Effort, bytes: usize, works: Vec<W>) -> Result<Vec<Metric>> {
    let (rounds, done) = (Rounds::default(), AtomicUsize::new(0));
    let times = thread::scope(|scope| {
        // Whatever happens here, the others go home.
        let _end = End(&rounds);
        let mut works = works.into_iter();
        let mut mine = works.next();
        let others = works.len();
        for mut work in works {
            let (rounds, done) = (&rounds, &done);
            scope.spawn(move || {
                let mut last = 0;
                while rounds.after(&mut last) {
                    work();
                    done.fetch_add(1, Ordering::Release);
                }
            });
        }
        let mut together = || {
            let round = rounds.0.fetch_add(1, Ordering::Release) + 1;
            mine.iter_mut().for_each(|work| work());
            spin_until(|| done.load(Ordering::Acquire) == round * others);
            Ok(())
        };
        warm_up(effort.turn / 4, &mut together)?;
        each_timed(effort.turn, together)
    })?;
    Ok(vec![Metric::higher("", "GB/s", times.into_iter().map(|ns| bytes as f64 / ns).collect())])
}

/// How often everybody was asked to work.
#[derive(Default)]
struct Rounds(AtomicUsize);

impl Rounds {
    /// That there is none any more.
    const ENDED: usize = usize::MAX;

    /// Waits for the round after `last`; false if there is none.
    fn after(&self, last: &mut usize) -> bool {
        spin_until(|| self.0.load(Ordering::Acquire) != *last);
        *last = self.0.load(Ordering::Acquire);
        *last != Self::ENDED
    }
}

/// Ends the rounds when it goes.
struct End<'a>(&'a Rounds);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.0.store(Rounds::ENDED, Ordering::Release);
    }
}

/// Spins, but leaves the core to others where it has to be shared.
fn spin_until(done: impl Fn() -> bool) {
    for turn in 1u32.. {
        if done() {
            return;
        }
        if turn.is_multiple_of(1 << 12) { thread::yield_now() } else { spin_loop() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let bytes: Vec<u64> = (0..1003).collect();
        assert_eq!(words(bytemuck::cast_slice(&bytes)), 1002 * 1003 / 2);
    }

    #[test]
    fn every_thread_works_in_every_round() {
        let mut effort = Effort::quick();
        effort.turn = std::time::Duration::from_millis(1);
        let calls = [0; 3].map(AtomicUsize::new);
        let works = calls.iter().map(|calls| || _ = calls.fetch_add(1, Ordering::Relaxed)).collect();
        let metrics = rate(&effort, 1, works).unwrap();
        let calls = calls.map(AtomicUsize::into_inner);
        assert!(calls[0] >= metrics[0].samples.len() && calls == [calls[0]; 3], "{calls:?}");
    }
}
