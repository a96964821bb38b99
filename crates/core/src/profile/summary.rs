//! A profile in numbers and as text.

use std::{collections::HashMap, fmt, sync::Arc};

use super::{Clock, Profile, Span};

/// How long some commands took, in nanoseconds.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
/// let profiler = device.profile(&millrace::ProfileOptions::default())?;
/// (0..3).try_for_each(|_| stream.run(buffer.fill(.., 1)))?;
/// let figures = profiler.stop().summary().all;
/// assert_eq!((figures.count, figures.failed, figures.bytes), (3, 0, 12));
/// assert!(figures.p50 <= figures.p99 && figures.p99 <= figures.total);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct Figures {
    /// Commands.
    pub count: u64,
    /// Those that failed, or never ran.
    pub failed: u64,
    /// The sum of their times.
    pub total: u64,
    /// The arithmetic mean.
    pub mean: f64,
    /// Half of them took at most this.
    pub p50: u64,
    /// 99 of 100 took at most this.
    pub p99: u64,
    /// The sum of their times as a part of that of all commands, from 0 to 1.
    pub share: f64,
    /// Bytes they moved.
    pub bytes: u64,
    /// The mean time from being submitted to running.
    pub queued: f64,
}

/// An operation's figures.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
/// let profiler = device.profile(&millrace::ProfileOptions::default())?;
/// (0..3).try_for_each(|_| stream.run(buffer.fill(.., 1)))?;
/// let summary = profiler.stop().summary();
/// assert_eq!((&*summary.ops[0].op, summary.ops[0].figures.count), ("fill", 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct OpSummary {
    /// A kernel's name, or the kind of the command.
    pub op: Arc<str>,
    /// Its figures.
    pub figures: Figures,
}

/// A stream's figures.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
/// let profiler = device.profile(&millrace::ProfileOptions::default())?;
/// stream.run(buffer.fill(.., 1))?;
/// let summary = &profiler.stop().summary().streams[0];
/// assert_eq!((summary.stream, summary.figures.count, &*summary.ops[0].op), (stream.id(), 1, "fill"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct StreamSummary {
    /// Its number.
    pub stream: u64,
    /// Its figures.
    pub figures: Figures,
    /// Those of its operations, the longest first.
    pub ops: Vec<OpSummary>,
}

/// A profile summed up. As text it is a table.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let stream = device.stream()?;
/// let profiler = device.profile(&millrace::ProfileOptions::default())?;
/// (0..10).try_for_each(|_| stream.synchronize())?;
/// let summary = profiler.stop().summary();
/// assert_eq!((&*summary.ops[0].op, summary.ops[0].figures.count), ("synchronize", 10));
/// assert_eq!(summary.streams.len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ProfileSummary {
    /// The device's id.
    pub device: String,
    /// How long it was profiled, in nanoseconds.
    pub time: u64,
    /// How much of that time at least one command ran.
    pub busy: u64,
    /// All commands.
    pub all: Figures,
    /// By operation, the longest first.
    pub ops: Vec<OpSummary>,
    /// By stream.
    pub streams: Vec<StreamSummary>,
    /// The most memory that was in use.
    pub peak_memory: u64,
    /// Commands that are missing because there was no room for them.
    pub dropped: u64,
    /// Commands whose time is that of the batch they were part of.
    pub in_batches: u64,
}

impl Figures {
    fn of<'a>(spans: impl Iterator<Item = &'a Span>, total_of_all: Option<u64>) -> Self {
        let mut times = Vec::new();
        let (mut failed, mut bytes, mut queued) = (0, 0u64, 0u64);
        for span in spans {
            times.push(span.time());
            failed += u64::from(span.failed);
            bytes = bytes.saturating_add(span.bytes);
            queued = queued.saturating_add(span.queued());
        }
        if times.is_empty() {
            return Self::default();
        }
        times.sort_unstable();
        let count = times.len() as u64;
        let total = times.iter().sum();
        // The nearest rank.
        let percentile = |share: f64| times[((share * count as f64).ceil() as usize).clamp(1, times.len()) - 1];
        let share = match total_of_all {
            None => 1.0,
            Some(0) => 0.0,
            Some(all) => total as f64 / all as f64,
        };
        let (mean, queued) = (total as f64 / count as f64, queued as f64 / count as f64);
        Self { count, failed, total, mean, p50: percentile(0.5), p99: percentile(0.99), share, bytes, queued }
    }
}

pub(super) fn summarize(profile: &Profile) -> ProfileSummary {
    let all = Figures::of(profile.spans.iter(), None);
    // Spans are stored stream by stream.
    let of_streams = profile.spans.chunk_by(|a, b| a.stream == b.stream);
    let stream = |spans: &[Span]| StreamSummary {
        stream: spans[0].stream,
        figures: Figures::of(spans.iter(), Some(all.total)),
        ops: by_op(profile, spans, all.total),
    };
    ProfileSummary {
        device: profile.device.clone(),
        time: profile.time,
        busy: busy(&profile.spans),
        all,
        ops: by_op(profile, &profile.spans, all.total),
        streams: of_streams.map(stream).collect(),
        peak_memory: profile.peak,
        dropped: profile.dropped,
        in_batches: profile.spans.iter().filter(|span| span.clock == Clock::Batch).count() as u64,
    }
}

