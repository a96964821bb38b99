//! One suite, once per device: every operation against a naive reference, and the rules of shapes and views.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use millrace::{
    prelude::*,
    tensor::validate::{Effort, validate},
};

/// The devices of this machine. One that is not there says why, and is left out.
fn devices() -> Vec<Device> {
    let runtime = millrace::runtime();
    let there = |found: &millrace::Found| match &found.unavailable {
        Some(why) => {
            println!("{} is left out: {why}", found.id);
            false
        }
        None => true,
    };
    let found = runtime.devices();
    found.iter().filter(|found| there(found)).map(|found| runtime.open(&found.id).unwrap()).collect()
}

#[test]
fn every_operation_agrees_with_the_reference_on_every_device() {
    for device in devices() {
        let rows = validate(&device, &Effort::default().large(300_000), |_| ()).unwrap();
        let wrong: Vec<_> = rows.iter().filter(|row| !row.ok).collect();
        assert!(wrong.is_empty(), "{} of {} rows: {wrong:#?}", wrong.len(), rows.len());
        assert!(rows.len() > 500, "only {} rows", rows.len());
    }
}
