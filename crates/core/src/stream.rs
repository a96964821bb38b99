//! Streams: ordered queues of commands.

use std::{
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicIsize, Ordering},
    },
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use millrace_ring::{Bias, SendDeadlineError, TrySendError, mpsc, reply::ReplySender};

use crate::{
    Error, Result,
    command::{Answer, Command, Output, Rejected, Request},
    context::{Context, Handle},
    counts::Tally,
    events::Event,
    habit::{Habit, Promptness},
    marker::Marker,
    profile::{Stamp, Track},
    road::{BRIEF, Core, Drive, Task, WAITING},
    ticket::Ticket,
    timer::Timer,
};

/// How urgent a stream's commands are. Among streams that are ready, a more urgent one is served first; a less urgent
/// one is passed over a bounded number of times.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::{Priority, StreamOptions};
/// assert!(Priority::High < Priority::Normal && Priority::Normal < Priority::Low, "the first comes first");
/// assert_eq!(Priority::default(), Priority::Normal);
/// let background = device.stream_with(&StreamOptions::default().priority(Priority::Low))?;
/// background.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum Priority {
    /// Before all others.
    High,
    /// The usual.
    #[default]
    Normal,
    /// When nothing else is to do, or its turn is due.
    Low,
}

/// How a stream is to be.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// use millrace::{Priority, StreamOptions};
/// let stream = device.stream_with(&StreamOptions::default().capacity(16).priority(Priority::High))?;
/// assert_eq!(stream.capacity(), 16);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StreamOptions {
    /// Commands that can wait in the queue.
    pub capacity: usize,
    /// How urgent they are.
    pub priority: Priority,
}

impl StreamOptions {
    /// Sets how many commands can wait.
    pub fn capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    /// Sets how urgent they are.
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self { capacity: 256, priority: Priority::Normal }
    }
}

/// Commands that nobody waits for before a worker is woken.
const PATIENCE: isize = 64;

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

pub(crate) struct StreamInner {
    pub(crate) id: u64,
    pub(crate) context: Arc<Context>,
    pub(crate) priority: Priority,
    ring: mpsc::Sender<Envelope>,
    /// Padded, as what follows: the driver writes it with every command, and submitters read what is above.
    pub(crate) lane: CachePadded<Mutex<Lane>>,
    /// Commands that were counted in by submitters, less those that were counted out by drivers. The one who lifts it
    /// from zero to one has to see to it that somebody drives; the one who brings it to zero or below stops driving.
    /// It can be negative for the moment between a command's submission and its being counted.
    pending: CachePadded<AtomicIsize>,
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

    pub(crate) fn timeout(&self) -> Duration {
        self.context.core.options.timeout
    }

    pub(crate) fn timer(&self) -> &Timer {
        &self.context.core.timer
    }

