//! What is left of kernels when their device is lost, and how they come back: the memory is the host's as well.

use std::sync::{Arc, Weak, atomic::Ordering};

use millrace_core::Device;

use super::{
    Gpu,
    arena::{Arena, Piece, link, own},
    checkpoint::saved_link,
    keeper::Keeper,
};
use crate::{
    Error, Moment, Result,
    engine::{Again, Launched, Plan, Recovery},
    header::Header,
    journal::{Entry, Positions, is_before},
    layout::{RegionLayout, flags, slot},
    port::{Port, lock},
};

impl Keeper {
    /// The device is lost: finishes what it was in the middle of, so that every message was handled or was not, and
    /// keeps what was to be carried elsewhere for when the kernel comes back.
    pub(super) fn finish(&mut self) {
        let arena = &self.arena;
        for tenant in &self.tenants {
            let own = |at: usize| arena.get(tenant.piece.own + at);
            if own(own::FEEDING) == 0 {
                continue;
            }
            let (out, region) = (&tenant.port.rings.out, tenant.piece.first);
            let answer = region + out.at(tenant.port.region.control().out_tail.load(Ordering::Acquire));
            for n in 0..tenant.linked.len() {
                let link = |at: usize| arena.get(tenant.piece.own + own::LINKS + n * own::LINK_WORDS + at);
                let to = self.tenants.get(link(link::TO) as usize).filter(|_| link(link::FEEDS) != 0);
                let Some(to) = to else { continue };
                let tail = to.piece.own + own::LINK_TAIL;
                if arena.get(tail) != link(link::AT) {
                    continue; // it has got it
                }
                let stride = to.port.layout.in_stride;
                let slot = to.piece.links + (link(link::AT) as usize & (to.piece.link_slots - 1)) * stride;
                let of_answer = |at: usize| arena.get(answer + at);
                arena.set(slot + slot::TYPE, of_answer(slot::TYPE));
                arena.set(slot + slot::LENGTH, of_answer(slot::LENGTH));
                arena.set(slot + slot::FLAGS, 1);
                let clock = tenant.port.region.telemetry();
                for (i, word) in clock.clock.iter().enumerate() {
                    arena.set(slot + slot::CLOCK + i, word.load(Ordering::Relaxed));
                }
                for i in 0..(of_answer(slot::LENGTH) as usize).div_ceil(4).min(stride - slot::PAYLOAD) {
                    arena.set(slot + slot::PAYLOAD + i, of_answer(slot::PAYLOAD + i));
                }
                arena.set(tail, link(link::AT).wrapping_add(1));
            }
            arena.set(own(own::FEEDING_HEAD) as usize, own(own::FEEDING_NEXT));
            arena.set(tenant.piece.own + own::FEEDING, 0);
        }
        for tenant in &mut self.tenants {
            tenant.forwarder.take_all(&tenant.port);
            *lock(&tenant.port.unsent) = tenant.forwarder.leave();
        }
    }
}

/// A message that a kernel is sent again.
pub(super) struct Letter {
    /// It was handled before, or nobody waits for its answer.
    silent: bool,
    kind: u32,
    length: u32,
    pub(super) clock: Moment,
    words: Vec<u32>,
}

/// What a kernel that was lost is sent again: it is in the ring that other kernels write into when it comes back.
pub(super) struct Replay {
    /// What was handled before comes first.
    pub(super) letters: Vec<Letter>,
    /// How many of them had not been handled, the last ones.
    loud: usize,
    pub(super) paused: bool,
    pub(super) lost: Option<Arc<Port>>,
}

impl Replay {
    pub(super) fn write(&self, arena: &Arena, piece: &Piece, layout: &RegionLayout) {
        for (n, letter) in self.letters.iter().enumerate() {
            let at = piece.links + n * layout.in_stride;
            let clock = letter.clock.raw();
            arena.set(at + slot::TYPE, letter.kind);
            arena.set(at + slot::LENGTH, letter.length);
            arena.set(at + slot::FLAGS, 1 | if letter.silent { flags::SILENT } else { 0 });
            arena.set(at + slot::CLOCK, clock as u32);
            arena.set(at + slot::CLOCK + 1, (clock >> 32) as u32);
            for (i, &word) in letter.words.iter().take(layout.in_payload() / 4).enumerate() {
                arena.set(at + slot::PAYLOAD + i, word);
            }
        }
        arena.set(piece.own + own::REPLAY, self.letters.len() as u32);
        arena.set(piece.own + own::LOUD, self.loud as u32);
        arena.set(piece.own + own::LINK_TAIL, self.letters.len() as u32);
    }
}

