//! Reply slots: a one-shot answer per request, from a pool.
//!
//! A slot has one word of state, a place for the waiter's waker and one for the value, all in one cache line for small
//! values, so that an answer costs one line transfer. Each side leaves exactly once, and the one that leaves last gives
//! the slot back to the [`Slab`]; the usual case (the answer is there when the asker looks) needs one atomic
//! read-modify-write in all. The protocol is a close relative of tokio's oneshot channel.

use std::{
    fmt,
    future::Future,
    mem::MaybeUninit,
    pin::Pin,
    ptr::NonNull,
    task::{Context, Poll, Waker},
    time::Instant,
};

use thiserror::Error;

use crate::{
    poll::Polling,
    slab::{Node, Slab},
    sync::{AtomicU32, Ordering, UnsafeCell},
    wait,
};

/// The value is there; it is the receiver's to take.
const SENT: u32 = 1;
/// The waker is there; it is the sender's to take once it has set `SENT` or `SENDER_LEFT`.
const WAITING: u32 = 2;
/// The sender will not touch the slot again.
const SENDER_LEFT: u32 = 4;
/// The receiver will not touch the slot again.
const RECEIVER_LEFT: u32 = 8;
/// The receiver would rather not have it.
const CANCELLED: u32 = 16;
/// The sender will send nothing, but is still about to wake.
const ABANDONED: u32 = 32;

struct Slot<T> {
    state: AtomicU32,
    waker: UnsafeCell<Option<Waker>>,
    value: UnsafeCell<MaybeUninit<T>>,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { state: AtomicU32::new(0), waker: UnsafeCell::new(None), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }
}

/// A side's hold on a slot.
struct Hold<T>(NonNull<Node<Slot<T>>>);

impl<T> Hold<T> {
    #[inline(always)]
    fn slot(&self) -> &Slot<T> {
        // SAFETY: the slot is alive until both sides have left; shared access only reaches atomics and cells.
        unsafe { &*self.0.as_ref().value() }
    }

    /// Gives the slot back, empty.
    ///
    /// # Safety
    /// Both sides have left, value and waker were taken, and the hold is not used again.
    #[inline(always)]
    unsafe fn release(&self) {
        self.slot().state.store(0, Ordering::Relaxed);
        // SAFETY: by contract nobody else uses the node.
        unsafe { Node::give_back(self.0) };
    }
}

/// Where reply slots come from. Asking allocates nothing once the pool has grown to the number of requests in flight.
///
/// ```
/// use millrace_ring::{mpsc, reply::ReplyPool};
/// let replies = ReplyPool::new();
/// let (tx, mut rx) = mpsc::bounded(16)?;
/// let server = std::thread::spawn(move || {
///     while let Ok((n, reply)) = rx.recv() {
///         let _ = millrace_ring::reply::ReplySender::send(reply, n * 2);
///     }
/// });
/// let (answer, asked) = replies.pair().expect("few are in flight");
/// tx.send((21, answer)).unwrap();
/// assert_eq!(asked.recv(), Ok(42));
/// drop(tx);
/// server.join().unwrap();
/// # Ok::<(), millrace_ring::CapacityError>(())
/// ```
pub struct ReplyPool<T: Send> {
    slab: Slab<Slot<T>>,
}

// SAFETY: see the states above: value and waker are only touched by the side that owns them at that moment.
unsafe impl<T: Send> Send for Slot<T> {}

impl<T: Send> ReplyPool<T> {
    /// An empty pool.
    pub fn new() -> Self {
        Self { slab: Slab::new() }
    }

    /// Both ends of a fresh slot. `None` if [`crate::MAX_OUT`] are in use.
    ///
    /// ```
    /// let replies = millrace_ring::reply::ReplyPool::new();
    /// let (reply, asked) = replies.pair().expect("few are in flight");
    /// std::thread::spawn(move || reply.send("here"));
    /// assert_eq!(asked.recv(), Ok("here"));
    /// ```
    #[inline]
    pub fn pair(&self) -> Option<(ReplySender<T>, ReplyReceiver<T>)> {
        let node = self.slab.take_node()?;
        Some((ReplySender { hold: Hold(node) }, ReplyReceiver { hold: Hold(node), done: false }))
    }

    /// Slots in use.
    ///
    /// ```
    /// let replies = millrace_ring::reply::ReplyPool::<u8>::new();
    /// let ends = replies.pair();
    /// assert_eq!(replies.in_use(), 1);
    /// drop(ends);
    /// assert_eq!(replies.in_use(), 0);
    /// ```
    pub fn in_use(&self) -> usize {
        self.slab.out()
    }
}

