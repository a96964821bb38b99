//! Where the two ends of a ring run. A line that two cores write in turns travels; on one core it need not. So both sides of a
//! comparison have their ends on the same two cores, and nobody runs there who goes to sleep at that moment.

use std::{
    cell::Cell,
    hint::spin_loop,
    time::{Duration, Instant},
};

use millrace::resident::Telemetry;

/// How long who went to sleep may still be at it, and interrupt the other cores: see `ring/src/fence.rs`.
const FALLING_ASLEEP: Duration = Duration::from_micros(40);

/// Waits, on the core, until whoever has nothing to do sleeps.
pub(super) fn rest() {
    let start = Instant::now();
    while start.elapsed() < FALLING_ASLEEP {
        spin_loop();
    }
}

/// Waits until a kernel that has just been paused sleeps, if it had rested so many times before.
pub(super) fn until_asleep(telemetry: impl Fn() -> Telemetry, rests: u32) {
    let start = Instant::now();
    while telemetry().rests == rests && start.elapsed() < Duration::from_millis(10) {
        spin_loop();
    }
    rest();
}

/// Moves the reading end to its core, when it is first called on a thread.
pub(super) fn reader_is_here() {
    thread_local!(static HERE: Cell<bool> = const { Cell::new(false) });
    if !HERE.replace(true) {
        let _ = cores::stay(cores::ends().1);
    }
}

/// Keeps the calling thread on the core of the writing end, until it is dropped.
#[cfg(target_os = "linux")]
pub(super) struct Writer(Option<rustix::thread::CpuSet>);

#[cfg(target_os = "linux")]
impl Writer {
    pub(super) fn is_here() -> Self {
        let (before, (core, _)) = (rustix::thread::sched_getaffinity(None).ok(), cores::ends());
        Self(before.filter(|_| cores::stay(core)))
    }
}

#[cfg(target_os = "linux")]
impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = rustix::thread::sched_setaffinity(None, before);
        }
    }
}

#[cfg(target_os = "linux")]
mod cores {
    use std::sync::OnceLock;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    /// The first and the last core that the process may use.
    pub(super) fn ends() -> (usize, usize) {
        static ENDS: OnceLock<(usize, usize)> = OnceLock::new();
        *ENDS.get_or_init(|| {
            let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
            let mut all = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core));
            let first = all.next().unwrap_or(0);
            (first, all.next_back().unwrap_or(first))
        })
    }

    /// Keeps the calling thread on a core; false if that cannot be.
    pub(super) fn stay(core: usize) -> bool {
        let mut set = CpuSet::new();
        set.set(core);
        sched_setaffinity(None, &set).is_ok()
    }
}

#[cfg(not(target_os = "linux"))]
mod cores {
    pub(super) fn ends() -> (usize, usize) {
        (0, 0)
    }

    pub(super) fn stay(_: usize) -> bool {
        false
    }
}

/// Elsewhere threads are where they are.
#[cfg(not(target_os = "linux"))]
pub(super) struct Writer;

#[cfg(not(target_os = "linux"))]
impl Writer {
    pub(super) fn is_here() -> Self {
        Self
    }
}
