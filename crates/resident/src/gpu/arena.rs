//! The memory that all resident kernels of a device lie in: a directory, and behind it a piece for each kernel.
//!
//! A kernel's piece is its region, as `layout.rs` says, and behind it what only the device needs: a block of its own,
//! the state, the last two checkpoints of it, the ring that other kernels of the device write into, and its memory.

use std::{
    fmt::Write as _,
    ptr::NonNull,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use millrace_core::OpenResidence;

use crate::{Error, Result, layout::RegionLayout, port::lock, region::Region};

/// Kernels at a time.
pub(super) const MOST: usize = 1024;
/// Links of one kernel.
pub(super) const MOST_LINKS: usize = 16;

/// Words of the directory.
pub(super) mod directory {
    /// Host: what leases do, see [`super::stop`].
    pub(in super::super) const STOP: usize = 0;
    /// Host: how many kernels there are.
    pub(in super::super) const KERNELS: usize = 1;
    /// Host: turns of a lease.
    pub(in super::super) const BUDGET: usize = 2;
    /// Device: leases that began.
    pub(in super::super) const LEASES: usize = 16;
    /// Device: the kernel that is next.
    pub(in super::super) const NEXT: usize = 17;
    /// Device: whether a lease runs.
    pub(in super::super) const RUNNING: usize = 18;
    /// The first kernel's entry.
    pub(in super::super) const ENTRIES: usize = 64;
}

/// What leases do.
pub(super) mod stop {
    /// They last until they have made their turns.
    pub(in super::super) const NEVER: u32 = 0;
    /// They end when nothing is left to do.
    pub(in super::super) const IDLE: u32 = 1;
    /// They end.
    pub(in super::super) const NOW: u32 = 2;
}

/// Words of a kernel's entry in the directory. The host writes them, while no lease runs.
pub(super) mod entry {
    pub(in super::super) const REGION: usize = 0;
    pub(in super::super) const OWN: usize = 1;
    pub(in super::super) const HANDLER: usize = 2;
    pub(in super::super) const STATE: usize = 3;
    pub(in super::super) const LINK_FIRST: usize = 4;
    pub(in super::super) const LINK_MASK: usize = 5;
    /// Messages in a row before another kernel has its turn.
    pub(in super::super) const TURN: usize = 6;
    pub(in super::super) const CHECKPOINT_EVERY: usize = 7;
    /// How many kernels it sends to.
    pub(in super::super) const LINKS: usize = 8;
    /// Whether kernels send to it.
    pub(in super::super) const FED: usize = 9;
    /// Its memory besides the state, and how many words that has.
    pub(in super::super) const MEMORY: usize = 10;
    pub(in super::super) const MEMORY_WORDS: usize = 11;
    pub(in super::super) const WORDS: usize = 16;
}

/// Words of a kernel's own block. The device writes them, except for the links.
pub(super) mod own {
    /// Messages since the last checkpoint.
    pub(in super::super) const SINCE: usize = 0;
    pub(in super::super) const LINK_HEAD: usize = 1;
    pub(in super::super) const LINK_TAIL: usize = 2;
    /// Whether a message of another kernel goes before one of the host.
    pub(in super::super) const TURN: usize = 3;
    /// Two for each checkpoint that is complete; the last is in slot [`slot_of`]. Odd while the host writes it.
    pub(in super::super) const SAVED_VERSION: usize = 4;
    /// Up to where messages of other kernels are in the last checkpoint, for those who need room.
    pub(in super::super) const SAVED_LINK: usize = 6;
    /// Answers until the head of every slot of the outbound ring is as it should be again, after an error.
    pub(in super::super) const DIRTY: usize = 5;
    /// Times that the positions of the inbound rings began anew.
    pub(in super::super) const HIGH_LAPS: usize = 13;
    pub(in super::super) const NORMAL_LAPS: usize = 14;
    /// Messages from before the device was lost that are still to be handled, and how many of them, the last, are to be
    /// answered. The host writes them before the kernel enters.
    pub(in super::super) const REPLAY: usize = 15;
    pub(in super::super) const LOUD: usize = 16;
    /// One while an answer goes to other kernels; which word then says that the message is handled, and what it says.
    pub(in super::super) const FEEDING: usize = 17;
    pub(in super::super) const FEEDING_HEAD: usize = 18;
    pub(in super::super) const FEEDING_NEXT: usize = 19;
    /// What a checkpoint holds besides the state, twice: see [`super::saved`].
    pub(in super::super) const SAVED: usize = 20;
    /// For each link: see [`super::link`].
    pub(in super::super) const LINKS: usize = SAVED + 2 * super::saved::WORDS;
    pub(in super::super) const LINK_WORDS: usize = 7;
    pub(in super::super) const WORDS: usize = LINKS + super::MOST_LINKS * LINK_WORDS;
}

/// Words of a checkpoint, besides the state. A checkpoint is written into the slot that the last one is not in, and counts
/// from the moment that [`own::SAVED_VERSION`] says so: a device that dies before leaves the last one as it was.
pub(super) mod saved {
    pub(in super::super) const HANDLED: usize = 0;
    pub(in super::super) const CLOCK: usize = 2;
    pub(in super::super) const HIGH: usize = 4;
    pub(in super::super) const NORMAL: usize = 5;
    /// Up to where messages of other kernels are in it.
    pub(in super::super) const LINK: usize = 6;
    pub(in super::super) const WORDS: usize = 8;
}

/// Which of the two slots the last checkpoint is in.
pub(super) fn slot_of(version: u32) -> usize {
    (version / 2) as usize % 2
}

/// Words of a link.
pub(super) mod link {
    /// Host: the other kernel's number.
    pub(in super::super) const TO: usize = 0;
    /// Host: what happens when there is no room: the numbers below.
    pub(in super::super) const HOW: usize = 1;
    /// Device: two words for what was dropped.
    pub(in super::super) const DROPPED: usize = 2;
    /// Device: where the answer goes that is on its way, and whether it does.
    pub(in super::super) const AT: usize = 4;
    pub(in super::super) const FEEDS: usize = 5;
    /// Host: how many of the links before it lead to the same kernel, and have their places in its ring first.
    pub(in super::super) const BEFORE: usize = 6;

    /// The sender waits.
    pub(in super::super) const LOSSLESS: u32 = 0;
    /// The message is dropped.
    pub(in super::super) const LOSSY: u32 = 1;
    /// The receiver was lost and may come back: the sender waits.
    pub(in super::super) const WAITS: u32 = 2;
    /// The receiver was lost, and messages for it are dropped.
    pub(in super::super) const PASSED: u32 = 3;
}

/// All of it as WGSL constants.
pub(super) fn wgsl() -> String {
    let constants = [
        ("DIRECTORY_STOP", directory::STOP),
        ("DIRECTORY_KERNELS", directory::KERNELS),
        ("DIRECTORY_BUDGET", directory::BUDGET),
        ("DIRECTORY_LEASES", directory::LEASES),
        ("DIRECTORY_NEXT", directory::NEXT),
        ("DIRECTORY_RUNNING", directory::RUNNING),
        ("DIRECTORY_ENTRIES", directory::ENTRIES),
        ("STOP_NEVER", stop::NEVER as usize),
        ("STOP_IDLE", stop::IDLE as usize),
        ("STOP_NOW", stop::NOW as usize),
        ("ENTRY_REGION", entry::REGION),
        ("ENTRY_OWN", entry::OWN),
        ("ENTRY_HANDLER", entry::HANDLER),
        ("ENTRY_STATE", entry::STATE),
        ("ENTRY_LINK_FIRST", entry::LINK_FIRST),
        ("ENTRY_LINK_MASK", entry::LINK_MASK),
        ("ENTRY_TURN", entry::TURN),
        ("ENTRY_CHECKPOINT_EVERY", entry::CHECKPOINT_EVERY),
        ("ENTRY_LINKS", entry::LINKS),
        ("ENTRY_FED", entry::FED),
        ("ENTRY_MEMORY", entry::MEMORY),
        ("ENTRY_MEMORY_WORDS", entry::MEMORY_WORDS),
        ("ENTRY_WORDS", entry::WORDS),
        ("OWN_SINCE", own::SINCE),
        ("OWN_LINK_HEAD", own::LINK_HEAD),
        ("OWN_LINK_TAIL", own::LINK_TAIL),
        ("OWN_TURN", own::TURN),
        ("OWN_DIRTY", own::DIRTY),
        ("OWN_HIGH_LAPS", own::HIGH_LAPS),
        ("OWN_NORMAL_LAPS", own::NORMAL_LAPS),
        ("OWN_SAVED_VERSION", own::SAVED_VERSION),
        ("OWN_SAVED_LINK", own::SAVED_LINK),
        ("OWN_SAVED", own::SAVED),
        ("SAVED_HANDLED", saved::HANDLED),
        ("SAVED_CLOCK", saved::CLOCK),
        ("SAVED_HIGH", saved::HIGH),
        ("SAVED_NORMAL", saved::NORMAL),
        ("SAVED_LINK", saved::LINK),
        ("SAVED_WORDS", saved::WORDS),
        ("OWN_REPLAY", own::REPLAY),
        ("OWN_LOUD", own::LOUD),
        ("OWN_FEEDING", own::FEEDING),
        ("OWN_FEEDING_HEAD", own::FEEDING_HEAD),
        ("OWN_FEEDING_NEXT", own::FEEDING_NEXT),
        ("LINK_HOW", link::HOW),
        ("LINK_DROPPED", link::DROPPED),
        ("LINK_AT", link::AT),
        ("LINK_FEEDS", link::FEEDS),
        ("LINK_BEFORE", link::BEFORE),
        ("LINK_LOSSLESS", link::LOSSLESS as usize),
        ("LINK_WAITS", link::WAITS as usize),
        ("LINK_PASSED", link::PASSED as usize),
        ("OWN_LINKS", own::LINKS),
        ("LINK_WORDS", own::LINK_WORDS),
    ];
    constants.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "const {name}: u32 = {value}u;");
        text
    })
}

