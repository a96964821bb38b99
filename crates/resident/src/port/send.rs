//! Sending: a place in a ring is claimed, filled and handed to the kernel, at once or when there is room.

use std::{sync::atomic::Ordering, time::Instant};

use millrace_ring::prefetch_to_write;

use super::{AHEAD, Attachment, Head, Outgoing, Place, Port, lock, message_id, on_bell};
use crate::{
    Moment, Result, drive,
    header::Header,
    journal::{Entry, Journal},
    layout::{LINE, flags},
    slots::{Refusal, Slots, Tail, Words},
};

impl Port {
    pub(super) fn inlet(&self, high: bool) -> (&Tail, &Slots) {
        if high { (&self.high, &self.rings.high) } else { (&self.normal, &self.rings.normal) }
    }

    /// Writes a message into a slot, if there is one, and tells the kernel. Says its number.
    #[inline(always)]
    pub(crate) fn inject(&self, message: &mut Outgoing<'_>) -> Result<u64, Refusal> {
        let number = self.claim(message.head.high)?;
        Ok(self.put(number, message))
    }

    /// A place in a ring, which is then the caller's to fill, or to pass over if it runs the kernel.
    #[inline(always)]
    pub(crate) fn claim(&self, high: bool) -> Result<u64, Refusal> {
        let (tail, ring) = self.inlet(high);
        tail.claim(ring, &self.region)
    }

    /// Writes a message to the place that was claimed for it, and tells the kernel. Says its number.
    #[inline(always)]
    pub(crate) fn put(&self, number: u64, message: &mut Outgoing<'_>) -> u64 {
        let Outgoing { head, bytes, attachment } = message;
        assert!(bytes.len() <= self.layout.in_payload(), "the layout was made for larger messages");
        self.put_with(number, head, |place| {
            // SAFETY: the slot is ours until it is published, and has room for the message.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.start, bytes.len()) };
            Some((bytes.len(), attachment.take()))
        })
    }

    /// Lets `write` build a message in a slot, if there is one, and tells the kernel. `write` says how long the message
    /// is, and what belongs to it; if it says nothing, the kernel passes over the slot.
    #[inline(always)]
    pub(crate) fn inject_with(
        &self,
        head: &Head,
        write: impl FnOnce(Place) -> Option<(usize, Option<Attachment>)>,
    ) -> Result<u64, Refusal> {
        let number = self.claim(head.high)?;
        Ok(self.put_with(number, head, write))
    }

