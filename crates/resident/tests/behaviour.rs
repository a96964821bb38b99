//! What a resident kernel on the CPU does, through the public interface.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use millrace_core::Priority;
use millrace_resident::{Error, Handler, Launch, LaunchOptions, Message, Scope, Status, WaitPolicy};
use support::{Counter, Double, Number, cpu, impatient, soon};

#[test]
fn an_ask_gets_its_answer_and_a_send_can_be_received() {
    let device = cpu();
    let double = device.launch(Double, LaunchOptions::default()).unwrap();
    for value in 0..1000 {
        assert_eq!(double.ask(Number { value }).unwrap().value, value * 2);
    }
    for value in 0..100 {
        double.send(Number { value }).unwrap();
    }
    for value in 0..100 {
        assert_eq!(double.receive(soon()).unwrap().value, value * 2);
    }
    assert!(double.try_receive().is_none());
    let late = double.receive(Instant::now() + Duration::from_millis(5));
    assert_eq!(late, Err(Error::Deadline));
}

#[test]
fn every_one_of_many_askers_gets_its_own_answer() {
    let device = cpu();
    let double = device.launch(Double, LaunchOptions::default().inbound(4).outbound(4)).unwrap();
    thread::scope(|scope| {
        for asker in 0..8u32 {
            let double = &double;
            scope.spawn(move || {
                for n in 0..500 {
                    let value = asker * 10_000 + n;
                    assert_eq!(double.ask(Number { value }).unwrap().value, value * 2);
                }
            });
        }
    });
    assert_eq!(double.telemetry().handled, 4000);
}

#[test]
fn every_one_of_many_senders_to_a_full_ring_gets_in() {
    let device = cpu();
    let counter = device.launch(Counter, LaunchOptions::default().inbound(16)).unwrap();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..2000).for_each(|_| counter.send(Number { value: 1 }).unwrap()));
        }
        let sums = (1..=16_000).map(|_| counter.receive(soon()).unwrap().value);
        assert!(sums.eq(1..=16_000));
    });
}

#[test]
fn askers_and_receivers_do_not_take_each_others_messages() {
    let device = cpu();
    let double = device.launch(Double, LaunchOptions::default().outbound(8)).unwrap();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| (0..2000).map(|_| double.receive(soon()).unwrap().value).collect::<Vec<_>>());
        scope.spawn(|| (0..2000).for_each(|value| double.send(Number { value }).unwrap()));
        for value in 10_000..11_000 {
            assert_eq!(double.ask(Number { value }).unwrap().value, value * 2);
        }
        let received = receiver.join().unwrap();
        assert_eq!(received, (0..2000).map(|value| value * 2).collect::<Vec<_>>());
    });
}

#[test]
fn the_lifecycle_goes_its_ways_and_no_others() {
    let device = cpu();
    let double = device.launch(Double, LaunchOptions::default().inactive()).unwrap();
    assert_eq!(double.status(), Status::Launched);
    double.send(Number { value: 1 }).unwrap();
    assert_eq!(double.pause().unwrap_err(), Error::NotFrom { from: Status::Launched, to: Status::Paused });
    thread::sleep(Duration::from_millis(20));
    assert_eq!(double.telemetry().handled, 0, "it was not activated");

    double.activate().unwrap();
    double.activate().unwrap();
    assert_eq!(double.status(), Status::Active);
    assert_eq!(double.receive(soon()).unwrap().value, 2);

    double.pause().unwrap();
    assert_eq!(double.status(), Status::Paused);
    double.send(Number { value: 2 }).unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!((double.telemetry().handled, double.telemetry().waiting), (1, (0, 1)));
    double.activate().unwrap();
    assert_eq!(double.receive(soon()).unwrap().value, 4);

    double.pause().unwrap();
    for value in 0..50 {
        double.send(Number { value }).unwrap();
    }
    double.drain().unwrap();
    double.wait_for(Status::Terminated, soon()).unwrap();
    assert_eq!(double.telemetry().handled, 52, "what was sent before the drain was handled");
    let refused = double.try_send(Number { value: 9 }).unwrap_err();
    assert_eq!((refused.message.value, refused.error), (9, Error::Ended(Status::Terminated)));
    assert_eq!(double.ask(Number { value: 9 }).unwrap_err(), Error::Ended(Status::Terminated));
    for value in 0..50 {
        assert_eq!(double.receive(soon()).unwrap().value, value * 2, "answers outlive their kernel");
    }
    assert_eq!(double.receive(soon()).unwrap_err(), Error::Ended(Status::Terminated));
    assert_eq!(double.activate().unwrap_err(), Error::NotFrom { from: Status::Terminated, to: Status::Active });
    double.terminate().unwrap();
}

