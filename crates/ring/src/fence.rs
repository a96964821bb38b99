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
//! A heavy fence costs microseconds while other threads of the process run: use it only on the way to sleep.

#[cfg(any(loom, not(target_os = "linux")))]
mod imp {
    #[cfg(loom)]
    use loom::sync::atomic::{Ordering, fence};
    #[cfg(not(loom))]
    use std::sync::atomic::{Ordering, fence};

    pub(super) fn prepare() {}

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
        Once,
        atomic::{AtomicBool, Ordering, compiler_fence, fence},
    };

    // From linux/membarrier.h.
    const PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
    const REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

    /// Whether the kernel accepted this process's registration. Written once, before any ring exists.
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    static REGISTER: Once = Once::new();

    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: the call takes three integers and touches no memory of ours.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    pub(super) fn prepare() {
        REGISTER.call_once(|| {
            REGISTERED.store(membarrier(REGISTER_PRIVATE_EXPEDITED), Ordering::SeqCst);
        });
    }

    #[inline(always)]
    pub(super) fn light() {
        if REGISTERED.load(Ordering::Relaxed) {
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
        if REGISTERED.load(Ordering::Relaxed) && !membarrier(PRIVATE_EXPEDITED) {
            REGISTERED.store(false, Ordering::SeqCst);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

/// Must run before the first [`light`] of a process; every ring's constructor calls it.
pub(crate) fn prepare() {
    imp::prepare();
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
