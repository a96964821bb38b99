//! Objects that are used again: taking one and giving it back is one compare-and-swap each, and allocates only while
//! the slab grows.
//!
//! Free nodes are on one of two lists. Takers have the *near* one, and a thread that takes also gives back there, so
//! that it finds what it used last. What other threads give back goes to the *far* list, and when the near one is empty
//! the far one takes its place. So a thread that takes and another that gives back work on cache lines of their own, and
//! meet once for many nodes.
//!
//! Both lists are R. Kent Treiber's stacks over indices. The head of each is one word with the index of the first node,
//! how many nodes are on the list, and a tag that changes with every move so that a head which was taken and returned
//! in between is noticed (a mistake needs an exact multiple of 2²² moves between two instructions of one thread).
//!
//! When the slab's owner goes, the near list closes and its nodes go to the far one. The far head then says that the
//! owner is gone, and how many nodes are there: the last one to come back sees in one step that all are home and frees
//! everything, so nothing else has to keep the slab alive.

use std::{
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
};

use crossbeam_utils::CachePadded;

use crate::{
    prefetch,
    sync::{self, AtomicPtr, AtomicU32, AtomicU64, Mutex, Ordering, lock},
};

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
const COUNT: u64 = INDEX << INDEX_BITS;
/// In the near head: nothing is put there any more.
const CLOSED: u64 = 1 << (2 * INDEX_BITS);
/// In the far head: the owner is gone, and when all nodes are on this list everything is freed.
const OWNERLESS: u64 = CLOSED << 1;
const ONE_TAG: u64 = OWNERLESS << 1;
/// Everything but the list: flags and tag.
const STICKY: u64 = !(INDEX | COUNT);

/// The index of the first node, plus one; zero if there is none.
#[inline(always)]
fn first(head: u64) -> u32 {
    (head & INDEX) as u32
}

/// How many nodes are on the list.
#[inline(always)]
fn count(head: u64) -> u64 {
    (head & COUNT) >> INDEX_BITS
}

/// The head after a move: another first node, another count.
#[inline(always)]
fn moved(head: u64, first: u32, count: u64) -> u64 {
    ((head & STICKY) | u64::from(first) | (count << INDEX_BITS)).wrapping_add(ONE_TAG)
}

/// The first chunk's nodes; every further chunk doubles what there is.
const FIRST: usize = if cfg!(loom) { 1 } else { 32 };
const CHUNKS: usize = if cfg!(loom) { 3 } else { 15 };

/// The most objects that can be out at once.
///
/// ```
/// assert_eq!(millrace_ring::MAX_OUT, (1 << 20) - 32, "about a million");
/// ```
pub const MAX_OUT: usize = (FIRST << CHUNKS) - FIRST;

/// On cache lines of its own: neighbours are used by different threads. What both ends of a reply write comes first.
#[repr(C, align(64))]
pub(crate) struct Node<T> {
    /// Not one of the model's cells: both ends of a reply reach into it at once, and what they share is checked there.
    value: std::cell::UnsafeCell<T>,
    /// Index of the next free node, plus one; zero at the end. Meaningful while this one is free.
    next: AtomicU32,
    /// Own index, plus one.
    index: u32,
    home: NonNull<Core<T>>,
}

struct Core<T> {
    /// Where nodes are taken from.
    near: CachePadded<AtomicU64>,
    /// Where nodes come back to from other threads.
    far: CachePadded<AtomicU64>,
    /// The thread that last found the near list empty: what it gives back goes there.
    taker: AtomicU64,
    /// How many nodes there are. It grows before the new nodes are on a list.
    nodes: AtomicU64,
    /// Chunk `k` has `FIRST << k` nodes. Set once, freed with the core.
    chunks: [AtomicPtr<Node<T>>; CHUNKS],
    /// How many chunks there are. Held while one is added, while the far list becomes the near one, and while the near
    /// list closes.
    grown: Mutex<usize>,
}

