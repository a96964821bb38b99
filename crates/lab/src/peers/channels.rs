//! The channels that a Rust program would otherwise use between threads. Each is asked in its own words; answers come
//! through a fresh channel of one, because none of them has a oneshot of its own (kanal's came after version 0.1).

use std::{
    marker::PhantomData,
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
};

use super::{Gone, Link, Oneshot, Peer, Rx, Tx, service};

/// A fresh channel of `P` for one answer.
#[derive(Debug)]
pub struct Fresh<P>(PhantomData<fn() -> P>);

impl<P> Default for Fresh<P> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<P: Link<u64>> Oneshot for Fresh<P> {
    type Tx = P::Tx;
    type Rx = P::Rx;
    #[inline]
    fn pair(&self) -> (Self::Tx, Self::Rx) {
        P::pair(1)
    }
    #[inline]
    fn send(mut tx: Self::Tx, answer: u64) {
        let _ = tx.send(answer); // an asker that is gone needs no answer
    }
    #[inline]
    fn recv(mut rx: Self::Rx) -> Result<u64, Gone> {
        rx.recv().ok_or(Gone)
    }
}

/// Declares a channel whose blocking ends are called `send` and `recv`.
macro_rules! channel {
    (
        $(#[$doc:meta])* $peer:ident, $name:literal: $bounded:path => ($($tx:ident)::+, $($rx:ident)::+),
        $try_send:expr, $try_recv:expr
    ) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $peer;

        impl Peer for $peer {
            const NAME: &'static str = $name;
        }

        impl<M: Send + 'static> Link<M> for $peer {
            type Tx = $($tx)::+<M>;
            type Rx = $($rx)::+<M>;
            fn pair(capacity: usize) -> (Self::Tx, Self::Rx) {
                $bounded(capacity)
            }
        }

        impl<M: Send + 'static> Tx<M> for $($tx)::+<M> {
            #[inline]
            fn send(&mut self, message: M) -> Result<(), Gone> {
                Self::send(self, message).map_err(|_| Gone)
            }
            #[inline]
            fn try_send(&mut self, message: M) -> Result<(), M> {
                let attempt: fn(&Self, M) -> Result<(), M> = $try_send;
                attempt(self, message)
            }
        }

        impl<M: Send + 'static> Rx<M> for $($rx)::+<M> {
            #[inline]
            fn recv(&mut self) -> Option<M> {
                Self::recv(self).ok()
            }
            #[inline]
            fn try_recv(&mut self) -> Option<M> {
                let attempt: fn(&Self) -> Option<M> = $try_recv;
                attempt(self)
            }
        }

        service!($peer, Fresh<$peer>);
    };
}

channel! {
    /// `crossbeam_channel::bounded`. Ends spin and yield for a moment, then park.
    Crossbeam, "crossbeam": crossbeam_channel::bounded => (crossbeam_channel::Sender, crossbeam_channel::Receiver),
    |tx, message| tx.try_send(message).map_err(|e| e.into_inner()),
    |rx| rx.try_recv().ok()
}

channel! {
    /// `flume::bounded`. A receiver spins briefly, then parks; a sender parks at once.
    Flume, "flume": flume::bounded => (flume::Sender, flume::Receiver),
    |tx, message| tx.try_send(message).map_err(|e| e.into_inner()),
    |rx| rx.try_recv().ok()
}

channel! {
    /// `kanal::bounded`. Ends spin for a while, then park; a sender can hand its message over on the receiver's stack.
    Kanal, "kanal": kanal::bounded => (kanal::Sender, kanal::Receiver),
    |tx, message| {
        let mut message = Some(message);
        match (tx.try_send_option(&mut message), message) {
            (Ok(true), _) | (_, None) => Ok(()),
            (_, Some(message)) => Err(message),
        }
    },
    |rx| rx.try_recv().ok().flatten()
}

channel! {
    /// `std::sync::mpsc::sync_channel`. Ends park after a short backoff.
    Std, "std": sync_channel => (SyncSender, Receiver),
    |tx, message| {
        tx.try_send(message).map_err(|e| match e {
            TrySendError::Full(message) | TrySendError::Disconnected(message) => message,
        })
    },
    |rx| rx.try_recv().ok()
}
