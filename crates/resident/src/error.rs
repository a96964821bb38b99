//! What can go wrong with a resident kernel.

use std::{sync::Arc, time::Duration};

use millrace_core::Class;
use thiserror::Error as ThisError;

use crate::Status;

/// The answer of every fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything a resident kernel can answer instead of a result.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
#[non_exhaustive]
pub enum Error {
    /// The kernel's inbound ring has no room right now.
    #[error("the kernel's inbound ring is full ({capacity} messages)")]
    Full {
        /// How many messages it holds.
        capacity: usize,
    },
    /// The deadline passed.
    #[error("the deadline passed before the kernel answered")]
    Deadline,
    /// The kernel handled nothing for the device's timeout.
    #[error("the kernel, which is {status}, made no progress for {waited:?}")]
    Stalled {
        /// How it is.
        status: Status,
        /// How long that was waited for.
        waited: Duration,
    },
    /// The kernel did so because it waits for room for its answers, and nobody receives them.
    #[error(
        "the kernel made no progress for {waited:?}: nobody receives its answers, and it has no room for more than {answers}"
    )]
    Unreceived {
        /// Answers that wait to be received.
        answers: usize,
        /// How long that was waited for.
        waited: Duration,
    },
    /// The kernel takes no more messages.
    #[error("the kernel is {0}")]
    Ended(Status),
    /// The handler panicked while it handled this message.
    #[error("the handler panicked: {0}")]
    Panicked(Arc<str>),
    /// The kernel failed, and its restart policy allows no further start.
    #[error("the kernel failed: {0}")]
    Failed(Arc<str>),
    /// The lifecycle has no such step.
    #[error("a kernel that is {from} cannot become {to}")]
    NotFrom {
        /// How it is.
        from: Status,
        /// What was asked for.
        to: Status,
    },

    /// The message is of another type.
    #[error("a message of type {found:#010x} was found where {expected:#010x} was expected")]
    WrongType {
        /// The type asked for.
        expected: u32,
        /// The type found.
        found: u32,
    },
    /// The message is longer or shorter than its type.
    #[error("a message of {found} bytes was found where {expected} were expected")]
    WrongLength {
        /// Bytes of the type.
        expected: usize,
        /// Bytes found.
        found: usize,
    },
    /// The message does not begin where its type may.
    #[error("the message does not begin at a multiple of {align}")]
    Misaligned {
        /// What the type needs.
        align: usize,
    },
    /// The bytes are not an archive of the type.
    #[error("the bytes are not what they should be: {0}")]
    Corrupt(Arc<str>),
    /// What belongs to a message is no longer there.
    #[error("the payload that belongs to the message is gone")]
    NoPayload,

    /// An option means nothing on this device.
    #[error("{what} has no meaning on the device {device}: {why}")]
    Unsupported {
        /// The option.
        what: &'static str,
        /// The device.
        device: Arc<str>,
        /// Why not.
        why: &'static str,
    },
    /// This build has no resident kernels for the device, or the handler no code for it.
    #[error("the handler {handler} cannot be resident on {device}: {why}")]
    NoImplementation {
        /// The handler's type.
        handler: &'static str,
        /// The device.
        device: Arc<str>,
        /// What is missing.
        why: &'static str,
    },
    /// The memory for the device's resident kernels has no room for another.
    #[error(
        "a kernel of {requested} bytes does not fit: the device's resident kernels have {all} bytes, of which at most \
             {largest} are free in one piece"
    )]
    NoRoom {
        /// Bytes that the kernel needs.
        requested: u64,
        /// Bytes of the largest free piece.
        largest: u64,
        /// Bytes in all.
        all: u64,
    },
    /// The request itself is wrong.
    #[error("{0}")]
    Invalid(Arc<str>),
    /// The device refused.
    #[error(transparent)]
    Device(#[from] millrace_core::Error),
}

impl Error {
    /// What to do about it.
    ///
    /// ```
    /// use millrace_resident::Error;
    /// assert_eq!(Error::Full { capacity: 8 }.class(), millrace_core::Class::Retry);
    /// ```
    pub fn class(&self) -> Class {
        match self {
            Self::Full { .. } | Self::Deadline | Self::Stalled { .. } | Self::Unreceived { .. } => Class::Retry,
            Self::Panicked(_) | Self::Failed(_) | Self::Corrupt(_) => Class::Fatal,
            Self::Device(error) => error.class(),
            _ => Class::Caller,
        }
    }
}

/// A message that was not sent, and why.
///
/// ```
/// # use millrace_resident::*;
/// let refused = Refused { message: 7, error: Error::Full { capacity: 2 } };
/// assert_eq!(refused.to_string(), "the kernel's inbound ring is full (2 messages)");
/// assert_eq!(refused.message, 7);
/// ```
#[derive(Clone, PartialEq, Eq, ThisError)]
#[error("{error}")]
pub struct Refused<M> {
    /// The message.
    pub message: M,
    /// Why.
    pub error: Error,
}

// By hand, because messages need not be `Debug`.
impl<M> std::fmt::Debug for Refused<M> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<M> From<Refused<M>> for Error {
    fn from(refused: Refused<M>) -> Self {
        refused.error
    }
}
