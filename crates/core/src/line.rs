//! The road to a device with a queue of its own.
//!
//! Two roles, each a lock that moves. Whoever *records* drains every ready stream into one batch and submits it.
//! Whoever *attends* waits for the oldest batch and answers its commands. The device's worker plays both. A caller that
//! blocks on a ticket plays them itself while it waits, so that a round trip wakes no thread: it records if the device
//! is idle, and it attends if nobody does. It never records while something is in flight, because on a device that hangs
//! handing over more may block.
//!
//! Batches in flight and their bytes are bounded. When either bound is reached nothing more is recorded, the streams'
//! queues fill up, and submitters wait: that is the back-pressure.

use std::{
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_ring::{poll_while_worthwhile, reply::ReplySender};

use crate::{
    Error, Result,
    backend::{Batch, Queued, Ran, Recorded, Submission},
    command::{Command, CommandKind, Output},
    marker::Signal,
    profile::{Flown, Probe, Recording},
    road::{Admission, Core, quietly_drop},
    stream::{Envelope, StreamInner},
};

/// Commands of one batch.
const BATCH: usize = 256;
/// Commands of one stream in a row while others are ready.
const TURN: isize = 32;
/// How long an attendant waits before it looks at something else.
const SLICE: Duration = Duration::from_millis(1);
/// How much longer than it may take one who waits leaves a batch to the attendant.
const ATTENDED: Duration = Duration::from_millis(20);
/// Handing a batch over is not the device's work: drivers compile there, or wait for others. So it may take so many times as long.
const HANDING_OVER: u32 = 10;

/// What is on its way to and on the device.
pub(crate) struct Line {
    queue: Arc<dyn Queued>,
    recording: Mutex<()>,
    attending: Mutex<()>,
    flights: Mutex<Flights>,
    /// Batches in flight, for those who only look.
    count: AtomicUsize,
    bytes: AtomicU64,
    /// Callers that attend, or will.
    callers: AtomicUsize,
    submissions: AtomicU64,
    landings: AtomicU64,
    busy: AtomicU64,
}

struct Flights {
    queue: VecDeque<Arc<Flight>>,
    /// When the device last finished something.
    moved: Instant,
    /// When the attendants last complained.
    struck: Instant,
    /// The device was given up: nothing flies any more.
    closed: bool,
}

impl Flights {
    /// From when the device's timeout counts for the oldest batch.
    fn since(&self, timeout: Duration) -> Option<Instant> {
        let flight = self.queue.front()?;
        let since = flight.handed().map_or_else(|| flight.began + timeout * (HANDING_OVER - 1), |handed| handed.at);
        Some(since.max(self.moved))
    }

    /// Takes a batch out, unless it was given up.
    fn remove(&mut self, line: &Line, flight: &Arc<Flight>) -> bool {
        let Some(place) = self.queue.iter().position(|other| Arc::ptr_eq(other, flight)) else { return false };
        self.queue.remove(place);
        line.bytes.fetch_sub(flight.bytes, Ordering::Relaxed);
        line.count.store(self.queue.len(), Ordering::SeqCst);
        true
    }
}

/// A batch on the device, or on its way there: it can be given up from when its handing over begins.
struct Flight {
    /// Once the device has it.
    handed: OnceLock<Handed>,
    commands: Mutex<Vec<InFlight>>,
    bytes: u64,
    /// When its handing over began, and the same in ticks of the profile that is on.
    began: Instant,
    handed_over: u64,
}

struct Handed {
    submission: Box<dyn Submission>,
    at: Instant,
}

impl Flight {
    fn handed(&self) -> Option<&Handed> {
        self.handed.get()
    }

    fn commands(&self) -> MutexGuard<'_, Vec<InFlight>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its commands, for whoever is about to answer them.
    fn take_commands(&self) -> Vec<InFlight> {
        std::mem::take(&mut *self.commands())
    }

    /// The first command from there on that reads, and the number of what it reads.
    fn read_from(&self, start: usize) -> Option<(usize, usize)> {
        self.commands().iter().enumerate().skip(start).find_map(|(at, command)| match command.then {
            Then::Recorded(Recorded::Read(number)) => Some((at, number)),
            _ => None,
        })
    }

    /// When its commands ran, if a profile wants to know.
    fn flown(&self, recording: &Recording, landed: u64, commands: &[InFlight]) -> Option<Flown> {
        if landed == 0 || commands.iter().all(|command| command.probe.is_none()) {
            return None;
        }
        // The last place that is asked for; those behind it are not in a profile.
        let places = commands.iter().filter_map(|command| command.place).max().map_or(0, |last| last + 1);
        let submission = &self.handed()?.submission;
        let ran = |place| guarded(|| Ok(submission.ran(place))).unwrap_or(Ran::Unknown);
        Some(recording.flown(self.handed_over, landed, (0..places).map(ran).collect()))
    }
}

/// A command that was recorded, or came to its end while others were.
struct InFlight {
    stream: Arc<StreamInner>,
    kind: CommandKind,
    reply: ReplySender<Result<Output>>,
    then: Then,
    /// While a profile is on, and then also the command's place among those that the batch has.
    probe: Option<Probe>,
    place: Option<usize>,
}

/// What the answer is once everything before it has run.
enum Then {
    Recorded(Recorded),
    Fetched(Output),
    Fail(Error),
    /// The first error that nobody waited for.
    Synchronize,
    Reach(Signal),
}

/// A batch that is being recorded.
#[derive(Default)]
struct Open {
    /// None until there is something for the device to do.
    batch: Option<Box<dyn Batch>>,
    commands: Vec<InFlight>,
    /// Commands that the batch has.
    recorded: usize,
    bytes: u64,
}

/// What came of an attempt to attend.
enum Attended {
    /// A batch ended.
    Landed,
    /// None ended in time.
    Waited,
    /// None is in flight.
    Nothing,
    /// Somebody else attends.
    Taken,
}

impl Line {
    pub(crate) fn new(queue: Arc<dyn Queued>) -> Self {
        let now = Instant::now();
        let flights = Flights { queue: VecDeque::new(), moved: now, struck: now, closed: false };
        Self {
            queue,
            recording: Mutex::new(()),
            attending: Mutex::new(()),
            flights: Mutex::new(flights),
            count: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            callers: AtomicUsize::new(0),
            submissions: AtomicU64::new(0),
            landings: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        }
    }

    fn flights(&self) -> MutexGuard<'_, Flights> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Batches in flight.
    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    /// Bytes in flight.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Batches handed over so far.
    pub(crate) fn submissions(&self) -> u64 {
        self.submissions.load(Ordering::Relaxed)
    }

    /// Batches that came to their end.
    pub(crate) fn landings(&self) -> u64 {
        self.landings.load(Ordering::Relaxed)
    }

    /// How long something was in flight, what still is included.
    pub(crate) fn busy(&self) -> Duration {
        let flights = self.flights();
        let now = flights.queue.front().map_or(Duration::ZERO, |front| front.began.max(flights.moved).elapsed());
        Duration::from_nanos(self.busy.load(Ordering::Relaxed)) + now
    }

    /// Whether anything is being recorded or in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.len() > 0 || self.is_recording()
    }

    fn is_recording(&self) -> bool {
        matches!(self.recording.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// Whether batches are in flight that no caller looks after.
    fn is_unattended(&self) -> bool {
        self.len() > 0 && self.callers.load(Ordering::SeqCst) == 0
    }
}

impl Core {
    /// The worker's life.
    pub(crate) fn work_line(&self, line: &Line) {
        loop {
            {
                let _role = line.recording.lock().unwrap_or_else(PoisonError::into_inner);
                self.record(line);
            }
            let full = !self.has_room(line) && self.ready.any();
            if line.is_unattended() || full {
                if let Attended::Taken = self.attend(line, Instant::now() + SLICE) {
                    std::thread::sleep(SLICE / 10); // a caller makes room
                }
            } else if !self.ready.rest(|| line.is_unattended()) {
                return;
            }
        }
    }

    fn has_room(&self, line: &Line) -> bool {
        let limits = &self.options.in_flight;
        line.len() < limits.submissions.clamp(1, line.queue.depth().max(1)) && line.bytes() < limits.bytes.max(1)
    }

    /// Records and submits whatever is ready, as far as there is room. The caller has the role.
    fn record(&self, line: &Line) {
        // What is refused needs no room.
        while self.has_room(line) || self.aborting.load(Ordering::Relaxed) {
            let mut open = Open::default();
            while !self.is_full(line, &open)
                && let Some(stream) = self.ready.try_next()
            {
                self.record_stream(line, &stream, &mut open);
            }
            if open.commands.is_empty() {
                return;
            }
            self.submit(line, open);
        }
    }

    fn is_full(&self, line: &Line, open: &Open) -> bool {
        open.commands.len() >= BATCH || line.bytes() + open.bytes >= self.options.in_flight.bytes
    }

    fn record_stream(&self, line: &Line, stream: &Arc<StreamInner>, open: &mut Open) {
        let mut ran = 0;
        let mut lane = stream.lane();
        while !self.is_full(line, open) && (ran < TURN || !self.ready.any()) {
            let Some(envelope) = stream.next(&mut lane) else { break };
            match self.admit(stream, envelope, &mut lane, &mut ran) {
                Admission::Run(envelope) => open.record(&*line.queue, stream, envelope, &self.recording),
                // It has nothing to wait for.
                Admission::Refuse(envelope, error) => self.refuse(stream, envelope, error),
                Admission::Waiting => return,
            }
            ran += 1;
        }
        drop(lane);
        self.leave(stream, ran);
    }

    fn submit(&self, line: &Line, open: Open) {
        let Open { batch, mut commands, bytes, .. } = open;
        let Some(batch) = batch else {
            // Nothing for the device: they end with what is in flight, or at once.
            let flights = line.flights();
            if let Some(last) = flights.queue.back() {
                last.commands().append(&mut commands);
            }
            drop(flights);
            commands.into_iter().for_each(|command| self.land(command, Ok(Output::Done), None));
            return;
        };
        let handed_over = self.recording.now_if_on();
        let (handed, began) = (OnceLock::new(), Instant::now());
        let flight = Arc::new(Flight { handed, commands: Mutex::new(commands), bytes, began, handed_over });
        {
            let mut flights = line.flights();
            if flights.closed {
                drop(flights);
                return self.fail(&flight, &self.watch.lost().unwrap_or(Error::Closed), None);
            }
            flights.queue.push_back(flight.clone());
            line.bytes.fetch_add(bytes, Ordering::Relaxed);
            line.count.store(flights.queue.len(), Ordering::SeqCst);
        }
        match guarded(|| batch.submit()) {
            Ok(submission) => {
                let _ = flight.handed.set(Handed { submission, at: Instant::now() });
                line.submissions.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => {
                line.flights().remove(line, &flight);
                if let Error::DeviceLost(reason) = &error {
                    self.lose(reason);
                }
                self.fail(&flight, &error, None);
            }
        }
    }

    /// Waits for the oldest batch, but not beyond `until`, and answers its commands.
    fn attend(&self, line: &Line, until: Instant) -> Attended {
        let Ok(role) = line.attending.try_lock() else { return Attended::Taken };
        let Some(flight) = line.flights().queue.front().cloned() else { return Attended::Nothing };
        let left = until.saturating_duration_since(Instant::now()).min(SLICE);
        let Some(Handed { submission, .. }) = flight.handed() else {
            // On its way. Whoever hands it over may be held up.
            if !left.is_zero() && poll_while_worthwhile(|| flight.handed().is_some().then_some(())).is_none() {
                std::thread::sleep(left / 10);
            }
            drop(role);
            self.complain(line);
            return Attended::Waited;
        };
        match guarded(|| submission.wait(left)) {
            Ok(true) => {
                self.landed(line, &flight, &**submission);
                Attended::Landed
            }
            Ok(false) => {
                drop(role);
                self.complain(line);
                Attended::Waited
            }
            Err(error) => {
                drop(role);
                let reason = match error {
                    Error::DeviceLost(reason) => reason,
                    other => other.to_string().into(),
                };
                self.lose(&reason);
                Attended::Landed
            }
        }
    }

    fn landed(&self, line: &Line, flight: &Arc<Flight>, submission: &dyn Submission) {
        let landed = self.recording.now_if_on();
        // What was read is fetched before the device may be given more: it may still be in the buffer itself.
        let mut next = 0;
        while let Some((at, number)) = flight.read_from(next) {
            let before = self.recording.now_if_on();
            let read = guarded(|| submission.read(number));
            let mut commands = flight.commands();
            let Some(command) = commands.get_mut(at) else { break }; // given up meanwhile
            if let (Some(probe), CommandKind::Read) = (&mut command.probe, command.kind) {
                self.recording.note(probe, before);
            }
            command.then = read.map_or_else(Then::Fail, Then::Fetched);
            next = at + 1;
        }
        let mut flights = line.flights();
        if !flights.remove(line, flight) {
            return; // given up meanwhile
        }
        let now = Instant::now();
        let busy = now.saturating_duration_since(flight.began.max(flights.moved));
        line.busy.fetch_add(busy.as_nanos() as u64, Ordering::Relaxed);
        flights.moved = now;
        line.landings.fetch_add(1, Ordering::Relaxed);
        drop(flights);
        let commands = flight.take_commands();
        let flown = flight.flown(&self.recording, landed, &commands);
        commands.into_iter().for_each(|command| self.land(command, Ok(Output::Done), flown.as_ref()));
    }

    /// Answers all commands of a batch that did not land.
    fn fail(&self, flight: &Flight, error: &Error, flown: Option<&Flown>) {
        let commands = flight.take_commands();
        commands.into_iter().for_each(|command| self.land(command, Err(error.clone()), flown));
    }

    /// Answers a command whose turn to end has come.
    fn land(&self, command: InFlight, done: Result<Output>, flown: Option<&Flown>) {
        let InFlight { stream, kind, reply, then, probe, place } = command;
        let result = match then {
            Then::Recorded(_) => done,
            Then::Fetched(output) => done.map(|_| output),
            Then::Fail(error) => Err(error),
            Then::Synchronize => stream.take_error().map_or(Ok(Output::Done), Err),
            Then::Reach(mut signal) => done.inspect(|_| signal.reach()),
        };
        if let Some(probe) = probe {
            self.recording.landed(&stream, probe, result.is_err(), place, flown);
        }
        self.answer(&stream, kind, reply, result);
    }

    /// Strikes if the device has not finished anything for too long.
    fn complain(&self, line: &Line) {
        let (timeout, now) = (self.options.timeout, Instant::now());
        let Some(since) = line.flights().since(timeout).filter(|&since| now >= since + timeout) else { return };
        let progress = self.progress();
        let mut flights = line.flights();
        if flights.since(timeout) == Some(since) && now >= flights.struck + timeout {
            flights.struck = now;
            // Counted before others hear that somebody complained.
            let last = self.count_strike(progress, now - since);
            drop(flights);
            if let Some(reason) = last {
                self.give_up(&reason);
            }
        }
    }

    /// For one who has waited for too long: looks after the oldest batch, unless somebody else does, and complains. Says when
    /// to look again, if the device may still go on with it.
    pub(crate) fn look_after(&self, line: &Line) -> Option<Instant> {
        if let Attended::Landed = self.attend(line, Instant::now()) {
            return Some(Instant::now());
        }
        let flights = line.flights();
        let (due, now) = (flights.since(self.options.timeout)? + self.options.timeout, Instant::now());
        if now < due {
            Some(due)
        } else {
            // Whoever attends is about to complain, or has a batch that landed in hand. Or it hangs itself.
            (flights.struck < due && now < due + ATTENDED).then_some(now + SLICE)
        }
    }

    /// The device is lost: what is in flight will never land.
    pub(crate) fn give_up_flights(&self, line: &Line, error: &Error) {
        let flights = {
            let mut flights = line.flights();
            flights.closed = true;
            line.count.store(0, Ordering::SeqCst);
            line.bytes.store(0, Ordering::Relaxed);
            std::mem::take(&mut flights.queue)
        };
        for flight in flights {
            let flown = Flown::lost(flight.handed_over, self.recording.now_if_on());
            self.fail(&flight, error, flown.as_ref());
        }
    }

    /// Plays the roles that nobody plays until `done`, or until `deadline`, or until somebody else does.
    pub(crate) fn attend_as_caller(&self, line: &Line, deadline: Instant, mut done: impl FnMut() -> bool) {
        line.callers.fetch_add(1, Ordering::SeqCst);
        while !done() && Instant::now() < deadline {
            if line.len() == 0
                && self.ready.any()
                && let Ok(_role) = line.recording.try_lock()
            {
                self.record(line);
            }
            match self.attend(line, deadline) {
                Attended::Landed | Attended::Waited => {}
                Attended::Taken => break,
                Attended::Nothing if line.is_recording() => {
                    // The worker is about to submit what we wait for.
                    if poll_while_worthwhile(|| (done() || line.len() > 0).then_some(())).is_none() {
                        break;
                    }
                }
                Attended::Nothing => break,
            }
        }
        line.callers.fetch_sub(1, Ordering::SeqCst);
        if line.len() > 0 || self.ready.any() {
            self.ready.wake_one();
        }
    }
}

/// A panic of the backend, or of the driver below it, is an error.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let error = Error::from_panic(&*panic);
        quietly_drop(panic);
        Err(error)
    })
}

