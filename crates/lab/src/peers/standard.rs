//! The standard library's `sync_channel`. Ends park after a short backoff. Answers: a fresh channel of one.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use super::{Gone, Link, Oneshot, Peer, Rx, Tx, service};

/// `std::sync::mpsc::sync_channel`.
#[derive(Debug)]
pub struct Std;

impl Peer for Std {
    const NAME: &'static str = "std";
}

impl<M: Send + 'static> Link<M> for Std {
    type Tx = SyncSender<M>;
    type Rx = Receiver<M>;
    fn pair(capacity: usize) -> (Self::Tx, Self::Rx) {
        sync_channel(capacity)
    }
}

impl<M: Send + 'static> Tx<M> for SyncSender<M> {
    #[inline]
    fn send(&mut self, message: M) -> Result<(), Gone> {
        Self::send(self, message).map_err(|_| Gone)
    }
    #[inline]
    fn try_send(&mut self, message: M) -> Result<(), M> {
        Self::try_send(self, message).map_err(|e| match e {
            TrySendError::Full(message) | TrySendError::Disconnected(message) => message,
        })
    }
}

impl<M: Send + 'static> Rx<M> for Receiver<M> {
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
    type Tx = SyncSender<u64>;
    type Rx = Receiver<u64>;
    #[inline]
    fn pair(&self) -> (Self::Tx, Self::Rx) {
        sync_channel(1)
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

service!(Std, Fresh);
