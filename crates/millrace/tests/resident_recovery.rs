//! Linked kernels whose device is lost under load, and again while they come back: links stay, and every state sees every
//! message once, in order. Where there is no adapter these tests have nothing to say.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use millrace::{
    prelude::*,
    resident::{Delivery, Error, Linked, Message, Residency, Resident, Scope, Status, Topic},
};

#[derive(Clone, Copy, Debug, PartialEq, Message)]
#[repr(C)]
struct Item {
    value: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Message)]
#[repr(C)]
struct Tally {
    count: u32,
    /// Of all values, in order.
    hash: u32,
}

impl Tally {
    const NEW: Self = Self { count: 0, hash: 7 };

    fn add(&mut self, value: u32) {
        self.count += 1;
        self.hash = (self.hash ^ value).wrapping_mul(0x0100_0193);
    }
}

/// Hands on what it gets.
struct Relay;

impl Handler for Relay {
    type Message = Item;
    type Reply = Item;
    type State = Tally;
    const WGSL: Option<&'static str> = Some(
        "
        (*state).count += 1u;
        (*state).hash = ((*state).hash ^ message.value) * 0x01000193u;
        return message;
        ",
    );
    fn state(&self) -> Tally {
        Tally::NEW
    }
    fn handle(&mut self, tally: &mut Tally, item: &Item, _: &mut Scope<'_, Item>) -> Item {
        tally.add(item.value);
        *item
    }
}

/// Keeps what it gets.
struct Sink;

impl Handler for Sink {
    type Message = Item;
    type Reply = ();
    type State = Tally;
    const WGSL: Option<&'static str> = Some(
        "
        (*state).count += 1u;
        (*state).hash = ((*state).hash ^ message.value) * 0x01000193u;
        ",
    );
    fn state(&self) -> Tally {
        Tally::NEW
    }
    fn handle(&mut self, tally: &mut Tally, item: &Item, _: &mut Scope<'_, ()>) {
        tally.add(item.value);
    }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A chain of two, and a topic with two subscribers on the same device and one on the processor.
struct Group {
    first: Resident<Relay>,
    second: Resident<Relay>,
    left: Resident<Sink>,
    right: Resident<Sink>,
    far: Resident<Sink>,
}

impl Group {
    fn launch(device: &Device, cpu: &Device, options: &LaunchOptions, abroad: bool) -> Self {
        let options = options.clone().checkpoint_every(23).inbound(16);
        let group = Self {
            first: device.launch(Relay, options.clone()).unwrap(),
            second: device.launch(Relay, options.clone()).unwrap(),
            left: device.launch(Sink, options.clone().inbound(4)).unwrap(),
            right: device.launch(Sink, options).unwrap(),
            far: cpu.launch(Sink, LaunchOptions::default().inbound(8)).unwrap(),
        };
        group.first.link(&group.second);
        let topic = Topic::new();
        topic.publish_from(&group.second);
        topic.subscribe(&group.left, Delivery::Lossless);
        topic.subscribe(&group.right, Delivery::Lossless);
        if abroad {
            topic.subscribe(&group.far, Delivery::Lossless);
        }
        group
    }

    /// Brings them back, in an order that is another every time; each is tried again while the device is lost again.
    fn recover(&mut self, round: usize) {
        for n in 0..4 {
            match (n + round) % 4 {
                0 => replace(&mut self.first),
                1 => replace(&mut self.second),
                2 => replace(&mut self.left),
                _ => replace(&mut self.right),
            }
        }
    }

    fn tallies(&self, abroad: bool) -> Vec<Tally> {
        let mut all = vec![self.first.checkpoint(), self.second.checkpoint()];
        all.extend([self.left.checkpoint(), self.right.checkpoint()]);
        all.extend(abroad.then(|| self.far.checkpoint()));
        all.into_iter().map(|checkpoint| checkpoint.unwrap().state).collect()
    }
}

