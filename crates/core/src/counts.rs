//! What a device did so far.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::command::CommandKind;

/// Commands that came to their end, and what it took to run them.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let (stream, buffer) = (device.stream()?, device.allocate(16)?);
/// let before = device.counts();
/// stream.run(buffer.write(0, vec![1; 16]))?;
/// stream.run(buffer.read(..))?;
/// let counts = device.counts() - before;
/// assert_eq!((counts.writes, counts.reads, counts.launches), (1, 1, 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Writes into buffers.
    pub writes: u64,
    /// Reads out of buffers.
    pub reads: u64,
    /// Copies between buffers.
    pub copies: u64,
    /// Fills.
    pub fills: u64,
    /// Kernel launches.
    pub launches: u64,
    /// Synchronizations and markers.
    pub others: u64,
    /// Batches handed to the device's own queue; zero where commands run on our threads.
    pub submissions: u64,
    /// Kernels that were compiled.
    pub compiled: u64,
    /// Kernels that had been compiled before.
    pub reused: u64,
}

impl Counts {
    /// All commands.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// stream.run(buffer.fill(.., 1))?;
    /// stream.run(buffer.read(..))?;
    /// let counts = device.counts();
    /// assert_eq!((counts.commands(), counts.fills + counts.reads), (2, 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn commands(&self) -> u64 {
        self.writes + self.reads + self.copies + self.fills + self.launches + self.others
    }
}

impl std::ops::Sub for Counts {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            writes: self.writes - before.writes,
            reads: self.reads - before.reads,
            copies: self.copies - before.copies,
            fills: self.fills - before.fills,
            launches: self.launches - before.launches,
            others: self.others - before.others,
            submissions: self.submissions - before.submissions,
            compiled: self.compiled - before.compiled,
            reused: self.reused - before.reused,
        }
    }
}

const KINDS: usize = 6;

fn place(kind: CommandKind) -> usize {
    match kind {
        CommandKind::Write => 0,
        CommandKind::Read => 1,
        CommandKind::Copy => 2,
        CommandKind::Fill => 3,
        CommandKind::Launch => 4,
        CommandKind::Synchronize | CommandKind::Mark | CommandKind::WaitFor => 5,
    }
}

/// A stream's share of the counts. One thread at a time writes, whoever drives the stream; all may read.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    commands: [AtomicU64; KINDS],
    /// Nanoseconds for which launches ran.
    busy: AtomicU64,
    /// When the one that runs began, in nanoseconds since the device was opened and never zero; zero if none does.
    began: AtomicU64,
}

fn add(to: &AtomicU64, n: u64) {
    to.store(to.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

impl Tally {
    #[inline]
    pub(crate) fn count(&self, kind: CommandKind) {
        add(&self.commands[place(kind)], 1);
    }

    /// A launch begins, so many nanoseconds after the device was opened.
    pub(crate) fn begin(&self, at: u64) {
        self.began.store(at.max(1), Ordering::Relaxed);
    }

    /// It has ended after so many.
    pub(crate) fn end(&self, took: u64) {
        self.began.store(0, Ordering::Relaxed);
        // Who sees this sees that it has ended: nothing counts twice.
        self.busy.store(self.busy.load(Ordering::Relaxed) + took, Ordering::Release);
    }

    /// Commands of all kinds.
    pub(crate) fn total(&self) -> u64 {
        self.commands.iter().map(|n| n.load(Ordering::Relaxed)).sum()
    }

    /// For how long launches ran, so many nanoseconds after the device was opened; with the one that still does.
    pub(crate) fn busy_time(&self, now: u64) -> Duration {
        let busy = self.busy.load(Ordering::Acquire);
        let running = match self.began.load(Ordering::Relaxed) {
            0 => 0,
            began => now.saturating_sub(began),
        };
        Duration::from_nanos(busy + running)
    }

    /// Takes over what another counted.
    pub(crate) fn absorb(&self, other: &Self) {
        for (mine, theirs) in self.commands.iter().zip(&other.commands) {
            add(mine, theirs.load(Ordering::Relaxed));
        }
        add(&self.busy, other.busy.load(Ordering::Relaxed));
    }

    pub(crate) fn add_to(&self, counts: &mut Counts) {
        let n = |i: usize| self.commands[i].load(Ordering::Relaxed);
        counts.writes += n(0);
        counts.reads += n(1);
        counts.copies += n(2);
        counts.fills += n(3);
        counts.launches += n(4);
        counts.others += n(5);
    }
}
