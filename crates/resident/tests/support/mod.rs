//! What several tests use.
#![allow(dead_code, reason = "not every test uses everything")]

use std::time::{Duration, Instant};

use millrace_core::{Device, DeviceOptions, Runtime};
use millrace_cpu::CpuProvider;
use millrace_resident::{Handler, Message, Scope};

pub(crate) fn runtime() -> Runtime {
    Runtime::new(vec![Box::new(CpuProvider)])
}

pub(crate) fn cpu() -> Device {
    runtime().open("cpu").unwrap()
}

/// A device whose waits without a deadline are short.
pub(crate) fn impatient(timeout: Duration) -> Device {
    runtime().open_with("cpu", DeviceOptions::default().timeout(timeout)).unwrap()
}

pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

#[derive(Clone, Copy, Debug, PartialEq, Message)]
#[repr(C)]
pub(crate) struct Number {
    pub(crate) value: u32,
}

/// Answers with twice the number.
pub(crate) struct Double;

impl Handler for Double {
    type Message = Number;
    type Reply = Number;
    type State = ();

    fn state(&self) {}

    fn handle(&mut self, _: &mut (), number: &Number, _: &mut Scope<'_, Number>) -> Number {
        Number { value: number.value.wrapping_mul(2) }
    }
}

/// Adds up, and answers with the sum. Panics at 13, and takes as many milliseconds as a number above 1000 says.
pub(crate) struct Counter;

impl Handler for Counter {
    type Message = Number;
    type Reply = Number;
    type State = Number;

    fn state(&self) -> Number {
        Number { value: 0 }
    }

    fn handle(&mut self, sum: &mut Number, number: &Number, _: &mut Scope<'_, Number>) -> Number {
        sum.value += number.value;
        assert!(number.value != 13, "thirteen is not a number");
        if number.value > 1000 {
            std::thread::sleep(Duration::from_millis(u64::from(number.value - 1000)));
        }
        *sum
    }
}
