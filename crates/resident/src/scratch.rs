//! Scratch memory for making archives: what `rkyv` has to remember of parts that have parts themselves.
//!
//! Most archives need none, and most others little. `rkyv` keeps some for each thread, and to get at that is a fifth of what a small
//! archive takes; so here it lies on the stack of who makes one, and what does not fit there is allocated.

use std::{
    alloc::{Layout, alloc, dealloc, handle_alloc_error},
    marker::PhantomData,
    mem::MaybeUninit,
    ptr::NonNull,
};

use rkyv::ser::Allocator;

/// Bytes on the stack.
const SIZE: usize = 1024;
const ALIGN: usize = 16;

/// Memory for a [`Scratch`].
#[repr(align(16))]
pub(crate) struct Space(MaybeUninit<[u8; SIZE]>);

impl Space {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self(MaybeUninit::uninit())
    }
}

/// Scratch memory: what was taken last is given back first.
#[derive(Debug)]
#[doc(hidden)]
pub struct Scratch<'a> {
    start: NonNull<u8>,
    used: usize,
    /// What did not fit.
    large: Vec<(NonNull<u8>, Layout)>,
    space: PhantomData<&'a mut ()>,
}

impl<'a> Scratch<'a> {
    #[inline(always)]
    pub(crate) fn over(space: &'a mut Space) -> Self {
        Self { start: NonNull::from(&mut space.0).cast(), used: 0, large: Vec::new(), space: PhantomData }
    }

    #[cold]
    fn allocate(&mut self, layout: Layout) -> NonNull<u8> {
        // SAFETY: the size is not zero, by the word of who asks for it.
        let start = unsafe { alloc(layout) };
        let start = NonNull::new(start).unwrap_or_else(|| handle_alloc_error(layout));
        self.large.push((start, layout));
        start
    }

    /// Frees large blocks, those from this number on.
    fn free_from(&mut self, first: usize) {
        for (start, layout) in self.large.drain(first..) {
            // SAFETY: it was allocated with this layout, and is not in the list any more.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        self.free_from(0); // if making the archive failed half way
    }
}

// SAFETY: each piece is of the space or was just allocated, has the size and alignment asked for, and nobody else's bytes: what is
// behind it in the space is free.
unsafe impl<E> Allocator<E> for Scratch<'_> {
    #[inline]
    unsafe fn push_alloc(&mut self, layout: Layout) -> Result<NonNull<[u8]>, E> {
        let at = self.used.next_multiple_of(layout.align());
        let fits = layout.align() <= ALIGN && at <= SIZE && layout.size() <= SIZE - at;
        let start = if fits {
            self.used = at + layout.size();
            // SAFETY: it is inside the space.
            unsafe { self.start.add(at) }
        } else {
            self.allocate(layout)
        };
        Ok(NonNull::slice_from_raw_parts(start, layout.size()))
    }

    #[inline]
    unsafe fn pop_alloc(&mut self, start: NonNull<u8>, _: Layout) -> Result<(), E> {
        // With it goes all that was taken after it and never given back.
        match self.large.iter().rposition(|(large, _)| *large == start) {
            Some(place) => self.free_from(place),
            None => self.used = start.addr().get() - self.start.addr().get(),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rkyv::rancor::Error;

    use super::*;

    #[test]
    fn pieces_are_aligned_and_apart_wherever_they_are() {
        let mut space = Space::new();
        let mut scratch = Scratch::over(&mut space);
        let layouts = [(1, 1), (24, 8), (100, 16), (64, 64), (900, 4), (5000, 8), (16, 16)]
            .map(|(size, align)| Layout::from_size_align(size, align).unwrap());
        for _ in 0..3 {
            let mut pieces = Vec::new();
            for (n, layout) in layouts.into_iter().enumerate() {
                // SAFETY: no layout is empty.
                let piece = unsafe { Allocator::<Error>::push_alloc(&mut scratch, layout) }.unwrap().cast::<u8>();
                assert!(piece.addr().get().is_multiple_of(layout.align()));
                // SAFETY: so many bytes were asked for.
                unsafe { piece.write_bytes(n as u8, layout.size()) };
                pieces.push(piece);
            }
            assert_eq!(scratch.large.len(), 3, "two are too large, and one is aligned too well");
            for (n, layout) in layouts.into_iter().enumerate().rev() {
                // SAFETY: it was all written, and is given back in order.
                unsafe {
                    let bytes = std::slice::from_raw_parts(pieces[n].as_ptr(), layout.size());
                    assert!(bytes.iter().all(|&byte| byte == n as u8));
                    Allocator::<Error>::pop_alloc(&mut scratch, pieces[n], layout).unwrap();
                }
            }
            assert!(scratch.used == 0 && scratch.large.is_empty());
        }
        // SAFETY: as above; it is never given back.
        unsafe { Allocator::<Error>::push_alloc(&mut scratch, layouts[5]) }.unwrap();
    }
}
