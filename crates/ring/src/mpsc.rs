//! Many senders, one receiver.
//!
//! The algorithm is Dmitry Vyukov's bounded queue: every slot has a stamp that says whose message it holds, and senders
//! claim a slot by moving `tail` with a compare-and-swap. As in crossbeam's `ArrayQueue` a position is a lap and an
//! index, so that any capacity is exact, and as in its channel one bit of `tail` says that the ring is closed, so that
//! closing and sending are ordered by one word: a message is either before the close, and will be received, or refused.
//!
//! With a single receiver `head` needs no compare-and-swap, and it alone says what is free, so the receiver writes
//! nothing into slots: senders look at it only when the copy that they keep beside `tail` says that the ring is full, as
//! the ends of the ring for one sender do. A slot's lines go one way, and a sender waits for none of them before it
//! writes.

use std::{
    fmt,
    future::Future,
    mem::MaybeUninit,
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;

use crate::{
    drops::drop_all,
    ends::{receiving, sending},
    error::{CapacityError, RecvDeadlineError, RecvError, SendDeadlineError, SendError, TryRecvError, TrySendError},
    fence,
    poll::{self, Pace, Polling},
    prefetch::{self, AHEAD},
    sync::{Arc, AtomicBool, AtomicUsize, Ordering, UnsafeCell},
    wait::{self, Inlet, Outlet, Receiving, Refused, Sending, WaitSet},
};

/// Messages by which a receiver counts those that wait.
const SOME: usize = 8;

struct Slot<T> {
    /// `p + 1`, where `p` is the position of the message that was last written here.
    stamp: AtomicUsize,
    message: UnsafeCell<MaybeUninit<T>>,
}

struct Ring<T> {
    /// What senders write.
    claims: CachePadded<Claims>,
    /// Position of the next receive. Written by the receiver alone; others read it for a length.
    head: CachePadded<AtomicUsize>,
    /// Read by all, written rarely.
    shared: CachePadded<Shared<T>>,
}

struct Claims {
    /// Position of the next send, and in bit `closed` whether the ring is closed.
    tail: AtomicUsize,
    /// The position that is not free, as some sender found: a lap behind a head that was. It may go back, when one that
    /// looked early writes late.
    limit: AtomicUsize,
}

struct Shared<T> {
    slots: Box<[Slot<T>]>,
    /// The bit of `tail` above every index.
    closed: usize,
    /// What is added to a position for the next lap: the bit above `closed`.
    lap: usize,
    /// Whether a look at `tail` would find it closed: the receiver leaves that line to the senders while it polls.
    closing: AtomicBool,
    senders: AtomicUsize,
    /// Senders that sleep until there is room.
    for_room: WaitSet,
    /// The receiver, while it sleeps.
    for_message: WaitSet,
}

// SAFETY: messages are moved from the thread that sends to the one that receives; a slot is written only by the sender
// that claimed its position, which it can once the receiver has left the slot behind, and read only once its stamp says that
// it was written.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    fn new(capacity: usize) -> Self {
        let closed = (capacity + 1).next_power_of_two();
        Self {
            claims: CachePadded::new(Claims { tail: AtomicUsize::new(0), limit: AtomicUsize::new(closed << 1) }),
            head: CachePadded::new(AtomicUsize::new(0)),
            shared: CachePadded::new(Shared {
                slots: (0..capacity)
                    .map(|i| Slot { stamp: AtomicUsize::new(i), message: UnsafeCell::new(MaybeUninit::uninit()) })
                    .collect(),
                closed,
                lap: closed << 1,
                closing: AtomicBool::new(false),
                senders: AtomicUsize::new(1),
                for_room: WaitSet::new(),
                for_message: WaitSet::new(),
            }),
        }
    }

    fn capacity(&self) -> usize {
        self.shared.slots.len()
    }

    #[inline(always)]
    fn index(&self, position: usize) -> usize {
        position & (self.shared.closed - 1)
    }

    #[inline(always)]
    fn after(&self, position: usize) -> usize {
        let index = self.index(position);
        if index + 1 < self.capacity() { position + 1 } else { (position - index).wrapping_add(self.shared.lap) }
    }

    #[inline(always)]
    fn slot(&self, position: usize) -> &Slot<T> {
        // SAFETY: `after` only makes positions whose index is below the number of slots.
        unsafe { self.shared.slots.get_unchecked(self.index(position)) }
    }

    /// Messages between two positions; one more than fit if `head` is read while the receiver is about to move it.
    fn distance(&self, head: usize, tail: usize) -> usize {
        let tail = tail & !self.shared.closed;
        let (head_index, tail_index) = (self.index(head), self.index(tail));
        let laps = (tail - tail_index).wrapping_sub(head - head_index) / self.shared.lap;
        laps * self.capacity() + tail_index - head_index
    }

    fn is_empty(&self) -> bool {
        // The head first: it can only grow towards the tail.
        let head = self.head.load(Ordering::SeqCst);
        self.claims.tail.load(Ordering::SeqCst) & !self.shared.closed == head
    }

    fn len(&self) -> usize {
        loop {
            let tail = self.claims.tail.load(Ordering::SeqCst);
            let head = self.head.load(Ordering::SeqCst);
            // Only a pair that was true at one moment has a distance.
            if self.claims.tail.load(Ordering::SeqCst) == tail {
                return self.distance(head, tail).min(self.capacity());
            }
        }
    }

    /// The position of the next message, which is then the caller's alone to fill.
    #[inline(always)]
    fn claim(&self) -> Result<usize, Refused> {
        let Claims { tail: next, limit } = &*self.claims;
        let mut tail = next.load(Ordering::Relaxed);
        loop {
            if tail & self.shared.closed != 0 {
                return Err(Refused::Closed);
            }
            if is_before(tail, limit.load(Ordering::Acquire)) || self.has_room(tail) {
                // Release: whoever sees the new tail sees the head that made room for it, and so computes a true length.
                match next.compare_exchange_weak(tail, self.after(tail), Ordering::Release, Ordering::Relaxed) {
                    Ok(_) => return Ok(tail),
                    Err(now) => tail = now,
                }
            } else {
                let now = next.load(Ordering::Relaxed);
                if now == tail {
                    // The slot still belongs to the lap before: its message was not received.
                    return Err(Refused::Full);
                }
                tail = now;
            }
        }
    }

    /// Asks the receiver how far it is. Acquire and release: who writes a slot must come after who read it, also if it
    /// was another sender that asked.
    fn has_room(&self, tail: usize) -> bool {
        let limit = self.head.load(Ordering::Acquire).wrapping_add(self.shared.lap);
        self.claims.limit.store(limit, Ordering::Release);
        is_before(tail, limit)
    }

    /// Sends from the position that `claim` gave.
    #[inline(always)]
    fn fill(&self, position: usize, message: T) {
        let slot = self.slot(position);
        // SAFETY: the receiver is past the message that was in this slot, and moving `tail` gave it to us alone.
        slot.message.with_mut(|p| unsafe { p.cast::<T>().write(message) });
        slot.stamp.store(position + 1, Ordering::Release);
        self.fetch_to_fill(position);
        fence::light();
        self.shared.for_message.wake();
    }

    /// Fetches a slot that will be filled soon: the receiver's core had it last.
    #[inline(always)]
    fn fetch_to_fill(&self, position: usize) {
        let (ahead, slot) = self.ahead(position, AHEAD);
        if is_before(ahead, self.claims.limit.load(Ordering::Relaxed)) {
            prefetch::slot_to_write(slot);
        }
    }

    /// The position so many slots further, and where its slot is; nowhere in rings that are too small for it.
    #[inline(always)]
    fn ahead(&self, position: usize, slots: usize) -> (usize, *const Slot<T>) {
        let (mut lap, mut index) = (position - self.index(position), self.index(position) + slots);
        if index >= self.capacity() {
            lap = lap.wrapping_add(self.shared.lap);
            index -= self.capacity();
        }
        (lap.wrapping_add(index), self.shared.slots.as_ptr().wrapping_add(index))
    }

    fn close(&self) {
        self.claims.tail.fetch_or(self.shared.closed, Ordering::SeqCst);
        self.shared.closing.store(true, Ordering::Release);
        fence::light();
        self.shared.for_message.wake();
        self.shared.for_room.wake();
    }

    fn is_closed(&self) -> bool {
        self.claims.tail.load(Ordering::Relaxed) & self.shared.closed != 0
    }
}