impl Open {
    fn record(&mut self, queue: &dyn Queued, stream: &Arc<StreamInner>, envelope: Envelope, recording: &Recording) {
        let Envelope { command, reply, stamp, .. } = envelope;
        let kind = command.kind();
        let mut probe = recording.probe(stamp, &command);
        let mut place = None;
        let then = match command {
            Command::Synchronize => Then::Synchronize,
            Command::Mark(signal) => Then::Reach(signal),
            Command::WaitFor(marker) => match marker.check_or_wait(stream) {
                Some(Err(error)) => Then::Fail(error),
                _ => Then::Recorded(Recorded::Done),
            },
            command => {
                self.bytes += command.bytes();
                let timed = recording.is_on();
                let recorded = guarded(|| self.batch(queue, timed).and_then(|batch| batch.record(&command)));
                if let Some(probe) = &mut probe {
                    recording.note_end(probe);
                    place = recorded.is_ok().then_some(self.recorded);
                }
                self.recorded += usize::from(recorded.is_ok());
                quietly_drop(command);
                recorded.map_or_else(Then::Fail, Then::Recorded)
            }
        };
        self.commands.push(InFlight { stream: stream.clone(), kind, reply, then, probe, place });
    }

    fn batch(&mut self, queue: &dyn Queued, timed: bool) -> Result<&mut dyn Batch> {
        if self.batch.is_none() {
            let mut batch = queue.begin()?;
            if timed {
                batch.time_commands();
            }
            self.batch = Some(batch);
        }
        match &mut self.batch {
            Some(batch) => Ok(&mut **batch),
            None => unreachable!("it was put there a moment ago"),
        }
    }
}
