//! Polling: for how long, and how, a waiter looks before it sleeps.
//!
//! Waking a sleeping thread costs tens of microseconds, so a waiter first polls for about as long (the "ski rental"
//! rule: at most twice the cost of having known the future). It polls in two steps: a microsecond with the processor's
//! pause instruction, then by yielding, which gives the core away where more threads than cores want to run. While others
//! run there the waiter costs nothing, so that time counts only to a limit: what it waits for may be theirs to do. A yield
//! that comes back after a whole time slice means that the machine is crowded: then yielding only hands the core to
//! strangers, while a sleeper that is woken gets it soon, so for a while everybody sleeps after the pauses. On one core nobody
//! ever polls.
//!
//! Two ends that chase each other slot by slot move one cache line per message back and forth. So a receiver that has
//! caught up with a busy sender gives it a head start ([`Pace`]): a moment in which a batch builds up makes each message of
//! it several times cheaper. A sender that found the ring full does the same for the receiver.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, Instant},
};

/// About what a wake-up costs, and so how long a waiter polls before it sleeps.
pub(crate) const WAKE_UP: Duration = Duration::from_micros(50);

/// How long it polls at most, if others have the core most of the time.
#[cfg(not(loom))]
const LONGEST: Duration = Duration::from_micros(200);
/// A yield that took longer let another thread do something: more than the system needs to find that there is none, or to
/// switch to one that yields as well.
#[cfg(not(loom))]
const THEIRS: Duration = Duration::from_micros(4);

/// Whether polling can help: somebody else must be able to run meanwhile.
#[cfg(not(loom))]
mod cores {
    use std::sync::atomic::{AtomicBool, Ordering};

    static SEVERAL: AtomicBool = AtomicBool::new(false);

    /// Looks whether this process may run on several cores, until that was seen once.
    pub(super) fn look() {
        if !SEVERAL.load(Ordering::Relaxed) {
            let several = std::thread::available_parallelism().is_ok_and(|n| n.get() > 1) || threads_differ();
            SEVERAL.store(several, Ordering::Relaxed);
        }
    }

    pub(super) fn several() -> bool {
        SEVERAL.load(Ordering::Relaxed)
    }

    /// A thread that is pinned to one core says "one core"; the process has more if its threads are on different ones.
    fn threads_differ() -> bool {
        let Ok(tasks) = std::fs::read_dir("/proc/self/task") else {
            return false;
        };
        let mut masks = tasks.filter_map(|task| {
            let status = std::fs::read_to_string(task.ok()?.path().join("status")).ok()?;
            let mask = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
            Some(mask.trim().to_owned())
        });
        let Some(first) = masks.next() else {
            return false;
        };
        first.contains([',', '-']) || masks.any(|mask| mask != first)
    }
}

/// Finds out whether polling can help at all, and what a pause takes; every ring's constructor calls it.
pub(crate) fn look_for_cores() {
    #[cfg(not(loom))]
    {
        cores::look();
        pause::measure();
    }
}

/// The processor's pause instruction takes between four and fifty nanoseconds, depending on whose it is.
#[cfg(not(loom))]
mod pause {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
        time::{Duration, Instant},
    };

    /// Picoseconds of one; zero before it was measured.
    static TAKES: AtomicU32 = AtomicU32::new(0);
    const SAMPLE: u32 = 32;

    pub(super) fn measure() {
        if TAKES.load(Ordering::Relaxed) != 0 {
            return;
        }
        let sample = || {
            let start = Instant::now();
            (0..SAMPLE).for_each(|_| std::hint::spin_loop());
            start.elapsed()
        };
        // The best of a few: a thread may be interrupted.
        let best = (0..4).map(|_| sample()).min().unwrap_or_default();
        let each = best.as_nanos() as u64 * 1000 / u64::from(SAMPLE);
        TAKES.store(each.clamp(1000, 200_000) as u32, Ordering::Relaxed);
    }

    /// Pauses for about that long.
    pub(super) fn pause_for(time: Duration) {
        let each = u64::from(TAKES.load(Ordering::Relaxed).max(1000));
        (0..time.as_nanos() as u64 * 1000 / each).for_each(|_| std::hint::spin_loop());
    }
}

/// Whether more threads than cores want to run, of this process or of others. A fact about the machine, so it is
/// shared by all who wait.
#[cfg(not(loom))]
mod crowd {
    use std::{
        sync::{
            OnceLock,
            atomic::{AtomicU64, Ordering},
        },
        time::{Duration, Instant},
    };