/// Recovers a kernel if it is lost.
fn replace<H: Handler>(kernel: &mut Resident<H>) {
    let deadline = soon();
    loop {
        match kernel.recover() {
            Ok(found) => {
                *kernel = found;
                return;
            }
            Err(Error::NotFrom { from: Status::Active | Status::Launched, .. }) => return,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        thread::sleep(Duration::from_millis(1));
    }
}

fn destroy(device: &Device) {
    let gpu = device.backend().downcast::<millrace::gpu::Gpu>().unwrap();
    if let Some(wgpu) = gpu.resident_wgpu() {
        wgpu.destroy();
    }
}

fn all_is_seen_once(options: &LaunchOptions, abroad: bool) {
    let Ok(device) = millrace::runtime().open("gpu") else { return };
    let cpu = device.neighbour("cpu").unwrap();
    let mut group = Group::launch(&device, &cpu, options, abroad);
    let (mut expected, mut value) = (Tally::NEW, 0);
    for round in 0..2 {
        let sent = AtomicU32::new(value);
        thread::scope(|scope| {
            scope.spawn(|| {
                while group.first.send(Item { value: sent.load(Ordering::Relaxed) }).is_ok() {
                    sent.fetch_add(1, Ordering::Relaxed);
                }
            });
            thread::sleep(Duration::from_millis(30 + 17 * round as u64));
            destroy(&device);
        });
        let now = sent.into_inner();
        assert!(now > value, "it was under load");
        (value..now).for_each(|value| expected.add(value));
        value = now;
        for kernel in [&group.left, &group.right] {
            kernel.wait_for(Status::Failed, soon()).unwrap();
        }
        group.second.wait_for(Status::Failed, soon()).unwrap();
        group.first.wait_for(Status::Failed, soon()).unwrap();
        // And again, while it comes back.
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..if round % 2 == 0 { 0 } else { 3 } {
                    thread::sleep(Duration::from_millis(40));
                    if !done.load(Ordering::Relaxed) {
                        destroy(&device);
                    }
                }
            });
            group.recover(round);
            done.store(true, Ordering::Relaxed);
        });
        // Those that came back before the last of these losses.
        thread::sleep(Duration::from_millis(100));
        group.recover(round + 1);
    }
    group.first.ask(Item { value }).unwrap();
    let deadline = soon();
    let others = |group: &Group| group.tallies(abroad)[1..].to_vec();
    while others(&group).iter().any(|tally| tally.count < expected.count) {
        assert!(Instant::now() < deadline, "{:?} of {expected:?}", group.tallies(abroad));
        thread::sleep(Duration::from_millis(2));
    }
    thread::sleep(Duration::from_millis(20));
    assert!(others(&group).iter().all(|tally| *tally == expected), "{:?}, not {expected:?}", group.tallies(abroad));
    expected.add(value);
    assert_eq!(group.tallies(abroad)[0], expected);
}

#[test]
fn linked_kernels_come_back_from_a_lost_device_by_leases() {
    all_is_seen_once(&LaunchOptions::default(), false);
}

#[test]
fn linked_kernels_come_back_from_a_lost_device_in_batches() {
    all_is_seen_once(&LaunchOptions::default().residency(Residency::Batched), false);
}

#[test]
fn links_to_another_device_lose_nothing_when_one_is_lost() {
    all_is_seen_once(&LaunchOptions::default(), true);
}

#[test]
fn a_kernel_that_is_lost_again_before_it_goes_on_goes_on_when_it_is_back() {
    let Ok(device) = millrace::runtime().open("gpu") else { return };
    let mut kernel = device.launch(Sink, LaunchOptions::default().checkpoint_every(5)).unwrap();
    let (mut expected, mut took) = (Tally::NEW, Duration::ZERO);
    for round in 0..10 {
        for value in 0..7 {
            kernel.send(Item { value }).unwrap();
            expected.add(value);
        }
        destroy(&device);
        kernel.wait_for(Status::Failed, soon()).unwrap();
        let start = Instant::now();
        thread::scope(|scope| {
            // The first time shows how long it takes.
            if round > 0 {
                let pause = took.mul_f64(0.7 + 0.06 * f64::from(round));
                let device = &device;
                scope.spawn(move || {
                    thread::sleep(pause);
                    destroy(device);
                });
            }
            replace(&mut kernel);
        });
        if round == 0 {
            took = start.elapsed();
        }
        // If it was lost after it had come back, that is noticed by whoever wants something of it.
        while kernel.checkpoint().is_err() {
            replace(&mut kernel);
        }
        kernel.wait_for(Status::Active, soon()).unwrap();
    }
    kernel.ask(Item { value: 1 }).unwrap();
    expected.add(1);
    assert_eq!(kernel.checkpoint().unwrap().state, expected);
}

