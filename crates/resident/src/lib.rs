//! Resident kernels: launched once, they stay on their device, hold their state there and answer typed messages.
//!
//! This room owns the memory that host and kernel share (its layout, its rings, the protocol on them), the messages and
//! their checks, the clock, the host's side of a kernel, and the CPU's: the loop that runs a handler, the workers it runs
//! on, links between kernels, checkpoints, restarts; and the program that does the same on a GPU, with the thread that keeps
//! it running. It may touch `core` and `ring`, and knows no operation.
//!
//! Who validates: the derive and the compiler check that a message's bytes mean the same on both sides; launching checks
//! the options against the device; every read of a slot checks type, length and alignment, and of an archive every byte.
//! Nothing that a kernel writes is trusted.
//!
//! Its `unsafe` code is in few places: `message.rs` (structs are bytes), `region.rs` and `gpu/arena.rs` (words at
//! addresses), and the copies into and out of slots in `port`, `handler.rs` and `kernel`.
//!
//! | to | look at |
//! |---|---|
//! | write a kernel | [`Handler`], [`Message`] |
//! | launch it and talk to it | [`Launch`], [`LaunchOptions`], [`Resident`] |
//! | send messages of any size | [`ArchivedHandler`], [`Resident::send_buffer`] |
//! | connect kernels | [`Resident::link`], [`Topic`] |
//! | write the other side of a region | [`layout`] |

// The derive's code names this crate.
extern crate self as millrace_resident;

mod archive;
mod asked;
mod brevity;
mod carry;
mod clock;
mod drive;
mod engine;
mod error;
mod gpu;
mod handler;
mod header;
mod journal;
mod kernel;
pub mod layout;
mod links;
mod message;
mod options;
mod parcel;
mod port;
mod recover;
mod region;
mod replies;
mod resident;
mod scratch;
mod slots;
mod sync;
mod telemetry;
mod workers;

pub use archive::{Archivable, Archive, ArchivedHandler, ArchivedResident};
pub use carry::{Becomes, Carried, Linkable};
pub use clock::{Clock, Moment};
pub use error::{Error, Refused, Result};
pub use handler::{Handler, Scope};
pub use header::Header;
pub use links::{Delivery, Linked, Topic};
pub use message::Message;
pub use millrace_resident_derive::Message;
pub use options::{
    Command, InUse, LaunchOptions, MAX_CAPACITY, Mode, Residency, RestartPolicy, STARVATION_BOUND, Status, WaitPolicy,
};
pub use region::Region;
pub use resident::{Launch, Resident};
/// The crate that archives are made with.
pub use rkyv;
pub use telemetry::{Checkpoint, Telemetry};
