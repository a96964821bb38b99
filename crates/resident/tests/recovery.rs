//! Linked kernels of the processor that fail and come back, one after the other and together: links stay, and every state
//! sees every message once, in order.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{thread, time::Duration};

use millrace_core::Device;
use millrace_resident::{
    ArchivedHandler, ArchivedResident, Delivery, Error, Handler, Launch, LaunchOptions, Message, Resident, Scope,
    Status, Topic, rkyv,
};
use support::{impatient, soon};

const BOOM: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Message, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
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
        assert!(value != BOOM, "boom");
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
    fn state(&self) -> Tally {
        Tally::NEW
    }
    fn handle(&mut self, tally: &mut Tally, item: &Item, _: &mut Scope<'_, ()>) {
        tally.add(item.value);
    }
}

/// The same with archives.
struct ArchiveSink;

impl ArchivedHandler for ArchiveSink {
    type Message = Item;
    type Reply = ();
    type State = Tally;
    fn state(&self) -> Tally {
        Tally::NEW
    }
    fn handle(&mut self, tally: &mut Tally, item: &rkyv::Archived<Item>, scope: &mut Scope<'_, ()>) {
        tally.add(item.value.to_native());
        scope.no_reply();
    }
}

struct Group {
    first: Resident<Relay>,
    second: Resident<Relay>,
    left: Resident<Sink>,
    right: ArchivedResident<ArchiveSink>,
}

impl Group {
    fn launch(device: &Device) -> Self {
        let options = LaunchOptions::default().checkpoint_every(11).inbound(16);
        let group = Self {
            first: device.launch(Relay, options.clone()).unwrap(),
            second: device.launch(Relay, options.clone()).unwrap(),
            left: device.launch(Sink, options.clone()).unwrap(),
            right: device.launch_archived(ArchiveSink, options).unwrap(),
        };
        group.first.link(&group.second);
        let topic = Topic::new();
        topic.publish_from(&group.second);
        topic.subscribe(&group.left, Delivery::Lossless);
        topic.subscribe(&group.right, Delivery::Lossless);
        group
    }

    /// Makes one of them fail.
    fn boom(&self, which: u32) {
        let boom = Item { value: BOOM };
        let failed = match which {
            0 => self.first.ask(boom).map(drop),
            1 => self.second.ask(boom).map(drop),
            2 => self.left.ask(boom),
            _ => self.right.ask(&boom).map(drop),
        };
        assert!(matches!(failed, Err(Error::Panicked(_) | Error::Failed(_))), "{failed:?}");
    }

    /// Brings back those that failed, in an order that is another every time.
    fn recover(&mut self, round: u32) {
        for n in 0..4 {
            match (n + round) % 4 {
                0 => replace(&mut self.first, Resident::recover),
                1 => replace(&mut self.second, Resident::recover),
                2 => replace(&mut self.left, Resident::recover),
                _ => replace(&mut self.right, ArchivedResident::recover),
            }
        }
    }

    fn tallies(&self) -> [Tally; 4] {
        [
            self.first.checkpoint().unwrap().state,
            self.second.checkpoint().unwrap().state,
            self.left.checkpoint().unwrap().state,
            self.right.checkpoint().unwrap().state,
        ]
    }
}

