//! tokio's channels with their blocking ends, which park at once. Answers: `oneshot`.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{broadcast, mpsc, oneshot};

use super::{Gone, Link, Oneshot, Peer, Rx, Tx, service};

/// `tokio::sync::mpsc`, blocking on both ends.
#[derive(Debug)]
pub struct TokioMpsc;

impl Peer for TokioMpsc {
    const NAME: &'static str = "tokio-mpsc";
}

impl<M: Send + 'static> Link<M> for TokioMpsc {
    type Tx = mpsc::Sender<M>;
    type Rx = mpsc::Receiver<M>;
    fn pair(capacity: usize) -> (Self::Tx, Self::Rx) {
        mpsc::channel(capacity)
    }
}

impl<M: Send + 'static> Tx<M> for mpsc::Sender<M> {
    #[inline]
    fn send(&mut self, message: M) -> Result<(), Gone> {
        Self::blocking_send(self, message).map_err(|_| Gone)
    }
    #[inline]
    fn try_send(&mut self, message: M) -> Result<(), M> {
        Self::try_send(self, message).map_err(|e| e.into_inner())
    }
}

impl<M: Send + 'static> Rx<M> for mpsc::Receiver<M> {
    #[inline]
    fn recv(&mut self) -> Option<M> {
        Self::blocking_recv(self)
    }
    #[inline]
    fn try_recv(&mut self) -> Option<M> {
        Self::try_recv(self).ok()
    }
}

/// A fresh channel for one answer.
#[derive(Debug, Default)]
pub struct Fresh;

impl Oneshot for Fresh {
    type Tx = oneshot::Sender<u64>;
    type Rx = oneshot::Receiver<u64>;
    #[inline]
    fn pair(&self) -> (Self::Tx, Self::Rx) {
        oneshot::channel()
    }
    #[inline]
    fn send(tx: Self::Tx, answer: u64) {
        let _ = tx.send(answer); // an asker that is gone needs no answer
    }
    #[inline]
    fn recv(rx: Self::Rx) -> Result<u64, Gone> {
        rx.blocking_recv().map_err(|_| Gone)
    }
}

service!(TokioMpsc, Fresh);

/// `tokio::sync::broadcast` of 100, which the standard documents of this field call bounded. It drops the oldest
/// message when full, so it only takes part where no more than one is under way. Messages and the answer's end are
/// cloned for each receiver, so the latter is shared.
#[derive(Debug)]
pub struct TokioBroadcast;

impl Peer for TokioBroadcast {
    const NAME: &'static str = "tokio-broadcast";
}

impl<M: Clone + Send + 'static> Link<M> for TokioBroadcast {
    type Tx = broadcast::Sender<M>;
    type Rx = broadcast::Receiver<M>;
    fn pair(capacity: usize) -> (Self::Tx, Self::Rx) {
        broadcast::channel(capacity)
    }
}

impl<M: Clone + Send + 'static> Tx<M> for broadcast::Sender<M> {
    #[inline]
    fn send(&mut self, message: M) -> Result<(), Gone> {
        Self::send(self, message).map(|_| ()).map_err(|_| Gone)
    }
    #[inline]
    fn try_send(&mut self, message: M) -> Result<(), M> {
        Self::send(self, message).map(|_| ()).map_err(|e| e.0)
    }
}

impl<M: Clone + Send + 'static> Rx<M> for broadcast::Receiver<M> {
    #[inline]
    fn recv(&mut self) -> Option<M> {
        self.blocking_recv().ok()
    }
    #[inline]
    fn try_recv(&mut self) -> Option<M> {
        Self::try_recv(self).ok()
    }
}

/// A oneshot whose sending end can be cloned.
#[derive(Debug, Default)]
pub struct SharedOneshot;

impl Oneshot for SharedOneshot {
    type Tx = Arc<Mutex<Option<oneshot::Sender<u64>>>>;
    type Rx = oneshot::Receiver<u64>;
    fn pair(&self) -> (Self::Tx, Self::Rx) {
        let (tx, rx) = oneshot::channel();
        (Arc::new(Mutex::new(Some(tx))), rx)
    }
    fn send(tx: Self::Tx, answer: u64) {
        if let Some(tx) = tx.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = tx.send(answer); // an asker that is gone needs no answer
        }
    }
    fn recv(rx: Self::Rx) -> Result<u64, Gone> {
        rx.blocking_recv().map_err(|_| Gone)
    }
}

service!(TokioBroadcast, SharedOneshot);
