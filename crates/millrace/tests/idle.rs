//! An idle device costs no processor time. In a process of its own, whose time is measured.
#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod support;

use std::{thread, time::Duration};

use millrace::prelude::*;
use support::{soon, workers};

/// Not zero: the test harness and the end of the last command take some.
const NEXT_TO_NOTHING: Duration = Duration::from_millis(20);

fn cpu_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime).try_into().unwrap()
}

#[test]
fn a_device_with_workers_and_open_streams_uses_next_to_no_processor_time_while_idle() {
    let device = workers(4);
    let buffer = device.allocate(1 << 20).unwrap();
    let streams: Vec<_> = (0..16).map(|_| device.stream().unwrap()).collect();
    for stream in &streams {
        stream.submit(buffer.fill(.., 1)).unwrap().wait().unwrap();
    }
    let subscription = device.subscribe(8).unwrap();
    // Waiting commands cost nothing either: one stream waits for a marker, one thread for its ticket.
    let (marker, signal) = Marker::new();
    let mut waiting = streams[0].submit(marker.wait()).unwrap();
    let mut awaited = streams[0].submit_deadline(Synchronize, soon()).unwrap();
    let waker = std::task::Waker::noop();
    let poll = std::future::Future::poll(std::pin::Pin::new(&mut awaited), &mut std::task::Context::from_waker(waker));
    assert!(poll.is_pending());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| waiting.wait_until(soon()));
        let blocked = scope.spawn(|| awaited.wait_until(soon()));
        thread::sleep(Duration::from_millis(50)); // everyone is asleep by now
        let before = cpu_time();
        thread::sleep(Duration::from_secs(1));
        let used = cpu_time() - before;
        streams[1].run(signal).unwrap();
        waiter.join().unwrap().unwrap();
        blocked.join().unwrap().unwrap();
        assert!(used < NEXT_TO_NOTHING, "an idle second took {used:?} of processor time");
    });
    drop(subscription);
}
