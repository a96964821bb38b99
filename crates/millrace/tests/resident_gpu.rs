//! Resident kernels on the GPU device: what `resident`'s own tests say of the CPU, and what only a GPU can get wrong.
//! Where there is no adapter these tests have nothing to say.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

use millrace::{
    Shape, Sharing,
    prelude::*,
    resident::{ArchivedHandler, Delivery, Error, Mode, Residency, RestartPolicy, Status, WaitPolicy, layout, rkyv},
};
use support::{
    resident::{Double, Looper, Number, ends_loops, gpu, ways},
    soon,
};

/// Adds up what it is sent, and answers with the sum.
struct Sum;

impl Handler for Sum {
    type Message = Number;
    type Reply = Number;
    type State = Number;
    const WGSL: Option<&'static str> = Some(
        "
        (*state).value += message.value;
        return Number((*state).value);
        ",
    );
    fn state(&self) -> Number {
        Number { value: 100 }
    }
    fn handle(&mut self, state: &mut Number, message: &Number, _: &mut Scope<'_, Number>) -> Number {
        state.value = state.value.wrapping_add(message.value);
        *state
    }
}

fn is_software(device: &Device) -> bool {
    device.info().details.iter().any(|(name, value)| name == "type" && value == "software")
}

#[test]
fn a_kernel_answers_and_remembers() {
    let Some(device) = gpu() else { return };
    for options in ways() {
        let sum = device.launch(Sum, options).unwrap();
        let mut expected = 100;
        for value in 1..=100 {
            expected += value;
            assert_eq!(sum.ask(Number { value }).unwrap().value, expected);
        }
        sum.send(Number { value: 5 }).unwrap();
        assert_eq!(sum.receive(soon()).unwrap().value, expected + 5);
        assert_eq!(pollster::block_on(sum.ask_async(Number { value: 1 })).unwrap().value, expected + 6);
        sum.send_in_place(|number| number.value = 4).unwrap();
        assert_eq!(sum.receive(soon()).unwrap().value, expected + 10);
        let telemetry = sum.telemetry();
        assert_eq!((telemetry.handled, telemetry.sent, telemetry.failed), (103, 103, 0));
        assert!(telemetry.clock.since_epoch() > Duration::from_secs(1_700_000_000));
    }
}

#[test]
fn which_residency_is_in_use_can_be_asked() {
    let Some(device) = gpu() else { return };
    let sum = device.launch(Sum, LaunchOptions::default()).unwrap();
    if is_software(&device) {
        assert_eq!(sum.residency().mode, Mode::Leases, "{}", sum.residency());
    }
    let batched = device.launch(Sum, LaunchOptions::default().residency(Residency::Batched)).unwrap();
    assert_eq!((batched.residency().mode, &*batched.residency().why), (Mode::Batched, "it was asked for"));
    let cpu = millrace::runtime().open("cpu").unwrap();
    assert_eq!(cpu.launch(Sum, LaunchOptions::default()).unwrap().residency().mode, Mode::Threads);
}

#[test]
fn a_hundred_thousand_messages_keep_their_order() {
    let Some(device) = gpu() else { return };
    let sum = device.launch(Sum, LaunchOptions::default().inbound(1024).outbound(256)).unwrap();
    const MESSAGES: u32 = 100_000;
    thread::scope(|scope| {
        scope.spawn(|| (0..MESSAGES).for_each(|value| sum.send(Number { value }).unwrap()));
        let mut expected = 100u32;
        for value in 0..MESSAGES {
            expected = expected.wrapping_add(value);
            assert_eq!(sum.receive(soon()).unwrap().value, expected, "message {value}");
        }
    });
    assert_eq!(sum.telemetry().handled, u64::from(MESSAGES));
}