/// The arena.
pub(super) struct Arena {
    residence: OpenResidence,
    /// Of the process, if the device's memory is not shared.
    local: Option<Region>,
    /// Pieces that are free: first word and words, in order.
    free: Mutex<Vec<(usize, usize)>>,
    words: usize,
}

impl Arena {
    pub(super) fn new(residence: OpenResidence, words: usize) -> Result<Self> {
        let local = if residence.shared().is_none() { Some(Region::host(words)?) } else { None };
        let arena = Self { residence, local, free: Mutex::default(), words };
        // Regions begin at multiples of 128 bytes, wherever the memory does.
        let skew = (arena.all().as_ptr() as usize % 128) / 4;
        let first = (directory::ENTRIES + MOST * entry::WORDS).next_multiple_of(32) + (32 - skew) % 32;
        lock(&arena.free).push((first, words.saturating_sub(first)));
        Ok(arena)
    }

    pub(super) fn residence(&self) -> &OpenResidence {
        &self.residence
    }

    pub(super) fn all(&self) -> &[AtomicU32] {
        match (&self.local, self.residence.shared()) {
            // SAFETY: the region has so many words, lives as long as the arena, and words are reached with atomics.
            (Some(local), _) => unsafe { std::slice::from_raw_parts(local.as_ptr().cast(), local.len()) },
            (None, Some(shared)) => shared,
            (None, None) => &[],
        }
    }