impl<T: Send> Default for ReplyPool<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send> fmt::Debug for ReplyPool<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyPool").field("in_use", &self.in_use()).finish()
    }
}

/// The answering end. Dropped without an answer, the asker learns that there will be none.
///
/// ```
/// let replies = millrace_ring::reply::ReplyPool::new();
/// let (reply, asked) = replies.pair().expect("few are in flight");
/// assert_eq!(reply.send(7), Ok(()));
/// assert_eq!(asked.recv(), Ok(7));
/// ```
pub struct ReplySender<T: Send> {
    hold: Hold<T>,
}

// SAFETY: the value goes from thread to thread.
unsafe impl<T: Send> Send for ReplySender<T> {}
// SAFETY: a shared sender can only look at the state.
unsafe impl<T: Send> Sync for ReplySender<T> {}

impl<T: Send> ReplySender<T> {
    /// Answers. The value comes back if the asker is gone.
    ///
    /// ```
    /// let replies = millrace_ring::reply::ReplyPool::new();
    /// let (reply, asked) = replies.pair().expect("few are in flight");
    /// drop(asked);
    /// assert_eq!(reply.send("too late"), Err("too late"));
    /// ```
    #[inline]
    pub fn send(self, value: T) -> Result<(), T> {
        let this = std::mem::ManuallyDrop::new(self);
        let slot = this.hold.slot();
        // SAFETY: the value is ours until `SENT`.
        slot.value.with_mut(|p| unsafe { p.cast::<T>().write(value) });
        if this.leave(SENT) {
            return Ok(());
        }
        // SAFETY: the receiver left before `SENT`, so the value is still ours.
        let value = slot.value.with_mut(|p| unsafe { p.cast::<T>().read() });
        // SAFETY: the receiver has left and so have we; a waker it left behind is dropped first.
        unsafe {
            slot.waker.with_mut(|p| *p = None);
            this.hold.release();
        }
        Err(value)
    }

    /// Whether the asker said that it would rather not have the answer. Leaving without waiting does not say that.
    ///
    /// ```
    /// let replies = millrace_ring::reply::ReplyPool::<u8>::new();
    /// let (reply, asked) = replies.pair().expect("few are in flight");
    /// asked.cancel();
    /// assert!(reply.is_cancelled());
    /// let (reply, asked) = replies.pair().expect("few are in flight");
    /// drop(asked);
    /// assert!(!reply.is_cancelled(), "who leaves has not cancelled");
    /// ```
    #[inline]
    pub fn is_cancelled(&self) -> bool {
        self.hold.slot().state.load(Ordering::Relaxed) & CANCELLED != 0
    }

    /// Sets `outcome`, wakes the receiver and leaves. False if the receiver had left before: then nothing was set, and
    /// the slot is ours alone.
    #[inline]
    fn leave(&self, outcome: u32) -> bool {
        let slot = self.hold.slot();
        let mut state = slot.state.load(Ordering::Relaxed);
        loop {
            if state & RECEIVER_LEFT != 0 {
                // Pairs with the receiver's leaving, so that its last writes are before ours.
                slot.state.load(Ordering::Acquire);
                return false;
            }
            let waiting = state & WAITING != 0;
            // Nobody to wake: all in one step.
            let new = state | outcome | if waiting { 0 } else { SENDER_LEFT };
            match slot.state.compare_exchange_weak(state, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if !waiting => return true,
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        // SAFETY: `WAITING` was set when we set the outcome, so the waker is ours.
        let waker = slot.waker.with_mut(|p| unsafe { (*p).take() });
        if slot.state.fetch_or(SENDER_LEFT, Ordering::AcqRel) & RECEIVER_LEFT != 0 {
            // SAFETY: the receiver took the value and left; it woke without us.
            unsafe { self.hold.release() };
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        true
    }
}

impl<T: Send> Drop for ReplySender<T> {
    fn drop(&mut self) {
        if !self.leave(ABANDONED) {
            let slot = self.hold.slot();
            // SAFETY: the receiver has left and so have we, and there is no value.
            unsafe {
                slot.waker.with_mut(|p| *p = None);
                self.hold.release();
            }
        }
    }
}

impl<T: Send> fmt::Debug for ReplySender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplySender").finish_non_exhaustive()
    }
}

/// There is no answer.
///
/// ```
/// use millrace_ring::reply::{ReplyError, ReplyPool};
/// let replies = ReplyPool::<u8>::new();
/// let (reply, mut asked) = replies.pair().expect("few are in flight");
/// assert_eq!(asked.recv_deadline(std::time::Instant::now()), Err(ReplyError::Deadline));
/// drop(reply);
/// assert_eq!(asked.recv(), Err(ReplyError::Abandoned));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ReplyError {
    /// The answering end was dropped, or the answer was taken before.
    #[error("the other end went away without an answer")]
    Abandoned,
    /// No answer came until the deadline. It may still come.
    #[error("no answer until the deadline")]
    Deadline,
}

