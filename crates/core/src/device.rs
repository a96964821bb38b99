//! Devices: what a backend has to offer, and the handle that programs hold.

use std::{
    fmt,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::ThreadId,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace_ring::{Slab, reply::ReplyPool};

use crate::{
    Error, Result,
    command::{Command, Output},
    events::{Event, Events, Subscription},
    kernel::{Kernel, KernelSpec},
    memory::{Buffer, BufferId},
    pool::{BlockSource, PoolCore, PoolStats},
    road::Core,
    stream::{Stream, StreamInner, StreamOptions},
    timer::Timer,
};

/// The kinds of devices there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The processor this program runs on.
    Cpu,
    /// A graphics processor, through wgpu.
    Gpu,
    /// An NVIDIA graphics processor, through CUDA.
    Cuda,
}

impl DeviceKind {
    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Cuda => "cuda",
        }
    }
}

/// How far launches can go.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Groups in each direction.
    pub groups: [u32; 3],
    /// Threads of a group.
    pub threads: u32,
}

impl Limits {
    /// Limits of so many groups in each direction and so many threads of a group.
    pub fn new(groups: [u32; 3], threads: u32) -> Self {
        Self { groups, threads }
    }
}

/// What a device is.
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// How users name it: `cpu`, `gpu:0`, `cuda:0`.
    pub id: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// What the vendor calls it.
    pub name: String,
    /// How far launches can go.
    pub limits: Limits,
    /// Bytes of memory it has.
    pub memory: u64,
    /// What else is worth knowing, as name and value.
    pub details: Vec<(String, String)>,
}

/// What a device crate implements. It executes commands that were checked, in the order it is handed them; queues,
/// tickets, pools and priorities are not its business.
///
/// ```
/// use std::sync::Arc;
/// use millrace::{Backend, Block, BlockSource, Command, DeviceInfo, DeviceKind, DeviceOptions, Error, KernelSpec, Limits};
/// use millrace::{Device, Output, Result, Synchronize};
///
/// /// A device that does nothing, as fast as it can: what is left is the road.
/// struct Null;
///
/// impl BlockSource for Null {
///     fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>> {
///         Err(Error::SystemMemory(bytes as u64))
///     }
///     fn adopt(&self, bytes: bytes::Bytes) -> Result<Box<dyn Block>> {
///         Err(Error::SystemMemory(bytes.len() as u64))
///     }
/// }
///
/// impl Backend for Null {
///     fn info(&self) -> DeviceInfo {
///         DeviceInfo {
///             id: "null".into(),
///             kind: DeviceKind::Cpu,
///             name: "nothing".into(),
///             limits: Limits::new([1; 3], 1),
///             memory: 0,
///             details: Vec::new(),
///         }
///     }
///     fn workers(&self) -> usize {
///         1
///     }
///     fn accept(&self, _: &KernelSpec) -> Result<()> {
///         Ok(())
///     }
///     fn execute(&self, _: &Command) -> Result<Output> {
///         Ok(Output::Done)
///     }
/// }
///
/// let device = Device::open(Arc::new(Null), DeviceOptions::default())?;
/// let kernel = device.kernel(&KernelSpec::new("nothing"))?;
/// device.stream()?.submit(kernel.launch())?.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Backend: BlockSource {
    /// What the device is.
    fn info(&self) -> DeviceInfo;
    /// How many commands of different streams may run at once.
    fn workers(&self) -> usize;
    /// Says whether a kernel can run here.
    fn accept(&self, spec: &KernelSpec) -> Result<()>;
    /// Runs one command to its end: a transfer or a launch.
    fn execute(&self, command: &Command) -> Result<Output>;
}

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
    /// How long a wait without a deadline of its own lasts while nothing moves.
    pub timeout: Duration,
    /// Commands of different streams that may run at once; the backend's choice if not said.
    pub workers: Option<usize>,
}

impl DeviceOptions {
    /// Sets the bytes that the memory pool may hold.
    pub fn budget(mut self, bytes: u64) -> Self {
        self.budget = Some(bytes);
        self
    }

    /// Sets how long a wait without a deadline of its own lasts while nothing moves.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sets how many commands of different streams may run at once.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = Some(workers);
        self
    }
}

