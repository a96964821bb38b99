//! What our rows are held to. A target is a ratio to a peer or to the machine's own limit in the same run, unless it is
//! a size or a count. The absolute figures that users were promised are in [`crate::seeds`].

use crate::{
    measure::{Better, Measured},
    report::Row,
};

/// The channels that a Rust program would otherwise use.
const CHANNELS: [&str; 5] = ["crossbeam", "kanal", "flume", "std", "tokio-mpsc"];

/// Conditions that a row must meet, as text and whether they hold.
#[derive(Default)]
pub(crate) struct Conditions(Vec<(String, bool)>);

impl Conditions {
    fn add(&mut self, text: String, holds: bool) -> &mut Self {
        self.0.push((text, holds));
        self
    }

    /// Nothing is added without something to compare with.
    pub(crate) fn at_most(&mut self, what: &str, value: f64, limit: Option<f64>, why: &str) -> &mut Self {
        if let Some(limit) = limit {
            self.add(format!("{what} <= {} ({why})", short(limit)), value <= limit);
        }
        self
    }

    pub(crate) fn at_least(&mut self, what: &str, value: f64, limit: Option<f64>, why: &str) -> &mut Self {
        if let Some(limit) = limit {
            self.add(format!("{what} >= {} ({why})", short(limit)), value >= limit);
        }
        self
    }

    fn set(self, row: &mut Row) {
        if self.0.is_empty() || row.is_error() {
            return;
        }
        let text = |(text, holds): &(String, bool)| if *holds { text.clone() } else { format!("{text} [missed]") };
        row.target = Some(self.0.iter().map(text).collect::<Vec<_>>().join("; "));
        row.met = Some(self.0.iter().all(|(_, holds)| *holds));
    }
}

/// A number with three digits that matter.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.3e}", value),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn is_peer(row: &Row) -> bool {
    !row.is_ours() && !matches!(row.side(), "limit" | "copy")
}

/// Peers whose ends sleep when they have to wait, as ours do. A queue that polls for ever keeps its cores busy, so its rate is
/// shown, and held against us only where all cores are busy anyway.
fn is_blocking(row: &Row) -> bool {
    is_peer(row) && row.side() != "mutex-yield"
}

fn is_channel(row: &Row) -> bool {
    CHANNELS.contains(&row.side())
}

/// The best value among rows of a case, and whose it is.
pub(crate) fn best(
    rows: &[Row],
    case: &str,
    among: fn(&Row) -> bool,
    value: fn(&Row) -> Option<f64>,
) -> Option<(f64, String)> {
    let candidates = rows.iter().filter(|row| row.case() == case && among(row));
    let valued = candidates.filter_map(|row| Some((value(row)?, row)));
    let best = valued.reduce(|a, b| {
        let b_wins = match a.1.better {
            Better::Lower => b.0 < a.0,
            Better::Higher => b.0 > a.0,
        };
        if b_wins { b } else { a }
    });
    best.map(|(value, row)| (value, row.side().to_owned()))
}

pub(crate) fn p50(row: &Row) -> Option<f64> {
    row.p50
}

fn p99(row: &Row) -> Option<f64> {
    row.p99
}

pub(crate) fn value_of(rows: &[Row], id: &str) -> Option<f64> {
    rows.iter().find(|row| row.id == id)?.p50
}

/// Judges every row of ours by what `conditions` says of it, given all rows and its median.
pub(crate) fn judge(rows: &mut [Row], conditions: impl Fn(&[Row], &Row, f64) -> Conditions) {
    let judged: Vec<_> =
        rows.iter().map(|row| row.p50.filter(|_| row.is_ours()).map(|median| conditions(rows, row, median))).collect();
    for (row, conditions) in rows.iter_mut().zip(judged) {
        if let Some(conditions) = conditions {
            conditions.set(row);
        }
    }
}

/// The case of a factor, which is held to what was promised alone.
const OVER_MUTEX_YIELD: &str = "over-mutex-yield";

/// How many times faster than the polled mutex queue we are, as a row of its own.
pub(crate) fn over_mutex_yield(rows: &[Row]) -> Option<Row> {
    let factor = value_of(rows, "mutex-yield")? / value_of(rows, "millrace")?;
    let id = format!("millrace/{OVER_MUTEX_YIELD}");
    Some(Row::new(&rows.first()?.group, Measured::computed(id, "x", Better::Higher, factor)))
}

pub(crate) fn send(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if let Some((fastest, name)) = best(rows, row.case(), is_channel, p50) {
            conditions.at_most("p50", median, Some(fastest), &format!("{name}, the fastest channel"));
        }
        if row.case() == "large-1MiB" {
            let small = value_of(rows, &format!("{}/large-1KiB", row.side()));
            conditions.at_most("p50", median, small.map(|ns| ns * 1.1), "1.1 x 1 KiB");
        }
        conditions
    });
}

