//! Batches that the device is working on.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering},
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

/// What is expected to take less is waited for awake: small dispatches are seen to end at once then, and a software driver's
/// threads stay together on another processor. A single sleep spreads them over all, and there they stay: every dispatch after
/// it takes half as long again, or twice as long.
const SMALL: Duration = Duration::from_millis(2);
/// How long such a wait is awake, and one for a kernel's first dispatch, with which a driver may make code of it: a machine that
/// is elsewhere for a while, or somebody else's work in front, is no reason for that one sleep.
const AWAKE: Duration = Duration::from_millis(20);
/// From here on a dispatch is large for a software driver, which then needs all processors itself.
const LARGE: Duration = Duration::from_micros(300);

/// How long what a batch has read is waited for once the batch has run. It is there by then, but another thread may have yet to
/// say so, and may be kept from its processor.
pub(crate) const LANDED: Duration = Duration::from_secs(1);

/// The pace is the median of so many batches: a machine that is elsewhere for a while makes one of them slow, not the dispatches.
const RECENT: usize = 5;
/// Of so many waits for dispatches that are not much larger than large, as many are awake all the same as can change the pace.
const TRY_EVERY: u32 = 16 * RECENT as u32;

/// What a batch has to do, as far as it is known.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Work {
    /// Groups of all dispatches, and of the one that has most.
    groups: u64,
    largest: u64,
    /// Whether one of them is the first of its kernel.
    first: bool,
}

impl Work {
    /// One more dispatch, of so many groups.
    pub(crate) fn add(&mut self, groups: u64, first: bool) {
        self.groups += groups.max(1);
        self.largest = self.largest.max(groups).max(1);
        self.first |= first;
    }

    /// How many dispatches of the size of its largest it amounts to: what ends a sum, say, counts for nothing beside what begins it.
    fn dispatches(self) -> u32 {
        self.groups.checked_div(self.largest).map_or(0, |many| many.min(u64::from(u32::MAX)) as u32)
    }
}

/// What a dispatch took lately, by which the next batch is expected to take so long for each of its size.
pub(crate) struct Pace {
    /// Nanoseconds for each dispatch of the last batches; zero where there was none yet.
    recent: [AtomicU64; RECENT],
    seen: AtomicUsize,
    /// From here on a wait for a dispatch is better asleep.
    large: Duration,
    /// Waits that might have begun with sleeping.
    doubts: AtomicU32,
}

impl Pace {
    pub(crate) fn new(software: bool) -> Self {
        let large = if software { LARGE } else { SMALL };
        Self { recent: Default::default(), seen: AtomicUsize::new(0), large, doubts: AtomicU32::new(0) }
    }

    /// How long a batch should be waited for without sleeping.
    fn wakeful(&self, work: Work) -> Duration {
        let each = self.each();
        let small = work.first || work.largest == 0 || each < self.large && each * work.dispatches() < SMALL;
        // Those that are just large are slower because of the sleep, and would stay so.
        let doubtful = || {
            let tries = TRY_EVERY - RECENT as u32;
            each < 4 * self.large && self.doubts.fetch_add(1, Ordering::Relaxed) % TRY_EVERY >= tries
        };
        if small || doubtful() { AWAKE } else { Duration::ZERO }
    }

    fn each(&self) -> Duration {
        let mut recent = self.recent.each_ref().map(|nanos| nanos.load(Ordering::Relaxed));
        recent.sort_unstable();
        Duration::from_nanos(recent[RECENT / 2])
    }

    /// A batch was seen to end after so long.
    fn took(&self, time: Duration, work: Work) {
        if work.largest > 0 && !work.first {
            let oldest = self.seen.fetch_add(1, Ordering::Relaxed) % RECENT;
            let each = time.as_nanos() as u64 / u64::from(work.dispatches());
            self.recent[oldest].store(each, Ordering::Relaxed);
        }
    }
}

