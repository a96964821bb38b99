//! Devices: how they are opened, and the handle that programs hold.

use std::{
    any::Any,
    fmt,
    sync::{Arc, PoisonError, atomic::Ordering},
    task::Waker,
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::{
    Error, Result,
    backend::{Backend, DeviceInfo, Engine},
    context::{Context, Handle},
    counts::Counts,
    events::{Event, Subscription},
    health::{Health, Thresholds},
    kernel::{Kernel, KernelSpec},
    memory::{Buffer, BufferId},
    monitor::Publication,
    pool::{PoolCore, PoolStats},
    runtime::{Provider, Runtime},
    stream::{Stream, StreamInner, StreamOptions},
    timer::Alarm,
};

/// How a device is opened.
///
/// ```
/// use millrace::{DeviceOptions, Error};
/// let options = DeviceOptions::default().budget(1 << 20).workers(1);
/// let device = millrace::runtime().open_with("cpu", options)?;
/// assert!(matches!(device.allocate(2 << 20), Err(Error::OutOfMemory { budget: 1048576, .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// Bytes the memory pool may hold; three quarters of the device's memory if not said.
    pub budget: Option<u64>,
    /// How long a wait without a deadline of its own lasts while nothing moves. A device with a queue of its own has this long
    /// from when it was handed the work.
    pub timeout: Duration,
    /// Commands of different streams that may run at once; the backend's choice if not said.
    pub workers: Option<usize>,
    /// Waits in a row without any progress after which the device counts as lost.
    pub strikes: u32,
    /// What may be on its way to and from a device with a queue of its own.
    pub in_flight: InFlightLimits,
    /// When pressure counts as degraded.
    pub thresholds: Thresholds,
}

/// How much may be in flight before submitters have to wait.
///
/// ```
/// # use millrace::{Runtime, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
/// # let faults = Faults::default();
/// # let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
/// use millrace::{DeviceOptions, InFlightLimits};
/// let options = DeviceOptions::default().in_flight(InFlightLimits::new(1, 1 << 20));
/// let device = runtime.open_with("cpu", options)?;
/// let (stream, buffer) = (device.stream()?, device.allocate(4)?);
/// faults.stall(); // the device hangs, and all but one batch wait here
/// (0..100).try_for_each(|_| stream.submit(buffer.fill(.., 1)).map(drop))?;
/// assert!(device.health().submissions_in_flight <= 1);
/// faults.resume();
/// stream.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct InFlightLimits {
    /// Batches.
    pub submissions: usize,
    /// Bytes of uploads and readbacks. One command alone may be larger. What waits in the queues of streams is not among them:
    /// it is still the caller's own memory, and queues are bounded by commands.
    pub bytes: u64,
}

impl InFlightLimits {
    /// So many batches and bytes.
    pub fn new(submissions: usize, bytes: u64) -> Self {
        Self { submissions, bytes }
    }
}

impl Default for InFlightLimits {
    fn default() -> Self {
        Self { submissions: 4, bytes: 64 << 20 }
    }
}

impl DeviceOptions {
    /// Sets the bytes that the memory pool may hold.
    ///
    /// ```
    /// let options = millrace::DeviceOptions::default().budget(1 << 20);
    /// let device = millrace::runtime().open_with("cpu", options)?;
    /// let _half = device.allocate(1 << 19)?;
    /// let error = device.allocate(1 << 20).unwrap_err();
    /// assert_eq!(error, millrace::Error::OutOfMemory { requested: 1 << 20, in_use: 1 << 19, budget: 1 << 20 });
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn budget(mut self, bytes: u64) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// Sets how long a wait without a deadline of its own lasts while nothing moves.
    ///
    /// ```
    /// use std::time::Duration;
    /// let options = millrace::DeviceOptions::default().timeout(Duration::from_millis(5));
    /// let device = millrace::runtime().open_with("cpu", options)?;
    /// let (marker, _signal) = millrace::Marker::new(); // nobody will reach it
    /// let waited = device.stream()?.run(marker.wait());
    /// assert_eq!(waited, Err(millrace::Error::Stalled(Duration::from_millis(5))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how many commands of different streams may run at once.
    ///
    /// ```
    /// let options = millrace::DeviceOptions::default().workers(3);
    /// assert_eq!(millrace::runtime().open_with("cpu", options)?.health().workers, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }

