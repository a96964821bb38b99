//! Links of a GPU's kernels: several to one receiver, and those whose receivers have ended. Where there is no adapter these
//! tests have nothing to say.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    thread,
    time::{Duration, Instant},
};

use millrace::{
    prelude::*,
    resident::{Delivery, Error, Residency, Status, Topic},
};
use support::{
    eventually,
    resident::{Double, Number},
};

/// Adds up what it is sent.
struct Sum;

impl Handler for Sum {
    type Message = Number;
    type Reply = ();
    type State = Number;
    const WGSL: Option<&'static str> = Some("(*state).value += message.value;");
    fn state(&self) -> Number {
        Number { value: 0 }
    }
    fn handle(&mut self, sum: &mut Number, message: &Number, _: &mut Scope<'_, ()>) {
        sum.value += message.value;
    }
}

#[test]
fn several_links_to_one_kernel_bring_every_message_as_often() {
    let Ok(gpu) = millrace::runtime().open("gpu") else { return };
    let cpu = gpu.neighbour("cpu").unwrap();
    for device in [&gpu, &cpu] {
        for (residency, inbound) in [(Residency::Auto, 4), (Residency::Batched, 4), (Residency::Auto, 2)] {
            for checkpoints in [false, true] {
                let options = LaunchOptions::default().residency(residency);
                let every = |options: LaunchOptions| if checkpoints { options.checkpoint_every(100) } else { options };
                let double = device.launch(Double, every(options.clone())).unwrap();
                let sum = device.launch(Sum, every(options.inbound(inbound).inactive())).unwrap();
                (0..3).for_each(|_| drop(double.link(&sum)));
                double.send(Number { value: 1 }).unwrap();
                double.send(Number { value: 2 }).unwrap();
                thread::sleep(Duration::from_millis(20)); // there is room for the first only
                sum.activate().unwrap();
                eventually("all were summed", || sum.telemetry().handled == 6);
                assert_eq!(sum.checkpoint().unwrap().state.value, 3 * (2 + 4));
                assert_eq!(double.telemetry().dropped, 0);
            }
        }
    }
}

#[test]
fn of_several_lossy_links_to_one_kernel_those_that_find_no_room_are_counted() {
    let Ok(device) = millrace::runtime().open("gpu") else { return };
    let double = device.launch(Double, LaunchOptions::default()).unwrap();
    let sum = device.launch(Sum, LaunchOptions::default().inbound(4).inactive()).unwrap();
    let links = [(); 3].map(|()| double.link_with(&sum, Delivery::Lossy));
    double.send(Number { value: 1 }).unwrap();
    double.send(Number { value: 2 }).unwrap();
    let dropped = || links.iter().map(|link| link.dropped()).sum::<u64>();
    eventually("two were dropped", || double.telemetry().handled == 2 && dropped() == 2);
    sum.activate().unwrap();
    eventually("all others were summed", || sum.telemetry().handled == 4);
    assert_eq!(sum.checkpoint().unwrap().state.value, 3 * 2 + 4);
}

/// Messages that the host carries wait in the ring of its messages; those that the device passes on do not.
fn the_device_passes_on(double: &Resident<Double>, sum: &Resident<Sum>) -> bool {
    let handled = double.telemetry().handled;
    sum.pause().unwrap();
    double.send(Number { value: 0 }).unwrap();
    eventually("it was doubled", || double.telemetry().handled == handled + 1);
    thread::sleep(Duration::from_millis(50));
    let waiting = sum.telemetry().waiting;
    sum.activate().unwrap();
    waiting == (0, 0)
}

#[test]
fn a_receiver_that_has_ended_does_not_send_the_others_messages_by_the_host() {
    let Ok(device) = millrace::runtime().open("gpu") else { return };
    let double = device.launch(Double, LaunchOptions::default()).unwrap();
    let sum = device.launch(Sum, LaunchOptions::default()).unwrap();
    double.link(&sum);
    assert!(the_device_passes_on(&double, &sum));
    let other = device.launch(Sum, LaunchOptions::default()).unwrap();
    let linked = double.link(&other);
    other.terminate().unwrap();
    assert_eq!(other.status(), Status::Terminated);
    assert!(the_device_passes_on(&double, &sum));
    eventually("it was dropped", || linked.dropped() == 1);
    // As many as there cannot be at a time.
    for _ in 0..20 {
        let other = device.launch(Sum, LaunchOptions::default()).unwrap();
        double.link(&other);
    }
    assert!(the_device_passes_on(&double, &sum));
}

#[test]
fn subscribers_that_come_and_go_leave_room_for_others() {
    let Ok(device) = millrace::runtime().open("gpu") else { return };
    let (lonely, topic) = (Topic::<Number>::new(), Topic::<Number>::new());
    let double = device.launch(Double, LaunchOptions::default()).unwrap();
    topic.publish_from(&double);
    for value in 0..12u32 {
        let deadline = Instant::now() + Duration::from_secs(10);
        let sum = loop {
            match device.launch(Sum, LaunchOptions::default().inbound(16 << 10).outbound(2)) {
                Ok(sum) => break sum,
                // One that was dropped leaves a moment later.
                Err(Error::NoRoom { .. }) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
                Err(error) => panic!("{value}: {error}"),
            }
        };
        lonely.subscribe(&sum, Delivery::Lossless);
        topic.subscribe(&sum, Delivery::Lossless);
        double.send(Number { value }).unwrap();
        eventually("it was summed", || sum.telemetry().handled == 1);
        assert_eq!(sum.checkpoint().unwrap().state.value, 2 * value);
    }
    lonely.send(Number { value: 1 }).unwrap();
}
