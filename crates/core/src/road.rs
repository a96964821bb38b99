//! The road: how commands get from streams to the backend.
//!
//! A stream that has commands is *ready* and stands in the queue of its priority. Worker threads take the next ready
//! stream, hold its lane, and run its commands in order. Waking a thread costs as much as thousands of small commands,
//! so two things keep wakes rare: a worker that runs out of work lingers for about as long as a wake-up would take,
//! and a caller that waits on an idle stream drives it itself (flat combining), as long as what is there is known not
//! to take long, and nothing more urgent waits. Order, priority and deadlines are the same whoever drives.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use millrace_ring::{
    Slab, TickClock,
    reply::{ReplyPool, ReplySender},
};

use crate::{
    Error, Result,
    backend::{Backend, DeviceInfo, Direct},
    command::{Command, CommandKind, Output},
    counts::Tally,
    device::DeviceOptions,
    events::{Event, Events},
    health::Watch,
    kernel::{Kernels, LaunchBody},
    line::Line,
    pool::PoolCore,
    profile::{Recording, Stamp},
    ready::Ready,
    stream::{Envelope, Lane, StreamInner},
    timer::Timer,
};

/// What may run on a caller's thread: kernels whose recent launches all took less than `time`, and transfers of at most
/// `bytes`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bearable {
    pub(crate) time: Duration,
    pub(crate) bytes: usize,
}

/// For a caller that did not ask to wait: about what handing it to another thread would cost.
pub(crate) const BRIEF: Bearable = Bearable { time: Duration::from_micros(200), bytes: 256 * 1024 };
/// For a caller that has nothing to do but wait: not longer than a hang would take to be noticed by a human.
pub(crate) const WAITING: Bearable = Bearable { time: Duration::from_millis(50), bytes: 64 << 20 };

/// Commands a worker runs on one stream before it looks whether another of the same priority is waiting.
const TURN: usize = 16;

/// What is shared by a device's handles, streams and workers.
pub(crate) struct Core {
    pub(crate) id: u64,
    pub(crate) info: DeviceInfo,
    pub(crate) options: DeviceOptions,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) drive: Drive,
    pub(crate) pool: Arc<PoolCore>,
    pub(crate) kernels: Arc<Kernels>,
    pub(crate) replies: ReplyPool<Result<Output>>,
    pub(crate) launches: Arc<Slab<LaunchBody>>,
    /// Padded: workers write it while submitters read what is around it.
    pub(crate) ready: CachePadded<Ready>,
    pub(crate) events: Events,
    pub(crate) timer: Timer,
    pub(crate) watch: Watch,
    pub(crate) streams: Mutex<Streams>,
    /// Commands that have not started are dropped instead of run.
    pub(crate) aborting: AtomicBool,
    pub(crate) recording: Recording,
    pub(crate) opened: Instant,
    pub(crate) ticks: TickClock,
    /// The same moment in ticks.
    pub(crate) opened_at: u64,
}

/// How commands are executed: one by one on our threads, or in batches on the device's own queue.
pub(crate) enum Drive {
    Direct(Arc<dyn Direct>),
    Line(Line),
}

/// The streams of a device.
#[derive(Default)]
pub(crate) struct Streams {
    pub(crate) live: HashMap<u64, Weak<StreamInner>>,
    /// Why no more are opened.
    pub(crate) closed: Option<Error>,
    /// What those did that are gone.
    pub(crate) gone: Tally,
}

/// A command that is taken when it has run, and where its result goes. Both stay where they are on the way: each is as
/// large as a cache line, and moving one that was just written costs as much as an atomic operation.
pub(crate) type Task<'a> = (&'a mut Option<Command>, &'a mut Result<Output>);

/// What became of a command whose turn it is.
pub(crate) enum Admission {
    Run(Envelope),
    /// It is not to run.
    Refuse(Envelope, Error),
    /// The stream waits for a marker, which will bring it back.
    Waiting,
}

impl Core {
    /// A worker's life.
    pub(crate) fn work(&self) {
        match &self.drive {
            Drive::Direct(device) => {
                while let Some(stream) = self.ready.next() {
                    self.drive_as_worker(&**device, &stream);
                }
            }
            Drive::Line(line) => self.work_line(line),
        }
    }

    /// Nanoseconds of the device's life so far, by a clock that is cheap to read and goes a little wrong: for what is measured.
    #[inline]
    pub(crate) fn life(&self) -> u64 {
        self.ticks.nanos(self.ticks.now().saturating_sub(self.opened_at))
    }

    /// A moment in nanoseconds of the device's life, by the system's clock: for deadlines.
    pub(crate) fn life_at(&self, moment: Instant) -> u64 {
        moment.saturating_duration_since(self.opened).as_nanos().try_into().unwrap_or(u64::MAX)
    }