    /// Sets after how many waits in a row without progress the device counts as lost.
    ///
    /// ```
    /// # use millrace::{Runtime, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
    /// # let faults = Faults::default();
    /// # let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
    /// use std::time::Duration;
    /// use millrace::{DeviceOptions, Error, HealthState};
    /// let options = DeviceOptions::default().timeout(Duration::from_millis(5)).strikes(1);
    /// let device = runtime.open_with("cpu", options)?;
    /// let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// faults.stall();
    /// assert!(matches!(stream.run(buffer.fill(.., 1)), Err(Error::DeviceLost(_))));
    /// assert_eq!(device.health().state, HealthState::Lost);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn strikes(mut self, strikes: u32) -> Self {
        self.strikes = strikes.max(1);
        self
    }

    /// Sets what may be in flight.
    pub fn in_flight(mut self, limits: InFlightLimits) -> Self {
        self.in_flight = limits;
        self
    }

    /// Sets when pressure counts as degraded.
    ///
    /// ```
    /// use millrace::{DeviceOptions, HealthState, Thresholds};
    /// let options = DeviceOptions::default().budget(1 << 20).thresholds(Thresholds::new(0.5, 95.0));
    /// let device = millrace::runtime().open_with("cpu", options)?;
    /// let half = device.allocate(1 << 19)?;
    /// assert_eq!(device.health().state, HealthState::Degraded);
    /// drop(half);
    /// assert_ne!(device.health().reason.as_deref(), Some("50% of the memory budget is in use"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn thresholds(mut self, thresholds: Thresholds) -> Self {
        self.thresholds = thresholds;
        self
    }
}

/// For debugging, `MILLRACE_SYNC_TIMEOUT` (in seconds) replaces the usual timeout.
impl Default for DeviceOptions {
    fn default() -> Self {
        Self {
            budget: None,
            timeout: timeout_from_environment().unwrap_or(Duration::from_secs(30)),
            workers: None,
            strikes: 3,
            in_flight: InFlightLimits::default(),
            thresholds: Thresholds::default(),
        }
    }
}

fn timeout_from_environment() -> Option<Duration> {
    let text = std::env::var("MILLRACE_SYNC_TIMEOUT").ok()?;
    let timeout = text.trim().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    if timeout.is_none_or(|timeout| timeout.is_zero()) {
        tracing::warn!(value = text, "MILLRACE_SYNC_TIMEOUT is not a number of seconds; it is ignored");
        return None;
    }
    timeout
}

/// An open device. Clones are handles of the same context; every [`crate::Runtime::open`] makes a context of its own,
/// with its own memory, threads and fate.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// println!("{}", device.info().name);
/// let stream = device.stream()?;
/// let ticket = stream.submit(millrace::Synchronize)?;
/// device.shutdown(std::time::Instant::now() + std::time::Duration::from_secs(1))?;
/// ticket.wait()?; // what was submitted has run
/// assert!(stream.submit(millrace::Synchronize).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Device {
    context: Arc<Handle>,
    /// Where a fresh one comes from.
    origin: Option<Origin>,
}

#[derive(Clone)]
struct Origin {
    runtime: Runtime,
    provider: Arc<dyn Provider>,
    id: Arc<str>,
}