#[test]
fn every_one_of_many_askers_gets_its_own_answer() {
    let Some(device) = gpu() else { return };
    for (options, rounds) in ways().into_iter().zip([1000, 50]) {
        let double = device.launch(Double, options.inbound(4).outbound(4)).unwrap();
        thread::scope(|scope| {
            for asker in 0..4u32 {
                let double = &double;
                scope.spawn(move || {
                    for n in 0..rounds {
                        let value = asker * 10_000 + n;
                        assert_eq!(double.ask(Number { value }).unwrap().value, value * 2);
                    }
                });
            }
        });
        assert_eq!(double.telemetry().handled, 4 * u64::from(rounds));
    }
}

#[test]
fn the_lifecycle_goes_its_ways_and_no_others() {
    let Some(device) = gpu() else { return };
    for options in ways() {
        let double = device.launch(Double, options.inactive()).unwrap();
        assert_eq!(double.status(), Status::Launched);
        double.send(Number { value: 1 }).unwrap();
        assert_eq!(double.pause().unwrap_err(), Error::NotFrom { from: Status::Launched, to: Status::Paused });
        thread::sleep(Duration::from_millis(50));
        assert_eq!(double.telemetry().handled, 0, "it was not activated");

        double.activate().unwrap();
        assert_eq!(double.status(), Status::Active);
        assert_eq!(double.receive(soon()).unwrap().value, 2);

        double.pause().unwrap();
        assert_eq!(double.status(), Status::Paused);
        double.send(Number { value: 2 }).unwrap();
        thread::sleep(Duration::from_millis(50));
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
        for value in 0..50 {
            assert_eq!(double.receive(soon()).unwrap().value, value * 2, "answers outlive their kernel");
        }
        assert_eq!(double.receive(soon()).unwrap_err(), Error::Ended(Status::Terminated));
    }
}

#[test]
fn terminating_answers_those_who_wait() {
    let Some(device) = gpu() else { return };
    for options in ways() {
        let double = device.launch(Double, options.inactive()).unwrap();
        thread::scope(|scope| {
            let asker = scope.spawn(|| double.ask(Number { value: 1 }));
            while double.telemetry().waiting.1 == 0 {
                thread::yield_now();
            }
            let start = Instant::now();
            double.terminate().unwrap();
            assert_eq!(asker.join().unwrap().unwrap_err(), Error::Ended(Status::Terminated));
            assert!(start.elapsed() < Duration::from_secs(2));
        });
    }
}

#[test]
fn urgent_messages_overtake_and_the_others_do_not_starve() {
    let Some(device) = gpu() else { return };
    for options in ways() {
        let double = device.launch(Double, options.inactive()).unwrap();
        (0..20).for_each(|value| double.send(Number { value }).unwrap());
        (100..120).for_each(|value| double.send_with(Number { value }, Priority::High).unwrap());
        double.activate().unwrap();
        let order: Vec<u32> = (0..40).map(|_| double.receive(soon()).unwrap().value / 2).collect();
        let mut expected: Vec<u32> = (100..108).chain([0]).chain(108..116).chain([1]).chain(116..120).collect();
        expected.extend(2..20);
        assert_eq!(order, expected);
    }
}

#[test]
fn linked_kernels_talk_without_the_host() {
    let Some(device) = gpu() else { return };
    for (options, rounds) in ways().into_iter().zip([5000, 300]) {
        let first = device.launch(Double, options.clone().inbound(4)).unwrap();
        let second = device.launch(Double, options.clone().inbound(8)).unwrap();
        let last = device.launch(Sum, options.inbound(4)).unwrap();
        first.link(&second);
        let linked = second.link(&last);
        thread::scope(|scope| {
            scope.spawn(|| (0..rounds).for_each(|value| first.send(Number { value }).unwrap()));
            let mut expected = 100u32;
            for value in 0..rounds {
                expected += value * 4;
                assert_eq!(last.receive(soon()).unwrap().value, expected);
            }
        });
        assert_eq!((first.telemetry().dropped, linked.dropped()), (0, 0));
        assert_eq!(first.ask(Number { value: 4 }).unwrap().value, 8, "who asks gets the answer all the same");
        linked.cut();
        first.send(Number { value: 5 }).unwrap();
        assert_eq!(second.receive(soon()).unwrap().value, 20);
    }
}

