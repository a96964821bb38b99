//! The ring of slots that host and device share.
//!
//! Dmitry Vyukov's bounded queue: every slot has a sequence word of its own, which says whose turn it is. At position
//! `p` of the ring a slot is free when its sequence is `p`, and holds a message when it is `p + 1`; whoever took the
//! message sets it to `p + capacity`, where the next lap finds it free. So a consumer polls nothing but the slot it
//! waits for, and there is no line with an index on it that both sides write. Positions are 32 bits wide and wrap
//! around, which is why capacities are powers of two, and at least two.
//!
//! Host threads claim positions from a [`Tail`], and as long as that is one thread it counts without atomic steps; a kernel
//! that is the only producer counts by itself.
//!
//! `tests/loom.rs` runs this very file under loom.

use crate::sync::{AtomicU32, AtomicU64, Ordering, Solo};

/// Memory made of words.
pub(crate) trait Words {
    /// One of them. The index is inside.
    fn word(&self, index: usize) -> &AtomicU32;
}

/// Where a ring's slots lie.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slots {
    /// Word index of the first slot.
    pub(crate) first: usize,
    /// Words of a slot.
    pub(crate) stride: usize,
    /// Slots, less one.
    pub(crate) mask: u32,
}

/// Why no slot was claimed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Full,
    Closed,
}

impl Slots {
    /// Word index of the slot at a position; its sequence is the first word.
    #[inline(always)]
    pub(crate) fn at(&self, position: u32) -> usize {
        self.first + (position & self.mask) as usize * self.stride
    }

    pub(crate) fn capacity(&self) -> u32 {
        self.mask + 1
    }

    /// Makes all slots free. Before anybody else looks.
    pub(crate) fn initialize(&self, words: &impl Words) {
        for position in 0..self.capacity() {
            words.word(self.at(position)).store(position, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    fn sequence(&self, words: &impl Words, position: u32) -> u32 {
        // Acquire: what the other side did with the slot is over.
        words.word(self.at(position)).load(Ordering::Acquire)
    }

    /// For a producer that is alone: whether the slot can be written.
    #[inline(always)]
    pub(crate) fn is_free(&self, words: &impl Words, position: u32) -> bool {
        self.sequence(words, position) == position
    }

    /// For the consumer: whether the slot holds a message.
    #[inline(always)]
    pub(crate) fn is_filled(&self, words: &impl Words, position: u32) -> bool {
        self.sequence(words, position) == position.wrapping_add(1)
    }

    /// The message is written: hands it to the consumer.
    #[inline(always)]
    pub(crate) fn publish(&self, words: &impl Words, position: u32) {
        words.word(self.at(position)).store(position.wrapping_add(1), Ordering::Release);
    }

    /// The message is read: hands the slot to the producers' next lap.
    #[inline(always)]
    pub(crate) fn release(&self, words: &impl Words, position: u32) {
        words.word(self.at(position)).store(position.wrapping_add(self.capacity()), Ordering::Release);
    }
}

/// Where the next message goes, for many producers. In host memory: a device never claims.
#[derive(Debug)]
pub(crate) struct Tail {
    /// How many positions were given out, and above it `CLOSED`: once that is set, no more are. The ring's position is the
    /// lower half; the whole number never comes back, so it can name the message.
    state: AtomicU64,
    /// Who is alone with it just counts on: nobody else changes it meanwhile.
    solo: Solo,
}

const CLOSED: u64 = 1 << 63;

impl Tail {
    pub(crate) fn new() -> Self {
        Self { state: AtomicU64::new(0), solo: Solo::new() }
    }

    /// A number whose lower half is a position whose slot is the caller's to write and to publish.
    #[inline(always)]
    pub(crate) fn claim(&self, slots: &Slots, words: &impl Words) -> Result<u64, Refusal> {
        let Some(_alone) = self.solo.enter() else { return self.claim_among_others(slots, words) };
        let state = self.state.load(Ordering::Relaxed);
        if state & CLOSED != 0 {
            return Err(Refusal::Closed);
        }
        if !slots.is_free(words, state as u32) {
            return Err(Refusal::Full);
        }
        self.state.store(state + 1, Ordering::Relaxed);
        Ok(state)
    }

    #[inline]
    fn claim_among_others(&self, slots: &Slots, words: &impl Words) -> Result<u64, Refusal> {
        let mut state = self.state.load(Ordering::Relaxed);
        loop {
            if state & CLOSED != 0 {
                return Err(Refusal::Closed);
            }
            let position = state as u32;
            let sequence = slots.sequence(words, position);
            let again = if sequence == position {
                match self.state.compare_exchange_weak(state, state + 1, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => return Ok(state),
                    Err(now) => now,
                }
            } else {
                let now = self.state.load(Ordering::Relaxed);
                if now == state && (sequence.wrapping_sub(position) as i32) < 0 {
                    return Err(Refusal::Full);
                }
                now
            };
            state = again;
        }
    }

    /// Gives out no more positions; says which would have been the next. Every one before it will be published.
    pub(crate) fn close(&self) -> u32 {
        self.solo.share();
        self.state.fetch_or(CLOSED, Ordering::Relaxed) as u32
    }

    pub(crate) fn position(&self) -> u32 {
        self.state.load(Ordering::Relaxed) as u32
    }
}
