//! Profiles: what a device did, command by command, and when.
//!
//! - `record`: the probes on the road, and what they cost when nobody looks.
//! - `log`: where events are kept.
//! - `summary`: by operation and by stream, as numbers and as text.
//! - `trace`: a file for Perfetto and chrome://tracing.
//! - `flame`: a picture.

mod flame;
mod log;
mod memory;
mod record;
mod summary;
mod trace;

use std::{io, path::Path, sync::Arc};

pub(crate) use memory::MemoryTrace;
pub(crate) use record::{Flown, Probe, Recording, Stamp, Track};
pub use summary::{Figures, OpSummary, ProfileSummary, StreamSummary};

use crate::{Error, Result, command::CommandKind, context::Handle, device::Device, file};

/// How a device is to be profiled.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let profiler = device.profile(&millrace::ProfileOptions::default().events(2))?;
/// let stream = device.stream()?;
/// (0..5).try_for_each(|_| stream.synchronize())?;
/// let profile = profiler.stop();
/// assert_eq!((profile.spans().len(), profile.dropped()), (2, 3));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ProfileOptions {
    /// Spans that are kept, of 40 bytes each, and as many changes of the memory in use. Those beyond are counted.
    pub events: usize,
}

impl ProfileOptions {
    /// Sets how many spans are kept.
    pub fn events(mut self, events: usize) -> Self {
        self.events = events;
        self
    }
}

impl Default for ProfileOptions {
    fn default() -> Self {
        Self { events: 1 << 20 }
    }
}

/// A profile that is being recorded, until it is stopped or dropped. It keeps the device open.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::ProfileOptions;
/// let profiler = device.profile(&ProfileOptions::default())?;
/// assert!(device.profile(&ProfileOptions::default()).is_err(), "one at a time");
/// device.stream()?.synchronize()?;
/// assert_eq!(profiler.stop().spans().len(), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Profiler {
    context: Option<Arc<Handle>>,
}

impl Profiler {
    /// Ends it. Commands that have not ended by now are not in the profile.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let profiler = device.profile(&millrace::ProfileOptions::default())?;
    /// let stream = device.stream()?;
    /// stream.synchronize()?;
    /// let profile = profiler.stop();
    /// stream.synchronize()?; // not in it any more
    /// assert_eq!(profile.spans().len(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stop(mut self) -> Profile {
        let recorded = self.context.take().and_then(|context| Profile::collect(&context));
        recorded.unwrap_or_default() // there is one: only this takes it
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        if let Some(context) = self.context.take() {
            context.core.pool.end_trace();
            context.core.recording.stop();
        }
    }
}

impl std::fmt::Debug for Profiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let device = self.context.as_ref().map(|context| &context.core.info.id);
        f.debug_struct("Profiler").field("device", &device).finish()
    }
}

impl Device {
    /// Records every command that is submitted from now on, and the memory in use, until the result is stopped. One
    /// profile at a time.
    ///
    /// A span costs some tens of nanoseconds, the millionth as the first. While no profile is on, all of this costs one
    /// load for each command. On a device with a queue of its own that has a clock, batches are timed by it, which makes
    /// their commands wait for each other where they might have overlapped.
    ///
    /// ```
    /// use millrace::{CpuKernel, KernelSpec};
    /// let device = millrace::runtime().open("cpu")?;
    /// let (stream, buffer) = (device.stream()?, device.allocate(1 << 16)?);
    /// let nap = CpuKernel::whole(|_| std::thread::sleep(std::time::Duration::from_millis(1)));
    /// let nap = device.kernel(&KernelSpec::new("nap").cpu(nap))?;
    ///
    /// let profiler = device.profile(&millrace::ProfileOptions::default())?;
    /// stream.run(buffer.fill(.., 1))?;
    /// stream.run(nap.launch())?;
    /// let profile = profiler.stop();
    ///
    /// let [fill, nap] = profile.spans() else { unreachable!("there were two commands") };
    /// assert_eq!((profile.op(fill), profile.op(nap)), ("fill", "nap"));
    /// assert!(nap.start >= fill.end && nap.end - nap.start >= 1_000_000, "nanoseconds");
    /// println!("{}", profile.summary());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn profile(&self, options: &ProfileOptions) -> Result<Profiler> {
        let context = self.handle().clone();
        let core = &context.core;
        let started = core.recording.start(options.events);
        let clock = started.ok_or_else(|| Error::Invalid("the device is being profiled already".into()))?;
        core.pool.begin_trace(MemoryTrace::new(clock, options.events));
        Ok(Profiler { context: Some(context) })
    }
}

