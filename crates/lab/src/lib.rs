//! The lab: measures Millrace side by side with its peers.
//!
//! A number from here was measured with equal work on both sides: the same [`Message`], the same capacity, a consumer on
//! another thread that really consumes, an answer that is really awaited. The sides take turns within one run, so that
//! whatever else the machine does falls on all of them, and a side that hangs becomes an error instead of a hang.
//!
//! - [`peers`]: every side behind the same small traits, with its way of waiting stated.
//! - [`workloads`]: what is measured, each written once for all sides.
//! - [`measure`]: samples, percentiles, taking turns, the watchdog.
//! - [`commands`]: the groups of `millrace bench commands` and what they are held to.
//! - [`gpu`]: the groups of `millrace bench gpu`, with [`raw_wgpu`] as the peer.
//! - [`tensor`]: the groups of `millrace bench tensor`.
//! - [`resident`]: the groups of `millrace bench resident`, with actor libraries as peers.
//! - [`interactive`]: the groups of `millrace bench interactive`, resident kernels against launches.
//! - [`throughput`]: the groups of `millrace bench throughput`, cells per second of the wave engines.
//! - [`profiler`]: the groups of `millrace bench profiler`.
//! - [`profiled`]: what `millrace profile` runs.
//! - [`around`]: the groups of `millrace bench around`, what is around the work itself.
//! - [`suites`]: all of these as one list; [`devices`]: on which devices.
//! - [`isolated`]: a group in a process of its own.
//! - [`report`]: the JSON that scripts may rely on.
//! - [`seeds`]: the figures that users were promised.
//! - [`hot`]: paths whose instructions are counted.
//! - [`html`]: a page about a run.
//! - [`history`]: runs that were kept; [`verdict`]: what became of them.
//!
//! This room uses what users of Millrace use, and has no access to anything else.

#![deny(unsafe_code)]

pub mod around;
pub mod commands;
pub mod devices;
mod error;
pub mod gpu;
mod groups;
pub mod history;
pub mod hot;
pub mod html;
pub mod interactive;
pub mod isolated;
pub mod machine;
pub mod measure;
mod message;
pub mod peers;
pub mod profiled;
pub mod profiler;
pub mod raw_wgpu;
pub mod report;
pub mod resident;
pub mod seeds;
pub mod suites;
mod targets;
pub mod tensor;
pub mod throughput;
pub mod verdict;
pub mod workloads;

pub use error::{Error, Result};
pub use message::{Message, Parcel, payload};
