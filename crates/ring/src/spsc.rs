//! One sender, one receiver.
//!
//! The algorithm is Leslie Lamport's ring with two indices, each written by one side only, plus the cached copy of the
//! other side's index from Lê, Guatto, Cohen and Pop, "Correct and efficient bounded FIFO queues" (2013): an end reads the other's
//! cache line only when its copy says full or empty. Indices count messages and are never reduced, so the storage is a
//! power of two while the capacity is exact.
//!
//! Without a compare-and-swap in sending, closing from the receiving end needs a rule for the message that is sent at
//! that moment. The receiver fixes the end of the stream under a lock after a heavy fence; a sender looks at `closed`
//! after it published, and if it is set asks under the lock whether its message was still in time, and otherwise takes
//! it back. So a message is either received or handed back here, too.

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
    poll::Pace,
    prefetch::{self, AHEAD},
    sync::{Arc, AtomicBool, AtomicUsize, Mutex, Ordering, UnsafeCell, lock},
    wait::{self, Inlet, Outlet, Receiving, Refused, Sending, WaitSet},
};

struct Ring<T> {
    /// Messages received so far. Written by the receiver.
    head: CachePadded<AtomicUsize>,
    /// Messages sent so far. Written by the sender.
    tail: CachePadded<AtomicUsize>,
    /// Read by both, written rarely.
    shared: CachePadded<Shared<T>>,
}

struct Shared<T> {
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    capacity: usize,
    closed: AtomicBool,
    /// Where the stream ends, once it is closed.
    end: Mutex<Option<usize>>,
    /// The sender, while it sleeps until there is room.
    for_room: WaitSet,
    /// The receiver, while it sleeps until there is a message.
    for_message: WaitSet,
}

// SAFETY: messages are moved from the sending thread to the receiving one; a slot is written only while its count is
// in `head + capacity ..`, and read only while it is in `.. tail`.
unsafe impl<T: Send> Send for Ring<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Ring<T> {}

impl<T> Ring<T> {
    #[inline(always)]
    fn slot(&self, count: usize) -> &UnsafeCell<MaybeUninit<T>> {
        // SAFETY: the number of slots is a power of two, and the mask makes the index smaller.
        unsafe { self.shared.slots.get_unchecked(count & (self.shared.slots.len() - 1)) }
    }