impl Default for DeviceOptions {
    fn default() -> Self {
        Self { budget: None, timeout: Duration::from_secs(30), workers: None }
    }
}

/// Tells contexts apart, so that a handle of one is never taken for a handle of another.
static NEXT_CONTEXT: AtomicU64 = AtomicU64::new(1);

/// A device context: its core and its threads. When the last handle of it is dropped, what was submitted still runs,
/// and then the threads end.
pub(crate) struct Context {
    pub(crate) core: Arc<Core>,
    next_stream: AtomicU64,
    closed: AtomicBool,
    workers: Arc<Workers>,
}

#[derive(Default)]
struct Workers {
    threads: Mutex<Vec<ThreadId>>,
    ended: Condvar,
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
    context: Arc<Context>,
}

impl Device {
    /// Opens a context on a backend. Programs use [`crate::Runtime::open`].
    pub fn open(backend: Arc<dyn Backend>, mut options: DeviceOptions) -> Result<Self> {
        // What the clock can still add to a moment.
        options.timeout = options.timeout.min(Duration::from_secs(60 * 60 * 24 * 365));
        let info = backend.info();
        let id = NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed);
        let budget = options.budget.unwrap_or(info.memory / 4 * 3);
        let workers = options.workers.unwrap_or_else(|| backend.workers()).max(1);
        let source: Arc<dyn BlockSource> = backend.clone();
        let core = Arc::new(Core {
            id,
            info,
            options,
            backend,
            pool: PoolCore::new(id, budget, source),
            replies: ReplyPool::new(),
            launches: Arc::new(Slab::new()),
            ready: Default::default(),
            events: Events::default(),
            timer: Timer::default(),
            streams: Mutex::default(),
            aborting: AtomicBool::new(false),
        });
        let context = Arc::new(Context {
            core,
            next_stream: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            workers: Arc::default(),
        });
        for n in 0..workers {
            context.start_worker(n)?; // on an error, dropping the context ends those that run
        }
        tracing::debug!(device = context.core.info.id, workers, budget, "opened");
        Ok(Self { context })
    }

    /// What the device is.
    pub fn info(&self) -> &DeviceInfo {
        &self.context.core.info
    }

    /// A stream with the usual options.
    pub fn stream(&self) -> Result<Stream> {
        self.stream_with(&StreamOptions::default())
    }

    /// A stream.
    pub fn stream_with(&self, options: &StreamOptions) -> Result<Stream> {
        let core = &self.context.core;
        let id = self.context.next_stream.fetch_add(1, Ordering::Relaxed);
        let inner = Arc::new(StreamInner::new(id, self.context.clone(), options)?);
        let mut streams = core.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if self.context.closed.load(Ordering::SeqCst) {
            drop(streams); // the stream's drop takes the lock
            return Err(Error::Closed);
        }
        streams.insert(id, Arc::downgrade(&inner));
        drop(streams);
        core.events.emit(|| Event::StreamOpened { stream: id });
        Ok(Stream { inner })
    }

    /// A buffer of `bytes` bytes that read as zero.
    #[inline]
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        PoolCore::allocate(&self.context.core.pool, bytes)
    }

    /// A read-only buffer that shares its memory with the bytes, where the device can.
    pub fn adopt(&self, bytes: impl Into<Bytes>) -> Result<Buffer> {
        PoolCore::adopt(&self.context.core.pool, bytes.into())
    }

    /// The buffer that a handle names.
    pub fn buffer(&self, id: BufferId) -> Result<Buffer> {
        self.context.core.pool.find(id)
    }

    /// A kernel, ready to be launched on this device.
    pub fn kernel(&self, spec: &KernelSpec) -> Result<Kernel> {
        spec.check()?;
        let core = &self.context.core;
        core.backend.accept(spec)?;
        Ok(Kernel::new(core.id, spec.clone(), core.launches.clone()))
    }

    /// The memory pool's accounts.
    pub fn memory(&self) -> PoolStats {
        self.context.core.pool.stats()
    }

    /// Frees memory that no buffer uses until at most `keep` bytes of it are left; says how many bytes were freed.
    pub fn trim(&self, keep: u64) -> u64 {
        self.context.core.pool.trim(keep)
    }

    /// Subscribes to the device's events; `capacity` of them can wait.
    pub fn subscribe(&self, capacity: usize) -> Result<Subscription> {
        let subscription = self.context.core.events.subscribe(capacity);
        subscription.map_err(|error| Error::Invalid(error.to_string().into()))
    }

    /// Takes no more commands, runs those that were submitted, and ends the threads. Every ticket is answered. If that
    /// takes longer than until the deadline, the rest goes on without the caller.
    pub fn shutdown(&self, deadline: Instant) -> Result<()> {
        self.context.close(false, deadline)
    }

    /// Takes no more commands, answers those that have not started with [`Error::Aborted`], waits for those that have,
    /// and ends the threads. If that takes longer than until the deadline, the rest goes on without the caller.
    pub fn abort(&self, deadline: Instant) -> Result<()> {
        self.context.close(true, deadline)
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Device").field(&self.info().id).finish()
    }
}

