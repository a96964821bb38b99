//! crossbeam-channel, bounded. Ends spin and yield for a moment, then park. Answers: a fresh channel of one.

use super::{Gone, Link, Oneshot, Peer, Rx, Tx, service};

/// `crossbeam_channel::bounded`.
#[derive(Debug)]
pub struct Crossbeam;

impl Peer for Crossbeam {
    const NAME: &'static str = "crossbeam";
}

impl<M: Send + 'static> Link<M> for Crossbeam {
    type Tx = crossbeam_channel::Sender<M>;
    type Rx = crossbeam_channel::Receiver<M>;
    fn pair(capacity: usize) -> (Self::Tx, Self::Rx) {
        crossbeam_channel::bounded(capacity)
    }
}

impl<M: Send + 'static> Tx<M> for crossbeam_channel::Sender<M> {
    #[inline]
    fn send(&mut self, message: M) -> Result<(), Gone> {
        Self::send(self, message).map_err(|_| Gone)
    }
    #[inline]
    fn try_send(&mut self, message: M) -> Result<(), M> {
        Self::try_send(self, message).map_err(|e| e.into_inner())
    }
}

impl<M: Send + 'static> Rx<M> for crossbeam_channel::Receiver<M> {
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
    type Tx = crossbeam_channel::Sender<u64>;
    type Rx = crossbeam_channel::Receiver<u64>;
    #[inline]
    fn pair(&self) -> (Self::Tx, Self::Rx) {
        crossbeam_channel::bounded(1)
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

service!(Crossbeam, Fresh);
