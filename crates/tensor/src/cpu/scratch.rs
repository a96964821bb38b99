//! Memory that a kernel's launches use again.

use std::sync::{Mutex, PoisonError};

/// Elements of one piece that is kept; larger ones go back to the system.
const LARGEST: usize = 4 << 20;
/// Pieces that are kept: more threads than that share them by chance.
const KEPT: usize = 16;

/// Pieces of memory for the threads of a launch, kept from launch to launch.
#[derive(Default)]
pub(crate) struct Scratch(Mutex<Vec<Vec<f32>>>);

impl Scratch {
    /// Calls `with` with so many elements, whose values are anything.
    pub(crate) fn with<R>(&self, elements: usize, with: impl FnOnce(&mut [f32]) -> R) -> R {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut piece = lock().pop().unwrap_or_default();
        if piece.len() < elements {
            piece.resize(elements, 0.0);
        }
        let result = with(&mut piece[..elements]);
        let mut kept = lock();
        if piece.len() <= LARGEST && kept.len() < KEPT {
            kept.push(piece);
        }
        result
    }
}
