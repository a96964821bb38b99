//! A device context: what its handles share, its threads, and how it ends.

use std::{
    any::Any,
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::ThreadId,
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use millrace_ring::{Slab, reply::ReplyPool};

use crate::{
    Error, Result,
    backend::Engine,
    device::DeviceOptions,
    events::{Event, Events},
    health::Watch,
    kernel::Kernels,
    line::Line,
    monitor::{self, Publication},
    pool::PoolCore,
    road::{Core, Drive},
    timer::Timer,
};

/// Tells contexts apart, so that a handle of one is never taken for a handle of another.
static NEXT_CONTEXT: AtomicU64 = AtomicU64::new(1);

/// A device context: its core and its threads. When the last handle of it is dropped, what was submitted still runs,
/// and then the threads end.
pub(crate) struct Context {
    pub(crate) core: Arc<Core>,
    pub(crate) next_stream: AtomicU64,
    /// What other crates keep for this context.
    pub(crate) attachments: Mutex<Vec<Arc<dyn Any + Send + Sync>>>,
    /// Kept while the environment asks for it.
    publication: Option<Publication>,
    workers: Arc<Workers>,
}

#[derive(Default)]
struct Workers {
    threads: Mutex<Vec<ThreadId>>,
    ended: Condvar,
}

impl Context {
    pub(crate) fn open(engine: Engine, mut options: DeviceOptions, generation: u32) -> Result<Arc<Self>> {
        // What the clock can still add to a moment.
        options.timeout = options.timeout.min(Duration::from_secs(60 * 60 * 24 * 365));
        let backend = engine.backend();
        let info = backend.info();
        let id = NEXT_CONTEXT.fetch_add(1, Ordering::Relaxed);
        let budget = options.budget.unwrap_or(info.memory / 4 * 3);
        let (drive, workers) = match engine {
            Engine::Direct(device) => {
                let workers = options.workers.unwrap_or_else(|| device.workers()).max(1);
                (Drive::Direct(device), workers)
            }
            Engine::Queued(queue) => (Drive::Line(Line::new(queue)), 1),
        };
        let core = Arc::new(Core {
            id,
            info,
            options,
            drive,
            pool: PoolCore::new(id, budget, backend.clone()),
            backend,
            kernels: Kernels::default(),
            replies: ReplyPool::new(),
            launches: Arc::new(Slab::new()),
            ready: CachePadded::default(),
            events: Events::default(),
            timer: Timer::default(),
            watch: Watch::new(generation),
            streams: Mutex::default(),
            aborting: AtomicBool::new(false),
        });
        let asked = std::env::var_os(monitor::ASKED).is_some_and(|value| !value.is_empty() && value != "0");
        let publish = |core| {
            let started = Publication::start(core, &monitor::published_folder());
            started.inspect_err(|error| tracing::warn!(%error, "the device is not published")).ok()
        };
        let publication = asked.then(|| publish(&core)).flatten();
        let context = Arc::new(Self {
            core,
            next_stream: AtomicU64::new(0),
            attachments: Mutex::default(),
            publication,
            workers: Arc::default(),
        });
        for n in 0..workers {
            context.start_worker(n)?; // on an error, dropping the context ends those that run
        }
        tracing::debug!(device = context.core.info.id, workers, budget, generation, "opened");
        Ok(context)
    }

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

    pub(crate) fn close(&self, abort: bool, deadline: Instant) -> Result<()> {
        self.core.streams().closed.get_or_insert(Error::Closed);
        self.core.aborting.fetch_or(abort, Ordering::SeqCst);
        self.core.events.emit(|| Event::ShuttingDown { abort });
        let streams = self.core.live_streams();
        for stream in &streams {
            stream.close();
        }
        let in_flight = || matches!(&self.core.drive, Drive::Line(line) if line.is_busy());
        let started = Instant::now();
        let mut nap = Duration::from_micros(50);
        while streams.iter().any(|stream| stream.is_busy()) || in_flight() {
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
        // Nor does anybody for the threads of a device that is lost: they may hang.
        let wait = !on_worker && self.core.watch.lost().is_none();
        let patience = if wait { self.core.options.timeout } else { Duration::ZERO };
        if let Err(error) = self.stop(Instant::now() + patience)
            && wait
        {
            tracing::warn!(device = self.core.info.id, %error, "a worker did not end");
        }
        self.publication = None;
        self.core.pool.close();
    }
}