impl Device {
    /// Opens a context on a backend. Programs use [`crate::Runtime::open`].
    ///
    /// ```
    /// use millrace::{Device, DeviceOptions, Provider, cpu::CpuThreads};
    /// let device = Device::open(CpuThreads(1).open("cpu")?, DeviceOptions::default())?;
    /// assert_eq!(device.health().workers, 1);
    /// assert!(device.recover().is_err(), "no runtime knows how to open it anew");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn open(engine: Engine, options: DeviceOptions) -> Result<Self> {
        Ok(Self { context: Context::open(engine, options, 1)?, origin: None })
    }

    /// Opens one of a provider's devices, which can be opened anew when it is lost.
    pub(crate) fn open_from(
        runtime: &Runtime,
        provider: &Arc<dyn Provider>,
        id: &str,
        options: DeviceOptions,
    ) -> Result<Self> {
        let context = Context::open(provider.open(id)?, options, 1)?;
        let origin = Origin { runtime: runtime.clone(), provider: provider.clone(), id: id.into() };
        Ok(Self { context, origin: Some(origin) })
    }

    /// Opens a fresh context in the place of this one: a new generation with its own memory, threads and fate, and the
    /// same options. Whatever was pending on this one is answered with [`Error::DeviceLost`], and so is everything that
    /// is asked of its handles from now on.
    ///
    /// ```
    /// use millrace::{Error, HealthState};
    /// let device = millrace::runtime().open("cpu")?;
    /// let stream = device.stream()?;
    /// let fresh = device.recover()?;
    /// assert!(matches!(stream.synchronize(), Err(Error::DeviceLost(_))));
    /// assert_eq!(device.health().state, HealthState::Lost);
    /// assert_eq!((fresh.health().state, fresh.health().generation), (HealthState::Healthy, 2));
    /// fresh.stream()?.synchronize()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recover(&self) -> Result<Self> {
        let core = &self.context.core;
        let origin = self.origin()?;
        core.recovering();
        let fresh = origin
            .provider
            .open(&origin.id)
            .and_then(|engine| Context::open(engine, core.options.clone(), core.watch.generation + 1));
        core.recovered();
        Ok(Self { context: fresh?, origin: Some(origin.clone()) })
    }

    /// Opens another context on the same device, with options of its own: what happens to one does not touch the other.
    ///
    /// ```
    /// use millrace::DeviceOptions;
    /// let device = millrace::runtime().open("cpu")?;
    /// let twin = device.twin(DeviceOptions::default().budget(1 << 20))?;
    /// assert_eq!(twin.info().name, device.info().name);
    /// drop(twin.recover()?);
    /// device.stream()?.synchronize()?; // goes on
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn twin(&self, options: DeviceOptions) -> Result<Self> {
        let origin = self.origin()?;
        Device::open_from(&origin.runtime, &origin.provider, &origin.id, options)
    }

    /// Opens a device of the same runtime, by its id or kind.
    ///
    /// ```
    /// let device = millrace::runtime().open("cpu")?;
    /// assert_eq!(device.neighbour("cpu")?.info().id, "cpu");
    /// assert!(device.neighbour("abacus").is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn neighbour(&self, device: &str) -> Result<Self> {
        self.origin()?.runtime.open(device)
    }

    fn origin(&self) -> Result<&Origin> {
        let unknown = "the device was not opened by a runtime, so nothing can be opened anew";
        self.origin.as_ref().ok_or_else(|| Error::Invalid(unknown.into()))
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.context
    }

    /// The backend, for those who know which it is: it can be downcast.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// assert_eq!(device.backend().info().name, device.info().name);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn backend(&self) -> &dyn Backend {
        &*self.context.core.backend
    }

    /// Writes down how the device is, about twice a second and for as long as the result is kept, in a file of a folder
    /// that `millrace top` looks into ([`published_folder`](crate::published_folder)). With the environment variable
    /// `MILLRACE_MONITOR=1` every device that a runtime opens does so.
    ///
    /// ```
    /// let device = millrace::runtime().open("cpu")?;
    /// let folder = std::env::temp_dir().join("millrace-example");
    /// let publication = device.publish(&folder)?;
    /// assert!(std::fs::read_to_string(publication.path())?.contains("\"state\":\"healthy\""));
    /// drop(publication);
    /// # std::fs::remove_dir(folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn publish(&self, folder: &std::path::Path) -> std::io::Result<Publication> {
        Publication::start(&self.context.core, folder)
    }

    /// How the device is, with everything that is measured.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// stream.run(buffer.fill(.., 1))?;
    /// let health = device.health();
    /// assert_eq!((health.state.name(), health.counts.fills, health.memory.buffers), ("healthy", 1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn health(&self) -> Health {
        self.context.core.health()
    }

    /// What the device did so far.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// let before = device.counts();
    /// (0..3).try_for_each(|_| stream.run(buffer.fill(.., 1)))?;
    /// assert_eq!((device.counts() - before).fills, 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn counts(&self) -> Counts {
        self.context.core.counts()
    }

    /// What the device is.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// assert_eq!(device.info().id, "cpu");
    /// assert!(device.info().memory > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn info(&self) -> &DeviceInfo {
        &self.context.core.info
    }

    /// A stream with the usual options.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let (one, other) = (device.stream()?, device.stream()?);
    /// assert_ne!(one.id(), other.id());
    /// one.synchronize()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stream(&self) -> Result<Stream> {
        self.stream_with(&StreamOptions::default())
    }

    /// A stream.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let urgent = millrace::StreamOptions::default().priority(millrace::Priority::High);
    /// device.stream_with(&urgent)?.synchronize()?;
    /// assert!(device.stream_with(&urgent.capacity(0)).is_err(), "it could take nothing");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stream_with(&self, options: &StreamOptions) -> Result<Stream> {
        let core = &self.context.core;
        let id = self.context.next_stream.fetch_add(1, Ordering::Relaxed);
        let inner = Arc::new(StreamInner::new(id, Arc::clone(&**self.context), options)?);
        let mut streams = core.streams();
        if let Some(error) = streams.closed.clone() {
            drop(streams); // the stream's drop takes the lock
            return Err(error);
        }
        streams.live.insert(id, Arc::downgrade(&inner));
        drop(streams);
        core.events.emit(|| Event::StreamOpened { stream: id });
        Ok(Stream { inner, _handle: self.context.clone() })
    }

    /// A buffer of `bytes` bytes that read as zero.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let buffer = device.allocate(3)?;
    /// assert_eq!(&*device.stream()?.run(buffer.read(..))?, [0; 3]);
    /// assert_eq!(device.allocate(0).unwrap_err(), millrace::Error::ZeroSize);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        PoolCore::allocate(&self.context.core.pool, bytes)
    }

    /// A read-only buffer that shares its memory with the bytes, where the device can.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let bytes = bytes::Bytes::from(vec![7; 1000]);
    /// let (stream, buffer) = (device.stream()?, device.adopt(bytes.clone())?);
    /// let view = stream.run(buffer.read(..))?;
    /// assert_eq!(view.as_ptr(), bytes.as_ptr(), "nothing was copied, on the CPU");
    /// assert_eq!(stream.run(buffer.fill(.., 0)), Err(millrace::Error::ReadOnly));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn adopt(&self, bytes: impl Into<Bytes>) -> Result<Buffer> {
        PoolCore::adopt(&self.context.core.pool, bytes.into())
    }

    /// The buffer that a handle names.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let buffer = device.allocate(8)?;
    /// assert!(device.buffer(buffer.id())?.same_as(&buffer));
    /// let other = millrace::runtime().open("cpu")?;
    /// assert!(matches!(other.buffer(buffer.id()), Err(millrace::Error::WrongDevice { .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn buffer(&self, id: BufferId) -> Result<Buffer> {
        self.context.core.pool.find(id)
    }

    /// A kernel, ready to be launched on this device. One of the same content is compiled once.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let spec = millrace::KernelSpec::new("nothing").cpu(millrace::CpuKernel::whole(|_| {}));
    /// let (first, second) = (device.kernel(&spec)?, device.kernel(&spec)?);
    /// assert_eq!((device.counts().compiled, device.counts().reused), (1, 1));
    /// device.stream()?.run(second.launch())?;
    /// assert!(first.longest().is_some(), "both are the same");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn kernel(&self, spec: &KernelSpec) -> Result<Kernel> {
        spec.check()?;
        let core = &self.context.core;
        if let Some(error) = core.watch.lost() {
            return Err(error);
        }
        core.kernel(spec)
    }

    /// How long a wait without a deadline of its own lasts while nothing moves.
    ///
    /// ```
    /// use std::time::Duration;
    /// let options = millrace::DeviceOptions::default().timeout(Duration::from_secs(2));
    /// assert_eq!(millrace::runtime().open_with("cpu", options)?.timeout(), Duration::from_secs(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn timeout(&self) -> Duration {
        self.context.core.options.timeout
    }

    /// Calls a waker at a moment, for futures of other crates: one has no clock of its own. A thread of the device does, which
    /// is started when it is first needed; nothing if it cannot be.
    ///
    /// ```
    /// use std::{sync::Arc, task::Wake, thread, time::{Duration, Instant}};
    /// struct Caller(thread::Thread);
    /// impl Wake for Caller {
    ///     fn wake(self: Arc<Self>) {
    ///         self.0.unpark();
    ///     }
    /// }
    /// let device = millrace::runtime().open("cpu")?;
    /// let due = Instant::now() + Duration::from_millis(5);
    /// let alarm = device.wake_at(due, Arc::new(Caller(thread::current())).into());
    /// while alarm.is_some() && Instant::now() < due {
    ///     thread::park();
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wake_at(&self, deadline: Instant, waker: Waker) -> Option<Alarm> {
        self.context.core.timer.wake_at(deadline, waker)
    }

    /// What another crate keeps for this context: one value of each type, made when it is first asked for and dropped
    /// with the context.
    ///
    /// ```
    /// let device = millrace::runtime().open("cpu")?;
    /// let notes = device.attachment::<std::sync::Mutex<Vec<u32>>>();
    /// notes.lock().unwrap().push(7);
    /// assert_eq!(*device.clone().attachment::<std::sync::Mutex<Vec<u32>>>().lock().unwrap(), [7]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn attachment<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut attachments = self.context.attachments.lock().unwrap_or_else(PoisonError::into_inner);
        let found = attachments.iter().find_map(|kept| kept.clone().downcast().ok());
        found.unwrap_or_else(|| {
            let new = Arc::new(T::default());
            attachments.push(new.clone());
            new
        })
    }

    /// The memory pool's accounts.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let buffer = device.allocate(300)?;
    /// let memory = device.memory();
    /// assert_eq!((memory.buffers, memory.in_use), (1, 320), "blocks come in sizes");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn memory(&self) -> PoolStats {
        self.context.core.pool.stats()
    }

    /// Frees memory that no buffer uses until at most `keep` bytes of it are left, and what the device keeps for transfers to
    /// come; says how many bytes were freed.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// drop((device.allocate(1000)?, device.allocate(2000)?));
    /// assert!(device.memory().reserved >= 3000, "kept for the next");
    /// device.trim(0);
    /// assert_eq!(device.memory().reserved, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trim(&self, keep: u64) -> u64 {
        let core = &self.context.core;
        core.pool.trim(keep) + core.backend.trim()
    }

    /// Subscribes to the device's events; `capacity` of them can wait.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let mut events = device.subscribe(16)?;
    /// let stream = device.stream()?;
    /// assert_eq!(events.try_next(), Some(millrace::Event::StreamOpened { stream: stream.id() }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn subscribe(&self, capacity: usize) -> Result<Subscription> {
        let subscription = self.context.core.events.subscribe(capacity);
        subscription.map_err(|error| Error::Invalid(error.to_string().into()))
    }

    /// Takes no more commands, runs those that were submitted, and ends the threads. Every ticket is answered. If that
    /// takes longer than until the deadline, the rest goes on without the caller. Resident kernels are not of the device but of
    /// those who hold their handles: they go on, and end when they are told to, or dropped.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// use std::time::{Duration, Instant};
    /// let ticket = stream.submit(buffer.fill(.., 1))?;
    /// device.shutdown(Instant::now() + Duration::from_secs(10))?;
    /// assert_eq!(ticket.wait(), Ok(()), "it was submitted before");
    /// assert_eq!(stream.submit(buffer.fill(.., 2)).unwrap_err().error, millrace::Error::Closed);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown(&self, deadline: Instant) -> Result<()> {
        self.context.close(false, deadline)
    }

    /// Takes no more commands, answers those that have not started with [`Error::Aborted`], waits for those that have,
    /// and ends the threads. If that takes longer than until the deadline, the rest goes on without the caller. Resident
    /// kernels go on, as after [`Self::shutdown`].
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// use std::time::{Duration, Instant};
    /// let (marker, _signal) = millrace::Marker::new();
    /// let stream = device.stream()?;
    /// let waiting = stream.submit(marker.wait())?;
    /// let behind = stream.submit(millrace::Synchronize)?;
    /// device.abort(Instant::now() + Duration::from_secs(10))?;
    /// assert_eq!(behind.wait(), Err(millrace::Error::Aborted));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn abort(&self, deadline: Instant) -> Result<()> {
        self.context.close(true, deadline)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.info().id).finish()
    }
}
