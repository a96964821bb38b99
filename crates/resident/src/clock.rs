//! The hybrid logical clock (Kulkarni, Demirbas and others, "Logical Physical Clocks", 2014).
//!
//! A reading is one number: microseconds since 1970 in the upper 52 bits, a counter in the lower 12. It never stands
//! still and never goes back, also when the system's clock does, and it is later than every reading that was observed.
//! A counter that overflows runs into the microseconds, so that the whole is just a number that grows.
//!
//! A thread that reads the clock again and again, while nobody else does, takes a block of readings at once and gives them
//! out by itself. It looks before each whether its block is still the last that was taken: so each is later than all that
//! were given out before that look, whoever got them, and nothing that others read has to be written.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Bits of the counter.
const LOGICAL: u32 = 12;

/// The last moment that is believed, in the year 2103. What says to be later comes of damage, and would leave too few
/// moments for all that are still to be told apart.
pub(crate) const FARTHEST: u64 = u64::MAX - (u64::MAX >> 4);

/// A moment of a [`Clock`]. Later moments are larger.
///
/// ```
/// use millrace_resident::Moment;
/// let moment = Moment::from_raw((5 << 12) | 3);
/// assert_eq!((moment.since_epoch().as_micros(), moment.logical()), (5, 3));
/// assert!(Moment::from_raw(moment.raw() + 1) > moment);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The number that it is.
    pub fn raw(self) -> u64 {
        self.0
    }

    /// The moment that a number means.
    pub fn from_raw(raw: u64) -> Self {
        Self(raw)
    }

    /// What a message says of its time, if that can be believed.
    #[inline(always)]
    pub(crate) fn believed(self) -> Option<Self> {
        (self.0 <= FARTHEST).then_some(self)
    }

    /// Its physical part: how long after the start of 1970.
    pub fn since_epoch(self) -> Duration {
        Duration::from_micros(self.0 >> LOGICAL)
    }

    /// Microseconds from an earlier moment to this one.
    #[inline(always)]
    pub(crate) fn micros_since(self, earlier: Self) -> u64 {
        (self.0 >> LOGICAL).saturating_sub(earlier.0 >> LOGICAL)
    }

    /// Its logical part: which of the moments of one microsecond.
    pub fn logical(self) -> u32 {
        (self.0 & ((1 << LOGICAL) - 1)) as u32
    }
}

/// A hybrid logical clock that any number of threads read. No two readings are the same.
///
/// ```
/// let clock = millrace_resident::Clock::new();
/// let (first, second) = (clock.tick(), clock.tick());
/// assert!(first < second);
/// let later = clock.observe(millrace_resident::Moment::from_raw(second.raw() + 1_000_000));
/// assert!(clock.tick() > later, "what was observed is in the past");
/// ```
#[derive(Debug)]
pub struct Clock {
    /// The last reading that was given out, or put into a thread's block.
    last: AtomicU64,
    /// When the system's clock was last asked, in ticks of the processor's counter; see [`Clock::now`].
    asked: AtomicU64,
    /// Tells clocks apart: a thread's block is of one of them. Never zero.
    number: u64,
}

/// Readings that a thread took: `next` to `end`. They are its own as long as `end` is the last that anybody took.
#[derive(Debug, Clone, Copy)]
struct Block {
    /// Of which clock.
    clock: u64,
    next: u64,
    end: u64,
}

thread_local!(static BLOCK: Cell<Block> = const { Cell::new(Block { clock: 0, next: 0, end: 0 }) });

