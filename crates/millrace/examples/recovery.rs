//! A device that is lost under a running program, and a program that goes on.

#![allow(clippy::print_stdout, reason = "an example talks")]

use std::time::Duration;

use millrace::{
    cpu::CpuProvider,
    faulty::{Faults, FaultyProvider},
    prelude::*,
};

/// One step of the program: the state goes to the device, is changed there, and comes back.
fn step(device: &Device, state: u8) -> Result<u8, Error> {
    let (stream, buffer) = (device.stream()?, device.allocate(1)?);
    stream.enqueue(buffer.fill(.., state + 1))?;
    Ok(stream.run(buffer.read(..))?[0])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A device that fails on request, in the place of one that fails by itself.
    let faults = Faults::default();
    let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
    let mut device = runtime.open_with("cpu", DeviceOptions::default().timeout(Duration::from_millis(100)))?;
    let mut state = 0;
    let mut accidents = vec![6, 3]; // before these steps it goes away
    while state < 10 {
        if accidents.last() == Some(&state) {
            accidents.pop();
            faults.lose_after(0);
        }
        match step(&device, state) {
            Ok(next) => state = next,
            Err(error @ Error::DeviceLost(_)) => {
                println!("step {state}: {error}");
                device = device.recover()?;
                println!("step {state}: going on with generation {}", device.health().generation);
            }
            Err(error) => return Err(error.into()),
        }
    }
    assert_eq!((state, device.health().generation), (10, 3));
    println!("all {state} steps done, on the third device");
    Ok(())
}
