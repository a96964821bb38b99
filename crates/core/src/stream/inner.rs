//! What a stream is behind its handles: the queue, who may drive it, and what became of its commands.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicIsize, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use millrace_ring::{Bias, mpsc, reply::ReplySender};

use super::{Priority, StreamOptions};
use crate::{
    Error, Result,
    command::{Command, Output},
    context::Context,
    counts::Tally,
    events::Event,
    habit::{Habit, Promptness},
    profile::{Stamp, Track},
    road::Drive,
    timer::Timer,
};

/// A command on its way, with what is needed to answer it.
pub(crate) struct Envelope {
    pub(crate) command: Command,
    pub(crate) reply: ReplySender<Result<Output>>,
    /// In nanoseconds of the device's life, which with the stamp take no more room than an instant; zero if none.
    pub(crate) deadline: u64,
    /// Whether it is profiled, and since when it waits.
    pub(crate) stamp: Stamp,
}

/// The receiving end of a stream's queue: whoever holds it drives the stream.
pub(crate) struct Lane {
    pub(crate) ring: mpsc::Receiver<Envelope>,
    /// A command that was taken from the ring and could not run yet.
    pub(crate) front: Option<Envelope>,
}

/// Until when one waits, and what had moved when it began to.
pub(crate) struct Patience {
    progress: u64,
    pub(crate) until: Instant,
}

pub(crate) struct StreamInner {
    pub(crate) id: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) priority: Priority,
    pub(super) ring: mpsc::Sender<Envelope>,
    /// Padded, as what follows: the driver writes it with every command, and submitters read what is above.
    pub(crate) lane: CachePadded<Mutex<Lane>>,
    /// Commands that were counted in by submitters, less those that were counted out by drivers. The one who lifts it
    /// from zero to one has to see to it that somebody drives; the one who brings it to zero or below stops driving.
    /// It can be negative for the moment between a command's submission and its being counted.
    pub(super) pending: CachePadded<AtomicIsize>,
    /// Lets the one thread that runs commands here drive without counting them. All other drivers close it first.
    pub(crate) bias: CachePadded<Bias>,
    /// Commands finished. Written by whoever drives.
    pub(crate) tally: CachePadded<Tally>,
    /// The first error that nobody waited for.
    unclaimed: CachePadded<Mutex<Option<Error>>>,
    /// Whether it stands in the ready queue. Changed under that queue's lock.
    pub(crate) queued: AtomicBool,
    /// Whether it is left for its caller. Changed under that lock, too.
    pub(crate) offered: AtomicBool,
    /// Whether callers come for what is left for them.
    pub(crate) habit: Habit,
    /// Whether they wait at once for what they submit. Padded: they write it every time.
    pub(crate) prompt: CachePadded<Promptness>,
    /// Whether the lane has a command in front of its ring.
    held: AtomicBool,
    /// Whether a ticket was ever cancelled. Before that, nobody has to look at a reply slot to know that its command
    /// was not: it is on the asker's core.
    cancelling: AtomicBool,
    /// Where profiles keep its spans, once one was on.
    pub(crate) track: OnceLock<Arc<Track>>,
}

impl fmt::Debug for StreamInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.id)
    }
}

impl StreamInner {
    pub(crate) fn new(id: u64, context: Arc<Context>, options: &StreamOptions) -> Result<Self> {
        let (sender, receiver) =
            mpsc::bounded(options.capacity).map_err(|error| Error::Invalid(error.to_string().into()))?;
        Ok(Self {
            id,
            context,
            priority: options.priority,
            ring: sender,
            lane: CachePadded::new(Mutex::new(Lane { ring: receiver, front: None })),
            pending: CachePadded::new(AtomicIsize::new(0)),
            bias: CachePadded::default(),
            tally: CachePadded::default(),
            unclaimed: CachePadded::default(),
            queued: AtomicBool::new(false),
            offered: AtomicBool::new(false),
            habit: Habit::default(),
            prompt: CachePadded::default(),
            held: AtomicBool::new(false),
            cancelling: AtomicBool::new(false),
            track: OnceLock::new(),
        })
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn timeout(&self) -> Duration {
        self.context.core.options.timeout
    }

    pub(crate) fn timer(&self) -> &Timer {
        &self.context.core.timer
    }

    /// Counts what moves: on this stream, or on the queue that it shares with all others.
    fn progress(&self) -> u64 {
        match &self.context.core.drive {
            Drive::Direct(_) => self.tally.total(),
            Drive::Line(line) => line.landings(),
        }
    }

    /// Whether its commands run on a queue of the device's own, which those who wait attend.
    pub(crate) fn is_attended(&self) -> bool {
        matches!(self.context.core.drive, Drive::Line(_))
    }

    /// Commands in the queue.
    pub(crate) fn waiting(&self) -> usize {
        self.ring.len()
    }

    /// For one who waits without a deadline of its own.
    pub(crate) fn patience(&self) -> Patience {
        Patience { progress: self.progress(), until: Instant::now() + self.timeout() }
    }

    /// The time of one who waits is up. There is more of it if something moved here meanwhile, or if the device has had what it
    /// is to do for less than its timeout. If not, that is the device's fault only if a command was running: one that waits for
    /// a marker may wait for the caller.
    pub(crate) fn renew(&self, patience: &mut Patience) -> Result<()> {
        let core = &self.context.core;
        if self.progress() != patience.progress {
            *patience = self.patience();
            return Ok(());
        }
        match &core.drive {
            Drive::Direct(_) if self.is_driven() => core.strike(self.timeout()),
            Drive::Direct(_) => {}
            Drive::Line(line) => {
                if let Some(until) = core.look_after(line) {
                    patience.until = until;
                    return Ok(());
                }
            }
        }
        Err(core.watch.lost().unwrap_or(Error::Stalled(self.timeout())))
    }

    /// For one who waits with a deadline: when to look whether the device still gets on, if nobody else might.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.is_attended().then(|| Instant::now() + self.timeout())
    }