#[test]
fn a_lossy_link_counts_what_it_drops() {
    let Some(device) = gpu() else { return };
    for options in ways() {
        let fast = device.launch(Double, options.clone()).unwrap();
        let slow = device.launch(Sum, options.inbound(4).inactive()).unwrap();
        let linked = fast.link_with(&slow, Delivery::Lossy);
        (0..20).for_each(|value| fast.send(Number { value }).unwrap());
        fast.drain().unwrap();
        fast.wait_for(Status::Terminated, soon()).unwrap();
        assert_eq!(fast.telemetry().dropped, 16);
        let deadline = soon();
        while linked.dropped() < 16 && Instant::now() < deadline {
            thread::yield_now(); // the host counts a moment later
        }
        assert_eq!(linked.dropped(), 16);
        slow.activate().unwrap();
        let received: Vec<u32> = (0..4).map(|_| slow.receive(soon()).unwrap().value).collect();
        assert_eq!(received, [100, 102, 106, 112]);
    }
}

#[test]
fn links_lead_to_other_devices_and_back() {
    let Some(device) = gpu() else { return };
    let cpu = millrace::runtime().open("cpu").unwrap();
    for (options, rounds) in ways().into_iter().zip([2000, 200]) {
        let first = device.launch(Double, options.clone().outbound(8)).unwrap();
        let second = cpu.launch(Double, LaunchOptions::default().inbound(4)).unwrap();
        let last = device.launch(Sum, options.inbound(4)).unwrap();
        first.link(&second);
        second.link(&last);
        thread::scope(|scope| {
            scope.spawn(|| (0..rounds).for_each(|value| first.send(Number { value }).unwrap()));
            let mut expected = 100u32;
            for value in 0..rounds {
                expected += value * 4;
                assert_eq!(last.receive(soon()).unwrap().value, expected);
            }
        });
    }
}

#[test]
fn state_and_unread_messages_survive_from_lease_to_lease() {
    let Some(device) = gpu() else { return };
    for wait in [WaitPolicy::Spin, WaitPolicy::Adaptive, WaitPolicy::Sleep] {
        let sum = device.launch(Sum, LaunchOptions::default().wait(wait)).unwrap();
        for round in 0..5 {
            assert_eq!(sum.ask(Number { value: 1 }).unwrap().value, 101 + 2 * round);
            sum.pause().unwrap();
            sum.send(Number { value: 1 }).unwrap();
            thread::sleep(Duration::from_millis(100));
            sum.activate().unwrap();
            assert_eq!(sum.receive(soon()).unwrap().value, 102 + 2 * round);
        }
        assert_eq!(sum.telemetry().rests > 0, wait != WaitPolicy::Spin);
    }
}

