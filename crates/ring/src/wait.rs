//! Waiting: poll while the other side is likely to answer (see `poll.rs`), then sleep until it does.

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::atomic::{self, AtomicBool, AtomicU32},
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;

use crate::{
    error::{RecvDeadlineError, RecvError, SendDeadlineError, SendError, TryRecvError, TrySendError},
    fence,
    poll::{self, Pace, Polling, Stride},
    sync::{AtomicUsize, Mutex, Ordering, lock},
};

/// Nobody sleeps.
const NONE: usize = 0;
/// Only threads sleep. They look again by themselves after a while, so a wake-up may be held back to serve many.
pub(crate) const PATIENT: usize = 1;
/// A task sleeps. It has no clock: the next wake-up is the only one it gets.
pub(crate) const EAGER: usize = 2;

/// Makes the system ready for threads that sleep and wake each other. The first ring of a process does it by itself; call
/// it earlier, before there are threads, because with several of them Linux takes tens of milliseconds for it.
///
/// ```
/// millrace_ring::prepare();
/// ```
pub fn prepare() {
    fence::prepare();
    poll::look_for_cores();
}

/// Those who sleep until an end of a ring moves.
///
/// To sleep: [`WaitSet::register`], look again, sleep. To wake: change the ring, [`fence::light`], [`WaitSet::wake`].
/// Registering fences heavily, so one of the two sees the other.
#[derive(Debug)]
pub(crate) struct WaitSet {
    /// `NONE`, `PATIENT` or `EAGER`; changed under the lock, read without it.
    sleeping: AtomicUsize,
    sleepers: Mutex<Sleepers>,
    /// Apart from what both ends read with every message.
    hints: CachePadded<Hints>,
}

/// What those who wait have learned. Models need not know of it.
#[derive(Debug)]
struct Hints {
    /// Whether the last wait was a long one: then the next will be, too, and polling would be a waste.
    long: AtomicBool,
    /// Waits in a row that polling ended, although the other end was so slow that sleeping would not have held it up.
    slow: AtomicU32,
    /// How long they leave the other end alone first.
    stride: Stride,
    /// How many messages waited when the receiver last looked; `UNSEEN` if it has yet to look since somebody went to sleep.
    waiting: atomic::AtomicUsize,
}

/// No ring has so many.
const UNSEEN: usize = usize::MAX;

impl Default for Hints {
    fn default() -> Self {
        Self {
            long: AtomicBool::default(),
            slow: AtomicU32::default(),
            stride: Stride::default(),
            waiting: atomic::AtomicUsize::new(UNSEEN),
        }
    }
}

#[derive(Debug, Default)]
struct Sleepers {
    next_key: u64,
    wakers: Vec<(u64, Waker)>,
}

/// A sleeper's place in a [`WaitSet`].
pub(crate) type Key = Option<u64>;

impl WaitSet {
    pub(crate) fn new() -> Self {
        prepare();
        Self {
            sleeping: AtomicUsize::new(NONE),
            sleepers: Mutex::new(Sleepers::default()),
            hints: CachePadded::default(),
        }
    }

    /// Whether yielding between looks would only keep a processor busy. Never in models, which must not depend on the time.
    fn is_to_sleep(&self) -> bool {
        let Hints { long, slow, .. } = &*self.hints;
        !cfg!(loom) && (long.load(Ordering::Relaxed) || slow.load(Ordering::Relaxed) >= SLOW_WAITS)
    }

    /// A sender's wait was ended by a wake-up, after so long.
    fn slept(&self, time: Duration) {
        self.hints.long.store(time > LONG, Ordering::Relaxed);
        self.hints.slow.store(0, Ordering::Relaxed);
    }

