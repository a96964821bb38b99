//! What stands in front of every message.

use std::sync::atomic::Ordering;

use crate::{
    Moment,
    layout::{flags, slot},
    region::Region,
    slots::Words,
};

/// What stands in front of a message.
///
/// ```
/// let header = millrace_resident::Header::default();
/// assert!(!header.is_ask());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// The message's type.
    pub kind: u32,
    /// Bytes of it in the slot.
    pub length: u32,
    /// See [`crate::layout::flags`].
    pub flags: u32,
    /// Its number, unique for its kernel and direction.
    pub id: u64,
    /// The number of the message that it answers; zero if none.
    pub correlation: u64,
    /// When it was sent.
    pub clock: Moment,
    /// Of a payload in a buffer: which; of a failure: the [`crate::layout::fault`].
    pub buffer: u32,
    /// Which life of that buffer.
    pub generation: u32,
}

impl Header {
    /// Whether its sender waits for the answer.
    pub fn is_ask(&self) -> bool {
        self.flags & flags::ASK != 0
    }

    #[inline(always)]
    pub(crate) fn write(&self, region: &Region, at: usize) {
        let set = |word: usize, value: u32| region.word(at + word).store(value, Ordering::Relaxed);
        let set_two = |word: usize, value: u64| {
            set(word, value as u32);
            set(word + 1, (value >> 32) as u32);
        };
        set(slot::TYPE, self.kind);
        set(slot::LENGTH, self.length);
        set(slot::FLAGS, self.flags);
        set_two(slot::ID, self.id);
        set_two(slot::CORRELATION, self.correlation);
        set_two(slot::CLOCK, self.clock.raw());
        set(slot::BUFFER, self.buffer);
        set(slot::GENERATION, self.generation);
    }

    #[inline(always)]
    pub(crate) fn read(region: &Region, at: usize) -> Self {
        let get = |word: usize| region.word(at + word).load(Ordering::Relaxed);
        let get_two = |word: usize| u64::from(get(word)) | u64::from(get(word + 1)) << 32;
        Self {
            kind: get(slot::TYPE),
            length: get(slot::LENGTH),
            flags: get(slot::FLAGS),
            id: get_two(slot::ID),
            correlation: get_two(slot::CORRELATION),
            clock: Moment::from_raw(get_two(slot::CLOCK)),
            buffer: get(slot::BUFFER),
            generation: get(slot::GENERATION),
        }
    }
}