/// What is left of a kernel when its device is lost: the memory, which is the host's as well.
pub(super) struct Lost {
    pub(super) port: Weak<Port>,
    pub(super) first: Vec<u8>,
    pub(super) arena: Weak<Arena>,
    pub(super) own: usize,
    /// Where the ring of other kernels' messages is, and its slots.
    pub(super) links: (usize, usize),
}

impl Lost {
    /// The number of the last message that was answered, and, if that came from another kernel, one more than its
    /// position. The device may have been lost between an answer and the end of the message.
    fn answered(&self, port: &Port) -> Option<(u32, u32)> {
        let (control, out, region) = (port.region.control(), &port.rings.out, &port.region);
        let tail = control.out_tail.load(Ordering::Acquire);
        let ahead = out.is_filled(region, tail);
        let last = if ahead { tail } else { tail.wrapping_sub(1) };
        let id = Header::read(region, out.at(last)).id;
        (ahead || tail != 0).then_some((id as u32, (id >> 32) as u32))
    }

    /// What other kernels sent to it since its last checkpoint, and how many of those it had handled.
    fn letters_of_kernels(&self, arena: &Arena, port: &Port) -> (Vec<Letter>, usize) {
        let own = |at: usize| arena.get(self.own + at);
        let saved = saved_link(arena, self.own);
        let (mut head, tail, (first, slots)) = (own(own::LINK_HEAD), own(own::LINK_TAIL), self.links);
        if self.answered(port).is_some_and(|(_, link)| link == head.wrapping_add(1)) && head != tail {
            head = head.wrapping_add(1);
        }
        let read = |n: u32| {
            let position = saved.wrapping_add(n);
            let at = first + (position as usize & (slots - 1)) * port.layout.in_stride;
            let (word, length) = (|i: usize| arena.get(at + i), arena.get(at + slot::LENGTH));
            let words = (length as usize).div_ceil(4).min(port.layout.in_payload() / 4);
            Letter {
                silent: word(slot::FLAGS) & flags::SILENT != 0,
                kind: word(slot::TYPE),
                length,
                clock: Moment::from_raw(u64::from(word(slot::CLOCK)) | u64::from(word(slot::CLOCK + 1)) << 32),
                words: (0..words).map(|i| word(slot::PAYLOAD + i)).collect(),
            }
        };
        let letters = (0..tail.wrapping_sub(saved)).map(read).collect();
        (letters, head.wrapping_sub(saved) as usize)
    }
}

impl From<&Entry> for Letter {
    fn from(entry: &Entry) -> Self {
        let words = entry.bytes.chunks(4).map(|chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            u32::from_ne_bytes(word)
        });
        let (kind, length, clock, silent) = (entry.kind, entry.bytes.len() as u32, entry.clock, entry.ask);
        Self { silent, kind, length, clock, words: words.collect() }
    }
}

impl Recovery for Lost {
    fn state(&self) -> Vec<u8> {
        let saved = self.port.upgrade().and_then(|port| port.saved());
        saved.map_or_else(|| self.first.clone(), |saved| saved.state)
    }

    fn relaunch(&self, device: &Device, plan: &Plan<'_>, again: Again<'_>) -> Result<Launched> {
        let (Some(port), Some(arena)) = (self.port.upgrade(), self.arena.upgrade()) else {
            return Err(Error::NoPayload);
        };
        let (mut letters, handled) = self.letters_of_kernels(&arena, &port);
        let mut loud = letters.split_off(handled.min(letters.len()));
        let (before, after): (Vec<&Entry>, Vec<&Entry>) =
            again.entries.iter().partition(|entry| is_before(entry, again.reached));
        letters.extend(before.into_iter().map(Letter::from));
        letters.iter_mut().for_each(|letter| letter.silent = true);
        loud.splice(0..0, after.into_iter().map(Letter::from));
        let count = loud.len();
        letters.append(&mut loud);
        let replay = Replay { letters, loud: count, paused: again.paused, lost: Some(port) };
        Gpu.settle(device, plan, again.links, Some(&replay))
    }

    fn take_back(&self, failed: &Port, _: Positions) {
        // All else is in the memory of the one that was lost.
        if let Some(port) = self.port.upgrade() {
            *lock(&port.unsent) = std::mem::take(&mut *lock(&failed.unsent));
        }
    }

    fn reached(&self) -> Result<Positions> {
        let Some(port) = self.port.upgrade() else { return Ok([0; 2]) };
        let control = port.region.control();
        let mut heads = [&control.high_head, &control.normal_head].map(|head| head.load(Ordering::Acquire));
        let Some((answered, 0)) = self.answered(&port) else { return Ok(heads) };
        for (i, head) in heads.iter_mut().enumerate() {
            let id = (*head << 1 | u32::from(i == 0)).wrapping_add(1);
            if id == answered {
                *head = head.wrapping_add(1);
            }
        }
        Ok(heads)
    }
}
