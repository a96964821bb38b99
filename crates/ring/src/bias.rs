//! A way past a lock for the one thread that uses it.
//!
//! Taking a lock is an atomic exchange, also when nobody else wants it, and giving it back is often another one. Most
//! locks are taken by one thread over and over. So a lock may be *biased* to such a thread, its owner: the owner says
//! that it is inside and looks whether it is still the owner, which are a store and a load. Whoever else has taken the
//! lock ends the bias first: it says that there is no owner any more and looks whether somebody is inside. That is
//! Dekker's handshake again, so the owner needs no fence and the other one pays for both ([`crate::fence`]). The idea is
//! that of Kawachiya, Koseki and Onodera's lock reservation (OOPSLA 2002).
//!
//! Ending a bias costs as much as many ordinary turns. So a thread becomes the owner only after it took the lock many
//! times in a row, and every time that turned out wrong, twice as many.

use std::marker::PhantomData;

use crate::{
    fence,
    sync::{AtomicBool, AtomicU32, AtomicU64, Ordering, me, me_if_numbered, thread},
};

/// Turns in a row that make a thread the owner, at first: what ending a bias costs, in turns.
const FIRST: u32 = if cfg!(loom) { 1 } else { 256 };
const MOST: u32 = 1 << 20;
/// No thread has this number, and none that has no number yet takes itself for this one.
const NOBODY: u64 = u64::MAX;

/// Who may pass a lock without taking it. It goes with a lock of any kind: whoever has taken that calls [`Self::close`].
///
/// ```
/// use std::sync::Mutex;
/// let (lock, bias) = (Mutex::new(()), millrace_ring::Bias::new());
/// let turn = || {
///     if bias.enter().is_some() {
///         return true; // what the lock guards is ours until the end of this block
///     }
///     let _locked = lock.lock().unwrap();
///     assert!(bias.close(), "what the lock guards is ours");
///     bias.count(); // last
///     false
/// };
/// let passed = (0..10_000).filter(|_| turn()).count();
/// assert!(passed > 9_000, "nobody else came");
/// std::thread::scope(|s| s.spawn(|| assert!(!turn())).join().unwrap());
/// assert!(!turn(), "somebody else came");
/// ```
#[derive(Debug)]
pub struct Bias {
    /// The thread that may enter. Set by itself, and taken away by others, who have the lock.
    owner: AtomicU64,
    /// Whether the owner is inside. Written by nobody but the one thread that ever is the owner: one that was
    /// interrupted before it says that it is inside may do so when it no longer is the owner, and takes it back then.
    inside: AtomicBool,
    /// The thread that is going to be the owner, and for good once it was. This and what follows is changed by whoever
    /// has the lock.
    candidate: AtomicU64,
    /// How often it had the lock in a row.
    turns: AtomicU32,
    /// How often it takes; more than `FIRST` if it has been the owner.
    needed: AtomicU32,
}

impl Bias {
    /// Nobody is the owner.
    pub fn new() -> Self {
        fence::prepare();
        Self {
            owner: AtomicU64::new(NOBODY),
            inside: AtomicBool::new(false),
            candidate: AtomicU64::new(0),
            turns: AtomicU32::new(0),
            needed: AtomicU32::new(FIRST),
        }
    }