    /// Complains of a device with a queue of its own that does not get on.
    pub(crate) fn look_after_device(&self) {
        let core = &self.context.core;
        if let Drive::Line(line) = &core.drive {
            core.look_after(line);
        }
    }

    /// Why the device is lost, if it is.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.context.core.watch.lost()
    }

    /// Whether something is waiting or running. The ring is asked as well: a submitter may not have counted yet.
    pub(crate) fn is_busy(&self) -> bool {
        !self.is_empty() || self.pending.load(Ordering::SeqCst) > 0 || self.bias.is_occupied()
    }

    /// Whether nothing waits. `pending` alone does not tell: a command that ran before its submitter has counted it
    /// hides one that was submitted since.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty() && !self.held.load(Ordering::SeqCst)
    }

    /// The next command, in order. Only a driver calls it.
    #[inline]
    pub(crate) fn next(&self, lane: &mut Lane) -> Option<Envelope> {
        if self.held.load(Ordering::Relaxed) {
            self.held.store(false, Ordering::SeqCst);
            return lane.front.take();
        }
        lane.ring.try_recv().ok()
    }

    /// Some command of it is no longer wanted; to be called before its reply slot says which.
    pub(crate) fn cancelling(&self) {
        self.cancelling.store(true, Ordering::Relaxed);
    }

    /// Whether a command is no longer wanted.
    #[inline]
    pub(crate) fn is_cancelled(&self, reply: &ReplySender<Result<Output>>) -> bool {
        self.cancelling.load(Ordering::Relaxed) && reply.is_cancelled()
    }

    /// Puts a command back that cannot run yet: it is the next again.
    pub(crate) fn hold(&self, lane: &mut Lane, envelope: Envelope) {
        lane.front = Some(envelope);
        self.held.store(true, Ordering::SeqCst);
    }

    /// Counts out what a driver has finished; true if there is more.
    #[inline]
    pub(crate) fn finished(&self, commands: isize) -> bool {
        self.pending.fetch_sub(commands, Ordering::SeqCst) > commands
    }

    pub(crate) fn lane(&self) -> MutexGuard<'_, Lane> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a driver holds the lane right now.
    pub(crate) fn is_driven(&self) -> bool {
        matches!(self.lane.try_lock(), Err(std::sync::TryLockError::WouldBlock))
    }

    pub(crate) fn close(&self) {
        self.ring.close();
    }

    /// Keeps an error that nobody waited for, if it is the first. Who cancels and leaves knows already.
    pub(crate) fn keep_error(&self, error: Error) {
        if error == Error::Cancelled {
            return;
        }
        self.unclaimed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    pub(crate) fn take_error(&self) -> Option<Error> {
        self.unclaimed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Somebody waits for a ticket, for as long as it takes.
    #[inline]
    pub(crate) fn waits(&self) {
        self.prompt.waits(|| self.context.core.ticks.now());
    }

    /// What it waited for has happened.
    pub(crate) fn resume(self: Arc<Self>) {
        let core = self.context.core.clone();
        core.ready.push(self);
    }

    /// See [`Ticket::wait`].
    pub(crate) fn drive_while_waiting(self: Arc<Self>, deadline: Option<Instant>, done: impl FnMut() -> bool) {
        let core = self.context.core.clone();
        match &core.drive {
            Drive::Direct(device) => {
                self.habit.waits(|| core.life());
                // A kernel may take longer than whoever has a deadline can wait.
                if deadline.is_some() {
                    core.ready.end_offer(&self);
                } else if core.ready.claim(&self) {
                    core.drive_as_caller(&**device, &self, done);
                } else if self.queued.load(Ordering::Relaxed) {
                    // Something more urgent is to be done first, and nobody was woken for this.
                    core.ready.end_offer(&self);
                    core.ready.wake_one();
                }
            }
            Drive::Line(line) => {
                let deadline = deadline.unwrap_or_else(|| Instant::now() + self.timeout());
                core.attend_as_caller(line, deadline, done);
            }
        }
    }

    /// A command was put into the ring: see to it that somebody drives.
    #[inline(always)]
    pub(super) fn submitted(self: &Arc<Self>) {
        let core = &self.context.core;
        if self.pending.fetch_add(1, Ordering::SeqCst) == 0 {
            core.ready.push(self.clone());
        } else if let Drive::Line(_) = core.drive {
            core.ready.hurry();
        } else {
            core.ready.end_offer(self);
        }
    }
}

impl Drop for StreamInner {
    fn drop(&mut self) {
        let mut streams = self.context.core.streams();
        let opened = streams.live.remove(&self.id);
        streams.gone.absorb(&self.tally);
        drop(streams);
        if opened.is_some() {
            self.context.core.events.emit(|| Event::StreamClosed { stream: self.id });
        }
    }
}
