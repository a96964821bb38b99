//! The road: how commands get from streams to the backend.
//!
//! A stream that has commands is *ready* and stands in the queue of its priority. Worker threads take the next ready
//! stream, hold its lane, and run its commands in order. Waking a thread costs as much as thousands of small commands,
//! so two things keep wakes rare: a worker that runs out of work lingers for about as long as a wake-up would take,
//! and a caller that waits on an idle stream drives it itself (flat combining), as long as what is there is known to
//! be brief, and nothing more urgent waits. Order, priority and deadlines are the same whoever drives.

use std::{
    collections::{HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use millrace_ring::{Slab, poll_while_worthwhile, reply::ReplyPool};

use crate::{
    Error, Result,
    command::{Command, CommandKind, Output},
    device::{Backend, DeviceInfo, DeviceOptions},
    events::{Event, Events},
    kernel::LaunchBody,
    pool::PoolCore,
    stream::{Envelope, Lane, Priority, StreamInner},
    timer::Timer,
};

/// A kernel whose recent launches all took less may run on a waiting caller's thread.
pub(crate) const BRIEF: Duration = Duration::from_micros(200);
/// So may a transfer of at most this many bytes.
pub(crate) const BRIEF_BYTES: usize = 256 * 1024;

/// Commands a worker runs on one stream before it looks whether another of the same priority is waiting.
const TURN: usize = 16;
/// How often a less urgent stream is passed over before it gets a turn.
pub(crate) const PASSED_OVER: u32 = 8;

const LEVELS: usize = 3;

/// What is shared by a device's handles, streams and workers.
pub(crate) struct Core {
    pub(crate) id: u64,
    pub(crate) info: DeviceInfo,
    pub(crate) options: DeviceOptions,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) pool: Arc<PoolCore>,
    pub(crate) replies: ReplyPool<Result<Output>>,
    pub(crate) launches: Arc<Slab<LaunchBody>>,
    /// Padded: workers write it while submitters read what is around it.
    pub(crate) ready: CachePadded<Ready>,
    pub(crate) events: Events,
    pub(crate) timer: Timer,
    pub(crate) streams: Mutex<HashMap<u64, Weak<StreamInner>>>,
    /// Commands that have not started are dropped instead of run.
    pub(crate) aborting: AtomicBool,
}

enum Advance {
    Finished,
    /// The stream waits for a marker, which will bring it back.
    Waiting,
}

impl Core {
    /// A worker's life.
    pub(crate) fn work(&self) {
        while let Some(stream) = self.ready.next() {
            self.drive_as_worker(&stream);
        }
    }

    fn drive_as_worker(&self, stream: &Arc<StreamInner>) {
        let mut lane = stream.lane();
        let (mut ran, mut turn) = (0, TURN);
        loop {
            let Some(envelope) = stream.next(&mut lane) else {
                if self.linger(&mut lane) {
                    continue;
                }
                break;
            };
            if let Advance::Waiting = self.advance(stream, envelope, &mut lane, &mut ran) {
                return;
            }
            turn -= 1;
            if turn == 0 {
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

    /// Runs a stream's brief commands until `done`. The caller has taken the stream from the ready queue.
    pub(crate) fn drive_as_caller(&self, stream: &Arc<StreamInner>, mut done: impl FnMut() -> bool) {
        let mut ran = 0;
        let mut lane = stream.lane();
        while !done() && !self.ready.has_before(stream.priority) {
            let Some(envelope) = stream.next(&mut lane) else { break };
            if !envelope.command.is_brief() {
                stream.hold(&mut lane, envelope);
                break;
            }
            if let Advance::Waiting = self.advance(stream, envelope, &mut lane, &mut ran) {
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

    /// Runs one command, or refuses it, and answers.
    fn advance(&self, stream: &Arc<StreamInner>, envelope: Envelope, lane: &mut Lane, ran: &mut isize) -> Advance {
        let refusal = if self.aborting.load(Ordering::Relaxed) {
            Some(Error::Aborted)
        } else if envelope.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            Some(Error::Deadline)
        } else if envelope.reply.is_cancelled() {
            Some(Error::Cancelled)
        } else {
            None
        };
        if refusal.is_none()
            && let Command::WaitFor(marker) = &envelope.command
            && !marker.is_decided()
        {
            let marker = marker.clone();
            stream.hold(lane, envelope);
            // All that was run is counted out before the marker can bring the stream to another driver.
            stream.finished(std::mem::take(ran));
            if marker.check_or_wait(stream).is_none() {
                return Advance::Waiting;
            }
            // Decided meanwhile: the next round takes it.
            return Advance::Finished;
        }
        let Envelope { command, reply, .. } = envelope;
        let kind = command.kind();
        let result = match refusal {
            Some(error) => {
                quietly_drop(command);
                Err(error)
            }
            None => self.execute(stream, command),
        };
        *ran += 1;
        self.ended(stream, kind, &result);
        let cancelled = reply.is_cancelled();
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
        Advance::Finished
    }

    /// A command has come to its end.
    fn ended(&self, stream: &StreamInner, command: CommandKind, result: &Result<Output>) {
        stream.progressed();
        self.events.emit(|| match result {
            Ok(_) => Event::Completed { stream: stream.id, command },
            Err(error) => Event::Failed { stream: stream.id, command, error: error.clone() },
        });
    }

    /// Runs a command on the calling thread, which has the right to drive the stream.
    pub(crate) fn run_here(&self, stream: &Arc<StreamInner>, command: Command) -> Result<Output> {
        let kind = command.kind();
        let result = self.execute(stream, command);
        self.ended(stream, kind, &result);
        result
    }

    /// Executes and drops a command; a panic of either becomes an error.
    fn execute(&self, stream: &Arc<StreamInner>, mut command: Command) -> Result<Output> {
        let run = || {
            let start = matches!(command, Command::Launch(_)).then(Instant::now);
            let result = match &mut command {
                Command::Synchronize => stream.take_error().map_or(Ok(Output::Done), Err),
                Command::Mark(signal) => {
                    signal.reach();
                    Ok(Output::Done)
                }
                Command::WaitFor(marker) => marker.check_or_wait(stream).unwrap_or(Ok(())).map(|()| Output::Done),
                _ => self.backend.execute(&command),
            };
            if let (Command::Launch(launch), Some(start)) = (&command, start) {
                launch.body().kernel().took(start.elapsed());
            }
            result
        };
        let ran = catch_unwind(AssertUnwindSafe(run));
        // Before the answer, so that whoever waited finds the buffers free. By itself, because a second panic on the way
        // out of the first would end the process.
        let dropped = catch_unwind(AssertUnwindSafe(|| drop(command)));
        let panic = match (ran, dropped) {
            (Ok(result), Ok(())) => return result,
            (Ok(_), Err(panic)) => panic,
            (Err(panic), dropped) => {
                quietly_drop(dropped);
                panic
            }
        };
        let error = Error::from_panic(&*panic);
        quietly_drop(panic);
        Err(error)
    }
}

/// Drops something foreign whose drop may panic.
fn quietly_drop<T>(value: T) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
        tracing::warn!(error = %Error::from_panic(&*panic), "a drop panicked");
        // A payload that panics when dropped is not given another chance.
        std::mem::forget(panic);
    }
}

/// The streams that have something to do.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    state: Mutex<ReadyState>,
    work: Condvar,
    /// Streams that are ready, by priority: hints that need no lock.
    waiting: [AtomicUsize; LEVELS],
    /// Whether a worker polls instead of sleeping: at most one does.
    lingering: AtomicBool,
    /// Streams that became ready so far.
    pushed: AtomicUsize,
    stopping: AtomicBool,
}

#[derive(Debug, Default)]
struct ReadyState {
    queues: [VecDeque<Arc<StreamInner>>; LEVELS],
    /// How often each level was passed over since its last turn.
    passed_over: [u32; LEVELS],
    sleeping: usize,
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, ReadyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a stream into the queue, unless it is there, and sees to it that somebody takes it.
    pub(crate) fn push(&self, stream: Arc<StreamInner>) {
        let mut state = self.lock();
        // After the end nobody would take it out again.
        if self.stopping.load(Ordering::Relaxed) || stream.queued.swap(true, Ordering::Relaxed) {
            return;
        }
        let level = stream.priority as usize;
        state.queues[level].push_back(stream);
        self.pushed.store(self.pushed.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.waiting[level].store(state.queues[level].len(), Ordering::SeqCst);
        let wake = state.sleeping > 0 && !self.lingering.load(Ordering::SeqCst);
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    fn wake_one(&self) {
        // Under the lock, so that a worker on its way to sleep is either seen or sees the queue.
        let sleeping = self.lock().sleeping;
        if sleeping > 0 {
            self.work.notify_one();
        }
    }

    /// Whether any stream is ready.
    pub(crate) fn any(&self) -> bool {
        self.waiting.iter().any(|n| n.load(Ordering::SeqCst) > 0)
    }

    /// Whether a more urgent stream is ready.
    #[inline]
    pub(crate) fn has_before(&self, priority: Priority) -> bool {
        self.waiting[..priority as usize].iter().any(|n| n.load(Ordering::Relaxed) > 0)
    }

    /// The next stream to drive; blocks until there is one, and ends when the device stops.
    fn next(&self) -> Option<Arc<StreamInner>> {
        let mut state = self.lock();
        let mut seen = self.pushed.load(Ordering::Relaxed);
        loop {
            if let Some(level) = state.choose() {
                let stream = state.queues[level].pop_front();
                self.waiting[level].store(state.queues[level].len(), Ordering::SeqCst);
                if let Some(stream) = &stream {
                    stream.queued.store(false, Ordering::Relaxed);
                }
                // Several may have become ready while one worker lingered and nobody was woken.
                let wake = state.sleeping > 0 && self.any();
                drop(state);
                if wake {
                    self.work.notify_one();
                }
                return stream;
            }
            if self.stopping.load(Ordering::Relaxed) {
                return None;
            }
            let pushed = self.pushed.load(Ordering::Relaxed);
            if pushed != seen {
                // Streams became ready and callers took them: more may follow.
                seen = pushed;
                drop(state);
                self.linger(|| (self.any() || self.stopping.load(Ordering::Relaxed)).then_some(()));
                state = self.lock();
                continue;
            }
            state.sleeping += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.sleeping -= 1;
        }
    }

    /// Polls for about as long as waking a worker would take, so that none has to be woken meanwhile.
    fn linger<R>(&self, attempt: impl FnMut() -> Option<R>) -> Option<R> {
        if self.lingering.swap(true, Ordering::SeqCst) {
            return None; // one is enough
        }
        let result = poll_while_worthwhile(attempt);
        self.lingering.store(false, Ordering::SeqCst);
        result
    }

    /// Takes a stream out of the queue to drive it; false if it is not there, or something more urgent is.
    pub(crate) fn claim(&self, stream: &Arc<StreamInner>) -> bool {
        let mut state = self.lock();
        if !stream.queued.load(Ordering::Relaxed) || self.has_before(stream.priority) {
            return false;
        }
        let level = stream.priority as usize;
        let Some(place) = state.queues[level].iter().position(|s| Arc::ptr_eq(s, stream)) else { return false };
        state.queues[level].remove(place);
        self.waiting[level].store(state.queues[level].len(), Ordering::SeqCst);
        stream.queued.store(false, Ordering::Relaxed);
        true
    }

    /// Lets the workers end once nothing is ready.
    pub(crate) fn stop(&self) {
        let _state = self.lock();
        self.stopping.store(true, Ordering::SeqCst);
        self.work.notify_all();
    }
}

impl ReadyState {
    /// The level whose turn it is: the most urgent one, unless another was passed over too often.
    fn choose(&mut self) -> Option<usize> {
        let first = self.queues.iter().position(|q| !q.is_empty())?;
        let starved = (first + 1..LEVELS)
            .rev()
            .find(|&level| !self.queues[level].is_empty() && self.passed_over[level] >= PASSED_OVER);
        let chosen = starved.unwrap_or(first);
        for level in 0..LEVELS {
            if level == chosen || self.queues[level].is_empty() {
                self.passed_over[level] = 0;
            } else {
                self.passed_over[level] += 1;
            }
        }
        Some(chosen)
    }
}