    /// Passes the lock, if the caller is the owner and not inside already.
    ///
    /// ```
    /// let bias = millrace_ring::Bias::new();
    /// (0..10_000).for_each(|_| bias.count());
    /// let inside = bias.enter();
    /// assert!(inside.is_some() && bias.enter().is_none());
    /// ```
    #[inline(always)]
    pub fn enter(&self) -> Option<Inside<'_>> {
        let me = me_if_numbered();
        if self.owner.load(Ordering::Relaxed) != me || self.inside.load(Ordering::Relaxed) {
            return None;
        }
        self.inside.store(true, Ordering::Relaxed);
        let inside = Inside { bias: self, here: PhantomData };
        fence::light();
        (self.owner.load(Ordering::Relaxed) == me).then_some(inside)
    }

    /// For whoever has taken the lock: sees to it that nobody else passes it, and waits a while for the owner if it is inside.
    /// (Who is the owner and takes the lock all the same has to see to it that it does not pass it meanwhile.)
    /// False if it still is, or if that is the caller itself: what the lock guards is not the caller's then.
    ///
    /// ```
    /// let bias = millrace_ring::Bias::new();
    /// let inside = (0..10_000).find_map(|_| {
    ///     assert!(bias.close());
    ///     bias.count();
    ///     bias.enter()
    /// });
    /// assert!(inside.is_some() && !bias.close() && bias.enter().is_none(), "once at a time");
    /// std::thread::scope(|s| s.spawn(|| assert!(!bias.close())).join().unwrap());
    /// drop(inside);
    /// assert!(bias.close());
    /// ```
    #[inline]
    pub fn close(&self) -> bool {
        self.close_or(|| self.wait())
    }

    /// [`Self::close`] without waiting.
    ///
    /// ```
    /// let bias = millrace_ring::Bias::new();
    /// (0..10_000).for_each(|_| bias.count());
    /// let inside = bias.enter();
    /// std::thread::scope(|s| s.spawn(|| assert!(!bias.try_close())).join().unwrap());
    /// drop(inside);
    /// assert!(bias.try_close() && bias.enter().is_none(), "somebody else came");
    /// ```
    #[inline]
    pub fn try_close(&self) -> bool {
        self.close_or(|| false)
    }

    /// `wait` says whether the owner is outside by then.
    #[inline(always)]
    fn close_or(&self, wait: impl FnOnce() -> bool) -> bool {
        let (me, owner) = (me(), self.owner.load(Ordering::Relaxed));
        if owner == me {
            return !self.inside.load(Ordering::Relaxed);
        }
        if owner != NOBODY {
            self.owner.store(NOBODY, Ordering::Relaxed);
            fence::heavy();
        }
        // Also if somebody else ended it, who may have waited in vain.
        if self.inside.load(Ordering::Acquire) && !wait() {
            return false;
        }
        if self.candidate.load(Ordering::Relaxed) != me && self.turns.load(Ordering::Relaxed) != 0 {
            self.turns.store(0, Ordering::Relaxed);
        }
        true
    }

    #[cold]
    fn wait(&self) -> bool {
        for look in 0..1000 {
            if look < 32 && cfg!(not(loom)) {
                std::hint::spin_loop();
            } else {
                thread::yield_now();
            }
            if !self.inside.load(Ordering::Acquire) {
                return true;
            }
        }
        std::thread::sleep(std::time::Duration::from_micros(50)); // whoever tries again and again keeps no core busy
        false
    }

    /// For whoever is about to give the lock back and would rather have entered: counts its turns, and makes it the owner
    /// if they are enough.
    ///
    /// ```
    /// let bias = millrace_ring::Bias::new();
    /// bias.count();
    /// assert!(bias.enter().is_none(), "one turn is not enough");
    /// (0..10_000).for_each(|_| bias.count());
    /// assert!(bias.enter().is_some());
    /// ```
    #[inline]
    pub fn count(&self) {
        let (me, needed) = (me(), self.needed.load(Ordering::Relaxed));
        if self.candidate.load(Ordering::Relaxed) != me {
            if needed == FIRST {
                self.candidate.store(me, Ordering::Relaxed);
            }
            return;
        }
        let turns = self.turns.load(Ordering::Relaxed) + 1;
        if turns < needed {
            return self.turns.store(turns, Ordering::Relaxed);
        }
        self.turns.store(0, Ordering::Relaxed);
        self.needed.store((needed * 2).min(MOST), Ordering::Relaxed);
        self.owner.store(me, Ordering::Relaxed);
    }

    /// Whether the owner is inside, and may not know what the caller did before.
    ///
    /// ```
    /// let bias = millrace_ring::Bias::new();
    /// let inside = (0..10_000).find_map(|_| {
    ///     bias.count();
    ///     bias.enter()
    /// });
    /// assert!(bias.is_occupied());
    /// drop(inside);
    /// assert!(!bias.is_occupied());
    /// ```
    pub fn is_occupied(&self) -> bool {
        fence::heavy();
        self.inside.load(Ordering::Acquire)
    }
}

impl Default for Bias {
    fn default() -> Self {
        Self::new()
    }
}

/// The owner of a [`Bias`] is inside for as long as it has this.
///
/// ```
/// let bias = millrace_ring::Bias::new();
/// assert!(bias.enter().is_none(), "who never had the lock is not its owner");
/// ```
#[derive(Debug)]
#[must_use = "what the lock guards is yours until this is dropped"]
pub struct Inside<'a> {
    bias: &'a Bias,
    /// It stays on the owner's thread.
    here: PhantomData<*const ()>,
}

impl Drop for Inside<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        #[cfg(not(loom))]
        self.bias.inside.store(false, Ordering::Release);
        // Loom lets whoever waits miss a plain store any number of times.
        #[cfg(loom)]
        self.bias.inside.swap(false, Ordering::Release);
    }
}
