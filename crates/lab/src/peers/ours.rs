//! Our rings. Both ends poll for about as long as a wake-up would cost, then sleep; answers come through pooled reply
//! slots, whose asker waits the same way.

use millrace::ring::{
    mpsc,
    reply::{ReplyPool, ReplyReceiver, ReplySender},
    spsc,
};

use super::{Gone, Link, Oneshot, Peer, Rx, Tx, service};

/// The ring for many senders.
#[derive(Debug)]
pub struct Millrace;

/// The ring for one sender.
#[derive(Debug)]
pub struct MillraceSpsc;

impl Peer for Millrace {
    const NAME: &'static str = "millrace";
}

impl Peer for MillraceSpsc {
    const NAME: &'static str = "millrace-spsc";
}

/// The lab asks for capacities between one and some thousands only.
fn valid<T>(pair: Result<T, millrace::ring::CapacityError>) -> T {
    match pair {
        Ok(pair) => pair,
        Err(error) => panic!("{error}"),
    }
}

impl<M: Send + 'static> Link<M> for Millrace {
    type Tx = mpsc::Sender<M>;
    type Rx = mpsc::Receiver<M>;
    fn pair(capacity: usize) -> (Self::Tx, Self::Rx) {
        valid(mpsc::bounded(capacity))
    }
}

impl<M: Send + 'static> Link<M> for MillraceSpsc {
    type Tx = spsc::Sender<M>;
    type Rx = spsc::Receiver<M>;
    fn pair(capacity: usize) -> (Self::Tx, Self::Rx) {
        valid(spsc::bounded(capacity))
    }
}

macro_rules! ends {
    ($ring:ident) => {
        impl<M: Send + 'static> Tx<M> for $ring::Sender<M> {
            #[inline]
            fn send(&mut self, message: M) -> Result<(), Gone> {
                $ring::Sender::send(self, message).map_err(|_| Gone)
            }
            #[inline]
            fn try_send(&mut self, message: M) -> Result<(), M> {
                $ring::Sender::try_send(self, message).map_err(|e| e.into_inner())
            }
        }

        impl<M: Send + 'static> Rx<M> for $ring::Receiver<M> {
            #[inline]
            fn recv(&mut self) -> Option<M> {
                $ring::Receiver::recv(self).ok()
            }
            #[inline]
            fn try_recv(&mut self) -> Option<M> {
                $ring::Receiver::try_recv(self).ok()
            }
        }
    };
}
ends!(mpsc);
ends!(spsc);

/// Pooled reply slots.
#[derive(Debug, Default)]
pub struct Pooled(ReplyPool<u64>);

impl Oneshot for Pooled {
    type Tx = ReplySender<u64>;
    type Rx = ReplyReceiver<u64>;
    #[inline]
    fn pair(&self) -> (Self::Tx, Self::Rx) {
        match self.0.pair() {
            Some(pair) => pair,
            None => unreachable!("the lab never has a million requests in flight"),
        }
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

service!(Millrace, Pooled);
