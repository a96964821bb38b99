//! Batches that the device is working on.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace_core::{Error, Memory, Output, Ran, Result, Submission, View};

use crate::{
    batch::{block_of, map_now},
    device::Shared,
    staging::Download,
    timing::Times,
};

/// How long a wait keeps its processor awake before it sleeps: so long at least, and three times what it expects, if that is
/// not much. Small dispatches are seen to end at once then, and the driver's threads do not sleep in between; a large one
/// needs that processor itself, if the driver is software.
const WAKEFUL: Duration = Duration::from_micros(100);
const MUCH: Duration = Duration::from_millis(2);

/// What a dispatch took lately, by which the next batch is expected to take so long for each.
#[derive(Default)]
pub(crate) struct Pace(AtomicU64);

impl Pace {
    /// How long a batch of so many dispatches should be waited for without sleeping.
    fn wakeful(&self, dispatches: u32) -> Duration {
        let expected = Duration::from_nanos(self.0.load(Ordering::Relaxed)) * dispatches;
        if expected < MUCH { WAKEFUL + 3 * expected } else { WAKEFUL }
    }

    /// A batch of so many dispatches was seen to end after so long.
    fn took(&self, time: Duration, dispatches: u32) {
        if dispatches > 0 {
            let (each, before) = (time.as_nanos() as u64 / u64::from(dispatches), self.0.load(Ordering::Relaxed));
            self.0.store((3 * before + each) / 4, Ordering::Relaxed);
        }
    }
}

/// Where the bytes of a read are once the batch has run.
pub(crate) enum ReadBack {
    /// There are none.
    Nothing,
    /// In the buffer itself.
    InPlace { memory: Arc<Memory>, range: Range<usize> },
    /// In readback memory: the bytes `within` this range of it.
    Staged { piece: Arc<Download>, range: Range<u64>, within: Range<usize> },
}

pub(crate) struct GpuSubmission {
    shared: Arc<Shared>,
    number: u64,
    /// None if nothing had to be submitted.
    index: Option<wgpu::SubmissionIndex>,
    reads: Vec<ReadBack>,
    dispatches: u32,
    since: Instant,
    /// When a wait may sleep.
    sleepy: Instant,
    /// While a profile is on.
    times: Option<Times>,
}

impl GpuSubmission {
    pub(crate) fn new(
        shared: Arc<Shared>,
        number: u64,
        index: Option<wgpu::SubmissionIndex>,
        reads: Vec<ReadBack>,
        dispatches: u32,
        times: Option<Times>,
    ) -> Self {
        let since = Instant::now();
        let sleepy = since + shared.pace.wakeful(dispatches);
        Self { shared, number, index, reads, dispatches, since, sleepy, times }
    }

    /// Looks whether it has run.
    fn has_run(&self, index: &wgpu::SubmissionIndex) -> Result<bool> {
        let empty = matches!(self.shared.device.poll(wgpu::PollType::Poll), Ok(wgpu::PollStatus::QueueEmpty));
        self.shared.check()?;
        // Asking for one submission costs more, and says more only if there are several.
        if empty || self.shared.depth == 1 { Ok(empty) } else { self.poll(index, Duration::ZERO) }
    }

    /// Looks, or sleeps at most so long: whether it has run.
    fn poll(&self, index: &wgpu::SubmissionIndex, timeout: Duration) -> Result<bool> {
        let wait = wgpu::PollType::Wait { submission_index: Some(index.clone()), timeout: Some(timeout) };
        let polled = self.shared.device.poll(wait);
        self.shared.check()?;
        match polled {
            Ok(_) => Ok(true),
            Err(wgpu::PollError::Timeout) => Ok(false),
            Err(error) => Err(Error::DeviceLost(error.to_string().into())),
        }
    }
}

impl Submission for GpuSubmission {
    fn wait(&self, timeout: Duration) -> Result<bool> {
        let Some(index) = &self.index else {
            self.shared.landed.fetch_max(self.number, Ordering::AcqRel);
            return Ok(true);
        };
        let until = Instant::now() + timeout;
        let ran = loop {
            if self.has_run(index)? {
                break true;
            }
            let now = Instant::now();
            if now >= self.sleepy {
                break self.poll(index, until.saturating_duration_since(now))?;
            }
            if now >= until {
                break false;
            }
            std::thread::yield_now();
        };
        if ran {
            self.shared.pace.took(self.since.elapsed(), self.dispatches);
            self.shared.landed.fetch_max(self.number, Ordering::AcqRel);
        }
        Ok(ran)
    }

    fn read(&self, number: usize) -> Result<Output> {
        let gone = || Error::Device("what was read cannot be mapped".into());
        let bytes = match self.reads.get(number).ok_or_else(gone)? {
            ReadBack::Nothing => Bytes::new(),
            ReadBack::Staged { piece, range, within } => piece.bytes(range.clone(), within.clone()).ok_or_else(gone)?,
            ReadBack::InPlace { memory, range } => {
                let buffer = &block_of(memory)?.buffer;
                let start = range.start / 8 * 8;
                let bounds = start as u64..(range.end as u64).next_multiple_of(4);
                if !map_now(&self.shared.device, buffer, wgpu::MapMode::Read, bounds.clone()) {
                    self.shared.check()?;
                    return Err(gone());
                }
                let bytes = buffer
                    .get_mapped_range(bounds)
                    .map(|view| self.shared.fetches.copy(&view[range.start - start..range.end - start]));
                buffer.unmap();
                bytes.map_err(|_| gone())?
            }
        };
        Ok(Output::View(View::fetched(bytes)))
    }

    fn ran(&self, command: usize) -> Ran {
        self.times.as_ref().map_or(Ran::Unknown, |times| times.ran(command))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_stays_awake_for_small_dispatches_and_sleeps_for_large_ones() {
        let pace = Pace::default();
        assert_eq!(pace.wakeful(20), WAKEFUL, "nothing is known yet");
        (0..100).for_each(|_| pace.took(Duration::from_micros(800), 20));
        let (few, many) = (pace.wakeful(1), pace.wakeful(20));
        assert!(few < many && many > Duration::from_millis(2), "{few:?} {many:?}");
        (0..100).for_each(|_| pace.took(Duration::from_millis(5), 1));
        assert_eq!(pace.wakeful(1), WAKEFUL, "the driver needs the processor");
        pace.took(Duration::from_millis(1), 0); // transfers say nothing of dispatches
        assert_eq!(pace.wakeful(1), WAKEFUL);
    }
}