#[test]
fn terminating_answers_those_who_wait() {
    let device = cpu();
    let counter = device.launch(Counter, LaunchOptions::default()).unwrap();
    thread::scope(|scope| {
        let slow = scope.spawn(|| counter.ask(Number { value: 1100 }));
        while !counter.telemetry().busy {
            thread::yield_now();
        }
        let behind = scope.spawn(|| counter.ask(Number { value: 1 }));
        while counter.telemetry().waiting.1 < 2 {
            thread::yield_now();
        }
        counter.terminate().unwrap();
        assert_eq!(slow.join().unwrap().unwrap().value, 1100, "the one that was being handled");
        assert_eq!(behind.join().unwrap().unwrap_err(), Error::Ended(Status::Terminated));
    });
}

#[test]
fn a_full_ring_gives_the_message_back_blocks_or_is_awaited() {
    let device = impatient(Duration::from_millis(50));
    let double = device.launch(Double, LaunchOptions::default().inbound(4).inactive()).unwrap();
    for value in 0..4 {
        double.try_send(Number { value }).unwrap();
    }
    let refused = double.try_send(Number { value: 4 }).unwrap_err();
    assert_eq!((refused.message.value, refused.error), (4, Error::Full { capacity: 4 }));
    double.try_send_with(Number { value: 50 }, Priority::High).unwrap();
    let late = double.send_deadline(Number { value: 5 }, Instant::now() + Duration::from_millis(10)).unwrap_err();
    assert_eq!((late.message.value, late.error), (5, Error::Deadline));
    let stalled = double.send(Number { value: 6 }).unwrap_err();
    assert_eq!(stalled.error, Error::Stalled { status: Status::Launched, waited: Duration::from_millis(50) });

    thread::scope(|scope| {
        let blocked = scope.spawn(|| double.send_deadline(Number { value: 7 }, soon()));
        let awaiting = scope.spawn(|| pollster::block_on(double.send_async(Number { value: 8 })));
        thread::sleep(Duration::from_millis(20));
        double.activate().unwrap();
        blocked.join().unwrap().unwrap();
        awaiting.join().unwrap().unwrap();
    });
    let mut received: Vec<_> = (0..7).map(|_| double.receive(soon()).unwrap().value / 2).collect();
    assert_eq!(received[0], 50, "the urgent one first");
    received[5..].sort_unstable();
    assert_eq!(received[1..], [0, 1, 2, 3, 7, 8]);
}

#[test]
fn a_message_can_be_built_where_it_lies() {
    let device = cpu();
    let double = device.launch(Double, LaunchOptions::default().inbound(4).inactive()).unwrap();
    for value in 0..3 {
        double.try_send_in_place(|number| number.value = value).unwrap();
    }
    let broken = || double.try_send_in_place(|_| panic!("on purpose"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(broken)).is_err());
    let full = double.try_send_in_place(|_| panic!("there is no slot to build it in"));
    assert_eq!(full, Err(Error::Full { capacity: 4 }));
    thread::scope(|scope| {
        scope.spawn(|| (3..1000).for_each(|value| double.send_in_place(|number| number.value = value).unwrap()));
        double.activate().unwrap();
        for value in 0..1000 {
            assert_eq!(double.receive(soon()).unwrap().value, value * 2, "the one that was not built is not there");
        }
    });
    double.terminate().unwrap();
    double.wait_for(Status::Terminated, soon()).unwrap();
    let ended = double.send_in_place(|_| panic!("nobody takes it"));
    assert_eq!(ended, Err(Error::Ended(Status::Terminated)));
}

