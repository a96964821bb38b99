//! Kernels whose messages are archives: priorities, links, topics, checkpoints and recovery, as with plain messages.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use millrace_core::Priority;
use millrace_resident::{
    Archive, ArchivedHandler, ArchivedResident, Delivery, Error, Handler, Launch, LaunchOptions, Message,
    RestartPolicy, Scope, Status, Topic, rkyv,
};
use support::{Number, cpu, impatient, soon};

/// Remembers how many messages it had, their lengths in order, and where it read them. Panics at `boom`.
#[derive(Default)]
struct Notebook {
    seen: Arc<Mutex<Vec<(usize, String)>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Message)]
#[repr(C)]
struct Tally {
    count: u32,
    length: u32,
    /// Of all texts, in order.
    hash: u32,
}

fn hashed(hash: u32, text: &str) -> u32 {
    text.bytes().fold(hash, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

impl ArchivedHandler for Notebook {
    type Message = String;
    type Reply = String;
    type State = Tally;

    fn state(&self) -> Tally {
        Tally { count: 0, length: 0, hash: 7 }
    }

    fn handle(&mut self, tally: &mut Tally, text: &rkyv::Archived<String>, _: &mut Scope<'_, String>) -> String {
        assert!(!text.starts_with("boom"), "boom");
        self.seen.lock().unwrap().push((text.as_ptr() as usize, text.to_string()));
        tally.count += 1;
        tally.length += text.len() as u32;
        tally.hash = hashed(tally.hash, text);
        format!("{text}!")
    }
}

type Seen = Arc<Mutex<Vec<(usize, String)>>>;

fn notebook(options: LaunchOptions) -> (ArchivedResident<Notebook>, Seen) {
    let book = Notebook::default();
    let seen = book.seen.clone();
    (cpu().launch_archived(book, options).unwrap(), seen)
}

fn texts(seen: &Seen) -> Vec<String> {
    seen.lock().unwrap().iter().map(|(_, text)| text.clone()).collect()
}

/// A text that is in a slot or beside it, by turns.
fn text(n: usize) -> String {
    format!("{n}{}", "x".repeat(if n.is_multiple_of(3) { 2000 } else { n % 50 }))
}

#[test]
fn an_urgent_archive_overtakes_and_starves_nobody() {
    let (book, seen) = notebook(LaunchOptions::default().payload(64).inactive());
    for n in 0..5 {
        book.send(&format!("normal {n}")).unwrap();
    }
    for n in 0..10 {
        book.send_with(&format!("high {n}"), Priority::High).unwrap();
        book.try_send_with(&format!("high {n} {}", "long ".repeat(100)), Priority::High).unwrap();
    }
    book.activate().unwrap();
    assert_eq!(*book.ask(&"last".into()).unwrap(), "last!");
    let order: Vec<String> = texts(&seen).iter().map(|text| text[..text.find(' ').unwrap_or(4)].to_owned()).collect();
    let turns = |n: usize, what: &'static str| std::iter::repeat_n(what, n);
    let expected = turns(8, "high").chain(turns(1, "normal")).chain(turns(8, "high")).chain(turns(1, "normal"));
    let expected: Vec<&str> = expected.chain(turns(4, "high")).chain(turns(3, "normal")).chain(["last"]).collect();
    assert_eq!(order, expected);
    book.pause().unwrap();
    book.send(&"a".into()).unwrap();
    thread::scope(|scope| {
        let urgent = scope.spawn(|| book.ask_with(&"b".into(), Priority::High).unwrap().to_string());
        while book.telemetry().waiting != (1, 1) {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(50)); // it has its place, and may still be writing
        book.activate().unwrap();
        assert_eq!(urgent.join().unwrap(), "b!");
    });
    book.send_deadline(&"c".into(), soon()).unwrap();
    assert_eq!(*book.ask(&"d".into()).unwrap(), "d!");
    assert_eq!(texts(&seen)[26..], ["b", "a", "c", "d"]);
}

#[test]
fn archives_travel_along_links_whatever_fits_into_a_slot() {
    for payloads in [[0, 0, 0], [16, 512, 64], [4096, 0, 4096]] {
        let launch = |payload: usize| notebook(LaunchOptions::default().payload(payload).inbound(4));
        let [(first, _), (second, _), (last, seen)] = payloads.map(launch);
        first.link(&second);
        let linked = second.link(&last);
        thread::scope(|scope| {
            scope.spawn(|| (0..300).for_each(|n| first.send(&text(n)).unwrap()));
            for n in 0..300 {
                assert_eq!(*last.receive(soon()).unwrap(), *format!("{}!!!", text(n)));
            }
        });
        assert_eq!((linked.dropped(), last.telemetry().handled, seen.lock().unwrap().len()), (0, 300, 300));
        assert_eq!(*first.ask(&"asked".into()).unwrap(), "asked!", "an asker gets the answer all the same");
        linked.cut();
        first.send(&"cut".into()).unwrap();
        assert_eq!(*second.receive(soon()).unwrap(), "cut!!");
    }
}

#[test]
fn a_lossless_link_of_archives_waits_and_a_lossy_one_counts() {
    let device = impatient(Duration::from_millis(50));
    let options = LaunchOptions::default().inbound(4);
    let (slow, seen) = notebook(options.clone().inactive());
    let fast = device.launch_archived(Notebook::default(), options.clone()).unwrap();
    let linked = fast.link(&slow);
    let sent = (0..).find(|&n| fast.send(&text(n)).is_err()).unwrap();
    assert_eq!(sent, 4 + 1 + 4, "the slow one's ring, one in hand, the fast one's ring");
    slow.activate().unwrap();
    for n in 0..sent {
        assert_eq!(*slow.receive(soon()).unwrap(), *format!("{}!!", text(n)));
    }
    assert_eq!((linked.dropped(), seen.lock().unwrap().len()), (0, sent));
    linked.cut();
    slow.pause().unwrap();
    let lossy = fast.link_with(&slow, Delivery::Lossy);
    (0..20).for_each(|n| fast.send_deadline(&text(n), soon()).unwrap());
    fast.ask(&"done".into()).unwrap();
    assert_eq!((lossy.dropped(), fast.telemetry().dropped), (16, 16));
}

#[test]
fn what_is_published_is_made_once_and_read_by_all() {
    let (source, _) = notebook(LaunchOptions::default().payload(4096));
    let subscribers: Vec<_> = (0..3).map(|_| notebook(LaunchOptions::default().payload(4096))).collect();
    let topic = Topic::<Archive<String>>::new();
    topic.publish_from(&source);
    for (subscriber, _) in &subscribers {
        topic.subscribe(subscriber, Delivery::Lossless);
    }
    let long = "long ".repeat(100);
    source.send(&"short".into()).unwrap();
    source.send(&long).unwrap();
    for (subscriber, _) in &subscribers {
        for expected in ["short!!", &format!("{long}!!")] {
            assert_eq!(*subscriber.receive(soon()).unwrap(), *expected);
        }
    }
    topic.send(&long).unwrap();
    for (subscriber, _) in &subscribers {
        assert_eq!(*subscriber.receive(soon()).unwrap(), *format!("{long}!"));
    }
    let places = |n: usize| subscribers.iter().map(|(_, seen)| seen.lock().unwrap()[n].0).collect::<Vec<_>>();
    assert!(places(0).windows(2).all(|two| two[0] != two[1]), "in each slot");
    for n in [1, 2] {
        assert!(places(n).windows(2).all(|two| two[0] == two[1]), "not copied: {:?}", places(n));
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Message, rkyv::Archive, rkyv::Serialize, rkyv::Deserialize)]
#[repr(C)]
struct Point {
    x: u32,
    z: u32,
    y: u64,
    w: [u32; 2],
}

struct Shift;

impl Handler for Shift {
    type Message = Point;
    type Reply = Point;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), point: &Point, _: &mut Scope<'_, Point>) -> Point {
        Point { x: point.x + 1, ..*point }
    }
}