    fn len(&self) -> usize {
        // The head first: it can only grow towards the tail.
        let head = self.head.load(Ordering::SeqCst);
        let tail = self.tail.load(Ordering::SeqCst);
        tail.wrapping_sub(head).min(self.shared.capacity)
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn capacity(&self) -> usize {
        self.shared.capacity
    }

    /// Fixes the end of the stream, the first time it is called, and says where it is.
    fn close(&self) -> usize {
        let mut end = lock(&self.shared.end);
        let at = match *end {
            Some(at) => at,
            None => {
                self.shared.closed.store(true, Ordering::Release);
                fence::heavy();
                let at = self.tail.load(Ordering::Acquire);
                *end = Some(at);
                at
            }
        };
        drop(end);
        self.shared.for_message.wake();
        self.shared.for_room.wake();
        at
    }

    fn is_closed(&self) -> bool {
        self.shared.closed.load(Ordering::Acquire)
    }
}

/// A ring for `capacity` messages from one sender to one receiver.
///
/// ```
/// let (mut tx, mut rx) = millrace_ring::spsc::bounded(1)?;
/// tx.try_send(1).unwrap();
/// assert_eq!(tx.try_send(2).unwrap_err().into_inner(), 2);
/// assert_eq!(rx.try_recv(), Ok(1));
/// # Ok::<(), millrace_ring::CapacityError>(())
/// ```
pub fn bounded<T: Send>(capacity: usize) -> Result<(Sender<T>, Receiver<T>), CapacityError> {
    CapacityError::check(capacity)?;
    let ring = Arc::new(Ring {
        head: CachePadded::new(AtomicUsize::new(0)),
        tail: CachePadded::new(AtomicUsize::new(0)),
        shared: CachePadded::new(Shared {
            slots: (0..capacity.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect(),
            capacity,
            closed: AtomicBool::new(false),
            end: Mutex::new(None),
            for_room: WaitSet::new(),
            for_message: WaitSet::new(),
        }),
    });
    Ok((Sender { ring: ring.clone(), tail: 0, head: 0 }, Receiver { ring, head: 0, tail: 0, pace: Pace::default() }))
}

/// The sending end of [`bounded`]; when it is dropped, the ring closes.
///
/// ```
/// let (mut tx, mut rx) = millrace_ring::spsc::bounded(4)?;
/// let sender = std::thread::spawn(move || (0..100).try_for_each(|i| tx.send(i)));
/// assert_eq!((0..100).map(|_| rx.recv().unwrap()).sum::<i32>(), 4950);
/// assert!(sender.join().unwrap().is_ok());
/// # Ok::<(), millrace_ring::CapacityError>(())
/// ```
pub struct Sender<T> {
    ring: Arc<Ring<T>>,
    /// The truth that `ring.tail` mirrors.
    tail: usize,
    /// The receiver's count when we last looked.
    head: usize,
}

impl<T: Send> Sender<T> {
    sending!("spsc", "mut tx", [&mut] self);

    /// Whether there is room for one more.
    #[inline(always)]
    fn claim(&mut self) -> Result<(), Refused> {
        let ring = &*self.ring;
        if self.tail.wrapping_sub(self.head) >= ring.shared.capacity {
            self.head = ring.head.load(Ordering::Acquire);
            if self.tail.wrapping_sub(self.head) >= ring.shared.capacity {
                return Err(if ring.is_closed() { Refused::Closed } else { Refused::Full });
            }
        }
        Ok(())
    }

    /// Sends; `claim` found room.
    #[inline(always)]
    fn fill(&mut self, message: T) -> Result<(), T> {
        let ring = &*self.ring;
        // SAFETY: the receiver is past the message that was in this slot, and only we write.
        ring.slot(self.tail).with_mut(|p| unsafe { p.cast::<T>().write(message) });
        self.tail = self.tail.wrapping_add(1);
        ring.tail.store(self.tail, Ordering::Release);
        let ahead = self.tail.wrapping_add(AHEAD);
        if ahead.wrapping_sub(self.head) < ring.shared.capacity {
            prefetch::slot_to_write(ring.slot(ahead)); // the receiver's core had it last
        }
        fence::light();
        ring.shared.for_message.wake();
        if ring.shared.closed.load(Ordering::Relaxed) {
            return self.sent_while_closing();
        }
        Ok(())
    }

    /// The ring was closed before, or while, the last message was published: it counts if the stream ends after it,
    /// and is taken back if not.
    #[cold]
    fn sent_while_closing(&mut self) -> Result<(), T> {
        let ring = &*self.ring;
        let end = lock(&ring.shared.end);
        match *end {
            Some(at) if self.tail.wrapping_sub(at) as isize > 0 => {
                self.tail = self.tail.wrapping_sub(1);
                ring.tail.store(self.tail, Ordering::Release);
                // SAFETY: we wrote this message, and the receiver reads none behind the end.
                Err(ring.slot(self.tail).with_mut(|p| unsafe { p.cast::<T>().read() }))
            }
            _ => Ok(()),
        }
    }
}

impl<T: Send> Inlet for &mut Sender<T> {
    type Message = T;
    type Place = ();

    #[inline(always)]
    fn claim(&mut self) -> Result<(), Refused> {
        Sender::claim(self)
    }

    #[inline(always)]
    fn fill(&mut self, (): (), message: T) -> Result<(), T> {
        Sender::fill(self, message)
    }

    fn sleepers(&self) -> &WaitSet {
        &self.ring.shared.for_room
    }

    fn capacity(&self) -> usize {
        (**self).capacity()
    }

    fn room(&self) -> usize {
        self.ring.shared.capacity - self.tail.wrapping_sub(self.ring.head.load(Ordering::Relaxed))
    }

    fn is_closed(&self) -> bool {
        Sender::is_closed(self)
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.ring.close();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("spsc::Sender").field("len", &self.ring.len()).finish_non_exhaustive()
    }
}

/// The receiving end of [`bounded`]. When it is dropped, the ring closes and what is inside is dropped.
///
/// ```
/// let (mut tx, mut rx) = millrace_ring::spsc::bounded(8)?;
/// (0..5).for_each(|i| tx.try_send(i).unwrap());
/// let mut sum = 0;
/// assert_eq!(rx.drain(usize::MAX, |i| sum += i), 5);
/// assert_eq!(sum, 10);
/// # Ok::<(), millrace_ring::CapacityError>(())
/// ```
pub struct Receiver<T> {
    ring: Arc<Ring<T>>,
    /// The truth that `ring.head` mirrors.
    head: usize,
    pace: Pace,
    /// The sender's count when we last looked, never behind the end of a closed stream.
    tail: usize,
}

impl<T> Receiver<T> {
    /// Whether a message is there, looking at the sender's count only if none was left of the last look.
    #[inline(always)]
    fn has_next(&mut self) -> bool {
        if self.head != self.tail {
            return true;
        }
        let tail = self.ring.tail.load(Ordering::Acquire);
        if tail == self.head {
            return false;
        }
        if self.ring.shared.closed.load(Ordering::Relaxed) {
            return self.has_next_before_end();
        }
        self.tail = tail;
        true
    }

    /// The ring is closed: the sender may be about to take the last one back.
    #[cold]
    fn has_next_before_end(&mut self) -> bool {
        self.tail = self.ring.close();
        self.head != self.tail
    }

    /// Reads the message at `head`, which must be there, and moves on without telling the sender.
    #[inline(always)]
    fn read<R>(&mut self, wrap: impl FnOnce(T) -> R) -> R {
        debug_assert_ne!(self.head, self.tail);
        // SAFETY: `has_next` saw that the message was published, and only we read.
        let message = self.ring.slot(self.head).with_mut(|p| wrap(unsafe { p.cast::<T>().read() }));
        self.head = self.head.wrapping_add(1);
        if self.tail.wrapping_sub(self.head) > AHEAD {
            prefetch::slot_to_read(self.ring.slot(self.head.wrapping_add(AHEAD)));
        }
        message
    }

    /// Tells the sender how far we are, and wakes it once there is room for many.
    #[inline(always)]
    fn made_room(&self, received: usize) {
        let ring = &*self.ring;
        ring.head.store(self.head, Ordering::Release);
        fence::light();
        if ring.shared.for_room.is_anyone() {
            Self::wake_sender(ring, self.head, received);
        }
    }

    /// Out of the way, and sure not to unwind.
    #[cold]
    extern "C" fn wake_sender(ring: &Ring<T>, head: usize, received: usize) {
        let waiting = || ring.tail.load(Ordering::Relaxed).wrapping_sub(head);
        ring.shared.for_room.wake_for_room(head, received, ring.shared.capacity, waiting);
    }
}

impl<T: Send> Receiver<T> {
    receiving!("spsc", "mut tx");

    /// Whether the ring was empty at some moment during the call.
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }
}

impl<T: Send> Outlet for &mut Receiver<T> {
    type Message = T;

    #[inline(always)]
    fn look(&mut self) -> Result<(), TryRecvError> {
        if self.has_next() {
            return Ok(());
        }
        // A sender that closes has published everything before.
        if self.ring.is_closed() && self.ring.close() == self.head {
            Err(TryRecvError::Closed)
        } else {
            Err(TryRecvError::Empty)
        }
    }

    #[inline(always)]
    fn take<R>(&mut self, wrap: impl FnOnce(T) -> R) -> R {
        let message = self.read(wrap);
        self.made_room(1);
        self.pace.received();
        message
    }

    fn sleepers(&self) -> &WaitSet {
        &self.ring.shared.for_message
    }

    fn pace(&mut self) -> &mut Pace {
        &mut self.pace
    }

    fn waiting(&self) -> usize {
        self.ring.tail.load(Ordering::Relaxed).wrapping_sub(self.head)
    }

    /// The only sender was woken when the ring was half empty.
    fn emptied(&self) {}
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.tail = self.ring.close();
        drop_all(|| (self.head != self.tail).then(|| self.read(|message| message)));
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("spsc::Receiver").field("len", &self.ring.len()).finish_non_exhaustive()
    }
}
