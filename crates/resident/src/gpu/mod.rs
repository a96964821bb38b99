//! Kernels that stay on a GPU.
//!
//! All kernels of a device context lie in one piece of memory (`arena.rs`) and are served by one program, which is made
//! from their handlers (`program.rs`, `resident.wgsl`) and runs on one thread of the device. A thread of the host, the
//! keeper (`keeper.rs`), keeps it running: by leases where the memory is shared, and in batches where it is not.

mod arena;
mod batches;
mod forward;
mod keeper;
mod program;

pub(crate) use self::forward::Pending as Unsent;

use std::sync::{Arc, Mutex, Weak, atomic::Ordering};

use crossbeam_utils::CachePadded;
use millrace_core::{Device, Dim3, Priority, Sharing};

use self::{
    arena::{Arena, Piece, own},
    keeper::{House, Tenant},
    program::Part,
};
use crate::{
    Clock, Command, Error, InUse, Mode, Moment, Residency, RestartPolicy, Result, Status,
    engine::{Again, Engine, Launched, Plan, Recovery},
    handler::Behaviour,
    header::Header,
    journal::{Entry, Journal, Positions, is_before},
    layout::{RegionLayout, flags, slot},
    links::Links,
    port::{Port, Saved, lock},
    slots::Words as _,
};

/// Words of the memory for all kernels of a device context: 16 MiB.
const ARENA: usize = 4 << 20;

/// What a device's GPU kernels have in common. Kept by the device's context.
#[derive(Default)]
pub(crate) struct Houses {
    clock: Arc<CachePadded<Clock>>,
    leased: Mutex<Weak<House>>,
    batched: Mutex<Weak<House>>,
}

impl Houses {
    /// The house for a kernel, opened if it is the first.
    fn open(&self, device: &Device, residency: Residency) -> Result<Arc<House>> {
        let why = match residency {
            Residency::Batched => "it was asked for".into(),
            Residency::Auto => match self.house(&self.leased, device, Sharing::Required, None) {
                Ok(house) => return Ok(house),
                Err(error) => {
                    tracing::warn!(%error, "resident kernels are run in batches");
                    format!("leases are not possible: {error}").into()
                }
            },
        };
        self.house(&self.batched, device, Sharing::None, Some(why))
    }

    fn house(
        &self,
        known: &Mutex<Weak<House>>,
        device: &Device,
        sharing: Sharing,
        why: Option<Arc<str>>,
    ) -> Result<Arc<House>> {
        let mut known = lock(known);
        if let Some(house) = known.upgrade().filter(|house| house.is_open()) {
            return Ok(house);
        }
        let Some(residence) = device.backend().residence(ARENA, sharing) else {
            let text = format!("the device {} has no place for kernels that stay", device.info().id);
            return Err(Error::Invalid(text.into()));
        };
        let residency = match why {
            Some(why) => InUse { mode: Mode::Batched, why },
            None => InUse { mode: Mode::Leases, why: "host and device see each other's writes, in order".into() },
        };
        let arena = Arc::new(Arena::new(residence?, ARENA)?);
        let house = House::open(arena, residency, device.timeout())?;
        *known = Arc::downgrade(&house);
        Ok(house)
    }
}

pub(crate) struct Gpu;

impl Engine for Gpu {
    fn launch(&self, device: &Device, plan: &Plan<'_>, _: Box<dyn Behaviour>) -> Result<Launched> {
        self.settle(device, plan, Arc::default(), None)
    }
}

