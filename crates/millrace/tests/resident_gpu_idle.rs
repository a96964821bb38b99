//! Idle kernels on the GPU device cost no processor time. In a process of its own, whose time is measured.
#![cfg(all(unix, feature = "gpu"))]
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    thread,
    time::{Duration, Instant},
};

use millrace::{
    prelude::*,
    resident::{Error, Residency, WaitPolicy},
};
use support::resident::{Double, Number};

/// Not zero: the test harness and the end of the last lease take some.
const NEXT_TO_NOTHING: Duration = Duration::from_millis(20);

fn cpu_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime).try_into().unwrap()
}

#[test]
fn an_idle_second_takes_next_to_no_processor_time() {
    let Ok(device) = millrace::runtime().open("gpu") else { return };
    let options = LaunchOptions::default();
    let kernels: Vec<_> = [options.clone(), options.clone(), options.clone().residency(Residency::Batched)]
        .into_iter()
        .map(|options| device.launch(Double, options).unwrap())
        .collect();
    for kernel in &kernels {
        assert_eq!(kernel.ask(Number { value: 4 }).unwrap().value, 8);
    }
    // One that cannot go on because nobody receives, and one that must not.
    let stuck = device.launch(Double, options.clone().inbound(2).outbound(2)).unwrap();
    while stuck.send_deadline(Number { value: 1 }, Instant::now() + Duration::from_millis(100)).is_ok() {}
    let paused = device.launch(Double, options.inactive()).unwrap();
    paused.send(Number { value: 1 }).unwrap();
    let waiting = &kernels[0];
    thread::scope(|scope| {
        // Those who wait for a kernel sleep, too.
        let deadline = Instant::now() + Duration::from_millis(2000);
        let receiver = scope.spawn(move || waiting.receive(deadline));
        thread::sleep(Duration::from_millis(500)); // everyone is asleep by now
        let before = cpu_time();
        thread::sleep(Duration::from_secs(1));
        let used = cpu_time() - before;
        assert!(matches!(receiver.join().unwrap(), Err(Error::Deadline)));
        assert!(used < NEXT_TO_NOTHING, "an idle second took {used:?} of processor time");
    });
    for kernel in &kernels {
        assert_eq!(kernel.ask(Number { value: 5 }).unwrap().value, 10);
    }
    assert_eq!(stuck.receive(Instant::now() + Duration::from_secs(5)).unwrap().value, 2);
    drop((stuck, paused, kernels));

    // One that never sleeps does cost something; otherwise the figure above would say nothing.
    let spinning = device.launch(Double, LaunchOptions::default().wait(WaitPolicy::Spin)).unwrap();
    spinning.ask(Number { value: 1 }).unwrap();
    let before = cpu_time();
    thread::sleep(Duration::from_millis(500));
    assert!(cpu_time() - before > NEXT_TO_NOTHING);
}