fn replace<K>(kernel: &mut K, recover: impl Fn(&K) -> Result<K, Error>) {
    match recover(kernel) {
        Ok(found) => *kernel = found,
        // It has not failed. One that came back a moment ago may not have got round to going on.
        Err(Error::NotFrom { from: Status::Launched | Status::Paused | Status::Active, .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn linked_kernels_that_fail_come_back_with_their_links_and_lose_nothing() {
    let device = impatient(Duration::from_secs(5));
    let mut group = Group::launch(&device);
    let mut expected = Tally::NEW;
    let mut value = 0;
    for round in 0..60 {
        for _ in 0..round % 40 {
            group.first.send(Item { value }).unwrap();
            expected.add(value);
            value += 1;
        }
        group.boom(round % 4);
        // One further down, too: one further up may wait for the first, and would not notice.
        if round % 3 == 0 && round % 4 < 3 {
            group.boom(3);
        }
        // What can still be sent waits on the way: before the one that is gone, or before the first.
        for _ in 0..8 {
            if group.first.try_send(Item { value }).is_ok() {
                expected.add(value);
                value += 1;
            }
        }
        if round % 5 == 0 {
            thread::sleep(Duration::from_millis(2));
        }
        group.recover(round);
    }
    let deadline = soon();
    while group.tallies().iter().any(|tally| tally.count < expected.count) {
        assert!(std::time::Instant::now() < deadline, "{:?} of {expected:?}", group.tallies());
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(5));
    assert_eq!(group.tallies(), [expected; 4]);
}

#[test]
fn a_sender_waits_for_a_kernel_that_may_come_back_until_its_handle_is_dropped() {
    let device = impatient(Duration::from_millis(200));
    let options = LaunchOptions::default().checkpoint_every(4).inbound(4);
    let relay = device.launch(Relay, options.clone()).unwrap();
    let sink = device.launch(Sink, options).unwrap();
    let linked = relay.link(&sink);
    assert!(sink.ask(Item { value: BOOM }).is_err());
    sink.wait_for(Status::Failed, soon()).unwrap();
    let sent = (0..).find(|&value| relay.send(Item { value }).is_err()).unwrap();
    assert_eq!((sent, linked.dropped()), (1 + 4, 0), "one in hand, and its ring");
    drop(sink);
    for value in 0..20 {
        relay.send(Item { value }).unwrap();
    }
    relay.ask(Item { value: 0 }).unwrap();
    assert_eq!(linked.dropped(), u64::from(sent) + 20);
}

#[test]
fn a_kernel_that_comes_back_goes_on_as_it_was_told_to() {
    let device = impatient(Duration::from_secs(5));
    let sink = device.launch(Sink, LaunchOptions::default().checkpoint_every(4)).unwrap();
    (0..10).for_each(|value| sink.send(Item { value }).unwrap());
    assert!(sink.ask(Item { value: BOOM }).is_err());
    let found = sink.recover().unwrap();
    assert_eq!(found.checkpoint().unwrap().state.count, 10);
    found.wait_for(Status::Active, soon()).unwrap();
    found.ask(Item { value: 10 }).unwrap();
    assert_eq!(found.checkpoint().unwrap().state.count, 11);
}

/// Panics while it is put in order, so many times.
struct Fragile(u32);

impl Handler for Fragile {
    type Message = Item;
    type Reply = ();
    type State = Tally;
    fn state(&self) -> Tally {
        Tally::NEW
    }
    fn handle(&mut self, tally: &mut Tally, item: &Item, _: &mut Scope<'_, ()>) {
        tally.add(item.value);
    }
    fn restarted(&mut self) {
        thread::sleep(Duration::from_millis(2)); // others who want to recover it come meanwhile
        if self.0 > 0 {
            self.0 -= 1;
            panic!("not this time");
        }
    }
}

#[test]
fn of_several_who_recover_a_kernel_at_once_one_gets_it() {
    let device = impatient(Duration::from_secs(5));
    for _ in 0..20 {
        let options = LaunchOptions::default().checkpoint_every(4);
        let relay = device.launch(Relay, LaunchOptions::default()).unwrap();
        let lost = device.launch(Fragile(0), options).unwrap();
        relay.link(&lost);
        (0..6).for_each(|value| lost.send(Item { value }).unwrap());
        assert!(lost.ask(Item { value: BOOM }).is_err());
        let mut found: Vec<_> = thread::scope(|scope| {
            let all: Vec<_> = (0..4).map(|_| scope.spawn(|| lost.recover())).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let one = found.extract_if(.., |found| found.is_ok()).collect::<Vec<_>>();
        let [Ok(one)] = &one[..] else { panic!("{} recovered it", one.len()) };
        for error in found {
            assert!(error.unwrap_err().to_string().contains("recovered already"));
        }
        relay.send(Item { value: 6 }).unwrap();
        let deadline = soon();
        while one.checkpoint().unwrap().state.count < 7 {
            assert!(std::time::Instant::now() < deadline);
        }
        assert_eq!(one.checkpoint().unwrap().state.count, 7, "every message once");
    }
}

#[test]
fn a_recovery_that_fails_can_be_tried_again() {
    let device = impatient(Duration::from_secs(5));
    let lost = device.launch(Fragile(2), LaunchOptions::default().checkpoint_every(4)).unwrap();
    (0..6).for_each(|value| lost.send(Item { value }).unwrap());
    assert!(lost.ask(Item { value: BOOM }).is_err());
    for _ in 0..2 {
        assert_eq!(lost.recover().unwrap_err(), Error::Panicked("not this time".into()));
    }
    let found = lost.recover().unwrap();
    found.ask(Item { value: 6 }).unwrap();
    assert_eq!(found.checkpoint().unwrap().state.count, 7);
}

#[test]
fn a_kernel_that_failed_while_it_was_told_to_end_says_why_it_does_not_come_back() {
    let device = impatient(Duration::from_secs(5));
    let lost = device.launch(Sink, LaunchOptions::default().checkpoint_every(4).inactive()).unwrap();
    lost.send(Item { value: BOOM }).unwrap();
    lost.drain().unwrap();
    lost.wait_for(Status::Failed, soon()).unwrap();
    let error = lost.recover().unwrap_err();
    assert!(error.to_string().contains("told to end"), "{error}");
}