#[test]
fn a_kernel_whose_answers_nobody_receives_waits_and_loses_nothing() {
    let device = impatient(Duration::from_millis(50));
    let double = device.launch(Double, LaunchOptions::default().inbound(8).outbound(2)).unwrap();
    let mut sent = 0;
    while double.send(Number { value: sent }).is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 10, "two in the outbound ring, eight in the inbound one");
    for value in 0..sent {
        assert_eq!(double.receive(soon()).unwrap().value, value * 2);
    }
    assert_eq!(double.ask(Number { value: 70 }).unwrap().value, 140);
}

#[test]
fn who_waits_hears_that_nobody_receives_the_answers() {
    let device = impatient(Duration::from_millis(50));
    let double = device.launch(Double, LaunchOptions::default().inbound(2).outbound(4)).unwrap();
    let error = (0..).find_map(|value| double.send(Number { value }).err()).unwrap().error;
    assert_eq!(error, Error::Unreceived { answers: 4, waited: Duration::from_millis(50) });
    assert_eq!(error.class(), millrace_core::Class::Retry);
    for value in 0..6 {
        assert_eq!(double.receive(soon()).unwrap().value, value * 2);
    }
    assert_eq!(double.ask(Number { value: 7 }).unwrap().value, 14);
}

#[test]
fn kernels_go_on_when_their_device_is_shut_down_and_none_are_launched() {
    let device = cpu();
    let double = device.launch(Double, LaunchOptions::default()).unwrap();
    device.shutdown(soon()).unwrap();
    assert_eq!(double.ask(Number { value: 7 }).unwrap().value, 14);
    assert!(device.launch(Double, LaunchOptions::default()).is_err());
    device.abort(soon()).unwrap();
    assert_eq!(double.ask(Number { value: 8 }).unwrap().value, 16);
    double.terminate().unwrap();
    assert_eq!(double.status(), Status::Terminated);
}

#[test]
fn waits_end_although_a_handler_hangs() {
    let device = impatient(Duration::from_millis(30));
    let counter = device.launch(Counter, LaunchOptions::default()).unwrap();
    let start = Instant::now();
    let late = counter.ask_deadline(Number { value: 1300 }, start + Duration::from_millis(20));
    assert_eq!(late, Err(Error::Deadline));
    assert!(matches!(counter.ask(Number { value: 1 }), Err(Error::Stalled { status: Status::Active, .. })));
    assert!(matches!(counter.pause(), Err(Error::Stalled { .. })));
    assert!(start.elapsed() < Duration::from_millis(250));
    // It was only slow; the answers that nobody waits for any more are in nobody's way.
    counter.wait_for(Status::Paused, soon()).unwrap();
    counter.activate().unwrap();
    assert_eq!(counter.ask_deadline(Number { value: 1 }, soon()).unwrap().value, 1302);
    assert!(counter.try_receive().is_none());
}

#[test]
fn tasks_can_do_everything_that_threads_can() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    let device = cpu();
    let double = device.launch(Double, LaunchOptions::default().inactive().inbound(2)).unwrap();
    pollster::block_on(is_send(async {
        double.send_async(Number { value: 1 }).await.unwrap();
        double.send_async(Number { value: 2 }).await.unwrap();
        let third = double.send_async(Number { value: 3 });
        futures_lite::future::zip(third, async { double.activate_async().await.unwrap() }).await.0.unwrap();
        for value in 1..4 {
            assert_eq!(double.receive_async().await.unwrap().value, value * 2);
        }
        let asks = (0..20).map(|value| double.ask_async(Number { value }));
        let mut answers = Vec::new();
        for ask in asks {
            answers.push(ask.await.unwrap().value);
        }
        assert_eq!(answers, (0..20).map(|value| value * 2).collect::<Vec<_>>());
        assert_eq!(double.checkpoint_async().await.unwrap().handled, 23);
        double.pause_async().await.unwrap();
        double.drain_async().await.unwrap();
        double.wait_for_async(Status::Terminated).await.unwrap();
    }));
}