    /// A sender's wait was ended by polling, after so long and with so much room: whether half of the ring would have lasted
    /// until a sleeper had been woken.
    fn polled(&self, time: Duration, room: usize, capacity: usize) {
        let slow = time > SLOW && time / (room.max(1) as u32) * (capacity as u32 / 2) > 2 * poll::WAKE_UP;
        let waits = if slow { self.hints.slow.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.hints.slow.store(waits, Ordering::Relaxed);
    }

    pub(crate) fn stride(&self) -> &Stride {
        &self.hints.stride
    }

    /// Announces a sleeper, or replaces its waker. The caller must look at the ring once more before it sleeps.
    pub(crate) fn register(&self, key: &mut Key, waker: &Waker, level: usize) {
        let mut sleepers = lock(&self.sleepers);
        let place = key.and_then(|key| sleepers.wakers.iter().position(|(k, _)| *k == key));
        match place {
            Some(place) => sleepers.wakers[place].1.clone_from(waker),
            None => {
                sleepers.next_key += 1;
                let new = sleepers.next_key;
                sleepers.wakers.push((new, waker.clone()));
                *key = Some(new);
            }
        }
        let level = level.max(self.sleeping.load(Ordering::Relaxed));
        self.sleeping.store(level, Ordering::Relaxed);
        self.hints.waiting.store(UNSEEN, Ordering::Relaxed);
        drop(sleepers);
        fence::heavy();
    }

    /// Takes a sleeper's place back; false if it was woken before.
    pub(crate) fn unregister(&self, key: &mut Key) -> bool {
        let Some(key) = key.take() else { return true };
        let mut sleepers = lock(&self.sleepers);
        let before = sleepers.wakers.len();
        sleepers.wakers.retain(|(k, _)| *k != key);
        if sleepers.wakers.is_empty() {
            self.sleeping.store(NONE, Ordering::Relaxed);
        }
        sleepers.wakers.len() < before
    }

    /// Wakes everyone who sleeps. Cheap when nobody does.
    #[inline(always)]
    pub(crate) fn wake(&self) {
        if self.sleeping.load(Ordering::Relaxed) != NONE {
            wake_all(self);
        }
    }

    /// Whether somebody sleeps who may have to be told of room.
    #[inline(always)]
    pub(crate) fn is_anyone(&self) -> bool {
        self.sleeping.load(Ordering::Relaxed) != NONE
    }

    /// Room was made: a receiver that has come to `position` took `received` messages, and so many are `waiting`. Wakes whoever
    /// sleeps for room. A task is woken at once, with all the others. Of threads only the first is woken, and only when the ring
    /// is half empty, so that one wake-up pays for many messages, and if those who are awake do not refill it: one more would
    /// only take its core from them. It looks once for every eighth of the ring, because looking keeps others from sending.
    pub(crate) fn wake_for_room(
        &self,
        position: usize,
        received: usize,
        capacity: usize,
        waiting: impl FnOnce() -> usize,
    ) {
        match self.sleeping.load(Ordering::Relaxed) {
            NONE => {}
            PATIENT => {
                let eighth = (capacity / 8).max(1);
                let is_time = received > 1 || position.is_multiple_of(eighth);
                if is_time && self.is_wanting(received.max(eighth), capacity, waiting()) {
                    self.wake_first();
                }
            }
            _ => wake_all(self),
        }
    }

    /// Whether one more should send, if so many were taken since this was asked last.
    fn is_wanting(&self, taken: usize, capacity: usize, waiting: usize) -> bool {
        let before = self.hints.waiting.swap(waiting, Ordering::Relaxed);
        let sent = if before == UNSEEN { 0 } else { (waiting + taken).saturating_sub(before) };
        // In small rings one message is as much as there is to be seen.
        waiting <= capacity / 2 && (taken == 1 || 2 * sent < taken)
    }

    /// Nothing is in the ring: if somebody sleeps, it is needed.
    #[inline(always)]
    pub(crate) fn wake_for_empty(&self) {
        if self.is_anyone() {
            wake_for_empty(self);
        }
    }

    /// Wakes the one who has slept longest.
    #[cold]
    pub(crate) fn wake_first(&self) {
        let mut sleepers = lock(&self.sleepers);
        if sleepers.wakers.is_empty() {
            return;
        }
        let (_, waker) = sleepers.wakers.remove(0);
        if sleepers.wakers.is_empty() {
            self.sleeping.store(NONE, Ordering::Relaxed);
        }
        drop(sleepers);
        call(waker);
    }

    fn wake_all(&self) {
        let mut sleepers = lock(&self.sleepers);
        self.sleeping.store(NONE, Ordering::Relaxed);
        // Those who come back meanwhile have later keys: they looked after what we are waking for.
        let last = sleepers.next_key;
        while let Some(place) = sleepers.wakers.iter().position(|(key, _)| *key <= last) {
            let (_, waker) = sleepers.wakers.remove(place);
            // Outside the lock: a waker is foreign code.
            drop(sleepers);
            call(waker);
            sleepers = lock(&self.sleepers);
        }
    }
}

/// Calls a waker. One that panics has had its say through the panic hook: whoever sends or receives goes on.
fn call(waker: Waker) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| waker.wake())) {
        std::mem::forget(panic); // its drop may panic as well
    }
}

/// [`WaitSet::wake_all`], out of the way. A function of this sort cannot unwind, which the compiler needs to know: a
/// message that may have to be dropped on the way out of here cannot stay in registers.
#[cold]
extern "C" fn wake_all(set: &WaitSet) {
    set.wake_all();
}

