//! Events: what happens on a device, for those who want to watch. Watching never slows the device: every subscriber has
//! a bounded queue, and what does not fit is counted instead.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Instant,
};

use millrace_ring::{CapacityError, RecvDeadlineError, mpsc};

use crate::{CommandKind, Error, HealthState};

/// Something that happened.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
/// use millrace::{CommandKind, Event};
/// let mut events = device.subscribe(16)?;
/// stream.run(buffer.fill(.., 1))?;
/// let filled = Event::Completed { stream: stream.id(), command: CommandKind::Fill };
/// assert_eq!(events.try_next(), Some(filled));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A stream was opened.
    StreamOpened {
        /// Its number.
        stream: u64,
    },
    /// A stream's last handle is gone and everything on it has run.
    StreamClosed {
        /// Its number.
        stream: u64,
    },
    /// A command finished.
    Completed {
        /// The stream's number.
        stream: u64,
        /// What it was.
        command: CommandKind,
    },
    /// A command failed, was cancelled, aborted or too late.
    Failed {
        /// The stream's number.
        stream: u64,
        /// What it was.
        command: CommandKind,
        /// Why.
        error: Error,
    },
    /// The device's health changed.
    Health {
        /// How it was.
        from: HealthState,
        /// How it is.
        to: HealthState,
        /// Why it is not healthy.
        reason: Option<Arc<str>>,
    },
    /// The device takes no more commands.
    ShuttingDown {
        /// Whether waiting commands are dropped instead of run.
        abort: bool,
    },
}

/// A subscriber's end: events in order, with a count of those that did not fit.
///
/// Events that happen while the queue is full are lost to this subscriber alone, and [`Self::missed`] says how many.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let mut events = device.subscribe(8)?;
/// device.stream()?.synchronize()?;
/// assert!(matches!(events.try_next(), Some(millrace::Event::StreamOpened { .. })));
/// assert_eq!(events.missed(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Subscription {
    receiver: mpsc::Receiver<Event>,
    missed: Arc<AtomicU64>,
    told: u64,
}

impl Subscription {
    /// The next event, if one is waiting.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let mut events = device.subscribe(16)?;
    /// assert_eq!(events.try_next(), None);
    /// let _stream = device.stream()?;
    /// assert!(events.try_next().is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_next(&mut self) -> Option<Event> {
        self.receiver.try_recv().ok()
    }

    /// The next event; `None` when the device is gone.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let mut events = device.subscribe(16)?;
    /// device.stream()?.synchronize()?;
    /// drop(device);
    /// let mut seen = 0;
    /// while let Some(event) = events.next() {
    ///     println!("{event:?}");
    ///     seen += 1;
    /// }
    /// assert!(seen >= 2, "a stream was opened, and something completed");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[allow(clippy::should_implement_trait, reason = "it blocks, and the subscription stays usable beside it")]
    pub fn next(&mut self) -> Option<Event> {
        self.receiver.recv().ok()
    }

    /// The next event before the deadline.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// use std::time::{Duration, Instant};
    /// let mut events = device.subscribe(16)?;
    /// assert!(events.next_deadline(Instant::now() + Duration::from_millis(1)).is_err(), "nothing happens");
    /// let _stream = device.stream()?;
    /// assert!(events.next_deadline(Instant::now() + Duration::from_secs(10)).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn next_deadline(&mut self, deadline: Instant) -> Result<Event, RecvDeadlineError> {
        self.receiver.recv_deadline(deadline)
    }

    /// The next event; `None` when the device is gone.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let mut events = device.subscribe(16)?;
    /// let _stream = device.stream()?;
    /// let event = pollster::block_on(events.next_async());
    /// assert!(matches!(event, Some(millrace::Event::StreamOpened { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn next_async(&mut self) -> Option<Event> {
        self.receiver.recv_async().await.ok()
    }

    /// How many events did not fit since this was last asked.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let mut events = device.subscribe(1)?;
    /// let _streams = [device.stream()?, device.stream()?, device.stream()?];
    /// assert_eq!((events.missed(), events.missed()), (2, 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn missed(&mut self) -> u64 {
        let missed = self.missed.load(Ordering::Relaxed);
        missed - std::mem::replace(&mut self.told, missed)
    }
}

#[derive(Debug)]
struct Subscriber {
    sender: mpsc::Sender<Event>,
    missed: Arc<AtomicU64>,
}

/// The device's side.
#[derive(Debug, Default)]
pub(crate) struct Events {
    /// How many subscribe, so that nobody watching costs one load.
    count: AtomicUsize,
    subscribers: Mutex<Vec<Subscriber>>,
}

impl Events {
    pub(crate) fn subscribe(&self, capacity: usize) -> Result<Subscription, CapacityError> {
        let (sender, receiver) = mpsc::bounded(capacity)?;
        let missed = Arc::new(AtomicU64::new(0));
        let mut subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.push(Subscriber { sender, missed: missed.clone() });
        self.count.store(subscribers.len(), Ordering::Relaxed);
        Ok(Subscription { receiver, missed, told: 0 })
    }

    #[inline]
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if self.count.load(Ordering::Relaxed) > 0 {
            self.send(&event());
        }
    }

    fn send(&self, event: &Event) {
        let mut subscribers = self.subscribers.lock().unwrap_or_else(PoisonError::into_inner);
        subscribers.retain(|subscriber| match subscriber.sender.try_send(event.clone()) {
            Ok(()) => true,
            Err(millrace_ring::TrySendError::Full(_)) => {
                subscriber.missed.fetch_add(1, Ordering::Relaxed);
                true
            }
            Err(millrace_ring::TrySendError::Closed(_)) => false,
        });
        self.count.store(subscribers.len(), Ordering::Relaxed);
    }
}
