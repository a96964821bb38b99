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

fn is_same((one, _): &Neighbour, (other, _): &Neighbour) -> bool {
    Arc::ptr_eq(one, other)
}

/// The way that one kernel's messages take, and what it waits for before they take another.
pub(super) struct Route {
    /// Who carries them, or did last.
    way: Way,
    /// The receivers that both ways lead to.
    near: Vec<Neighbour>,
    /// Those that are no longer linked, and who carried messages to them: some may still lie in front of them.
    former: Vec<(Neighbour, Way)>,
    /// It waits, because they are going to take another way; not longer than until then.
    crossing: Option<(Crossing, Instant)>,
}

impl Route {
    pub(super) fn by(way: Way) -> Self {
        Self { way, near: Vec::new(), former: Vec::new(), crossing: None }
    }

    pub(super) fn is_crossing(&self) -> bool {
        self.crossing.is_some()
    }

    /// When waiting is over.
    pub(super) fn until(&self) -> Option<Instant> {
        self.crossing.as_ref().map(|(_, until)| *until)
    }

    /// Whether messages can take a way; if not, they will when [`Self::can_cross`] says so. `near` are those of their
    /// receivers that both ways lead to, of which some cannot be waited for, and `carrying` says whether the host has not
    /// delivered everything.
    pub(super) fn take(
        &mut self,
        way: Way,
        arena: &Arena,
        near: &[Neighbour],
        can_wait_for: impl Fn(&Neighbour) -> bool,
        carrying: bool,
        patience: Duration,
    ) -> bool {
        self.part_from_others_than(near);
        let changes = |(to, last): &(&Neighbour, Way)| *last != way && can_wait_for(to);
        let to: Vec<_> = near.iter().map(|to| (to, self.way_to(to))).filter(changes).collect();
        if to.is_empty() {
            self.settle(way, near);
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
            _ => to.into_iter().map(|(to, last)| Mark::here(arena, to.clone(), last)).collect(),
        };
        marks.retain_mut(|mark| !mark.is_passed(arena));
        if !marks.is_empty() && waits {
            self.crossing = Some((Crossing::Passing(marks), until));
            return false;
        }
        if carrying || !marks.is_empty() {
            tracing::warn!("a linked kernel did not take its messages within {patience:?}; some may change places");
        }
        self.settle(way, near);
        true
    }

    /// Who carried messages to a receiver last.
    fn way_to(&self, to: &Neighbour) -> Way {
        self.former.iter().find(|(known, _)| is_same(known, to)).map_or(self.way, |(_, way)| *way)
    }

    /// Remembers those whose link was cut.
    fn part_from_others_than(&mut self, near: &[Neighbour]) {
        let is_gone = |known: &mut Neighbour| !near.iter().any(|to| is_same(known, to));
        self.former.extend(self.near.extract_if(.., is_gone).map(|known| (known, self.way)));
        self.former.retain(|((port, _), _)| !port.status().is_ended());
    }

    /// Messages take a way from now on.
    fn settle(&mut self, way: Way, near: &[Neighbour]) {
        self.crossing = None;
        // What the host still carries is not forgotten because nobody is near at the moment.
        if way == Way::Host || !near.is_empty() {
            self.way = way;
        }
        self.near = near.to_vec();
        self.former.retain(|(known, _)| !near.iter().any(|to| is_same(known, to)));
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