/// One thread, or everyone if there are tasks among them. Sure not to unwind, as above.
#[cold]
extern "C" fn wake_for_empty(set: &WaitSet) {
    match set.sleeping.load(Ordering::Relaxed) {
        PATIENT => set.wake_first(),
        _ => set.wake_all(),
    }
}

#[cfg(not(loom))]
mod parking {
    use std::{
        sync::Arc,
        task::{Wake, Waker},
        thread,
        time::Duration,
    };

    struct Unpark(thread::Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }

        fn wake_by_ref(self: &Arc<Self>) {
            self.0.unpark();
        }
    }

    fn new_waker() -> Waker {
        Waker::from(Arc::new(Unpark(thread::current())))
    }

    /// The waker of this thread: made once, so that sleeping does not allocate.
    pub(super) fn waker() -> Waker {
        thread_local!(static WAKER: Waker = new_waker());
        WAKER.try_with(Waker::clone).unwrap_or_else(|_| new_waker())
    }

    pub(super) fn park(timeout: Option<Duration>) {
        match timeout {
            Some(timeout) => thread::park_timeout(timeout),
            None => thread::park(),
        }
    }
}

/// Loom's `unpark` also wakes a thread that waits for a lock, so its models sleep on a notification instead.
#[cfg(loom)]
mod parking {
    use std::{
        sync::Arc,
        task::{Wake, Waker},
        time::Duration,
    };

    struct Unpark(loom::sync::Notify);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.notify();
        }
    }

    loom::thread_local!(static UNPARK: Arc<Unpark> = Arc::new(Unpark(loom::sync::Notify::new())));

    pub(super) fn waker() -> Waker {
        UNPARK.with(|unpark| Waker::from(unpark.clone()))
    }

    pub(super) fn park(_: Option<Duration>) {
        UNPARK.with(|unpark| unpark.0.wait());
    }
}

/// Sleeps in rounds until `attempt` succeeds (`Some`) or the deadline passes (`None`). Given a waker, `attempt` leaves it
/// to be called before it looks; without, it just looks. `patience` is the longest one round may take.
pub(crate) fn sleep_until<R>(
    deadline: Option<Instant>,
    mut patience: Option<Duration>,
    mut attempt: impl FnMut(Option<&Waker>) -> Option<R>,
) -> Option<R> {
    let waker = parking::waker();
    let mut woken = false;
    loop {
        // After a wake-up there usually is something, and announcing oneself is expensive.
        if woken && let Some(result) = attempt(None) {
            return Some(result);
        }
        if let Some(result) = attempt(Some(&waker)) {
            return Some(result);
        }
        woken = true;
        let mut round = patience;
        if let Some(deadline) = deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            round = Some(round.unwrap_or(left).min(left));
        }
        parking::park(round);
        patience = patience.map(|p| (p * 2).min(LONGEST_ROUND));
    }
}

/// In case the receiver stops half way, a sender that sleeps looks by itself, after this long and then ever more rarely.
pub(crate) const FIRST_ROUND: Duration = Duration::from_millis(5);
/// A sender that slept longer than this polls less the next time,
const LONG: Duration = Duration::from_micros(200);
/// and so does one that was kept waiting for longer than this so many times in a row: without that it would poll for every
/// single message of a receiver that takes one in ten microseconds, and never get to sleep.
const SLOW: Duration = Duration::from_micros(4);
const SLOW_WAITS: u32 = 4;
const LONGEST_ROUND: Duration = Duration::from_millis(100);

/// A deadline that far away; none if that is beyond what the clock can say.
pub(crate) fn after(timeout: Duration) -> Option<Instant> {
    Instant::now().checked_add(timeout)
}

/// Why no place for a message was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    Closed,
}

impl Refused {
    pub(crate) fn with<T>(self, message: T) -> TrySendError<T> {
        match self {
            Self::Full => TrySendError::Full(message),
            Self::Closed => TrySendError::Closed(message),
        }
    }
}

/// The sending end of some ring. The message stays where it is until a place is claimed, so it is moved once.
pub(crate) trait Inlet {
    type Message;
    type Place;
    /// A place for one message. Whoever has it must fill it.
    fn claim(&mut self) -> Result<Self::Place, Refused>;
    /// Sends; the message comes back if the ring was closed since.
    fn fill(&mut self, place: Self::Place, message: Self::Message) -> Result<(), Self::Message>;
    fn sleepers(&self) -> &WaitSet;
    fn capacity(&self) -> usize;
    /// How many messages fit, at the moment.
    fn room(&self) -> usize;
    fn is_closed(&self) -> bool;
}

