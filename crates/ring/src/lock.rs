//! A lock for critical sections of a few instructions.
//!
//! Taking it is one atomic exchange and giving it back one store, half of what a lock that can put threads to sleep has to
//! do. Whoever finds it taken polls briefly and then yields until the holder has run.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use crate::sync::{AtomicBool, Ordering, UnsafeCell};

/// A value behind a lock that is never held for long. Do not call foreign code while you hold it.
///
/// ```
/// let counter = millrace_ring::BriefLock::new(0);
/// std::thread::scope(|s| {
///     for _ in 0..4 {
///         s.spawn(|| (0..1000).for_each(|_| *counter.lock() += 1));
///     }
/// });
/// assert_eq!(*counter.lock(), 4000);
/// ```
pub struct BriefLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time.
unsafe impl<T: Send> Sync for BriefLock<T> {}

impl<T> BriefLock<T> {
    /// A free lock around a value.
    pub fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, waiting for it if it is taken. A panic while it is held just frees it.
    ///
    /// ```
    /// let lock = millrace_ring::BriefLock::new(vec![1]);
    /// lock.lock().push(2);
    /// let broken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
    ///     let _held = lock.lock();
    ///     panic!("oh");
    /// }));
    /// assert!(broken.is_err() && *lock.lock() == [1, 2], "it is free again");
    /// ```
    #[inline]
    pub fn lock(&self) -> BriefGuard<'_, T> {
        if self.taken.swap(true, Ordering::Acquire) {
            self.wait();
        }
        BriefGuard { lock: self, access: PhantomData }
    }

    #[cold]
    fn wait(&self) {
        let mut looks = 0;
        loop {
            looks += 1;
            if looks < 32 && cfg!(not(loom)) {
                std::hint::spin_loop();
            } else {
                crate::sync::thread::yield_now();
            }
            // Reading does not take the line away from the holder.
            if !self.taken.load(Ordering::Relaxed) && !self.taken.swap(true, Ordering::Acquire) {
                return;
            }
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for BriefLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("BriefLock").field(&*self.lock()).finish()
    }
}

/// Access to what a [`BriefLock`] guards.
///
/// ```
/// let lock = millrace_ring::BriefLock::new(1);
/// let mut guard = lock.lock();
/// *guard += 1;
/// drop(guard);
/// assert_eq!(*lock.lock(), 2);
/// ```
pub struct BriefGuard<'a, T> {
    lock: &'a BriefLock<T>,
    /// It is as good as a `&mut T`: threads may share it only if they may share the value.
    access: PhantomData<&'a mut T>,
}

impl<T> Deref for BriefGuard<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the lock is ours while the guard lives.
        unsafe { &*self.lock.value.with_mut(|p| p) }
    }
}

impl<T> DerefMut for BriefGuard<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the lock is ours while the guard lives, and the guard is borrowed mutably.
        unsafe { &mut *self.lock.value.with_mut(|p| p) }
    }
}

impl<T> Drop for BriefGuard<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(not(loom))]
        self.lock.taken.store(false, Ordering::Release);
        // Loom lets the exchange of a waiter miss a plain store any number of times.
        #[cfg(loom)]
        self.lock.taken.swap(false, Ordering::Release);
    }
}

impl<T: fmt::Debug> fmt::Debug for BriefGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