pub(crate) fn round_trip(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if row.case() == OVER_MUTEX_YIELD {
            return conditions;
        }
        if row.side() == "millrace" {
            conditions.at_most("p50", median, value_of(rows, "limit").map(|ns| ns * 1.5), "1.5 x limit");
        }
        if let Some((fastest, name)) = best(rows, "", is_peer, p50) {
            conditions.at_most("p50", median, Some(fastest), &format!("{name}, the fastest peer"));
        }
        if let (Some((tail, name)), Some(ours)) = (best(rows, "", is_peer, p99), row.p99) {
            conditions.at_most("p99", ours, Some(tail), &format!("{name}, the best tail"));
        }
        conditions
    });
}

pub(crate) fn after_idle(rows: &mut [Row]) {
    judge(rows, |rows, _, median| {
        let mut conditions = Conditions::default();
        conditions.at_most("p50", median, value_of(rows, "limit").map(|ns| ns * 1.25), "1.25 x one park and unpark");
        conditions
    });
}

/// How close we have to come to the limit where the limit is less than what we would be held to.
const NEAR: f64 = 0.9;

pub(crate) fn throughput(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        let factor = if row.side() == "millrace-spsc" { 2.0 } else { 1.0 };
        if let Some((fastest, name)) = best(rows, row.case(), is_blocking, p50) {
            let (wanted, why) = (fastest * factor, format!("{factor} x {name}, the fastest that blocks"));
            match value_of(rows, &format!("limit/{}", row.case())) {
                // A limit below a peer is none: then the run was disturbed, and nothing is let off.
                Some(limit) if fastest < limit && limit < wanted => {
                    let why = format!("{NEAR} x limit; {why}, is {} and beyond it", short(wanted));
                    conditions.at_least("p50", median, Some(fastest.max(limit * NEAR)), &why);
                }
                _ => {
                    conditions.at_least("p50", median, Some(wanted), &why);
                }
            }
        }
        if row.case() == "10000" {
            let at_1000 = value_of(rows, &format!("{}/1000", row.side()));
            conditions.at_least("p50", median, at_1000.map(|rate| rate * 0.85), "flat: 0.85 x batches of 1000");
        }
        conditions
    });
}

pub(crate) fn throughput_many(rows: &mut [Row]) {
    judge(rows, |rows, _, median| {
        let mut conditions = Conditions::default();
        if let Some((fastest, name)) = best(rows, "", is_blocking, p50) {
            conditions.at_least("p50", median, Some(fastest * 1.2), &format!("1.2 x {name}, the fastest that blocks"));
        }
        conditions
    });
}

/// By their means, which are messages of all turns over the time of all turns: what polls has turns of two kinds, a hundred
/// times apart, and its median is whichever was more frequent.
pub(crate) fn overload(rows: &mut [Row]) {
    judge(rows, |rows, row, _| {
        let mut conditions = Conditions::default();
        if let (Some((fastest, name)), Some(mean)) = (best(rows, "", is_peer, |row| row.mean), row.mean) {
            conditions.at_least("mean", mean, Some(fastest), &format!("{name}, the fastest peer"));
        }
        conditions
    });
}

pub(crate) fn contention(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if row.case() == OVER_MUTEX_YIELD {
            return conditions;
        }
        if let Some((fastest, name)) = best(rows, "", is_peer, p50) {
            conditions.at_most("p50", median, Some(fastest), &format!("{name}, the fastest peer"));
        }
        conditions
    });
}

/// What a producer that never sleeps uses of a core.
const CONTROL: &str = "mutex-yield/producer-cpu";

pub(crate) fn backpressure(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        match row.case() {
            "" => {
                let alone = value_of(rows, "limit").map(|ms| ms * 1.05);
                conditions.at_most("p50", median, alone, "1.05 x the consumer alone");
            }
            // Only if the run could tell: the polled queue never sleeps, so it must be seen to be busy.
            "producer-cpu" if value_of(rows, CONTROL).is_some_and(|busy| busy >= 50.0) => {
                conditions.at_most("p50", median, Some(5.0), "a blocked producer sleeps");
            }
            "producer-cpu" => {}
            "lost" => {
                conditions.at_most("mean", row.mean.unwrap_or(f64::NAN), Some(0.0), "nothing is lost");
            }
            _ => {
                conditions.at_most("p99", row.p99.unwrap_or(f64::NAN), Some(100.0), "capacity");
            }
        }
        conditions
    });
    for row in rows.iter_mut().filter(|row| row.is_ours() && row.case() == "producer-cpu" && row.target.is_none()) {
        row.target =
            Some("p50 <= 5 (a blocked producer sleeps) [undecided: nor was a polling one seen to be busy]".into());
    }
}

/// Those that are held to nothing but what was promised.
pub(crate) fn promised(_: &mut [Row]) {}

pub(crate) fn memory_pool(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        let case = row.case();
        if case.starts_with("cycle") {
            conditions.at_most("p50", median, value_of(rows, &format!("malloc/{case}")), "malloc + free");
        }
        if !matches!(case, "write-1KiB" | "read-1KiB") {
            conditions.at_most("p50", median, Some(50.0), "a hit");
        }
        conditions
    });
}
