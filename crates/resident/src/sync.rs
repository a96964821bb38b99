//! The atomics that `slots.rs` is written against; its model under loom brings others.

pub(crate) use millrace_ring::Solo;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