    /// Counts what moves: on this stream, or on the queue that it shares with all others.
    pub(crate) fn progress(&self) -> u64 {
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

    /// Nothing moved here for the device's timeout. It is the device's fault only if a command was running: one that
    /// waits for a marker may wait for the caller.
    pub(crate) fn stalled(&self, timeout: Duration) -> Error {
        let core = &self.context.core;
        if let Drive::Direct(_) = core.drive
            && self.is_driven()
        {
            core.strike(timeout);
        }
        core.watch.lost().unwrap_or(Error::Stalled(timeout))
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
                self.habit.waits(|| core.life_at(Instant::now()));
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
    fn submitted(self: &Arc<Self>) {
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

/// An ordered, bounded queue of commands. Commands on one stream run in order; streams overlap. Clones are handles of
/// the same stream, for as many threads as you like; what was submitted runs also after the last one is dropped.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let (stream, buffer) = (device.stream()?, device.allocate(4)?);
/// let written = stream.submit(buffer.write(0, vec![1, 2, 3, 4]))?; // does not wait
/// let read = stream.submit(buffer.read(1..3))?; // runs after the write
/// written.wait()?;
/// assert_eq!(&*read.wait()?, [2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Stream {
    pub(crate) inner: Arc<StreamInner>,
    /// Dropped after it.
    pub(crate) _handle: Arc<Handle>,
}

impl Stream {
    /// Its number, as events say it.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let mut events = device.subscribe(4)?;
    /// let stream = device.stream()?;
    /// assert_eq!(events.try_next(), Some(millrace::Event::StreamOpened { stream: stream.id() }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn id(&self) -> u64 {
        self.inner.id
    }

    /// How many commands can wait.
    pub fn capacity(&self) -> usize {
        self.inner.ring.capacity()
    }

    /// Commands waiting in the queue, at some moment during the call.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let (marker, signal) = millrace::Marker::new();
    /// let stream = device.stream()?;
    /// let mut tickets = vec![stream.submit(marker.wait())?];
    /// for _ in 0..3 {
    ///     tickets.push(stream.submit(millrace::Synchronize)?);
    /// }
    /// assert!((3..=4).contains(&stream.waiting()), "all behind the first, which may have been taken");
    /// device.stream()?.run(signal)?;
    /// tickets.into_iter().try_for_each(|ticket| ticket.wait())?;
    /// assert_eq!(stream.waiting(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn waiting(&self) -> usize {
        self.inner.ring.len()
    }

    /// Checks a command and pairs it with a ticket. Always inlined: both are as large as some cache lines, and what is written
    /// piece by piece to be moved as a whole has to wait for the pieces, which doubled the cost of a submission where the
    /// compiler thought otherwise.
    #[inline(always)]
    fn prepare<T: Answer>(
        &self,
        command: Command,
        deadline: Option<Instant>,
    ) -> Result<(Envelope, Ticket<T>), Box<Rejected>> {
        let core = &self.inner.context.core;
        if let Err(error) = command.check(core.id, &core.info.limits) {
            return Err(Box::new(Rejected { error, command }));
        }
        match core.replies.pair() {
            Some((reply, asked)) => {
                let ticket = Ticket::new(asked, self.inner.clone(), deadline);
                let deadline = deadline.map_or(0, |deadline| core.life_at(deadline).max(1));
                Ok((Envelope { command, reply, deadline, stamp: core.recording.stamp() }, ticket))
            }
            None => {
                let error = Error::TooManyTickets(core.replies.in_use());
                Err(Box::new(Rejected { error, command }))
            }
        }
    }

    /// Submits if there is room, and hands the command back if not.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let stream = device.stream_with(&millrace::StreamOptions::default().capacity(1))?;
    /// let (marker, signal) = millrace::Marker::new();
    /// let mut full = None;
    /// while full.is_none() {
    ///     full = stream.try_submit(marker.wait()).err();
    /// }
    /// assert_eq!(full.unwrap().error, millrace::Error::QueueFull { capacity: 1 });
    /// device.stream()?.run(signal)?;
    /// stream.synchronize()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn try_submit<R: Request>(&self, request: R) -> Result<Ticket<R::Answer>, Box<Rejected>> {
        let (envelope, ticket) = self.prepare(request.into(), None)?;
        match self.inner.ring.try_send(envelope) {
            Ok(()) => {
                self.inner.submitted();
                Ok(ticket)
            }
            Err(TrySendError::Full(envelope)) => {
                Err(rejected(Error::QueueFull { capacity: self.capacity() }, envelope))
            }
            Err(TrySendError::Closed(envelope)) => Err(rejected(self.closed(), envelope)),
        }
    }

    /// Why it takes no more commands.
    #[cold]
    fn closed(&self) -> Error {
        self.inner.lost().unwrap_or(Error::Closed)
    }

