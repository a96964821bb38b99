//! Handlers with loops on a GPU whose driver ends loops early: each makes all its turns or its asker is told, once,
//! whatever else was done in the same lease. Where there is no adapter these tests have nothing to say.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use millrace::prelude::*;
use support::{
    resident::{Double, Looper, Number, ends_loops, gpu, ways},
    soon,
};

/// Adds one to a word of its memory, so many times, and answers with the word.
struct Tally;

impl Handler for Tally {
    type Message = Number;
    type Reply = Number;
    type State = ();
    const WGSL: Option<&'static str> = Some(
        "
        for (var i = 0u; i < message.value; i++) { store(0u, load(0u) + 1u); }
        return Number(load(0u));
        ",
    );
    fn state(&self) {}
    fn memory(&self) -> Vec<u32> {
        vec![0]
    }
    fn handle(&mut self, (): &mut (), message: &Number, scope: &mut Scope<'_, Number>) -> Number {
        scope.memory()[0] += message.value;
        Number { value: scope.memory()[0] }
    }
}

#[test]
fn a_message_that_comes_late_in_a_lease_changes_the_memory_once() {
    let Some(device) = gpu() else { return };
    for options in ways() {
        let tally = device.launch(Tally, options).unwrap();
        let mut expected = 0;
        for _ in 0..10 {
            // One after the other in a lease, so that what is left of it is too little for the long ones.
            let values = [3_000, 30_000, 1, 5_000, 30_000];
            values.iter().for_each(|&value| tally.send(Number { value }).unwrap());
            for value in values {
                expected += value;
                assert_eq!(tally.receive(soon()).unwrap().value, expected);
            }
            thread::sleep(Duration::from_micros(expected as u64 % 700)); // anywhere in a lease
            expected += 30_000;
            assert_eq!(tally.ask(Number { value: 30_000 }).unwrap().value, expected);
        }
    }
}

#[test]
fn a_kernel_that_stores_gets_its_turns_beside_one_that_is_busy() {
    let Some(device) = gpu() else { return };
    let double = device.launch(Double, LaunchOptions::default()).unwrap();
    let tally = device.launch(Tally, LaunchOptions::default()).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                assert_eq!(double.ask(Number { value: 4 }).unwrap().value, 8);
            }
        });
        let answers: Vec<_> = (0..20).map(|_| tally.ask_deadline(Number { value: 30_000 }, soon())).collect();
        done.store(true, Ordering::Relaxed);
        for (n, answer) in answers.into_iter().enumerate() {
            assert_eq!(answer.unwrap().value, 30_000 * (n as u32 + 1));
        }
    });
}

#[test]
fn a_message_that_is_too_long_has_stored_what_it_did_once() {
    let Some(device) = gpu() else { return };
    for options in ways() {
        let tally = device.launch(Tally, options).unwrap();
        tally.send(Number { value: 10 }).unwrap();
        let after = match tally.ask_deadline(Number { value: 100_000 }, soon()) {
            Ok(answer) => {
                assert!(!ends_loops(&device) && answer.value == 100_010);
                answer.value
            }
            Err(error) => {
                assert!(ends_loops(&device) && error.to_string().contains("turns"), "{error}");
                let after = tally.ask(Number { value: 0 }).unwrap().value;
                assert!(after > 10 && after < 66_000, "{after}");
                after
            }
        };
        assert_eq!(tally.ask(Number { value: 5 }).unwrap().value, after + 5);
    }
}

#[test]
fn a_message_that_is_too_long_fails_also_among_many_kernels() {
    let Some(device) = gpu() else { return };
    for options in ways() {
        let idle: Vec<_> = (0..50).map(|_| device.launch(Double, options.clone()).unwrap()).collect();
        let looper = device.launch(Looper, options).unwrap();
        let ask = |value| looper.ask_deadline(Number { value }, soon());
        for value in [10_000, 30_000, 30_000] {
            assert_eq!(ask(value).unwrap().value, value);
        }
        match ask(100_000) {
            Ok(answer) => assert!(!ends_loops(&device) && answer.value == 100_000),
            Err(error) => assert!(ends_loops(&device) && error.to_string().contains("turns"), "{error}"),
        }
        assert_eq!(ask(30_000).unwrap().value, 30_000);
        assert_eq!(idle[7].ask(Number { value: 4 }).unwrap().value, 8);
    }
}