#[test]
fn many_tasks_on_one_thread_each_get_their_answer() {
    let device = cpu();
    let double = device.launch(Double, LaunchOptions::default().inbound(4).outbound(4)).unwrap();
    let mut tasks: Vec<_> = (0..100).map(|value| Box::pin(double.ask_async(Number { value }))).collect();
    let mut answers = vec![None; tasks.len()];
    let all = std::future::poll_fn(|cx| {
        for (task, answer) in tasks.iter_mut().zip(&mut answers) {
            if answer.is_none()
                && let std::task::Poll::Ready(result) = task.as_mut().poll(cx)
            {
                *answer = Some(result.unwrap().value);
            }
        }
        if answers.iter().all(Option::is_some) { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    });
    pollster::block_on(all);
    assert_eq!(answers, (0..100).map(|value| Some(value * 2)).collect::<Vec<_>>());
}

/// Remembers the order of what it was sent.
#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Order {
    count: u32,
    seen: [u32; 63],
}

struct Recorder;

impl Handler for Recorder {
    type Message = Number;
    type Reply = ();
    type State = Order;

    fn state(&self) -> Order {
        Order { count: 0, seen: [0; 63] }
    }

    fn handle(&mut self, order: &mut Order, number: &Number, scope: &mut Scope<'_, ()>) {
        assert_eq!(scope.priority() == Priority::High, number.value >= 100);
        order.seen[order.count as usize] = number.value;
        order.count += 1;
    }
}

#[test]
fn urgent_messages_overtake_and_starve_nobody() {
    let device = cpu();
    let recorder = device.launch(Recorder, LaunchOptions::default().inactive()).unwrap();
    for value in 0..5 {
        recorder.send(Number { value }).unwrap();
    }
    for value in 100..120 {
        recorder.send_with(Number { value }, Priority::High).unwrap();
    }
    recorder.activate().unwrap();
    recorder.drain().unwrap();
    recorder.wait_for(Status::Terminated, soon()).unwrap_or_else(|error| panic!("{error}"));
    assert!(recorder.checkpoint().is_err(), "it has ended");

    let again = device.launch(Recorder, LaunchOptions::default().inactive()).unwrap();
    for value in 0..5 {
        again.send(Number { value }).unwrap();
    }
    for value in 100..120 {
        again.send_with(Number { value }, Priority::High).unwrap();
    }
    again.activate().unwrap();
    while again.telemetry().handled < 25 {
        thread::yield_now();
    }
    let order = again.checkpoint().unwrap().state;
    let (eight, next, rest) = (100..108, 108..116, 116..120);
    let expected: Vec<u32> = eight.chain(0..1).chain(next).chain(1..2).chain(rest).chain(2..5).collect();
    assert_eq!(order.seen[..25], expected);
}

#[test]
fn empty_messages_travel_too() {
    static CALLS: AtomicU32 = AtomicU32::new(0);
    struct Tick;
    impl Handler for Tick {
        type Message = ();
        type Reply = ();
        type State = ();
        fn state(&self) {}
        fn handle(&mut self, _: &mut (), _: &(), _: &mut Scope<'_, ()>) {
            CALLS.fetch_add(1, Ordering::Relaxed);
        }
    }
    let tick = cpu().launch(Tick, LaunchOptions::default()).unwrap();
    for _ in 0..500 {
        tick.send(()).unwrap(); // nobody receives, and nothing fills up
    }
    tick.ask(()).unwrap();
    assert_eq!((CALLS.load(Ordering::Relaxed), tick.telemetry().sent), (501, 1));
}

