//! A process may exit at any moment, whatever the GPU device does: drivers crash when they are called meanwhile.
#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use millrace::{prelude::*, resident::WaitPolicy};
use support::resident::{Double, Number};

/// What a child exits with if all went well.
const CODE: i32 = 7;
/// Set in children.
const CHILD: &str = "MILLRACE_TEST_CHILD";

/// Runs a test of this file in processes of their own.
fn run(child: &str) {
    for _ in 0..8 {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let command = command.args(["--exact", child]).env(CHILD, "1").stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let deadline = support::soon();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() > deadline {
                child.kill().unwrap();
                panic!("it does not exit");
            }
            thread::sleep(Duration::from_millis(10));
        };
        assert_eq!(status.code(), Some(CODE), "{status}");
    }
}

/// The device of a child; none in the parent.
fn device_of_child() -> Option<Device> {
    std::env::var_os(CHILD)?;
    Some(millrace::runtime().open("gpu").unwrap_or_else(|_| std::process::exit(CODE)))
}

#[test]
fn with_work_pending() {
    run("child_with_work_pending");
}

#[test]
fn child_with_work_pending() {
    let Some(device) = device_of_child() else { return };
    let spec = KernelSpec::new("square").binding::<f32>("y", Access::ReadWrite).block(64).wgsl(
        "@group(0) @binding(0) var<storage, read_write> y: array<f32>;
         @compute @workgroup_size(64)
         fn main(@builtin(global_invocation_id) id: vec3<u32>) { y[id.x] = y[id.x] * y[id.x]; }",
    );
    let (stream, kernel, y) =
        (device.stream().unwrap(), device.kernel(&spec).unwrap(), device.allocate(1 << 20).unwrap());
    for _ in 0..200 {
        stream.enqueue(kernel.launch().grid(1 << 12).bind(&y)).unwrap();
    }
    drop((stream, kernel, y, device));
    std::process::exit(CODE);
}

#[test]
fn while_a_kernel_is_resident() {
    run("child_with_a_resident_kernel");
}

#[test]
fn child_with_a_resident_kernel() {
    let Some(device) = device_of_child() else { return };
    let double = device.launch(Double, LaunchOptions::default().wait(WaitPolicy::Spin)).unwrap();
    assert_eq!(double.ask(Number { value: 4 }).unwrap().value, 8);
    std::process::exit(CODE);
}