#[test]
fn tensors_are_computed_while_a_kernel_is_resident() {
    let Some(device) = gpu() else { return };
    let sum = device.launch(Sum, LaunchOptions::default().wait(WaitPolicy::Spin)).unwrap();
    sum.ask(Number { value: 0 }).unwrap();
    let tensors = Tensors::on(&device).unwrap();
    let start = Instant::now();
    for round in 0..10u32 {
        let values: Vec<f32> = (0..1000).map(|i| i as f32 - 500.0).collect();
        let positive = tensors.from_slice(&values, &[1000]).unwrap().relu().unwrap().to_vec::<f32>().unwrap();
        assert_eq!(positive.iter().filter(|&&value| value > 0.0).count(), 499);
        assert_eq!(sum.ask(Number { value: 1 }).unwrap().value, 101 + round);
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[derive(Clone, Copy, Debug, PartialEq, Message)]
#[repr(C)]
struct Point {
    at: [i32; 3],
    weight: f32,
}

#[derive(Clone, Copy, Debug, PartialEq, Message)]
#[repr(C)]
struct Cloud {
    wide: u64,
    points: [Point; 2],
    grid: [[f32; 3]; 2],
    long: [u32; 50],
    count: u32,
    last: u32,
}

/// Moves everything by one, and sums up.
struct Mover;

impl Handler for Mover {
    type Message = Cloud;
    type Reply = Cloud;
    type State = Cloud;
    const WGSL: Option<&'static str> = Some(
        "
        var reply = message;
        reply.wide[0] += 1u; /* a comment with for ( { in it */
        for (var i = 0u; i < 2u; i++) {
            for (var j = 0u; j < 3u; j++) { // and { another
                reply.points[i].at[j] -= 1;
                reply.grid[i][j] *= 0.5;
            }
            reply.points[i].weight += 1.0;
        }
        var sum = 0u;
        var n = 0u;
        while n < 50u {
            sum += message.long[n];
            reply.long[n] += (*state).long[n];
            n++;
        }
        loop {
            if (n == 0u) { break; }
            n--;
            (*state).long[n] = message.long[n];
        }
        (*state).count += 1u;
        reply.count = (*state).count;
        reply.last = sum;
        return reply;
        ",
    );
    fn state(&self) -> Cloud {
        cloud(0)
    }
    fn handle(&mut self, state: &mut Cloud, message: &Cloud, _: &mut Scope<'_, Cloud>) -> Cloud {
        let mut reply = *message;
        reply.wide += 1;
        for i in 0..2 {
            reply.points[i].at.iter_mut().for_each(|at| *at -= 1);
            reply.grid[i].iter_mut().for_each(|value| *value *= 0.5);
            reply.points[i].weight += 1.0;
        }
        for n in 0..50 {
            reply.long[n] += state.long[n];
        }
        state.long = message.long;
        state.count += 1;
        reply.count = state.count;
        reply.last = message.long.iter().sum();
        reply
    }
}

fn cloud(seed: u32) -> Cloud {
    Cloud {
        wide: u64::from(seed) | 7 << 32,
        points: std::array::from_fn(|i| Point { at: [seed as i32, -2, i as i32], weight: seed as f32 / 4.0 }),
        grid: [[seed as f32; 3], [-1.5; 3]],
        long: std::array::from_fn(|i| i as u32 * seed),
        count: 3,
        last: 4,
    }
}

#[test]
fn all_devices_and_ways_give_the_same_answers() {
    let Some(device) = gpu() else { return };
    let cpu = millrace::runtime().open("cpu").unwrap();
    let reference = cpu.launch(Mover, LaunchOptions::default()).unwrap();
    let expected: Vec<Cloud> = (1..20).map(|seed| reference.ask(cloud(seed)).unwrap()).collect();
    let state = reference.checkpoint().unwrap();
    for options in ways() {
        let mover = device.launch(Mover, options.clone()).unwrap();
        let found: Vec<Cloud> = (1..20).map(|seed| mover.ask(cloud(seed)).unwrap()).collect();
        assert_eq!(found, expected);
        let checkpoint = mover.checkpoint().unwrap();
        assert_eq!((checkpoint.state, checkpoint.handled), (state.state, 19));
        let again = device.launch(Mover, options.restore(&checkpoint.state)).unwrap();
        assert_eq!(again.ask(cloud(1)).unwrap().count, checkpoint.state.count + 1);
    }
}

#[test]
fn checkpoints_are_made_at_an_interval_and_while_paused() {
    let Some(device) = gpu() else { return };
    for options in ways() {
        let sum = device.launch(Sum, options.checkpoint_every(10)).unwrap();
        assert!(sum.last_checkpoint().is_none());
        for _ in 0..25 {
            sum.ask(Number { value: 1 }).unwrap();
        }
        let last = sum.last_checkpoint().unwrap().unwrap();
        assert_eq!((last.state.value, last.handled, sum.telemetry().checkpoints), (120, 20, 2));
        sum.pause().unwrap();
        let now = sum.checkpoint().unwrap();
        assert_eq!((now.state.value, now.handled), (125, 25));
        assert!(now.clock > last.clock);
    }
}

mod other {
    use super::*;

    /// Another struct of the same name.
    #[derive(Clone, Copy, Debug, PartialEq, Message)]
    #[repr(C)]
    pub(super) struct Number {
        pub(super) value: f32,
        pub(super) more: f32,
    }

    pub(super) struct Half;

    impl Handler for Half {
        type Message = Number;
        type Reply = Number;
        type State = ();
        const WGSL: Option<&'static str> = Some("return Number(message.value / 2.0, message.more);");
        fn state(&self) {}
        fn handle(&mut self, _: &mut (), message: &Number, _: &mut Scope<'_, Number>) -> Number {
            Number { value: message.value / 2.0, more: message.more }
        }
    }
}

#[test]
fn handlers_may_use_one_name_for_different_things() {
    let Some(device) = gpu() else { return };
    let sum = device.launch(Sum, LaunchOptions::default()).unwrap();
    assert_eq!(sum.ask(Number { value: 1 }).unwrap().value, 101);
    let half = device.launch(other::Half, LaunchOptions::default()).unwrap();
    assert_eq!(half.ask(other::Number { value: 5.0, more: 1.0 }).unwrap().value, 2.5);
    assert_eq!(sum.ask(Number { value: 1 }).unwrap().value, 102, "the first went on in the new program");
}

#[test]
fn what_is_in_a_slot_is_checked() {
    let Some(device) = gpu() else { return };
    for options in ways() {
        let sum = device.launch(Sum, options.inactive()).unwrap();
        let (region, layout) = (sum.region(), sum.region_layout());
        (0..3).for_each(|value| sum.send(Number { value }).unwrap());
        for (message, field) in [(0, layout::slot::TYPE), (1, layout::slot::LENGTH)] {
            let at = layout.normal_first() + message * layout.in_stride + field;
            // SAFETY: the word is inside the region, and the kernel does not look before it is activated.
            unsafe { AtomicU32::from_ptr(region.as_ptr().add(at)) }.store(999, Ordering::Release);
        }
        sum.activate().unwrap();
        for text in ["type", "longer"] {
            let Err(Error::Corrupt(reason)) = sum.receive(soon()) else { panic!("it was not what it should be") };
            assert!(reason.contains(text), "{reason}");
        }
        assert_eq!(sum.receive(soon()).unwrap().value, 102);
        assert_eq!((sum.telemetry().handled, sum.telemetry().failed), (1, 2));
    }
}

#[test]
fn a_time_that_cannot_be_is_not_believed() {
    let Some(device) = gpu() else { return };
    for options in ways() {
        let sum = device.launch(Sum, options.inactive()).unwrap();
        sum.send(Number { value: 1 }).unwrap();
        let at = sum.region_layout().normal_first() + layout::slot::CLOCK;
        for word in [at, at + 1] {
            // SAFETY: the word is inside the region, and the kernel does not look before it is activated.
            unsafe { AtomicU32::from_ptr(sum.region().as_ptr().add(word)) }.store(u32::MAX, Ordering::Release);
        }
        sum.activate().unwrap();
        assert_eq!(sum.receive(soon()).unwrap().value, 101);
        assert_eq!(sum.ask(Number { value: 1 }).unwrap().value, 102);
        let since = sum.telemetry().clock.since_epoch().as_secs();
        assert!((1_700_000_000..4_000_000_000).contains(&since), "{since}");
    }
}

struct Broken;

impl Handler for Broken {
    type Message = Number;
    type Reply = Number;
    type State = ();
    const WGSL: Option<&'static str> = Some(
        "
        let twice = message.value * 2u;
        return Number(twyce);
        ",
    );
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), message: &Number, _: &mut Scope<'_, Number>) -> Number {
        *message
    }
}

