//! Objects that are used again: taking one and giving it back is one compare-and-swap each, and allocates only while
//! the slab grows.
//!
//! The free list is R. Kent Treiber's stack over indices. Its head is one word that holds the index of the first free
//! node, how many nodes are out, whether the slab's owner is gone, and a tag that changes with every move so that a
//! head which was taken and returned in between is noticed (a mistake needs an exact multiple of 2²³ moves between
//! two instructions of one thread). Counting in the same word makes it exact, and tells the last node to come back
//! after the owner is gone to free everything, so nothing else has to keep the slab alive.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

use crossbeam_utils::CachePadded;

use crate::sync::{AtomicPtr, AtomicU32, AtomicU64, Mutex, Ordering, lock};

/// What a slab can hold: made on demand, and made reusable again when it comes back.
///
/// ```
/// #[derive(Default)]
/// struct Scratch(Vec<u8>);
/// impl millrace_ring::Recycle for Scratch {
///     fn recycle(&mut self) {
///         self.0.clear(); // keeps the capacity
///     }
/// }
/// ```
pub trait Recycle: Default {
    /// Called when the object is given back. What it leaves behind is what the next user finds.
    fn recycle(&mut self);
}

const INDEX_BITS: u32 = 20;
const INDEX: u64 = (1 << INDEX_BITS) - 1;
const ONE_OUT: u64 = 1 << INDEX_BITS;
const OUT: u64 = INDEX << INDEX_BITS;
const OWNERLESS: u64 = 1 << (2 * INDEX_BITS);
const ONE_TAG: u64 = OWNERLESS << 1;
/// Everything that must survive a move of the head.
const STICKY: u64 = !INDEX;

/// The first chunk's nodes; every further chunk doubles what there is.
const FIRST: usize = if cfg!(loom) { 1 } else { 32 };
const CHUNKS: usize = if cfg!(loom) { 3 } else { 15 };

/// The most objects that can be out at once.
pub const MAX_OUT: usize = (FIRST << CHUNKS) - FIRST;

pub(crate) struct Node<T> {
    /// Index of the next free node, plus one; zero at the end. Meaningful while this one is free.
    next: AtomicU32,
    /// Own index, plus one.
    index: u32,
    home: NonNull<Core<T>>,
    /// Not one of the model's cells: both ends of a reply reach into it at once, and what they share is checked there.
    value: std::cell::UnsafeCell<T>,
}

struct Core<T> {
    head: CachePadded<AtomicU64>,
    /// Chunk `k` has `FIRST << k` nodes. Set once, freed with the core.
    chunks: [AtomicPtr<Node<T>>; CHUNKS],
    /// How many chunks there are; held while one is added.
    grown: Mutex<usize>,
}

impl<T> Core<T> {
    fn node(&self, index: u32) -> NonNull<Node<T>> {
        // Chunk k begins at FIRST * (2^k - 1).
        let position = index as usize - 1 + FIRST;
        let chunk = (position / FIRST).ilog2() as usize;
        let start = self.chunks[chunk].load(Ordering::Acquire);
        // SAFETY: an index is handed out only after its chunk was stored, and lies within it.
        unsafe { NonNull::new_unchecked(start.add(position - (FIRST << chunk))) }
    }

    #[inline]
    fn take(&self) -> Option<NonNull<Node<T>>> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let index = (head & INDEX) as u32;
            if index == 0 {
                return None;
            }
            let node = self.node(index);
            // SAFETY: nodes live as long as the core. If another thread has taken this one meanwhile, `next` may be
            // anything, and the tag makes the exchange fail.
            let next = unsafe { node.as_ref() }.next.load(Ordering::Relaxed);
            let new = ((head & STICKY) | u64::from(next)).wrapping_add(ONE_OUT).wrapping_add(ONE_TAG);
            match self.head.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(node),
                Err(now) => head = now,
            }
        }
    }

    /// Puts a chain of free nodes on the list; says whether that was the last piece of an ownerless slab.
    ///
    /// Pointers, because another thread may free everything as soon as the nodes are on the list, while a reference
    /// that was passed in would have to stay valid until we return.
    ///
    /// # Safety
    /// The core is alive until the nodes are on the list, and the caller alone has them.
    #[inline]
    unsafe fn put(this: NonNull<Self>, first: u32, last: NonNull<Node<T>>, returned: u64) -> bool {
        // SAFETY: by contract; neither is used after the exchange succeeded.
        let (list, last) = unsafe { (&this.as_ref().head, &last.as_ref().next) };
        let mut head = list.load(Ordering::Relaxed);
        loop {
            last.store((head & INDEX) as u32, Ordering::Relaxed);
            let new = ((head & STICKY) | u64::from(first)).wrapping_sub(returned * ONE_OUT).wrapping_add(ONE_TAG);
            match list.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return new & OWNERLESS != 0 && new & OUT == 0,
                Err(now) => head = now,
            }
        }
    }
}