    use crate::fence;

    /// A yield that takes longer let somebody run who does not give the core back by himself.
    const SLICE: Duration = Duration::from_micros(500);
    /// How long what was seen is believed: briefly at first, and twice as long whenever it turns out to be still so,
    /// because finding out costs a time slice.
    const FIRST: u64 = 4_000;
    const LONGEST: u64 = 1_024_000;

    /// Until when, in microseconds after `START`; zero while there is no crowd.
    static UNTIL: AtomicU64 = AtomicU64::new(0);
    static MEMORY: AtomicU64 = AtomicU64::new(FIRST);
    static START: OnceLock<Instant> = OnceLock::new();

    fn at(moment: Instant) -> u64 {
        moment.saturating_duration_since(*START.get_or_init(|| moment)).as_micros() as u64
    }

    pub(super) fn yielded(before: Instant, after: Instant) {
        let memory = MEMORY.load(Ordering::Relaxed);
        if after - before > SLICE {
            if UNTIL.swap(at(after) + memory, Ordering::Relaxed) == 0 {
                fence::crowded(true);
            }
            MEMORY.store((memory * 2).min(LONGEST), Ordering::Relaxed);
        } else if memory != FIRST {
            MEMORY.store(FIRST, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn is_here() -> bool {
        let until = UNTIL.load(Ordering::Relaxed);
        if until == 0 || at(Instant::now()) < until {
            return until != 0;
        }
        if UNTIL.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            fence::crowded(false);
        }
        false
    }
}

/// How a thread polls, learned from what ended its last waits.
///
/// Two threads that yield to each other can share one core for long while another is free, which is the slow way; a
/// thread that is woken, on the other hand, is put on a free core. So a thread that finds itself sharing sleeps at once
/// every now and then; if that does not help there is no free core, and then it does so ever more rarely. While it shares
/// it does not pause before it yields, because pausing only keeps the other from running.
#[cfg(not(loom))]
mod pauses {
    use std::{cell::Cell, time::Duration};

    pub(super) const MOST: u32 = 128;
    const LEAST: u32 = 4;
    /// A yield that took longer let another thread run here.
    const SWITCHED: Duration = Duration::from_micros(1);
    /// Waits on a shared core before the thread sleeps to get away: at first, and at most.
    const SHARED_FIRST: u32 = 16;
    const SHARED_MOST: u32 = 1 << 14;

    #[derive(Clone, Copy)]
    struct Habit {
        pauses: u32,
        /// Waits in a row that another thread on this core ended.
        shared: u32,
        /// How many of them are too many.
        bearable: u32,
    }

    thread_local!(static HABIT: Cell<Habit> = const {
        Cell::new(Habit { pauses: MOST, shared: 0, bearable: SHARED_FIRST })
    });

    fn more(pauses: u32) -> u32 {
        (pauses * 2).clamp(LEAST, MOST)
    }

    /// How many pauses are worthwhile; none at all if it is time to sleep.
    pub(super) fn worthwhile() -> Option<u32> {
        let habit = HABIT.get();
        if habit.shared < habit.bearable {
            return Some(habit.pauses);
        }
        HABIT.set(Habit { shared: 0, bearable: (habit.bearable * 2).min(SHARED_MOST), ..habit });
        None
    }

    #[inline]
    pub(super) fn helped() {
        let habit = HABIT.get();
        if habit.pauses < MOST || habit.shared > 0 {
            HABIT.set(Habit { pauses: more(habit.pauses), shared: 0, bearable: SHARED_FIRST });
        }
    }

    pub(super) fn yielding_helped(took: Duration) {
        let habit = HABIT.get();
        HABIT.set(if took > SWITCHED {
            Habit { pauses: 0, shared: habit.shared + 1, ..habit }
        } else {
            // Without a switch it was the time that helped, and more pauses would have as well.
            Habit { pauses: more(habit.pauses), shared: 0, ..habit }
        });
    }
}

/// A wait that begins: whether it is worth polling, and for how many pauses before the first yield.
#[cfg(not(loom))]
#[derive(Clone, Copy)]
pub(crate) struct Polling {
    /// None if one look has to do.
    pauses: Option<u32>,
    /// Whether to yield after them.
    yields: bool,
}

#[cfg(not(loom))]
impl Polling {
    pub(crate) fn begin() -> Self {
        if !cores::several() {
            Self { pauses: None, yields: false }
        } else if crowd::is_here() {
            // The other end may run on another core all the same, and sleeping takes longer than this.
            Self { pauses: Some(pauses::MOST), yields: false }
        } else {
            Self { pauses: pauses::worthwhile(), yields: true }
        }
    }

    /// Leaves the other end alone: until it has got on by so many messages, or stops, or takes too long for them. `done` says
    /// how many it has done.
    pub(crate) fn give_head_start(self, start: HeadStart, stride: &Stride, done: impl Fn() -> usize) {
        if self.pauses.is_some_and(|pauses| pauses > 0) {
            match start {
                HeadStart::For(messages) => leave_alone(messages, stride.each(), done),
                HeadStart::Try => stride.measure(done),
            }
        }
    }

    /// Polls until `attempt` succeeds, the deadline passes, or it is no longer worth it. `briefly` leaves out the yielding.
    pub(crate) fn poll<R>(
        self,
        deadline: Option<Instant>,
        briefly: bool,
        mut attempt: impl FnMut() -> Option<R>,
    ) -> Option<R> {
        self.pause(&mut attempt).or_else(|| if briefly { None } else { self.give_way(deadline, attempt) })
    }

    /// The first part of [`Self::poll`]: pauses between two looks.
    pub(crate) fn pause<R>(self, mut attempt: impl FnMut() -> Option<R>) -> Option<R> {
        // Who shares its core does not pause, but looks: what it waits for may be there already.
        let Some(pauses @ 1..) = self.pauses else { return attempt() };
        for _ in 0..pauses {
            if let Some(result) = attempt() {
                pauses::helped();
                return Some(result);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// The second part: gives the core to others between two looks.
    pub(crate) fn give_way<R>(self, deadline: Option<Instant>, mut attempt: impl FnMut() -> Option<R>) -> Option<R> {
        if self.pauses.is_none() || !self.yields {
            return None;
        }
        let mut now = Instant::now();
        let longest = deadline.unwrap_or(now + LONGEST).min(now + LONGEST);
        let mut end = longest.min(now + WAKE_UP);
        while now < end {
            std::thread::yield_now();
            let before = std::mem::replace(&mut now, Instant::now());
            crowd::yielded(before, now);
            end = end_after_yield(end, longest, now - before);
            if let Some(result) = attempt() {
                pauses::yielding_helped(now - before);
                return Some(result);
            }
        }
        None
    }
}

/// When polling ends that was to end then, after a yield that took so long: another thread's time is not ours.
#[cfg(not(loom))]
fn end_after_yield(end: Instant, longest: Instant, took: Duration) -> Instant {
    if took > THEIRS { longest.min(end + took) } else { end }
}

/// Models look once.
#[cfg(loom)]
#[derive(Clone, Copy)]
pub(crate) struct Polling;

#[cfg(loom)]
impl Polling {
    pub(crate) fn begin() -> Self {
        Self
    }

    pub(crate) fn give_head_start(self, _: HeadStart, _: &Stride, _: impl Fn() -> usize) {}

    pub(crate) fn poll<R>(self, _: Option<Instant>, _: bool, attempt: impl FnMut() -> Option<R>) -> Option<R> {
        self.pause(attempt)
    }

    pub(crate) fn pause<R>(self, mut attempt: impl FnMut() -> Option<R>) -> Option<R> {
        attempt()
    }

    pub(crate) fn give_way<R>(self, _: Option<Instant>, _: impl FnMut() -> Option<R>) -> Option<R> {
        None
    }
}

/// For how long an end leaves the other one alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HeadStart {
    /// Until it is so many messages further.
    For(u32),
    /// For long enough to see how fast it is.
    Try,
}

/// What the other end of a ring needs for a message, if it is left alone. It depends on how far apart their cores are, which
/// is up to the system and may change, so now and then it is measured.
#[derive(Debug)]
pub(crate) struct Stride {
    /// In nanoseconds. A hint, so models need not know of it.
    each: AtomicU32,
    waits: AtomicU32,
}

impl Default for Stride {
    fn default() -> Self {
        Self { each: AtomicU32::new(EACH), waits: AtomicU32::new(0) }
    }
}

impl Stride {
    /// How long a sender that found a ring of this capacity full leaves its receiver alone.
    pub(crate) fn for_room(&self, capacity: usize) -> HeadStart {
        let waits = self.waits.load(Ordering::Relaxed);
        self.waits.store(waits.wrapping_add(1), Ordering::Relaxed);
        if waits % TRY_SENDING_EVERY == TRY_SENDING_EVERY - 1 {
            HeadStart::Try
        } else {
            HeadStart::For(ENOUGH.min(capacity as u32 / 2))
        }
    }

    #[cfg_attr(loom, expect(dead_code, reason = "models give no head start"))]
    fn each(&self) -> Duration {
        Duration::from_nanos(u64::from(self.each.load(Ordering::Relaxed)))
    }

    #[cfg(not(loom))]
    fn measure(&self, done: impl Fn() -> usize) {
        pause::pause_for(TRY / 2);
        let before = done();
        if before == 0 {
            return; // nobody sends
        }
        pause::pause_for(TRY / 2);
        let more = done().saturating_sub(before) as u32;
        // If there are none, a batch has ended, and how fast it was cannot be said.
        if let Some(each) = (TRY.as_nanos() as u32 / 2).checked_div(more) {
            self.each.store(each.clamp(EACH, FAR), Ordering::Relaxed);
        }
    }
}

/// For how many messages a receiver that has caught up leaves the senders alone.
///
/// Whether messages come in a stream, in small batches or one at a time is seen from how many it gets in one go. Ends that
/// chase each other never get many, so now and then the receiver waits to find out. It waits for as many messages as came
/// lately: in a stream batches grow by that, and small ones are not held up for longer than it takes to send them.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// Received since the ring was last found empty.
    run: u32,
    /// How many that was lately.
    batch: u32,
    /// Times the ring was found empty.
    empty: u32,
}

/// How many nanoseconds one end leaves the other alone for each message of a batch: at first and at least, and at most.
const EACH: u32 = 20;
#[cfg(not(loom))]
const FAR: u32 = 200;
/// Meanwhile it looks after every so many whether the other one still gets on: more often, and the line that says so would
/// go back and forth; more rarely, and the end of a batch is waited for in vain.
#[cfg(not(loom))]
const STRETCH: u32 = 16;
/// Messages of a batch that is worth waiting for.
pub(crate) const ENOUGH: u32 = 48;
/// Fewer than this in one go are no batch.
const BATCH: u32 = 8;
/// So many in one go are a stream that will go on for a while.
const LOOK_EVERY: u32 = 16;
/// One in so many waits is a try: rare enough not to show in a 99th percentile.
const TRY_EVERY: u32 = 256;
/// The same for senders, which do not chase a receiver one by one.
const TRY_SENDING_EVERY: u32 = 64;
/// How long a try takes.
#[cfg(not(loom))]
const TRY: Duration = Duration::from_micros(1);

impl Pace {
    #[inline(always)]
    pub(crate) fn received(&mut self) {
        self.run = self.run.wrapping_add(1);
    }

    /// Whether so many came in one go that the senders' index is worth a look; one in so many messages is.
    #[inline(always)]
    pub(crate) fn is_time_to_look(&self) -> bool {
        self.run % LOOK_EVERY == LOOK_EVERY - 1
    }

    /// The ring is empty: for how long to leave the senders alone.
    pub(crate) fn caught_up(&mut self) -> HeadStart {
        self.batch = self.run.max(self.batch / 2 + self.run / 2);
        self.run = 0;
        self.empty = self.empty.wrapping_add(1);
        if self.empty % TRY_EVERY == 1 {
            HeadStart::Try
        } else if self.batch >= BATCH {
            HeadStart::For(self.batch.min(ENOUGH))
        } else {
            HeadStart::For(0)
        }
    }
}

/// See [`Polling::give_head_start`].
#[cfg(not(loom))]
fn leave_alone(messages: u32, each: Duration, done: impl Fn() -> usize) {
    let (mut left, mut before) = (messages, 0);
    while left > 0 {
        let stretch = left.min(STRETCH);
        pause::pause_for(each * stretch);
        left -= stretch;
        let now = done();
        if now == before || now >= messages as usize {
            return;
        }
        before = now;
    }
}

/// Polls `attempt` for about as long as waking a thread would cost, or four times that if others have the core meanwhile:
/// first briskly, then giving the core to others between two looks. `None` means that it is time to sleep. On one core it looks once.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// let ready = AtomicBool::new(false);
/// let poll = || ready.load(Ordering::Acquire).then_some(());
/// assert!(millrace_ring::poll_while_worthwhile(poll).is_none());
/// ```
pub fn poll_while_worthwhile<R>(attempt: impl FnMut() -> Option<R>) -> Option<R> {
    Polling::begin().poll(None, false, attempt)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// How a receiver waits after each of so many batches.
    fn waits(pace: &mut Pace, batch: u32, times: usize) -> Vec<HeadStart> {
        let mut wait = || {
            (0..batch).for_each(|_| pace.received());
            pace.caught_up()
        };
        (0..times).map(|_| wait()).collect()
    }

    #[test]
    fn a_receiver_waits_as_long_as_the_batches_that_come() {
        let mut pace = Pace::default();
        assert_eq!(pace.caught_up(), HeadStart::Try, "the first time");
        let all = |waits: Vec<HeadStart>, messages| waits.iter().all(|wait| *wait == HeadStart::For(messages));
        assert!(all(waits(&mut pace, 1, 200), 0), "one at a time is taken at once");
        assert!(all(waits(&mut pace, 10, 40), 10));
        assert!(all(waits(&mut pace, 1000, 1), ENOUGH), "no more than a batch that is worth it");
        let after = waits(&mut pace, 1, 12);
        assert!(after[0] != HeadStart::For(0) && after[11] == HeadStart::For(0), "it is forgotten soon: {after:?}");
    }

    #[test]
    fn who_has_stopped_is_not_waited_for() {
        look_for_cores();
        let looks = std::cell::Cell::new(0);
        let each = Stride::default().each();
        let after = |stops: usize| {
            looks.set(0);
            leave_alone(ENOUGH, each, || {
                looks.set(looks.get() + 1);
                looks.get().min(stops)
            });
            looks.get()
        };
        assert_eq!([after(0), after(1), after(2)], [1, 2, 3], "one look more than there was anything to see");
        assert_eq!(after(100), ENOUGH.div_ceil(STRETCH) as usize, "nor one that is too slow");
        looks.set(0);
        leave_alone(ENOUGH, each, || {
            looks.set(looks.get() + 1);
            ENOUGH as usize
        });
        assert_eq!(looks.get(), 1, "what was wanted is there");
    }

    #[test]
    fn one_wait_in_many_is_a_try() {
        let mut pace = Pace::default();
        let is_try = |wait: &&HeadStart| **wait == HeadStart::Try;
        assert_eq!(waits(&mut pace, 1, 4 * TRY_EVERY as usize).iter().filter(is_try).count(), 4);
        let stride = Stride::default();
        let sending: Vec<_> = (0..4 * TRY_SENDING_EVERY).map(|_| stride.for_room(128)).collect();
        assert_eq!(sending.iter().filter(is_try).count(), 4);
        assert_eq!(sending[0], HeadStart::For(ENOUGH));
        assert_eq!(stride.for_room(8), HeadStart::For(4), "never for more than half of the ring");
    }

    #[test]
    fn the_time_for_a_message_is_that_which_it_takes() {
        look_for_cores();
        let stride = Stride::default();
        let each = |before: usize, after: usize| {
            let looks = std::cell::Cell::new([after, before].to_vec());
            stride.measure(|| {
                let mut left = looks.take();
                let look = left.pop().unwrap_or(0);
                looks.set(left);
                look
            });
            stride.each().as_nanos()
        };
        assert_eq!(each(5, 10), 100);
        assert_eq!([each(0, 10), each(10, 10)], [100, 100], "none that is under way");
        assert_eq!([each(40, 90), each(1, 2)], [EACH.into(), FAR.into()]);
    }

    #[test]
    fn who_shares_its_core_looks_before_it_gives_way() {
        let (sharing, mut looks) = (Polling { pauses: Some(0), yields: true }, 0);
        let found = sharing.poll(None, true, || {
            looks += 1;
            Some("there")
        });
        assert_eq!((found, looks), (Some("there"), 1), "without a yield");
    }

    #[test]
    fn the_time_of_others_is_not_counted_but_to_a_limit() {
        let start = Instant::now();
        let (end, longest) = (start + WAKE_UP, start + LONGEST);
        let after = |took| end_after_yield(end, longest, took);
        assert_eq!(after(THEIRS), end, "nobody else did anything");
        assert_eq!(after(WAKE_UP), end + WAKE_UP);
        assert_eq!(after(2 * LONGEST), longest);
    }

    #[test]
    fn pauses_take_about_as_long_as_is_asked() {
        look_for_cores();
        let shortest = (0..20).map(|_| {
            let start = Instant::now();
            pause::pause_for(Duration::from_micros(20));
            start.elapsed()
        });
        let shortest = shortest.min().unwrap_or_default();
        assert!(shortest > Duration::from_micros(5) && shortest < Duration::from_micros(200), "{shortest:?}");
    }
}