struct NoWgsl;

impl Handler for NoWgsl {
    type Message = Number;
    type Reply = Number;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), message: &Number, _: &mut Scope<'_, Number>) -> Number {
        *message
    }
}

struct Archives;

impl ArchivedHandler for Archives {
    type Message = Vec<f32>;
    type Reply = f32;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), message: &rkyv::Archived<Vec<f32>>, _: &mut Scope<'_, f32>) -> f32 {
        message[0].to_native()
    }
}

#[test]
fn what_a_gpu_cannot_do_is_said_at_launch() {
    let Some(device) = gpu() else { return };
    let Err(Error::Device(millrace::Error::Compile { kernel, message })) =
        device.launch(Broken, LaunchOptions::default())
    else {
        panic!("it should not compile")
    };
    assert_eq!(&*kernel, "Broken");
    assert!(message.contains("twyce") && message.contains("Broken.wgsl:3:"), "{message}");
    let unsupported = |options: LaunchOptions| matches!(device.launch(Sum, options), Err(Error::Unsupported { .. }));
    assert!(unsupported(LaunchOptions::default().grid(2)));
    assert!(unsupported(LaunchOptions::default().block(64)));
    assert!(unsupported(LaunchOptions::default().restart(RestartPolicy::UpTo(1))));
    let missing = device.launch(NoWgsl, LaunchOptions::default()).unwrap_err();
    assert!(matches!(missing, Error::NoImplementation { why: "it has no WGSL", .. }), "{missing}");
    let archives = device.launch_archived(Archives, LaunchOptions::default()).unwrap_err();
    assert!(matches!(archives, Error::NoImplementation { .. }), "{archives}");
    let sum = device.launch(Sum, LaunchOptions::default()).unwrap();
    let refused = sum.send_buffer(Number { value: 1 }, &device.allocate(4).unwrap()).unwrap_err();
    assert!(matches!(refused.error, Error::Unsupported { .. }));
}

