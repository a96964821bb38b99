//! Links that leave the device: to kernels on the CPU, or in another house. The device cannot reach their rings, so the
//! keeper takes what the kernel sends from its outbound ring and carries it on. When there is no room it waits, and so
//! does the kernel, once its outbound ring is full.

use std::{collections::VecDeque, sync::Arc, task::Waker};

use millrace_ring::Seat;

use crate::{
    carry::Letter,
    links::Link,
    port::Port,
    replies::{Looked, Wanted},
};

/// What one kernel sends to others that its device cannot reach.
#[derive(Default)]
pub(super) struct Forwarder {
    links: Vec<Arc<Link>>,
    /// What was taken from the kernel; the first is on its way.
    pending: VecDeque<Pending>,
    seats: Vec<(Arc<Port>, Seat)>,
}

#[derive(Debug)]
pub(crate) struct Pending {
    letter: Letter,
    to: Vec<Arc<Link>>,
}

impl Forwarder {
    /// Says where to messages go that the kernel sends from now on. It must not run meanwhile.
    pub(super) fn set_links(&mut self, port: &Port, links: &[Arc<Link>]) {
        let same = |(a, b): (&Arc<Link>, &Arc<Link>)| Arc::ptr_eq(a, b);
        if self.links.len() != links.len() || !self.links.iter().zip(links).all(same) {
            self.take_all(port);
            self.links = links.to_vec();
        }
    }

    /// What the kernel had sent before it was lost goes first.
    pub(super) fn taking_over(mut self, unsent: VecDeque<Pending>) -> Self {
        self.pending = unsent;
        self
    }

    /// What could not be carried on.
    pub(super) fn leave(&mut self) -> VecDeque<Pending> {
        std::mem::take(&mut self.pending)
    }

    /// Takes the kernel's next message, if there is any.
    fn take(&mut self, port: &Port) -> Looked {
        if self.links.is_empty() {
            return Looked::Nothing;
        }
        port.look(Wanted::Any, &mut |header, bytes, _| {
            // A message that failed has no answer.
            if header.flags & crate::layout::flags::FAILED == 0 {
                let letter = Letter { kind: header.kind, clock: header.clock, bytes: bytes.to_vec(), attachment: None };
                self.pending.push_back(Pending { letter, to: self.links.clone() });
            }
        })
    }

    /// Takes everything that the kernel sent. It must not run meanwhile.
    pub(super) fn take_all(&mut self, port: &Port) {
        while self.take(port) != Looked::Nothing {
            std::hint::spin_loop();
        }
    }

    /// Carries on what can be; says whether that was anything.
    pub(super) fn forward(&mut self, port: &Port) -> bool {
        let mut any = false;
        loop {
            if self.pending.is_empty() {
                if self.take(port) != Looked::Found {
                    return any;
                }
                any = true;
            }
            let Some(Pending { letter, to }) = self.pending.front_mut() else { continue };
            to.retain(|link| {
                let waits = link.deliver_or_drop(letter).is_none();
                any |= !waits;
                waits
            });
            if !to.is_empty() {
                return any;
            }
            self.pending.pop_front();
        }
    }

    /// Whether something waits for room.
    pub(super) fn is_blocked(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Leaves a waker with those who have no room.
    pub(super) fn register(&mut self, waker: &Waker) {
        self.unregister();
        for link in self.pending.front().into_iter().flat_map(|pending| &pending.to) {
            let (Some(to), mut seat) = (link.to(), Seat::default()) else { continue };
            to.room.register(&mut seat, waker);
            self.seats.push((to, seat));
        }
    }

    pub(super) fn unregister(&mut self) {
        for (to, mut seat) in self.seats.drain(..) {
            to.room.unregister(&mut seat);
        }
    }
}
