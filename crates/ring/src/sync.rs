//! The primitives the algorithms are written against: `std`'s in a build, loom's in a model.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

#[cfg(not(loom))]
pub(crate) use std::{
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

/// `std`'s cell behind loom's interface, so that the same code runs under both.
#[cfg(not(loom))]
#[derive(Debug, Default)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Locks, also after a thread panicked while it held the lock: what we keep behind locks is valid between any two
/// statements.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// The same if nobody holds it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

#[cfg(not(loom))]
std::thread_local!(static ME: std::cell::Cell<u64> = const { std::cell::Cell::new(0) });
#[cfg(loom)]
loom::thread_local!(static ME: std::cell::Cell<u64> = std::cell::Cell::new(0));

/// A number for the calling thread that no other thread ever has, not even after its end. Never zero.
#[inline(always)]
pub(crate) fn me() -> u64 {
    #[cold]
    fn number() -> u64 {
        static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        LAST.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1
    }

    ME.with(|me| match me.get() {
        0 => {
            me.set(number());
            me.get()
        }
        me => me,
    })
}

/// [`me`], or zero if nobody has asked for it yet.
#[inline(always)]
pub(crate) fn me_if_numbered() -> u64 {
    ME.with(std::cell::Cell::get)
}