fn by_op(profile: &Profile, spans: &[Span], total: u64) -> Vec<OpSummary> {
    let mut of_ops: HashMap<u32, Vec<&Span>> = HashMap::new();
    for span in spans {
        of_ops.entry(span.op).or_default().push(span);
    }
    let figures = |(op, spans): (u32, Vec<&Span>)| OpSummary {
        op: profile.ops.get(op as usize).cloned().unwrap_or_default(),
        figures: Figures::of(spans.into_iter(), Some(total)),
    };
    let mut ops: Vec<_> = of_ops.into_iter().map(figures).collect();
    ops.sort_by(|a, b| b.figures.total.cmp(&a.figures.total).then_with(|| a.op.cmp(&b.op)));
    ops
}

/// The length of all spans together, each moment counted once.
fn busy(spans: &[Span]) -> u64 {
    let mut ranges: Vec<_> = spans.iter().map(|span| (span.start, span.end)).collect();
    ranges.sort_unstable();
    let (mut busy, mut until) = (0, 0);
    for (start, end) in ranges {
        busy += end.saturating_sub(start.max(until));
        until = until.max(end);
    }
    busy
}

/// Nanoseconds as people say them.
pub(super) fn time(ns: f64) -> String {
    match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{:.2} µs", ns / 1e3),
        ns if ns < 1e9 => format!("{:.2} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    }
}

/// Bytes as people say them.
pub(super) fn bytes(n: u64) -> String {
    match n {
        n if n < 1 << 10 => format!("{n} B"),
        n if n < 1 << 20 => format!("{:.1} KiB", n as f64 / 1024.0),
        n if n < 1 << 30 => format!("{:.1} MiB", n as f64 / (1u64 << 20) as f64),
        n => format!("{:.1} GiB", n as f64 / (1u64 << 30) as f64),
    }
}

const HEADER: [&str; 9] = ["", "count", "total", "share", "mean", "p50", "p99", "queued", "bytes"];

impl fmt::Display for ProfileSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rows = vec![HEADER.map(str::to_owned)];
        let row = |name: String, figures: &Figures| {
            let name = if figures.failed > 0 { format!("{name} ({} failed)", figures.failed) } else { name };
            [
                name,
                figures.count.to_string(),
                time(figures.total as f64),
                format!("{:.1}%", 100.0 * figures.share),
                time(figures.mean),
                time(figures.p50 as f64),
                time(figures.p99 as f64),
                time(figures.queued),
                bytes(figures.bytes),
            ]
        };
        rows.extend(self.ops.iter().map(|op| row(op.op.to_string(), &op.figures)));
        let streams = rows.len();
        rows.extend(self.streams.iter().map(|stream| row(format!("stream {}", stream.stream), &stream.figures)));
        let widths: [usize; 9] =
            std::array::from_fn(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0));
        let rule = "─".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
        for (n, row) in rows.iter().enumerate() {
            if n == 1 || n == streams {
                writeln!(f, "{rule}")?;
            }
            write!(f, "{:<1$}", row[0], widths[0])?;
            for (cell, width) in row.iter().zip(widths).skip(1) {
                write!(f, "  {cell:>width$}")?;
            }
            writeln!(f)?;
        }
        writeln!(f, "{rule}")?;
        let share = 100.0 * self.busy as f64 / self.time.max(1) as f64;
        let (count, taken, peak) = (self.all.count, time(self.time as f64), bytes(self.peak_memory));
        let plural = if count == 1 { "" } else { "s" };
        write!(
            f,
            "{count} command{plural} on {} in {taken}, busy {share:.1}% of it; at most {peak} in use",
            self.device
        )?;
        if self.in_batches > 0 {
            write!(f, "\n{} commands have the time of the batch they were part of", self.in_batches)?;
        }
        if self.dropped > 0 {
            write!(f, "\n{} more commands are missing: there was no room for them", self.dropped)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::tests::{example, span};

    #[test]
    fn figures_are_those_of_the_spans() {
        let spans: Vec<_> = (1..=100).map(|n| span(0, 7, 0, n)).collect();
        let figures = Figures::of(spans.iter(), Some(10_100));
        assert_eq!((figures.count, figures.total, figures.p50, figures.p99), (100, 5050, 50, 99));
        assert!((figures.mean - 50.5).abs() < 1e-9 && (figures.share - 0.5).abs() < 1e-9);
        assert_eq!(Figures::of([].iter(), Some(0)), Figures::default());
    }

    #[test]
    fn a_moment_is_busy_once() {
        let spans = [span(0, 0, 10, 20), span(0, 0, 15, 30), span(1, 0, 12, 14), span(1, 0, 40, 41)];
        assert_eq!(busy(&spans), 21);
    }

    #[test]
    fn operations_come_the_longest_first_and_shares_add_up() {
        let summary = example().summary();
        assert!(summary.ops.is_sorted_by(|a, b| a.figures.total >= b.figures.total));
        let shares: f64 = summary.ops.iter().map(|op| op.figures.share).sum();
        assert!((shares - 1.0).abs() < 1e-9);
        let of_streams: u64 = summary.streams.iter().map(|stream| stream.figures.count).sum();
        assert_eq!(of_streams, summary.all.count);
        let text = summary.to_string();
        assert!(text.contains("<\"kernel\">") && text.contains("stream 3") && text.contains("1.0 MiB"), "{text}");
    }
}
