//! What is sent, and what is kept, as a port knows it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use millrace_core::{Priority, View};
use rkyv::util::AlignedVec;

use crate::{Moment, handler::Behaviour, header::Header, journal::Positions, layout::flags};

/// What belongs to a message and does not fit into its slot. It waits beside the ring, under the message's number.
#[derive(Debug, Clone)]
pub(crate) enum Attachment {
    /// A buffer of the device's pool, as it was when the message was sent.
    View(View),
    /// An archive.
    Archive(Arc<AlignedVec>),
    /// Why a message failed.
    Reason(Arc<str>),
}

/// A kernel's state as it was at some moment.
#[derive(Debug, Clone)]
pub(crate) struct Saved {
    pub(crate) state: Vec<u8>,
    pub(crate) handled: u64,
    pub(crate) clock: Moment,
    /// Where the rings were.
    pub(crate) positions: Positions,
}

/// What is left of a kernel that failed and may come back.
pub(crate) struct Remains {
    pub(crate) behaviour: Box<dyn Behaviour>,
    /// How far it got in its rings; those up to there were answered, also the one that it failed with.
    pub(crate) reached: Positions,
}

/// Reads the last checkpoint where a device made it.
pub(crate) type SavedAt = Box<dyn Fn() -> Option<Saved> + Send + Sync>;

/// Attachments of messages on their way in one direction.
pub(crate) type Attachments = Mutex<HashMap<u64, Attachment>>;

/// What is known of a message before it is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head {
    pub(crate) high: bool,
    pub(crate) kind: u32,
    pub(crate) flags: u32,
    pub(crate) clock: Moment,
    /// Which buffer the attachment is, for a device that looks there.
    pub(crate) buffer: (u32, u32),
    /// The sender runs the kernel itself: its worker is not to be woken.
    pub(crate) quietly: bool,
}

impl Head {
    /// What stands in front of the message, once it has a number.
    #[inline(always)]
    pub(crate) fn header(&self, number: u64, length: usize, flags: u32) -> Header {
        Header {
            kind: self.kind,
            length: length as u32,
            flags: flags | u32::from(!self.high),
            id: message_id(number, self.high),
            correlation: 0,
            clock: self.clock,
            buffer: self.buffer.0,
            generation: self.buffer.1,
        }
    }
}

/// The flags of a message that its sender does not ask with. Urgent ones are not left for when it asks.
#[inline(always)]
pub(crate) fn posted(priority: Priority) -> u32 {
    if priority == Priority::High { 0 } else { flags::WILLING }
}

/// A plain message to be sent.
pub(crate) struct Outgoing<'a> {
    pub(crate) head: Head,
    pub(crate) bytes: &'a [u8],
    /// Taken once the message is sure to be sent.
    pub(crate) attachment: &'a mut Option<Attachment>,
}

/// Where a message goes: memory of a slot, aligned to 16; or an answer, aligned for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) start: *mut u8,
    pub(crate) room: usize,
}

/// The id of the message that a ring's number was claimed for. Never zero.
#[inline(always)]
pub(crate) fn message_id(number: u64, high: bool) -> u64 {
    (number << 1 | u64::from(high)) + 1
}