    /// Submits, blocking while the queue is full; gives up with the command in hand when nothing moves for the
    /// device's timeout. For one who has waited at once for each of its last submissions, a brief command of an idle stream
    /// that is no launch runs right here.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// let filled = stream.submit(buffer.fill(.., 9))?;
    /// let read = stream.submit(buffer.read(..))?;
    /// assert_eq!(&*read.wait()?, [9; 4]);
    /// filled.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn submit<R: Request>(&self, request: R) -> Result<Ticket<R::Answer>, Box<Rejected>> {
        let (mut envelope, ticket) = self.prepare(request.into(), None)?;
        let core = &self.inner.context.core;
        // A kernel may need what its submitter has in hand, or does next.
        let launches = matches!(envelope.command, Command::Launch(_));
        if launches {
            self.inner.prompt.forget();
        } else if self.inner.prompt.is_due() {
            match self.run_at_once(envelope) {
                None => return Ok(ticket),
                Some(left) => envelope = left,
            }
        }
        match self.inner.ring.try_send(envelope) {
            Ok(()) => {
                self.inner.submitted();
                if let (Drive::Direct(_), false) = (&core.drive, launches) {
                    self.inner.prompt.submits(|| core.ticks.now());
                }
                Ok(ticket)
            }
            Err(TrySendError::Full(envelope)) => self.submit_slowly(envelope, ticket),
            Err(TrySendError::Closed(envelope)) => Err(rejected(self.closed(), envelope)),
        }
    }

    /// Runs a brief command and answers it, if the stream is idle, or gives it back: for one who will wait for it at once.
    #[inline(never)]
    fn run_at_once(&self, envelope: Envelope) -> Option<Envelope> {
        let Envelope { command, reply, deadline, stamp } = envelope;
        let (mut command, mut result) = (Some(command), Ok(Output::Done));
        self.run_here((&mut command, &mut result));
        if let Some(command) = command {
            return Some(Envelope { command, reply, deadline, stamp });
        }
        let _ = reply.send(result); // the ticket is still here
        self.inner.prompt.submits(|| self.inner.context.core.ticks.now());
        None
    }

    #[cold]
    fn submit_slowly<T: Answer>(&self, mut envelope: Envelope, ticket: Ticket<T>) -> Result<Ticket<T>, Box<Rejected>> {
        let timeout = self.inner.timeout();
        // Whoever it was left for waits for room now.
        self.inner.context.core.ready.end_offer(&self.inner);
        loop {
            let progress = self.inner.progress();
            match self.inner.ring.send_timeout(envelope, timeout) {
                Ok(()) => {
                    self.inner.submitted();
                    return Ok(ticket);
                }
                Err(SendDeadlineError::Closed(envelope)) => return Err(rejected(self.closed(), envelope)),
                Err(SendDeadlineError::Deadline(back)) if self.inner.progress() == progress => {
                    return Err(rejected(self.inner.stalled(timeout), back));
                }
                Err(SendDeadlineError::Deadline(back)) => envelope = back,
            }
        }
    }

    /// Submits, blocking while the queue is full. The deadline covers the wait for room, the queue and the execution:
    /// the ticket answers by then, and a command that has not started by then never does.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// use std::time::{Duration, Instant};
    /// let (marker, _signal) = millrace::Marker::new();
    /// stream.submit(marker.wait())?; // nothing gets past it
    /// let ticket = stream.submit_deadline(buffer.fill(.., 1), Instant::now() + Duration::from_millis(2))?;
    /// assert_eq!(ticket.wait(), Err(millrace::Error::Deadline));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn submit_deadline<R: Request>(
        &self,
        request: R,
        deadline: Instant,
    ) -> Result<Ticket<R::Answer>, Box<Rejected>> {
        let (envelope, ticket) = self.prepare(request.into(), Some(deadline))?;
        self.inner.context.core.ready.end_offer(&self.inner);
        match self.inner.ring.send_deadline(envelope, deadline) {
            Ok(()) => {
                self.inner.submitted();
                Ok(ticket)
            }
            Err(SendDeadlineError::Closed(envelope)) => Err(rejected(self.closed(), envelope)),
            Err(SendDeadlineError::Deadline(envelope)) => Err(rejected(Error::Deadline, envelope)),
        }
    }

    /// Submits, awaiting room. Dropped before it is done, the future has submitted nothing.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// let bytes = pollster::block_on(async {
    ///     stream.submit_async(buffer.fill(.., 5)).await?;
    ///     stream.submit_async(buffer.read(..)).await?.await
    /// })?;
    /// assert_eq!(&*bytes, [5; 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn submit_async<R: Request>(&self, request: R) -> Result<Ticket<R::Answer>, Box<Rejected>> {
        let (envelope, ticket) = self.prepare(request.into(), None)?;
        self.inner.context.core.ready.end_offer(&self.inner);
        match self.inner.ring.send_async(envelope).await {
            Ok(()) => {
                self.inner.submitted();
                Ok(ticket)
            }
            Err(closed) => Err(rejected(self.closed(), closed.0)),
        }
    }

    /// Submits and waits. On an idle stream a brief command runs right here, on the calling thread.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// stream.run(buffer.write(1, &b"ab"[..]))?;
    /// assert_eq!(&*stream.run(buffer.read(..))?, b"\0ab\0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn run<R: Request>(&self, request: R) -> Result<R::Answer> {
        let (mut command, mut result) = (Some(request.into()), Ok(Output::Done));
        self.run_here((&mut command, &mut result));
        if let Some(command) = command {
            let core = &self.inner.context.core;
            if let Drive::Direct(_) = core.drive {
                self.inner.habit.hands_over(|| core.life_at(Instant::now()));
            }
            let (ticket, left) = self.submit_quietly(command)?;
            result = ticket.wait();
            // Another driver may have run it before it was counted, and others came meanwhile: they count on us.
            if left && self.inner.queued.load(Ordering::Relaxed) {
                core.ready.wake_one();
            }
        }
        R::Answer::from_output(result?)
    }

    /// Submits a command whose ticket nobody wants: an error stays on the stream and comes up at the next
    /// [`crate::Synchronize`]. On an idle stream of a device that runs commands on our threads, a brief one runs right
    /// here, before this returns.
    ///
    /// ```
    /// let device = millrace::runtime().open("cpu")?;
    /// let (stream, buffer) = (device.stream()?, device.allocate(3)?);
    /// stream.enqueue(buffer.write(0, &b"abc"[..]))?;
    /// stream.enqueue(buffer.fill(1..2, b'-'))?;
    /// assert_eq!(&*stream.run(buffer.read(..))?, b"a-c");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn enqueue<R: Request>(&self, request: R) -> Result<(), Box<Rejected>> {
        let (mut command, mut result) = (Some(request.into()), Ok(Output::Done));
        self.run_here((&mut command, &mut result));
        if let Err(error) = result {
            self.inner.keep_error(error);
        }
        let Some(command) = command else { return Ok(()) };
        let (inner, core) = (&self.inner, &self.inner.context.core);
        if let Drive::Direct(_) = core.drive {
            if !command.is_within(&BRIEF) {
                inner.habit.hands_over(|| core.life_at(Instant::now()));
            }
            // Only what a caller may run is left for one.
            if !inner.habit.is_to_wait() || !command.is_within(&WAITING) {
                return self.submit(command).map(drop);
            }
        }
        self.submit_patiently(command)
    }

    /// Runs a brief command on the calling thread if the stream is idle, or leaves it. What is wrong with the command
    /// itself is for the submission to say.
    #[inline]
    fn run_here(&self, task: Task<'_>) {
        let inner = &self.inner;
        let core = &inner.context.core;
        let (Drive::Direct(device), Some(command)) = (&core.drive, &*task.0) else { return };
        if !command.is_within(&BRIEF) || core.ready.has_before(inner.priority) {
            return;
        }
        let fits = |command: &Command| {
            inner.is_empty() && !inner.ring.is_closed() && command.check(core.id, &core.info.limits).is_ok()
        };
        // Whoever else gets the right to drive meanwhile waits for us.
        if let Some(_inside) = inner.bias.enter() {
            if inner.pending.load(Ordering::SeqCst) == 0 && fits(command) {
                core.run_here(&**device, inner, task);
            }
            return;
        }
        // Whoever lifts `pending` from zero has the right to drive.
        if inner.pending.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            if inner.bias.close() && fits(command) {
                core.run_here(&**device, inner, task);
                inner.bias.count();
            }
            core.leave(inner, 1);
        }
    }

    /// Submits without waking a worker: the caller is about to wait, and drives. Says whether it has the right to.
    fn submit_quietly<T: Answer>(&self, command: Command) -> Result<(Ticket<T>, bool), Box<Rejected>> {
        let (envelope, ticket) = self.prepare(command, None)?;
        let inner = &self.inner;
        match inner.ring.try_send(envelope) {
            Ok(()) => {
                let ours = inner.pending.fetch_add(1, Ordering::SeqCst) == 0;
                if ours {
                    inner.context.core.ready.push_quietly(inner.clone());
                }
                Ok((ticket, ours))
            }
            Err(TrySendError::Full(envelope)) => Ok((self.submit_slowly(envelope, ticket)?, false)),
            Err(TrySendError::Closed(envelope)) => Err(rejected(self.closed(), envelope)),
        }
    }

    /// Submits what nobody waits for: more will follow, or somebody who waits, and then all of it is one batch. A worker
    /// that sleeps is woken for a good part of a batch.
    fn submit_patiently(&self, command: Command) -> Result<(), Box<Rejected>> {
        let (envelope, ticket) = self.prepare::<Output>(command, None)?;
        let inner = &self.inner;
        let Core { ready, drive, .. } = &*inner.context.core;
        let direct = matches!(drive, Drive::Direct(_));
        match inner.ring.try_send(envelope) {
            Ok(()) => match inner.pending.fetch_add(1, Ordering::SeqCst) {
                0 if direct => ready.offer(inner.clone()),
                0 => ready.push_patiently(inner.clone()),
                n if n % PATIENCE != PATIENCE - 1 => {}
                _ if direct => ready.end_offer(inner),
                _ => ready.wake_one(),
            },
            Err(TrySendError::Full(envelope)) => {
                if !direct {
                    ready.wake_one();
                }
                self.submit_slowly(envelope, ticket)?;
            }
            Err(TrySendError::Closed(envelope)) => return Err(rejected(self.closed(), envelope)),
        }
        Ok(())
    }

    /// Waits until everything submitted before has finished, and brings the first error that nobody waited for.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// stream.enqueue(buffer.fill(.., 1))?;
    /// stream.enqueue(buffer.fill(.., 2))?;
    /// stream.synchronize()?;
    /// assert_eq!(device.counts().fills, 2, "both have run");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn synchronize(&self) -> Result<()> {
        self.run(crate::Synchronize)
    }

    /// Puts a marker behind everything submitted so far; give its [`Marker::wait`] to other streams.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// stream.submit(buffer.fill(.., 7))?;
    /// let filled = stream.mark()?;
    /// let other = device.stream()?;
    /// other.submit(filled.wait())?;
    /// assert_eq!(&*other.run(buffer.read(..))?, [7; 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn mark(&self) -> Result<Marker, Box<Rejected>> {
        let (marker, signal) = Marker::new();
        self.submit(signal)?;
        Ok(marker)
    }
}

