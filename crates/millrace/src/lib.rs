//! Millrace hands work to a compute device over one fast, bounded, lossless road.
//!
//! ```
//! use millrace::prelude::*;
//!
//! // A kernel: a name, its buffers, and code that is called for every group of the grid.
//! let saxpy = KernelSpec::new("saxpy")
//!     .binding::<f32>("x", Access::Read)
//!     .binding::<f32>("y", Access::ReadWrite)
//!     .params::<f32>()
//!     .cpu(CpuKernel::per_group(|group| {
//!         let (a, start) = (group.params::<f32>(), group.start(1));
//!         let (x, y) = (group.input::<f32>(0), group.output::<f32>(1));
//!         for (i, y) in y.iter_mut().enumerate() {
//!             *y += a * x[start + i];
//!         }
//!     }));
//!
//! let runtime = millrace::runtime();
//! let device = runtime.open("cpu")?;
//! let stream = device.stream()?;
//! let saxpy = device.kernel(&saxpy)?;
//! let (x, y) = (device.allocate(4000)?, device.allocate(4000)?);
//!
//! // Commands on one stream run in order; nobody waits until somebody wants the result.
//! stream.submit(x.write(0, [1f32; 1000].map(f32::to_ne_bytes).concat()))?;
//! stream.submit(saxpy.launch().bind(&x).bind(&y).params(&2f32).over(1000, 256))?;
//! let result = stream.run(y.read(..))?;
//! assert!(result.to::<f32>().iter().all(|y| *y == 2.0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate only puts the rooms of the house together: [`ring`] moves values between threads, [`core`] is the contract
//! of commands, streams, tickets, buffers and kernels, [`cpu`] is the CPU device.

#![forbid(unsafe_code)]

pub use millrace_core as core;
pub use millrace_core::*;
pub use millrace_cpu as cpu;
pub use millrace_ring as ring;

/// A runtime that knows every device of this build.
///
/// ```
/// let runtime = millrace::runtime();
/// assert!(runtime.devices().iter().any(|device| device.id == "cpu" && device.unavailable.is_none()));
/// ```
pub fn runtime() -> Runtime {
    Runtime::new(vec![Box::new(cpu::CpuProvider)])
}

/// What most programs use.
pub mod prelude {
    pub use millrace_core::{
        Access, Buffer, CpuKernel, Device, DeviceOptions, Dim3, Error, Kernel, KernelSpec, Marker, Priority, Runtime,
        Stream, StreamOptions, Synchronize, Ticket, View,
    };
}