/// The asking end: a future, or a place to block. It can be dropped at any time.
///
/// ```
/// let replies = millrace_ring::reply::ReplyPool::new();
/// let (reply, mut asked) = replies.pair().expect("few are in flight");
/// assert_eq!(asked.try_recv(), None);
/// reply.send("fine").unwrap();
/// assert_eq!(pollster::block_on(asked), Ok("fine"));
/// ```
pub struct ReplyReceiver<T: Send> {
    hold: Hold<T>,
    /// The answer was taken, or there will be none: we have left the slot.
    done: bool,
}

// SAFETY: the value goes from thread to thread.
unsafe impl<T: Send> Send for ReplyReceiver<T> {}
// SAFETY: a shared receiver can only look at the state and cancel.
unsafe impl<T: Send> Sync for ReplyReceiver<T> {}

impl<T: Send> ReplyReceiver<T> {
    /// The answer, if it is there.
    ///
    /// ```
    /// use millrace_ring::reply::ReplyError;
    /// let replies = millrace_ring::reply::ReplyPool::new();
    /// let (reply, mut asked) = replies.pair().expect("few are in flight");
    /// assert_eq!(asked.try_recv(), None);
    /// reply.send(7).unwrap();
    /// assert_eq!(asked.try_recv(), Some(Ok(7)));
    /// assert_eq!(asked.try_recv(), Some(Err(ReplyError::Abandoned)), "it was taken");
    /// ```
    #[inline]
    pub fn try_recv(&mut self) -> Option<Result<T, ReplyError>> {
        if self.done {
            return Some(Err(ReplyError::Abandoned));
        }
        let state = self.hold.slot().state.load(Ordering::Acquire);
        (state & (SENT | ABANDONED) != 0).then(|| self.finish(state))
    }

    /// Takes the value, if that is what `state` says there is, and leaves.
    fn finish(&mut self, state: u32) -> Result<T, ReplyError> {
        let slot = self.hold.slot();
        let result = if state & SENT != 0 {
            // SAFETY: `SENT` makes the value ours, and `done` keeps us from taking it twice.
            Ok(slot.value.with_mut(|p| unsafe { p.cast::<T>().read() }))
        } else {
            Err(ReplyError::Abandoned)
        };
        self.done = true;
        if state & SENDER_LEFT != 0 || slot.state.fetch_or(RECEIVER_LEFT, Ordering::AcqRel) & SENDER_LEFT != 0 {
            // SAFETY: the sender has left and taken the waker if there was one; the value was taken above.
            unsafe { self.hold.release() };
        }
        result
    }

    /// Looks once, and if there is nothing leaves the waker to be called.
    fn poll_with(&mut self, waker: &Waker) -> Option<Result<T, ReplyError>> {
        if let Some(result) = self.try_recv() {
            return Some(result);
        }
        let slot = self.hold.slot();
        let mut state = slot.state.load(Ordering::Acquire);
        // Take an earlier waker back. If that fails the sender has it, and the outcome is set.
        while state & WAITING != 0 && state & (SENT | ABANDONED) == 0 {
            match slot.state.compare_exchange_weak(state, state & !WAITING, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => state &= !WAITING,
                Err(now) => state = now,
            }
        }
        if state & (SENT | ABANDONED) != 0 {
            return Some(self.finish(state));
        }
        // SAFETY: without `WAITING` the waker is ours.
        slot.waker.with_mut(|p| unsafe { (*p).get_or_insert_with(|| waker.clone()).clone_from(waker) });
        loop {
            match slot.state.compare_exchange_weak(state, state | WAITING, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return None,
                Err(now) if now & (SENT | ABANDONED) != 0 => {
                    // SAFETY: `WAITING` was never set, so the waker is still ours.
                    slot.waker.with_mut(|p| unsafe { *p = None });
                    return Some(self.finish(now));
                }
                Err(now) => state = now,
            }
        }
    }

