//! What was sent to a kernel since its last checkpoint, so that it can be sent again when the device is lost.

use std::sync::Mutex;

use crate::{
    Moment,
    port::{Attachment, lock},
};

/// A message that was sent.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) high: bool,
    /// How many went into the same ring before it.
    pub(crate) number: u64,
    pub(crate) kind: u32,
    pub(crate) clock: Moment,
    pub(crate) bytes: Vec<u8>,
    /// What belongs to it, shared and not copied.
    pub(crate) attachment: Option<Attachment>,
    /// Its sender waited for the answer.
    pub(crate) ask: bool,
}

/// Where the rings were at the last checkpoint: the urgent one and the normal one.
pub(crate) type Positions = [u32; 2];

pub(crate) struct Journal {
    notes: Mutex<Notes>,
    saved: Box<dyn Fn() -> Option<Positions> + Send + Sync>,
}

#[derive(Default)]
struct Notes {
    entries: Vec<Entry>,
    /// How many there may be before those that a checkpoint contains are dropped.
    limit: usize,
}

impl Journal {
    /// A journal whose entries are needed until a checkpoint contains them.
    pub(crate) fn new(saved: impl Fn() -> Option<Positions> + Send + Sync + 'static) -> Self {
        Self { notes: Mutex::default(), saved: Box::new(saved) }
    }

    /// Takes note of a message, before the kernel can see it.
    pub(crate) fn note(&self, entry: Entry) {
        let mut notes = lock(&self.notes);
        if notes.entries.len() >= notes.limit {
            self.prune(&mut notes);
            notes.limit = (notes.entries.len() * 2).max(64);
        }
        notes.entries.push(entry);
    }

    /// A message is not to be sent again: its handler panicked.
    pub(crate) fn forget(&self, high: bool, number: u64) {
        lock(&self.notes).entries.retain(|entry| (entry.high, entry.number) != (high, number));
    }

    fn prune(&self, notes: &mut Notes) {
        if let Some(positions) = (self.saved)() {
            notes.entries.retain(|entry| !is_before(entry, positions));
        }
    }

    /// All that the last checkpoint does not contain, in the order of their rings, urgent ones first.
    pub(crate) fn since_checkpoint(&self) -> Vec<Entry> {
        let mut notes = lock(&self.notes);
        self.prune(&mut notes);
        notes.entries.sort_by_key(|entry| (!entry.high, entry.number));
        notes.entries.clone()
    }
}

/// Whether a message is before a ring's position.
pub(crate) fn is_before(entry: &Entry, [high, normal]: Positions) -> bool {
    let position = if entry.high { high } else { normal };
    ((entry.number as u32).wrapping_sub(position) as i32).is_negative()
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("entries", &lock(&self.notes).entries.len()).finish_non_exhaustive()
    }
}
