//! A device context: what its handles share, its threads, and how it ends.

use std::{
    any::Any,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{JoinHandle, ThreadId},
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use millrace_ring::{Slab, TickClock, reply::ReplyPool};

use crate::{
    Error, Result,
    backend::{Engine, Leave},
    device::DeviceOptions,
    events::{Event, Events},
    health::Watch,
    line::Line,
    monitor::{self, Publication},
    pool::PoolCore,
    profile::Recording,
    road::{Core, Drive},
    timer::Timer,
};

/// Tells contexts apart, so that a handle of one is never taken for a handle of another.
static NEXT_CONTEXT: AtomicU64 = AtomicU64::new(1);

/// How long the last handle waits for workers that may be about to leave. What runs longer is left to them.
const LEAVING: Duration = Duration::from_millis(50);

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

/// The threads of a context, which are there until they have dropped what they hold of it.
struct Workers {
    core: Weak<Core>,
    /// Those that have not signed off.
    running: Mutex<Vec<ThreadId>>,
    ended: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the device's own queue has something to do.
fn is_in_flight(core: &Core) -> bool {
    matches!(&core.drive, Drive::Line(line) if line.is_busy())
}

impl Workers {
    fn close(&self, core: &Core, abort: bool, deadline: Instant) -> Result<()> {
        core.streams().closed.get_or_insert(Error::Closed);
        core.aborting.fetch_or(abort, Ordering::SeqCst);
        core.events.emit(|| Event::ShuttingDown { abort });
        let streams = core.live_streams();
        for stream in &streams {
            stream.close();
        }
        let started = Instant::now();
        let mut nap = Duration::from_micros(50);
        while streams.iter().any(|stream| stream.is_busy()) || is_in_flight(core) {
            // Those that wait for a marker have to be brought back. A worker that took one that is being driven would
            // only wait for its kernel.
            for stream in streams.iter().filter(|stream| abort && stream.is_busy() && !stream.is_driven()) {
                core.ready.push(stream.clone());
            }
            if Instant::now() >= deadline {
                return Err(Error::Stalled(started.elapsed()));
            }
            std::thread::sleep(nap);
            nap = (nap * 2).min(Duration::from_millis(5));
        }
        self.stop(core, deadline)
    }

    /// Ends the workers and waits for them, unless this is one of them.
    fn stop(&self, core: &Core, deadline: Instant) -> Result<()> {
        core.ready.stop();
        self.wait(deadline).then_some(()).ok_or(Error::Stalled(core.options.timeout))
    }

    /// Whether the caller is one of them.
    fn are_here(&self) -> bool {
        lock(&self.running).contains(&std::thread::current().id())
    }

    /// Waits until all have ended; false if the deadline passes before.
    fn wait(&self, deadline: Instant) -> bool {
        let me = std::thread::current().id();
        let mut running = lock(&self.running);
        while running.iter().any(|id| *id != me) {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            (running, _) = self.ended.wait_timeout(running, left).unwrap_or_else(PoisonError::into_inner);
        }
        drop(running);
        // Drivers leave things to the end of a thread that must not happen while the process exits.
        for thread in lock(&self.threads).drain(..).filter(|thread| thread.thread().id() != me) {
            let _ = thread.join(); // one that panicked has signed off, too
        }
        true
    }
}

impl Leave for Workers {
    fn leave(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let left = match self.core.upgrade() {
            Some(core) if core.watch.lost().is_some() => return, // its threads may hang
            Some(core) => self.close(&core, true, deadline).is_ok(),
            None => self.wait(deadline), // one of them drops it right now
        };
        if !left {
            tracing::warn!("a device is at work while the process exits");
        }
    }
}

impl Context {
    pub(crate) fn open(engine: Engine, mut options: DeviceOptions, generation: u32) -> Result<Arc<Handle>> {
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
        let ticks = TickClock::pick();
        let core = Arc::new(Core {
            id,
            info,
            options,
            drive,
            pool: PoolCore::new(id, budget, backend.clone()),
            backend,
            kernels: Arc::default(),
            replies: ReplyPool::new(),
            launches: Arc::new(Slab::new()),
            ready: CachePadded::default(),
            events: Events::default(),
            timer: Timer::default(),
            watch: Watch::new(generation),
            streams: Mutex::default(),
            aborting: AtomicBool::new(false),
            recording: Recording::default(),
            opened: Instant::now(),
            ticks,
            opened_at: ticks.now(),
        });
        let crew = Arc::new(Workers {
            core: Arc::downgrade(&core),
            running: Mutex::default(),
            ended: Condvar::new(),
            threads: Mutex::default(),
        });
        let leave: Arc<dyn Leave> = crew.clone();
        core.backend.attend(Arc::downgrade(&leave));
        let asked = std::env::var_os(monitor::ASKED).is_some_and(|value| !value.is_empty() && value != "0");
        let publish = |core| {
            let started = Publication::start(core, &monitor::published_folder());
            started.inspect_err(|error| tracing::warn!(%error, "the device is not published")).ok()
        };
        let publication = asked.then(|| publish(&core)).flatten();
        let context =
            Self { core, next_stream: AtomicU64::new(0), attachments: Mutex::default(), publication, workers: crew };
        for n in 0..workers {
            context.start_worker(n)?; // on an error, dropping the context ends those that run
        }
        tracing::debug!(device = context.core.info.id, workers, budget, generation, "opened");
        Ok(Arc::new(Handle(Arc::new(context))))
    }

    fn start_worker(&self, n: usize) -> Result<()> {
        let (core, workers) = (self.core.clone(), self.workers.clone());
        /// Signs off also when a worker panics, which would be a bug of ours.
        struct SignOff(Arc<Workers>);
        impl Drop for SignOff {
            fn drop(&mut self) {
                lock(&self.0.running).retain(|id| *id != std::thread::current().id());
                self.0.ended.notify_all();
            }
        }
        let name = format!("millrace-{}-{n}", self.core.info.id);
        let mut running = lock(&self.workers.running);
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            let _sign_off = SignOff(workers);
            let core = core; // dropped before signing off: whoever waits for us expects the device to be gone
            core.work();
        });
        let thread = thread.map_err(|error| Error::Thread(error.to_string().into()))?;
        running.push(thread.thread().id());
        lock(&self.workers.threads).push(thread);
        Ok(())
    }

    pub(crate) fn close(&self, abort: bool, deadline: Instant) -> Result<()> {
        self.workers.close(&self.core, abort, deadline)
    }

    /// Ends the workers when nothing is pending and nobody can submit any more.
    fn end(&self) {
        // A worker that drops the last handle does not wait for its colleagues, who may be waiting for a lock of whoever
        // made it drop.
        let on_worker = self.workers.are_here();
        // Nor does anybody for the threads of a device that is lost: they may hang.
        let wait = !on_worker && self.core.watch.lost().is_none();
        let patience = if wait { self.core.options.timeout } else { Duration::ZERO };
        if let Err(error) = self.workers.stop(&self.core, Instant::now() + patience)
            && wait
        {
            tracing::warn!(device = self.core.info.id, %error, "a worker did not end");
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        self.end(); // every stream holds the context, so nothing is pending
        self.publication = None;
        self.core.pool.close();
    }
}

/// What devices and streams in the hands of users hold. Workers hold the context for as long as they drive a stream, and
/// one of them may be the last: so that a device of which nothing is pending is gone when its user has dropped it, the
/// last of these ends the workers.
pub(crate) struct Handle(Arc<Context>);

impl std::ops::Deref for Handle {
    type Target = Arc<Context>;

    fn deref(&self) -> &Arc<Context> {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.workers.are_here() {
            return; // with a command that runs right now
        }
        let streams = self.core.live_streams();
        let start = Instant::now();
        while streams.iter().any(|stream| stream.is_busy()) || is_in_flight(&self.core) {
            // Whoever ran the last command of a stream says so a moment later.
            if streams.iter().any(|stream| !stream.is_empty()) || start.elapsed() > LEAVING {
                return;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        self.end();
    }
}
