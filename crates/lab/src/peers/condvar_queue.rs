//! A `VecDeque` under a mutex with a condition variable for each direction: the textbook's bounded buffer. Both ends
//! park at once. Answers: a slot with a condition variable of its own per request.

use std::{
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
};

use super::{Gone, Link, Oneshot, Peer, Rx, Tx, service};

/// A mutex, a `VecDeque` and two condition variables.
#[derive(Debug)]
pub struct MutexCondvar;

impl Peer for MutexCondvar {
    const NAME: &'static str = "mutex-condvar";
}

struct State<M> {
    queue: VecDeque<M>,
    senders: usize,
    receiving: bool,
}

struct Shared<M> {
    state: Mutex<State<M>>,
    capacity: usize,
    room: Condvar,
    message: Condvar,
}

impl<M> Shared<M> {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending end.
#[allow(missing_debug_implementations, reason = "messages need not be `Debug`")]
pub struct Sender<M>(Arc<Shared<M>>);

/// The receiving end.
#[allow(missing_debug_implementations, reason = "messages need not be `Debug`")]
pub struct Receiver<M>(Arc<Shared<M>>);

impl<M: Send + 'static> Link<M> for MutexCondvar {
    type Tx = Sender<M>;
    type Rx = Receiver<M>;
    fn pair(capacity: usize) -> (Self::Tx, Self::Rx) {
        let state = State { queue: VecDeque::with_capacity(capacity), senders: 1, receiving: true };
        let shared = Shared { state: Mutex::new(state), capacity, room: Condvar::new(), message: Condvar::new() };
        let shared = Arc::new(shared);
        (Sender(shared.clone()), Receiver(shared))
    }
}

impl<M: Send + 'static> Tx<M> for Sender<M> {
    #[inline]
    fn send(&mut self, message: M) -> Result<(), Gone> {
        let mut state = self.0.lock();
        while state.queue.len() == self.0.capacity && state.receiving {
            state = self.0.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if !state.receiving {
            return Err(Gone);
        }
        state.queue.push_back(message);
        drop(state);
        self.0.message.notify_one();
        Ok(())
    }
    #[inline]
    fn try_send(&mut self, message: M) -> Result<(), M> {
        let mut state = self.0.lock();
        if state.queue.len() == self.0.capacity || !state.receiving {
            return Err(message);
        }
        state.queue.push_back(message);
        drop(state);
        self.0.message.notify_one();
        Ok(())
    }
}

impl<M: Send + 'static> Rx<M> for Receiver<M> {
    #[inline]
    fn recv(&mut self) -> Option<M> {
        let mut state = self.0.lock();
        loop {
            match state.queue.pop_front() {
                Some(message) => {
                    drop(state);
                    self.0.room.notify_one();
                    return Some(message);
                }
                None if state.senders == 0 => return None,
                None => state = self.0.message.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
    #[inline]
    fn try_recv(&mut self) -> Option<M> {
        let message = self.0.lock().queue.pop_front()?;
        self.0.room.notify_one();
        Some(message)
    }
}

impl<M> Clone for Sender<M> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(self.0.clone())
    }
}

impl<M> Drop for Sender<M> {
    fn drop(&mut self) {
        self.0.lock().senders -= 1;
        self.0.message.notify_all();
    }
}

impl<M> Drop for Receiver<M> {
    fn drop(&mut self) {
        self.0.lock().receiving = false;
        self.0.room.notify_all();
    }
}

/// A fresh slot for one answer, waited for with a condition variable.
#[derive(Debug, Default)]
pub struct WaitedSlot;

/// Set once, with the answer or with the news that there will be none.
#[derive(Debug, Default)]
pub struct Place {
    answer: Mutex<Option<Result<u64, Gone>>>,
    set: Condvar,
}

/// Where the answer goes; without one, dropping it tells the asker.
#[derive(Debug)]
pub struct Slot(Arc<Place>);

impl Slot {
    fn set(&self, answer: Result<u64, Gone>) {
        self.0.answer.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(answer);
        self.0.set.notify_one();
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.set(Err(Gone));
    }
}

impl Oneshot for WaitedSlot {
    type Tx = Slot;
    type Rx = Arc<Place>;
    #[inline]
    fn pair(&self) -> (Self::Tx, Self::Rx) {
        let slot = Arc::new(Place::default());
        (Slot(slot.clone()), slot)
    }
    #[inline]
    fn send(tx: Self::Tx, answer: u64) {
        tx.set(Ok(answer));
    }
    #[inline]
    fn recv(rx: Self::Rx) -> Result<u64, Gone> {
        let mut slot = rx.answer.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match slot.take() {
                Some(answer) => return answer,
                None => slot = rx.set.wait(slot).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

service!(MutexCondvar, WaitedSlot);