/// A chain of two whose device was lost, of which the first is back and has waited for the second for a while.
fn one_waits_for_the_other() -> Option<(Resident<Relay>, Resident<Sink>, Linked)> {
    let device = millrace::runtime().open("gpu").ok()?;
    let options = LaunchOptions::default().checkpoint_every(5).inbound(64);
    let (mut first, second) = (device.launch(Relay, options.clone()).unwrap(), device.launch(Sink, options).unwrap());
    let linked = first.link(&second);
    (0..7).for_each(|value| first.send(Item { value }).unwrap());
    destroy(&device);
    second.wait_for(Status::Failed, soon()).unwrap();
    replace(&mut first);
    (7..20).for_each(|value| first.send(Item { value }).unwrap());
    thread::sleep(Duration::from_millis(200)); // nothing happens there any more
    Some((first, second, linked))
}

#[test]
fn a_kernel_hears_that_one_is_back_that_came_back_elsewhere() {
    let Some((first, second, linked)) = one_waits_for_the_other() else { return };
    let elsewhere = millrace::runtime().open("gpu").unwrap();
    let second = second.recover_on(&elsewhere).unwrap();
    let mut expected = Tally::NEW;
    (0..20).for_each(|value| expected.add(value));
    let deadline = soon();
    while second.checkpoint().unwrap().state != expected {
        assert!(Instant::now() < deadline, "{:?}", second.checkpoint().unwrap().state);
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((linked.dropped(), first.checkpoint().unwrap().state), (0, expected));
}

#[test]
fn a_kernel_does_not_wait_for_one_that_nobody_can_bring_back() {
    let Some((first, second, linked)) = one_waits_for_the_other() else { return };
    drop(second);
    let deadline = soon();
    while linked.dropped() < 13 {
        assert!(Instant::now() < deadline, "{:?}, {} dropped", first.checkpoint().unwrap().state, linked.dropped());
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(first.checkpoint().unwrap().state.count, 20);
}

/// So much that the device makes checkpoints most of the time.
#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Large {
    count: u32,
    values: [u32; 512],
}

/// Counts, in every word of a state that takes long to copy.
struct Copies;

impl Handler for Copies {
    type Message = Item;
    type Reply = ();
    type State = Large;
    const WGSL: Option<&'static str> = Some(
        "
        (*state).count += 1u;
        for (var i = 0u; i < 512u; i++) {
            (*state).values[i] += message.value;
        }
        ",
    );
    fn state(&self) -> Large {
        Large { count: 0, values: [0; 512] }
    }
    fn handle(&mut self, _: &mut Large, _: &Item, _: &mut Scope<'_, ()>) {}
}

/// Loses the device over and over while it makes checkpoints: one after each message, or as fast as somebody asks for them.
fn checkpoints_are_whole(every: u64, ask: bool) {
    let Ok(device) = millrace::runtime().open("gpu") else { return };
    let mut kernel = device.launch(Copies, LaunchOptions::default().checkpoint_every(every).inbound(16)).unwrap();
    let mut sent = 0;
    for round in 0..2 {
        thread::scope(|scope| {
            let sender = scope.spawn(|| (0..).take_while(|_| kernel.send(Item { value: 3 }).is_ok()).count() as u32);
            if ask {
                scope.spawn(|| {
                    while let Ok(found) = kernel.checkpoint() {
                        assert!(found.state.values.iter().all(|value| *value == 3 * found.state.count));
                    }
                });
            }
            thread::sleep(Duration::from_millis(20 + 7 * round));
            destroy(&device);
            sent += sender.join().unwrap();
        });
        kernel.wait_for(Status::Failed, soon()).unwrap();
        replace(&mut kernel);
    }
    let deadline = soon();
    let state = loop {
        let state = kernel.checkpoint().unwrap().state;
        if state.count >= sent {
            break state;
        }
        assert!(Instant::now() < deadline, "{} of {sent}", state.count);
        thread::sleep(Duration::from_millis(2));
    };
    assert!(state.count == sent && state.values.iter().all(|value| *value == 3 * sent), "{} of {sent}", state.count);
}

#[test]
fn a_device_that_is_lost_while_it_makes_checkpoints_at_an_interval_leaves_one() {
    checkpoints_are_whole(1, false);
}

#[test]
fn a_device_that_is_lost_while_it_makes_checkpoints_on_request_leaves_one() {
    checkpoints_are_whole(1000, true);
}
