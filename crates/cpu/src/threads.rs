//! The threads that kernels run on.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

use millrace_core::Threads;
use rayon::{ThreadPool, ThreadPoolBuilder};

/// Pieces of work per thread: enough that a slow piece does not hold up the end, few enough to be cheap.
const PIECES: u64 = 8;

/// The threads of one device. They are started when first needed, so that opening a device costs nothing.
#[derive(Debug)]
pub(crate) struct Team {
    count: usize,
    /// The threads beside the caller; `None` if they could not be started, and then the caller does everything.
    helpers: OnceLock<Option<ThreadPool>>,
}

impl Team {
    pub(crate) fn new(count: usize) -> Self {
        Self { count, helpers: OnceLock::new() }
    }

    fn helpers(&self) -> Option<&ThreadPool> {
        let start = || {
            let threads = ThreadPoolBuilder::new().num_threads(self.count - 1);
            threads.thread_name(|n| format!("millrace-team-{n}")).build().ok()
        };
        if self.count < 2 { None } else { self.helpers.get_or_init(start).as_ref() }
    }
}

impl Threads for Team {
    fn count(&self) -> usize {
        self.count
    }

    fn for_each(&self, n: u64, each: &(dyn Fn(u64) + Sync)) {
        let next = AtomicU64::new(0);
        let step = (n / (self.count as u64 * PIECES)).max(1);
        let work = || {
            loop {
                let start = next.fetch_add(step, Ordering::Relaxed);
                if start >= n {
                    return;
                }
                (start..n.min(start + step)).for_each(each);
            }
        };
        match self.helpers() {
            Some(helpers) if n > 1 => helpers.in_place_scope(|scope| {
                for _ in 0..(self.count as u64 - 1).min(n - 1) {
                    scope.spawn(|_| work());
                }
                work();
            }),
            _ => work(),
        }
    }
}

/// The caller alone.
pub(crate) struct Alone;

impl Threads for Alone {
    fn count(&self) -> usize {
        1
    }

    fn for_each(&self, n: u64, each: &(dyn Fn(u64) + Sync)) {
        (0..n).for_each(each);
    }
}

/// A team that is used also for small work.
pub(crate) struct All<'a>(pub(crate) &'a Team);

impl Threads for All<'_> {
    fn count(&self) -> usize {
        self.0.count()
    }

    fn all_wanted(&self) -> bool {
        true
    }

    fn for_each(&self, n: u64, each: &(dyn Fn(u64) + Sync)) {
        self.0.for_each(n, each);
    }
}