#[test]
fn kernels_that_leave_make_room_for_others() {
    let Some(device) = gpu() else { return };
    let launch = || device.launch(Double, LaunchOptions::default().inbound(16 << 10).outbound(2));
    let mut kernels = Vec::new();
    let error = loop {
        match launch() {
            Ok(kernel) => kernels.push(kernel),
            Err(error) => break error,
        }
        assert!(kernels.len() < 100);
    };
    let Error::NoRoom { requested, largest, all } = error else { panic!("{error}") };
    assert!(requested > largest && all == 16 << 20, "{error}");
    assert!(kernels.len() > 2);
    for (value, kernel) in kernels.iter().enumerate() {
        assert_eq!(kernel.ask(Number { value: value as u32 }).unwrap().value, value as u32 * 2);
    }
    drop(kernels.remove(1));
    let deadline = soon();
    let again = loop {
        match launch() {
            Ok(kernel) => break kernel,
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            Err(error) => panic!("{error}"),
        }
    };
    assert_eq!(again.ask(Number { value: 7 }).unwrap().value, 14);
    assert_eq!(kernels[1].ask(Number { value: 8 }).unwrap().value, 16);
}

#[test]
fn loops_make_all_their_turns_or_the_asker_is_told() {
    let Some(device) = gpu() else { return };
    let ends_loops = ends_loops(&device);
    for options in ways() {
        let looper = device.launch(Looper, options).unwrap();
        for value in [0, 1, 10_000, 20_000, 30_000, 5, 30_000] {
            assert_eq!(looper.ask(Number { value }).unwrap().value, value);
        }
        match looper.ask(Number { value: 100_000 }) {
            Ok(answer) => assert!(!ends_loops && answer.value == 100_000),
            Err(error) => assert!(ends_loops && error.to_string().contains("turns"), "{error}"),
        }
        assert_eq!(looper.ask(Number { value: 9 }).unwrap().value, 9);
        let expected = if ends_loops { 90_015 } else { 190_015 };
        assert_eq!(looper.checkpoint().unwrap().state.value, expected);
    }
}

