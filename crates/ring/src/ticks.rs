//! A clock for those who read it millions of times.
//!
//! Reading the system's clock takes longer than what some want to time with it. The processor's counter is read in half
//! of that, but is a clock only where it runs at one rate and alike on all cores. Linux finds out when it starts and keeps
//! watching: where it uses the counter for its own clock, so do we. Everywhere else this is the system's clock.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Counts ticks, of a length that [`Self::rate`] tells.
///
/// ```
/// let clock = millrace_ring::TickClock::pick();
/// let rate = clock.rate();
/// let before = clock.now();
/// std::thread::sleep(std::time::Duration::from_millis(2));
/// assert!((clock.now() - before) as f64 / rate > 1.9e6, "two million nanoseconds");
/// ```
#[derive(Debug, Clone, Copy)]
pub struct TickClock {
    /// What ticks are counted from, if they are nanoseconds of the system's clock.
    origin: Option<Instant>,
}

/// When the process first picked the counter.
static FIRST: OnceLock<(u64, Instant)> = OnceLock::new();
/// Nanoseconds of a tick, times two to the power of [`FRACTION`]; zero while nobody wanted to know.
static TICK: AtomicU64 = AtomicU64::new(0);
const FRACTION: u32 = 32;
/// The two clocks are read some tens of nanoseconds apart.
const LONG_ENOUGH: Duration = Duration::from_micros(20);

impl TickClock {
    /// The best clock of this machine.
    pub fn pick() -> Self {
        let clock = Self { origin: (!counter_is_a_clock()).then(Instant::now) };
        if clock.origin.is_none() {
            FIRST.get_or_init(|| clock.pair());
        }
        clock
    }

    /// Ticks so far.
    ///
    /// ```
    /// let clock = millrace_ring::TickClock::pick();
    /// let before = clock.now();
    /// std::thread::sleep(std::time::Duration::from_millis(1));
    /// assert!(clock.now() > before);
    /// ```
    #[inline]
    pub fn now(&self) -> u64 {
        match self.origin {
            Some(origin) => origin.elapsed().as_nanos() as u64,
            None => counter(),
        }
    }

    /// So many ticks in nanoseconds, to within a hundredth. How long a tick is, is known from what went by since the process first
    /// picked a clock, so that nobody has to wait for it.
    ///
    /// ```
    /// let clock = millrace_ring::TickClock::pick();
    /// let before = clock.now();
    /// std::thread::sleep(std::time::Duration::from_millis(2));
    /// assert!(clock.nanos(clock.now() - before) > 1_950_000);
    /// ```
    #[inline]
    pub fn nanos(&self, ticks: u64) -> u64 {
        if self.origin.is_some() {
            return ticks;
        }
        let tick = match TICK.load(Ordering::Relaxed) {
            0 => self.measure_tick(),
            tick => tick,
        };
        ((u128::from(ticks) * u128::from(tick)) >> FRACTION) as u64
    }

    #[cold]
    fn measure_tick(&self) -> u64 {
        let first = *FIRST.get_or_init(|| self.pair());
        while first.1.elapsed() < LONG_ENOUGH {
            std::hint::spin_loop();
        }
        let tick = (1u64 << FRACTION) as f64 / Self::rate_between(first, self.pair());
        let tick = (tick as u64).max(1);
        TICK.store(tick, Ordering::Relaxed);
        tick
    }

    /// The same moment on this clock and on the system's.
    ///
    /// ```
    /// let clock = millrace_ring::TickClock::pick();
    /// let (before, now) = (clock.now(), std::time::Instant::now());
    /// let (ticks, instant) = clock.pair();
    /// assert!(ticks >= before && instant >= now);
    /// ```
    pub fn pair(&self) -> (u64, Instant) {
        // The closest of some tries: a thread may be interrupted in between.
        let attempt = || {
            let (before, instant, after) = (self.now(), Instant::now(), self.now());
            (after.saturating_sub(before), before + after.saturating_sub(before) / 2, instant)
        };
        let (_, ticks, instant) = (0..8).map(|_| attempt()).min_by_key(|(gap, ..)| *gap).unwrap_or_else(attempt);
        (ticks, instant)
    }

    /// Ticks per nanosecond, about. Takes a millisecond, or none if ticks are nanoseconds.
    ///
    /// ```
    /// let clock = millrace_ring::TickClock::pick();
    /// assert!((0.01..100.0).contains(&clock.rate()), "between ten million and a hundred billion a second");
    /// ```
    pub fn rate(&self) -> f64 {
        if self.origin.is_some() {
            return 1.0;
        }
        let first = self.pair();
        while first.1.elapsed() < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        Self::rate_between(first, self.pair())
    }

    /// Ticks per nanosecond between two moments.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use millrace_ring::TickClock;
    /// let now = Instant::now();
    /// let rate = TickClock::rate_between((0, now), (3_000_000, now + Duration::from_millis(1)));
    /// assert_eq!(rate, 3.0, "three million ticks in a million nanoseconds");
    /// ```
    pub fn rate_between(first: (u64, Instant), second: (u64, Instant)) -> f64 {
        let (ticks, time) = (second.0.saturating_sub(first.0), second.1.saturating_duration_since(first.1));
        if ticks == 0 || time.is_zero() { 1.0 } else { ticks as f64 / time.as_nanos() as f64 }
    }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
fn counter_is_a_clock() -> bool {
    static IS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *IS.get_or_init(|| {
        let used = std::fs::read_to_string("/sys/devices/system/clocksource/clocksource0/current_clocksource");
        used.is_ok_and(|name| name.trim() == "tsc")
    })
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
fn counter_is_a_clock() -> bool {
    false
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
fn counter() -> u64 {
    // SAFETY: every x86-64 processor has the instruction, and Linux lets programs use it where it is the clock.
    unsafe { std::arch::x86_64::_rdtsc() }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn counter() -> u64 {
    0 // not asked: `counter_is_a_clock` says no
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_go_on_and_keep_the_systems_time() {
        for clock in [TickClock::pick(), TickClock { origin: Some(Instant::now()) }] {
            let first = clock.pair();
            let rate = clock.rate();
            std::thread::sleep(Duration::from_millis(20));
            let second = clock.pair();
            assert!(second.0 > first.0);
            let expected = (second.1 - first.1).as_nanos() as f64;
            for nanos in [(second.0 - first.0) as f64 / rate, clock.nanos(second.0 - first.0) as f64] {
                assert!((nanos / expected - 1.0).abs() < 0.01, "{nanos} ns by ticks, {expected} by the system");
            }
        }
    }
}