/// Whether a position comes before another one; they are never half of all positions apart.
#[inline(always)]
fn is_before(position: usize, other: usize) -> bool {
    other.wrapping_sub(position) as isize > 0
}

/// A ring for `capacity` messages from any number of senders to one receiver.
///
/// ```
/// let (tx, mut rx) = millrace_ring::mpsc::bounded(2)?;
/// tx.try_send("a").unwrap();
/// tx.clone().try_send("b").unwrap();
/// let full = tx.try_send("c").unwrap_err();
/// assert_eq!(full.into_inner(), "c");
/// assert_eq!(rx.try_recv(), Ok("a"));
/// # Ok::<(), millrace_ring::CapacityError>(())
/// ```
pub fn bounded<T: Send>(capacity: usize) -> Result<(Sender<T>, Receiver<T>), CapacityError> {
    CapacityError::check(capacity)?;
    let ring = Arc::new(Ring::new(capacity));
    Ok((Sender { ring: ring.clone() }, Receiver { ring, head: 0, claimed: 0, pace: Pace::default() }))
}

/// The sending end of [`bounded`]. Clone it for every thread that sends; when the last one is dropped, the ring closes.
///
/// ```
/// let (tx, mut rx) = millrace_ring::mpsc::bounded(1)?;
/// std::thread::spawn(move || tx.send(7));
/// assert_eq!(rx.recv(), Ok(7));
/// assert!(rx.recv().is_err(), "the last sender is gone");
/// # Ok::<(), millrace_ring::CapacityError>(())
/// ```
pub struct Sender<T> {
    ring: Arc<Ring<T>>,
}

