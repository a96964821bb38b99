//! The sides of every comparison, behind three small traits, so that each workload is written once.
//!
//! Every peer is used the way its own documentation suggests for threads that block, with no tuning that its users
//! would not do, and its documentation says how its ends wait: that decides most of what is measured.

mod channels;
mod condvar_queue;
mod limit;
mod ours;
mod tokio;
mod yield_queue;

pub use self::{
    channels::{Crossbeam, Flume, Kanal, Std},
    condvar_queue::MutexCondvar,
    limit::{Limit, Parked},
    ours::{Millrace, MillraceSpsc},
    tokio::{TokioBroadcast, TokioMpsc},
    yield_queue::MutexYield,
};

use crate::Message;

/// The other end is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gone;

/// A side of a comparison.
pub trait Peer: 'static {
    /// As reports call it.
    const NAME: &'static str;
}

/// A bounded way for messages from one thread to another.
pub trait Link<M>: Peer {
    /// The sending end; `Clone` where several threads may send.
    type Tx: Tx<M>;
    /// The receiving end.
    type Rx: Rx<M>;
    /// Both ends of a fresh one.
    fn pair(capacity: usize) -> (Self::Tx, Self::Rx);
}

/// A sending end.
pub trait Tx<M>: Send + 'static {
    /// Sends, waiting for room.
    fn send(&mut self, message: M) -> Result<(), Gone>;
    /// Sends if there is room; the message comes back if not, or if the other end is gone.
    fn try_send(&mut self, message: M) -> Result<(), M>;
}

/// A receiving end.
pub trait Rx<M>: Send + 'static {
    /// Receives, waiting for a message; `None` when all senders are gone and everything was received.
    fn recv(&mut self) -> Option<M>;
    /// Receives if a message is there.
    fn try_recv(&mut self) -> Option<M>;
}

/// A request that is answered.
pub trait Service: Peer {
    /// The asking end.
    type Client: Client;
    /// The answering end.
    type Server: Server;
    /// Both ends of a fresh one, for `capacity` requests under way.
    fn connect(capacity: usize) -> (Self::Client, Self::Server);
}

/// An asking end.
pub trait Client: Send + 'static {
    /// Sends a request and waits for its answer.
    fn ask(&mut self, message: Message) -> Result<u64, Gone>;
}

/// An answering end.
pub trait Server: Send + 'static {
    /// Waits for a request and answers it with what `handle` makes of it. Fails when no more can come.
    fn answer(&mut self, handle: impl FnMut(Message) -> u64) -> Result<(), Gone>;
}

/// How a peer brings one answer back.
pub trait Oneshot: Default + Send + 'static {
    /// Travels with the request.
    type Tx: Send + 'static;
    /// Stays with the asker.
    type Rx;
    /// Both ends for one answer.
    fn pair(&self) -> (Self::Tx, Self::Rx);
    /// Answers.
    fn send(tx: Self::Tx, answer: u64);
    /// Waits for the answer.
    fn recv(rx: Self::Rx) -> Result<u64, Gone>;
}

/// Requests over a link, answers by a [`Oneshot`] each.
#[derive(Debug)]
pub struct Asking<T, O> {
    tx: T,
    replies: O,
}

/// The other end of [`Asking`].
#[derive(Debug)]
pub struct Answering<R, O> {
    rx: R,
    replies: std::marker::PhantomData<fn() -> O>,
}

impl<O: Oneshot, T: Tx<(Message, O::Tx)>> Client for Asking<T, O> {
    #[inline]
    fn ask(&mut self, message: Message) -> Result<u64, Gone> {
        let (tx, rx) = self.replies.pair();
        self.tx.send((message, tx))?;
        O::recv(rx)
    }
}

impl<O: Oneshot, R: Rx<(Message, O::Tx)>> Server for Answering<R, O> {
    #[inline]
    fn answer(&mut self, mut handle: impl FnMut(Message) -> u64) -> Result<(), Gone> {
        let (message, tx) = self.rx.recv().ok_or(Gone)?;
        O::send(tx, handle(message));
        Ok(())
    }
}

/// A service made of a peer's link and its way to answer.
fn over_link<P, O>(capacity: usize) -> (Asking<P::Tx, O>, Answering<P::Rx, O>)
where
    O: Oneshot,
    P: Link<(Message, O::Tx)>,
{
    let (tx, rx) = P::pair(capacity);
    (Asking { tx, replies: O::default() }, Answering { rx, replies: std::marker::PhantomData })
}

/// Declares a [`Service`] out of a link and a oneshot.
macro_rules! service {
    ($peer:ty, $oneshot:ty) => {
        impl $crate::peers::Service for $peer {
            type Client = $crate::peers::Asking<
                <$peer as $crate::peers::Link<($crate::Message, <$oneshot as $crate::peers::Oneshot>::Tx)>>::Tx,
                $oneshot,
            >;
            type Server = $crate::peers::Answering<
                <$peer as $crate::peers::Link<($crate::Message, <$oneshot as $crate::peers::Oneshot>::Tx)>>::Rx,
                $oneshot,
            >;
            fn connect(capacity: usize) -> (Self::Client, Self::Server) {
                $crate::peers::over_link::<$peer, $oneshot>(capacity)
            }
        }
    };
}
use service;