    pub(super) fn word(&self, at: usize) -> &AtomicU32 {
        &self.all()[at]
    }

    pub(super) fn get(&self, at: usize) -> u32 {
        self.word(at).load(Ordering::Acquire)
    }

    pub(super) fn set(&self, at: usize, value: u32) {
        self.word(at).store(value, Ordering::Release);
    }

    /// One behind the last word that is used.
    pub(super) fn used(&self) -> usize {
        match lock(&self.free).last() {
            Some(&(first, words)) if first + words == self.words => first,
            _ => self.words,
        }
    }

    /// A piece for a kernel.
    pub(super) fn allocate(
        self: &Arc<Self>,
        layout: &RegionLayout,
        state_bytes: usize,
        link_slots: usize,
        memory_words: usize,
    ) -> Result<Piece> {
        let region = layout.words().next_multiple_of(32);
        let own = region;
        let state = own + own::WORDS;
        let saved = state + state_bytes / 4;
        let links = (saved + 2 * (state_bytes / 4)).next_multiple_of(16);
        let memory = (links + link_slots * layout.in_stride).next_multiple_of(16);
        let words = memory.saturating_add(memory_words).checked_next_multiple_of(32).unwrap_or(usize::MAX / 8);
        let mut free = lock(&self.free);
        let Some(i) = free.iter().position(|&(_, room)| room >= words) else {
            let (largest, all) = (free.iter().map(|&(_, room)| room).max().unwrap_or(0), self.words);
            return Err(Error::NoRoom {
                requested: words as u64 * 4,
                largest: largest as u64 * 4,
                all: all as u64 * 4,
            });
        };
        let (first, room) = free[i];
        free[i] = (first + words, room - words);
        drop(free);
        self.all()[first..first + words].iter().for_each(|word| word.store(0, Ordering::Relaxed));
        let hold = Hold { arena: self.clone(), first, words };
        Ok(Piece {
            first,
            words,
            own: first + own,
            state: first + state,
            saved: first + saved,
            links: first + links,
            link_slots,
            memory: first + memory,
            memory_words,
            hold: Some(hold),
        })
    }
}

