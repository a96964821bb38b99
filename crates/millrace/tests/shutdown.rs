//! Shutdown and abort: every ticket is answered, nothing hangs.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace::{Command, prelude::*, ring::RecvDeadlineError};
use support::{Gate, LONG, Log, assert_in_time, cpu, kernel, only_wait, soon, workers};

/// Waits until nothing of the device is left: no thread, no stream, no memory.
fn assert_goes_away(mut events: millrace::Subscription) {
    loop {
        match events.next_deadline(soon()) {
            Ok(_) => {}
            Err(RecvDeadlineError::Closed) => return,
            Err(RecvDeadlineError::Deadline) => panic!("something still holds the device"),
        }
    }
}

#[test]
fn shutdown_runs_what_was_submitted_and_answers_every_ticket() {
    let device = workers(2);
    let log = Log::new(&device);
    let streams: Vec<_> = (0..8).map(|_| device.stream().unwrap()).collect();
    let tickets: Vec<_> = (0..800).map(|n| streams[n % streams.len()].submit(log.launch(n as u32)).unwrap()).collect();
    device.shutdown(soon()).unwrap();
    assert_eq!(log.seen().len(), 800);
    for mut ticket in tickets {
        ticket.try_wait().expect("answered").unwrap();
    }
}

#[test]
fn shutdown_while_others_submit_answers_whatever_was_accepted() {
    for _ in 0..100 {
        let device = workers(2);
        let log = Log::new(&device);
        let stream = device.stream().unwrap();
        let accepted = thread::scope(|scope| {
            let producers: Vec<_> = (0..3)
                .map(|_| {
                    scope.spawn(|| {
                        let mut tickets = Vec::new();
                        while let Ok(ticket) = stream.submit(log.launch(0)) {
                            tickets.push(ticket);
                        }
                        tickets
                    })
                })
                .collect();
            thread::yield_now();
            device.shutdown(soon()).unwrap();
            producers.into_iter().flat_map(|p| p.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(log.seen().len(), accepted.len());
        for ticket in accepted {
            only_wait(ticket).unwrap();
        }
    }
}

#[test]
fn abort_answers_what_has_not_started_and_lets_the_rest_finish() {
    let device = workers(2);
    let log = Log::new(&device);
    let (held, waiting, behind) = (device.stream().unwrap(), device.stream().unwrap(), device.stream().unwrap());
    let (gate, running) = Gate::across(&device, &held);
    let queued: Vec<_> = (0..10).map(|n| held.submit(log.launch(n)).unwrap()).collect();
    let (marker, signal) = Marker::new();
    let never = waiting.submit(marker.wait()).unwrap();
    let after_never = waiting.submit(log.launch(100)).unwrap();
    behind.submit(marker.wait()).unwrap();
    thread::scope(|scope| {
        let abort = scope.spawn(|| device.abort(soon()));
        // While the kernel still runs.
        assert_eq!(only_wait(never), Err(Error::Aborted));
        assert_eq!(only_wait(after_never), Err(Error::Aborted));
        gate.open();
        abort.join().unwrap().unwrap();
    });
    running.wait().unwrap();
    for ticket in queued {
        assert_eq!(ticket.wait(), Err(Error::Aborted));
    }
    assert!(log.seen().is_empty());
    drop(signal);
}

#[test]
fn a_marker_that_is_decided_after_the_abort_keeps_nothing_alive() {
    let device = workers(1);
    let events = device.subscribe(64).unwrap();
    let stream = device.stream().unwrap();
    let (marker, signal) = Marker::new();
    let ticket = stream.submit(marker.wait()).unwrap();
    device.stream().unwrap().submit(Synchronize).unwrap();
    device.abort(soon()).unwrap();
    assert_eq!(ticket.wait(), Err(Error::Aborted));
    drop(signal);
    drop((marker, stream, device));
    assert_goes_away(events);
}

#[test]
fn a_closed_device_hands_commands_back() {
    let device = cpu();
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(4).unwrap());
    device.shutdown(soon()).unwrap();
    let payload = Bytes::from(vec![1; 4]);
    let write = || buffer.write(0, payload.clone());
    let tries = [
        stream.try_submit(write()),
        stream.submit(write()),
        stream.submit_deadline(write(), soon()),
        pollster::block_on(stream.submit_async(write())),
    ];
    for rejected in tries {
        let rejected = rejected.unwrap_err();
        assert_eq!(rejected.error, Error::Closed);
        let Command::Write(write) = rejected.command else { panic!("another command came back") };
        assert_eq!(write.data.as_ptr(), payload.as_ptr());
    }
    assert_eq!(stream.run(write()), Err(Error::Closed));
    assert_eq!(stream.synchronize(), Err(Error::Closed));
    assert_eq!(device.stream().unwrap_err(), Error::Closed);
}

#[test]
fn a_submitter_that_waits_for_room_learns_of_the_abort() {
    let device = workers(1);
    let stream = device.stream_with(&StreamOptions::default().capacity(1)).unwrap();
    let (gate, _held) = Gate::across(&device, &stream);
    stream.submit(Synchronize).unwrap();
    thread::scope(|scope| {
        let submit = scope.spawn(|| stream.submit(Synchronize).unwrap_err().error);
        let awaited = scope.spawn(|| pollster::block_on(stream.submit_async(Synchronize)).unwrap_err().error);
        thread::sleep(Duration::from_millis(10)); // lets them block; early or late, the answer is the same
        let abort = scope.spawn(|| device.abort(soon()));
        assert_eq!(submit.join().unwrap(), Error::Closed);
        assert_eq!(awaited.join().unwrap(), Error::Closed);
        gate.open();
        abort.join().unwrap().unwrap();
    });
}

#[test]
fn shutdown_can_be_asked_for_again() {
    let device = cpu();
    device.shutdown(soon()).unwrap();
    device.shutdown(soon()).unwrap();
    device.abort(soon()).unwrap();
}

#[test]
fn tickets_are_answered_after_the_device_and_the_stream_are_dropped() {
    let device = workers(1);
    let events = device.subscribe(4096).unwrap();
    let (stream, log) = (device.stream().unwrap(), Log::new(&device));
    let (gate, held) = Gate::across(&device, &stream);
    let tickets: Vec<_> = (0..100).map(|n| stream.submit(log.launch(n)).unwrap()).collect();
    drop((device, stream));
    gate.open();
    held.wait().unwrap();
    for ticket in tickets {
        only_wait(ticket).unwrap();
    }
    assert_eq!(log.seen().len(), 100);
    drop((gate, log));
    assert_goes_away(events);
}

#[test]
fn a_worker_may_drop_the_last_handle() {
    for _ in 0..50 {
        let device = workers(2);
        let events = device.subscribe(64).unwrap();
        let stream = device.stream().unwrap();
        let kept = Arc::new(Mutex::new(None));
        let (entered, enter) = mpsc::channel();
        let handles = kept.clone();
        let last = kernel(&device, move || {
            let handles: Option<(Device, Stream)> = handles.lock().unwrap().take();
            assert!(handles.is_some());
            drop(handles);
            entered.send(()).unwrap();
        });
        let launch = last.launch();
        *kept.lock().unwrap() = Some((device, stream.clone()));
        drop(stream.submit(launch).unwrap());
        drop((stream, last));
        enter.recv_timeout(LONG).unwrap();
        assert_goes_away(events);
    }
}

#[test]
fn a_payload_may_own_the_device_it_is_for() {
    struct Owner(#[allow(dead_code, reason = "held")] Device);
    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &[1]
        }
    }
    let device = cpu();
    let events = device.subscribe(64).unwrap();
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(1).unwrap());
    let ticket = stream.submit(buffer.write(0, Bytes::from_owner(Owner(device)))).unwrap();
    drop((stream, buffer));
    ticket.wait().unwrap();
    assert_goes_away(events);
}

