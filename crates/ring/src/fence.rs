//! Asymmetric fences: the side that runs a million times a second pays nothing, the side that is about to sleep pays
//! for both.
//!
//! A sleeper and its waker run Dekker's handshake: the sleeper sets "waiting" and looks at the queue once more, the
//! waker publishes to the queue and looks at "waiting". Each side needs a store-load fence between its two steps, or
//! both may miss the other and the sleeper sleeps forever. A fence on every send costs as much as the send itself, so
//! on Linux the sleeper issues `membarrier(2)`, which runs a full fence on every core that is executing a thread of
//! this process, and the waker only has to keep the compiler from reordering. The technique is that of liburcu and of
//! folly's `AsymmetricMemoryBarrier`. Where `membarrier` is missing (another system, or a filter that forbids it),
//! both sides use an ordinary sequentially consistent fence; under loom they do as well, so the models check the
//! handshake itself.
//!
//! A heavy fence costs half a microsecond here, and fourteen while more threads of the process want to run than there
//! are cores. Threads sleep often then, so as long as the machine is [`crowded`] both sides use ordinary fences, too.

#[cfg(any(loom, not(target_os = "linux")))]
mod imp {
    #[cfg(loom)]
    use loom::sync::atomic::{Ordering, fence};
    #[cfg(not(loom))]
    use std::sync::atomic::{Ordering, fence};

    pub(super) fn prepare() {}

    pub(super) fn is_asymmetric() -> bool {
        cfg!(loom) // where it costs nothing, and the models are to check what depends on it
    }

    #[cfg(not(loom))]
    pub(super) fn crowded(_: bool) {}

    #[inline]
    pub(super) fn light() {
        fence(Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

#[cfg(all(not(loom), target_os = "linux"))]
mod imp {
    use std::sync::{
        Mutex, Once, PoisonError,
        atomic::{AtomicBool, Ordering, compiler_fence, fence},
    };

    // From linux/membarrier.h.
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

    /// Whether the light side may leave the fence out. Never without `BARRIER`.
    static ASYMMETRIC: AtomicBool = AtomicBool::new(false);
    /// Whether the heavy side has to issue the barrier.
    static BARRIER: AtomicBool = AtomicBool::new(false);
    /// Whether the kernel does it for us. Held while the two above change.
    static OFFERED: Mutex<bool> = Mutex::new(false);
    static REGISTER: Once = Once::new();

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call takes three integers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    /// Lets the light side do without a fence. Who sleeps after a plain fence did announce itself before it looked at
    /// `BARRIER`; if that was before our store, a light side that finds `ASYMMETRIC` set finds the sleeper, too.
    fn allow() {
        BARRIER.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        ASYMMETRIC.store(true, Ordering::Release);
    }

    pub(super) fn prepare() {
        REGISTER.call_once(|| {
            let mut offered = OFFERED.lock().unwrap_or_else(PoisonError::into_inner);
            *offered = membarrier(REGISTER_PRIVATE_EXPEDITED);
            if *offered {
                allow();
            }
        });
    }

    pub(super) fn is_asymmetric() -> bool {
        ASYMMETRIC.load(Ordering::Relaxed)
    }

    #[cold]
    pub(super) fn crowded(crowded: bool) {
        let offered = OFFERED.lock().unwrap_or_else(PoisonError::into_inner);
        if !*offered || BARRIER.load(Ordering::Relaxed) != crowded {
            return; // nothing to choose, or chosen already
        }
        if crowded {
            // A light side that still finds it set published its message before the barrier, where every sleeper that
            // goes without one finds it.
            ASYMMETRIC.store(false, Ordering::SeqCst);
            if membarrier(PRIVATE_EXPEDITED) {
                BARRIER.store(false, Ordering::Release);
            }
        } else {
            allow();
        }
    }

    #[inline(always)]
    pub(super) fn light() {
        if ASYMMETRIC.load(Ordering::Acquire) {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    #[cold]
    pub(super) fn heavy() {
        fence(Ordering::SeqCst);
        // A registered process is refused only after it was restored on a kernel without the call. The light side
        // goes back to real fences then; the pause lets those that had already passed it finish.
        if BARRIER.load(Ordering::Acquire) && !membarrier(PRIVATE_EXPEDITED) {
            let mut offered = OFFERED.lock().unwrap_or_else(PoisonError::into_inner);
            *offered = false;
            ASYMMETRIC.store(false, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(1));
            BARRIER.store(false, Ordering::Release);
        }
    }
}

/// Must run before the first [`light`] of a process; every ring's constructor calls it.
pub(crate) fn prepare() {
    imp::prepare();
}

/// Whether [`light`] costs next to nothing at the moment.
pub(crate) fn is_asymmetric() -> bool {
    imp::is_asymmetric()
}

/// The side of the waker: between publishing and looking for a sleeper.
#[inline(always)]
pub(crate) fn light() {
    imp::light();
}

/// The side of the sleeper: between announcing itself and the last look at the queue.
pub(crate) fn heavy() {
    imp::heavy();
}

/// Says whether more threads than cores want to run: then the sleeper's barrier is worth avoiding.
#[cfg(not(loom))]
pub(crate) fn crowded(crowded: bool) {
    imp::crowded(crowded);
}
