//! Where events are kept while they happen: chunks that are filled one after the other and never moved, so that the
//! millionth event costs what the first did, and a bound.

use std::sync::atomic::{AtomicUsize, Ordering};

const SMALLEST: usize = 16;
const LARGEST: usize = 1024;

/// How many more events may be kept. Logs that share it take from it a chunk at a time.
#[derive(Debug, Default)]
pub(super) struct Room(AtomicUsize);

impl Room {
    pub(super) fn set(&self, events: usize) {
        self.0.store(events, Ordering::Relaxed);
    }

    /// Takes up to `wanted`.
    fn take(&self, wanted: usize) -> usize {
        let rest = |left: usize| Some(left - left.min(wanted));
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rest).map_or(0, |left| left.min(wanted))
    }
}

/// Events in order, and a count of those for which there was no room.
#[derive(Debug)]
pub(super) struct Log<T> {
    full: Vec<Vec<T>>,
    open: Vec<T>,
    /// How many the open chunk may hold.
    limit: usize,
    dropped: u64,
}

impl<T> Default for Log<T> {
    fn default() -> Self {
        Self { full: Vec::new(), open: Vec::new(), limit: 0, dropped: 0 }
    }
}

impl<T> Log<T> {
    #[inline]
    pub(super) fn push(&mut self, event: T, room: &Room) {
        if self.open.len() == self.limit && !self.grow(room) {
            self.dropped += 1;
            return;
        }
        self.open.push(event);
    }

    /// Begins another chunk, if there is room for one.
    #[cold]
    fn grow(&mut self, room: &Room) -> bool {
        let got = room.take((2 * self.limit).clamp(SMALLEST, LARGEST));
        if got == 0 {
            return false;
        }
        let chunk = std::mem::replace(&mut self.open, Vec::with_capacity(got));
        self.limit = got;
        if !chunk.is_empty() {
            self.full.push(chunk);
        }
        true
    }

    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn into_events(self) -> impl Iterator<Item = T> {
        self.full.into_iter().flatten().chain(self.open)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_counted_and_what_does_is_in_order() {
        for bound in [0, 1, 15, 16, 17, 1000, 5000] {
            let room = Room::default();
            room.set(bound);
            let (mut one, mut other) = (Log::default(), Log::default());
            for n in 0..4000 {
                one.push(n, &room);
                other.push(n, &room);
            }
            let dropped = one.dropped() + other.dropped();
            let (one, other): (Vec<_>, Vec<_>) = (one.into_events().collect(), other.into_events().collect());
            assert_eq!((one.len() + other.len()) as u64 + dropped, 8000);
            assert!(one.len() + other.len() <= bound);
            assert!(one.iter().copied().eq(0..one.len()) && other.iter().copied().eq(0..other.len()));
        }
    }

    #[test]
    fn one_log_uses_all_of_its_room() {
        let (room, mut log) = (Room::default(), Log::default());
        room.set(3000);
        (0..4000).for_each(|n| log.push(n, &room));
        assert_eq!((log.dropped(), log.into_events().count()), (1000, 3000));
    }
}