impl<T: Send> Sender<T> {
    sending!("mpsc", "tx", [&] self);
}

impl<T: Send> Inlet for &Sender<T> {
    type Message = T;
    type Place = usize;

    #[inline(always)]
    fn claim(&mut self) -> Result<usize, Refused> {
        self.ring.claim()
    }

    #[inline(always)]
    fn fill(&mut self, position: usize, message: T) -> Result<(), T> {
        self.ring.fill(position, message);
        Ok(())
    }

    fn sleepers(&self) -> &WaitSet {
        &self.ring.shared.for_room
    }

    fn capacity(&self) -> usize {
        (**self).capacity()
    }

    fn room(&self) -> usize {
        self.ring.capacity() - self.ring.len()
    }

    fn is_closed(&self) -> bool {
        self.ring.is_closed()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        self.ring.shared.senders.fetch_add(1, Ordering::Relaxed);
        Self { ring: self.ring.clone() }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        if self.ring.shared.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.ring.close();
        }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("mpsc::Sender").field("len", &self.ring.len()).field("capacity", &self.ring.capacity()).finish()
    }
}

/// The receiving end of [`bounded`]. When it is dropped, the ring closes and what is inside is dropped.
///
/// ```
/// let (tx, mut rx) = millrace_ring::mpsc::bounded(8)?;
/// for i in 0..5 {
///     tx.try_send(i).unwrap();
/// }
/// let mut got = Vec::new();
/// assert_eq!(rx.drain(3, |i| got.push(i)), 3);
/// assert_eq!(got, [0, 1, 2]);
/// # Ok::<(), millrace_ring::CapacityError>(())
/// ```
pub struct Receiver<T> {
    ring: Arc<Ring<T>>,
    /// The truth that `ring.head` mirrors.
    head: usize,
    /// Where the senders were when we last looked.
    claimed: usize,
    pace: Pace,
}