impl<T: Default> Core<T> {
    /// Adds a chunk, unless another thread just did. False if the slab has reached its limit. `home` is the pointer to
    /// this core that it will be freed through.
    #[cold]
    fn grow(&self, home: NonNull<Self>) -> bool {
        let mut grown = lock(&self.grown);
        if self.head.load(Ordering::Acquire) & INDEX != 0 {
            return true;
        }
        let chunk = *grown;
        if chunk == CHUNKS {
            return false;
        }
        let (start, count) = ((FIRST << chunk) - FIRST, FIRST << chunk);
        let nodes: Box<[Node<T>]> = (0..count)
            .map(|i| {
                let index = (start + i + 1) as u32;
                Node { next: AtomicU32::new(index + 1), index, home, value: std::cell::UnsafeCell::new(T::default()) }
            })
            .collect();
        let nodes = Box::into_raw(nodes) as *mut Node<T>;
        self.chunks[chunk].store(nodes, Ordering::Release);
        *grown = chunk + 1;
        // SAFETY: the chunk was just stored and has `count` nodes, which nobody else knows yet. Whoever called us keeps
        // the core alive.
        unsafe { Self::put(home, start as u32 + 1, NonNull::new_unchecked(nodes.add(count - 1)), 0) };
        true
    }
}

impl<T> Drop for Core<T> {
    fn drop(&mut self) {
        for k in 0..CHUNKS {
            let nodes = self.chunks[k].load(Ordering::Relaxed);
            if !nodes.is_null() {
                // SAFETY: `grow` leaked exactly this slice, and no node is out.
                drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(nodes, FIRST << k)) });
            }
        }
    }
}

/// A pool of objects that are used again.
///
/// ```
/// use millrace_ring::{Recycle, Slab};
/// #[derive(Default)]
/// struct Scratch(Vec<u8>);
/// impl Recycle for Scratch {
///     fn recycle(&mut self) {
///         self.0.clear();
///     }
/// }
/// let slab = Slab::<Scratch>::new();
/// let mut loan = slab.take().expect("far from the limit");
/// loan.0.extend_from_slice(b"abc");
/// let memory = loan.0.as_ptr();
/// drop(loan);
/// let mut again = slab.take().expect("far from the limit");
/// again.0.push(1);
/// assert_eq!(again.0.as_ptr(), memory, "the same allocation serves again");
/// assert_eq!(slab.out(), 1);
/// ```
pub struct Slab<T: Send> {
    core: NonNull<Core<T>>,
}

// SAFETY: the slab hands objects from thread to thread (`T: Send`), and its own fields are atomic or locked.
unsafe impl<T: Send> Send for Slab<T> {}
// SAFETY: as above; a shared slab gives no two threads the same object.
unsafe impl<T: Send> Sync for Slab<T> {}

impl<T: Default + Send> Slab<T> {
    /// An empty slab; memory comes with the first use.
    pub fn new() -> Self {
        let core = Core {
            head: CachePadded::new(AtomicU64::new(0)),
            chunks: std::array::from_fn(|_| AtomicPtr::new(std::ptr::null_mut())),
            grown: Mutex::new(0),
        };
        Self { core: NonNull::from(Box::leak(Box::new(core))) }
    }

    fn core(&self) -> &Core<T> {
        // SAFETY: the core is freed only after the slab was dropped.
        unsafe { self.core.as_ref() }
    }

    /// A free node. `None` if the slab has reached its limit.
    #[inline]
    pub(crate) fn take_node(&self) -> Option<NonNull<Node<T>>> {
        loop {
            if let Some(node) = self.core().take() {
                return Some(node);
            }
            if !self.core().grow(self.core) {
                return None;
            }
        }
    }

    /// Objects that were taken and not yet given back.
    pub fn out(&self) -> usize {
        ((self.core().head.load(Ordering::Acquire) & OUT) >> INDEX_BITS) as usize
    }
}

impl<T: Recycle + Send> Slab<T> {
    /// An object, used before or new. `None` if [`MAX_OUT`] are out.
    #[inline]
    pub fn take(&self) -> Option<Loan<T>> {
        self.take_node().map(|node| Loan { node })
    }
}

