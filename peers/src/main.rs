//! Millrace's tensors on the CPU next to candle, ndarray and OpenBLAS, in turns, with the lab's way of measuring.
//!
//! `cargo run --release --manifest-path peers/Cargo.toml -- [FILTER] [--threads N] [--json FILE]`
//!
//! All sides do the same: they make a new result from operands that are there already, and every result is looked at.
//! OpenBLAS is loaded at run time, and left out where it is not installed (Debian: `libopenblas0-pthread`).

mod openblas;
mod sides;

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::Parser;
use millrace_lab::{
    machine::{Machine, Ticks},
    measure::{Side, interleaved},
    report::{Better, Report, Row, SCHEMA},
};

#[derive(Parser)]
struct Arguments {
    /// Only groups that have this in their name: matmul, matmul_small, elementwise, small_op
    filter: Option<String>,
    /// Threads that every side may use; as many as there are cores if not said
    #[arg(long)]
    threads: Option<usize>,
    /// Turns of every side
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Also write the rows to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Set in a process whose libraries were told how many threads to use. They read it when they start.
const TOLD: &str = "MILLRACE_PEERS_THREADS";

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(4)
        }
    }
}

fn run() -> Result<ExitCode, Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = arguments.threads.unwrap_or(cores).max(1);
    if std::env::var_os(TOLD).is_none() {
        let mut again = std::process::Command::new(std::env::current_exe()?);
        for name in [TOLD, "RAYON_NUM_THREADS", "MATMUL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"] {
            again.env(name, threads.to_string());
        }
        let code = again.args(std::env::args_os().skip(1)).status()?.code();
        return Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(4)));
    }
    let filter = arguments.filter.unwrap_or_default();
    let groups: [(&str, Vec<Side>, Judge); 4] = [
        ("matmul", sides::matmul(threads), matmul),
        ("matmul_small", sides::matmul_small(threads), faster),
        ("elementwise", sides::elementwise(threads), faster),
        ("small_op", sides::small_op(threads), faster),
    ];
    let (mut machine, ticks) = (Machine::now(), Ticks::now());
    let mut rows = Vec::new();
    for (name, sides, judge) in groups.into_iter().filter(|(name, ..)| name.contains(&filter)) {
        let measured = interleaved(&sides, arguments.rounds, Duration::from_secs(60), &mut |side| {
            eprintln!("{name}, {side}");
        });
        let mut of_group: Vec<_> = measured.into_iter().map(|measured| Row::new(name, measured)).collect();
        judge(&mut of_group);
        rows.append(&mut of_group);
    }
    machine.others = ticks.and_then(Ticks::others_since);
    let report = Report { schema: SCHEMA, machine, rows };
    println!("{threads} threads, {}", report.machine.cpu);
    for row in &report.rows {
        let number = |n: Option<f64>| n.map_or_else(|| "-".to_owned(), |n| format!("{n:.2}"));
        let verdict = match row.met {
            Some(true) => "met: ",
            Some(false) => "MISSED: ",
            None => "",
        };
        let (group, id, p50, p99) = (&row.group, &row.id, number(row.p50), number(row.p99));
        println!("{group:14} {id:32} {p50:>12} {p99:>12} {:8} {verdict}{}", row.unit, row.target.as_deref().unwrap_or(""));
    }
    if let Some(path) = arguments.json {
        std::fs::write(path, report.to_json()?)?;
    }
    let failed = report.rows.iter().any(Row::is_error);
    Ok(if failed { ExitCode::from(4) } else { ExitCode::SUCCESS })
}

type Judge = fn(&mut [Row]);

/// The fastest peer of a case.
fn fastest<'a>(rows: &'a [Row], case: &str) -> Option<(&'a str, f64)> {
    let peers = rows.iter().filter(|row| !row.is_ours() && row.case() == case);
    let valued = peers.filter_map(|row| Some((row.side(), row.p50?, row.better)));
    let best = valued.reduce(|a, b| {
        let b_wins = if a.2 == Better::Lower { b.1 < a.1 } else { b.1 > a.1 };
        if b_wins { b } else { a }
    });
    best.map(|(name, value, _)| (name, value))
}

fn judge(rows: &mut [Row], share: f64) {
    let judged: Vec<_> = rows
        .iter()
        .map(|row| {
            let (name, best) = fastest(rows, row.case()).filter(|_| row.is_ours())?;
            let (met, sign) = match row.better {
                Better::Lower => (row.p50? <= best / share, "<="),
                Better::Higher => (row.p50? >= best * share, ">="),
            };
            let limit = if row.better == Better::Lower { best / share } else { best * share };
            Some((format!("p50 {sign} {limit:.2} ({share} x {name}, the fastest peer)"), met))
        })
        .collect();
    for (row, judged) in rows.iter_mut().zip(judged) {
        if let Some((target, met)) = judged {
            (row.target, row.met) = (Some(target), Some(met));
        }
    }
}

/// Large products may be a twentieth slower than the best library.
fn matmul(rows: &mut [Row]) {
    judge(rows, 0.95);
}

/// Everything else is to be faster than every framework.
fn faster(rows: &mut [Row]) {
    judge(rows, 1.0);
}
