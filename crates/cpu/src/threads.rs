//! The threads that kernels run on.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread::{Builder, JoinHandle},
};

use millrace_core::Threads;
use millrace_ring::Crew;

/// Pieces of work per thread: enough that a slow piece does not hold up the end, few enough to be cheap.
const PIECES: u64 = 8;

/// The threads of one device. They are started when first needed, so that opening a device costs nothing.
#[derive(Debug)]
pub(crate) struct Team {
    count: usize,
    crew: Arc<Crew>,
    /// The threads beside the caller, as many as could be started.
    helpers: OnceLock<Vec<JoinHandle<()>>>,
}

impl Team {
    pub(crate) fn new(count: usize) -> Self {
        Self { count, crew: Arc::new(Crew::new()), helpers: OnceLock::new() }
    }

    fn start(&self) -> Vec<JoinHandle<()>> {
        let helper = |n| {
            let crew = self.crew.clone();
            Builder::new().name(format!("millrace-team-{n}")).spawn(move || crew.serve()).ok()
        };
        (1..self.count).map_while(helper).collect()
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.crew.dismiss();
        for helper in self.helpers.take().unwrap_or_default() {
            // It caught whatever a kernel threw.
            let _ = helper.join();
        }
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
        if n > 1 && self.count > 1 {
            self.helpers.get_or_init(|| self.start());
            self.crew.run(&work);
        } else {
            work();
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
