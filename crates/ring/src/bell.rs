//! The waiting of the rings, for those who keep what they wait for somewhere else: in memory that a device writes, for
//! example.

use std::{
    task::Waker,
    time::{Duration, Instant},
};

use crate::{
    fence,
    poll::Polling,
    prefetch,
    wait::{self, Key, WaitSet},
};

/// Wakes those who wait for a change. Threads poll for a while and then sleep; tasks leave their waker.
///
/// To wait: [`Bell::register`], look again, sleep. To wake: make the change, [`Bell::ring`]. One of the two sees the
/// other.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use millrace_ring::Bell;
/// let (bell, open) = (Bell::new(), AtomicBool::new(false));
/// std::thread::scope(|s| {
///     s.spawn(|| {
///         open.store(true, Ordering::Release);
///         bell.ring();
///     });
///     let waited = bell.wait(None, true, || open.load(Ordering::Acquire).then_some("open"));
///     assert_eq!(waited, Some("open"));
/// });
/// ```
#[derive(Debug)]
pub struct Bell {
    set: WaitSet,
}

/// A sleeper's place at a [`Bell`].
///
/// ```
/// use std::task::Waker;
/// use millrace_ring::{Bell, Seat};
/// let (bell, mut seat) = (Bell::new(), Seat::default());
/// bell.register(&mut seat, Waker::noop());
/// assert!(bell.has_listeners());
/// bell.unregister(&mut seat);
/// assert!(!bell.has_listeners());
/// ```
#[derive(Debug, Default)]
pub struct Seat(Key);

impl Default for Bell {
    fn default() -> Self {
        Self::new()
    }
}

impl Bell {
    /// A bell that nobody listens to yet.
    pub fn new() -> Self {
        Self { set: WaitSet::new() }
    }

    /// Something changed: wakes everyone who sleeps. Next to nothing while nobody does.
    ///
    /// ```
    /// use std::{sync::{Arc, atomic::{AtomicU32, Ordering}}, task::{Wake, Waker}};
    /// use millrace_ring::{Bell, Seat};
    /// #[derive(Default)]
    /// struct Count(AtomicU32);
    /// impl Wake for Count {
    ///     fn wake(self: Arc<Self>) {
    ///         self.0.fetch_add(1, Ordering::Relaxed);
    ///     }
    /// }
    /// let (bell, mut seat, count) = (Bell::new(), Seat::default(), Arc::new(Count::default()));
    /// bell.ring(); // nobody hears it
    /// bell.register(&mut seat, &Waker::from(count.clone()));
    /// bell.ring();
    /// assert_eq!(count.0.load(Ordering::Relaxed), 1);
    /// # bell.unregister(&mut seat);
    /// ```
    #[inline(always)]
    pub fn ring(&self) {
        fence::light();
        self.set.wake();
    }

    /// Something changed that is for a few: wakes so many of those who sleep, or all if there are fewer.
    ///
    /// ```
    /// use std::task::Waker;
    /// use millrace_ring::{Bell, Seat};
    /// let (bell, mut seats) = (Bell::new(), [Seat::default(), Seat::default(), Seat::default()]);
    /// seats.iter_mut().for_each(|seat| bell.register(seat, Waker::noop()));
    /// bell.ring_for(2);
    /// assert!(bell.has_listeners(), "one sleeps on");
    /// bell.ring_for(2);
    /// assert!(!bell.has_listeners());
    /// ```
    #[inline(always)]
    pub fn ring_for(&self, many: usize) {
        fence::light();
        for _ in 0..many {
            if !self.set.is_anyone() {
                return;
            }
            self.set.wake_first();
        }
    }

    /// Room was made in a queue of `capacity`, whose receiver took `received` messages and has come to `position` by that: wakes
    /// tasks at once, and one of the threads that [wait for room](Self::wait_for_room) when it is half empty and nobody refills
    /// it. How many are `waiting` is asked only if it matters.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    /// let (bell, waiting) = (millrace_ring::Bell::new(), AtomicUsize::new(8));
    /// std::thread::scope(|s| {
    ///     s.spawn(|| {
    ///         for taken in 1..=8 {
    ///             waiting.store(8 - taken, Ordering::Release);
    ///             bell.ring_for_room(taken, 1, 8, || 8 - taken);
    ///         }
    ///     });
    ///     let room = || (waiting.load(Ordering::Acquire) < 8).then_some("room");
    ///     assert_eq!(bell.wait_for_room(None, true, room), Some("room"));
    /// });
    /// ```
    #[inline(always)]
    pub fn ring_for_room(&self, position: usize, received: usize, capacity: usize, waiting: impl FnOnce() -> usize) {
        fence::light();
        if self.set.is_anyone() {
            self.set.wake_for_room(position, received, capacity, waiting);
        }
    }