/// Words that are taken, until this is dropped.
struct Hold {
    arena: Arc<Arena>,
    first: usize,
    words: usize,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut free = lock(&self.arena.free);
        let i = free.partition_point(|&(first, _)| first < self.first);
        free.insert(i, (self.first, self.words));
        // Neighbours become one.
        let mut merged: Vec<(usize, usize)> = Vec::with_capacity(free.len());
        for &(first, words) in free.iter() {
            match merged.last_mut() {
                Some(last) if last.0 + last.1 == first => last.1 += words,
                _ => merged.push((first, words)),
            }
        }
        *free = merged;
    }
}

/// A kernel's piece of the arena, as indices of words.
pub(super) struct Piece {
    pub(super) first: usize,
    pub(super) words: usize,
    pub(super) own: usize,
    pub(super) state: usize,
    /// The two copies of it.
    pub(super) saved: usize,
    pub(super) links: usize,
    /// Slots of the ring that other kernels write into, a power of two.
    pub(super) link_slots: usize,
    pub(super) memory: usize,
    pub(super) memory_words: usize,
    hold: Option<Hold>,
}

impl Piece {
    /// The region, which holds the piece from now on.
    pub(super) fn region(&mut self, layout: &RegionLayout) -> Result<Region> {
        let Some(hold) = self.hold.take() else { return Err(Error::Invalid("the region is taken".into())) };
        let piece = &hold.arena.all()[self.first..self.first + self.words];
        let Some(start) = NonNull::new(piece.as_ptr().cast_mut().cast()) else {
            return Err(Error::Invalid("the memory is nowhere".into()));
        };
        // SAFETY: the pieces begin at multiples of 128 bytes, this one is longer than its region, and the hold keeps it
        // and the arena; it is words, reached with atomics, on both sides.
        Ok(unsafe { Region::from_raw(start, layout.words(), Box::new(hold)) })
    }
}
