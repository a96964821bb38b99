//! How a stream is to be.

/// How urgent a stream's commands are. Among streams that are ready, a more urgent one is served first; a less urgent
/// one is passed over a bounded number of times.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::{Priority, StreamOptions};
/// assert!(Priority::High < Priority::Normal && Priority::Normal < Priority::Low, "the first comes first");
/// assert_eq!(Priority::default(), Priority::Normal);
/// let background = device.stream_with(&StreamOptions::default().priority(Priority::Low))?;
/// background.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Before all others.
    High,
    /// The usual.
    #[default]
    Normal,
    /// When nothing else is to do, or its turn is due.
    Low,
}

/// How a stream is to be.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// use millrace::{Priority, StreamOptions};
/// let stream = device.stream_with(&StreamOptions::default().capacity(16).priority(Priority::High))?;
/// assert_eq!(stream.capacity(), 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StreamOptions {
    /// Commands that can wait in the queue.
    pub capacity: usize,
    /// How urgent they are.
    pub priority: Priority,
}

impl StreamOptions {
    /// Sets how many commands can wait.
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// Sets how urgent they are.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { capacity: 256, priority: Priority::Normal }
    }
}