#[cold]
fn rejected(error: Error, envelope: Envelope) -> Box<Rejected> {
    Box::new(Rejected { error, command: envelope.command })
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream").field("id", &self.inner.id).field("waiting", &self.waiting()).finish()
    }
}

/// Submits one command to several streams, of one device or of several: the payload is shared, every stream gets a
/// ticket or says why not, and none is skipped. Streams with room get it first; then those that are full are waited
/// for until the deadline.
///
/// A command that names buffers or kernels only fits their device; for streams of several devices, say with
/// [`fan_out_with`] what each of them gets.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// use std::time::{Duration, Instant};
/// let streams = [device.stream()?, device.stream()?];
/// let buffer = device.allocate(4)?;
/// let tickets = millrace::fan_out(&streams, buffer.read(..), Instant::now() + Duration::from_secs(1));
/// for ticket in tickets {
///     ticket?.wait()?;
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn fan_out<'a>(
    streams: impl IntoIterator<Item = &'a Stream>,
    command: impl Into<Command>,
    deadline: Instant,
) -> Vec<Result<Ticket<Output>, Box<Rejected>>> {
    let streams: Vec<_> = streams.into_iter().collect();
    let (mut command, mut left) = (Some(command.into()), streams.len());
    // The last one gets the command itself: a signal that stayed behind would break its marker.
    let next = |_: &Stream| {
        left -= 1;
        let kept = if left == 0 { command.take().map(Ok) } else { command.as_ref().map(Command::duplicate) };
        kept.unwrap_or(Err(Error::Closed)) // not reached: it is taken once, for the last
    };
    fan_out_with(streams, next, deadline)
}

