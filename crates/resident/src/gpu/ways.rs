//! The way that a kernel's answers take to the kernels that it is linked to, and changing it.
//!
//! If the device reaches all of them, it puts answers into their rings itself; otherwise the host carries all of them, so
//! that everybody gets them in the same order. The two ways end in different rings of a receiver, which takes from them in
//! turn. So a sender whose links change from one way to the other waits until what went the old way has been handled, and,
//! by those who may have to do it again, is in a checkpoint.

use std::sync::{Arc, atomic::Ordering};

use super::arena::{Arena, own};
use crate::port::Port;

/// Who carries a kernel's answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Device,
    Host,
}

/// A kernel that could be reached by the device: where its own block is.
pub(super) type Neighbour = (Arc<Port>, usize);

/// A change of the way that is under way.
pub(super) enum Crossing {
    /// The host has not delivered everything.
    Carrying,
    /// Receivers have not got so far.
    Passing(Vec<Mark>),
}

/// What a receiver has to have handled.
pub(super) struct Mark {
    port: Arc<Port>,
    own: usize,
    /// By which way it came.
    way: Way,
    position: u32,
    /// The checkpoint that will contain it.
    checkpoint: Option<u32>,
}

impl Mark {
    /// All that a receiver was sent so far.
    pub(super) fn here(arena: &Arena, (port, own): Neighbour, way: Way) -> Self {
        let position = match way {
            Way::Device => arena.get(own + own::LINK_TAIL),
            Way::Host => port.normal_tail(),
        };
        Self { port, own, way, position, checkpoint: None }
    }

    pub(super) fn is_passed(&mut self, arena: &Arena) -> bool {
        if self.port.status().is_ended() {
            return true;
        }
        let head = match self.way {
            Way::Device => arena.get(self.own + own::LINK_HEAD),
            Way::Host => self.port.region.control().normal_head.load(Ordering::Acquire),
        };
        if (head.wrapping_sub(self.position) as i32) < 0 {
            return false;
        }
        if self.port.journal.get().is_none() {
            return true;
        }
        let checkpoint = *self.checkpoint.get_or_insert_with(|| self.port.want_checkpoint());
        self.port.is_checkpointed(checkpoint).is_some()
    }
}

/// Whether messages get from one kernel to another, by whatever others are between them.
pub(super) fn leads(sends: &[Vec<usize>], from: usize, to: usize) -> bool {
    let (mut seen, mut next) = (vec![false; sends.len()], vec![from]);
    while let Some(at) = next.pop() {
        if at == to {
            return true;
        }
        if !std::mem::replace(&mut seen[at], true) {
            next.extend(&sends[at]);
        }
    }
    false
}
