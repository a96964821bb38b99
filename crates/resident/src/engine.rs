//! How a kernel comes to live on a device: one engine per kind of device.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Weak},
};

use millrace_core::{Device, DeviceKind, Dim3, Priority};

use crate::{
    Command, Error, InUse, LaunchOptions, Mode, Result, WaitPolicy,
    gpu::Gpu,
    handler::Behaviour,
    journal::{Entry, Journal, Positions, is_before},
    kernel::{Kernel, text_of},
    layout::{MessageLayout, RegionLayout, flags},
    links::Links,
    port::{Head, Outgoing, Port, Remains, lock},
    region::Region,
    sync::Ordering,
    workers::Residency,
};

/// A handler without its types, for a device that runs something else than Rust.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// The handler's type.
    pub(crate) handler: &'static str,
    /// The body of its WGSL function.
    pub(crate) wgsl: Option<&'static str>,
    /// What it is sent, what it answers and what it remembers; none for archives, which only the CPU reads.
    pub(crate) types: Option<Types>,
    /// The state to start with.
    pub(crate) state: &'a [u8],
    /// The memory besides it.
    pub(crate) memory: &'a [u32],
    /// Where everything lies.
    pub(crate) layout: RegionLayout,
    pub(crate) options: &'a LaunchOptions,
}

/// A handler's messages.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Types {
    pub(crate) message: &'static MessageLayout,
    pub(crate) reply: &'static MessageLayout,
    pub(crate) state: &'static MessageLayout,
}

/// A kernel that lives.
pub(crate) struct Launched {
    pub(crate) port: Arc<Port>,
    pub(crate) links: Arc<Links>,
    pub(crate) residency: InUse,
    /// What it takes to go on after the device was lost.
    pub(crate) recovery: Option<Box<dyn Recovery>>,
    /// Of one that was lost: whether it has handled again what it had handled before. If none, that was waited for.
    pub(crate) caught_up: Option<Box<dyn Fn() -> bool + Send + Sync>>,
    /// What the engine needs for as long as the handle is held.
    pub(crate) keep: Option<Box<dyn Any + Send + Sync>>,
}

/// How a kernel goes on that was lost with its device.
pub(crate) trait Recovery: Send + Sync {
    /// The state to go on with: that of the last checkpoint, or the first.
    fn state(&self) -> Vec<u8>;
    /// Launches the kernel anew, with the links that it had and what it is to be sent again. It handles what was handled
    /// before, and then waits to be activated.
    fn relaunch(&self, device: &Device, plan: &Plan<'_>, again: Again<'_>) -> Result<Launched>;
    /// How far the lost one got in its rings, answers included; why it cannot come back, if nothing is left of it.
    fn reached(&self) -> Result<Positions>;
    /// The kernel that was launched failed before it had handled all that had been handled before.
    fn take_back(&self, failed: &Port, reached: Positions);
}

/// What a kernel that was lost had, and goes on with.
pub(crate) struct Again<'a> {
    pub(crate) links: Arc<Links>,
    /// What it was sent since its last checkpoint.
    pub(crate) entries: &'a [Entry],
    /// How far it was.
    pub(crate) reached: Positions,
    /// It was paused.
    pub(crate) paused: bool,
}

/// Makes handlers resident on devices of one kind.
pub(crate) trait Engine {
    /// Makes a region of the plan's layout, a [`Port`] over it, and a kernel that serves it.
    fn launch(&self, device: &Device, plan: &Plan<'_>, behaviour: Box<dyn Behaviour>) -> Result<Launched>;
}

/// The engine for a device.
pub(crate) fn engine_for(device: &Device, handler: &'static str) -> Result<Box<dyn Engine>> {
    match device.info().kind {
        DeviceKind::Cpu => Ok(Box::new(Cpu)),
        DeviceKind::Gpu => Ok(Box::new(Gpu)),
        _ => Err(Error::NoImplementation {
            handler,
            device: device.info().id.as_str().into(),
            why: "this build has resident kernels for the CPU and for GPUs only",
        }),
    }
}

struct Cpu;

impl Engine for Cpu {
    fn launch(&self, device: &Device, plan: &Plan<'_>, behaviour: Box<dyn Behaviour>) -> Result<Launched> {
        let options = plan.options;
        let unsupported = |what, why| {
            let device = device.info().id.as_str().into();
            Err(Error::Unsupported { what, device, why })
        };
        if options.grid != Dim3::ONE {
            return unsupported("a grid", "a kernel there is one thread");
        }
        if options.block != Dim3::ONE {
            return unsupported("a block", "a kernel there is one thread");
        }
        if options.priority == Priority::Low && options.wait == WaitPolicy::Spin {
            return unsupported("a low priority with a worker that never sleeps", "low kernels share their workers");
        }
        start(device, plan, port(device, plan)?, behaviour, Arc::default())
    }
}

/// A kernel's memory, and the host's side of it.
fn port(device: &Device, plan: &Plan<'_>) -> Result<Arc<Port>> {
    let residency = device.attachment::<Residency>();
    let region = Region::host(plan.layout.words())?;
    let port = Arc::new(Port::new(region, plan.layout, residency.clock.clone(), device.timeout())?);
    if plan.options.checkpoint_every.is_some() {
        let saved = Arc::downgrade(&port);
        let _ = port.journal.set(Journal::new(move || lock(&saved.upgrade()?.saved).as_ref().map(|s| s.positions)));
    }
    Ok(port)
}

/// Lets a kernel live on threads of the process. If it cannot, its handler is left with its port as that of one that failed.
fn start(
    device: &Device,
    plan: &Plan<'_>,
    port: Arc<Port>,
    behaviour: Box<dyn Behaviour>,
    links: Arc<Links>,
) -> Result<Launched> {
    let residency = device.attachment::<Residency>();
    residency.start(Kernel::new(port.clone(), links.clone(), behaviour, plan.options), plan.options)?;
    let residency = InUse { mode: Mode::Threads, why: "the device is the processor".into() };
    let recovery = Fallen { port: Arc::downgrade(&port), first: plan.state.to_vec() };
    Ok(Launched { port, links, residency, recovery: Some(Box::new(recovery)), caught_up: None, keep: None })
}

/// A kernel of the processor that failed: its handler, which is put in order and goes on.
struct Fallen {
    port: Weak<Port>,
    first: Vec<u8>,
}

impl Recovery for Fallen {
    fn state(&self) -> Vec<u8> {
        let saved = self.port.upgrade().and_then(|port| port.saved());
        saved.map_or_else(|| self.first.clone(), |saved| saved.state)
    }

