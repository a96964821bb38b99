//! Steps that several threads do together: each has a part of every step, and nobody begins a step before all parts of
//! the one before are done.
//!
//! It is a barrier that needs no certain number of threads. A part that its own thread does not take is taken by another:
//! after a while if that thread seems to be held up, and at once if it never came or was held up before. So one thread
//! alone gets everything done, and a thread that comes late, or back, finds its way in.

use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread::yield_now,
};

/// Looks at the others before their parts are taken from them: some microseconds.
const PATIENCE: u32 = 100;

/// One thread's part. Threads do not share cache lines.
#[repr(align(128))]
#[derive(Default)]
struct Part {
    /// Steps of which somebody has taken this part.
    taken: AtomicU64,
    /// Its thread is here, as far as anybody knows.
    here: AtomicBool,
}

#[repr(align(128))]
#[derive(Default)]
struct Done {
    /// Parts of all steps that are done.
    parts: AtomicU64,
    /// A part ended with a panic, so nobody must wait for it.
    broken: AtomicBool,
}

/// Steps in parts.
pub(crate) struct Together {
    steps: u64,
    parts: Box<[Part]>,
    done: Done,
}

/// Tells the others if its part does not end as it should.
struct Guard<'a>(&'a Done);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::Release);
        }
        self.0.parts.fetch_add(1, Ordering::AcqRel);
    }
}

impl Together {
    pub(crate) fn new(parts: usize, steps: usize) -> Self {
        Self { steps: steps as u64, parts: (0..parts).map(|_| Part::default()).collect(), done: Done::default() }
    }

    /// Takes part until all steps are done. `work` gets the number of a part and of a step; what it wrote is seen by
    /// everybody's work of later steps.
    pub(crate) fn join(&self, me: usize, work: impl Fn(usize, usize)) {
        let take = |part: usize, step: u64| {
            let taken = &self.parts[part].taken;
            let free = taken.load(Ordering::Relaxed) == step;
            if free && taken.compare_exchange(step, step + 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                // Whoever does its own part is here, and whoever does not is not.
                self.parts[part].here.store(part == me, Ordering::Relaxed);
                let _guard = Guard(&self.done);
                work(part, step as usize);
            }
        };
        for step in 0..self.steps {
            take(me, step);
            let all = (step + 1) * self.parts.len() as u64;
            let mut looks = 0;
            while self.done.parts.load(Ordering::Acquire) < all {
                for (part, other) in self.parts.iter().enumerate() {
                    if looks > PATIENCE || !other.here.load(Ordering::Relaxed) {
                        take(part, step);
                    }
                }
                looks += 1;
                if looks > PATIENCE { yield_now() } else { spin_loop() }
            }
            if self.done.broken.load(Ordering::Acquire) {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every part adds what all parts have after the step before.
    fn counted(parts: usize, steps: usize, threads: &[usize]) -> u64 {
        let together = Together::new(parts, steps);
        let sums: Vec<Vec<AtomicU64>> = (0..=steps).map(|_| (0..parts).map(|_| AtomicU64::new(0)).collect()).collect();
        sums[0].iter().for_each(|sum| sum.store(1, Ordering::Relaxed));
        let total = |step: usize| sums[step].iter().map(|sum| sum.load(Ordering::Relaxed)).fold(0, u64::wrapping_add);
        std::thread::scope(|scope| {
            for &me in threads {
                let (together, sums, total) = (&together, &sums, &total);
                scope.spawn(move || {
                    together.join(me, |part, step| {
                        sums[step + 1][part].fetch_add(total(step), Ordering::Relaxed);
                    });
                });
            }
        });
        total(steps)
    }

    #[test]
    fn every_part_of_every_step_is_done_once_and_in_order() {
        for threads in [&[0, 1, 2][..], &[0], &[2], &[1, 2]] {
            let expected = (0..300).fold(3u64, |sum, _| sum.wrapping_mul(3));
            assert_eq!(counted(3, 300, threads), expected, "{threads:?}");
        }
    }

    #[test]
    fn a_part_that_panics_leaves_nobody_waiting() {
        let together = Together::new(2, 10);
        let ended = std::thread::scope(|scope| {
            let start = |me| {
                let together = &together;
                scope.spawn(move || {
                    together.join(me, |part, step| assert!(part == 0 || step < 3, "on purpose"));
                })
            };
            [start(0), start(1)].map(|thread| thread.join().is_ok())
        });
        assert!(ended.contains(&false), "somebody panicked, and both came back");
    }
}
