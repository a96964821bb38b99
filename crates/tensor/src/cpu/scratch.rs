//! Memory that is used again from call to call.

use std::sync::{Mutex, PoisonError};

/// Bytes of one piece that is kept; larger ones go back to the system.
const LARGEST: usize = 16 << 20;
/// Pieces that are kept: more threads than that share them by chance.
const KEPT: usize = 16;

/// Pieces of memory for the threads that work on something, kept for the next time.
#[derive(Default)]
pub(crate) struct Scratch<T = f32>(Mutex<Vec<Vec<T>>>);

impl<T: Copy + Default> Scratch<T> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Calls `with` with so many elements, whose values are anything.
    pub(crate) fn with<R>(&self, elements: usize, with: impl FnOnce(&mut [T]) -> R) -> R {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut piece = lock().pop().unwrap_or_default();
        if piece.len() < elements {
            piece.resize(elements, T::default());
        }
        let result = with(&mut piece[..elements]);
        let mut kept = lock();
        if size_of_val(&piece[..]) <= LARGEST && kept.len() < KEPT {
            kept.push(piece);
        }
        result
    }
}
