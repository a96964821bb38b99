//! A lock for turns that may take a while and call foreign code, which one thread alone passes.
//!
//! Whoever waits for it sleeps. A thread that takes its turns alone soon needs no atomic operation for them ([`Bias`]); the first
//! other one that comes ends that, and waits until the owner is outside.

use std::{
    fmt,
    marker::PhantomData,
    ops::{Deref, DerefMut},
    time::Duration,
};

use crate::{
    bias::{Bias, Inside},
    sync::{Mutex, MutexGuard, UnsafeCell, lock, try_lock},
};

/// How long who waits for the owner sleeps before it looks again: the owner does not know that somebody waits.
const FIRST_NAP: Duration = Duration::from_micros(50);
const LONGEST_NAP: Duration = Duration::from_millis(1);

#[cfg(not(loom))]
use std::thread::sleep;
#[cfg(loom)]
fn sleep(_: Duration) {
    crate::sync::thread::yield_now();
}

/// A value that one thread at a time has the use of.
///
/// ```
/// let turnstile = millrace_ring::Turnstile::new(0);
/// for _ in 0..1000 {
///     *turnstile.try_pass().expect("nobody else is inside") += 1;
/// }
/// let turn = turnstile.lock();
/// assert!(*turn == 1000 && turnstile.try_pass().is_none() && turnstile.try_lock().is_none(), "once at a time");
/// drop(turn);
/// std::thread::scope(|s| s.spawn(|| *turnstile.lock() += 1).join().unwrap());
/// assert_eq!(*turnstile.lock(), 1001);
/// ```
pub struct Turnstile<T> {
    lock: Mutex<()>,
    bias: Bias,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached by one thread at a time.
unsafe impl<T: Send> Sync for Turnstile<T> {}

impl<T> Turnstile<T> {
    /// Nobody is inside.
    pub fn new(value: T) -> Self {
        Self { lock: Mutex::new(()), bias: Bias::new(), value: UnsafeCell::new(value) }
    }

    /// Waits until nobody is inside, and goes in. A panic inside is no reason not to.
    ///
    /// ```
    /// let turnstile = millrace_ring::Turnstile::new(vec![1]);
    /// turnstile.lock().push(2);
    /// assert_eq!(*turnstile.lock(), [1, 2]);
    /// ```
    pub fn lock(&self) -> Turn<'_, T> {
        // The owner passes, so that it cannot do so while it holds the lock.
        if let Some(turn) = self.pass() {
            return turn;
        }
        let locked = lock(&self.lock);
        let (mut closed, mut nap) = (self.bias.close(), FIRST_NAP);
        // For good if this very thread is inside.
        while !closed {
            sleep(nap);
            nap = (2 * nap).min(LONGEST_NAP);
            closed = self.bias.try_close();
        }
        self.turn(How::Locked { _lock: locked, liked: false })
    }

    /// Goes in if nobody is inside.
    ///
    /// ```
    /// let turnstile = millrace_ring::Turnstile::new(1);
    /// let turn = turnstile.try_lock();
    /// assert!(turn.is_some() && turnstile.try_lock().is_none());
    /// ```
    pub fn try_lock(&self) -> Option<Turn<'_, T>> {
        self.pass().or_else(|| self.try_take(false))
    }

    /// Goes in if nobody is inside, for one who comes again and again: at no cost if nobody else does.
    ///
    /// ```
    /// let turnstile = millrace_ring::Turnstile::new(1);
    /// let turn = turnstile.try_pass();
    /// assert!(turn.is_some() && turnstile.try_pass().is_none());
    /// ```
    #[inline(always)]
    pub fn try_pass(&self) -> Option<Turn<'_, T>> {
        self.pass().or_else(|| self.try_take(true))
    }

    /// For the owner of the bias, if it is not inside.
    #[inline(always)]
    fn pass(&self) -> Option<Turn<'_, T>> {
        self.bias.enter().map(|inside| self.turn(How::Passed { _inside: inside }))
    }

    /// For everybody else. The owner comes here only if it is inside, and is refused.
    #[inline(never)]
    fn try_take(&self, liked: bool) -> Option<Turn<'_, T>> {
        let locked = try_lock(&self.lock)?;
        self.bias.try_close().then(|| self.turn(How::Locked { _lock: locked, liked }))
    }

    #[inline(always)]
    fn turn<'a>(&'a self, how: How<'a>) -> Turn<'a, T> {
        Turn { turnstile: self, how, access: PhantomData }
    }
}

impl<T> fmt::Debug for Turnstile<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Turnstile").field("bias", &self.bias).finish_non_exhaustive()
    }
}

/// The use of what is behind a [`Turnstile`].
///
/// ```
/// let turnstile = millrace_ring::Turnstile::new(1);
/// let mut turn = turnstile.lock();
/// *turn += 1;
/// drop(turn);
/// assert_eq!(*turnstile.lock(), 2);
/// ```
pub struct Turn<'a, T> {
    turnstile: &'a Turnstile<T>,
    how: How<'a>,
    /// It is as good as a `&mut T`: threads may share it only if they may share the value.
    access: PhantomData<&'a mut T>,
}

/// How somebody got in.
enum How<'a> {
    Passed {
        _inside: Inside<'a>,
    },
    Locked {
        _lock: MutexGuard<'a, ()>,
        /// It would rather have passed.
        liked: bool,
    },
}

impl<T> Deref for Turn<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: nobody else is inside while the turn lasts.
        unsafe { &*self.turnstile.value.with_mut(|p| p) }
    }
}

impl<T> DerefMut for Turn<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: nobody else is inside while the turn lasts, and the turn is borrowed mutably.
        unsafe { &mut *self.turnstile.value.with_mut(|p| p) }
    }
}

impl<T> Drop for Turn<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        // Not before: this thread must not pass what it holds. The lock is given back after that.
        if let How::Locked { liked: true, .. } = self.how {
            self.turnstile.bias.count();
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Turn<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}
