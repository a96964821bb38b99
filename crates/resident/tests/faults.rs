//! Panics, restarts, checkpoints, and bytes that are not what they should be.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
};

use millrace_resident::{
    Archive, ArchivedHandler, Error, Launch, LaunchOptions, Message, Resident, RestartPolicy, Scope, Status, layout,
    layout::{HEADER, slot},
    rkyv,
};
use proptest::prelude::*;
use support::{Counter, Double, Number, cpu, soon};

#[test]
fn a_panic_reaches_the_asker_and_ends_the_kernel() {
    let device = cpu();
    let (counter, other) = (
        device.launch(Counter, LaunchOptions::default()).unwrap(),
        device.launch(Counter, LaunchOptions::default()).unwrap(),
    );
    assert_eq!(counter.ask(Number { value: 4 }).unwrap().value, 4);
    let Err(Error::Panicked(text)) = counter.ask(Number { value: 13 }) else { panic!("it should have panicked") };
    assert!(text.contains("thirteen is not a number"), "{text}");
    assert!(matches!(counter.wait_for(Status::Terminated, soon()), Err(Error::Failed(_))));
    assert_eq!(counter.status(), Status::Failed);
    assert!(matches!(counter.ask(Number { value: 1 }), Err(Error::Failed(text)) if text.contains("thirteen")));
    assert!(matches!(counter.try_send(Number { value: 1 }).unwrap_err().error, Error::Failed(_)));
    assert!(matches!(counter.checkpoint(), Err(Error::Failed(_))));
    assert_eq!((counter.telemetry().handled, counter.telemetry().failed), (1, 1));
    assert_eq!(other.ask(Number { value: 5 }).unwrap().value, 5, "the other did not notice");
}

#[test]
fn those_behind_a_panic_are_told() {
    let device = cpu();
    let counter = device.launch(Counter, LaunchOptions::default().inactive()).unwrap();
    thread::scope(|scope| {
        counter.send(Number { value: 13 }).unwrap();
        let behind = scope.spawn(|| counter.ask(Number { value: 1 }));
        while counter.telemetry().waiting.1 < 2 {
            thread::yield_now();
        }
        counter.activate().unwrap();
        assert!(matches!(behind.join().unwrap(), Err(Error::Failed(_))));
    });
    assert!(matches!(counter.receive(soon()), Err(Error::Panicked(_))), "the one that was sent");
}

#[test]
fn a_restart_goes_on_with_the_last_checkpoint() {
    let device = cpu();
    let options = LaunchOptions::default().restart(RestartPolicy::UpTo(2));
    let counter = device.launch(Counter, options).unwrap();
    let ask = |value| counter.ask(Number { value });
    assert_eq!(ask(7).unwrap().value, 7);
    assert!(matches!(ask(13), Err(Error::Panicked(_))));
    assert_eq!(ask(1).unwrap().value, 1, "back to the start");
    assert_eq!(counter.checkpoint().unwrap().state.value, 1);
    assert_eq!(ask(5).unwrap().value, 6);
    assert!(matches!(ask(13), Err(Error::Panicked(_))));
    assert_eq!(ask(2).unwrap().value, 3, "back to the checkpoint");
    assert_eq!((counter.telemetry().restarts, counter.status()), (2, Status::Active));
    assert!(matches!(ask(13), Err(Error::Panicked(_))));
    assert!(matches!(ask(2), Err(Error::Failed(_))), "two restarts were allowed");
    let last = counter.last_checkpoint().unwrap().unwrap();
    let options = LaunchOptions::default().restore(&last.state);
    assert_eq!(device.launch(Counter, options).unwrap().ask(Number { value: 1 }).unwrap().value, 2);
}

#[test]
fn checkpoints_are_made_at_an_interval_and_while_paused() {
    let device = cpu();
    let options = LaunchOptions::default().checkpoint_every(10).restart(RestartPolicy::UpTo(1));
    let counter = device.launch(Counter, options).unwrap();
    for _ in 0..25 {
        counter.ask(Number { value: 1 }).unwrap();
    }
    assert_eq!(counter.telemetry().checkpoints, 2);
    assert!(counter.ask(Number { value: 13 }).is_err());
    assert_eq!(counter.ask(Number { value: 1 }).unwrap().value, 21);
    counter.pause().unwrap();
    counter.send(Number { value: 1 }).unwrap();
    let checkpoint = counter.checkpoint().unwrap();
    assert_eq!((checkpoint.state.value, checkpoint.handled), (21, 26));
}

