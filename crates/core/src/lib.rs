//! The contract between programs and compute devices.
//!
//! A program opens a [`Device`] through a [`Runtime`], allocates [`Buffer`]s, describes kernels with a [`KernelSpec`],
//! and submits commands to [`Stream`]s; each is answered by a [`Ticket`]. A device crate implements [`Backend`] and
//! executes what it is handed.
//!
//! This room owns everything between the two: the queues and who drives them, deadlines, cancellation, priorities,
//! events, shutdown, the memory pool. It validates every command before it is queued, so a backend only sees commands
//! whose buffers are its own, whose ranges are inside them and whose bindings are what the kernel declares. It knows no
//! operation and no hardware, and has no global state.

#![forbid(unsafe_code)]

mod backend;
mod command;
mod context;
mod counts;
mod device;
mod error;
mod events;
pub mod faulty;
pub mod file;
mod habit;
mod health;
mod kernel;
mod line;
mod marker;
mod memory;
mod monitor;
mod pool;
mod profile;
mod ready;
mod residence;
mod road;
mod runtime;
mod stream;
mod ticket;
mod timer;

pub use backend::{
    Backend, Batch, Code, DeviceInfo, DeviceKind, Direct, Engine, Leave, Limits, Queued, Ran, Recorded, Submission,
};
pub use command::{
    Answer, Command, CommandKind, Copy, Fill, Output, Read, Rejected, Request, Synchronize, WaitFor, Write,
};
pub use counts::Counts;
pub use device::{Device, DeviceOptions, InFlightLimits};
pub use error::{Class, Error, Result};
pub use events::{Event, Subscription};
pub use health::{Health, HealthState, Thresholds};
pub use kernel::{
    Access, Argument, Arguments, Binding, CpuKernel, Dim3, Group, Kernel, KernelSpec, Launch, LaunchBody, Launched,
    MAX_BINDINGS, MAX_PARAMS, Spread, Threads, piece,
};
pub use marker::{Marker, Signal};
pub use memory::{Block, Buffer, BufferId, BufferSlice, Memory, Storage, View};
pub use monitor::{Publication, published_folder};
pub use pool::{BlockSource, PoolStats};
pub use profile::{
    Clock, Figures, MemorySample, OpSummary, Profile, ProfileOptions, ProfileSummary, Profiler, Span, StreamSummary,
};
pub use residence::{OpenResidence, Residence, Shape, Sharing};
pub use runtime::{Found, Provider, Runtime, Unavailable};
pub use stream::{Priority, Stream, StreamOptions, fan_out, fan_out_with};
pub use ticket::Ticket;
pub use timer::Alarm;
