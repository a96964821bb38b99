//! flume, bounded. A receiver spins briefly, then parks; a sender parks at once. Answers: a fresh channel of one.

use super::{Gone, Link, Oneshot, Peer, Rx, Tx, service};

/// `flume::bounded`.
#[derive(Debug)]
pub struct Flume;

impl Peer for Flume {
    const NAME: &'static str = "flume";
}

impl<M: Send + 'static> Link<M> for Flume {
    type Tx = flume::Sender<M>;
    type Rx = flume::Receiver<M>;
    fn pair(capacity: usize) -> (Self::Tx, Self::Rx) {
        flume::bounded(capacity)
    }
}

impl<M: Send + 'static> Tx<M> for flume::Sender<M> {
    #[inline]
    fn send(&mut self, message: M) -> Result<(), Gone> {
        Self::send(self, message).map_err(|_| Gone)
    }
    #[inline]
    fn try_send(&mut self, message: M) -> Result<(), M> {
        Self::try_send(self, message).map_err(|e| e.into_inner())
    }
}

impl<M: Send + 'static> Rx<M> for flume::Receiver<M> {
    #[inline]
    fn recv(&mut self) -> Option<M> {
        Self::recv(self).ok()
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
    type Tx = flume::Sender<u64>;
    type Rx = flume::Receiver<u64>;
    #[inline]
    fn pair(&self) -> (Self::Tx, Self::Rx) {
        flume::bounded(1)
    }
    #[inline]
    fn send(tx: Self::Tx, answer: u64) {
        let _ = tx.send(answer); // an asker that is gone needs no answer
    }
    #[inline]
    fn recv(rx: Self::Rx) -> Result<u64, Gone> {
        rx.recv().map_err(|_| Gone)
    }
}

service!(Flume, Fresh);
