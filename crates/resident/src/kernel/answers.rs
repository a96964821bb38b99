//! What a kernel says: answers go to its outbound ring, and what is for other kernels to theirs.

use std::sync::{Arc, atomic::Ordering};

use millrace_ring::prefetch_to_write;

use super::{Life, Pending};
use crate::{
    Moment,
    carry::Letter,
    handler::{Answer, Emission},
    header::Header,
    layout::flags,
    links::Delivered,
    port::{Attachment, Port, lock},
    slots::Words,
};

impl Life {
    /// Publishes the answer that lies in the next outbound slot.
    #[inline]
    pub(super) fn reply(
        &mut self,
        port: &Port,
        to: &Header,
        answer: Answer,
        beside: Option<Attachment>,
        clock: Moment,
    ) {
        let header = Header {
            kind: answer.kind(),
            length: answer.length(),
            correlation: if to.is_ask() { to.id } else { 0 },
            clock,
            ..Header::default()
        };
        self.publish(port, header, beside);
    }

    /// Says that a message failed, and why.
    pub(super) fn reply_failure(&mut self, port: &Port, to: &Header, clock: Moment, code: u32, reason: Arc<str>) {
        let correlation = if to.is_ask() { to.id } else { 0 };
        let header = Header { flags: flags::FAILED, correlation, clock, buffer: code, ..Header::default() };
        self.publish(port, header, Some(Attachment::Reason(reason)));
    }

    /// Publishes the next outbound slot, which is free and holds the message already. In its caller's place: a header that is
    /// handed over in memory would be read in other parts than it was written in, and waited for.
    #[inline(always)]
    fn publish(&mut self, port: &Port, mut header: Header, attachment: Option<Attachment>) {
        let position = self.out as u32;
        self.out += 1;
        header.id = self.out;
        if let Some(attachment) = attachment {
            header.flags |= flags::ATTACHED;
            lock(&port.attached_out).insert(header.id, attachment);
        }
        let out = port.rings.out;
        // SAFETY: the slot is free, and only this kernel writes such slots.
        unsafe { header.write(&port.region, out.at(position)) };
        out.publish(&port.region, position);
        port.mail.ring();
        prefetch_to_write(port.region.word(out.at(position.wrapping_add(1))));
        port.region.control().out_tail.store(self.out as u32, Ordering::Relaxed);
    }

    /// What the handler sent besides its answer, and the answer if it goes to other kernels or comes after them.
    pub(super) fn send_on(
        &mut self,
        port: &Port,
        to: &Header,
        answer: Option<(Answer, Option<Attachment>)>,
        clock: Moment,
    ) {
        let links = self.links.all();
        let to_links = || (!links.is_empty()).then(|| links.to_vec());
        for Emission { kind, bytes, attachment } in self.emissions.drain(..) {
            let letter = Letter { kind, clock, bytes, attachment };
            self.pending.push_back(Pending { letter, correlation: 0, to: to_links() });
        }
        if let Some((answer, attachment)) = answer {
            let kind = answer.kind();
            let (correlation, to) = if to.is_ask() { (to.id, None) } else { (0, to_links()) };
            let letter = Letter { kind, clock, bytes: self.scratch.clone(), attachment };
            self.pending.push_back(Pending { letter, correlation, to });
        }
        self.flush(port);
    }

    /// Sends what waits to be sent on; false if there is no room for all of it.
    pub(super) fn flush(&mut self, port: &Port) -> bool {
        while let Some(mut pending) = self.pending.pop_front() {
            if self.send_pending(port, &mut pending) {
                continue;
            }
            self.pending.push_front(pending);
            return false;
        }
        true
    }

    fn send_pending(&mut self, port: &Port, pending: &mut Pending) -> bool {
        let Some(links) = &mut pending.to else {
            let (out, position) = (port.rings.out, self.out as u32);
            if !out.is_free(&port.region, position) {
                return false;
            }
            let bytes = &pending.letter.bytes;
            assert!(bytes.len() <= port.layout.out_payload(), "the layout was made for larger answers");
            // SAFETY: the slot is free, only this kernel writes such slots, and there is room.
            unsafe {
                let to = port.region.payload(out.at(position));
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
            let (kind, clock, correlation) = (pending.letter.kind, pending.letter.clock, pending.correlation);
            let header = Header { kind, length: bytes.len() as u32, correlation, clock, ..Header::default() };
            self.counts.sent += 1;
            self.publish(port, header, pending.letter.attachment.take());
            return true;
        };
        let (mut sent, mut dropped) = (0, 0);
        links.retain(|link| {
            match link.deliver_or_drop(&pending.letter) {
                None => return true,
                Some(Delivered::Sent) => sent += 1,
                Some(Delivered::Dropped) => dropped += 1,
            }
            false
        });
        let all = links.is_empty();
        if sent + dropped > 0 {
            self.counts.sent += sent;
            self.counts.dropped += dropped;
            self.publish_counts(port);
        }
        all
    }
}
