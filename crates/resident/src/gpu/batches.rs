//! Batched dispatch: where host and device do not share memory, the host keeps all regions in its own, and the keeper
//! carries them to the device and back whenever there is something to do. The program and the protocol are the same; a
//! message takes a dispatch and two copies instead of a look.

use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::{
    arena::{directory, own, stop},
    keeper::{Keeper, Lost, Tenant},
};
use crate::{layout::TELEMETRY_AT, slots::Slots};

/// Turns of one dispatch.
const BUDGET: u32 = 16_000;

impl Keeper {
    /// Lets the device handle what waits.
    pub(super) fn batch(&mut self) -> Result<(), Lost> {
        let program = self.program()?;
        self.arena.set(directory::BUDGET, BUDGET);
        self.arena.set(directory::STOP, stop::IDLE);
        // In order: a slot's sequence word comes before its message, so a message that seems complete is.
        let words = &self.arena.all()[..self.arena.used()];
        let before: Vec<u32> = words.iter().map(|word| word.load(Ordering::Acquire)).collect();
        let mut after = before.clone();
        self.residence.exchange(&program, &mut after, self.timeout())?;
        for at in [directory::LEASES, directory::NEXT] {
            self.arena.set(at, after[at]);
        }
        for tenant in &self.tenants {
            publish(words, tenant, &before, &after);
        }
        Ok(())
    }
}

/// Writes what the device did to a kernel's memory into the host's, so that whoever looks there sees it in the order in
/// which the device did it. What the host may have changed meanwhile is left alone.
fn publish(words: &[AtomicU32], tenant: &Tenant, before: &[u32], after: &[u32]) {
    let piece = &tenant.piece;
    let put = |at: usize| words[at].store(after[at], Ordering::Relaxed);
    // The kernel's own: nobody else writes there, except for the links, which are as they were.
    let saved = piece.own + own::SAVED_VERSION;
    if before[saved] != after[saved] {
        words[saved].store(after[saved].wrapping_sub(1), Ordering::Relaxed);
        fence(Ordering::Release);
    }
    (piece.own..piece.first + piece.words).filter(|&at| at != saved && before[at] != after[at]).for_each(put);
    words[saved].store(after[saved], Ordering::Release);

    let telemetry = piece.first + TELEMETRY_AT / 4;
    // All but the last two words, which are the host's here.
    let counts = telemetry..telemetry + 14;
    if before[counts.clone()] != after[counts.clone()] {
        words[telemetry].store(after[telemetry].wrapping_sub(1), Ordering::Relaxed);
        fence(Ordering::Release);
        counts.skip(1).for_each(put);
        words[telemetry].store(after[telemetry], Ordering::Release);
    }

    let (control, rings) = (tenant.port.region.control(), &tenant.port.rings);
    let index = |word: &AtomicU32| (std::ptr::from_ref(word) as usize - words.as_ptr() as usize) / 4;
    let kernel = [&control.high_head, &control.normal_head, &control.out_tail, &control.burst];
    kernel.iter().map(|word| index(word)).for_each(put);
    let slots = |ring: &Slots| {
        let (first, stride) = (piece.first + ring.first, ring.stride);
        let slots = (0..ring.capacity() as usize).map(move |slot| first + slot * stride);
        slots.filter(|&at| before[at] != after[at]).map(move |at| (at, stride))
    };
    for (at, _) in slots(&rings.high).chain(slots(&rings.normal)) {
        words[at].store(after[at], Ordering::Release);
    }
    for (at, stride) in slots(&rings.out) {
        (at + 1..at + stride).for_each(put);
        words[at].store(after[at], Ordering::Release);
    }
    // How it is comes last: nobody looks for answers of a kernel that has ended.
    for word in [&control.fault, &control.status, &control.checkpoint_made, &control.acknowledged] {
        word.store(after[index(word)], Ordering::Release);
    }
}