struct Sum;

impl ArchivedHandler for Sum {
    type Message = Vec<f32>;
    type Reply = (f32, String);
    type State = Number;

    fn state(&self) -> Number {
        Number { value: 0 }
    }

    fn handle(
        &mut self,
        state: &mut Number,
        list: &rkyv::vec::ArchivedVec<rkyv::rend::f32_le>,
        _: &mut Scope<'_, (f32, String)>,
    ) -> (f32, String) {
        state.value += 1;
        assert!(list.len() != 13, "thirteen is not a length");
        let sum = list.iter().map(|x| x.to_native()).sum();
        (sum, "x".repeat(list.len()))
    }
}

#[test]
fn archives_of_any_size_are_answered() {
    let device = cpu();
    for payload in [0, 64, 16_384] {
        let sum = device.launch_archived(Sum, LaunchOptions::default().payload(payload)).unwrap();
        for length in [0, 1, 5, 100, 1000, 3000] {
            let list = vec![1.0; length];
            let answer = sum.ask(&list).unwrap();
            assert_eq!((answer.0.to_native(), answer.1.len()), (length as f32, length));
            sum.send(&list).unwrap();
            assert_eq!(sum.receive(soon()).unwrap().1.len(), length);
            assert_eq!(pollster::block_on(sum.ask_async(&list)).unwrap().1.len(), length);
        }
        assert!(matches!(sum.ask(&vec![0.0; 13]), Err(Error::Panicked(_))));
        assert!(matches!(sum.try_send(&vec![]), Err(Error::Failed(_))));
    }
}

/// Overwrites words of a slot that a paused kernel has not read yet.
fn overwrite(words: *mut u32, at: usize, changes: &[(usize, u32)]) {
    for (word, value) in changes {
        // SAFETY: the word is in the region, which is reached with atomics only.
        unsafe { AtomicU32::from_ptr(words.add(at + word)) }.store(*value, Ordering::Relaxed);
    }
}

#[test]
fn a_time_that_cannot_be_is_not_believed() {
    let (double, words) = (plain(), layout::slot::CLOCK);
    (0..3).for_each(|value| double.send(Number { value }).unwrap());
    let first = double.region_layout().normal_first();
    let changes = [(words, u32::MAX), (words + 1, u32::MAX)];
    overwrite(double.region().as_ptr(), first + double.region_layout().in_stride, &changes);
    double.activate().unwrap();
    for value in 0..3 {
        assert_eq!(double.receive(soon()).unwrap().value, value * 2);
    }
    assert_eq!(double.ask(Number { value: 7 }).unwrap().value, 14);
    let year_2103 = std::time::Duration::from_secs(133 * 365 * 24 * 60 * 60);
    assert!(double.telemetry().clock.since_epoch() < year_2103);
}

fn changes() -> impl Strategy<Value = Vec<(usize, u32)>> {
    // Everything but the sequence, which decides whose turn it is.
    prop::collection::vec((1usize..16, prop_oneof![any::<u32>(), 0u32..64]), 1..8)
}

