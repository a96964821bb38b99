//! How a kernel comes to live on a device: one engine per kind of device.

use std::{any::Any, sync::Arc};

use millrace_core::{Device, DeviceKind, Dim3, Priority};

use crate::{
    Error, LaunchOptions, Result, WaitPolicy,
    handler::Behaviour,
    kernel::Kernel,
    layout::{MessageLayout, RegionLayout},
    links::Links,
    port::Port,
    region::Region,
    workers::Residency,
};

/// A handler without its types, for a device that runs something else than Rust.
#[derive(Debug)]
#[allow(dead_code, reason = "an engine takes what its device needs")]
pub(crate) struct Plan<'a> {
    /// The handler's type.
    pub(crate) handler: &'static str,
    /// The body of its WGSL function.
    pub(crate) wgsl: Option<&'static str>,
    /// What it is sent, what it answers and what it remembers; none for archives, which only the CPU reads.
    pub(crate) types: Option<Types>,
    /// The state to start with.
    pub(crate) state: &'a [u8],
    /// Where everything lies.
    pub(crate) layout: RegionLayout,
    pub(crate) options: &'a LaunchOptions,
}

/// A handler's messages.
#[derive(Debug, Clone, Copy)]
#[allow(dead_code, reason = "an engine takes what its device needs")]
pub(crate) struct Types {
    pub(crate) message: &'static MessageLayout,
    pub(crate) reply: &'static MessageLayout,
    pub(crate) state: &'static MessageLayout,
}

/// A kernel that lives.
pub(crate) struct Launched {
    pub(crate) port: Arc<Port>,
    pub(crate) links: Arc<Links>,
    /// What the engine needs for as long as the handle is held.
    pub(crate) keep: Option<Box<dyn Any + Send + Sync>>,
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
        _ => Err(Error::NoImplementation {
            handler,
            device: device.info().id.as_str().into(),
            why: "this build has resident kernels for the CPU only",
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
        let residency = device.attachment::<Residency>();
        let region = Region::host(plan.layout.words())?;
        let port = Arc::new(Port::new(region, plan.layout, residency.clock.clone(), device.timeout())?);
        let links = Arc::new(Links::default());
        residency.start(Kernel::new(port.clone(), links.clone(), behaviour, options), options)?;
        Ok(Launched { port, links, keep: None })
    }
}
