//! Idle kernels cost no processor time. In a process of its own, whose time is measured.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{thread, time::Duration};

use millrace_core::Priority;
use millrace_resident::{Error, Launch, LaunchOptions};
use support::{Counter, Double, Number, cpu};

/// Not zero: the test harness and the end of the last message take some.
const NEXT_TO_NOTHING: Duration = Duration::from_millis(20);

fn cpu_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime).try_into().unwrap()
}

#[test]
fn an_idle_second_takes_next_to_no_processor_time() {
    let device = cpu();
    let kernels: Vec<_> = (0..50)
        .map(|n| {
            let priority = if n < 4 { Priority::High } else { Priority::Normal };
            device.launch(Counter, LaunchOptions::default().priority(priority)).unwrap()
        })
        .collect();
    for kernel in &kernels {
        kernel.ask(Number { value: 1 }).unwrap();
    }
    let full = device.launch(Double, LaunchOptions::default().inbound(2).inactive()).unwrap();
    while full.try_send(Number { value: 1 }).is_ok() {}
    // Those who wait for a kernel sleep, too.
    let deadline = std::time::Instant::now() + Duration::from_millis(1500);
    thread::scope(|scope| {
        let receiver = scope.spawn(|| kernels[0].receive(deadline));
        let sender = scope.spawn(|| full.send_deadline(Number { value: 1 }, deadline));
        thread::sleep(Duration::from_millis(100)); // everyone is asleep by now
        let before = cpu_time();
        thread::sleep(Duration::from_secs(1));
        let used = cpu_time() - before;
        assert_eq!(receiver.join().unwrap().unwrap_err(), Error::Deadline);
        assert_eq!(sender.join().unwrap().unwrap_err().error, Error::Deadline);
        assert!(used < NEXT_TO_NOTHING, "an idle second took {used:?} of processor time");
    });
    assert_eq!(kernels[49].ask(Number { value: 1 }).unwrap().value, 2);
}