#[test]
fn shutdown_leaves_a_kernel_that_hangs_behind_in_time() {
    let device = workers(1);
    let stream = device.stream().unwrap();
    let (gate, ticket) = Gate::across(&device, &stream);
    assert_in_time(Duration::from_millis(50), |deadline| {
        assert!(matches!(device.shutdown(deadline), Err(Error::Stalled(_))));
    });
    assert_in_time(Duration::from_millis(50), |deadline| {
        assert!(matches!(device.abort(deadline), Err(Error::Stalled(_))));
    });
    // The process goes on, also with new devices.
    let other = cpu();
    other.stream().unwrap().synchronize().unwrap();
    gate.open();
    ticket.wait().unwrap();
    device.shutdown(soon()).unwrap();
}

#[test]
fn an_idle_device_is_dropped_at_once() {
    let started = Instant::now();
    for _ in 0..100 {
        let device = workers(4);
        device.stream().unwrap().synchronize().unwrap();
    }
    assert!(started.elapsed() < LONG, "a drop waited for its timeout");
}

#[test]
fn a_device_that_is_dropped_on_another_thread_lets_its_workers_end() {
    let device = workers(2);
    let events = device.subscribe(8).unwrap();
    let done = Arc::new(AtomicBool::new(false));
    let flag = done.clone();
    thread::spawn(move || {
        drop(device);
        flag.store(true, Ordering::SeqCst);
    })
    .join()
    .unwrap();
    assert!(done.load(Ordering::SeqCst));
    assert_goes_away(events);
}

#[test]
fn nothing_of_a_device_is_left_when_its_last_handle_is_dropped() {
    for _ in 0..300 {
        let owned = Arc::new(());
        let kept = owned.clone();
        let spec = KernelSpec::new("keeps").cpu(CpuKernel::whole(move |_| _ = Arc::strong_count(&kept)));
        let device = workers(4);
        let kernel = device.kernel(&spec).unwrap();
        device.stream().unwrap().run(kernel.launch()).unwrap();
        drop((spec, kernel, device));
        assert_eq!(Arc::strong_count(&owned), 1, "a thread still holds the device's kernels");
    }
}