impl Context {
    fn start_worker(&self, n: usize) -> Result<()> {
        let (core, workers) = (self.core.clone(), self.workers.clone());
        /// Signs off also when a worker panics, which would be a bug of ours.
        struct SignOff(Arc<Workers>);
        impl Drop for SignOff {
            fn drop(&mut self) {
                let mut threads = self.0.threads.lock().unwrap_or_else(PoisonError::into_inner);
                threads.retain(|id| *id != std::thread::current().id());
                self.0.ended.notify_all();
            }
        }
        let name = format!("millrace-{}-{n}", self.core.info.id);
        let mut threads = self.workers.threads.lock().unwrap_or_else(PoisonError::into_inner);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let _sign_off = SignOff(workers);
            core.work();
        });
        threads.push(thread.map_err(|error| Error::Thread(error.to_string().into()))?.thread().id());
        Ok(())
    }

    fn live_streams(&self) -> Vec<Arc<StreamInner>> {
        let streams = self.core.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.values().filter_map(std::sync::Weak::upgrade).collect()
    }

    fn close(&self, abort: bool, deadline: Instant) -> Result<()> {
        {
            // Under the lock, so that no stream is opened unseen.
            let _streams = self.core.streams.lock().unwrap_or_else(PoisonError::into_inner);
            self.closed.store(true, Ordering::SeqCst);
        }
        self.core.aborting.fetch_or(abort, Ordering::SeqCst);
        self.core.events.emit(|| Event::ShuttingDown { abort });
        let streams = self.live_streams();
        for stream in &streams {
            stream.close();
        }
        let started = Instant::now();
        let mut nap = Duration::from_micros(50);
        while streams.iter().any(|stream| stream.is_busy()) {
            // Those that wait for a marker have to be brought back. A worker that took one that is being driven would
            // only wait for its kernel.
            for stream in streams.iter().filter(|stream| abort && stream.is_busy() && !stream.is_driven()) {
                self.core.ready.push(stream.clone());
            }
            if Instant::now() >= deadline {
                return Err(Error::Stalled(started.elapsed()));
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(5));
        }
        self.stop(deadline)
    }

    /// Ends the workers and waits for them, unless this is one of them.
    fn stop(&self, deadline: Instant) -> Result<()> {
        self.core.ready.stop();
        let me = std::thread::current().id();
        let mut threads = self.workers.threads.lock().unwrap_or_else(PoisonError::into_inner);
        while threads.iter().any(|id| *id != me) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Stalled(self.core.options.timeout));
            }
            (threads, _) = self.workers.ended.wait_timeout(threads, left).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // Every stream holds the context, so nothing is pending. A worker that drops the last handle does not wait for
        // its colleagues, who may be waiting for a lock of whoever made it drop.
        let on_worker = {
            let threads = self.workers.threads.lock().unwrap_or_else(PoisonError::into_inner);
            threads.contains(&std::thread::current().id())
        };
        let patience = if on_worker { Duration::ZERO } else { self.core.options.timeout };
        if let Err(error) = self.stop(Instant::now() + patience)
            && !on_worker
        {
            tracing::warn!(device = self.core.info.id, %error, "a worker did not end");
        }
        self.core.pool.close();
    }
}