struct ArchivedShift;

impl ArchivedHandler for ArchivedShift {
    type Message = Point;
    type Reply = Point;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), point: &rkyv::Archived<Point>, _: &mut Scope<'_, Point>) -> Point {
        let point = rkyv::deserialize::<Point, rkyv::rancor::Error>(point).unwrap();
        Point { x: point.x + 1, ..point }
    }
}

#[test]
fn plain_messages_become_archives_on_the_way_and_archives_plain_messages() {
    let device = cpu();
    let options = LaunchOptions::default;
    let first = device.launch(Shift, options()).unwrap();
    let second = device.launch_archived(ArchivedShift, options()).unwrap(); // an archive does not fit into its slots
    let third = device.launch_archived(ArchivedShift, options().payload(128)).unwrap();
    let fourth = device.launch(Shift, options()).unwrap();
    first.link(&second);
    second.link(&third);
    third.link(&fourth);
    for x in 0..100 {
        let point = Point { x, y: 1 << 40, z: 3, w: [4, 5] };
        first.send(point).unwrap();
        assert_eq!(fourth.receive(soon()).unwrap(), Point { x: x + 4, ..point });
    }
    let topic = Topic::<Point>::new();
    topic.subscribe(&second, Delivery::Lossless);
    topic.subscribe(&fourth, Delivery::Lossless);
    topic.send(Point { x: 100, y: 2, z: 3, w: [4, 5] }).unwrap();
    let mut both = [fourth.receive(soon()).unwrap().x, fourth.receive(soon()).unwrap().x];
    both.sort_unstable();
    assert_eq!(both, [101, 103]);
}

