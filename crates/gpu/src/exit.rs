//! The end of the process. Drivers tear themselves down while the process exits, and a thread that is inside one then
//! makes it crash: so our threads leave before.

use std::{
    sync::{Arc, Condvar, Mutex, Once, Weak},
    time::{Duration, Instant},
};

use millrace_core::Leave;

use crate::staging::lock;

/// How long an exit may take in all. Work that runs longer is left to its fate.
const PATIENCE: Duration = Duration::from_secs(3);

static INSIDE: Mutex<Vec<Weak<dyn Leave>>> = Mutex::new(Vec::new());

/// Makes these threads leave before the process exits. To be called when the driver has been loaded, so that what it
/// wants to be told about the exit comes after us: last in, first out.
pub(crate) fn attend(threads: Weak<dyn Leave>) {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        // SAFETY: the function has no conditions, does not unwind, and is there until the process ends.
        if unsafe { libc::atexit(before_exit) } != 0 {
            tracing::warn!("not told about the exit of the process; wait for pending work before it");
        }
    });
    let mut inside = lock(&INSIDE);
    inside.retain(|threads| threads.strong_count() > 0);
    inside.push(threads);
}

/// Runs on whatever thread exits, which has no thread-local values any more; drivers and wgpu have some. So another
/// thread does the work.
extern "C" fn before_exit() {
    let left = Arc::new((Mutex::new(false), Condvar::new()));
    let told = left.clone();
    let leave = move || {
        let deadline = Instant::now() + PATIENCE;
        for threads in std::mem::take(&mut *lock(&INSIDE)).iter().filter_map(Weak::upgrade) {
            threads.leave(deadline.saturating_duration_since(Instant::now()));
        }
        *lock(&told.0) = true;
        told.1.notify_one();
    };
    if std::thread::Builder::new().name("millrace-exit".into()).spawn(leave).is_ok() {
        let waited = left.1.wait_timeout_while(lock(&left.0), PATIENCE, |left| !*left);
        drop(waited);
    }
}