    /// A queue was found empty, so that nobody refills it: wakes tasks, and one of the threads that
    /// [wait for room](Self::wait_for_room).
    ///
    /// ```
    /// use std::task::Waker;
    /// use millrace_ring::{Bell, Seat};
    /// let (bell, mut seat) = (Bell::new(), Seat::default());
    /// bell.register(&mut seat, Waker::noop());
    /// bell.ring_for_empty();
    /// assert!(!bell.has_listeners());
    /// ```
    #[inline(always)]
    pub fn ring_for_empty(&self) {
        fence::light();
        self.set.wake_for_empty();
    }

    /// Whether somebody sleeps who did not see the last change: for those who have to look at something before they know
    /// whether to [`Self::ring`].
    #[inline(always)]
    pub fn has_listeners(&self) -> bool {
        fence::light();
        self.set.is_anyone()
    }

    /// Announces a sleeper, or replaces its waker. The caller must look once more before it sleeps.
    pub fn register(&self, seat: &mut Seat, waker: &Waker) {
        self.set.register(&mut seat.0, waker, wait::EAGER);
    }

    /// Takes a sleeper's place back.
    pub fn unregister(&self, seat: &mut Seat) {
        self.set.unregister(&mut seat.0);
    }

    /// Blocks until `attempt` succeeds, until the deadline at most. With `polling` it looks for about as long as a
    /// wake-up would cost before it sleeps, where that makes sense.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// let bell = millrace_ring::Bell::new();
    /// assert_eq!(bell.wait(None, true, || Some(7)), Some(7), "it looks first");
    /// let soon = Instant::now() + Duration::from_millis(1);
    /// assert_eq!(bell.wait(Some(soon), true, || None::<u8>), None);
    /// ```
    pub fn wait<R>(&self, deadline: Option<Instant>, polling: bool, attempt: impl FnMut() -> Option<R>) -> Option<R> {
        self.wait_as(wait::EAGER, None, deadline, polling, attempt)
    }

    /// [`Self::wait`] for room in a queue: woken when there is room for many messages, and looking by itself now and
    /// then, in case there never is.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// let bell = millrace_ring::Bell::new();
    /// let mut looks = 0;
    /// let room = bell.wait_for_room(Some(Instant::now() + Duration::from_secs(10)), false, || {
    ///     looks += 1;
    ///     (looks > 3).then_some("room") // nobody rings: it looks by itself
    /// });
    /// assert_eq!(room, Some("room"));
    /// ```
    pub fn wait_for_room<R>(
        &self,
        deadline: Option<Instant>,
        polling: bool,
        attempt: impl FnMut() -> Option<R>,
    ) -> Option<R> {
        self.wait_as(wait::PATIENT, Some(wait::FIRST_ROUND), deadline, polling, attempt)
    }

    fn wait_as<R>(
        &self,
        level: usize,
        patience: Option<Duration>,
        deadline: Option<Instant>,
        polling: bool,
        mut attempt: impl FnMut() -> Option<R>,
    ) -> Option<R> {
        if polling && let Some(result) = Polling::begin().poll(deadline, false, &mut attempt) {
            return Some(result);
        }
        let mut seat = Seat::default();
        let result = wait::sleep_until(deadline, patience, |waker| {
            if let Some(waker) = waker {
                self.set.register(&mut seat.0, waker, level);
            }
            attempt()
        });
        self.unregister(&mut seat);
        result
    }
}

/// Sleeps in rounds until `attempt` succeeds. Given a waker, `attempt` leaves it where it will be called before it
/// looks; without one, it just looks.
///
/// ```
/// use std::task::Waker;
/// let mut looks = 0;
/// let result = millrace_ring::sleep_until(None, |waker: Option<&Waker>| {
///     looks += 1;
///     waker.map(Waker::wake_by_ref); // as if it came at once
///     (looks > 2).then_some("there")
/// });
/// assert_eq!(result, Some("there"));
/// ```
pub fn sleep_until<R>(deadline: Option<Instant>, attempt: impl FnMut(Option<&Waker>) -> Option<R>) -> Option<R> {
    wait::sleep_until(deadline, None, attempt)
}

/// Brings a cache line that another core used last to this one, to be written soon. A hint: it changes nothing but time.
///
/// ```
/// let line = [0u8; 64];
/// millrace_ring::prefetch_to_write(&line);
/// ```
#[inline(always)]
pub fn prefetch_to_write<T>(place: *const T) {
    prefetch::to_write(place);
}