    pub(crate) fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn live_streams(&self) -> Vec<Arc<StreamInner>> {
        self.streams().live.values().filter_map(Weak::upgrade).collect()
    }

    fn drive_as_worker(&self, device: &dyn Direct, stream: &Arc<StreamInner>) {
        let mut lane = stream.lane();
        let (mut ran, mut turn) = (0, TURN);
        if !stream.bias.close() {
            drop(lane);
            return self.leave(stream, 0); // a caller that does not come out must not keep a worker from other streams
        }
        loop {
            let Some(envelope) = stream.next(&mut lane) else {
                // What comes next is left to whoever waits for it.
                let left = stream.habit.is_to_wait() || stream.prompt.is_usual();
                if !left && self.linger(&mut lane) {
                    continue;
                }
                break;
            };
            if !self.advance(device, stream, envelope, &mut lane, &mut ran) {
                return;
            }
            turn -= 1;
            if turn == 0 {
                self.ready.end_due_offers();
                if self.ready.any() {
                    break;
                }
                turn = TURN;
            }
            if self.ready.has_before(stream.priority) {
                break;
            }
        }
        drop(lane);
        self.leave(stream, ran);
    }

    /// Runs a stream's commands until `done`, or until one may take long. The caller has taken the stream from the ready queue.
    pub(crate) fn drive_as_caller(
        &self,
        device: &dyn Direct,
        stream: &Arc<StreamInner>,
        mut done: impl FnMut() -> bool,
    ) {
        let mut ran = 0;
        let mut lane = stream.lane();
        // Not if this is a command of the stream that waits for one behind it, in vain.
        let free = stream.bias.close();
        while free && !done() && !self.ready.has_before(stream.priority) {
            let Some(envelope) = stream.next(&mut lane) else { break };
            if !envelope.command.is_within(&WAITING) {
                stream.hold(&mut lane, envelope);
                break;
            }
            if !self.advance(device, stream, envelope, &mut lane, &mut ran) {
                return;
            }
        }
        drop(lane);
        self.leave(stream, ran);
    }

    /// Counts out what was run and gives up the right to drive; if there is more, somebody else gets it.
    pub(crate) fn leave(&self, stream: &Arc<StreamInner>, ran: isize) {
        if stream.finished(ran) {
            self.ready.push(stream.clone());
        }
    }

    /// Waits a while for the next command of the stream; false if it is time to do something else.
    fn linger(&self, lane: &mut Lane) -> bool {
        lane.ring.give_head_start();
        let more = self.ready.linger(|| {
            if !lane.ring.is_empty() {
                return Some(true);
            }
            (self.ready.any() || self.ready.stopping.load(Ordering::Relaxed)).then_some(false)
        });
        if more == Some(true) && self.ready.any() {
            // Somebody counted on us to take another stream.
            self.ready.wake_one();
        }
        more == Some(true)
    }

    /// Looks at the next command: whether it may run, now or ever.
    #[inline]
    pub(crate) fn admit(
        &self,
        stream: &Arc<StreamInner>,
        envelope: Envelope,
        lane: &mut Lane,
        ran: &mut isize,
    ) -> Admission {
        if self.aborting.load(Ordering::Relaxed) {
            return Admission::Refuse(envelope, self.watch.lost().unwrap_or(Error::Aborted));
        }
        if envelope.deadline != 0 && self.life_at(Instant::now()) >= envelope.deadline {
            return Admission::Refuse(envelope, Error::Deadline);
        }
        if stream.is_cancelled(&envelope.reply) {
            return Admission::Refuse(envelope, Error::Cancelled);
        }
        if let Command::WaitFor(marker) = &envelope.command
            && !marker.is_decided()
        {
            let marker = marker.clone();
            stream.hold(lane, envelope);
            // All that was run is counted out before the marker can bring the stream to another driver.
            stream.finished(std::mem::take(ran));
            if marker.check_or_wait(stream).is_none() {
                return Admission::Waiting;
            }
            // Decided meanwhile, and nobody but us takes it from the front.
            if let Some(envelope) = stream.next(lane) {
                return Admission::Run(envelope);
            }
            return Admission::Waiting;
        }
        Admission::Run(envelope)
    }

    /// Runs one command, or refuses it, and answers; false if the stream has to wait.
    fn advance(
        &self,
        device: &dyn Direct,
        stream: &Arc<StreamInner>,
        envelope: Envelope,
        lane: &mut Lane,
        ran: &mut isize,
    ) -> bool {
        let (reply, kind, result) = match self.admit(stream, envelope, lane, ran) {
            Admission::Waiting => return false,
            Admission::Refuse(Envelope { command, reply, stamp, .. }, error) => {
                let kind = command.kind();
                self.recording.refused(stream, stamp, &command);
                quietly_drop(command);
                (reply, kind, Err(error))
            }
            Admission::Run(Envelope { command, reply, stamp, .. }) => {
                let kind = command.kind();
                let start = self.recording.then(stamp);
                let (mut command, mut result) = (Some(command), Ok(Output::Done));
                self.execute(device, stream, (&mut command, &mut result), stamp, start);
                (reply, kind, result)
            }
        };
        *ran += 1;
        self.answer(stream, kind, reply, result);
        true
    }

