//! kanal, bounded. Ends spin for a while, then park; a sender can hand its message over on the receiver's stack. Answers: a
//! fresh channel of one (version 0.1 has no oneshot).

use super::{Gone, Link, Oneshot, Peer, Rx, Tx, service};

/// `kanal::bounded`.
#[derive(Debug)]
pub struct Kanal;

impl Peer for Kanal {
    const NAME: &'static str = "kanal";
}

impl<M: Send + 'static> Link<M> for Kanal {
    type Tx = kanal::Sender<M>;
    type Rx = kanal::Receiver<M>;
    fn pair(capacity: usize) -> (Self::Tx, Self::Rx) {
        kanal::bounded(capacity)
    }
}

impl<M: Send + 'static> Tx<M> for kanal::Sender<M> {
    #[inline]
    fn send(&mut self, message: M) -> Result<(), Gone> {
        Self::send(self, message).map_err(|_| Gone)
    }
    #[inline]
    fn try_send(&mut self, message: M) -> Result<(), M> {
        let mut message = Some(message);
        match (self.try_send_option(&mut message), message) {
            (Ok(true), _) | (_, None) => Ok(()),
            (_, Some(message)) => Err(message),
        }
    }
}

impl<M: Send + 'static> Rx<M> for kanal::Receiver<M> {
    #[inline]
    fn recv(&mut self) -> Option<M> {
        Self::recv(self).ok()
    }
    #[inline]
    fn try_recv(&mut self) -> Option<M> {
        Self::try_recv(self).ok().flatten()
    }
}

/// A fresh channel for one answer.
#[derive(Debug, Default)]
pub struct Fresh;

impl Oneshot for Fresh {
    type Tx = kanal::Sender<u64>;
    type Rx = kanal::Receiver<u64>;
    #[inline]
    fn pair(&self) -> (Self::Tx, Self::Rx) {
        kanal::bounded(1)
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

service!(Kanal, Fresh);
