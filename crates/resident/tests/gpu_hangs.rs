//! A GPU on which nothing ever ends: whoever has a kernel there hears of it, however it waits for messages.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    sync::{Arc, Weak, atomic::AtomicU32},
    time::Duration,
};

use bytes::Bytes;
use millrace_core::{
    Backend, Block, BlockSource, Code, Command, Device, DeviceInfo, DeviceKind, DeviceOptions, Direct, Engine, Error,
    KernelSpec, Leave, OpenResidence, Output, Residence, Result, Shape, Sharing,
};
use millrace_resident::{Handler, Launch, LaunchOptions, Mode, Scope, Status, WaitPolicy};
use support::{Number, cpu, soon};

struct Hangs(DeviceInfo);

fn refused<T>() -> Result<T> {
    Err(Error::Invalid("it hangs".into()))
}

impl BlockSource for Hangs {
    fn allocate(&self, _: usize) -> Result<Box<dyn Block>> {
        refused()
    }
    fn adopt(&self, _: Bytes) -> Result<Box<dyn Block>> {
        refused()
    }
}

impl Backend for Hangs {
    fn info(&self) -> DeviceInfo {
        self.0.clone()
    }
    fn compile(&self, _: &KernelSpec) -> Result<Code> {
        refused()
    }
    fn residence(&self, words: usize, _: Sharing) -> Option<Result<OpenResidence>> {
        Some(Ok(Arc::new(Memory((0..words).map(|_| AtomicU32::new(0)).collect()))))
    }
}

impl Direct for Hangs {
    fn workers(&self) -> usize {
        1
    }
    fn execute(&self, _: &Command) -> Result<Output> {
        refused()
    }
}

/// Memory that host and device share, and a queue of which nothing ends.
struct Memory(Vec<AtomicU32>);

impl Residence for Memory {
    fn shared(&self) -> Option<&[AtomicU32]> {
        Some(&self.0)
    }
    fn shape(&self) -> Shape {
        Shape::new(1, true, None)
    }
    fn check(&self, _: &str, _: &str) -> Result<()> {
        Ok(())
    }
    fn compile(&self, _: &str) -> Result<Code> {
        Ok(Arc::new(()))
    }
    fn submit(&self, _: &Code, _: u32) -> Result<()> {
        Ok(())
    }
    fn wait(&self, timeout: Duration) -> Result<bool> {
        std::thread::sleep(timeout);
        Ok(false)
    }
    fn exchange(&self, _: &Code, _: &mut [u32], _: Duration) -> Result<()> {
        refused()
    }
    fn attend(&self, _: Weak<dyn Leave>) {}
    fn abandon(&self) {}
}

struct Double;

impl Handler for Double {
    type Message = Number;
    type Reply = Number;
    type State = ();
    const WGSL: Option<&'static str> = Some("return Number(message.value * 2u);");
    fn state(&self) {}
    fn handle(&mut self, (): &mut (), message: &Number, _: &mut Scope<'_, Number>) -> Number {
        Number { value: message.value * 2 }
    }
}

#[test]
fn a_device_that_hangs_is_noticed_whatever_its_kernels_wait_policy() {
    for wait in [WaitPolicy::Spin, WaitPolicy::Adaptive, WaitPolicy::Sleep] {
        let mut info = cpu().info().clone();
        info.kind = DeviceKind::Gpu;
        let options = DeviceOptions::default().timeout(Duration::from_millis(200));
        let device = Device::open(Engine::Direct(Arc::new(Hangs(info))), options).unwrap();
        let double = device.launch(Double, LaunchOptions::default().wait(wait)).unwrap();
        assert_eq!(double.residency().mode, Mode::Leases);
        double.send(Number { value: 1 }).unwrap();
        double.wait_for(Status::Failed, soon()).unwrap();
        let error = double.receive(soon()).unwrap_err();
        assert!(error.to_string().contains("did not end"), "{error}");
    }
}
