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