/// Readings of a block.
const MANY: u64 = 32;

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock {
    /// A clock that has not been read yet.
    pub fn new() -> Self {
        static CLOCKS: AtomicU64 = AtomicU64::new(0);
        let number = CLOCKS.fetch_add(1, Ordering::Relaxed) + 1;
        Self { last: AtomicU64::new(0), asked: AtomicU64::new(0), number }
    }

    /// Reads the clock: later than every reading before.
    ///
    /// ```
    /// let clock = millrace_resident::Clock::new();
    /// let moments: Vec<_> = (0..100).map(|_| clock.tick()).collect();
    /// assert!(moments.is_sorted_by(|one, next| one < next), "no two are the same");
    /// ```
    #[inline]
    pub fn tick(&self) -> Moment {
        self.tick_or(|| {})
    }

    /// [`Self::tick`]; calls `rested` first if the last reading is some time ago.
    #[inline(always)]
    pub(crate) fn tick_or(&self, rested: impl FnOnce()) -> Moment {
        let (physical, block) = (self.now(rested), self.block());
        let Some(block) = block else { return self.advance(physical, 1) };
        if physical != 0 || block.next > block.end {
            return self.advance(physical, MANY);
        }
        BLOCK.set(Block { next: block.next + 1, ..block });
        Moment(block.next)
    }

    /// Takes note of a moment that came with a message, and reads the clock. One that no clock can say, after the year 2103,
    /// is not believed.
    ///
    /// ```
    /// use millrace_resident::Clock;
    /// let (here, there) = (Clock::new(), Clock::new());
    /// let sent = there.tick();
    /// let received = here.observe(sent);
    /// assert!(sent < received && received < there.observe(received));
    /// let damaged = millrace_resident::Moment::from_raw(u64::MAX);
    /// assert!(received < here.observe(damaged) && here.observe(damaged) < here.observe(damaged));
    /// ```
    #[inline]
    pub fn observe(&self, remote: Moment) -> Moment {
        self.advance(self.now(|| {}).max(remote.believed().map_or(0, |remote| remote.0 + 1)), 1)
    }

    /// Takes note of a moment without reading the clock: what it says later is later than that, if it can be believed, as
    /// [`Self::observe`] says.
    ///
    /// ```
    /// use millrace_resident::{Clock, Moment};
    /// let (clock, far) = (Clock::new(), Moment::from_raw(u64::MAX / 2));
    /// clock.see(far);
    /// assert!(clock.last() == far && clock.tick() > far);
    /// ```
    #[inline]
    pub fn see(&self, remote: Moment) {
        let Some(remote) = remote.believed() else { return };
        let last = self.last.load(Ordering::Relaxed);
        if last < remote.0 {
            let alone = self.block();
            let before = self.last.fetch_max(remote.0, Ordering::Relaxed);
            // A thread that reads the clock alone still does: its next reading takes a block.
            if alone.is_some_and(|block| block.end == before) {
                BLOCK.set(Block { clock: self.number, next: remote.0.saturating_add(1), end: remote.0 });
            }
        } else if last - remote.0 < MANY {
            // It may be in a block, and not have been given out.
            match self.block() {
                Some(block) => BLOCK.set(Block { next: block.next.max(remote.0.saturating_add(1)), ..block }),
                None => drop(self.last.fetch_max(last.saturating_add(1), Ordering::Relaxed)),
            }
        }
    }

    /// The last reading, if it was this thread's or there was no other thread's; otherwise a moment that no reading so far is
    /// later than.
    ///
    /// ```
    /// let clock = millrace_resident::Clock::new();
    /// let read = clock.tick();
    /// assert_eq!(clock.last(), read);
    /// ```
    pub fn last(&self) -> Moment {
        Moment(self.block().map_or_else(|| self.last.load(Ordering::Relaxed), |block| block.next - 1))
    }

    /// This thread's block, if nobody has taken anything since: each reading that was given out is before `next`.
    #[inline]
    fn block(&self) -> Option<Block> {
        let block = BLOCK.get();
        (block.clock == self.number && block.end == self.last.load(Ordering::Relaxed)).then_some(block)
    }

    /// Whether this thread's next reading needs no atomic step, as far as it knows.
    #[cfg(test)]
    fn has_readings(&self) -> bool {
        self.block().is_some_and(|block| block.next <= block.end)
    }

    /// Takes `many` readings in one atomic step, of which the first is given out.
    #[inline]
    fn advance(&self, physical: u64, many: u64) -> Moment {
        let mut last = self.last.load(Ordering::Relaxed);
        loop {
            let next = physical.max(last.saturating_add(1));
            let end = next.saturating_add(many - 1);
            match self.last.compare_exchange_weak(last, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    BLOCK.set(Block { clock: self.number, next: next.saturating_add(1), end });
                    return Moment(next);
                }
                Err(other) => last = other,
            }
        }
    }

    /// The physical time as a reading, or nothing if it was read a moment ago: asking the system costs several times as
    /// much as everything else, and within some microseconds the counter says which came first.
    #[inline]
    fn now(&self, rested: impl FnOnce()) -> u64 {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            // SAFETY: it reads a register.
            let ticks = unsafe { std::arch::x86_64::_rdtsc() };
            // Counters of two cores may differ: then it is a long time, and the system is asked.
            if ticks.wrapping_sub(self.asked.load(Ordering::Relaxed)) < A_MOMENT {
                return 0;
            }
            self.asked.store(ticks, Ordering::Relaxed);
        }
        rested();
        // Before 1970 it counts by itself.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let micros = u64::try_from(since.as_micros()).unwrap_or(u64::MAX);
        micros.min(FARTHEST >> LOGICAL) << LOGICAL
    }
}

/// Ticks of the processor's counter, which runs at two to five of them in a nanosecond: some microseconds. Who asks the system
/// takes a new block, and that atomic step waits until all that was written before has reached the cache: asked four times as often,
/// every fourth message of eight kilobytes would wait for itself.
#[cfg(all(target_arch = "x86_64", not(miri)))]
const A_MOMENT: u64 = 8_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_and_sees_answers_alone_reads_from_its_block() {
        let (clock, mut steps) = (Clock::new(), 0);
        let mut last = clock.tick();
        for _ in 0..1000 {
            let answer = Moment(last.0 + 1); // as a kernel stamps it
            clock.see(answer);
            steps += u32::from(!clock.has_readings());
            last = clock.tick();
            assert!(last > answer);
        }
        assert!(steps < 1000 / 4, "{steps} of 1000 readings were atomic steps");
        // Another one who reads takes it away, and what it saw in between is in the past for both.
        let others = std::thread::scope(|scope| scope.spawn(|| clock.tick()).join().unwrap());
        assert!(others > last && !clock.has_readings());
        clock.see(Moment(others.0 + 7));
        assert!(clock.tick().0 > others.0 + 7);
    }
}
