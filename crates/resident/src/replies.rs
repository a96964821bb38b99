//! Who takes what the kernel sends: a role that moves.
//!
//! Whoever waits for an answer polls the outbound ring itself, so that one who is alone has its answer from the slot,
//! with no thread and no lock in between. The ring has one consumer at a time: whoever has the role. What it finds that
//! is for others it puts where they look: answers under the number of their question, the rest in a queue for those who
//! receive.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
};

use rkyv::util::AlignedVec;

use crate::{
    header::Header,
    layout::flags,
    port::{Attachment, Port, lock},
};

/// What a waiter waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The answer to the message of this number.
    Answer(u64),
    /// Whatever was not asked for.
    Any,
}

/// What a look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looked {
    /// What was wanted, and it was read.
    Found,
    /// It is nowhere.
    Nothing,
    /// Somebody else looks, and may find it.
    Elsewhere,
}

/// A message that was taken from the ring for somebody else.
#[derive(Debug)]
struct Kept {
    header: Header,
    bytes: AlignedVec,
    attachment: Option<Attachment>,
}

#[derive(Debug, Default)]
struct Pigeonholes {
    answers: HashMap<u64, Kept>,
    /// Questions whose askers have left: their answers are dropped.
    given_up: HashSet<u64>,
    received: VecDeque<Kept>,
}

/// The consuming end of a kernel's outbound ring.
#[derive(Debug, Default)]
pub(crate) struct Replies {
    /// Whether somebody has the role.
    taken: AtomicBool,
    /// The ring's position; only who has the role changes it.
    head: AtomicU32,
    /// Messages in `kept`, for those who only look.
    count: AtomicUsize,
    kept: Mutex<Pigeonholes>,
}

impl Port {
    /// Looks once for what is wanted: among what others took, and, if nobody else does, in the ring. `read` puts it where it is
    /// wanted: what is handed from one to the next waits each time until all of it was written.
    #[inline]
    pub(crate) fn look(&self, wanted: Wanted, read: &mut impl FnMut(&Header, &[u8], Option<Attachment>)) -> Looked {
        let replies = &*self.replies;
        if replies.count.load(Ordering::Acquire) > 0 && self.look_among_kept(wanted, read) {
            return Looked::Found;
        }
        if replies.taken.load(Ordering::Relaxed) {
            return Looked::Elsewhere;
        }
        // An atomic step at every look would be most of what a look costs. Whoever had the role and was further than this says so
        // before it looks for sleepers, and the kernel publishes before it does: a sleeper that left its waker first sees either.
        if !self.rings.out.is_filled(&self.region, replies.head.load(Ordering::Relaxed)) {
            return Looked::Nothing;
        }
        if replies.taken.swap(true, Ordering::Acquire) {
            return Looked::Elsewhere;
        }
        let (mut found, mut freed, mut delivered) = (false, false, false);
        // Who had the role before may have kept something for us.
        if replies.count.load(Ordering::Acquire) > 0 {
            found = self.look_among_kept(wanted, read);
        }
        let mut position = replies.head.load(Ordering::Relaxed);
        let first = position;
        while !found && self.rings.out.is_filled(&self.region, position) {
            // SAFETY: the slot is filled, and we have the role and do not release it before we are done.
            let (header, bytes) = unsafe { self.message(&self.rings.out, position) };
            let ours = match wanted {
                Wanted::Answer(id) => header.correlation == id,
                Wanted::Any => header.correlation == 0,
            };
            let attached = header.flags & flags::ATTACHED != 0;
            let attachment = || lock(&self.attached_out).remove(&header.id);
            if ours {
                found = true;
                // Nothing is not handed over as something that may be there.
                if attached { read(&header, bytes, attachment()) } else { read(&header, bytes, None) }
            } else {
                let attachment = if attached { attachment() } else { None };
                if let Err(attachment) = self.keep(&header, bytes, attachment) {
                    if let Some(attachment) = attachment {
                        lock(&self.attached_out).insert(header.id, attachment);
                    }
                    break;
                }
                delivered = true;
            }
            self.rings.out.release(&self.region, position);
            position = position.wrapping_add(1);
            replies.head.store(position, Ordering::Relaxed);
            freed = true;
        }
        replies.taken.store(false, Ordering::Release);
        // The kernel may sleep because it had no room. It said how far it was before it left its waker and looked once
        // more, so either it saw the room, or it is seen here to have had none.
        if freed && self.work.has_listeners() {
            let tail = self.region.control().out_tail.load(Ordering::Acquire);
            if tail.wrapping_sub(first) >= self.rings.out.capacity() {
                self.work.ring();
            }
        }
        // Somebody may have failed to get the role from us and sleep now. It announced itself before it tried, so we see
        // it here; and if there is something for it, or never will be, it is us who must say so.
        if self.mail.has_listeners()
            && (delivered || self.rings.out.is_filled(&self.region, position) || self.status().is_ended())
        {
            self.mail.ring();
        }
        if found { Looked::Found } else { Looked::Nothing }
    }

    #[cold]
    fn look_among_kept(&self, wanted: Wanted, read: &mut impl FnMut(&Header, &[u8], Option<Attachment>)) -> bool {
        let mut kept = lock(&self.replies.kept);
        let found = match wanted {
            Wanted::Answer(id) => kept.answers.remove(&id),
            Wanted::Any => kept.received.pop_front(),
        };
        let Some(found) = found else { return false };
        self.replies.count.fetch_sub(1, Ordering::Relaxed);
        drop(kept);
        read(&found.header, &found.bytes, found.attachment);
        true
    }

    /// Messages that nobody has taken, of a kernel whose outbound ring is full.
    pub(crate) fn unreceived(&self) -> usize {
        self.rings.out.capacity() as usize + lock(&self.replies.kept).received.len()
    }

    /// Keeps a message for whom it is meant. The attachment comes back if there is no room.
    fn keep(&self, header: &Header, bytes: &[u8], attachment: Option<Attachment>) -> Result<(), Option<Attachment>> {
        let mut kept = lock(&self.replies.kept);
        if header.correlation != 0 && kept.given_up.remove(&header.correlation) {
            return Ok(()); // nobody waits for it any more
        }
        // What nobody receives must not grow without bound; answers are as many as their askers.
        let full = kept.received.len() >= self.rings.out.capacity() as usize;
        if header.correlation == 0 && full && !self.status().is_ended() {
            return Err(attachment);
        }
        let mut copy = AlignedVec::with_capacity(bytes.len());
        copy.extend_from_slice(bytes);
        let message = Kept { header: *header, bytes: copy, attachment };
        if header.correlation == 0 {
            kept.received.push_back(message);
        } else {
            kept.answers.insert(header.correlation, message);
        }
        self.replies.count.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// The asker leaves: its answer is to be dropped when it comes.
    pub(crate) fn give_up(&self, id: u64) {
        let mut kept = lock(&self.replies.kept);
        if kept.answers.remove(&id).is_some() {
            self.replies.count.fetch_sub(1, Ordering::Relaxed);
        } else if !self.status().is_ended() {
            kept.given_up.insert(id);
        }
    }
}