/// Looks until it is so, and gives the processor to others in between; false if it is not by then.
pub(crate) fn awake(until: Instant, mut look: impl FnMut() -> Result<bool>) -> Result<bool> {
    loop {
        if look()? {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        std::thread::yield_now();
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
    work: Work,
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
        work: Work,
        times: Option<Times>,
    ) -> Self {
        let since = Instant::now();
        let sleepy = since + shared.pace.wakeful(work);
        Self { shared, number, index, reads, work, since, sleepy, times }
    }

    /// Looks whether it has run.
    fn has_run(&self, index: &wgpu::SubmissionIndex) -> Result<bool> {
        let empty = matches!(self.shared.poll(wgpu::PollType::Poll), Ok(wgpu::PollStatus::QueueEmpty));
        self.shared.check()?;
        // Asking for one submission costs more, and says more only if there are several.
        if empty || self.shared.depth == 1 { Ok(empty) } else { self.poll(index, Duration::ZERO) }
    }

    /// Looks, or sleeps at most so long: whether it has run.
    fn poll(&self, index: &wgpu::SubmissionIndex, timeout: Duration) -> Result<bool> {
        let wait = wgpu::PollType::Wait { submission_index: Some(index.clone()), timeout: Some(timeout) };
        let polled = self.shared.poll(wait);
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
        self.shared.prepare_encoder();
        let ran = awake(until.min(self.sleepy), || self.has_run(index))?
            || self.sleepy < until && self.poll(index, until.saturating_duration_since(Instant::now()))?;
        if ran {
            self.shared.pace.took(self.since.elapsed(), self.work);
            self.shared.landed.fetch_max(self.number, Ordering::AcqRel);
        }
        Ok(ran)
    }

    fn read(&self, number: usize) -> Result<Output> {
        let gone = || Error::Device("what was read cannot be mapped".into());
        let bytes = match self.reads.get(number).ok_or_else(gone)? {
            ReadBack::Nothing => Bytes::new(),
            ReadBack::Staged { piece, range, within } => {
                piece.bytes(&self.shared, range.clone(), within.clone()).ok_or_else(gone)?
            }
            ReadBack::InPlace { memory, range } => {
                let buffer = &block_of(memory)?.buffer;
                let start = range.start / 8 * 8;
                let bounds = start as u64..(range.end as u64).next_multiple_of(4);
                if !map_now(&self.shared, buffer, wgpu::MapMode::Read, bounds.clone(), LANDED) {
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
        let pace = Pace::new(true);
        let work = |dispatches: &[u64]| {
            let mut work = Work::default();
            dispatches.iter().for_each(|&groups| work.add(groups, false));
            work
        };
        let (none, one, twenty) = (work(&[]), work(&[1]), work(&[1; 20]));
        let is_awake = |work| !pace.wakeful(work).is_zero();
        let took = |times, micros, work| (0..times).for_each(|_| pace.took(Duration::from_micros(micros), work));
        assert!(is_awake(twenty), "nothing is known yet");
        took(RECENT, 800, twenty);
        assert!(is_awake(one) && is_awake(twenty));
        took(RECENT, 50_000, Work { first: true, ..one }); // most of it was not the dispatch
        took(RECENT / 2, 50_000, one); // the machine was elsewhere
        assert!(is_awake(one));
        took(RECENT, 800, work(&[64, 1, 1]));
        assert!(!is_awake(one), "the driver needs the processor");
        assert!(!is_awake(work(&[64, 1, 1])), "two small ones behind it change nothing");
        assert!(is_awake(Work { first: true, ..one }), "not yet");
        took(RECENT, 1, none); // transfers say nothing of dispatches
        assert!(!is_awake(one));
        assert!(is_awake(none), "nor dispatches of transfers");
        let tries = (0..4 * TRY_EVERY).filter(|_| is_awake(one)).count();
        assert_eq!(tries, 4 * RECENT, "it may have been the sleep that took so long");
        took(RECENT, 5000, one);
        assert!((0..4 * TRY_EVERY).all(|_| !is_awake(one)), "not that long");
        let hardware = Pace::new(false);
        (0..RECENT).for_each(|_| hardware.took(Duration::from_micros(800), one));
        assert!(!hardware.wakeful(one).is_zero(), "it has processors of its own");
    }
}
