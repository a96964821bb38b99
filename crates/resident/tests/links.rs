//! Kernels that talk to each other without the host in between.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{thread, time::Duration};

use millrace_core::Priority;
use millrace_resident::{Delivery, Error, Handler, Launch, LaunchOptions, Scope, Status, Topic};
use support::{Counter, Double, Number, cpu, impatient, soon};

#[test]
fn a_chain_of_kernels_hands_messages_on() {
    let device = cpu();
    let chain: Vec<_> = (0..8).map(|_| device.launch(Double, LaunchOptions::default()).unwrap()).collect();
    for pair in chain.windows(2) {
        pair[0].link(&pair[1]);
    }
    for value in 0..1000 {
        chain[0].send(Number { value }).unwrap();
        if value % 100 == 99 {
            for value in value - 99..=value {
                assert_eq!(chain[7].receive(soon()).unwrap().value, value << 8);
            }
        }
    }
    assert_eq!(chain[0].ask(Number { value: 3 }).unwrap().value, 6, "an asker gets the answer all the same");
    assert!(chain.iter().take(7).all(|kernel| kernel.try_receive().is_none()));
}

#[test]
fn a_lossless_link_makes_the_sender_wait_and_loses_nothing() {
    let device = impatient(Duration::from_millis(50));
    let fast = device.launch(Double, LaunchOptions::default().inbound(4)).unwrap();
    let slow = device.launch(Counter, LaunchOptions::default().inbound(4).outbound(64).inactive()).unwrap();
    let linked = fast.link(&slow);
    let mut sent = 0;
    while fast.send(Number { value: 0 }).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 4 + 1 + 4, "the slow one's ring, one in hand, the fast one's ring");
    slow.activate().unwrap();
    for _ in 0..sent {
        slow.receive(soon()).unwrap();
    }
    assert_eq!((linked.dropped(), slow.telemetry().handled, fast.telemetry().sent), (0, sent, sent));
}

#[test]
fn a_lossy_link_counts_what_it_drops() {
    let device = cpu();
    let fast = device.launch(Double, LaunchOptions::default()).unwrap();
    let slow = device.launch(Counter, LaunchOptions::default().inbound(4).inactive()).unwrap();
    let linked = fast.link_with(&slow, Delivery::Lossy);
    for value in 1..=100 {
        fast.send(Number { value }).unwrap();
    }
    fast.ask(Number { value: 0 }).unwrap();
    assert_eq!((linked.dropped(), fast.telemetry().dropped, fast.telemetry().handled), (96, 96, 101));
    slow.activate().unwrap();
    let sums: Vec<_> = (0..4).map(|_| slow.receive(soon()).unwrap().value).collect();
    assert_eq!(sums, [2, 6, 12, 20], "the first four");
}

#[test]
fn a_receiver_that_ends_does_not_hold_up_the_sender() {
    let device = impatient(Duration::from_millis(100));
    let first = device.launch(Double, LaunchOptions::default().inbound(2)).unwrap();
    let second = device.launch(Double, LaunchOptions::default().inbound(2).inactive()).unwrap();
    let linked = first.link(&second);
    while first.send(Number { value: 0 }).is_ok() {}
    drop(second);
    for _ in 0..20 {
        first.send(Number { value: 0 }).unwrap();
    }
    first.ask(Number { value: 0 }).unwrap();
    assert!(linked.dropped() >= 20);
    linked.cut();
    first.send(Number { value: 1 }).unwrap();
    assert_eq!(first.receive(soon()).unwrap().value, 2);
}

