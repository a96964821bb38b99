//! What can go wrong while measuring.

use std::time::Duration;

use thiserror::Error;

/// Why there is no measurement.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The watchdog gave up.
    #[error("did not finish within {0:?}")]
    Timeout(Duration),
    /// A side went away in the middle.
    #[error("{0} closed too early")]
    Closed(&'static str),
    /// Both ends did not see the same messages.
    #[error("the consumer's sum is {got}, the producer's {expected}: messages were lost, doubled or reordered")]
    Sum {
        /// What the consumer added up.
        got: u64,
        /// What it should have been.
        expected: u64,
    },
    /// More messages than fit were in a bounded queue.
    #[error("{depth} messages in a queue of {capacity}")]
    Overfull {
        /// Messages seen.
        depth: u64,
        /// Messages allowed.
        capacity: u64,
    },
    /// A thread of the measurement panicked.
    #[error("panicked")]
    Panicked,
    /// The process of a group did not come to its end.
    #[error("{0}")]
    Ended(String),
    /// The operating system did not give what was needed.
    #[error("{0}")]
    System(String),
    /// A result is not what it should be, or something was left behind.
    #[error("{0}")]
    Wrong(String),
    /// A run cannot be kept, or what was kept cannot be used.
    #[error("{0}")]
    History(String),
    /// The device did not do what was asked.
    #[error("device: {0}")]
    Device(String),
}

impl From<millrace::Error> for Error {
    fn from(error: millrace::Error) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<millrace::tensor::Error> for Error {
    fn from(error: millrace::tensor::Error) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<millrace::resident::Error> for Error {
    fn from(error: millrace::resident::Error) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<millrace_wave::Error> for Error {
    fn from(error: millrace_wave::Error) -> Self {
        Self::Device(error.to_string())
    }
}

impl From<Box<millrace::Rejected>> for Error {
    fn from(rejected: Box<millrace::Rejected>) -> Self {
        Self::Device(rejected.to_string())
    }
}

/// A result of measuring.
pub type Result<T, E = Error> = std::result::Result<T, E>;
