//! What the machine allows: the fastest way known, without anything that a product needs.
//!
//! [`Limit`] is rtrb's single-producer ring, or two of them for a round trip, with both ends spinning all the time: no
//! sleeping, no yielding, a core burnt per end. [`Parked`] is the same for an idle system: one bare `park` and one bare
//! `unpark`, with the answer in an atomic that the asker spins on.

use std::{
    hint::spin_loop,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, Thread},
};

use super::{Client, Gone, Link, Peer, Rx, Server, Service, Tx};
use crate::Message;

/// Two rings without waiting.
#[derive(Debug)]
pub struct Limit;

impl Peer for Limit {
    const NAME: &'static str = "limit";
}

impl<M: Send + 'static> Link<M> for Limit {
    type Tx = rtrb::Producer<M>;
    type Rx = rtrb::Consumer<M>;
    fn pair(capacity: usize) -> (Self::Tx, Self::Rx) {
        rtrb::RingBuffer::new(capacity)
    }
}

impl<M: Send + 'static> Tx<M> for rtrb::Producer<M> {
    #[inline]
    fn send(&mut self, mut message: M) -> Result<(), Gone> {
        while let Err(rtrb::PushError::Full(back)) = self.push(message) {
            if self.is_abandoned() {
                return Err(Gone);
            }
            message = back;
            spin_loop();
        }
        Ok(())
    }
    #[inline]
    fn try_send(&mut self, message: M) -> Result<(), M> {
        self.push(message).map_err(|rtrb::PushError::Full(message)| message)
    }
}

impl<M: Send + 'static> Rx<M> for rtrb::Consumer<M> {
    #[inline]
    fn recv(&mut self) -> Option<M> {
        loop {
            if let Ok(message) = self.pop() {
                return Some(message);
            }
            if self.is_abandoned() {
                return self.pop().ok(); // what came between the two looks
            }
            spin_loop();
        }
    }
    #[inline]
    fn try_recv(&mut self) -> Option<M> {
        self.pop().ok()
    }
}

/// Both directions as one end sees them.
#[derive(Debug)]
pub struct End<S, R> {
    tx: rtrb::Producer<S>,
    rx: rtrb::Consumer<R>,
}

impl Service for Limit {
    type Client = End<Message, u64>;
    type Server = End<u64, Message>;
    fn connect(capacity: usize) -> (Self::Client, Self::Server) {
        let (requests, inbox) = rtrb::RingBuffer::new(capacity);
        let (answers, outbox) = rtrb::RingBuffer::new(capacity);
        (End { tx: requests, rx: outbox }, End { tx: answers, rx: inbox })
    }
}

impl Client for End<Message, u64> {
    #[inline]
    fn ask(&mut self, message: Message) -> Result<u64, Gone> {
        self.tx.send(message)?;
        self.rx.recv().ok_or(Gone)
    }
}

impl Server for End<u64, Message> {
    #[inline]
    fn answer(&mut self, mut handle: impl FnMut(Message) -> u64) -> Result<(), Gone> {
        let message = self.rx.recv().ok_or(Gone)?;
        self.tx.send(handle(message))
    }
}

/// One bare park and unpark.
#[derive(Debug)]
pub struct Parked;

impl Peer for Parked {
    const NAME: &'static str = "limit";
}

#[derive(Debug, Default)]
struct Doorbell {
    request: Mutex<Option<Message>>,
    server: Mutex<Option<Thread>>,
    rung: AtomicBool,
    answers: AtomicU64,
    value: AtomicU64,
    closed: AtomicBool,
}

impl Doorbell {
    fn ring(&self) {
        self.rung.store(true, Ordering::Release);
        if let Some(server) = &*self.server.lock().unwrap_or_else(PoisonError::into_inner) {
            server.unpark();
        }
    }
}

/// Asks by unparking.
#[derive(Debug)]
pub struct Ringer(Arc<Doorbell>);

/// Parks until asked.
#[derive(Debug)]
pub struct Sleeper(Arc<Doorbell>);

impl Service for Parked {
    type Client = Ringer;
    type Server = Sleeper;
    fn connect(_capacity: usize) -> (Self::Client, Self::Server) {
        let doorbell = Arc::new(Doorbell::default());
        (Ringer(doorbell.clone()), Sleeper(doorbell))
    }
}

impl Client for Ringer {
    fn ask(&mut self, message: Message) -> Result<u64, Gone> {
        let before = self.0.answers.load(Ordering::Acquire);
        *self.0.request.lock().unwrap_or_else(PoisonError::into_inner) = Some(message);
        self.0.ring();
        while self.0.answers.load(Ordering::Acquire) == before {
            if self.0.closed.load(Ordering::Acquire) {
                return Err(Gone);
            }
            spin_loop();
        }
        Ok(self.0.value.load(Ordering::Relaxed))
    }
}

impl Server for Sleeper {
    fn answer(&mut self, mut handle: impl FnMut(Message) -> u64) -> Result<(), Gone> {
        self.0.server.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(thread::current);
        while !self.0.rung.swap(false, Ordering::Acquire) {
            if self.0.closed.load(Ordering::Acquire) {
                return Err(Gone);
            }
            thread::park();
        }
        let request = self.0.request.lock().unwrap_or_else(PoisonError::into_inner).take();
        let message = request.ok_or(Gone)?; // rung without a request: the client left
        self.0.value.store(handle(message), Ordering::Relaxed);
        self.0.answers.fetch_add(1, Ordering::Release);
        Ok(())
    }
}

impl Drop for Ringer {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.ring();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        self.0.closed.store(true, Ordering::Release);
    }
}