impl<T> Core<T> {
    #[inline]
    fn node(&self, index: u32) -> NonNull<Node<T>> {
        // Chunk k begins at FIRST * (2^k - 1).
        let position = index as usize - 1 + FIRST;
        let chunk = (position / FIRST).ilog2() as usize;
        let start = self.chunks[chunk].load(Ordering::Acquire);
        // SAFETY: an index is handed out only after its chunk was stored, and lies within it.
        unsafe { NonNull::new_unchecked(start.add(position - (FIRST << chunk))) }
    }

    #[inline]
    fn next(&self, index: u32) -> &AtomicU32 {
        // SAFETY: nodes live as long as the core, and `next` is reached through shared references only.
        unsafe { &(*self.node(index).as_ptr()).next }
    }

    /// The last node of a chain that nobody else has.
    fn last(&self, mut index: u32) -> u32 {
        loop {
            match self.next(index).load(Ordering::Relaxed) {
                0 => return index,
                next => index = next,
            }
        }
    }

    /// Takes the first node of a list.
    #[inline]
    fn pop(&self, list: &AtomicU64) -> Option<NonNull<Node<T>>> {
        let mut head = list.load(Ordering::Acquire);
        loop {
            let index = first(head);
            if index == 0 {
                return None;
            }
            // If another thread has taken this one meanwhile, `next` may be anything, and the tag makes the exchange
            // fail.
            let next = self.next(index).load(Ordering::Relaxed);
            match list.compare_exchange_weak(
                head,
                moved(head, next, count(head).wrapping_sub(1)),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    if next != 0 {
                        // Another core may have given it back.
                        prefetch::to_write(self.node(next).as_ptr());
                    }
                    return Some(self.node(index));
                }
                Err(now) => head = now,
            }
        }
    }

    /// Takes all nodes of a list, leaving `flags` behind: the first and how many they are.
    fn pop_all(&self, list: &AtomicU64, flags: u64) -> (u32, u64) {
        let mut head = list.load(Ordering::Acquire);
        loop {
            let new = moved(head, 0, 0) | flags;
            match list.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return (first(head), count(head)),
                Err(now) => head = now,
            }
        }
    }

    /// Puts a node on the near list; false if that is closed.
    ///
    /// Pointers, here and below, because another thread may free everything as soon as the nodes are on the list, while
    /// a reference that was passed in would have to stay valid until we return.
    ///
    /// # Safety
    /// The core is alive until the node is on the list, and the caller alone has it.
    #[inline]
    unsafe fn put_near(this: NonNull<Self>, node: NonNull<Node<T>>) -> bool {
        // SAFETY: by contract; none is used after the exchange succeeded.
        let (list, node) = unsafe { (&this.as_ref().near, node.as_ref()) };
        let mut head = list.load(Ordering::Relaxed);
        while head & CLOSED == 0 {
            node.next.store(first(head), Ordering::Relaxed);
            let new = moved(head, node.index, count(head) + 1);
            match list.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
        false
    }

    /// Puts a chain of `number` nodes on the near list, which was found empty and is open.
    fn put_all_near(&self, start: u32, number: u64) {
        let mut head = self.near.load(Ordering::Relaxed);
        let mut last = None;
        loop {
            if first(head) != 0 || last.is_some() {
                // The taker before us gave something back.
                let last = *last.get_or_insert_with(|| self.last(start));
                self.next(last).store(first(head), Ordering::Relaxed);
            }
            let new = moved(head, start, count(head) + number);
            match self.near.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Puts a chain of `number` nodes on the far list; says whether that was the last piece of an ownerless slab.
    ///
    /// # Safety
    /// The core is alive until the nodes are on the list, and the caller alone has them.
    #[inline]
    unsafe fn put_far(this: NonNull<Self>, start: u32, last: NonNull<Node<T>>, number: u64) -> bool {
        // SAFETY: by contract; neither is used after the exchange succeeded.
        let (core, last) = unsafe { (this.as_ref(), &last.as_ref().next) };
        let list = &*core.far;
        let mut head = list.load(Ordering::Acquire);
        loop {
            last.store(first(head), Ordering::Relaxed);
            let new = moved(head, start, count(head) + number);
            // Before the exchange, which fails if nodes were added since. Whoever is about to add some is the owner or
            // has a node, so that not all are home.
            let nodes = core.nodes.load(Ordering::Relaxed);
            match list.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return new & OWNERLESS != 0 && count(new) == nodes,
                Err(now) => head = now,
            }
        }
    }

    /// The owner goes. True if everything is home and to be freed.
    fn close(&self) -> bool {
        let grown = lock(&self.grown);
        let (start, number) = self.pop_all(&self.near, CLOSED);
        if start != 0 {
            // SAFETY: the owner, who called, keeps the core alive until it says that it is gone.
            unsafe { Self::put_far(NonNull::from(self), start, self.node(self.last(start)), number) };
        }
        drop(grown);
        let nodes = self.nodes.load(Ordering::Relaxed);
        let before = self.far.fetch_or(OWNERLESS, Ordering::AcqRel);
        count(before) == nodes
    }

    /// Nodes that are neither on the one list nor on the other, at one moment during the call.
    fn out(&self) -> u64 {
        let _grown = lock(&self.grown);
        loop {
            let near = self.near.load(Ordering::SeqCst);
            let far = self.far.load(Ordering::SeqCst);
            if self.near.load(Ordering::SeqCst) == near {
                return self.nodes.load(Ordering::Relaxed) - count(near) - count(far);
            }
        }
    }
}

impl<T: Default> Core<T> {
    /// The near list is empty: a node of the far one, whose others are near from now on, or else of a new chunk. `None`
    /// if the slab has reached its limit. `home` is the pointer to this core that it will be freed through.
    #[cold]
    fn refill(&self, home: NonNull<Self>) -> Option<NonNull<Node<T>>> {
        let mut grown = lock(&self.grown);
        if let Some(node) = self.pop(&self.near) {
            return Some(node); // somebody was faster
        }
        if first(self.far.load(Ordering::Acquire)) == 0 && !self.grow(&mut grown, home) {
            return None;
        }
        if self.near.load(Ordering::Relaxed) & CLOSED != 0 {
            return self.pop(&self.far).or_else(|| {
                drop(grown); // another sibling took it
                self.refill(home)
            });
        }
        self.taker.store(sync::me(), Ordering::Relaxed);
        let (taken, number) = self.pop_all(&self.far, 0);
        let start = self.next(taken).load(Ordering::Relaxed);
        if start != 0 {
            self.put_all_near(start, number - 1);
        }
        Some(self.node(taken))
    }

    /// Adds a chunk to the far list. False if the slab has reached its limit.
    fn grow(&self, grown: &mut usize, home: NonNull<Self>) -> bool {
        let chunk = *grown;
        if chunk == CHUNKS {
            return false;
        }
        let (start, number) = ((FIRST << chunk) - FIRST, FIRST << chunk);
        let nodes: Box<[Node<T>]> = (0..number)
            .map(|i| {
                let index = (start + i + 1) as u32;
                Node { value: std::cell::UnsafeCell::new(T::default()), next: AtomicU32::new(index + 1), index, home }
            })
            .collect();
        let nodes = Box::into_raw(nodes) as *mut Node<T>;
        self.chunks[chunk].store(nodes, Ordering::Release);
        *grown = chunk + 1;
        self.nodes.store((start + number) as u64, Ordering::Relaxed);
        // SAFETY: the chunk was just stored and has so many nodes, which nobody else knows yet. Whoever called us keeps
        // the core alive.
        unsafe { Self::put_far(home, start as u32 + 1, NonNull::new_unchecked(nodes.add(number - 1)), number as u64) };
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
            near: CachePadded::new(AtomicU64::new(0)),
            far: CachePadded::new(AtomicU64::new(0)),
            taker: AtomicU64::new(0),
            nodes: AtomicU64::new(0),
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
        let core = self.core();
        core.pop(&core.near).or_else(|| core.refill(self.core))
    }

    /// Objects that were taken and not yet given back.
    ///
    /// ```
    /// # #[derive(Default)]
    /// # struct Number(u64);
    /// # impl millrace_ring::Recycle for Number {
    /// #     fn recycle(&mut self) {
    /// #         self.0 = 0;
    /// #     }
    /// # }
    /// let slab = millrace_ring::Slab::<Number>::new();
    /// let loans: Vec<_> = (0..40).map(|_| slab.take()).collect();
    /// assert_eq!(slab.out(), 40);
    /// drop(loans);
    /// assert_eq!(slab.out(), 0);
    /// ```
    pub fn out(&self) -> usize {
        self.core().out() as usize
    }
}

impl<T: Recycle + Send> Slab<T> {
    /// An object, used before or new. `None` if [`MAX_OUT`] are out.
    ///
    /// ```
    /// # #[derive(Default)]
    /// # struct Number(u64);
    /// # impl millrace_ring::Recycle for Number {
    /// #     fn recycle(&mut self) {
    /// #         self.0 = 0;
    /// #     }
    /// # }
    /// let slab = millrace_ring::Slab::<Number>::new();
    /// slab.take().expect("far from the limit").0 = 7; // and back it goes
    /// assert_eq!(slab.take().expect("far from the limit").0, 0, "recycled");
    /// ```
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
        // SAFETY: the core is alive until the owner and every node are gone, and is freed only if we are the last.
        unsafe {
            if self.core.as_ref().close() {
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
        // SAFETY: by contract the node is alive and ours, which keeps its home alive.
        unsafe {
            let (home, index) = (node.as_ref().home, node.as_ref().index);
            if home.as_ref().taker.load(Ordering::Relaxed) == sync::me() && Core::put_near(home, node) {
                return;
            }
            if Core::put_far(home, index, node, 1) {
                drop(Box::from_raw(home.as_ptr()));
            }
        }
    }

    pub(crate) fn value(&self) -> *mut T {
        self.value.get()
    }
}

/// An object of a [`Slab`], given back when it is dropped.
///
/// ```
/// # #[derive(Default)]
/// # struct Number(u64);
/// # impl millrace_ring::Recycle for Number {
/// #     fn recycle(&mut self) {
/// #         self.0 = 0;
/// #     }
/// # }
/// let slab = millrace_ring::Slab::<Number>::new();
/// let mut loan = slab.take().expect("far from the limit");
/// loan.0 = 7;
/// drop(slab); // a loan outlives its slab
/// assert_eq!(loan.0, 7);
/// ```
pub struct Loan<T: Recycle + Send> {
    node: NonNull<Node<T>>,
}

// SAFETY: a loan is the only way to its object.
unsafe impl<T: Recycle + Send> Send for Loan<T> {}
// SAFETY: a shared loan gives `&T` only.
unsafe impl<T: Recycle + Send + Sync> Sync for Loan<T> {}

impl<T: Recycle + Send> Loan<T> {
    /// Another object of the same slab. `None` if [`MAX_OUT`] are out.
    ///
    /// ```
    /// # #[derive(Default)]
    /// # struct Number(u64);
    /// # impl millrace_ring::Recycle for Number {
    /// #     fn recycle(&mut self) {
    /// #         self.0 = 0;
    /// #     }
    /// # }
    /// let slab = millrace_ring::Slab::<Number>::new();
    /// let loan = slab.take().expect("far from the limit");
    /// let another = loan.sibling().expect("far from the limit");
    /// assert_eq!(slab.out(), 2);
    /// drop(another);
    /// assert_eq!(slab.out(), 1);
    /// ```
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
