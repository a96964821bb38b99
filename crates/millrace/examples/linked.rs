//! Two resident kernels, linked: what the first answers goes straight to the second, without the host in between.

#![allow(clippy::print_stdout, reason = "an example talks")]

use std::time::{Duration, Instant};

use millrace::prelude::*;

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Sample {
    value: f32,
}

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Level {
    sum: f32,
    count: u32,
}

/// Squares its samples.
struct Square;

impl Handler for Square {
    type Message = Sample;
    type Reply = Sample;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), sample: &Sample, _: &mut Scope<'_, Sample>) -> Sample {
        Sample { value: sample.value * sample.value }
    }
}

/// Adds up what it is sent, and tells the mean to whoever asks; sent samples are not answered.
struct Mean;

impl Handler for Mean {
    type Message = Sample;
    type Reply = Level;
    type State = Level;
    fn state(&self) -> Level {
        Level { sum: 0.0, count: 0 }
    }
    fn handle(&mut self, level: &mut Level, sample: &Sample, scope: &mut Scope<'_, Level>) -> Level {
        if !scope.is_ask() {
            scope.no_reply();
            level.sum += sample.value;
            level.count += 1;
        }
        *level
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = millrace::runtime().open("cpu")?;
    let square = device.launch(Square, LaunchOptions::default())?;
    let mean = device.launch(Mean, LaunchOptions::default())?;
    square.link(&mean); // lossless: if `mean` has no room, `square` waits

    for n in 1..=1000 {
        square.send(Sample { value: n as f32 / 1000.0 })?;
    }
    let deadline = Instant::now() + Duration::from_secs(5);
    while mean.telemetry().handled < 1000 && Instant::now() < deadline {
        std::thread::yield_now();
    }
    let level = mean.ask(Sample { value: 0.0 })?;
    println!("{} samples, mean square {:.4}", level.count, level.sum / level.count as f32);
    assert_eq!(level.count, 1000);
    assert!((level.sum / 1000.0 - 1.0 / 3.0).abs() < 1e-3);
    Ok(())
}
