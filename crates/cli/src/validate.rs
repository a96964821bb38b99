//! `millrace validate`

use indicatif::{ProgressBar, ProgressStyle};
use millrace::tensor::validate::{Effort, Row, validate as compare};
use serde::Serialize;

use crate::{Failure, table::table};

#[derive(Serialize)]
struct Listing {
    rows: Vec<Row>,
}

pub(crate) fn validate(device: Option<&str>, quick: bool, json: bool) -> Result<(), Failure> {
    let runtime = millrace::runtime();
    let ids: Vec<String> = match device {
        Some(device) => vec![device.to_owned()],
        None => runtime.devices().into_iter().filter(|d| d.unavailable.is_none()).map(|d| d.id).collect(),
    };
    let effort = if quick { Effort::default().large(1 << 14) } else { Effort::default() };
    let mut rows = Vec::new();
    for id in ids {
        let opened = runtime.open(&id)?;
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {pos} comparisons  {msg}") {
            bar.set_style(style);
        }
        let found = compare(&opened, &effort, |row| {
            bar.inc(1);
            bar.set_message(format!("{} on {}, {}", row.op, row.device, row.size));
        });
        bar.finish_and_clear();
        rows.extend(found.map_err(|error| Failure::Failed(format!("{id}: {error}")))?);
    }
    let wrong = rows.iter().filter(|row| !row.ok).count();
    if json {
        let text = serde_json::to_string_pretty(&Listing { rows });
        println!("{}", text.map_err(|error| Failure::Failed(error.to_string()))?);
    } else {
        print(&rows);
    }
    if wrong == 0 { Ok(()) } else { Err(Failure::No) }
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
            println!(
                "WRONG: {} on {}, {}: error {:e}, allowed {:e}",
                row.op, row.device, row.size, row.error, row.tolerance
            );
        }
    }
    let wrong = rows.iter().filter(|row| !row.ok).count();
    println!("{} comparisons, {wrong} wrong.", rows.len());
}