impl<T: Default + Send> Default for Slab<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Send> Drop for Slab<T> {
    fn drop(&mut self) {
        // SAFETY: the core is alive until the owner and every node are gone; `free` only if we are the last.
        unsafe {
            let core = self.core.as_ref();
            let before = core.head.fetch_or(OWNERLESS, Ordering::AcqRel);
            if before & OUT == 0 {
                drop(Box::from_raw(self.core.as_ptr()));
            }
        }
    }
}

impl<T: Send> fmt::Debug for Slab<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slab").finish_non_exhaustive()
    }
}

impl<T> Node<T> {
    /// Returns a node to its slab.
    ///
    /// # Safety
    /// The node was taken from a slab, nobody else uses it, and it is not used afterwards.
    #[inline]
    pub(crate) unsafe fn give_back(node: NonNull<Self>) {
        // SAFETY: by contract the node is alive, which keeps its home alive.
        unsafe {
            let (home, index) = (node.as_ref().home, node.as_ref().index);
            if Core::put(home, index, node, 1) {
                drop(Box::from_raw(home.as_ptr()));
            }
        }
    }

    pub(crate) fn value(&self) -> *mut T {
        self.value.get()
    }
}

/// An object of a [`Slab`], given back when it is dropped.
pub struct Loan<T: Recycle + Send> {
    node: NonNull<Node<T>>,
}

// SAFETY: a loan is the only way to its object.
unsafe impl<T: Recycle + Send> Send for Loan<T> {}
// SAFETY: a shared loan gives `&T` only.
unsafe impl<T: Recycle + Send + Sync> Sync for Loan<T> {}

impl<T: Recycle + Send> Loan<T> {
    /// Another object of the same slab. `None` if [`MAX_OUT`] are out.
    pub fn sibling(&self) -> Option<Self> {
        // SAFETY: our node keeps its home alive. The slab made for the call must not run its drop: it is not the
        // owner.
        let slab = std::mem::ManuallyDrop::new(Slab { core: unsafe { self.node.as_ref() }.home });
        slab.take()
    }
}

impl<T: Recycle + Send> Deref for Loan<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the node is ours until we give it back.
        unsafe { &*self.node.as_ref().value() }
    }
}

impl<T: Recycle + Send> DerefMut for Loan<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the node is ours until we give it back, and `self` is borrowed mutably.
        unsafe { &mut *self.node.as_ref().value() }
    }
}

impl<T: Recycle + Send> Drop for Loan<T> {
    fn drop(&mut self) {
        /// Gives the node back also when `recycle` panics.
        struct GiveBack<T>(NonNull<Node<T>>);
        impl<T> Drop for GiveBack<T> {
            fn drop(&mut self) {
                // SAFETY: the loan was the only user and is being dropped.
                unsafe { Node::give_back(self.0) };
            }
        }
        let _give_back = GiveBack(self.node);
        self.recycle();
    }
}

impl<T: Recycle + Send + fmt::Debug> fmt::Debug for Loan<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Number(u64);
    impl Recycle for Number {
        fn recycle(&mut self) {
            self.0 = 0;
        }
    }

    #[test]
    fn a_slab_grows_and_counts_what_is_out() {
        let slab = Slab::<Number>::new();
        let loans: Vec<_> = (0..1000).map(|_| slab.take().unwrap()).collect();
        assert_eq!(slab.out(), 1000);
        let distinct: std::collections::HashSet<_> = loans.iter().map(|l| l.node).collect();
        assert_eq!(distinct.len(), 1000);
        drop(loans);
        assert_eq!(slab.out(), 0);
    }

    #[test]
    fn a_loan_outlives_its_slab() {
        let slab = Slab::<Number>::new();
        let (mut a, b) = (slab.take().unwrap(), slab.take().unwrap());
        drop(slab);
        a.0 = 5;
        assert_eq!(a.sibling().unwrap().0, 0);
        drop(b);
        assert_eq!(a.0, 5);
    }

    #[test]
    fn threads_never_share_an_object() {
        let slab = Slab::<Number>::new();
        std::thread::scope(|s| {
            for id in 1..=4u64 {
                let slab = &slab;
                s.spawn(move || {
                    for _ in 0..100_000 {
                        let mut a = slab.take().unwrap();
                        let mut b = slab.take().unwrap();
                        assert_eq!((a.0, b.0), (0, 0));
                        (a.0, b.0) = (id, id);
                        assert_eq!((a.0, b.0), (id, id));
                    }
                });
            }
        });
        assert_eq!(slab.out(), 0);
    }
}
