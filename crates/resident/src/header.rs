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

    /// Writes it in front of a message, in as few pieces as there can be.
    ///
    /// # Safety
    /// The slot is the caller's to write.
    #[inline(always)]
    pub(crate) unsafe fn write(&self, region: &Region, at: usize) {
        let two = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        // The bytes of two words are those of a number only if the lower half is first.
        let in_order = |value: u64| if cfg!(target_endian = "big") { value.rotate_left(32) } else { value };
        // SAFETY: a slot is inside the region, is aligned to a cache line, and nobody else looks at it by the caller's word.
        unsafe {
            let start = region.as_ptr().add(at);
            let put = |word: usize, value: u64| start.add(word).cast::<u64>().write(in_order(value));
            start.add(slot::TYPE).write(self.kind);
            put(slot::LENGTH, two(self.length, self.flags));
            put(slot::ID, self.id);
            put(slot::CORRELATION, self.correlation);
            put(slot::CLOCK, self.clock.raw());
            put(slot::BUFFER, two(self.buffer, self.generation));
        }
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
