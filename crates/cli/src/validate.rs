//! `millrace validate`

use indicatif::{ProgressBar, ProgressStyle};
use millrace::{
    Runtime,
    tensor::validate::{Effort, Row, validate as compare},
};
use serde::Serialize;

use crate::{Failure, table::table};

#[derive(Default, Serialize)]
struct Listing {
    rows: Vec<Row>,
    /// Devices of which nothing is known.
    failed: Vec<Failed>,
}

#[derive(Serialize)]
struct Failed {
    device: String,
    why: String,
}

pub(crate) fn validate(device: Option<&str>, quick: bool, json: bool) -> Result<(), Failure> {
    let runtime = millrace::runtime();
    let ids: Vec<String> = match device {
        Some(device) => {
            // Whoever asks for one alone is told that it is not there; otherwise there are others.
            runtime.open(device)?;
            vec![device.to_owned()]
        }
        None => runtime.devices().into_iter().filter(|d| d.unavailable.is_none()).map(|d| d.id).collect(),
    };
    let effort = if quick { Effort::default().large(1 << 14) } else { Effort::default() };
    let listing = compare_all(&runtime, ids, &effort);
    let wrong = listing.rows.iter().filter(|row| !row.ok).count();
    if json {
        let text = serde_json::to_string_pretty(&listing);
        println!("{}", text.map_err(|error| Failure::Failed(error.to_string()))?);
    } else {
        print(&listing.rows);
    }
    let failed: Vec<_> = listing.failed.iter().map(|Failed { device, why }| format!("{device}: {why}")).collect();
    match (failed.is_empty(), wrong) {
        (false, _) => Err(Failure::Failed(failed.join("; "))),
        (true, 0) => Ok(()),
        (true, _) => Err(Failure::No),
    }
}

/// Compares what all of these devices do, and goes on where one cannot be used.
fn compare_all(runtime: &Runtime, ids: Vec<String>, effort: &Effort) -> Listing {
    let mut listing = Listing::default();
    for device in ids {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {pos} comparisons  {msg}") {
            bar.set_style(style);
        }
        let found = runtime.open(&device).map_err(|error| error.to_string()).and_then(|opened| {
            let shown = |row: &Row| {
                bar.inc(1);
                bar.set_message(format!("{} on {}, {}", row.op, row.device, row.size));
            };
            compare(&opened, effort, shown).map_err(|error| error.to_string())
        });
        bar.finish_and_clear();
        match found {
            Ok(found) => listing.rows.extend(found),
            Err(why) => listing.failed.push(Failed { device, why }),
        }
    }
    listing
}

/// One line for every operation and device, with its worst input; and one for everything that is not well.
fn print(rows: &[Row]) {
    for of_device in rows.chunk_by(|a, b| a.device == b.device) {
        let mut out =
            table(&[&format!("on {}", of_device[0].device), "inputs", "worst error", "allowed", "verdict", "at"], 1);
        let mut seen = Vec::new();
        for row in of_device {
            if !seen.contains(&row.op.as_str()) {
                seen.push(&row.op);
            }
        }
        for op in seen {
            let of_op: Vec<_> = of_device.iter().filter(|row| row.op == op).collect();
            let share =
                |row: &Row| if row.ok { row.error / row.tolerance.max(f64::MIN_POSITIVE) } else { f64::INFINITY };
            let Some(worst) = of_op.iter().max_by(|a, b| share(a).total_cmp(&share(b))) else { continue };
            out.add_row([
                op.to_owned(),
                of_op.len().to_string(),
                format!("{:.1e}", worst.error),
                format!("{:.1e}", worst.tolerance),
                if of_op.iter().all(|row| row.ok) { "ok" } else { "WRONG" }.to_owned(),
                worst.size.clone(),
            ]);
        }
        println!("{out}\n");
        for row in of_device.iter().filter(|row| !row.ok) {
            let Row { op, device, size, error, tolerance, why, .. } = row;
            let found = why.clone().unwrap_or_else(|| format!("error {error:e}, allowed {tolerance:e}"));
            println!("WRONG: {op} on {device}, {size}: {found}");
        }
    }
    let wrong = rows.iter().filter(|row| !row.ok).count();
    println!("{} comparisons, {wrong} wrong.", rows.len());
}

#[cfg(test)]
mod tests {
    use millrace::{
        cpu::CpuProvider,
        faulty::{Faults, FaultyProvider},
    };

    use super::*;

    #[test]
    fn a_device_that_cannot_be_opened_does_not_keep_others_from_being_validated() {
        let faults = Faults::default();
        let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
        faults.refuse_opening(1);
        let ids = vec!["cpu".to_owned(), "cpu".to_owned()];
        let listing = compare_all(&runtime, ids, &Effort::default().large(100));
        assert_eq!(listing.failed.len(), 1);
        assert!(listing.rows.len() > 700 && listing.rows.iter().all(|row| row.ok));
        let json = serde_json::to_value(&listing).unwrap();
        assert_eq!(json["failed"][0]["device"], "cpu");
        assert!(json["failed"][0]["why"].as_str().is_some_and(|why| !why.is_empty()), "{}", json["failed"]);
    }
}
