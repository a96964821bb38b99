//! A lock for critical sections of a few instructions.
//!
//! Taking it is one atomic exchange and giving it back one store, half of what a lock that can put threads to sleep has to
//! do; a thread that takes it alone soon needs no exchange either ([`Bias`]). Whoever finds it taken polls briefly and
//! then yields until the holder has run.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
};

use crate::{
    bias::{Bias, Inside},
    sync::{AtomicBool, Ordering, UnsafeCell},
};

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
    bias: Bias,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time.
unsafe impl<T: Send> Sync for BriefLock<T> {}

impl<T> BriefLock<T> {
    /// A free lock around a value.
    pub fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), bias: Bias::new(), value: UnsafeCell::new(value) }
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
    #[inline(always)]
    pub fn lock(&self) -> BriefGuard<'_, T> {
        self.pass().unwrap_or_else(|| self.take())
    }

    /// Takes the lock if that is a matter of a few instructions, because nobody else has taken it for a while: for
    /// callers whose way is short then.
    ///
    /// ```
    /// let lock = millrace_ring::BriefLock::new(0);
    /// let passed = (0..10_000).filter(|_| lock.pass().is_some() || *lock.lock() > 0).count();
    /// assert!(passed > 9_000, "nobody else took it");
    /// ```
    #[inline(always)]
    pub fn pass(&self) -> Option<BriefGuard<'_, T>> {
        self.bias.enter().map(|inside| BriefGuard { lock: self, inside: Some(inside), access: PhantomData })
    }

    /// Takes it as anybody can.
    fn take(&self) -> BriefGuard<'_, T> {
        let mut looks = 0;
        // Reading does not take the line away from the holder.
        while looks > 0 && self.taken.load(Ordering::Relaxed) || self.taken.swap(true, Ordering::Acquire) {
            looks = Self::pause(looks);
        }
        while !self.bias.close() {
            looks = Self::pause(looks); // for good if this very thread holds it
        }
        BriefGuard { lock: self, inside: None, access: PhantomData }
    }

    #[cold]
    fn pause(looks: u32) -> u32 {
        if looks < 32 && cfg!(not(loom)) {
            std::hint::spin_loop();
        } else {
            crate::sync::thread::yield_now();
        }
        looks + 1
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
    /// None if the lock was taken as anybody can.
    inside: Option<Inside<'a>>,
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
        if self.inside.is_some() {
            return; // that it is dropped is all
        }
        self.lock.bias.count(); // not before: this thread must not pass what it holds
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