impl Gpu {
    fn settle(&self, device: &Device, plan: &Plan<'_>, links: Arc<Links>, replay: Option<&Replay>) -> Result<Launched> {
        let options = plan.options;
        let id = || Arc::from(device.info().id.as_str());
        let unsupported = |what, why| Err(Error::Unsupported { what, device: id(), why });
        let missing = |why| Error::NoImplementation { handler: plan.handler, device: id(), why };
        if options.grid != Dim3::ONE {
            return unsupported("a grid", "one thread serves all kernels there");
        }
        if options.block != Dim3::ONE {
            return unsupported("a block", "one thread serves all kernels there");
        }
        if options.restart != RestartPolicy::Never {
            return unsupported("a restart policy", "a handler there cannot panic");
        }
        let types = plan.types.ok_or_else(|| missing("archives are read on the CPU only"))?;
        let body = plan.wgsl.ok_or_else(|| missing("it has no WGSL"))?;
        let houses = device.attachment::<Houses>();
        let house = houses.open(device, options.residency)?;
        let part = Part::new(body, types);
        let arena = house.arena();
        let name = plan.handler.rsplit("::").next().unwrap_or(plan.handler);
        arena.residence().check(name, &part.alone())?;
        let waiting = replay.map_or(0, |replay| replay.letters.len());
        let link_slots = (plan.layout.inbound as usize + waiting).next_power_of_two();
        let mut piece = arena.allocate(&plan.layout, plan.state.len(), link_slots, plan.memory.len())?;
        let region = piece.region(&plan.layout)?;
        for (i, word) in plan.state.chunks_exact(4).enumerate() {
            let word = [word[0], word[1], word[2], word[3]];
            arena.set(piece.state + i, u32::from_ne_bytes(word));
        }
        for (i, &word) in plan.memory.iter().enumerate() {
            arena.set(piece.memory + i, word);
        }
        let port = Arc::new(Port::new(region, plan.layout, houses.clock.clone(), device.timeout())?);
        // The head of an answer is always the same, so the device need not write it.
        for position in 0..port.rings.out.capacity() {
            let at = port.rings.out.at(position);
            port.region.word(at + slot::TYPE).store(types.reply.id, Ordering::Release);
            port.region.word(at + slot::LENGTH).store(types.reply.size as u32, Ordering::Release);
        }
        let _ = port.saved_at.set({
            let (arena, own, saved, bytes) = (Arc::downgrade(arena), piece.own, piece.saved, plan.state.len());
            Box::new(move || read_checkpoint(&*arena.upgrade()?, own, saved, bytes))
        });
        if options.checkpoint_every.is_some() {
            let (arena, own) = (Arc::downgrade(arena), piece.own);
            let _ = port.journal.set(Journal::new(move || saved_positions(&*arena.upgrade()?, own)));
        }
        if let Some(replay) = replay {
            replay.write(arena, &piece, &plan.layout);
            replay.letters.iter().for_each(|letter| port.clock.see(letter.clock));
            if replay.paused {
                port.region.control().command.store(Command::Pause as u32, Ordering::Release);
                port.region.control().status.store(Status::Paused as u32, Ordering::Release);
            }
            if let Some(lost) = &replay.lost {
                *lock(&port.unsent) = std::mem::take(&mut *lock(&lost.unsent));
            }
        }
        let handler = house.handler(part)?;
        let recovery = Lost {
            port: Arc::downgrade(&port),
            first: plan.state.to_vec(),
            arena: Arc::downgrade(arena),
            own: piece.own,
            links: (piece.links, piece.link_slots),
        };
        let caught_up = replay.map(|_| {
            let (arena, own) = (Arc::downgrade(arena), piece.own);
            let is = move || {
                let of = |arena: &Arena| arena.get(own + own::REPLAY) <= arena.get(own + own::LOUD);
                arena.upgrade().is_some_and(|arena| of(&arena))
            };
            Box::new(is) as Box<dyn Fn() -> bool + Send + Sync>
        });
        let notify = house.notifier();
        links.when_changed(Arc::new(move || notify.links_changed()));
        house.enter(Tenant::new(
            port.clone(),
            links.clone(),
            piece,
            handler,
            match options.priority {
                Priority::High => 64,
                Priority::Normal => 16,
                Priority::Low => 1,
            },
            options,
        ))?;
        let residency = house.residency().clone();
        let (recovery, keep) = (Some(Box::new(recovery) as Box<dyn Recovery>), Some(Box::new(house) as _));
        Ok(Launched { port, links, residency, recovery, caught_up, keep })
    }
}

/// A message that a kernel is sent again.
struct Letter {
    /// It was handled before, or nobody waits for its answer.
    silent: bool,
    kind: u32,
    length: u32,
    clock: Moment,
    words: Vec<u32>,
}