    #[inline(always)]
    fn put_with(
        &self,
        number: u64,
        head: &Head,
        write: impl FnOnce(Place) -> Option<(usize, Option<Attachment>)>,
    ) -> u64 {
        /// A slot that was claimed has to be published, whatever happens.
        struct Claimed<'a> {
            port: &'a Port,
            head: &'a Head,
            number: u64,
        }
        impl Drop for Claimed<'_> {
            #[cold]
            fn drop(&mut self) {
                self.port.publish(self.head, self.number, 0, flags::VOID);
            }
        }
        let ring = self.inlet(head.high).1;
        let claimed = Claimed { port: self, head, number };
        let place = Place { start: self.region.payload(ring.at(number as u32)), room: self.layout.in_payload() };
        let written = write(place);
        let id = message_id(number, head.high);
        let Some((length, attachment)) = written else { return id };
        let mut flags = head.flags;
        if let Some(attachment) = attachment {
            flags |= flags::ATTACHED;
            lock(&self.attached).insert(id, attachment);
        }
        std::mem::forget(claimed);
        self.publish(head, number, length, flags);
        id
    }

    /// Hands a slot that was claimed to the kernel, and tells it.
    #[inline(always)]
    fn publish(&self, head: &Head, number: u64, length: usize, flags: u32) {
        let (region, ring, position) = (&self.region, self.inlet(head.high).1, number as u32);
        let header = head.header(number, length, flags);
        if let Some(journal) = self.journal.get() {
            self.note(journal, &header, ring.at(position));
        }
        // SAFETY: the slot is ours until it is published.
        unsafe { header.write(region, ring.at(position)) };
        ring.publish(region, position);
        self.fetch(ring, position.wrapping_add(AHEAD));
        // A kernel that rests until it is told to go on need not know. When it is told, it says that it is active before it
        // leaves its waker and looks once more: it finds the message, or is found to be active here.
        if !head.quietly && self.work.has_listeners() && !self.is_resting() && !self.is_left(flags) {
            self.work.ring();
        }
    }

    /// Whether what was sent a moment ago, and listeners were looked for since, is left for when its sender asks. A worker that
    /// no longer minds says so, leaves its waker and looks once more.
    #[inline]
    fn is_left(&self, flags: u32) -> bool {
        flags & (flags::WILLING | flags::ASK) == flags::WILLING
            && self.minded.load(Ordering::Relaxed)
            && self.brief.load(Ordering::Relaxed)
            && matches!(self.depth(), (0, waiting) if waiting < drive::MOST.min(self.rings.normal.capacity()))
    }

    /// Who is about to wait is not going to ask: what was left for it is the worker's.
    pub(super) fn leave_nothing(&self) {
        if self.minded.load(Ordering::Relaxed) && self.stirs() {
            self.work.ring();
        }
    }

    /// A reading of the clock for a message. Fetches the slots of the next few, if some time has passed since the last one:
    /// until there is one that was fetched by a message before.
    #[inline(always)]
    pub(crate) fn stamp(&self, high: bool) -> Moment {
        self.clock.tick_or(
            #[cold]
            || {
                let (tail, ring) = self.inlet(high);
                let next = tail.position();
                prefetch_to_write(&self.work);
                (0..AHEAD).for_each(|n| self.fetch(ring, next.wrapping_add(n)));
            },
        )
    }

    /// Brings a slot that was the kernel's a lap ago to this core: as much of it as small messages have.
    #[inline(always)]
    fn fetch(&self, ring: &Slots, position: u32) {
        let start = self.region.word(ring.at(position));
        prefetch_to_write(start);
        if ring.stride * 4 > LINE {
            prefetch_to_write(std::ptr::from_ref(start).wrapping_byte_add(LINE));
        }
    }

    /// Keeps a message that is in its slot, in case it has to be sent again.
    #[cold]
    fn note(&self, journal: &Journal, header: &Header, at: usize) {
        let length = header.length as usize;
        // SAFETY: that much was written, and the slot is ours until it is published.
        let bytes = unsafe { std::slice::from_raw_parts(self.region.payload(at), length) }.to_vec();
        let (high, number) = ((header.id - 1) & 1 == 1, (header.id - 1) >> 1);
        let (kind, clock, ask) = (header.kind, header.clock, header.is_ask());
        let attached = header.flags & flags::ATTACHED != 0;
        let attachment = attached.then(|| lock(&self.attached).get(&header.id).cloned()).flatten();
        if header.flags & flags::VOID == 0 {
            journal.note(Entry { high, number, kind, clock, bytes, attachment, ask });
        }
    }

    /// [`Self::inject`], waiting for room: until the deadline, or without one for as long as the kernel makes progress.
    #[inline(always)]
    pub(crate) fn inject_blocking(&self, message: &mut Outgoing<'_>, deadline: Option<Instant>) -> Result<u64> {
        // Usually there is room.
        self.inject(message).or_else(|_| self.inject_patiently(message, deadline))
    }

    #[cold]
    fn inject_patiently(&self, message: &mut Outgoing<'_>, deadline: Option<Instant>) -> Result<u64> {
        self.send_blocking(deadline, || self.inject(message))
    }

    /// Sends with `inject`, waiting for room.
    #[inline]
    pub(crate) fn send_blocking(
        &self,
        deadline: Option<Instant>,
        mut inject: impl FnMut() -> Result<u64, Refusal>,
    ) -> Result<u64> {
        let attempt = || self.sent(inject());
        self.patiently(deadline, attempt, |until, attempt| self.room.wait_for_room(Some(until), false, attempt))
            .flatten()
    }

    /// Sends with `inject`, awaiting room.
    pub(crate) async fn send_async(&self, mut inject: impl FnMut() -> Result<u64, Refusal>) -> Result<u64> {
        on_bell(&self.room, || self.sent(inject())).await
    }

    /// What came of an attempt to send; nothing if it is to be tried again.
    #[inline(always)]
    fn sent(&self, result: Result<u64, Refusal>) -> Option<Result<u64>> {
        match result {
            Ok(id) => Some(Ok(id)),
            Err(Refusal::Closed) => Some(Err(self.ended())),
            Err(Refusal::Full) => None,
        }
    }
}
