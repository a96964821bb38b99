//! Events: what a subscriber sees, and that watching costs the device nothing.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use millrace::{CommandKind, Event, prelude::*, ring::RecvDeadlineError};
use support::{Gate, Log, cpu, only_wait, panics, soon, workers};

#[test]
fn a_subscriber_sees_what_happens_in_order() {
    let device = workers(1);
    let mut events = device.subscribe(64).unwrap();
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(4).unwrap());
    let id = stream.id();
    stream.submit(buffer.fill(.., 1)).unwrap();
    stream.submit(buffer.read(..)).unwrap();
    stream.submit(panics(&device, "on purpose").launch()).unwrap().wait().unwrap_err();
    let (gate, held) = Gate::across(&device, &stream);
    let cancelled = stream.submit(Synchronize).unwrap();
    cancelled.cancel();
    gate.open();
    held.wait().unwrap();
    cancelled.wait().unwrap_err();
    drop(stream);
    device.shutdown(soon()).unwrap();
    let completed = |command| Event::Completed { stream: id, command };
    let failed = |command, error| Event::Failed { stream: id, command, error };
    let expected = [
        Event::StreamOpened { stream: id },
        completed(CommandKind::Fill),
        completed(CommandKind::Read),
        failed(CommandKind::Launch, Error::Panicked("on purpose".into())),
        completed(CommandKind::Launch),
        failed(CommandKind::Synchronize, Error::Cancelled),
        Event::StreamClosed { stream: id },
        Event::ShuttingDown { abort: false },
    ];
    let mut seen = Vec::new();
    while let Some(event) = events.try_next() {
        seen.push(event);
    }
    // The worker's own handle of the stream may go a moment after the shutdown is announced.
    seen.sort_by_key(|event| matches!(event, Event::ShuttingDown { .. }));
    assert_eq!(seen, expected);
    assert_eq!(events.missed(), 0);
}

#[test]
fn the_event_is_there_when_the_ticket_is_answered() {
    let device = workers(2);
    let stream = device.stream().unwrap();
    let mut events = device.subscribe(8).unwrap();
    for _ in 0..1000 {
        stream.submit(Synchronize).unwrap().wait().unwrap();
        assert!(matches!(events.try_next(), Some(Event::Completed { command: CommandKind::Synchronize, .. })));
        stream.run(Synchronize).unwrap();
        assert!(matches!(events.try_next(), Some(Event::Completed { command: CommandKind::Synchronize, .. })));
    }
}

#[test]
fn a_subscriber_that_does_not_read_is_told_how_much_it_missed_and_slows_nobody() {
    let device = workers(2);
    let (stream, log) = (device.stream().unwrap(), Log::new(&device));
    let mut events = device.subscribe(10).unwrap();
    const N: u32 = 5000;
    let tickets: Vec<_> = (0..N).map(|n| stream.submit(log.launch(n)).unwrap()).collect();
    for ticket in tickets {
        only_wait(ticket).unwrap();
    }
    assert_eq!(log.seen().len(), N as usize);
    assert_eq!(events.missed(), u64::from(N) - 10);
    assert_eq!(events.missed(), 0, "it was told");
    let mut kept = 0;
    while events.try_next().is_some() {
        kept += 1;
    }
    assert_eq!(kept, 10);
    stream.run(Synchronize).unwrap();
    assert!(events.try_next().is_some(), "there is room again");
    assert_eq!(events.missed(), 0);
}

#[test]
fn subscribers_do_not_disturb_each_other() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let (mut small, mut large) = (device.subscribe(1).unwrap(), device.subscribe(100).unwrap());
    drop(device.subscribe(1).unwrap());
    for _ in 0..50 {
        stream.run(Synchronize).unwrap();
    }
    assert_eq!((small.missed(), large.missed()), (49, 0));
    let count = |events: &mut millrace::Subscription| std::iter::from_fn(|| events.try_next()).count();
    assert_eq!((count(&mut small), count(&mut large)), (1, 50));
}

#[test]
fn a_subscription_waits_by_blocking_by_deadline_and_by_await() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let mut events = device.subscribe(8).unwrap();
    let short = Instant::now() + Duration::from_millis(5);
    assert_eq!(events.next_deadline(short), Err(RecvDeadlineError::Deadline));
    let (send, receive) = mpsc::channel();
    let watcher = thread::spawn(move || {
        send.send(events.next()).unwrap();
        send.send(pollster::block_on(events.next_async())).unwrap();
        send.send(futures_lite::future::block_on(events.next_async())).unwrap();
        send.send(events.next()).unwrap();
    });
    for _ in 0..2 {
        stream.run(Synchronize).unwrap();
        assert!(matches!(receive.recv().unwrap(), Some(Event::Completed { .. })));
    }
    drop((stream, device));
    assert!(matches!(receive.recv().unwrap(), Some(Event::StreamClosed { .. })));
    assert_eq!(receive.recv().unwrap(), None, "the device is gone");
    watcher.join().unwrap();
}

#[test]
fn a_subscriber_that_panics_is_forgotten() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let mut events = device.subscribe(1).unwrap();
    let watcher = thread::spawn(move || {
        let event = events.next();
        panic!("cannot stand {event:?}");
    });
    stream.run(Synchronize).unwrap();
    watcher.join().unwrap_err();
    let mut other = device.subscribe(8).unwrap();
    for _ in 0..4 {
        stream.run(Synchronize).unwrap();
        assert!(other.try_next().is_some());
    }
}

#[test]
fn a_subscription_without_room_is_refused() {
    assert!(matches!(cpu().subscribe(0), Err(Error::Invalid(_))));
}

#[test]
fn a_stream_that_was_refused_is_no_event() {
    let device = cpu();
    device.shutdown(soon()).unwrap();
    let mut events = device.subscribe(8).unwrap();
    device.stream().unwrap_err();
    assert_eq!(events.try_next(), None);
}
