//! The threads that CPU kernels run on.
//!
//! The first few kernels, as many as there are cores, and urgent ones have a thread of their own: it polls while that is
//! worthwhile and then sleeps. All others share a small set of threads: a kernel that was sent something is put into a
//! queue, and a worker runs it for a turn.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    task::{Wake, Waker},
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use millrace_core::Priority;
use millrace_ring::{poll_while_worthwhile, sleep_until};

use crate::{
    Clock, Error, LaunchOptions, Result, STARVATION_BOUND, WaitPolicy,
    drive::{self, Wheel},
    kernel::{Kernel, Step},
    port::{Port, lock},
};

/// Messages of one kernel in a row.
const TURN: usize = 64;
/// Looks at something to do before a worker does what somebody who asks may be doing.
const PATIENCE: u32 = 64;
/// How long a worker sleeps at a time while those who ask run its kernel.
const NAP: Duration = Duration::from_micros(500);
/// The most threads that are shared.
const SHARED: usize = 4;

/// What a device's CPU kernels have in common. Kept by the device's context.
#[derive(Default)]
pub(crate) struct Residency {
    /// On a line of its own: every message of every kernel reads it.
    pub(crate) clock: Arc<CachePadded<Clock>>,
    /// Kernels with a thread of their own.
    own: Arc<AtomicUsize>,
    shared: Mutex<Option<Arc<Shared>>>,
}

impl Drop for Residency {
    fn drop(&mut self) {
        if let Some(shared) = lock(&self.shared).take() {
            shared.stop();
        }
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = std::thread::Builder::new().name(name.into()).spawn(run);
    let refused = |error: std::io::Error| Error::Device(millrace_core::Error::Thread(error.to_string().into()));
    thread.map(drop).map_err(refused)
}

impl Residency {
    /// Lets a kernel live.
    pub(crate) fn start(&self, kernel: Kernel, options: &LaunchOptions) -> Result<()> {
        let always = options.priority == Priority::High || options.wait == WaitPolicy::Spin;
        let never = options.priority == Priority::Low;
        let taken = |count: usize| (always || (!never && (count == 0 || count < cores()))).then_some(count + 1);
        if self.own.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok() {
            struct SignOff(Arc<AtomicUsize>);
            impl Drop for SignOff {
                fn drop(&mut self) {
                    self.0.fetch_sub(1, Ordering::Relaxed);
                }
            }
            let (sign_off, wait, port) = (SignOff(self.own.clone()), options.wait, kernel.port().clone());
            let wheel = Arc::new(Wheel::new(Some(kernel)));
            // A worker that never sleeps always has the right.
            if wait != WaitPolicy::Spin {
                let _ = port.wheel.set(wheel.clone());
            }
            let (worker, its_port) = (wheel.clone(), port.clone());
            let spawned = spawn("millrace-kernel", move || {
                let _sign_off = sign_off;
                if wait == WaitPolicy::Spin {
                    return spin(&worker);
                }
                let mut worker = Worker { wheel: &worker, port: &its_port, blocked: false, stirred: 0, posts: 0 };
                worker.live(wait);
            });
            if spawned.is_err() {
                *wheel.lock() = None;
            }
            return spawned;
        }
        let shared = self.shared()?;
        let port = kernel.port().clone();
        let wheel = Arc::new(Wheel::new(Some(kernel)));
        let _ = port.wheel.set(wheel.clone());
        let task = Task {
            wheel,
            state: AtomicU8::new(QUEUED),
            low: options.priority == Priority::Low,
            shared: shared.clone(),
        };
        shared.push(Arc::new(task));
        Ok(())
    }

    fn shared(&self) -> Result<Arc<Shared>> {
        let mut shared = lock(&self.shared);
        if let Some(shared) = &*shared {
            return Ok(shared.clone());
        }
        let new = Arc::new(Shared::default());
        for _ in 0..cores().min(SHARED) {
            let worker = new.clone();
            if let Err(error) = spawn("millrace-kernels", move || worker.work()) {
                new.stop();
                return Err(error);
            }
        }
        Ok(shared.insert(new).clone())
    }
}

/// The life of a kernel that never sleeps.
fn spin(wheel: &Wheel) {
    let (mut kernel, mut idle) = (wheel.lock(), 0u32);
    loop {
        match drive::run(&mut kernel, TURN) {
            Step::Ended => return,
            Step::Worked => idle = 0,
            Step::Idle => {
                idle = idle.wrapping_add(1);
                // Whoever shares the core gets it now and then.
                if idle.is_multiple_of(64) { std::thread::yield_now() } else { std::hint::spin_loop() }
            }
        }
    }
}

/// The thread of a kernel's own.
struct Worker<'a> {
    wheel: &'a Wheel,
    port: &'a Port,
    /// Whether the kernel waits for another one's room, which its own memory does not show.
    blocked: bool,
    /// Looks in a row at something to do.
    stirred: u32,
    /// Messages that nobody asked with, when it rested last.
    posts: u32,
}

