//! The memory in use over time. The pool keeps this behind its own lock, where every change passes anyway.

use millrace_ring::TickClock;

use super::log::{Log, Room};

#[derive(Debug)]
pub(crate) struct MemoryTrace {
    clock: TickClock,
    room: Room,
    /// Ticks, and bytes in use from then on.
    log: Log<(u64, u64)>,
    peak: u64,
}

impl MemoryTrace {
    pub(super) fn new(clock: TickClock, events: usize) -> Self {
        let room = Room::default();
        room.set(events);
        Self { clock, room, log: Log::default(), peak: 0 }
    }

    /// Out of line: the pool's own path stays as short as it is.
    #[cold]
    pub(crate) fn note(&mut self, in_use: u64) {
        self.peak = self.peak.max(in_use);
        self.log.push((self.clock.now(), in_use), &self.room);
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    pub(super) fn dropped(&self) -> u64 {
        self.log.dropped()
    }

    pub(super) fn into_samples(self) -> impl Iterator<Item = (u64, u64)> {
        self.log.into_events()
    }
}
