//! What `millrace bench` prints.

use std::collections::BTreeMap;

use millrace_lab::{
    history::History,
    measure::ENOUGH,
    report::Report,
    seeds,
    suites::Suite,
    verdict::{Change, Verdict},
};

use crate::{Failure, table::table};

/// Says what could be measured.
pub(super) fn list(words: &[String]) -> Result<(), Failure> {
    let suites: Vec<_> = words.iter().filter_map(|word| Suite::of(word)).collect();
    let parts: Vec<_> = words.iter().filter(|word| Suite::of(word).is_none()).collect();
    for suite in Suite::ALL.iter().filter(|suite| suites.is_empty() || suites.contains(suite)) {
        let named = |name: &str| parts.is_empty() || parts.iter().any(|part| name.contains(&***part));
        for group in suite.groups().into_iter().filter(|group| named(group.name)) {
            let name = format!("{} {}", suite.name(), group.name);
            println!("{name:<38} {}", group.about);
        }
    }
    Ok(())
}

/// Says which runs were kept.
pub(super) fn history(history: &History) -> Result<(), Failure> {
    let names = history.names();
    if names.is_empty() {
        println!("no run was kept in {}; --save NAME keeps one", history.folder().display());
        return Ok(());
    }
    let mut out = table(&["run", "machine", "commit", "rows", "met"], 3);
    for name in names {
        match history.load(&name) {
            Ok(report) => {
                let met = report.rows.iter().filter(|row| row.is_ours() && row.met == Some(true)).count();
                let judged = report.rows.iter().filter(|row| row.is_ours() && row.met.is_some()).count();
                let commit = report.machine.commit.as_deref().map_or("-", |commit| &commit[..commit.len().min(10)]);
                let machine = format!("{}, {} cores", report.machine.cpu, report.machine.cores);
                let rows = report.rows.len().to_string();
                out.add_row([name, machine, commit.to_owned(), rows, format!("{met} of {judged}")]);
            }
            Err(error) => drop(out.add_row([name, error.to_string()])),
        }
    }
    println!("{out}");
    Ok(())
}

/// Says what became of everything; how many rows are slower than is allowed.
pub(super) fn compared(report: &Report, before: &Report, allowed: Option<f64>) -> usize {
    let mut out = table(&["group", "what", "verdict", "effect", "between"], 3);
    let mut slower = 0;
    let per_cent = |share: f64| format!("{:+.1}%", 100.0 * share);
    for (row, verdict) in report.since(before) {
        let Verdict { change, effect, interval: (low, high) } = verdict;
        slower += usize::from(change == Change::Slower && allowed.is_some_and(|allowed| effect > allowed));
        let between = format!("{} and {}", per_cent(low), per_cent(high));
        out.add_row([&row.group, &row.id, change.name(), &per_cent(effect), &between]);
    }
    println!("\nSince the baseline, more is slower:\n{out}");
    for (run, which) in [(report, "this run"), (before, "the baseline")] {
        if run.machine.is_noisy() {
            let seen = run.machine.noise().join(", ");
            println!("warning: the machine was too noisy during {which} to tell small changes: {seen}");
        }
    }
    if slower > 0 {
        println!("{slower} slower than is allowed");
    }
    slower
}

/// Shows what was measured.
pub(super) fn report(report: &Report) {
    let machine = &report.machine;
    println!("{}, {} cores, {}", machine.cpu, machine.cores, machine.os);
    let noise = machine.noise();
    if !noise.is_empty() {
        let so = if machine.is_noisy() { "too noisy to judge by" } else { "not quiet" };
        println!("warning: the machine was {so}: {}", noise.join(", "));
    }
    let mut few = false;
    for rows in report.groups() {
        let mut out = table(&[rows[0].group.as_str(), "p50", "p99", "p99.9", "mean", "of limit", "target"], 1);
        for row in rows {
            let number = |n: Option<f64>| n.map_or_else(|| "-".to_owned(), |n| row.shown(n));
            let verdict = match (row.met, &row.target) {
                (Some(true), Some(target)) => format!("met: {target}"),
                (Some(false), Some(target)) => format!("MISSED: {target}"),
                _ if row.interrupted => format!("interrupted after {} rounds", row.rounds.len()),
                _ => String::new(),
            };
            // Of rates and counts there is no tail to speak of.
            let rare = match row.p999 {
                Some(_) if row.is_latency() => number(row.p999),
                None if row.is_latency() => {
                    few = true;
                    "few".to_owned()
                }
                _ => String::new(),
            };
            let limit = row.of_limit(rows).map_or_else(String::new, |share| format!("{share:.2} x"));
            out.add_row([row.id.clone(), number(row.p50), number(row.p99), rare, number(row.mean), limit, verdict]);
        }
        if let Some(column) = out.column_mut(6) {
            column.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
        println!("\n{out}");
    }
    if few {
        println!("\nfew: less than {ENOUGH} samples, too few to say what one in a thousand takes");
    }
    let (met, all) = report.rows.iter().filter(|row| row.is_ours()).fold((0, 0), |(met, all), row| match row.met {
        Some(true) => (met + 1, all + 1),
        Some(false) => (met, all + 1),
        None => (met, all),
    });
    println!("\n{met} of {all} targets met.");
    for row in report.missed() {
        println!("  missed: {} {}: {}", row.group, row.id, row.target.as_deref().unwrap_or_default());
    }
    promised(report);
}

/// Says which of the figures that users were promised are reached.
fn promised(report: &Report) {
    let outcomes = seeds::outcomes(report);
    if outcomes.is_empty() {
        return;
    }
    let met = outcomes.iter().filter(|outcome| outcome.met).count();
    println!("\n{met} of {} promised figures reached.", outcomes.len());
    let mut by_target: BTreeMap<(&str, &str), Vec<&seeds::Outcome>> = BTreeMap::new();
    for outcome in &outcomes {
        by_target.entry((&outcome.target.seed, &outcome.target.what)).or_default().push(outcome);
    }
    let mut out = table(&["promised", "figure", "measured", ""], 1);
    for ((_, what), outcomes) in by_target {
        for outcome in outcomes {
            let value = outcome.value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"));
            let verdict = if outcome.met { "reached" } else { "NOT reached" };
            let what = format!("{what}: {}", outcome.id);
            out.add_row([what, outcome.target.bound(), value, verdict.to_owned()]);
        }
    }
    println!("{out}");
}
