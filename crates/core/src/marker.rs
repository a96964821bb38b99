//! Markers: a place on one stream that others wait for.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU8, Ordering},
};

use crate::{Error, Result, command::WaitFor, stream::StreamInner};

const OPEN: u8 = 0;
const REACHED: u8 = 1;
const BROKEN: u8 = 2;

#[derive(Debug)]
struct Inner {
    decided: AtomicU8,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Signals that were not reached yet.
    open: usize,
    waiting: Vec<Arc<StreamInner>>,
}

/// A place on a stream. Other streams, also of other devices, can wait for it.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let (first, second) = (device.stream()?, device.stream()?);
/// let buffer = device.allocate(1)?;
/// first.submit(buffer.fill(.., 7))?;
/// let filled = first.mark()?;
/// second.submit(filled.wait())?;
/// assert_eq!(second.run(buffer.read(..))?[0], 7);
/// assert!(filled.is_reached());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Marker {
    inner: Arc<Inner>,
}

/// The command that reaches a marker. If it is dropped before it ran, those who wait get [`Error::MarkerBroken`].
///
/// ```
/// use millrace::{Error, Marker};
/// let device = millrace::runtime().open("cpu")?;
/// let (marker, signal) = Marker::new();
/// let waiting = device.stream()?.submit(marker.wait())?;
/// drop(signal); // it will never be reached
/// assert_eq!(waiting.wait(), Err(Error::MarkerBroken));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Signal {
    inner: Arc<Inner>,
    done: bool,
}

impl Marker {
    /// A marker, and the command that reaches it: submit that to one stream, and [`Self::wait`] to others.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let (marker, signal) = millrace::Marker::new();
    /// let (first, second) = (device.stream()?, device.stream()?);
    /// let after = second.submit(marker.wait())?;
    /// first.submit(signal)?;
    /// after.wait()?;
    /// assert!(marker.is_reached());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new() -> (Self, Signal) {
        let state = State { open: 1, waiting: Vec::new() };
        let inner = Arc::new(Inner { decided: AtomicU8::new(OPEN), state: Mutex::new(state) });
        (Self { inner: inner.clone() }, Signal { inner, done: false })
    }

    /// The command that waits for it.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let (uploads, work) = (device.stream()?, device.stream()?);
    /// let buffer = device.allocate(3)?;
    /// uploads.submit(buffer.write(0, &b"abc"[..]))?;
    /// work.submit(uploads.mark()?.wait())?;
    /// assert_eq!(&*work.run(buffer.read(..))?, b"abc");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(&self) -> WaitFor {
        WaitFor(self.clone())
    }

    /// Whether its stream got there.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let (marker, signal) = millrace::Marker::new();
    /// assert!(!marker.is_reached());
    /// device.stream()?.run(signal)?;
    /// assert!(marker.is_reached());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_reached(&self) -> bool {
        self.inner.decided.load(Ordering::Acquire) == REACHED
    }

    pub(crate) fn is_decided(&self) -> bool {
        self.inner.decided.load(Ordering::Acquire) != OPEN
    }

    /// How it ended; `None` if that is open, and then the stream is woken when it is not.
    pub(crate) fn check_or_wait(&self, stream: &Arc<StreamInner>) -> Option<Result<()>> {
        let mut state = self.inner.lock();
        match self.inner.decided.load(Ordering::Acquire) {
            OPEN => {
                if !state.waiting.iter().any(|s| Arc::ptr_eq(s, stream)) {
                    state.waiting.push(stream.clone());
                }
                None
            }
            REACHED => Some(Ok(())),
            _ => Some(Err(Error::MarkerBroken)),
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One signal is reached or gone.
    fn settle(&self, outcome: u8) {
        let mut state = self.lock();
        state.open -= 1;
        if self.decided.load(Ordering::Relaxed) != OPEN || (outcome == REACHED && state.open > 0) {
            return;
        }
        self.decided.store(outcome, Ordering::Release);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        for stream in waiting {
            stream.resume();
        }
    }
}

impl Signal {
    /// The stream got there.
    pub(crate) fn reach(&mut self) {
        if !std::mem::replace(&mut self.done, true) {
            self.inner.settle(REACHED);
        }
    }

    pub(crate) fn duplicate(&self) -> Self {
        self.inner.lock().open += 1;
        Self { inner: self.inner.clone(), done: false }
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        if !self.done {
            self.inner.settle(BROKEN);
        }
    }
}