impl<T> Receiver<T> {
    /// Whether the next message is there.
    #[inline(always)]
    fn has_next(&self) -> bool {
        self.ring.slot(self.head).stamp.load(Ordering::Acquire) == self.head + 1
    }

    /// Reads the next message, which must be there, without waking senders.
    #[inline(always)]
    fn read<R>(&mut self, wrap: impl FnOnce(T) -> R) -> R {
        let slot = self.ring.slot(self.head);
        // SAFETY: the stamp says that the slot holds the message of our position, and there is one receiver, which has not
        // told anybody yet that it is past it.
        let message = slot.message.with_mut(|p| wrap(unsafe { p.cast::<T>().read() }));
        self.head = self.ring.after(self.head);
        self.ring.head.store(self.head, Ordering::Release);
        self.pace.received();
        self.fetch_to_read();
        message
    }

    /// Fetches a slot that will be read soon, if it is likely to be filled: a line that a sender still writes would only
    /// have to go back.
    #[inline(always)]
    fn fetch_to_read(&mut self) {
        // Small ones come by themselves: they are many to a line, and lines are read in order.
        if size_of::<Slot<T>>() <= 64 {
            return;
        }
        let (ahead, slot) = self.ring.ahead(self.head, AHEAD);
        if is_before(ahead, self.claimed) {
            prefetch::slot_to_read(slot);
        } else if self.pace.is_time_to_look() {
            self.claimed = self.ring.claims.tail.load(Ordering::Relaxed) & !self.ring.shared.closed;
        }
    }

    /// About how many messages wait, up to some: every few it looks into their slots, which it will read anyway, while a look
    /// at `tail` would keep those from sending who have to change it.
    fn sent(&self) -> usize {
        let is_filled = |behind: &usize| {
            let position = self.ring.ahead(self.head, *behind).0;
            self.ring.slot(position).stamp.load(Ordering::Relaxed) == position + 1
        };
        let steps = (SOME - 1..(2 * poll::ENOUGH as usize).min(self.ring.capacity())).step_by(SOME);
        steps.take_while(is_filled).count() * SOME
    }

    /// Wakes senders that sleep, once there is room for many.
    #[inline(always)]
    fn made_room(&self, received: usize) {
        fence::light();
        if self.ring.shared.for_room.is_anyone() {
            Self::wake_senders(&self.ring, self.head, received);
        }
    }

    /// Nothing is there, so nobody refills the ring.
    #[inline(always)]
    fn emptied(&self) {
        fence::light();
        self.ring.shared.for_room.wake_for_empty();
    }

    /// Out of the way, and sure not to unwind.
    #[cold]
    extern "C" fn wake_senders(ring: &Ring<T>, head: usize, received: usize) {
        let waiting = || ring.distance(head, ring.claims.tail.load(Ordering::Relaxed));
        ring.shared.for_room.wake_for_room(ring.index(head), received, ring.capacity(), waiting);
    }
}

impl<T: Send> Receiver<T> {
    receiving!("mpsc", "tx");

    /// For those who poll with [`Self::try_recv`] or [`Self::is_empty`] instead of blocking: call it when the ring was
    /// found empty. If messages come in a stream, it waits for a microsecond at most, so that a batch builds up and the two
    /// ends do not chase each other slot by slot; otherwise it returns at once.
    ///
    /// ```
    /// let (tx, mut rx) = millrace_ring::mpsc::bounded(8)?;
    /// tx.try_send(1).unwrap();
    /// while rx.try_recv().is_ok() {}
    /// rx.give_head_start();
    /// # Ok::<(), millrace_ring::CapacityError>(())
    /// ```
    pub fn give_head_start(&mut self) {
        let start = self.pace.caught_up();
        Polling::begin().give_head_start(start, self.ring.shared.for_message.stride(), || self.sent());
    }

