//! Links that leave the device: to kernels on the CPU, or in another house. The device cannot reach their rings, so the
//! keeper takes what the kernel sends from its outbound ring and carries it on. When there is no room it waits, and so
//! does the kernel, once its outbound ring is full.

use std::{sync::Arc, task::Waker};

use millrace_ring::Seat;

use crate::{
    links::Link,
    port::{Head, Outgoing, Port},
    replies::{Looked, Wanted},
    slots::Refusal,
};

/// What one kernel sends to others that its device cannot reach.
#[derive(Default)]
pub(super) struct Forwarder {
    links: Vec<Arc<Link>>,
    pending: Option<Pending>,
    seats: Vec<(Arc<Link>, Seat)>,
}

struct Pending {
    head: Head,
    bytes: Vec<u8>,
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
                    let head = Head { high: false, kind: header.kind, flags: 0, clock: header.clock, buffer: (0, 0) };
                    let failed = header.flags & crate::layout::flags::FAILED != 0;
                    (head, bytes.to_vec(), failed)
                });
                // A message that failed has no answer.
                let Looked::Found((head, bytes, failed)) = found else { return any };
                any = true;
                self.pending = (!failed).then(|| Pending { head, bytes, to: self.links.clone() });
            }
            let Some(Pending { head, bytes, to }) = &mut self.pending else {
                if self.links.is_empty() {
                    return any;
                }
                continue;
            };
            to.retain(|link| {
                let head = Head { high: link.high, ..*head };
                match link.to.inject(&mut Outgoing { head, bytes, attachment: &mut None }) {
                    Err(Refusal::Full) if !link.lossy => return true,
                    Ok(_) => {}
                    Err(_) => link.count_dropped(),
                }
                any = true;
                false
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
            let mut seat = Seat::default();
            link.to.room.register(&mut seat, waker);
            self.seats.push((link.clone(), seat));
        }
    }

    pub(super) fn unregister(&mut self) {
        for (link, mut seat) in self.seats.drain(..) {
            link.to.room.unregister(&mut seat);
        }
    }
}
