//! Watching a device: events, memory accounts, and an orderly end.

#![allow(clippy::print_stdout, clippy::expect_used, reason = "an example talks")]

use std::time::{Duration, Instant};

use millrace::prelude::*;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = millrace::runtime().open_with("cpu", DeviceOptions::default().budget(64 << 20))?;
    let mut events = device.subscribe(16)?;
    let watcher = std::thread::spawn(move || {
        let mut seen = 0;
        while let Some(event) = events.next() {
            seen += 1;
            println!("{event:?}");
            let missed = events.missed();
            if missed > 0 {
                println!("({missed} more that did not fit)");
            }
        }
        seen
    });

    let stream = device.stream()?;
    let buffer = device.allocate(1 << 20)?;
    stream.run(buffer.fill(.., 1))?;
    println!("{:?}", device.memory());
    println!("too much: {}", device.allocate(1 << 30).expect_err("beyond the budget"));
    drop(buffer);
    println!("freed {} bytes", device.trim(0));

    device.shutdown(Instant::now() + Duration::from_secs(1))?;
    drop((stream, device)); // with the last handle the events end
    assert!(watcher.join().is_ok_and(|seen| seen > 0));
    Ok(())
}
