//! A crew: threads that lend a hand with whatever somebody has to do, one job at a time.
//!
//! The caller opens a job, works on it as well, and closes it when it finds nothing more to do. Members that came in time are
//! waited for; those that were still asleep find it closed and are not. So a job never takes longer than its caller alone
//! would have needed, whatever waking a thread costs, and members that are still polling after the last job join the next one
//! within a cache miss. (A fork and join that hands each thread its part has to wait for all of them to wake up.)
//!
//! Everything is in one word: whether a caller has the crew, whether its job is open, which one it is, and how many members
//! are inside. A member enters by adding itself to the word while it is open, so that it is either seen by the caller that
//! closes it, or does not enter.

use std::{
    any::Any,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use crate::{
    bell::Bell,
    sync::{AtomicU64, Mutex, Ordering, UnsafeCell, lock},
};

/// How many members are inside.
const INSIDE: u64 = (1 << 20) - 1;
/// Whether members may enter.
const OPEN: u64 = 1 << 29;
/// Whether a caller has the crew.
const TAKEN: u64 = 1 << 30;
/// Whether members have to go home.
const ENDED: u64 = 1 << 31;
/// The jobs are counted, so that nobody enters the same one twice.
const ROUND: u64 = 1 << 32;

/// Members that the caller wakes, and each of them in turn: waking many takes one thread long, and a tree of them not.
const BRANCHES: usize = 2;

/// What is to be done; good only while the job is open or members are inside.
#[derive(Clone, Copy)]
struct Job(*const (dyn Fn() + Sync));

/// Threads that help with one job at a time.
///
/// A job is a function that every thread calls once and that takes its share by itself, from a counter for example.
///
/// ```
/// use std::sync::{Arc, atomic::{AtomicU32, Ordering}};
/// use millrace_ring::Crew;
/// let crew = Arc::new(Crew::new());
/// let member = std::thread::spawn({ let crew = crew.clone(); move || crew.serve() });
/// let (next, sum) = (AtomicU32::new(0), AtomicU32::new(0));
/// crew.run(&|| {
///     while let n @ 0..1000 = next.fetch_add(1, Ordering::Relaxed) {
///         sum.fetch_add(n, Ordering::Relaxed);
///     }
/// });
/// assert_eq!(sum.into_inner(), 499_500);
/// crew.dismiss();
/// member.join().unwrap();
/// ```
pub struct Crew {
    state: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    /// The first panic of a member in this job.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// For members: there is a job.
    begun: Bell,
    /// For the caller: the last member has left.
    left: Bell,
}

// SAFETY: the job is written by the caller that has the crew while nobody is inside, and read by members inside; it is
// `Sync` by its type, and the caller that lent it waits for everybody who entered before it goes on.
unsafe impl Send for Crew {}
// SAFETY: as above.
unsafe impl Sync for Crew {}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").finish_non_exhaustive()
    }
}

impl Default for Crew {
    fn default() -> Self {
        Self::new()
    }
}

impl Crew {
    /// A crew without members.
    pub fn new() -> Self {
        Self {
            state: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            begun: Bell::new(),
            left: Bell::new(),
        }
    }

    /// Calls `job` on this thread and on every member that comes before this thread is done with it. Returns when all of
    /// them have. If somebody else has the crew, or this is inside of a job, the caller is alone with it. A panic of any
    /// of them is this call's.
    ///
    /// ```
    /// let crew = millrace_ring::Crew::new();
    /// let calls = std::sync::atomic::AtomicU32::new(0);
    /// crew.run(&|| {
    ///     calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    /// });
    /// assert_eq!(calls.into_inner(), 1, "without members, the caller does it alone");
    /// ```
    pub fn run(&self, job: &(dyn Fn() + Sync)) {
        let state = self.state.load(Ordering::Relaxed);
        let free = state & (TAKEN | ENDED) == 0;
        let taking = || self.state.compare_exchange(state, state | TAKEN, Ordering::Acquire, Ordering::Relaxed);
        if !free || taking().is_err() {
            return job();
        }
        let lent: *const (dyn Fn() + Sync + '_) = job;
        // SAFETY: only the lifetime changes, and nobody calls it after this function: whoever entered is waited for, and
        // nobody enters once it is closed.
        let lent = Job(unsafe {
            std::mem::transmute::<*const (dyn Fn() + Sync + '_), *const (dyn Fn() + Sync + 'static)>(lent)
        });
        // SAFETY: we have the crew, and the caller before us has waited until nobody was inside.
        self.job.with_mut(|place| unsafe { *place = Some(lent) });
        self.state.fetch_add(ROUND | OPEN, Ordering::Release);
        self.begun.ring_for(BRANCHES);
        let mine = catch_unwind(AssertUnwindSafe(job));
        let inside = |state: u64| state & INSIDE != 0;
        if inside(self.state.fetch_and(!OPEN, Ordering::AcqRel)) {
            self.left.wait(None, true, || (!inside(self.state.load(Ordering::Acquire))).then_some(()));
        }
        let theirs = lock(&self.panic).take();
        self.state.fetch_and(!TAKEN, Ordering::Release);
        if let Some(panic) = mine.err().or(theirs) {
            resume_unwind(panic);
        }
    }

    /// Makes the calling thread a member, until [`Self::dismiss`].
    ///
    /// ```
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// let (crew, inside) = (millrace_ring::Crew::new(), AtomicU32::new(0));
    /// std::thread::scope(|s| {
    ///     s.spawn(|| crew.serve());
    ///     crew.run(&|| {
    ///         inside.fetch_add(1, Ordering::SeqCst);
    ///         while inside.load(Ordering::SeqCst) < 2 {
    ///             std::thread::yield_now(); // until the member has come
    ///         }
    ///     });
    ///     crew.dismiss();
    /// });
    /// assert_eq!(inside.into_inner(), 2);
    /// ```
    pub fn serve(&self) {
        let mut last = 0;
        loop {
            let found = self.begun.wait(None, true, || {
                let state = self.state.load(Ordering::Acquire);
                (state & ENDED != 0 || state & OPEN != 0 && state / ROUND != last).then_some(state)
            });
            match found {
                Some(state) if state & ENDED == 0 => {
                    if self.enter(state) {
                        last = state / ROUND;
                    }
                }
                _ => return,
            }
        }
    }

    /// Does the job that is open in `state`, if that still holds.
    fn enter(&self, state: u64) -> bool {
        if self.state.compare_exchange(state, state + 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        self.begun.ring_for(BRANCHES);
        // SAFETY: it was written before the job was opened, and is not written again while somebody is inside.
        let job = self.job.with(|place| unsafe { *place });
        if let Some(Job(job)) = job
            // SAFETY: we are inside, so the caller that lent it is still in `run`.
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| unsafe { (*job)() }))
        {
            lock(&self.panic).get_or_insert(panic);
        }
        if self.state.fetch_sub(1, Ordering::AcqRel) & (OPEN | INSIDE) == 1 {
            self.left.ring();
        }
        true
    }

    /// Sends all members home, now and for ever.
    ///
    /// ```
    /// let crew = millrace_ring::Crew::new();
    /// std::thread::scope(|s| {
    ///     let members = [(); 2].map(|()| s.spawn(|| crew.serve()));
    ///     crew.dismiss();
    ///     assert!(members.into_iter().all(|member| member.join().is_ok()), "they have gone");
    /// });
    /// crew.serve(); // comes too late, and returns at once
    /// ```
    pub fn dismiss(&self) {
        self.state.fetch_or(ENDED, Ordering::Release);
        self.begun.ring();
    }
}