/// Whose clock tells when a command ran.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// let profiler = device.profile(&millrace::ProfileOptions::default())?;
/// device.stream()?.synchronize()?;
/// let clock = profiler.stop().spans()[0].clock;
/// assert_eq!((clock, clock.name()), (millrace::Clock::Host, "host"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Clock {
    /// The host's: it ran on one of our threads.
    Host,
    /// The device's, aligned with the host's: every batch lies between its being handed over and its being seen to have
    /// run.
    Device,
    /// The host's, around the whole batch that the command was part of: it ran at some time in between. Spans of one
    /// batch lie upon each other.
    Batch,
}

impl Clock {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Device => "device",
            Self::Batch => "batch",
        }
    }
}

/// One command. Times are nanoseconds since the profile began.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
/// let profiler = device.profile(&millrace::ProfileOptions::default())?;
/// stream.run(buffer.fill(.., 1))?;
/// let profile = profiler.stop();
/// let span = profile.spans()[0];
/// assert_eq!((span.kind, span.stream), (millrace::CommandKind::Fill, stream.id()));
/// assert_eq!(span.time(), span.end - span.start);
/// assert!(span.queued() <= span.start && !span.failed);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Span {
    /// The number of its operation: [`Profile::ops`] has the names.
    pub op: u32,
    /// What it was.
    pub kind: CommandKind,
    /// Its stream's number.
    pub stream: u64,
    /// When it was submitted.
    pub submitted: u64,
    /// When it began to run.
    pub start: u64,
    /// When it ended. One that never ran ended where it started.
    pub end: u64,
    /// Bytes it moved; for a kernel, those of all buffers that were bound to it.
    pub bytes: u64,
    /// Who says when.
    pub clock: Clock,
    /// Whether it failed, or never ran.
    pub failed: bool,
}

impl Span {
    /// How long it ran.
    pub fn time(&self) -> u64 {
        self.end - self.start
    }

    /// How long it waited.
    pub fn queued(&self) -> u64 {
        self.start.saturating_sub(self.submitted)
    }
}

/// The memory in use from a moment on.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// let profiler = device.profile(&millrace::ProfileOptions::default())?;
/// drop(device.allocate(256)?);
/// let profile = profiler.stop();
/// let in_use: Vec<_> = profile.memory().iter().map(|sample| sample.in_use).collect();
/// assert_eq!(in_use, [0, 256, 0]);
/// assert!(profile.memory().is_sorted_by_key(|sample| sample.at));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemorySample {
    /// Nanoseconds since the profile began.
    pub at: u64,
    /// Bytes of live buffers.
    pub in_use: u64,
}

/// What a device did while it was profiled.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// let profiler = device.profile(&millrace::ProfileOptions::default())?;
/// let (stream, buffer) = (device.stream()?, device.allocate(256)?);
/// stream.run(buffer.fill(.., 1))?;
/// let profile = profiler.stop();
/// let span = &profile.spans()[0];
/// assert_eq!((profile.device(), profile.op(span), &*profile.ops()[span.op as usize]), ("cpu", "fill", "fill"));
/// assert_eq!((profile.peak_memory(), profile.dropped(), profile.dropped_samples()), (256, 0, 0));
/// assert!(profile.time() >= span.time());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Profile {
    device: String,
    name: String,
    time: u64,
    ops: Vec<Arc<str>>,
    spans: Vec<Span>,
    memory: Vec<MemorySample>,
    peak: u64,
    dropped: u64,
    dropped_samples: u64,
}

impl Profile {
    fn collect(context: &Handle) -> Option<Self> {
        let core = &context.core;
        // First, because the next profile begins its own once that of the commands has ended.
        let memory = core.pool.end_trace();
        let recorded = core.recording.stop()?;
        let rate = millrace_ring::TickClock::rate_between(recorded.began, recorded.ended);
        let ns = |ticks: u64| (ticks.saturating_sub(recorded.began.0) as f64 / rate) as u64;
        let dropped = recorded.tracks.iter().map(|(_, log)| log.dropped()).sum();
        let mut spans = Vec::new();
        for (stream, log) in recorded.tracks {
            spans.extend(log.into_events().map(|raw| {
                let kind = record::KINDS.get(raw.op as usize).map_or(CommandKind::Launch, |(kind, _)| *kind);
                let (submitted, start, end) = (ns(raw.submitted), ns(raw.start), ns(raw.end));
                let (op, bytes, clock, failed) = (raw.op, raw.bytes, raw.clock, raw.failed);
                Span { op, kind, stream, submitted, start, end, bytes, clock, failed }
            }));
        }
        let (peak, dropped_samples) = memory.as_ref().map_or((0, 0), |trace| (trace.peak(), trace.dropped()));
        let samples = memory.into_iter().flat_map(MemoryTrace::into_samples);
        let memory = samples.map(|(at, in_use)| MemorySample { at: ns(at), in_use }).collect();
        Some(Self {
            device: core.info.id.clone(),
            name: core.info.name.clone(),
            time: ns(recorded.ended.0),
            ops: recorded.names,
            spans,
            memory,
            peak,
            dropped,
            dropped_samples,
        })
    }

