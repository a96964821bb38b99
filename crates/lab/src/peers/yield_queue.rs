//! A `VecDeque` under a mutex, polled with `yield_now` by both ends: how command queues were built before channels.
//! Nothing ever sleeps, so an idle end keeps a core busy. Answers: a slot of its own per request, polled as well.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use super::{Gone, Link, Oneshot, Peer, Rx, Tx, service};

/// A mutex and a `VecDeque`, polled.
#[derive(Debug)]
pub struct MutexYield;

impl Peer for MutexYield {
    const NAME: &'static str = "mutex-yield";
}

struct State<M> {
    queue: VecDeque<M>,
    capacity: usize,
    senders: usize,
    receiving: bool,
}

struct Shared<M>(Arc<Mutex<State<M>>>);

impl<M> Shared<M> {
    #[inline]
    fn lock(&self) -> MutexGuard<'_, State<M>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The sending end.
#[allow(missing_debug_implementations, reason = "messages need not be `Debug`")]
pub struct Sender<M>(Shared<M>);

/// The receiving end.
#[allow(missing_debug_implementations, reason = "messages need not be `Debug`")]
pub struct Receiver<M>(Shared<M>);

impl<M: Send + 'static> Link<M> for MutexYield {
    type Tx = Sender<M>;
    type Rx = Receiver<M>;
    fn pair(capacity: usize) -> (Self::Tx, Self::Rx) {
        let state = State { queue: VecDeque::with_capacity(capacity), capacity, senders: 1, receiving: true };
        let shared = Arc::new(Mutex::new(state));
        (Sender(Shared(shared.clone())), Receiver(Shared(shared)))
    }
}

impl<M: Send + 'static> Tx<M> for Sender<M> {
    #[inline]
    fn send(&mut self, mut message: M) -> Result<(), Gone> {
        while let Err(back) = self.try_send(message) {
            if !self.0.lock().receiving {
                return Err(Gone);
            }
            message = back;
            thread::yield_now();
        }
        Ok(())
    }
    #[inline]
    fn try_send(&mut self, message: M) -> Result<(), M> {
        let mut state = self.0.lock();
        if state.queue.len() == state.capacity || !state.receiving {
            return Err(message);
        }
        state.queue.push_back(message);
        Ok(())
    }
}

impl<M: Send + 'static> Rx<M> for Receiver<M> {
    #[inline]
    fn recv(&mut self) -> Option<M> {
        loop {
            let mut state = self.0.lock();
            match state.queue.pop_front() {
                Some(message) => return Some(message),
                None if state.senders == 0 => return None,
                None => {}
            }
            drop(state);
            thread::yield_now();
        }
    }
    #[inline]
    fn try_recv(&mut self) -> Option<M> {
        self.0.lock().queue.pop_front()
    }
}

impl<M> Clone for Sender<M> {
    fn clone(&self) -> Self {
        self.0.lock().senders += 1;
        Self(Shared(self.0.0.clone()))
    }
}

impl<M> Drop for Sender<M> {
    fn drop(&mut self) {
        self.0.lock().senders -= 1;
    }
}

impl<M> Drop for Receiver<M> {
    fn drop(&mut self) {
        self.0.lock().receiving = false;
    }
}

/// A fresh slot for one answer, polled.
#[derive(Debug, Default)]
pub struct PolledSlot;

impl Oneshot for PolledSlot {
    type Tx = Arc<Mutex<Option<u64>>>;
    type Rx = Arc<Mutex<Option<u64>>>;
    #[inline]
    fn pair(&self) -> (Self::Tx, Self::Rx) {
        let slot = Arc::new(Mutex::new(None));
        (slot.clone(), slot)
    }
    #[inline]
    fn send(tx: Self::Tx, answer: u64) {
        *tx.lock().unwrap_or_else(PoisonError::into_inner) = Some(answer);
    }
    #[inline]
    fn recv(rx: Self::Rx) -> Result<u64, Gone> {
        loop {
            if let Some(answer) = rx.lock().unwrap_or_else(PoisonError::into_inner).take() {
                return Ok(answer);
            }
            if Arc::strong_count(&rx) == 1 && rx.lock().unwrap_or_else(PoisonError::into_inner).is_none() {
                return Err(Gone);
            }
            thread::yield_now();
        }
    }
}

service!(MutexYield, PolledSlot);