/// What a kernel that was lost is sent again: it is in the ring that other kernels write into when it comes back.
struct Replay {
    /// What was handled before comes first.
    letters: Vec<Letter>,
    /// How many of them had not been handled, the last ones.
    loud: usize,
    paused: bool,
    lost: Option<Arc<Port>>,
}

impl Replay {
    fn write(&self, arena: &Arena, piece: &Piece, layout: &RegionLayout) {
        for (n, letter) in self.letters.iter().enumerate() {
            let at = piece.links + n * layout.in_stride;
            let clock = letter.clock.raw();
            arena.set(at + slot::TYPE, letter.kind);
            arena.set(at + slot::LENGTH, letter.length);
            arena.set(at + slot::FLAGS, 1 | if letter.silent { flags::SILENT } else { 0 });
            arena.set(at + slot::CLOCK, clock as u32);
            arena.set(at + slot::CLOCK + 1, (clock >> 32) as u32);
            for (i, &word) in letter.words.iter().take(layout.in_payload() / 4).enumerate() {
                arena.set(at + slot::PAYLOAD + i, word);
            }
        }
        arena.set(piece.own + own::REPLAY, self.letters.len() as u32);
        arena.set(piece.own + own::LOUD, self.loud as u32);
        arena.set(piece.own + own::LINK_TAIL, self.letters.len() as u32);
    }
}

/// What is left of a kernel when its device is lost: the memory, which is the host's as well.
struct Lost {
    port: Weak<Port>,
    first: Vec<u8>,
    arena: Weak<Arena>,
    own: usize,
    /// Where the ring of other kernels' messages is, and its slots.
    links: (usize, usize),
}

impl Lost {
    /// The number of the last message that was answered, and, if that came from another kernel, one more than its
    /// position. The device may have been lost between an answer and the end of the message.
    fn answered(&self, port: &Port) -> Option<(u32, u32)> {
        let (control, out, region) = (port.region.control(), &port.rings.out, &port.region);
        let tail = control.out_tail.load(Ordering::Acquire);
        let ahead = out.is_filled(region, tail);
        let last = if ahead { tail } else { tail.wrapping_sub(1) };
        let id = Header::read(region, out.at(last)).id;
        (ahead || tail != 0).then_some((id as u32, (id >> 32) as u32))
    }

    /// What other kernels sent to it since its last checkpoint, and how many of those it had handled.
    fn letters_of_kernels(&self, arena: &Arena, port: &Port) -> (Vec<Letter>, usize) {
        let own = |at: usize| arena.get(self.own + at);
        let saved = if own(own::SAVED_VERSION) == 0 { 0 } else { own(own::SAVED_LINK) };
        let (mut head, tail, (first, slots)) = (own(own::LINK_HEAD), own(own::LINK_TAIL), self.links);
        if self.answered(port).is_some_and(|(_, link)| link == head.wrapping_add(1)) && head != tail {
            head = head.wrapping_add(1);
        }
        let read = |n: u32| {
            let position = saved.wrapping_add(n);
            let at = first + (position as usize & (slots - 1)) * port.layout.in_stride;
            let (word, length) = (|i: usize| arena.get(at + i), arena.get(at + slot::LENGTH));
            let words = (length as usize).div_ceil(4).min(port.layout.in_payload() / 4);
            Letter {
                silent: word(slot::FLAGS) & flags::SILENT != 0,
                kind: word(slot::TYPE),
                length,
                clock: Moment::from_raw(u64::from(word(slot::CLOCK)) | u64::from(word(slot::CLOCK + 1)) << 32),
                words: (0..words).map(|i| word(slot::PAYLOAD + i)).collect(),
            }
        };
        let letters = (0..tail.wrapping_sub(saved)).map(read).collect();
        (letters, head.wrapping_sub(saved) as usize)
    }
}