/// The receiving end of some ring.
pub(crate) trait Outlet {
    type Message;
    /// Whether a message is there.
    fn look(&mut self) -> Result<(), TryRecvError>;
    /// Takes the message that [`Self::look`] has just found. It is wrapped before the ring is told, so that it is moved
    /// once: whatever is done afterwards may call foreign code, and what lives across a call lives in memory.
    fn take<R>(&mut self, wrap: impl FnOnce(Self::Message) -> R) -> R;
    fn sleepers(&self) -> &WaitSet;
    fn pace(&mut self) -> &mut Pace;
    /// About how many messages were sent and not received; more than a head start is for need not be counted.
    fn waiting(&self) -> usize;
    /// Nothing is there: if a sender sleeps although there is room, it is woken.
    fn emptied(&self);
}

/// Sends if there is room.
#[inline(always)]
pub(crate) fn try_send<I: Inlet>(inlet: &mut I, message: I::Message) -> Result<(), TrySendError<I::Message>> {
    match inlet.claim() {
        Ok(place) => inlet.fill(place, message).map_err(TrySendError::Closed),
        Err(refused) => Err(refused.with(message)),
    }
}

/// Sends, waiting for room until the deadline.
#[inline(always)]
pub(crate) fn send<I: Inlet>(
    inlet: &mut I,
    message: I::Message,
    deadline: Option<Instant>,
) -> Result<(), SendDeadlineError<I::Message>> {
    match inlet.claim() {
        Ok(place) => inlet.fill(place, message).map_err(SendDeadlineError::Closed),
        Err(Refused::Closed) => Err(SendDeadlineError::Closed(message)),
        Err(Refused::Full) => {
            // A place of its own, so that the message needs none while there is room.
            let mut kept = Some(message);
            send_slowly(inlet, &mut kept, deadline)
        }
    }
}

#[cold]
#[inline(never)]
fn send_slowly<I: Inlet>(
    inlet: &mut I,
    // There until the ring has it.
    kept: &mut Option<I::Message>,
    deadline: Option<Instant>,
) -> Result<(), SendDeadlineError<I::Message>> {
    fn attempt<I: Inlet>(
        inlet: &mut I,
        kept: &mut Option<I::Message>,
    ) -> Option<Result<(), SendDeadlineError<I::Message>>> {
        let place = match inlet.claim() {
            Ok(place) => place,
            Err(Refused::Full) => return None,
            Err(Refused::Closed) => return Some(Err(SendDeadlineError::Closed(kept.take()?))),
        };
        Some(inlet.fill(place, kept.take()?).map_err(SendDeadlineError::Closed))
    }
    let mut key = None;
    // Whether it was a wake-up that led to the end of the wait.
    let mut used = false;
    let briefly = inlet.sleepers().is_to_sleep();
    let start = Instant::now();
    let stride = inlet.sleepers().stride();
    let polling = Polling::begin();
    polling.give_head_start(stride.for_room(inlet.capacity()), stride, || inlet.room());
    let polled = polling.poll(deadline, briefly, || attempt(inlet, kept));
    if polled.is_some() && !briefly && !cfg!(loom) {
        inlet.sleepers().polled(start.elapsed(), inlet.room() + 1, inlet.capacity());
    }
    let sent = polled.or_else(|| {
        let start = Instant::now();
        let sent = sleep_until(deadline, Some(FIRST_ROUND), |waker| {
            if let Some(waker) = waker {
                inlet.sleepers().register(&mut key, waker, PATIENT);
                // By now a slow receiver may have made room for one: who takes that comes back for the next at once.
                if briefly && inlet.room() < inlet.capacity() / 2 && !inlet.is_closed() {
                    return None;
                }
            }
            let sent = attempt(inlet, kept);
            used = waker.is_none() && sent.is_some();
            sent
        });
        inlet.sleepers().slept(start.elapsed());
        sent
    });
    if !inlet.sleepers().unregister(&mut key) && !used {
        // We were woken and did not need it: it is somebody else's turn.
        inlet.sleepers().wake_first();
    }
    match (sent, kept.take()) {
        (Some(result), _) => result,
        (None, Some(message)) => Err(SendDeadlineError::Deadline(message)),
        (None, None) => Ok(()), // not reached: without a result the message was kept
    }
}

/// Receives if a message is there.
#[inline(always)]
pub(crate) fn try_recv<O: Outlet>(outlet: &mut O) -> Result<O::Message, TryRecvError> {
    match outlet.look() {
        Ok(()) => outlet.take(Ok),
        Err(error) => {
            outlet.emptied();
            Err(error)
        }
    }
}

