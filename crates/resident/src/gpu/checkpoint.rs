//! Checkpoints that the device made, as the host reads them: there are two, and the device writes over the older one.

use std::sync::atomic::{Ordering, fence};

use super::arena::{Arena, own, saved, slot_of};
use crate::{Moment, journal::Positions, port::Saved};

/// Where the rings were at the last checkpoint.
pub(super) fn saved_positions(arena: &Arena, own: usize) -> Option<Positions> {
    of_checkpoint(arena, own, |which, word| positions(block(own, which), word))
}

/// Up to where messages of other kernels are in the last checkpoint.
pub(super) fn saved_link(arena: &Arena, own: usize) -> u32 {
    of_checkpoint(arena, own, |which, word| word(block(own, which) + saved::LINK)).unwrap_or(0)
}

/// The checkpoint that the device completed last. `copies` is where those of the state begin.
pub(super) fn read_checkpoint(arena: &Arena, own: usize, copies: usize, bytes: usize) -> Option<Saved> {
    of_checkpoint(arena, own, |which, word| {
        let (at, state) = (block(own, which), copies + which * (bytes / 4));
        let two = |at: usize| u64::from(word(at)) | u64::from(word(at + 1)) << 32;
        Saved {
            state: (0..bytes / 4).flat_map(|i| word(state + i).to_ne_bytes()).collect(),
            handled: two(at + saved::HANDLED),
            clock: Moment::from_raw(two(at + saved::CLOCK)),
            positions: positions(at, word),
        }
    })
}

/// Where the words of a checkpoint are.
fn block(own: usize, which: usize) -> usize {
    own + own::SAVED + which * saved::WORDS
}

fn positions(at: usize, word: &dyn Fn(usize) -> u32) -> Positions {
    [saved::HIGH, saved::NORMAL].map(|of| word(at + of))
}

/// Reads words of the last checkpoint, all of the same one; none if there is none.
fn of_checkpoint<R>(arena: &Arena, own: usize, read: impl Fn(usize, &dyn Fn(usize) -> u32) -> R) -> Option<R> {
    let word = |at: usize| arena.word(at).load(Ordering::Relaxed);
    // The device writes over it only after it has completed the next one. One that stopped leaves it, and we look once.
    loop {
        let version = arena.get(own + own::SAVED_VERSION);
        if version == 0 {
            return None;
        }
        if version.is_multiple_of(2) {
            let found = read(slot_of(version), &word);
            fence(Ordering::Acquire);
            if version == word(own + own::SAVED_VERSION) {
                return Some(found);
            }
        }
        std::hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, sync::Arc, sync::Weak, time::Duration};

    use millrace_core::{Code, Error, Leave, Residence, Result, Shape};

    use super::*;
    use crate::{
        gpu::arena::{self, Piece},
        layout::{self, RegionLayout},
    };

    /// A device that does nothing.
    struct Still;

    impl Residence for Still {
        fn shared(&self) -> Option<&[std::sync::atomic::AtomicU32]> {
            None
        }
        fn shape(&self) -> Shape {
            Shape::new(1, true, None)
        }
        fn check(&self, _: &str, _: &str) -> Result<()> {
            Ok(())
        }
        fn compile(&self, _: &str) -> Result<Code> {
            Err(Error::DeviceLost("it is still".into()))
        }
        fn submit(&self, _: &Code, _: u32) -> Result<()> {
            Ok(())
        }
        fn wait(&self, _: Duration) -> Result<bool> {
            Ok(true)
        }
        fn exchange(&self, _: &Code, _: &mut [u32], _: Duration) -> Result<()> {
            Ok(())
        }
        fn attend(&self, _: Weak<dyn Leave>) {}
        fn abandon(&self) {}
    }

    const STATE: usize = 5;

    /// What the program on the device stores when it makes its `n`th checkpoint, in order: taken from its text. The state and
    /// all else that it holds are `n`.
    fn stores(piece: &Piece, n: u32) -> Vec<(usize, u32)> {
        let program = include_str!("resident.wgsl");
        let text = program.split("fn checkpoint() {").nth(1).unwrap().split("\n}").next().unwrap();
        let constants = arena::wgsl() + &layout::wgsl();
        let mut names: HashMap<&str, usize> = constants
            .lines()
            .filter_map(|line| line.strip_prefix("const ")?.strip_suffix("u;")?.split_once(": u32 = "))
            .map(|(name, value)| (name, value.parse().unwrap()))
            .collect();
        let which = n as usize % 2;
        names.extend([("own", piece.own), ("region", piece.first), ("1u", 1)]);
        names.extend([("copy", piece.saved + which * STATE)]);
        names.extend([("saved", piece.own + own::SAVED + which * saved::WORDS)]);
        let mut stores = Vec::new();
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("put(")) {
            let (to, value) = line.split_once(", ").unwrap();
            let at = |i: usize| to.split(" + ").map(|part| if part == "i" { i } else { names[part] }).sum::<usize>();
            let repeated = if to.ends_with(" i") { STATE } else { 1 };
            let value = if value == "version);" { 2 * n } else { n };
            stores.extend((0..repeated).map(|i| (at(i), value)));
        }
        stores
    }

    #[test]
    fn a_device_that_dies_while_it_makes_a_checkpoint_leaves_the_last_one() {
        let words = 1 << 16;
        let arena = Arc::new(Arena::new(Arc::new(Still), words).unwrap());
        let layout = RegionLayout::new(4, 4, 16, 16);
        let fresh = || arena.allocate(&layout, STATE * 4, 4, 0).unwrap();
        let count = stores(&fresh(), 1).len();
        assert!(count > STATE + saved::WORDS, "{count} stores");
        for made in 0..4 {
            for done in 0..=count {
                let piece = fresh();
                let all = (1..=made).flat_map(|n| stores(&piece, n));
                all.chain(stores(&piece, made + 1).into_iter().take(done)).for_each(|(at, value)| arena.set(at, value));
                let complete = arena.get(piece.own + own::SAVED_VERSION) / 2;
                assert!(complete == made || complete == made + 1, "{made} {done}");
                let found = read_checkpoint(&arena, piece.own, piece.saved, STATE * 4);
                let expected = [complete; STATE].map(u32::to_ne_bytes).concat();
                assert_eq!(found.is_some(), complete > 0);
                assert_eq!(found.map_or_else(|| vec![0; STATE * 4], |found| found.state), expected, "{made} {done}");
                let positions = saved_positions(&arena, piece.own).unwrap_or([0; 2]);
                assert_eq!((positions, saved_link(&arena, piece.own)), ([complete; 2], complete), "{made} {done}");
                assert!(arena.get(piece.own + own::SAVED_LINK) <= complete, "what may be needed again is kept");
            }
        }
    }
}
