//! What sending and receiving can answer. Whatever could not be sent is handed back.

use thiserror::Error;

/// The largest capacity a ring accepts.
///
/// ```
/// assert!(millrace_ring::mpsc::bounded::<()>(millrace_ring::MAX_CAPACITY + 1).is_err());
/// ```
pub const MAX_CAPACITY: usize = 1 << 24;

/// A ring cannot be built with this capacity.
///
/// ```
/// let error = millrace_ring::spsc::bounded::<u8>(0).unwrap_err();
/// assert_eq!(error.to_string(), "a ring holds between 1 and 16777216 messages, not 0");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("a ring holds between 1 and {MAX_CAPACITY} messages, not {0}")]
pub struct CapacityError(pub usize);

impl CapacityError {
    pub(crate) fn check(capacity: usize) -> Result<(), Self> {
        if (1..=MAX_CAPACITY).contains(&capacity) { Ok(()) } else { Err(Self(capacity)) }
    }
}

/// Why a message was not sent at once; it is inside.
///
/// ```
/// use millrace_ring::{TrySendError, mpsc};
/// let (tx, rx) = mpsc::bounded(1)?;
/// assert_eq!(tx.try_send(1), Ok(()));
/// assert_eq!(tx.try_send(2), Err(TrySendError::Full(2)));
/// drop(rx);
/// assert_eq!(tx.try_send(3), Err(TrySendError::Closed(3)));
/// # Ok::<(), millrace_ring::CapacityError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Error)]
pub enum TrySendError<T> {
    /// Every slot holds a message that was not received yet.
    #[error("the ring is full")]
    Full(T),
    /// One of the ends closed the ring.
    #[error("the ring is closed")]
    Closed(T),
}

/// The ring closed before the message was sent; it is inside.
///
/// ```
/// let (tx, rx) = millrace_ring::mpsc::bounded(1)?;
/// drop(rx);
/// assert_eq!(tx.send("kept"), Err(millrace_ring::SendError("kept")));
/// # Ok::<(), millrace_ring::CapacityError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("the ring is closed")]
pub struct SendError<T>(pub T);

/// Why a message was not sent before the deadline; it is inside.
///
/// ```
/// use millrace_ring::{SendDeadlineError, mpsc};
/// let (tx, _rx) = mpsc::bounded(1)?;
/// tx.try_send(1).unwrap();
/// let late = tx.send_timeout(2, std::time::Duration::from_millis(1));
/// assert_eq!(late, Err(SendDeadlineError::Deadline(2)));
/// # Ok::<(), millrace_ring::CapacityError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Error)]
pub enum SendDeadlineError<T> {
    /// The ring stayed full until the deadline.
    #[error("the ring was full until the deadline")]
    Deadline(T),
    /// One of the ends closed the ring.
    #[error("the ring is closed")]
    Closed(T),
}

macro_rules! with_message {
    ($($name:ident { $($variant:ident),+ })+) => {$(
        impl<T> $name<T> {
            /// The message that was not sent.
            ///
            /// ```
            /// let (tx, _rx) = millrace_ring::mpsc::bounded(1)?;
            /// tx.try_send("first").unwrap();
            /// assert_eq!(tx.try_send("second").unwrap_err().into_inner(), "second");
            /// let late = tx.send_deadline("third", std::time::Instant::now()).unwrap_err();
            /// assert_eq!(late.into_inner(), "third");
            /// # Ok::<(), millrace_ring::CapacityError>(())
            /// ```
            pub fn into_inner(self) -> T {
                match self {
                    $(Self::$variant(message))|+ => message,
                }
            }
        }

        // By hand, because messages need not be `Debug`.
        impl<T> std::fmt::Debug for $name<T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $(Self::$variant(_) => concat!(stringify!($name), "::", stringify!($variant)),)+
                })
            }
        }
    )+};
}
with_message! {
    TrySendError { Full, Closed }
    SendDeadlineError { Deadline, Closed }
}

impl<T> std::fmt::Debug for SendError<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SendError")
    }
}

/// Why no message was received at once.
///
/// ```
/// use millrace_ring::{TryRecvError, mpsc};
/// let (tx, mut rx) = mpsc::bounded::<u8>(1)?;
/// assert_eq!(rx.try_recv(), Err(TryRecvError::Empty));
/// drop(tx);
/// assert_eq!(rx.try_recv(), Err(TryRecvError::Closed));
/// # Ok::<(), millrace_ring::CapacityError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum TryRecvError {
    /// Nothing is waiting, but something may still come.
    #[error("the ring is empty")]
    Empty,
    /// The ring is closed and everything that was sent has been received.
    #[error("the ring is closed and empty")]
    Closed,
}

/// The ring is closed and everything that was sent has been received.
///
/// ```
/// let (tx, mut rx) = millrace_ring::mpsc::bounded::<u8>(1)?;
/// drop(tx);
/// assert_eq!(rx.recv(), Err(millrace_ring::RecvError));
/// # Ok::<(), millrace_ring::CapacityError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the ring is closed and empty")]
pub struct RecvError;

/// Why no message was received before the deadline.
///
/// ```
/// use millrace_ring::{RecvDeadlineError, mpsc};
/// let (_tx, mut rx) = mpsc::bounded::<u8>(1)?;
/// let late = rx.recv_timeout(std::time::Duration::from_millis(1));
/// assert_eq!(late, Err(RecvDeadlineError::Deadline));
/// # Ok::<(), millrace_ring::CapacityError>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RecvDeadlineError {
    /// Nothing came until the deadline.
    #[error("nothing was received until the deadline")]
    Deadline,
    /// The ring is closed and everything that was sent has been received.
    #[error("the ring is closed and empty")]
    Closed,
}