/// Receives, waiting for a message.
#[inline(always)]
pub(crate) fn recv<O: Outlet>(outlet: &mut O) -> Result<O::Message, RecvError> {
    if outlet.look().is_ok() || wait_for_message(outlet, None).is_ok() { outlet.take(Ok) } else { Err(RecvError) }
}

/// Receives, waiting for a message until the deadline.
#[inline(always)]
pub(crate) fn recv_until<O: Outlet>(
    outlet: &mut O,
    deadline: Option<Instant>,
) -> Result<O::Message, RecvDeadlineError> {
    if outlet.look().is_err()
        && let Err(error) = wait_for_message(outlet, deadline)
    {
        return Err(error);
    }
    outlet.take(Ok)
}

#[inline(never)]
fn wait_for_message<O: Outlet>(outlet: &mut O, deadline: Option<Instant>) -> Result<(), RecvDeadlineError> {
    fn look<O: Outlet>(outlet: &mut O) -> Option<Result<(), RecvDeadlineError>> {
        match outlet.look() {
            Ok(()) => Some(Ok(())),
            Err(TryRecvError::Closed) => Some(Err(RecvDeadlineError::Closed)),
            Err(TryRecvError::Empty) => None,
        }
    }
    let mut key = None;
    let start = outlet.pace().caught_up();
    let polling = Polling::begin();
    let found = polling.pause(|| look(outlet)).or_else(|| {
        outlet.emptied();
        polling.give_way(deadline, || look(outlet))
    });
    if let Some(Ok(())) = found {
        // Who begins a batch while it is looked at has not stopped, as one who has not begun seems to have.
        polling.give_head_start(start, outlet.sleepers().stride(), || outlet.waiting());
    }
    let found = found.or_else(|| {
        let found = sleep_until(deadline, None, |waker| {
            if let Some(waker) = waker {
                outlet.sleepers().register(&mut key, waker, PATIENT);
            }
            look(outlet)
        });
        outlet.sleepers().unregister(&mut key);
        found
    });
    found.unwrap_or(Err(RecvDeadlineError::Deadline))
}

/// Sends when there is room. Made by `send_async`.
///
/// Dropped before it is done, it has sent nothing, and the message is dropped with it.
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub(crate) struct Sending<I: Inlet> {
    inlet: I,
    kept: Option<I::Message>,
    key: Key,
}

impl<I: Inlet> Sending<I> {
    pub(crate) fn new(inlet: I, message: I::Message) -> Self {
        Self { inlet, kept: Some(message), key: None }
    }
}

// Nothing is ever borrowed from inside.
impl<I: Inlet> Unpin for Sending<I> {}

impl<I: Inlet> Future for Sending<I> {
    type Output = Result<(), SendError<I::Message>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        for registered in [false, true] {
            let Some(message) = this.kept.take() else {
                return Poll::Ready(Ok(())); // polled again after it was done
            };
            match try_send(&mut this.inlet, message) {
                Ok(()) => return Poll::Ready(Ok(())),
                Err(TrySendError::Closed(message)) => return Poll::Ready(Err(SendError(message))),
                Err(TrySendError::Full(message)) => this.kept = Some(message),
            }
            if !registered {
                this.inlet.sleepers().register(&mut this.key, cx.waker(), EAGER);
            }
        }
        Poll::Pending
    }
}

impl<I: Inlet> Drop for Sending<I> {
    fn drop(&mut self) {
        self.inlet.sleepers().unregister(&mut self.key);
    }
}

/// Receives when there is a message. Made by `recv_async`.
///
/// Dropped before it is done, it has received nothing.
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub(crate) struct Receiving<O: Outlet> {
    outlet: O,
    key: Key,
}

impl<O: Outlet> Receiving<O> {
    pub(crate) fn new(outlet: O) -> Self {
        Self { outlet, key: None }
    }
}

// Nothing is ever borrowed from inside.
impl<O: Outlet> Unpin for Receiving<O> {}

impl<O: Outlet> Future for Receiving<O> {
    type Output = Result<O::Message, RecvError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        for registered in [false, true] {
            match try_recv(&mut this.outlet) {
                Ok(message) => return Poll::Ready(Ok(message)),
                Err(TryRecvError::Closed) => return Poll::Ready(Err(RecvError)),
                Err(TryRecvError::Empty) => {}
            }
            if !registered {
                this.outlet.sleepers().register(&mut this.key, cx.waker(), EAGER);
            }
        }
        Poll::Pending
    }
}

impl<O: Outlet> Drop for Receiving<O> {
    fn drop(&mut self) {
        self.outlet.sleepers().unregister(&mut self.key);
    }
}
