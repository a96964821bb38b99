//! `millrace replay`

use std::path::Path;

use millrace::tensor::check::{Difference, Replay};
use serde::Serialize;

use crate::Failure;

#[derive(Serialize)]
struct Again<'a> {
    op: String,
    device: &'a str,
    shapes: Vec<Vec<usize>>,
    #[serde(flatten)]
    difference: &'a Difference,
}

pub(crate) fn replay(file: &Path, device: Option<&str>, json: bool) -> Result<(), Failure> {
    let replay = Replay::load(file).map_err(|error| Failure::Failed(error.to_string()))?;
    let id = device.unwrap_or(replay.device());
    let opened = millrace::runtime().open(id)?;
    let difference = replay.run(&opened).map_err(|error| Failure::Failed(error.to_string()))?;
    let again =
        Again { op: replay.call().name(), device: &opened.info().id, shapes: replay.shapes(), difference: &difference };
    if json {
        let text = serde_json::to_string_pretty(&again);
        println!("{}", text.map_err(|error| Failure::Failed(error.to_string()))?);
    } else {
        let (error, allowed) = (difference.error, difference.tolerance);
        println!("{} of {:?} on {}: error {error:.1e}, allowed {allowed:.1e}", again.op, again.shapes, again.device);
        match difference.at {
            Some((at, got, want)) => println!("element {at} is {got}; on the CPU it is {want}"),
            None => println!("it agrees with the CPU"),
        }
    }
    if difference.at.is_some() { Err(Failure::No) } else { Ok(()) }
}
