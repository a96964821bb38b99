//! Our tensors on the CPU device next to burn's two backends for the CPU, on all threads.

mod cases;
mod networks;
mod side;

use std::{fs, process::ExitCode, time::Duration};

use burn::tensor::Device;
use millrace::tensor::Tensors;
use serde_json::{Value, json};

use side::{Effort, Result};

const HELP: &str = "\
Our tensors on the CPU device next to burn's backends ndarray and flex, in turns, in one process, on all threads.
Every result is compared with ours first.

usage: cargo run --release --manifest-path peers/burn/Cargo.toml -- [WORD] [--quick] [--json FILE]

  WORD         only cases whose name contains it: matmul, conv, rnn, lstm, batch-8, ...
  --quick      a tenth of the time
  --json FILE  write the times there as well
  --help       say this";

struct Options {
    word: String,
    quick: bool,
    json: Option<String>,
}

fn options(mut words: impl Iterator<Item = String>) -> Result<Option<Options>> {
    let mut options = Options { word: String::new(), quick: false, json: None };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => return Ok(None),
            "--quick" => options.quick = true,
            "--json" => options.json = Some(words.next().ok_or("--json needs a file")?),
            option if option.starts_with('-') => return Err(format!("there is no option {option}; see --help").into()),
            _ if !options.word.is_empty() => return Err("one word is enough; see --help".into()),
            _ => options.word = word,
        }
    }
    Ok(Some(options))
}

fn main() -> ExitCode {
    match options(std::env::args().skip(1)).and_then(|options| options.map_or_else(help, |options| run(&options))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn help() -> Result<()> {
    println!("{HELP}");
    Ok(())
}

#[expect(deprecated, reason = "burn is going to drop it; until then people have it")]
fn burns() -> [(&'static str, Device); 2] {
    [("burn-ndarray", Device::ndarray()), ("burn-flex", Device::flex())]
}

fn run(options: &Options) -> Result<()> {
    let cases: Vec<_> = cases::all().into_iter().filter(|case| case.name().contains(&options.word)).collect();
    if cases.is_empty() {
        return Err(format!("no case contains {}", options.word).into());
    }
    let effort = match options.quick {
        true => Effort { rounds: 3, block: Duration::from_millis(25) },
        false => Effort { rounds: 5, block: Duration::from_millis(150) },
    };
    let device = millrace::runtime().open("cpu")?;
    let (tensors, burns) = (Tensors::on(&device)?, burns());
    println!("Medians in µs; a factor above one is in our favour.\n");
    println!("| case | millrace | burn-ndarray | burn-flex | against the faster | difference |");
    println!("|---|---:|---:|---:|---:|---:|");
    let mut rows = Vec::new();
    for case in cases {
        let (name, sides) = (case.name(), case.sides(&tensors, &burns)?);
        let difference = side::difference(&sides).map_err(|error| format!("{name}: {error}"))?;
        let times = side::measure(&sides, effort)?;
        let medians: Vec<f64> = times.iter().map(|times| side::median(times)).collect();
        let factor = medians[1..].iter().copied().fold(f64::INFINITY, f64::min) / medians[0];
        let cells: Vec<String> = medians.iter().map(|us| figures(*us)).collect();
        println!("| {name} | {} | {factor:.2} × | {difference:.0e} |", cells.join(" | "));
        let side = |(side, times): (&side::Side, &Vec<f64>)| {
            let [least, most] = [times.first(), times.last()];
            json!({ "side": side.name, "median": side::median(times), "least": least, "most": most, "samples": times.len() })
        };
        let sides: Vec<Value> = sides.iter().zip(&times).map(side).collect();
        rows.push(json!({ "case": name, "unit": "us", "factor": factor, "difference": difference, "sides": sides }));
    }
    if let Some(file) = &options.json {
        let text = serde_json::to_string_pretty(&json!({ "rows": rows }))?;
        fs::write(file, text + "\n").map_err(|error| format!("{file}: {error}"))?;
    }
    Ok(())
}

/// Four of them.
fn figures(us: f64) -> String {
    let before = us.log10().floor().max(0.0) as usize;
    format!("{us:.*}", 3usize.saturating_sub(before))
}
