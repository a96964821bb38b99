//! The way that a kernel's answers take to the kernels that it is linked to, and changing it.
//!
//! If the device reaches all of them, it puts answers into their rings itself; otherwise the host carries all of them, so
//! that everybody gets them in the same order. The two ways end in different rings of a receiver, which takes from them in
//! turn. So a sender whose links change from one way to the other waits until what went the old way has been handled, and,
//! by those who may have to do it again, is in a checkpoint.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

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

/// The way that one kernel's messages take, and what it waits for before they take another.
pub(super) struct Route {
    /// Who carries them, or did last.
    way: Way,
    /// It waits, because they are going to take another way; not longer than until then.
    crossing: Option<(Crossing, Instant)>,
}

impl Route {
    pub(super) fn by(way: Way) -> Self {
        Self { way, crossing: None }
    }

    pub(super) fn is_crossing(&self) -> bool {
        self.crossing.is_some()
    }

    /// When waiting is over.
    pub(super) fn until(&self) -> Option<Instant> {
        self.crossing.as_ref().map(|(_, until)| *until)
    }

    /// Whether messages can take a way; if not, they will when [`Self::can_cross`] says so. `to` are those of their
    /// receivers that both ways lead to, and `carrying` says whether the host has not delivered everything.
    pub(super) fn take(
        &mut self,
        way: Way,
        arena: &Arena,
        to: &[Neighbour],
        carrying: bool,
        patience: Duration,
    ) -> bool {
        if way == self.way || to.is_empty() {
            self.crossing = None;
            // What the host still carries is not forgotten because nobody is near at the moment.
            if way == Way::Host {
                self.way = way;
            }
            return true;
        }
        let until = self.until().unwrap_or_else(|| Instant::now() + patience);
        let waits = Instant::now() < until;
        let mut marks = match self.crossing.take() {
            Some((Crossing::Passing(marks), _)) => marks,
            _ if carrying && waits => {
                self.crossing = Some((Crossing::Carrying, until));
                return false;
            }
            _ => to.iter().map(|to| Mark::here(arena, to.clone(), self.way)).collect(),
        };
        marks.retain_mut(|mark| !mark.is_passed(arena));
        if !marks.is_empty() && waits {
            self.crossing = Some((Crossing::Passing(marks), until));
            return false;
        }
        if carrying || !marks.is_empty() {
            tracing::warn!("a linked kernel did not take its messages within {patience:?}; some may change places");
        }
        self.way = way;
        true
    }

    /// Whether what messages wait for before they take another way has happened, or waiting is over.
    pub(super) fn can_cross(&mut self, arena: &Arena, carrying: bool) -> bool {
        match &mut self.crossing {
            None => false,
            Some((_, until)) if Instant::now() >= *until => true,
            Some((Crossing::Carrying, _)) => !carrying,
            Some((Crossing::Passing(marks), _)) => marks.iter_mut().all(|mark| mark.is_passed(arena)),
        }
    }
}

/// A change of the way that is under way.
enum Crossing {
    /// The host has not delivered everything.
    Carrying,
    /// Receivers have not got so far.
    Passing(Vec<Mark>),
}

/// What a receiver has to have handled.
struct Mark {
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
    fn here(arena: &Arena, (port, own): Neighbour, way: Way) -> Self {
        let position = match way {
            Way::Device => arena.get(own + own::LINK_TAIL),
            Way::Host => port.normal_tail(),
        };
        Self { port, own, way, position, checkpoint: None }
    }

    fn is_passed(&mut self, arena: &Arena) -> bool {
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