#[test]
fn a_dropped_handle_ends_its_kernel() {
    struct Noisy(std::sync::mpsc::Sender<()>);
    impl Drop for Noisy {
        fn drop(&mut self) {
            self.0.send(()).unwrap();
        }
    }
    impl Handler for Noisy {
        type Message = ();
        type Reply = ();
        type State = ();
        fn state(&self) {}
        fn handle(&mut self, _: &mut (), _: &(), _: &mut Scope<'_, ()>) {}
    }
    let device = cpu();
    for options in [LaunchOptions::default(), LaunchOptions::default().priority(Priority::Low)] {
        let (sender, dropped) = std::sync::mpsc::channel();
        let kernel = device.launch(Noisy(sender), options).unwrap();
        kernel.ask(()).unwrap();
        drop(kernel);
        dropped.recv_timeout(Duration::from_secs(10)).unwrap();
    }
}

#[test]
fn every_way_to_wait_and_every_priority_answers() {
    let device = cpu();
    for wait in [WaitPolicy::Adaptive, WaitPolicy::Spin, WaitPolicy::Sleep] {
        for priority in [Priority::High, Priority::Normal, Priority::Low] {
            let options = LaunchOptions::default().wait(wait).priority(priority);
            let launched = device.launch(Double, options);
            if (wait, priority) == (WaitPolicy::Spin, Priority::Low) {
                assert!(matches!(launched, Err(Error::Unsupported { .. })));
                continue;
            }
            let double = launched.unwrap();
            for value in 0..20 {
                assert_eq!(double.ask(Number { value }).unwrap().value, value * 2);
                if value % 10 == 0 {
                    thread::sleep(Duration::from_millis(2));
                }
            }
            let rested = double.telemetry().rests > 0;
            assert_eq!(rested, wait != WaitPolicy::Spin, "{wait:?} {priority:?}");
        }
    }
}

#[test]
fn options_that_make_no_sense_are_errors() {
    let device = cpu();
    let refuse = |options: LaunchOptions| device.launch(Double, options).unwrap_err();
    let options = LaunchOptions::default;
    assert!(matches!(refuse(options().grid([2, 1])), Error::Unsupported { what: "a grid", .. }));
    assert!(matches!(refuse(options().block(64)), Error::Unsupported { what: "a block", .. }));
    assert!(matches!(refuse(options().block(0)), Error::Invalid(_)));
    assert!(matches!(refuse(options().inbound(0)), Error::Invalid(_)));
    assert!(matches!(refuse(options().outbound(usize::MAX)), Error::Invalid(_)));
    assert!(matches!(refuse(options().payload(usize::MAX)), Error::Invalid(_)));
    assert!(matches!(refuse(options().checkpoint_every(0)), Error::Invalid(_)));
    assert!(matches!(refuse(options().restore(&Number { value: 1 })), Error::WrongType { .. }));
    device.shutdown(soon()).unwrap();
    assert!(matches!(refuse(options()), Error::Device(millrace_core::Error::Closed)));
}

#[test]
fn a_buffer_travels_without_being_copied() {
    struct Sum;
    impl Handler for Sum {
        type Message = ();
        type Reply = Number;
        type State = ();
        fn state(&self) {}
        fn handle(&mut self, _: &mut (), _: &(), scope: &mut Scope<'_, Number>) -> Number {
            let bytes = scope.payload().unwrap_or_default();
            ADDRESS.store(bytes.as_ptr() as usize, Ordering::Relaxed);
            Number { value: bytes.iter().map(|byte| u32::from(*byte)).sum() }
        }
    }
    static ADDRESS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let device = cpu();
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(1 << 20).unwrap());
    stream.run(buffer.fill(.., 1)).unwrap();
    let sum = device.launch(Sum, LaunchOptions::default()).unwrap();
    assert_eq!(sum.ask_buffer((), &buffer).unwrap().value, 1 << 20);
    let address = stream.run(buffer.read(..)).unwrap().as_ptr() as usize;
    assert_eq!(ADDRESS.load(Ordering::Relaxed), address);
    // What is written afterwards is not what was sent.
    sum.pause().unwrap();
    sum.send_buffer((), &buffer).unwrap();
    stream.run(buffer.fill(.., 2)).unwrap();
    drop(buffer);
    sum.activate().unwrap();
    assert_eq!(sum.receive(soon()).unwrap().value, 1 << 20);
    assert_eq!(sum.ask(()).unwrap().value, 0);
}
