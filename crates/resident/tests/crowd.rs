//! A thousand kernels, ten million messages.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use millrace_resident::{Handler, Launch, LaunchOptions, Message, Scope, Status};
use support::{Counter, Number, cpu, soon};

#[test]
fn a_thousand_kernels_are_fine() {
    let device = cpu();
    let start = Instant::now();
    let kernels: Vec<_> = (0..1000).map(|_| device.launch(Counter, LaunchOptions::default()).unwrap()).collect();
    for round in 1..=3 {
        for kernel in &kernels {
            kernel.send(Number { value: 1 }).unwrap();
        }
        for kernel in &kernels {
            assert_eq!(kernel.receive(soon()).unwrap().value, round);
        }
    }
    thread::scope(|scope| {
        for some in kernels.chunks(250) {
            scope.spawn(move || {
                for kernel in some {
                    assert_eq!(kernel.ask(Number { value: 7 }).unwrap().value, 10);
                }
            });
        }
    });
    for kernel in &kernels {
        kernel.drain().unwrap();
        kernel.wait_for(Status::Terminated, soon()).unwrap();
    }
    drop(kernels);
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

const SENDERS: usize = 4;

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Numbered {
    sender: u32,
    number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Message)]
#[repr(C)]
struct Report {
    next: [u32; 4],
    wrong: u32,
}

/// Notes what is missing, double or out of order.
struct Strict;

impl Handler for Strict {
    type Message = Numbered;
    type Reply = Report;
    type State = Report;

    fn state(&self) -> Report {
        Report { next: [0; SENDERS], wrong: 0 }
    }

    fn handle(&mut self, report: &mut Report, message: &Numbered, scope: &mut Scope<'_, Report>) -> Report {
        if !scope.is_ask() {
            scope.no_reply();
            let next = &mut report.next[message.sender as usize];
            report.wrong += u32::from(*next != message.number);
            *next = message.number + 1;
        }
        *report
    }
}

#[test]
fn nothing_is_lost_doubled_or_reordered_while_the_kernel_is_paused_again_and_again() {
    let each: u32 = if is_slow() { 50_000 } else { 2_500_000 };
    let device = cpu();
    let strict = device.launch(Strict, LaunchOptions::default().inbound(256)).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let steering = scope.spawn(|| {
            let mut pauses = 0;
            while !done.load(Ordering::Relaxed) {
                strict.pause().unwrap();
                assert_eq!(strict.status(), Status::Paused);
                thread::sleep(Duration::from_micros(200));
                strict.activate().unwrap();
                pauses += 1;
                thread::sleep(Duration::from_millis(2));
            }
            pauses
        });
        let senders: Vec<_> = (0..SENDERS as u32)
            .map(|sender| {
                let strict = &strict;
                scope.spawn(move || {
                    for number in 0..each {
                        strict.send(Numbered { sender, number }).unwrap();
                    }
                })
            })
            .collect();
        senders.into_iter().for_each(|sender| sender.join().unwrap());
        done.store(true, Ordering::Relaxed);
        assert!(steering.join().unwrap() > 3);
    });
    let report = strict.ask(Numbered { sender: 0, number: 0 }).unwrap();
    assert_eq!(report, Report { next: [each; SENDERS], wrong: 0 });
    assert_eq!(strict.telemetry().handled, u64::from(each) * SENDERS as u64 + 1);
}

#[test]
fn positions_may_wrap_around() {
    // A ring of two slots is around often; positions of 32 bits are tested in the model of the slots.
    let device = cpu();
    let strict = device.launch(Strict, LaunchOptions::default().inbound(2).outbound(2)).unwrap();
    for number in 0..20_000 {
        strict.send(Numbered { sender: 1, number }).unwrap();
    }
    assert_eq!(strict.ask(Numbered { sender: 0, number: 0 }).unwrap().next, [0, 20_000, 0, 0]);
}

/// Whether this was built without optimization, as far as one can tell.
fn is_slow() -> bool {
    cfg!(debug_assertions) && std::env::var_os("MILLRACE_TEST_OPTIMIZED").is_none()
}
