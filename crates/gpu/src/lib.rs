//! The GPU device: whatever wgpu reaches, which is Vulkan, Metal, DX12 and GL.
//!
//! This room compiles and launches what it is handed, and moves bytes. It knows no operation. Commands arrive checked
//! ([`millrace_core`] says what that means); they are recorded into one encoder, one compute pass as far as possible,
//! and one submission. Pipelines, bind groups and staging memory are used again, and parameters travel inside the
//! commands, so that a small launch costs little more than its dispatch.
//!
//! Every opened device has an instance of its own. When one hangs, its driver objects are handed to a thread that may
//! never return, and nobody else waits for them.

mod adapter;
mod batch;
mod compile;
mod device;
mod exit;
mod probe;
mod resident;
mod staging;
mod submission;
mod timing;
mod transfer;

pub use adapter::{GpuProvider, Transfers};
pub use device::Gpu;
/// The wgpu that [`Gpu::wgpu`] is of, for those who use the device by hand.
pub use wgpu;