    /// Whether nothing can be received right now. One load: made for polling.
    #[inline]
    pub fn is_empty(&self) -> bool {
        !self.has_next()
    }
}

impl<T: Send> Outlet for &mut Receiver<T> {
    type Message = T;

    #[inline(always)]
    fn look(&mut self) -> Result<(), TryRecvError> {
        if self.has_next() {
            return Ok(());
        }
        let ring = &*self.ring;
        if ring.shared.closing.load(Ordering::Acquire)
            && ring.claims.tail.load(Ordering::Acquire) == self.head | ring.shared.closed
        {
            // Closed, and every message that was claimed before has been received.
            Err(TryRecvError::Closed)
        } else {
            Err(TryRecvError::Empty)
        }
    }

    #[inline(always)]
    fn take<R>(&mut self, wrap: impl FnOnce(T) -> R) -> R {
        let message = self.read(wrap);
        self.made_room(1);
        message
    }

    fn sleepers(&self) -> &WaitSet {
        &self.ring.shared.for_message
    }

    fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    fn waiting(&self) -> usize {
        self.sent()
    }

    fn emptied(&self) {
        Receiver::emptied(self);
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.ring.close();
        // A sender that claimed its slot before the close is still writing; its message is ours to drop.
        let end = self.ring.claims.tail.load(Ordering::Acquire) & !self.ring.shared.closed;
        drop_all(|| {
            while self.head != end {
                if self.has_next() {
                    return Some(self.read(|message| message));
                }
                crate::sync::thread::yield_now();
            }
            None
        });
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("mpsc::Receiver")
            .field("len", &self.ring.len())
            .field("capacity", &self.ring.capacity())
            .finish()
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::task::Waker;

    use super::*;

    /// A full ring whose senders but one sleep; how many messages the receiver takes before it wakes one, while the one that is
    /// awake sends `refill` for every eight.
    fn taken_before_a_wake_up(capacity: usize, refill: usize) -> Option<usize> {
        let (tx, mut rx) = bounded(capacity).unwrap();
        (0..capacity).for_each(|i| tx.try_send(i).unwrap());
        let mut key = None;
        rx.ring.shared.for_room.register(&mut key, Waker::noop(), wait::PATIENT);
        for taken in 1..=10 * capacity {
            if rx.recv().is_err() || !rx.ring.shared.for_room.is_anyone() {
                return Some(taken);
            }
            if taken % 8 == 0 {
                (0..refill).for_each(|i| tx.try_send(i).unwrap());
            }
        }
        None
    }

    #[test]
    fn a_sleeping_sender_is_woken_when_the_ring_is_half_empty_and_nobody_refills_it() {
        assert_eq!(taken_before_a_wake_up(64, 0), Some(32));
        assert_eq!(taken_before_a_wake_up(1, 0), Some(1));
        assert_eq!(taken_before_a_wake_up(2, 0), Some(1));
        assert_eq!(taken_before_a_wake_up(64, 8), None, "as much as is taken");
        let slowly = taken_before_a_wake_up(64, 3);
        assert!(slowly.is_some_and(|taken| (33..=64).contains(&taken)), "{slowly:?}");
    }

    #[test]
    fn a_receiver_that_finds_nothing_wakes_a_sleeping_sender() {
        let empty_handed: [fn(&mut Receiver<u8>); 3] = [
            |rx| assert!(rx.try_recv().is_err()),
            |rx| assert!(rx.recv_timeout(Duration::ZERO).is_err()),
            |rx| assert_eq!(rx.drain(1, |_| ()), 0),
        ];
        for look in empty_handed {
            let (tx, mut rx) = bounded(64).unwrap();
            let mut key = None;
            tx.ring.shared.for_room.register(&mut key, Waker::noop(), wait::PATIENT);
            look(&mut rx);
            assert!(!tx.ring.shared.for_room.is_anyone());
        }
    }
}