impl Worker<'_> {
    fn live(&mut self, wait: WaitPolicy) {
        let polls = wait == WaitPolicy::Adaptive;
        loop {
            let found = if polls { poll_while_worthwhile(|| self.look()) } else { None };
            if found.or_else(|| self.rest(polls)) == Some(Step::Ended) {
                return;
            }
        }
    }

    fn turn(&mut self, kernel: &mut Option<Kernel>) -> Option<Step> {
        let step = drive::run(kernel, TURN);
        self.blocked = kernel.as_ref().is_some_and(Kernel::is_blocked);
        (step != Step::Idle).then_some(step)
    }

    /// Does what there is to do. It looks without the right: one who asks may have it, and does the work itself.
    fn look(&mut self) -> Option<Step> {
        if !self.blocked && !self.port.stirs() {
            self.stirred = 0;
            return None;
        }
        // Those who ask run it themselves: it is let be until something is left lying.
        self.stirred += 1;
        if self.stirred < PATIENCE && self.port.brief.load(Ordering::Relaxed) {
            return None;
        }
        let mut kernel = self.wheel.try_lock()?;
        self.turn(&mut kernel)
    }

    /// Sleeps until there is something to do, and does it. While those who ask run the kernel, and send something before they
    /// do, that is left for them: it `naps`, and only looks whether something was left lying.
    fn rest(&mut self, naps: bool) -> Option<Step> {
        let (wheel, port) = (self.wheel, self.port);
        let mut lies = false;
        loop {
            let before = std::mem::replace(&mut self.posts, port.posts.load(Ordering::Relaxed));
            let asked = port.brief.load(Ordering::Relaxed) && self.posts != before;
            let minds = naps && asked && !lies && !self.blocked;
            port.minded.store(minds, Ordering::Relaxed);
            let (nap, tails) = (minds.then(|| Instant::now() + NAP), port.tails());
            let found = sleep_until(nap, |waker| {
                if minds && port.work.has_listeners() {
                    return None; // its waker is where it left it, and nobody called it
                }
                let mut kernel = wheel.lock();
                if let (Some(kernel), Some(waker)) = (&mut *kernel, waker) {
                    kernel.register(waker);
                }
                self.turn(&mut kernel)
            });
            if found.is_some() || !minds {
                return found;
            }
            lies = port.is_before(tails);
            if lies && let Some(kernel) = &mut *wheel.lock() {
                kernel.forget_askers();
            }
        }
    }
}

/// Sleeps until it is sent something.
const IDLE: u8 = 0;
/// Is in the queue.
const QUEUED: u8 = 1;
/// A worker runs it.
const RUNNING: u8 = 2;
/// A worker runs it, and something was sent meanwhile.
const AGAIN: u8 = 3;

/// A kernel that shares threads with others.
struct Task {
    wheel: Arc<Wheel>,
    state: AtomicU8,
    low: bool,
    shared: Arc<Shared>,
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let next = |state| match state {
            IDLE => Some(QUEUED),
            RUNNING => Some(AGAIN),
            _ => None,
        };
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, next) == Ok(IDLE) {
            self.shared.push(self.clone());
        }
    }
}

impl Task {
    /// A turn.
    fn run(self: Arc<Self>) {
        let mut slot = self.wheel.lock();
        let Some(kernel) = &mut *slot else { return };
        self.state.store(RUNNING, Ordering::Release);
        let mut step = kernel.run(TURN);
        if step == Step::Idle {
            kernel.register(&Waker::from(self.clone()));
            step = kernel.run(1);
        }
        match step {
            Step::Ended => {
                *slot = None; // with it the last waker that refers to us
                return;
            }
            Step::Idle if self.state.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok() => {
                return;
            }
            Step::Idle | Step::Worked => self.state.store(QUEUED, Ordering::Release),
        }
        drop(slot);
        let shared = self.shared.clone();
        shared.push(self);
    }
}

/// The queue of kernels that have something to do, and the threads that run them.
#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Kernels in the queue, for those who only look.
    count: AtomicUsize,
    stopped: AtomicBool,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    normal: VecDeque<Arc<Task>>,
    low: VecDeque<Arc<Task>>,
    /// Normal ones in a row while a low one waited.
    burst: u32,
    sleeping: usize,
}

impl Queue {
    fn pop(&mut self) -> Option<Arc<Task>> {
        if self.low.is_empty() || (!self.normal.is_empty() && self.burst < STARVATION_BOUND) {
            self.burst = if self.low.is_empty() { 0 } else { self.burst + 1 };
            return self.normal.pop_front();
        }
        self.burst = 0;
        self.low.pop_front()
    }
}

impl Shared {
    fn push(&self, task: Arc<Task>) {
        let mut queue = lock(&self.queue);
        if task.low { &mut queue.low } else { &mut queue.normal }.push_back(task);
        self.count.fetch_add(1, Ordering::Release);
        let asleep = queue.sleeping > 0;
        drop(queue);
        if asleep {
            self.changed.notify_one();
        }
    }

    fn try_pop(&self) -> Option<Arc<Task>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let task = lock(&self.queue).pop()?;
        self.count.fetch_sub(1, Ordering::Relaxed);
        Some(task)
    }

    fn work(&self) {
        loop {
            if let Some(task) = poll_while_worthwhile(|| self.try_pop()) {
                task.run();
                continue;
            }
            let mut queue = lock(&self.queue);
            if self.count.load(Ordering::Acquire) > 0 {
                continue;
            }
            if self.stopped.load(Ordering::Acquire) {
                return;
            }
            queue.sleeping += 1;
            queue = self.changed.wait(queue).unwrap_or_else(std::sync::PoisonError::into_inner);
            queue.sleeping -= 1;
        }
    }

    /// The threads end once the queue is empty.
    fn stop(&self) {
        let _queue = lock(&self.queue);
        self.stopped.store(true, Ordering::Release);
        self.changed.notify_all();
    }
}