fn plain() -> Resident<Double> {
    cpu().launch(Double, LaunchOptions::default().inactive().inbound(8)).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_kernel_survives_whatever_is_in_its_slots(damage in prop::collection::vec(changes(), 1..8)) {
        let double = plain();
        for value in 0..damage.len() as u32 {
            double.send(Number { value }).unwrap();
        }
        let layout = double.region_layout();
        for (n, changes) in damage.iter().enumerate() {
            overwrite(double.region().as_ptr(), layout.normal_first() + n * layout.in_stride, changes);
        }
        double.activate().unwrap();
        prop_assert_eq!(double.ask_deadline(Number { value: 4 }, soon()).map(|n| n.value), Ok(8));
        let telemetry = double.telemetry();
        prop_assert!(telemetry.handled + telemetry.failed <= damage.len() as u64 + 1);
        prop_assert_eq!(telemetry.status, Status::Active);
    }

    #[test]
    fn a_kernel_of_archives_survives_whatever_is_in_its_slots(
        damage in changes(),
        length in 0usize..20,
        cut in any::<u32>(),
    ) {
        let options = LaunchOptions::default().inactive().payload(512).restart(RestartPolicy::UpTo(1));
        let sum = cpu().launch_archived(Sum, options).unwrap();
        sum.send(&vec![1.0; length]).unwrap();
        let layout = sum.region_layout();
        let at = layout.normal_first();
        overwrite(sum.region().as_ptr(), at, &damage);
        overwrite(sum.region().as_ptr(), at, &[(slot::LENGTH, cut % 600)]);
        sum.activate().unwrap();
        prop_assert_eq!(sum.ask_deadline(&vec![2.0; 2], soon()).map(|a| a.0.to_native()), Ok(4.0));
    }

    #[test]
    fn the_host_survives_whatever_a_kernel_writes(
        header in prop::collection::vec(any::<u32>(), HEADER / 4 - 1),
        payload in prop::collection::vec(any::<u32>(), 4),
        known in any::<bool>(),
    ) {
        let double = plain();
        let layout = double.region_layout();
        let mut words: Vec<_> = (1..).zip(header.into_iter().chain(payload)).collect();
        if known {
            // Close to right: the type fits, the answer is for whoever receives, and is no failure.
            words[slot::TYPE - 1].1 = Number::TYPE;
            words[slot::LENGTH - 1].1 %= 8;
            words[slot::FLAGS - 1].1 = 1;
            words[slot::CORRELATION - 1].1 = 0;
            words[slot::CORRELATION].1 = 0;
        }
        words.push((slot::SEQUENCE, 1)); // position zero is filled
        overwrite(double.region().as_ptr(), layout.out_first(), &words);
        let received = double.try_receive();
        if known {
            let length = words[slot::LENGTH - 1].1;
            prop_assert_eq!(received.map(|r| r.is_ok()), Some(length == 4));
        }
    }

    #[test]
    fn bytes_become_messages_only_if_they_are(bytes in prop::collection::vec(any::<u8>(), 0..256)) {
        prop_assert_eq!(Number::read_from(&bytes).is_ok(), bytes.len() == 4);
        let _ = Archive::<Vec<String>>::from_bytes(&bytes).map(|list| list.iter().map(|s| s.len()).sum::<usize>());
        let _ = Archive::<(f32, String)>::from_bytes(&bytes).map(|pair| pair.1.len());
    }

    #[test]
    fn archives_with_changed_bytes_are_read_or_refused(
        list in prop::collection::vec(".{0,12}", 0..8),
        at in any::<prop::sample::Index>(),
        to in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let archive = Archive::new(&list).unwrap();
        let mut bytes = archive.bytes().to_vec();
        prop_assert_eq!(Archive::<Vec<String>>::from_bytes(&bytes).unwrap().len(), list.len());
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = to;
            let _ = Archive::<Vec<String>>::from_bytes(&bytes).map(|l| l.iter().map(|s| s.chars().count()).sum::<usize>());
            bytes.truncate(cut.index(bytes.len()));
            let _ = Archive::<Vec<String>>::from_bytes(&bytes).map(|l| l.iter().map(|s| s.chars().count()).sum::<usize>());
        }
    }
}

#[test]
fn misaligned_bytes_are_an_error() {
    #[derive(Clone, Copy, Message)]
    #[repr(C)]
    struct Wide {
        value: u64,
    }
    let words = [0u64; 4];
    let bytes = Wide { value: words[0] };
    assert!(Wide::from_bytes(bytes.as_bytes()).is_ok());
    // SAFETY: the bytes of an array of numbers.
    let raw = unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<u8>(), 32) };
    assert!(matches!(Wide::from_bytes(&raw[4..12]).map(|w| w.value), Err(Error::Misaligned { align: 8 })));
    assert!(Wide::read_from(&raw[4..12]).is_ok());
}
