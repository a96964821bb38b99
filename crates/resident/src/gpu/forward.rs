//! Links that leave the device: to kernels on the CPU, or in another house. The device cannot reach their rings, so the
//! keeper takes what the kernel sends from its outbound ring and carries it on. When there is no room it waits, and so
//! does the kernel, once its outbound ring is full.

use std::{sync::Arc, task::Waker};

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
    pending: Option<Pending>,
    seats: Vec<(Arc<Port>, Seat)>,
}

struct Pending {
    letter: Letter,
    to: Vec<Arc<Link>>,
}

impl Forwarder {
    pub(super) fn set_links(&mut self, links: Vec<Arc<Link>>) {
        self.links = links;
    }

    /// Carries on what can be; says whether that was anything.
    pub(super) fn forward(&mut self, port: &Port) -> bool {
        let mut any = false;
        loop {
            if self.pending.is_none() && !self.links.is_empty() {
                let found = port.look(Wanted::Any, &mut |header, bytes, _| {
                    let (kind, clock, bytes) = (header.kind, header.clock, bytes.to_vec());
                    let failed = header.flags & crate::layout::flags::FAILED != 0;
                    (Letter { kind, clock, bytes, attachment: None }, failed)
                });
                // A message that failed has no answer.
                let Looked::Found((letter, failed)) = found else { return any };
                any = true;
                self.pending = (!failed).then(|| Pending { letter, to: self.links.clone() });
            }
            let Some(Pending { letter, to }) = &mut self.pending else {
                if self.links.is_empty() {
                    return any;
                }
                continue;
            };
            to.retain(|link| {
                let waits = link.deliver_or_drop(letter).is_none();
                any |= !waits;
                waits
            });
            if !to.is_empty() {
                return any;
            }
            self.pending = None;
        }
    }

    /// Whether something waits for room.
    pub(super) fn is_blocked(&self) -> bool {
        self.pending.is_some()
    }

    /// Leaves a waker with those who have no room.
    pub(super) fn register(&mut self, waker: &Waker) {
        self.unregister();
        for link in self.pending.iter().flat_map(|pending| &pending.to) {
            let (to, mut seat) = (link.to(), Seat::default());
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
