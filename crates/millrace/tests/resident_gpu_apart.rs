//! A GPU that shares no memory with the host: its kernels live in batches, and say why. Where there is no adapter this test
//! has nothing to say.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use bytes::Bytes;
use millrace::{
    Backend, Block, BlockSource, Code, Command, DeviceInfo, Direct, Engine, Error, OpenResidence, Output, Result,
    Sharing, prelude::*, resident::Mode,
};
use support::resident::{Double, Number};

/// A GPU that is asked for memory that the host sees, and has none.
struct Apart {
    gpu: Device,
    asked: Arc<AtomicUsize>,
}

impl BlockSource for Apart {
    fn allocate(&self, _: usize) -> Result<Box<dyn Block>> {
        Err(Error::Invalid("not needed here".into()))
    }
    fn adopt(&self, _: Bytes) -> Result<Box<dyn Block>> {
        Err(Error::Invalid("not needed here".into()))
    }
}

impl Backend for Apart {
    fn info(&self) -> DeviceInfo {
        self.gpu.info().clone()
    }
    fn compile(&self, _: &KernelSpec) -> Result<Code> {
        Err(Error::Invalid("not needed here".into()))
    }
    fn residence(&self, words: usize, sharing: Sharing) -> Option<Result<OpenResidence>> {
        if sharing == Sharing::Required {
            self.asked.fetch_add(1, Ordering::Relaxed);
            return Some(Err(Error::Device("its memory is far away".into())));
        }
        self.gpu.backend().residence(words, sharing)
    }
}

impl Direct for Apart {
    fn workers(&self) -> usize {
        1
    }
    fn execute(&self, _: &Command) -> Result<Output> {
        Err(Error::Invalid("not needed here".into()))
    }
}

#[test]
fn a_device_without_shared_memory_runs_kernels_in_batches_and_is_asked_for_it_once() {
    let Ok(gpu) = millrace::runtime().open("gpu") else { return };
    let asked = Arc::new(AtomicUsize::new(0));
    let apart = Apart { gpu, asked: asked.clone() };
    let device = Device::open(Engine::Direct(Arc::new(apart)), DeviceOptions::default()).unwrap();
    for value in 0..3 {
        let double = device.launch(Double, LaunchOptions::default()).unwrap();
        let residency = double.residency();
        assert_eq!(residency.mode, Mode::Batched);
        assert!(residency.why.contains("leases are not possible: ") && residency.why.contains("far away"));
        assert_eq!(double.ask(Number { value }).unwrap().value, 2 * value);
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}
