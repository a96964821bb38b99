//! Streams: ordered queues of commands.

mod fan;
mod inner;
mod options;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use millrace_ring::{SendDeadlineError, TrySendError};

use crate::{
    Error, Result,
    command::{Answer, Command, Output, Rejected, Request},
    context::Handle,
    marker::Marker,
    road::{BRIEF, Core, Drive, Task, WAITING},
    ticket::Ticket,
};
pub use fan::{fan_out, fan_out_with};
pub(crate) use inner::{Envelope, Lane, StreamInner};
pub use options::{Priority, StreamOptions};

/// Commands that nobody waits for before a worker is woken.
const PATIENCE: isize = 64;

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
        // Whoever it was left for waits for room now.
        self.inner.context.core.ready.end_offer(&self.inner);
        let mut patience = self.inner.patience();
        loop {
            match self.inner.ring.send_deadline(envelope, patience.until) {
                Ok(()) => {
                    self.inner.submitted();
                    return Ok(ticket);
                }
                Err(SendDeadlineError::Closed(envelope)) => return Err(rejected(self.closed(), envelope)),
                Err(SendDeadlineError::Deadline(back)) => match self.inner.renew(&mut patience) {
                    Ok(()) => envelope = back,
                    Err(error) => return Err(rejected(error, back)),
                },
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
                self.inner.habit.hands_over(|| core.life());
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
                inner.habit.hands_over(|| core.life());
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
