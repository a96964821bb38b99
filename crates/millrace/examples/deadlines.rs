//! Full queues, deadlines and cancellation: what each of them answers.

#![allow(clippy::print_stdout, clippy::expect_used, reason = "an example talks")]

use std::time::{Duration, Instant};

use millrace::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = millrace::runtime().open("cpu")?;
    let nap = device.kernel(
        &KernelSpec::new("nap").cpu(CpuKernel::per_group(|_| std::thread::sleep(Duration::from_millis(100)))),
    )?;
    let stream = device.stream_with(&StreamOptions::default().capacity(2))?;

    // Keep the stream busy, and fill its queue.
    let busy = stream.submit(nap.launch())?;
    while stream.waiting() > 0 {
        std::thread::yield_now(); // until it runs
    }
    let cancelled = stream.submit(Synchronize)?;
    let queued = stream.submit(Synchronize)?;

    let rejected = stream.try_submit(Synchronize).expect_err("the queue is full");
    println!("fail:     {rejected}; the {:?} command is back", rejected.command.kind());

    let start = Instant::now();
    let late = stream.submit_deadline(Synchronize, Instant::now() + Duration::from_millis(20));
    println!("deadline: {} after {:?}", late.expect_err("no room so soon"), start.elapsed());

    cancelled.cancel();
    println!("cancel:   {}", cancelled.wait().expect_err("it had not started"));

    let waited = stream.submit(Synchronize)?; // blocks until there is room
    println!("block:    there was room after {:?}", start.elapsed());
    busy.wait()?;
    queued.wait()?;
    waited.wait()?;
    Ok(())
}
