//! A right that costs its owner nothing, until another thread wants it.
//!
//! Biased locking (Kawachiya, Koseki and Onodera, "Lock Reservation", 2002), with the asymmetric fences of `fence.rs`
//! ("Asymmetric Dekker Synchronization", Dice, Huang and Yang, 2001): the owner says that it is inside and looks whether
//! the right is still its own; who wants it says that it is not, issues the heavy fence and waits until the owner is
//! outside. So the owner does without an atomic read-modify-write, which is dear not so much by itself as because it
//! waits until everything that was written before has reached the cache, lines of other cores included.
//!
//! The right is given to a thread a few times. If threads still take it from each other after that, it is shared: nobody has
//! it any more, and what it stood for has to be done in a way that any number of threads can do at once. That is what tells it
//! from [`crate::Bias`], which goes with a lock: there one thread at a time is inside in either way, and the bias comes back.

use std::fmt;

use crate::{
    fence,
    sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock, me, thread},
};

/// How often the right is given to somebody.
const GRANTS: usize = 8;

/// `owner`, if nobody has had the right yet;
const NOBODY: u64 = 0;
/// while it is being taken from somebody;
const MOVING: u64 = 1;
/// once nobody has it any more. All else is a thread's number times `GRANTS`, and which grant it is.
const SHARED: u64 = 2;

/// Lets one thread do something alone at no cost, for as long as it is the only one that does it.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// let (solo, count) = (millrace_ring::Solo::new(), AtomicU64::new(0));
/// let add = || match solo.enter() {
///     Some(_alone) => count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed),
///     None => drop(count.fetch_add(1, Ordering::Relaxed)),
/// };
/// std::thread::scope(|s| {
///     for _ in 0..4 {
///         s.spawn(|| (0..1000).for_each(|_| add()));
///     }
/// });
/// assert_eq!(count.into_inner(), 4000);
/// ```
pub struct Solo {
    /// Whose right it is.
    owner: AtomicU64,
    /// Whether the thread that a grant gave the right to makes use of it. One for each grant, so that a former owner that
    /// comes too late does not write where the next one does.
    inside: [AtomicBool; GRANTS],
    /// Grants so far. Held while the owner changes.
    granted: Mutex<usize>,
}

/// The right, while it is being used.
///
/// ```
/// let solo = millrace_ring::Solo::new();
/// drop(solo.enter());
/// solo.share(); // does not come back while somebody is inside
/// assert!(solo.enter().is_none(), "nobody is alone any more");
/// ```
#[must_use = "the right ends when this is dropped"]
#[derive(Debug)]
pub struct Alone<'a> {
    inside: &'a AtomicBool,
}

impl Drop for Alone<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // Release: who waits for it sees what was done.
        self.inside.store(false, Ordering::Release);
    }
}

impl Default for Solo {
    fn default() -> Self {
        Self::new()
    }
}

impl Solo {
    /// A right that nobody has. Where the fences cost both sides the same, it is shared from the start.
    pub fn new() -> Self {
        fence::prepare();
        Self {
            owner: AtomicU64::new(if fence::is_asymmetric() { NOBODY } else { SHARED }),
            inside: std::array::from_fn(|_| AtomicBool::new(false)),
            granted: Mutex::new(0),
        }
    }

    /// Enters, if this thread may be alone: nobody else does until what it gets is dropped. Otherwise never again will any
    /// thread be alone, and all that was done by those who were has been done. A thread enters once at a time.
    #[inline(always)]
    pub fn enter(&self) -> Option<Alone<'_>> {
        // Acquire: a right that is shared is seen with all that was done alone.
        let owner = self.owner.load(Ordering::Acquire);
        if owner == SHARED {
            return None;
        }
        if owner / GRANTS as u64 == me() {
            let inside = &self.inside[owner as usize % GRANTS];
            inside.store(true, Ordering::Relaxed);
            fence::light();
            let alone = Alone { inside };
            if self.owner.load(Ordering::Relaxed) == owner {
                return Some(alone);
            }
        }
        self.ask()
    }

    /// Takes the right from its owner; none if that happened too often.
    #[cold]
    fn ask(&self) -> Option<Alone<'_>> {
        let mut granted = lock(&self.granted);
        if !self.stop() {
            return None;
        }
        let Some(inside) = self.inside.get(*granted) else {
            self.owner.store(SHARED, Ordering::Release);
            return None;
        };
        // Before anybody can know whose it is.
        inside.store(true, Ordering::Relaxed);
        self.owner.store(me() * GRANTS as u64 + *granted as u64, Ordering::Relaxed);
        *granted += 1;
        Some(Alone { inside })
    }

    /// Nobody is alone from now on. Waits for who is.
    pub fn share(&self) {
        let _granted = lock(&self.granted);
        if self.stop() {
            self.owner.store(SHARED, Ordering::Release);
        }
    }

    /// Takes the right from its owner. False if it is shared. The lock is held.
    fn stop(&self) -> bool {
        let owner = self.owner.load(Ordering::Relaxed);
        if owner == SHARED {
            return false;
        }
        if owner != NOBODY {
            self.owner.store(MOVING, Ordering::Relaxed);
            fence::heavy();
            // Acquire: what the owner did is seen.
            while self.inside[owner as usize % GRANTS].load(Ordering::Acquire) {
                thread::yield_now();
            }
        }
        true
    }
}

impl fmt::Debug for Solo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shared = self.owner.load(Ordering::Relaxed) == SHARED;
        f.debug_struct("Solo").field("shared", &shared).finish_non_exhaustive()
    }
}
