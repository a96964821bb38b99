//! Millrace hands work to a compute device over one fast, bounded, lossless road.
//!
//! The README's program is the shortest one that does something; `examples/` has more.
//!
//! This crate only puts the rooms of the house together: [`ring`] moves values between threads, [`core`] is the contract
//! of commands, streams, tickets, buffers and kernels, [`cpu`] is the CPU device, `gpu` (a feature that is on by default)
//! the device that wgpu reaches, [`tensor`] the numeric operations.

#![forbid(unsafe_code)]

pub use millrace_core as core;
pub use millrace_core::*;
pub use millrace_cpu as cpu;
#[cfg(feature = "gpu")]
pub use millrace_gpu as gpu;
/// Resident kernels: launched once, they hold their state on the device and answer typed messages.
///
/// ```
/// use millrace::prelude::*;
///
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Pair { a: f32, b: f32 }
///
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Sum { value: f32 }
///
/// struct Adder;
///
/// impl Handler for Adder {
///     type Message = Pair;
///     type Reply = Sum;
///     type State = ();
///     fn state(&self) {}
///     fn handle(&mut self, _: &mut (), pair: &Pair, _: &mut Scope<'_, Sum>) -> Sum {
///         Sum { value: pair.a + pair.b }
///     }
/// }
///
/// let device = millrace::runtime().open("cpu")?;
/// let adder = device.launch(Adder, LaunchOptions::default())?;
/// assert_eq!(adder.ask(Pair { a: 1.0, b: 2.0 })?.value, 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod resident {
    pub use millrace_resident::*;
    // The same derive, whose code names this crate.
    pub use millrace_resident_derive::FacadeMessage as Message;
}
pub use millrace_ring as ring;
pub use millrace_tensor as tensor;

/// A runtime that knows every device of this build.
///
/// ```
/// let runtime = millrace::runtime();
/// assert!(runtime.devices().iter().any(|device| device.id == "cpu" && device.unavailable.is_none()));
/// ```
pub fn runtime() -> Runtime {
    Runtime::new(vec![
        Box::new(cpu::CpuProvider),
        #[cfg(feature = "gpu")]
        Box::new(gpu::GpuProvider::default()),
        #[cfg(not(feature = "gpu"))]
        Box::new(Unavailable::new(DeviceKind::Gpu, "built without the feature `gpu`")),
        Box::new(Unavailable::new(DeviceKind::Cuda, "this version has no CUDA device")),
    ])
}

/// What most programs use.
pub mod prelude {
    pub use crate::resident::{Handler, Launch, LaunchOptions, Message, Resident, Scope};
    pub use millrace_core::{
        Access, Buffer, CpuKernel, Device, DeviceOptions, Dim3, Error, Kernel, KernelSpec, Marker, Priority, Runtime,
        Stream, StreamOptions, Synchronize, Ticket, View,
    };
    pub use millrace_tensor::{DType, Tensor, Tensors};
}

/// The README's program is compiled and run with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
