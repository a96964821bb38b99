//! What tests of tensors share.

#![allow(dead_code, reason = "every test uses a part of it")]

use std::sync::OnceLock;

use millrace::{Device, tensor::Tensors};

/// The CPU, and the GPU if there is one.
pub(crate) fn devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(fresh_devices)
}

/// The same, with counts of their own.
pub(crate) fn fresh_devices() -> Vec<Device> {
    let runtime = millrace::runtime();
    ["cpu", "gpu"].iter().filter_map(|id| runtime.open(id).ok()).collect()
}

/// A place on each of them.
pub(crate) fn places() -> Vec<Tensors> {
    devices().iter().map(|device| Tensors::on(device).unwrap()).collect()
}

/// A place on each of them, with counts of its own.
pub(crate) fn fresh_places() -> Vec<Tensors> {
    fresh_devices().iter().map(|device| Tensors::on(device).unwrap()).collect()
}

/// Numbers between -1 and 1.
pub(crate) fn noise(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((z ^ z >> 27) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}
