//! A resident kernel lives on a GPU by leases where host and device see each other's writes, and in batches where they
//! don't. This shows which of the two is in use and why, forces the second, and says what each costs next to a launch per
//! command on the same device.
//!
//! ```sh
//! cargo run --release -p millrace --example fallback [gpu]
//! ```

#![allow(clippy::print_stdout, reason = "an example talks")]

use std::time::{Duration, Instant};

use millrace::{
    Access, Device, KernelSpec,
    prelude::*,
    resident::{Residency, WaitPolicy},
};

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Add {
    amount: u32,
}

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Total {
    value: u32,
}

struct Counter;

impl Handler for Counter {
    type Message = Add;
    type Reply = Total;
    type State = Total;
    const WGSL: Option<&'static str> = Some(
        "
        (*state).value += message.amount;
        return Total((*state).value);
        ",
    );
    fn state(&self) -> Total {
        Total { value: 0 }
    }
    fn handle(&mut self, state: &mut Total, message: &Add, _: &mut Scope<'_, Total>) -> Total {
        state.value += message.amount;
        *state
    }
}

/// The median and the 99th of a hundred.
fn quantiles(mut times: Vec<Duration>) -> (Duration, Duration) {
    times.sort();
    (times[times.len() / 2], times[times.len() * 99 / 100])
}

fn resident(device: &Device, residency: Residency, rounds: u32) -> Result<(), Box<dyn std::error::Error>> {
    let options = LaunchOptions::default().residency(residency).wait(WaitPolicy::Adaptive);
    let start = Instant::now();
    let counter = device.launch(Counter, options)?;
    let launched = start.elapsed();
    println!("{}", counter.residency());
    counter.ask(Add { amount: 1 })?;
    println!("  launched after {launched:.1?}, first answer after {:.1?}", start.elapsed());
    let (mut injected, mut answered) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        counter.ask(Add { amount: 1 })?;
        answered.push(start.elapsed());
    }
    // One at a time, so that what is measured is a message into an empty ring of a kernel that polls.
    for _ in 0..rounds {
        let start = Instant::now();
        counter.send(Add { amount: 1 })?;
        injected.push(start.elapsed());
        counter.receive(Instant::now() + Duration::from_secs(10))?;
    }
    assert_eq!(counter.ask(Add { amount: 0 })?.value, 2 * rounds + 1);
    let (median, rare) = quantiles(injected);
    println!("  inject      p50 {median:.2?}, p99 {rare:.2?}");
    let (median, rare) = quantiles(answered);
    println!("  round trip  p50 {median:.2?}, p99 {rare:.2?}");
    let start = Instant::now();
    drop(counter);
    println!("  ended after {:.1?}", start.elapsed());
    Ok(())
}

fn launches(device: &Device, rounds: u32) -> Result<(), Box<dyn std::error::Error>> {
    let spec = KernelSpec::new("add").binding::<u32>("total", Access::ReadWrite).params::<u32>().wgsl(
        "
        @group(0) @binding(0) var<storage, read_write> total: array<u32>;
        struct Params { amount: u32 }
        var<immediate> params: Params;
        @compute @workgroup_size(1)
        fn main() {
            total[0] += params.amount;
        }",
    );
    let (stream, total, kernel) = (device.stream()?, device.allocate(4)?, device.kernel(&spec)?);
    stream.enqueue(total.fill(.., 0))?;
    let mut times = Vec::new();
    for round in 1..=rounds {
        let start = Instant::now();
        stream.enqueue(kernel.launch().bind(&total).params(&1u32))?;
        let answer = stream.run(total.read(..))?;
        times.push(start.elapsed());
        assert_eq!(*answer, round.to_ne_bytes());
    }
    let (median, rare) = quantiles(times);
    println!("a launch per command\n  round trip  p50 {median:.2?}, p99 {rare:.2?}");
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let wanted = std::env::args().nth(1).unwrap_or_else(|| "gpu".to_owned());
    let device = millrace::runtime().open(&wanted)?;
    println!("{}: {}", device.info().id, device.info().name);
    resident(&device, Residency::Auto, 100_000)?;
    resident(&device, Residency::Batched, 500)?;
    launches(&device, 500)
}
