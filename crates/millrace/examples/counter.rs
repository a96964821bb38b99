//! A resident kernel with state: it is paused, checkpointed, panics, goes on, and ends in order.

#![allow(clippy::print_stdout, reason = "an example talks")]

use std::time::{Duration, Instant};

use millrace::{
    prelude::*,
    resident::{Error, RestartPolicy, Status},
};

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Add {
    amount: i32,
}

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Total {
    value: i32,
}

struct Counter;

impl Handler for Counter {
    type Message = Add;
    type Reply = Total;
    type State = Total;
    fn state(&self) -> Total {
        Total { value: 0 }
    }
    fn handle(&mut self, total: &mut Total, add: &Add, _: &mut Scope<'_, Total>) -> Total {
        total.value += add.amount;
        assert!(total.value >= 0, "the total must not be negative");
        *total
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let soon = Instant::now() + Duration::from_secs(5);
    let device = millrace::runtime().open("cpu")?;
    let counter = device.launch(Counter, LaunchOptions::default().restart(RestartPolicy::UpTo(1)))?;

    // Sent messages wait in the ring while the kernel is paused; their answers can be received later.
    counter.pause()?;
    for amount in 1..=10 {
        counter.send(Add { amount })?;
    }
    println!("paused, {} messages wait", counter.telemetry().waiting.1);
    counter.activate()?;
    let mut total = 0;
    for _ in 1..=10 {
        total = counter.receive(soon)?.value;
    }
    println!("the total is {total}");

    // A checkpoint is the state between two messages. A panic goes to whoever asked, and the kernel back to there.
    let checkpoint = counter.checkpoint()?;
    match counter.ask(Add { amount: -100 }) {
        Err(Error::Panicked(reason)) => println!("it panicked: {reason}"),
        other => println!("it should have panicked: {:?}", other.map(|total| total.value)),
    }
    let value = counter.ask(Add { amount: 1 })?.value;
    println!("after {} restart the total is {value}", counter.telemetry().restarts);
    assert_eq!(value, checkpoint.state.value + 1);

    // What was sent before a drain is handled, and then it ends.
    counter.send(Add { amount: 1 })?;
    counter.drain()?;
    counter.wait_for(Status::Terminated, soon)?;
    println!("drained after {} messages", counter.telemetry().handled);
    assert_eq!(counter.receive(soon)?.value, value + 1);
    Ok(())
}
