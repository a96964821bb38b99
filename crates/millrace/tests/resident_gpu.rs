//! Resident kernels on the GPU device: what `resident`'s own tests say of the CPU, and what only a GPU can get wrong.
//! Where there is no adapter these tests have nothing to say.

#![cfg(feature = "gpu")]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::time::{Duration, Instant};

use millrace::{
    prelude::*,
    resident::{Mode, Residency},
};

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Number {
    value: u32,
}

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
        state.value += message.value;
        *state
    }
}

fn gpu() -> Option<Device> {
    millrace::runtime().open("gpu").ok()
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

/// Both ways of staying.
fn ways() -> [LaunchOptions; 2] {
    [LaunchOptions::default(), LaunchOptions::default().residency(Residency::Batched)]
}

#[test]
fn a_kernel_answers_and_remembers() {
    let Some(device) = gpu() else { return };
    for options in ways() {
        let sum = device.launch(Sum, options).unwrap();
        println!("{}", sum.residency());
        let start = Instant::now();
        assert_eq!(sum.ask(Number { value: 1 }).unwrap().value, 101);
        println!("first answer after {:?}", start.elapsed());
        let mut expected = 101;
        let start = Instant::now();
        for value in 1..=1000 {
            expected += value;
            assert_eq!(sum.ask(Number { value }).unwrap().value, expected);
        }
        println!("1000 in {:?}", start.elapsed());
        sum.send(Number { value: 5 }).unwrap();
        assert_eq!(sum.receive(soon()).unwrap().value, expected + 5);
    }
}

#[test]
fn leases_are_what_this_device_has() {
    let Some(device) = gpu() else { return };
    let sum = device.launch(Sum, LaunchOptions::default()).unwrap();
    if device.info().details.iter().any(|(name, value)| name == "type" && value == "software") {
        assert_eq!(sum.residency().mode, Mode::Leases, "{}", sum.residency());
    }
}