#[test]
fn every_subscriber_gets_everything_that_is_published() {
    let device = cpu();
    let topic = Topic::new();
    let subscribers: Vec<_> = (0..5).map(|_| device.launch(Counter, LaunchOptions::default()).unwrap()).collect();
    let publishers: Vec<_> = (0..3).map(|_| device.launch(Double, LaunchOptions::default()).unwrap()).collect();
    topic.publish_from(&publishers[0]);
    let early: Vec<_> = subscribers[..3].iter().map(|s| topic.subscribe(s, Delivery::Lossless)).collect();
    topic.publish_from(&publishers[1]);
    let late: Vec<_> = subscribers[3..].iter().map(|s| topic.subscribe(s, Delivery::Lossless)).collect();
    topic.publish_from(&publishers[2]);
    thread::scope(|scope| {
        for publisher in &publishers {
            scope.spawn(move || (0..300).for_each(|_| publisher.send(Number { value: 1 }).unwrap()));
        }
        for subscriber in &subscribers {
            scope.spawn(move || {
                let last = (0..900).map(|_| subscriber.receive(soon()).unwrap().value).last();
                assert_eq!(last, Some(1800));
            });
        }
    });
    topic.send(Number { value: 5 }).unwrap();
    for subscriber in &subscribers {
        assert_eq!(subscriber.receive(soon()).unwrap().value, 1805);
    }
    assert_eq!(early.iter().chain(&late).map(|linked| linked.dropped()).sum::<u64>(), 0);
    early[0].cut();
    topic.send(Number { value: 5 }).unwrap();
    assert_eq!(subscribers[1].receive(soon()).unwrap().value, 1810);
    thread::sleep(Duration::from_millis(10));
    assert!(subscribers[0].try_receive().is_none());
}

/// Sends a number on until it is zero.
struct Countdown;

impl Handler for Countdown {
    type Message = Number;
    type Reply = Number;
    type State = Number;

    fn state(&self) -> Number {
        Number { value: 0 }
    }

    fn handle(&mut self, state: &mut Number, number: &Number, scope: &mut Scope<'_, Number>) -> Number {
        state.value += 1;
        if number.value == 0 {
            scope.no_reply();
        }
        Number { value: number.value.saturating_sub(1) }
    }
}

#[test]
fn two_kernels_play_ping_pong_by_themselves() {
    let device = cpu();
    let (ping, pong) = (
        device.launch(Countdown, LaunchOptions::default()).unwrap(),
        device.launch(Countdown, LaunchOptions::default().priority(Priority::Low)).unwrap(),
    );
    ping.link(&pong);
    pong.link(&ping);
    ping.send(Number { value: 9999 }).unwrap();
    let deadline = soon();
    while ping.telemetry().handled + pong.telemetry().handled < 10_000 {
        assert!(std::time::Instant::now() < deadline);
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!((ping.checkpoint().unwrap().state.value, pong.checkpoint().unwrap().state.value), (5000, 5000));
    for kernel in [&ping, &pong] {
        kernel.drain().unwrap();
        kernel.wait_for(Status::Terminated, soon()).unwrap();
    }
}

#[test]
fn what_a_handler_emits_comes_before_its_answer_and_waits_for_room() {
    struct Echoes;
    impl Handler for Echoes {
        type Message = Number;
        type Reply = Number;
        type State = ();
        fn state(&self) {}
        fn handle(&mut self, _: &mut (), number: &Number, scope: &mut Scope<'_, Number>) -> Number {
            for value in 0..number.value {
                scope.emit(&Number { value });
            }
            *number
        }
    }
    let device = impatient(Duration::from_millis(100));
    let echoes = device.launch(Echoes, LaunchOptions::default().outbound(4)).unwrap();
    echoes.send(Number { value: 20 }).unwrap();
    for value in 0..=20 {
        assert_eq!(echoes.receive(soon()).unwrap().value, value);
    }
    // An asker takes what is before its answer out of the way, but not without bound.
    assert_eq!(echoes.ask(Number { value: 4 }).unwrap().value, 4);
    let error = echoes.ask(Number { value: 40 }).unwrap_err();
    assert_eq!(error, Error::Unreceived { answers: 8, waited: Duration::from_millis(100) });
    assert!(error.to_string().contains("nobody receives its answers"), "{error}");
    let rest: Vec<_> = (0..44).map(|_| echoes.receive(soon()).unwrap().value).collect();
    assert_eq!(rest, (0..4).chain(0..40).collect::<Vec<_>>());
    assert_eq!(echoes.ask(Number { value: 0 }).unwrap().value, 0, "the late answer is in nobody's way");
}
