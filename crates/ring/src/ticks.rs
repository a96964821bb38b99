//! A clock for those who read it millions of times.
//!
//! Reading the system's clock takes longer than what some want to time with it. The processor's counter is read in half
//! of that, but is a clock only where it runs at one rate and alike on all cores. Linux finds out when it starts and keeps
//! watching: where it uses the counter for its own clock, so do we. Everywhere else this is the system's clock.

use std::time::{Duration, Instant};

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

impl TickClock {
    /// The best clock of this machine.
    pub fn pick() -> Self {
        Self { origin: (!counter_is_a_clock()).then(Instant::now) }
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
            let nanos = (second.0 - first.0) as f64 / rate;
            let expected = (second.1 - first.1).as_nanos() as f64;
            assert!((nanos / expected - 1.0).abs() < 0.01, "{nanos} ns by ticks, {expected} by the system");
        }
    }
}