    fn relaunch(&self, device: &Device, plan: &Plan<'_>, again: Again<'_>) -> Result<Launched> {
        if device.info().kind != DeviceKind::Cpu {
            let (what, device) = ("recovery of a kernel of the processor", device.info().id.as_str().into());
            return Err(Error::Unsupported { what, device, why: "its handler is Rust" });
        }
        let found = port(device, plan)?;
        let Some(lost) = self.port.upgrade() else { return Err(Error::NoPayload) };
        let Some(Remains { mut behaviour, .. }) = lock(&lost.remains).take() else { return Err(not_kept()) };
        let restarted = catch_unwind(AssertUnwindSafe(|| behaviour.restart(Some(plan.state))));
        if let Err(panic) = restarted {
            *lock(&lost.remains) = Some(Remains { behaviour, reached: again.reached });
            return Err(Error::Panicked(text_of(panic)));
        }
        let relaunched = start(device, plan, found.clone(), behaviour, again.links.clone());
        relaunched.and_then(|launched| redeliver(&launched.port, &again).map(|()| launched)).inspect_err(|_| {
            // The next attempt needs the handler, however it ends.
            found.wanted_back.store(true, Ordering::Release);
            found.tell(Command::Terminate);
            let _ = found.wait_for_mail(None, || found.status().is_ended().then_some(()));
            self.take_back(&found, again.reached);
            found.abandon();
        })
    }

    fn reached(&self) -> Result<Positions> {
        let port = self.port.upgrade();
        port.and_then(|port| lock(&port.remains).as_ref().map(|remains| remains.reached)).ok_or_else(not_kept)
    }

    fn take_back(&self, failed: &Port, reached: Positions) {
        if let (Some(port), Some(Remains { behaviour, .. })) = (self.port.upgrade(), lock(&failed.remains).take()) {
            *lock(&port.remains) = Some(Remains { behaviour, reached });
        }
    }
}

fn not_kept() -> Error {
    let text = "its handler was not kept: it was told to end before it failed, or did not come back from an attempt";
    Error::Invalid(text.into())
}

/// Sends a kernel of the processor what its checkpoint does not contain.
fn redeliver(found: &Port, again: &Again<'_>) -> Result<()> {
    let send = |entry: &Entry, flags: u32| {
        found.clock.see(entry.clock);
        let head =
            Head { high: entry.high, kind: entry.kind, flags, clock: entry.clock, buffer: (0, 0), quietly: false };
        let mut attachment = entry.attachment.clone();
        let mut outgoing = Outgoing { head, bytes: &entry.bytes, attachment: &mut attachment };
        found.inject_blocking(&mut outgoing, None).map(drop)
    };
    // Those that were handled take no room in the outbound ring, so they all get through; the others were in the
    // rings when the kernel was lost, so they all fit.
    found.steer(Command::Activate)?;
    for entry in again.entries.iter().filter(|entry| is_before(entry, again.reached)) {
        send(entry, flags::SILENT)?;
    }
    found.wait_until_empty()?;
    found.steer(Command::Pause)?;
    for entry in again.entries.iter().filter(|entry| !is_before(entry, again.reached)) {
        send(entry, if entry.ask { flags::SILENT } else { 0 })?;
    }
    Ok(())
}