    /// Blocks until the answer is there.
    ///
    /// ```
    /// let replies = millrace_ring::reply::ReplyPool::<u8>::new();
    /// let (reply, asked) = replies.pair().expect("few are in flight");
    /// drop(reply);
    /// assert_eq!(asked.recv(), Err(millrace_ring::reply::ReplyError::Abandoned));
    /// ```
    pub fn recv(mut self) -> Result<T, ReplyError> {
        self.wait(None)
    }

    /// Blocks until the answer is there, until the deadline at most. After [`ReplyError::Deadline`] it can be called
    /// again.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// let replies = millrace_ring::reply::ReplyPool::new();
    /// let (reply, mut asked) = replies.pair().expect("few are in flight");
    /// assert!(asked.recv_deadline(Instant::now() + Duration::from_millis(1)).is_err());
    /// reply.send(7).unwrap();
    /// assert_eq!(asked.recv_deadline(Instant::now() + Duration::from_secs(10)), Ok(7));
    /// ```
    pub fn recv_deadline(&mut self, deadline: Instant) -> Result<T, ReplyError> {
        self.wait(Some(deadline))
    }

    /// [`Self::recv_deadline`] for those who have polled: sleeps at once.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// let replies = millrace_ring::reply::ReplyPool::new();
    /// let (reply, mut asked) = replies.pair().expect("few are in flight");
    /// std::thread::spawn(move || reply.send(7));
    /// let answer = match millrace_ring::poll_while_worthwhile(|| asked.try_recv()) {
    ///     Some(answer) => answer,
    ///     None => asked.sleep_until(Instant::now() + Duration::from_secs(10)),
    /// };
    /// assert_eq!(answer, Ok(7));
    /// ```
    pub fn sleep_until(&mut self, deadline: Instant) -> Result<T, ReplyError> {
        self.sleep(Some(deadline))
    }

    fn sleep(&mut self, deadline: Option<Instant>) -> Result<T, ReplyError> {
        let answer = wait::sleep_until(deadline, None, |waker| match waker {
            Some(waker) => self.poll_with(waker),
            None => self.try_recv(),
        });
        answer.unwrap_or(Err(ReplyError::Deadline))
    }

    #[inline]
    fn wait(&mut self, deadline: Option<Instant>) -> Result<T, ReplyError> {
        match Polling::begin().poll(deadline, false, || self.try_recv()) {
            Some(answer) => answer,
            None => self.sleep(deadline),
        }
    }

    /// Gives up waiting. If the answer came before, this is it; if not, the answering end gets its value back.
    ///
    /// ```
    /// let replies = millrace_ring::reply::ReplyPool::new();
    /// let (reply, mut asked) = replies.pair().expect("none is in use");
    /// assert_eq!(asked.leave(), None);
    /// assert_eq!(reply.send(7), Err(7));
    /// ```
    pub fn leave(&mut self) -> Option<Result<T, ReplyError>> {
        if self.done {
            return None;
        }
        let mut state = self.hold.slot().state.load(Ordering::Acquire);
        while state & (SENT | ABANDONED) == 0 {
            let slot = self.hold.slot();
            // A waker stays behind for the sender to drop.
            match slot.state.compare_exchange_weak(state, state | RECEIVER_LEFT, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    self.done = true;
                    return None;
                }
                Err(now) => state = now,
            }
        }
        Some(self.finish(state))
    }

    /// Tells the answering end that the answer is no longer wanted. It may come all the same.
    ///
    /// ```
    /// let replies = millrace_ring::reply::ReplyPool::<u8>::new();
    /// let (reply, asked) = replies.pair().expect("few are in flight");
    /// assert!(!reply.is_cancelled());
    /// asked.cancel();
    /// assert!(reply.is_cancelled());
    /// ```
    pub fn cancel(&self) {
        if !self.done {
            self.hold.slot().state.fetch_or(CANCELLED, Ordering::Relaxed);
        }
    }
}

impl<T: Send> Future for ReplyReceiver<T> {
    type Output = Result<T, ReplyError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut().poll_with(cx.waker()) {
            Some(result) => Poll::Ready(result),
            None => Poll::Pending,
        }
    }
}

impl<T: Send> Drop for ReplyReceiver<T> {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

impl<T: Send> fmt::Debug for ReplyReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyReceiver").finish_non_exhaustive()
    }
}