impl From<&Entry> for Letter {
    fn from(entry: &Entry) -> Self {
        let words = entry.bytes.chunks(4).map(|chunk| {
            let mut word = [0; 4];
            word[..chunk.len()].copy_from_slice(chunk);
            u32::from_ne_bytes(word)
        });
        let (kind, length, clock, silent) = (entry.kind, entry.bytes.len() as u32, entry.clock, entry.ask);
        Self { silent, kind, length, clock, words: words.collect() }
    }
}

impl Recovery for Lost {
    fn state(&self) -> Vec<u8> {
        let saved = self.port.upgrade().and_then(|port| port.saved());
        saved.map_or_else(|| self.first.clone(), |saved| saved.state)
    }

    fn relaunch(&self, device: &Device, plan: &Plan<'_>, again: Again<'_>) -> Result<Launched> {
        let (Some(port), Some(arena)) = (self.port.upgrade(), self.arena.upgrade()) else {
            return Err(Error::NoPayload);
        };
        let (mut letters, handled) = self.letters_of_kernels(&arena, &port);
        let mut loud = letters.split_off(handled.min(letters.len()));
        let (before, after): (Vec<&Entry>, Vec<&Entry>) =
            again.entries.iter().partition(|entry| is_before(entry, again.reached));
        letters.extend(before.into_iter().map(Letter::from));
        letters.iter_mut().for_each(|letter| letter.silent = true);
        loud.splice(0..0, after.into_iter().map(Letter::from));
        let count = loud.len();
        letters.append(&mut loud);
        let replay = Replay { letters, loud: count, paused: again.paused, lost: Some(port) };
        Gpu.settle(device, plan, again.links, Some(&replay))
    }

    fn take_back(&self, failed: &Port, _: Positions) {
        // All else is in the memory of the one that was lost.
        if let Some(port) = self.port.upgrade() {
            *lock(&port.unsent) = std::mem::take(&mut *lock(&failed.unsent));
        }
    }

    fn reached(&self) -> Positions {
        let Some(port) = self.port.upgrade() else { return [0; 2] };
        let control = port.region.control();
        let mut heads = [&control.high_head, &control.normal_head].map(|head| head.load(Ordering::Acquire));
        let Some((answered, 0)) = self.answered(&port) else { return heads };
        for (i, head) in heads.iter_mut().enumerate() {
            let id = (*head << 1 | u32::from(i == 0)).wrapping_add(1);
            if id == answered {
                *head = head.wrapping_add(1);
            }
        }
        heads
    }
}

/// Where the rings were at the last checkpoint.
fn saved_positions(arena: &Arena, own: usize) -> Option<Positions> {
    of_checkpoint(arena, own, |word| [own::SAVED_HIGH, own::SAVED_NORMAL].map(|at| word(own + at)))
}

/// The checkpoint that the device made last.
fn read_checkpoint(arena: &Arena, own: usize, saved: usize, bytes: usize) -> Option<Saved> {
    of_checkpoint(arena, own, |word| {
        let two = |at: usize| u64::from(word(own + at)) | u64::from(word(own + at + 1)) << 32;
        Saved {
            state: (0..bytes / 4).flat_map(|i| word(saved + i).to_ne_bytes()).collect(),
            handled: two(own::SAVED_HANDLED),
            clock: Moment::from_raw(two(own::SAVED_CLOCK)),
            positions: [own::SAVED_HIGH, own::SAVED_NORMAL].map(|at| word(own + at)),
        }
    })
}

/// Reads words of the last checkpoint, all of the same one; none if there is none.
fn of_checkpoint<R>(arena: &Arena, own: usize, read: impl Fn(&dyn Fn(usize) -> u32) -> R) -> Option<R> {
    let word = |at: usize| arena.word(at).load(Ordering::Relaxed);
    // A device that stopped in the middle must not keep us here.
    for _ in 0..1_000_000 {
        let version = arena.get(own + own::SAVED_VERSION);
        if version == 0 {
            return None;
        }
        let found = read(&word);
        std::sync::atomic::fence(Ordering::Acquire);
        if version.is_multiple_of(2) && version == word(own + own::SAVED_VERSION) {
            return Some(found);
        }
        std::hint::spin_loop();
    }
    None
}