#[test]
fn the_last_handle_ends_everything_soon() {
    let Some(device) = gpu() else { return };
    for options in ways() {
        let kernels: Vec<_> =
            (0..10).map(|_| device.launch(Sum, options.clone().wait(WaitPolicy::Spin)).unwrap()).collect();
        assert!(kernels.iter().all(|kernel| kernel.ask(Number { value: 1 }).unwrap().value == 101));
        let start = Instant::now();
        drop(kernels);
        assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
        let again = device.launch(Sum, options).unwrap();
        assert_eq!(again.ask(Number { value: 1 }).unwrap().value, 101);
    }
}

#[test]
fn what_a_lost_device_had_is_not_lost() {
    let Some(device) = gpu() else { return };
    for (round, options) in ways().into_iter().chain(ways()).enumerate() {
        let options = options.checkpoint_every(7).inbound(32).outbound(64);
        let lost = device.launch(Sum, options.clone()).unwrap();
        assert!(matches!(lost.recover(), Err(Error::NotFrom { from: Status::Active | Status::Launched, .. })));
        assert_eq!(lost.ask_with(Number { value: 1 }, Priority::High).unwrap().value, 101);
        let (mut answers, sent) = thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let sent = (0..).find(|&value| lost.send(Number { value }).is_err());
                sent.unwrap()
            });
            let receiver = scope.spawn(|| {
                let mut answers = Vec::new();
                loop {
                    match lost.receive(soon()) {
                        Ok(answer) => answers.push(answer.value),
                        Err(Error::Failed(reason)) => break (answers, reason),
                        Err(error) => panic!("{error}"),
                    }
                }
            });
            thread::sleep(Duration::from_millis(20 + 13 * round as u64));
            let gpu = device.backend().downcast::<millrace::gpu::Gpu>().unwrap();
            gpu.resident_wgpu().unwrap().destroy();
            let (answers, reason) = receiver.join().unwrap();
            assert!(reason.contains("lost"), "{reason}");
            (answers, sender.join().unwrap())
        });
        assert_eq!(lost.status(), Status::Failed);
        assert!(matches!(lost.ask(Number { value: 1 }), Err(Error::Failed(_))));

        let found = lost.recover().unwrap();
        drop(lost);
        while answers.len() < sent as usize {
            answers.push(found.receive(soon()).unwrap().value);
        }
        let mut expected = 101u32;
        for (value, answer) in answers.iter().enumerate() {
            expected = expected.wrapping_add(value as u32);
            assert_eq!(*answer, expected, "message {value} of {sent}");
        }
        assert_eq!(found.ask(Number { value: 3 }).unwrap().value, expected + 3, "every message once");
        assert!(found.try_receive().is_none(), "no answer twice");
        let tensors = Tensors::on(&device).unwrap();
        assert_eq!(tensors.from_slice(&[-1.0f32], &[1]).unwrap().relu().unwrap().to_vec::<f32>().unwrap(), [0.0]);
    }
    let plain = device.launch(Sum, LaunchOptions::default()).unwrap();
    assert!(matches!(plain.recover(), Err(Error::Unsupported { .. })), "it has no checkpoints");
}

