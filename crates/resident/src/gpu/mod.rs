//! Kernels that stay on a GPU.
//!
//! All kernels of a device context lie in one piece of memory (`arena.rs`) and are served by one program, which is made
//! from their handlers (`program.rs`, `resident.wgsl`) and runs on one thread of the device. A thread of the host, the
//! keeper (`keeper.rs`), keeps it running: by leases where the memory is shared, and in batches where it is not.

mod arena;
mod batches;
mod checkpoint;
mod forward;
mod keeper;
mod lost;
mod program;
mod ways;

pub(crate) use self::forward::Pending as Unsent;

use std::sync::{Arc, Mutex, OnceLock, Weak, atomic::Ordering};

use crossbeam_utils::CachePadded;
use millrace_core::{Device, Dim3, Priority, Sharing};

use self::{
    arena::{Arena, own},
    checkpoint::{read_checkpoint, saved_positions},
    keeper::{House, Tenant},
    lost::{Lost, Replay},
    program::Part,
};
use crate::{
    Clock, Command, Error, InUse, Mode, Residency, RestartPolicy, Result, Status,
    engine::{Engine, Launched, Plan, Recovery},
    handler::Behaviour,
    journal::Journal,
    layout::slot,
    links::Links,
    port::{Port, lock},
    slots::Words as _,
};

/// Words of the memory for all kernels of a device context: 16 MiB.
const ARENA: usize = 4 << 20;

/// What a device's GPU kernels have in common. Kept by the device's context.
#[derive(Default)]
pub(crate) struct Houses {
    clock: Arc<CachePadded<Clock>>,
    leased: Mutex<Weak<House>>,
    /// Why there are no leases, once the device has said so: it is not asked again.
    no_leases: OnceLock<Arc<str>>,
    batched: Mutex<Weak<House>>,
}

impl Houses {
    /// The house for a kernel, opened if it is the first.
    fn open(&self, device: &Device, residency: Residency) -> Result<Arc<House>> {
        let why = match residency {
            Residency::Batched => "it was asked for".into(),
            Residency::Auto => match self.no_leases.get() {
                Some(why) => why.clone(),
                None => match self.house(&self.leased, device, Sharing::Required, None) {
                    Ok(house) => return Ok(house),
                    Err(error) => {
                        tracing::warn!(%error, "resident kernels are run in batches");
                        let why: Arc<str> = format!("leases are not possible: {error}").into();
                        // What it cannot do now it never can; other errors may pass.
                        use millrace_core::Error::{Device, TooLarge};
                        if matches!(error, Error::Device(Device(_) | TooLarge { .. })) {
                            let _ = self.no_leases.set(why.clone());
                        }
                        why
                    }
                },
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
        }
        let handler = house.handler(part)?;
        let lost = replay.and_then(|replay| replay.lost.as_ref());
        if let Some(lost) = lost {
            *lock(&port.unsent) = std::mem::take(&mut *lock(&lost.unsent));
        }
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
        let entered = house.enter(Tenant::new(
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
        ));
        if let Err(error) = entered {
            if let Some(lost) = lost {
                *lock(&lost.unsent) = std::mem::take(&mut *lock(&port.unsent));
            }
            return Err(error);
        }
        let residency = house.residency().clone();
        let (recovery, keep) = (Some(Box::new(recovery) as Box<dyn Recovery>), Some(Box::new(house) as _));
        Ok(Launched { port, links, residency, recovery, caught_up, keep })
    }
}