    /// The device's id.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// How long it was recorded, in nanoseconds.
    pub fn time(&self) -> u64 {
        self.time
    }

    /// The commands, stream by stream, in the order in which they ended.
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// The names of operations: the kinds of commands, and the kernels that were launched.
    pub fn ops(&self) -> &[Arc<str>] {
        &self.ops
    }

    /// The name of a span's operation.
    pub fn op(&self, span: &Span) -> &str {
        self.ops.get(span.op as usize).map_or("", |name| name)
    }

    /// The memory in use over time: what it was in the beginning, and every change.
    pub fn memory(&self) -> &[MemorySample] {
        &self.memory
    }

    /// The most memory that was in use.
    pub fn peak_memory(&self) -> u64 {
        self.peak
    }

    /// Commands that are missing because there was no room for them.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Changes of the memory in use that are missing because there was no room for them.
    pub fn dropped_samples(&self) -> u64 {
        self.dropped_samples
    }

    /// How long the operations took, all together and by stream.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let profiler = device.profile(&millrace::ProfileOptions::default())?;
    /// device.stream()?.synchronize()?;
    /// let summary = profiler.stop().summary();
    /// assert_eq!((summary.all.count, summary.streams.len()), (1, 1));
    /// assert!(summary.to_string().contains("1 command on cpu"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn summary(&self) -> ProfileSummary {
        summary::summarize(self)
    }

    /// Writes a trace for <https://ui.perfetto.dev> or chrome://tracing. The file appears whole or not at all.
    ///
    /// ```
    /// let device = millrace::runtime().open("cpu")?;
    /// let profiler = device.profile(&millrace::ProfileOptions::default())?;
    /// device.stream()?.synchronize()?;
    /// let path = std::env::temp_dir().join("millrace-example-trace.json");
    /// profiler.stop().write_trace(&path)?;
    /// assert!(std::fs::read_to_string(&path)?.contains("\"synchronize\""));
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_trace(&self, path: &Path) -> io::Result<()> {
        file::write(path, |out| trace::write(self, out))
    }

    /// The same trace to anything that can be written to.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let profiler = device.profile(&millrace::ProfileOptions::default())?;
    /// device.stream()?.synchronize()?;
    /// let mut trace = Vec::new();
    /// profiler.stop().trace_to(&mut trace)?;
    /// assert!(String::from_utf8(trace)?.contains("\"synchronize\""));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trace_to(&self, out: &mut dyn io::Write) -> io::Result<()> {
        trace::write(self, out)
    }

    /// Writes a picture, an SVG: streams and under them their operations, as wide as the time they took. The file appears
    /// whole or not at all.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let profiler = device.profile(&millrace::ProfileOptions::default())?;
    /// device.stream()?.synchronize()?;
    /// let path = std::env::temp_dir().join(format!("millrace-example-{}.svg", std::process::id()));
    /// profiler.stop().write_svg(&path)?;
    /// assert!(std::fs::read_to_string(&path)?.contains("synchronize"));
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_svg(&self, path: &Path) -> io::Result<()> {
        let picture = flame::draw(&self.summary());
        file::write(path, |out| out.write_all(picture.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn span(stream: u64, op: u32, start: u64, end: u64) -> Span {
        let (kind, clock) = (CommandKind::Launch, Clock::Host);
        Span { op, kind, stream, submitted: start, start, end, bytes: 8, clock, failed: false }
    }

    /// Two streams with names that nobody should have.
    pub(super) fn example() -> Profile {
        let sample = |at, in_use| MemorySample { at, in_use };
        Profile {
            device: "cpu".into(),
            name: "\"the\" <processor> & co".into(),
            time: 10_000_000,
            ops: vec!["write".into(), "<\"kernel\">\n\\".into(), "b".into()],
            spans: vec![
                span(0, 0, 1000, 51_001),
                span(0, 1, 60_000, 2_000_000),
                span(0, 2, 61_000, 2_000_500),
                span(3, 1, 1500, 900_000),
                span(3, 2, 1500, 900_000),
            ],
            memory: vec![sample(0, 0), sample(1200, 1 << 20), sample(9_000_000, 0)],
            peak: 1 << 20,
            dropped: 0,
            dropped_samples: 0,
        }
    }
}