#[test]
fn checkpoints_of_archives_are_made_at_an_interval_and_on_request() {
    let (book, _) = notebook(LaunchOptions::default().checkpoint_every(10).restart(RestartPolicy::UpTo(1)));
    assert!(book.last_checkpoint().is_none());
    for n in 0..25 {
        book.ask(&text(n)).unwrap();
    }
    assert_eq!(book.last_checkpoint().unwrap().unwrap().state.count, 20);
    assert!(matches!(book.ask(&"boom".into()), Err(Error::Panicked(_))));
    let now = book.checkpoint().unwrap();
    assert_eq!((now.state.count, now.handled), (20, 25), "a restart goes on with the last checkpoint");
    let (again, _) = notebook(LaunchOptions::default().restore(&now.state).inactive());
    assert_eq!(pollster::block_on(again.checkpoint_async()).unwrap().state, now.state);
}

#[test]
fn a_kernel_of_archives_that_failed_comes_back_and_its_state_sees_everything_once() {
    let options = LaunchOptions::default().checkpoint_every(7).inbound(16).outbound(64).payload(64);
    let (mut book, seen) = notebook(options);
    assert!(matches!(book.recover(), Err(Error::NotFrom { .. })), "it lives");
    let (mut expected, mut answers, mut next) = (Tally { count: 0, length: 0, hash: 7 }, Vec::new(), 0);
    for round in 0..10 {
        let (sent, received) = thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let received = std::iter::from_fn(|| book.receive(soon()).ok().map(|answer| answer.to_string()));
                received.collect::<Vec<_>>()
            });
            for n in next..next + 20 + round {
                book.send(&text(n)).unwrap();
            }
            book.send(&format!("boom {}", "b".repeat(round * 30))).unwrap();
            let sent = (next + 20 + round..).find(|&n| book.send(&text(n)).is_err()).unwrap();
            (sent, receiver.join().unwrap())
        });
        for n in next..sent {
            let text = text(n);
            expected.count += 1;
            expected.length += text.len() as u32;
            expected.hash = hashed(expected.hash, &text);
        }
        next = sent;
        book.wait_for(Status::Failed, soon()).unwrap();
        answers.extend(received.into_iter().filter(|text| !text.starts_with("boom")));
        let found = book.recover().unwrap();
        assert!(book.recover().is_err(), "once");
        book = found;
        while answers.len() < next {
            answers.push(book.receive(soon()).unwrap().to_string());
        }
        assert_eq!(book.checkpoint().unwrap().state, expected, "round {round}");
    }
    for (n, answer) in answers.iter().enumerate() {
        assert_eq!(*answer, format!("{}!", text(n)));
    }
    assert!(book.try_receive().is_none(), "no answer twice");
    assert!(seen.lock().unwrap().len() > next, "some were handled again");
    let (plain, _) = notebook(LaunchOptions::default());
    assert!(plain.ask(&"boom".into()).is_err());
    assert!(matches!(plain.recover(), Err(Error::Unsupported { .. })), "nobody kept what it was sent");
}

/// Panics when it is sent 13, and whenever it handles anything while the fuse burns.
struct Fused(Arc<std::sync::atomic::AtomicBool>);

impl Handler for Fused {
    type Message = Number;
    type Reply = Number;
    type State = Number;
    fn state(&self) -> Number {
        Number { value: 0 }
    }
    fn handle(&mut self, sum: &mut Number, number: &Number, _: &mut Scope<'_, Number>) -> Number {
        assert!(number.value != 13 && !self.0.load(std::sync::atomic::Ordering::Relaxed), "out");
        sum.value += number.value;
        *sum
    }
}

#[test]
fn a_recovery_that_fails_can_be_tried_again() {
    let fuse = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let options = LaunchOptions::default().checkpoint_every(1000).inbound(8);
    let sum = impatient(Duration::from_millis(500)).launch(Fused(fuse.clone()), options).unwrap();
    for value in 0..13 {
        sum.ask(Number { value }).unwrap();
    }
    sum.send(Number { value: 13 }).unwrap();
    sum.wait_for(Status::Failed, soon()).unwrap();
    fuse.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(matches!(sum.recover(), Err(Error::Failed(_) | Error::Ended(_))));
    fuse.store(false, std::sync::atomic::Ordering::Relaxed);
    let found = sum.recover().unwrap();
    assert_eq!(found.ask(Number { value: 1 }).unwrap().value, 12 * 13 / 2 + 1);
}
