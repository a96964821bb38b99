//! Messages from a kernel on a GPU to another go from slot to slot on the device, unless it also sends to kernels that its
//! device cannot reach: then the host carries all of them. Which of the two it is changes with links that come and go, and
//! nobody notices. Where there is no adapter these tests have nothing to say.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use millrace::{
    prelude::*,
    resident::{Delivery, Message, Residency, Scope},
};

#[derive(Clone, Copy, Debug, PartialEq, Message)]
#[repr(C)]
struct Item {
    value: u32,
}

/// What a kernel has seen of items that are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Message)]
#[repr(C)]
struct Seen {
    count: u32,
    next: u32,
    out_of_order: u32,
}

struct Relay;

impl Handler for Relay {
    type Message = Item;
    type Reply = Item;
    type State = ();
    const WGSL: Option<&'static str> = Some("return message;");
    fn state(&self) {}
    fn handle(&mut self, (): &mut (), item: &Item, _: &mut Scope<'_, Item>) -> Item {
        *item
    }
}

struct Sink;

impl Handler for Sink {
    type Message = Item;
    type Reply = ();
    type State = Seen;
    const WGSL: Option<&'static str> = Some(
        "
        (*state).count += 1u;
        (*state).out_of_order += select(0u, 1u, message.value < (*state).next);
        (*state).next = message.value + 1u;
        ",
    );
    fn state(&self) -> Seen {
        Seen { count: 0, next: 0, out_of_order: 0 }
    }
    fn handle(&mut self, seen: &mut Seen, item: &Item, _: &mut Scope<'_, ()>) {
        seen.count += 1;
        seen.out_of_order += u32::from(item.value < seen.next);
        seen.next = item.value + 1;
    }
}

fn order_is_kept(residency: Residency) {
    let Ok(device) = millrace::runtime().open("gpu") else { return };
    let cpu = device.neighbour("cpu").unwrap();
    let options = LaunchOptions::default().residency(residency).inbound(16).outbound(16);
    let relay = device.launch(Relay, options.clone()).unwrap();
    let near = device.launch(Sink, options.clone()).unwrap();
    let far = cpu.launch(Sink, LaunchOptions::default().inbound(4)).unwrap();
    relay.link(&near);
    let done = AtomicBool::new(false);
    let sent = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sent = 0;
            while !done.load(Ordering::Relaxed) {
                relay.send(Item { value: sent }).unwrap();
                sent += 1;
            }
            sent
        });
        for round in 0..25 {
            thread::sleep(Duration::from_millis(2));
            let linked = relay.link_with(&far, if round % 2 == 0 { Delivery::Lossless } else { Delivery::Lossy });
            thread::sleep(Duration::from_millis(2));
            linked.cut();
        }
        done.store(true, Ordering::Relaxed);
        sender.join().unwrap()
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut seen = near.checkpoint().unwrap().state;
    while seen.count < sent && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(5));
        seen = near.checkpoint().unwrap().state;
    }
    assert_eq!(seen, Seen { count: sent, next: sent, out_of_order: 0 });
    let far = far.checkpoint().unwrap().state;
    assert!(far.count > 0 && far.out_of_order == 0, "{far:?}");
}

#[test]
fn a_link_that_changes_its_way_keeps_the_order_of_messages_by_leases() {
    order_is_kept(Residency::Auto);
}

#[test]
fn a_link_that_changes_its_way_keeps_the_order_of_messages_in_batches() {
    order_is_kept(Residency::Batched);
}

#[test]
fn a_link_that_is_cut_and_made_again_keeps_the_order_of_messages() {
    let Ok(device) = millrace::runtime().open("gpu") else { return };
    let cpu = device.neighbour("cpu").unwrap();
    // By which way messages go first: then it is the other.
    for by_host in [false, true] {
        let launch = |options: LaunchOptions| device.launch(Sink, options.inbound(64)).unwrap();
        let (near, other) = (launch(LaunchOptions::default()), launch(LaunchOptions::default()));
        let relay = device.launch(Relay, LaunchOptions::default().inbound(64)).unwrap();
        let far = cpu.launch(Sink, LaunchOptions::default()).unwrap();
        let until = |what: &dyn Fn() -> bool| {
            let deadline = Instant::now() + Duration::from_secs(20);
            while !what() {
                assert!(Instant::now() < deadline, "{:?} {:?}", relay.telemetry(), near.telemetry());
                thread::sleep(Duration::from_millis(1));
            }
        };
        near.pause().unwrap();
        let away = by_host.then(|| relay.link(&far));
        let linked = relay.link(&near);
        (0..10).for_each(|value| relay.send(Item { value }).unwrap());
        until(&|| relay.telemetry().handled == 10);
        // They lie in front of it. Its sender takes the other way without it, and then again with it.
        linked.cut();
        match away {
            Some(away) => {
                away.cut();
                relay.link(&other);
            }
            None => drop(relay.link(&far)),
        }
        relay.link(&near);
        (10..20).for_each(|value| relay.send(Item { value }).unwrap());
        thread::sleep(Duration::from_millis(50));
        near.activate().unwrap();
        until(&|| near.telemetry().handled == 20);
        assert_eq!(near.checkpoint().unwrap().state, Seen { count: 20, next: 20, out_of_order: 0 }, "{by_host}");
    }
}

/// Kernels in a circle, and one that sends to itself, while all of them change their ways.
#[test]
fn a_circle_of_links_that_change_their_way_does_not_wait_for_itself() {
    let Ok(device) = millrace::runtime().open("gpu") else { return };
    let cpu = device.neighbour("cpu").unwrap();
    let launch = || device.launch(Relay, LaunchOptions::default().inbound(16)).unwrap();
    let (left, right, alone) = (launch(), launch(), launch());
    let far = cpu.launch(Sink, LaunchOptions::default()).unwrap();
    left.link(&right);
    right.link(&left);
    alone.link(&alone);
    for value in 0..4 {
        left.send(Item { value }).unwrap();
        alone.send(Item { value }).unwrap();
    }
    let handled = || [&left, &right, &alone].map(|kernel| kernel.telemetry().handled);
    for _ in 0..5 {
        let links = [&left, &right, &alone].map(|kernel| kernel.link_with(&far, Delivery::Lossy));
        let all_go_on = |what: &str| {
            let (before, deadline) = (handled(), Instant::now() + Duration::from_secs(10));
            while handled().iter().zip(before).any(|(now, before)| *now < before + 10) {
                assert!(Instant::now() < deadline, "{what}: {before:?} to {:?}", handled());
                thread::sleep(Duration::from_millis(1));
            }
        };
        all_go_on("by the host");
        links.iter().for_each(|link| link.cut());
        all_go_on("by the device");
    }
}