    /// A command that was taken from its stream will not run.
    pub(crate) fn refuse(&self, stream: &Arc<StreamInner>, envelope: Envelope, error: Error) {
        let kind = envelope.command.kind();
        self.recording.refused(stream, envelope.stamp, &envelope.command);
        quietly_drop(envelope.command);
        self.answer(stream, kind, envelope.reply, Err(error));
    }

    /// Tells whoever waits for a command, and whoever watches.
    pub(crate) fn answer(
        &self,
        stream: &StreamInner,
        kind: CommandKind,
        reply: ReplySender<Result<Output>>,
        result: Result<Output>,
    ) {
        self.ended(stream, kind, &result);
        let cancelled = stream.is_cancelled(&reply);
        // The waker that this calls is foreign code.
        let sent = catch_unwind(AssertUnwindSafe(|| reply.send(result))).unwrap_or_else(|panic| {
            quietly_drop(panic);
            Ok(())
        });
        if let Err(Err(error)) = sent
            && !(cancelled && error == Error::Deadline)
        {
            stream.keep_error(error); // a ticket that told of its deadline has cancelled
        }
    }

    /// A command has come to its end.
    fn ended(&self, stream: &StreamInner, command: CommandKind, result: &Result<Output>) {
        stream.tally.count(command);
        if self.watch.is_troubled() {
            self.moved();
        }
        self.events.emit(|| match result {
            Ok(_) => Event::Completed { stream: stream.id, command },
            Err(error) => Event::Failed { stream: stream.id, command, error: error.clone() },
        });
    }

    /// Runs a command on the calling thread, which has the right to drive the stream.
    #[inline]
    pub(crate) fn run_here(&self, device: &dyn Direct, stream: &Arc<StreamInner>, task: Task<'_>) {
        let Some(kind) = task.0.as_ref().map(Command::kind) else { return };
        let stamp = self.recording.stamp();
        self.execute(device, stream, (&mut *task.0, &mut *task.1), stamp, stamp);
        self.ended(stream, kind, task.1);
    }

    /// Executes and drops a command, whose stamp says whether it is profiled; a panic of either becomes an error.
    #[inline]
    fn execute(&self, device: &dyn Direct, stream: &Arc<StreamInner>, task: Task<'_>, stamp: Stamp, start: Stamp) {
        if stamp.is_set() {
            let ran = |command: &Command, failed| self.recording.ran(stream, stamp, start, command, failed);
            self.execute_and_tell(device, stream, task, ran);
        } else {
            self.execute_and_tell(device, stream, task, |_, _| ());
        }
    }

    /// The same, with something to do when it has run: another function while nobody profiles, which does nothing then.
    fn execute_and_tell(
        &self,
        device: &dyn Direct,
        stream: &Arc<StreamInner>,
        (slot, result): Task<'_>,
        ended: impl Fn(&Command, bool),
    ) {
        let run = || {
            let Some(command) = slot else { return };
            let begun = matches!(command, Command::Launch(_)).then(|| self.life());
            if let Some(begun) = begun {
                stream.tally.begin(begun);
            }
            *result = match command {
                Command::Synchronize => stream.take_error().map_or(Ok(Output::Done), Err),
                Command::Mark(signal) => {
                    signal.reach();
                    Ok(Output::Done)
                }
                Command::WaitFor(marker) => marker.check_or_wait(stream).unwrap_or(Ok(())).map(|()| Output::Done),
                _ => device.execute(command),
            };
            if let (Command::Launch(launch), Some(begun)) = (&*command, begun) {
                let took = self.life().saturating_sub(begun);
                launch.body().kernel().took(took);
                stream.tally.end(took);
            }
            ended(command, result.is_err());
            // Before the answer, so that whoever waited finds the buffers free.
            *slot = None;
        };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
            stream.tally.end(0);
            *result = Err(Error::from_panic(&*panic));
            quietly_drop(panic);
            if let Some(command) = slot.take() {
                ended(&command, true);
                // By itself, because a second panic on the way out of the first would have ended the process.
                quietly_drop(command);
            }
        }
    }
}

/// Drops something foreign whose drop may panic.
pub(crate) fn quietly_drop<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        tracing::warn!(error = %Error::from_panic(&*panic), "a drop panicked");
        // A payload that panics when dropped is not given another chance.
        std::mem::forget(panic);
    }
}