/// Writes every word on one side and reads it by name on the other, both ways.
#[test]
fn host_and_device_mean_the_same_words() {
    let Some(device) = gpu() else { return };
    let Some(residence) = device.backend().residence(1024, Sharing::None) else { return };
    let residence = residence.unwrap();
    let Shape { threads, .. } = residence.shape();
    let rows = layout::table();
    let named = |block: &str| -> Vec<(String, usize)> {
        rows.iter().filter(|row| row.block == block).filter_map(|row| row.wgsl.clone()).collect()
    };
    let (control, telemetry, slot) = (named("ControlBlock"), named("Telemetry"), named("slot"));
    let all: Vec<&(String, usize)> = control.iter().chain(&telemetry).collect();
    // The device writes its words by name, and copies what the host wrote, by name as well, behind them.
    let mut body = String::new();
    for (n, (name, _)) in all.iter().enumerate() {
        body += &format!("atomicStore(&words[512u + {n}u], atomicLoad(&words[{name}]));\n");
        body += &format!("atomicStore(&words[{name}], {}u);\n", 1000 + n);
    }
    for (n, (name, _)) in slot.iter().enumerate() {
        body += &format!("atomicStore(&words[128u + {name}], {}u);\n", 2000 + n);
    }
    let source = format!(
        "{}@group(0) @binding(0) var<storage, read_write> words: array<atomic<u32>>;
        @compute @workgroup_size({threads})
        fn main(@builtin(local_invocation_index) lane: u32) {{ if (lane == 0u) {{ {body} }} }}",
        layout::wgsl()
    );
    let program = residence.compile(&source).unwrap();

    #[repr(C)]
    #[derive(Default)]
    struct Blocks {
        control: layout::ControlBlock,
        telemetry: layout::TelemetryBlock,
    }
    // Field by field, as a program of the host does it.
    fn fields(blocks: &Blocks) -> Vec<&AtomicU32> {
        let (c, t) = (&blocks.control, &blocks.telemetry);
        vec![
            &c.magic,
            &c.request,
            &c.command,
            &c.checkpoint_wanted,
            &c.drain_high,
            &c.drain_normal,
            &c.status,
            &c.acknowledged,
            &c.checkpoint_made,
            &c.fault,
            &c.high_head,
            &c.normal_head,
            &c.out_tail,
            &c.burst,
            &c.high_first,
            &c.normal_first,
            &c.out_first,
            &c.in_stride,
            &c.out_stride,
            &c.in_mask,
            &c.out_mask,
            &c.starvation_bound,
            &t.version,
            &t.busy,
            &t.handled[0],
            &t.failed[0],
            &t.sent[0],
            &t.clock[0],
            &t.dropped[0],
            &t.restarts,
            &t.checkpoints,
            &t.rests,
        ]
    }
    const WORDS: usize = size_of::<Blocks>() / 4;
    let blocks = Blocks::default();
    fields(&blocks).iter().enumerate().for_each(|(n, word)| word.store(500 + n as u32, Ordering::Relaxed));
    assert_eq!(fields(&blocks).len(), all.len(), "a field has no name in WGSL, or is missing here");
    let at = |blocks: &Blocks, i: usize| -> *mut u32 { (&raw const *blocks).cast_mut().cast::<u32>().wrapping_add(i) };
    let mut words = vec![0u32; 1024];
    for (i, word) in words.iter_mut().enumerate().take(WORDS) {
        // SAFETY: the blocks are made of so many atomics, and repr(C).
        *word = unsafe { AtomicU32::from_ptr(at(&blocks, i)) }.load(Ordering::Relaxed);
    }
    residence.exchange(&program, &mut words, Duration::from_secs(20)).unwrap();
    let back = Blocks::default();
    for (i, word) in words.iter().enumerate().take(WORDS) {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(at(&back, i)) }.store(*word, Ordering::Relaxed);
    }
    for (n, word) in fields(&back).iter().enumerate() {
        assert_eq!(words[512 + n], 500 + n as u32, "the device read {} elsewhere", all[n].0);
        assert_eq!(word.load(Ordering::Relaxed), 1000 + n as u32, "the device wrote {} elsewhere", all[n].0);
    }
    use layout::slot::*;
    let expected = [SEQUENCE, TYPE, LENGTH, FLAGS, ID, CORRELATION, CLOCK, BUFFER, GENERATION];
    assert_eq!(slot.len(), expected.len());
    for (n, word) in expected.into_iter().enumerate() {
        assert_eq!(words[128 + word], 2000 + n as u32, "{}", slot[n].0);
    }
}