/// [`fan_out`] with a command made for each stream.
///
/// ```
/// use std::time::{Duration, Instant};
/// let payload = bytes::Bytes::from_static(b"the same bytes on both");
/// let devices = [millrace::runtime().open("cpu")?, millrace::runtime().open("cpu")?];
/// let streams = [devices[0].stream()?, devices[1].stream()?];
/// let buffers = [devices[0].allocate(payload.len())?, devices[1].allocate(payload.len())?];
/// let mut next = buffers.iter();
/// let write = |_: &_| Ok(next.next().expect("one each").write(0, payload.clone()).into());
/// for ticket in millrace::fan_out_with(&streams, write, Instant::now() + Duration::from_secs(1)) {
///     ticket?.wait()?;
/// }
/// assert_eq!(*streams[1].run(buffers[1].read(..))?, payload[..]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn fan_out_with<'a>(
    streams: impl IntoIterator<Item = &'a Stream>,
    mut command: impl FnMut(&Stream) -> Result<Command>,
    deadline: Instant,
) -> Vec<Result<Ticket<Output>, Box<Rejected>>> {
    let mut streams: Vec<&Stream> = streams.into_iter().collect();
    let mut tickets: Vec<_> = streams
        .iter()
        .map(|stream| match command(stream) {
            Ok(command) => stream.try_submit(command),
            Err(error) => Err(Box::new(Rejected { error, command: Command::Synchronize })),
        })
        .collect();
    for (stream, ticket) in streams.drain(..).zip(&mut tickets) {
        let full = matches!(ticket, Err(rejected) if matches!(rejected.error, Error::QueueFull { .. }));
        if full && let Err(rejected) = ticket {
            let command = std::mem::replace(&mut rejected.command, Command::Synchronize);
            *ticket = stream.submit_deadline(command, deadline);
        }
    }
    tickets
}
