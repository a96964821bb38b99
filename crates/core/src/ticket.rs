//! Tickets: what a submitted command is answered with.

use std::{
    fmt,
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use millrace_ring::{
    poll_while_worthwhile,
    reply::{ReplyError, ReplyReceiver},
};

use crate::{
    Error, Result,
    command::{Answer, Output},
    stream::StreamInner,
    timer::Alarm,
};

/// The promise of a command's result. Block on it, await it, or drop it: an error that nobody waited for stays on the
/// stream and comes up at the next [`crate::Synchronize`].
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let stream = device.stream()?;
/// let mut ticket = stream.submit(millrace::Synchronize)?;
/// ticket.wait_for(std::time::Duration::from_secs(1))?; // block, with a limit
/// pollster::block_on(stream.submit(millrace::Synchronize)?)?; // or await
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Ticket<T: Answer = ()> {
    reply: ReplyReceiver<Result<Output>>,
    stream: Arc<StreamInner>,
    deadline: Option<Instant>,
    alarm: Option<Alarm>,
    /// The result was given out.
    settled: bool,
    /// It was reported that the command's own deadline has passed.
    told_late: bool,
    answer: PhantomData<fn() -> T>,
}

impl<T: Answer> Ticket<T> {
    #[inline]
    pub(crate) fn new(
        reply: ReplyReceiver<Result<Output>>,
        stream: Arc<StreamInner>,
        deadline: Option<Instant>,
    ) -> Self {
        Self { reply, stream, deadline, alarm: None, settled: false, told_late: false, answer: PhantomData }
    }

    /// Blocks until the command is finished, or until its deadline. Without a deadline, gives up with
    /// [`Error::Stalled`] when nothing on the stream moves for the device's timeout.
    ///
    /// While the device's threads are asleep, the waiting thread runs the stream's commands itself, as long as they
    /// are known not to take long.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let stream = device.stream()?;
    /// let panics = millrace::KernelSpec::new("panics").cpu(millrace::CpuKernel::whole(|_| panic!("oh")));
    /// let ticket = stream.submit(device.kernel(&panics)?.launch())?;
    /// assert_eq!(ticket.wait(), Err(millrace::Error::Panicked("oh".into())));
    /// assert!(stream.synchronize().is_ok(), "who waits has heard of it");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait(mut self) -> Result<T> {
        match self.deadline {
            Some(deadline) => self.wait_until(deadline),
            None => {
                self.stream.waits();
                if let Some(result) = self.try_wait() {
                    return result;
                }
                // Attending a device's own queue may take all of the timeout. A worker of ours counts with every command,
                // and should not have to fetch that line back from one who only polls.
                let begun = self.stream.is_attended().then(|| self.stream.patience());
                if let Some(result) = self.drive(None) {
                    return result;
                }
                if let Some(received) = poll_while_worthwhile(|| self.reply.try_recv()) {
                    return self.settle(received);
                }
                let mut patience = begun.unwrap_or_else(|| self.stream.patience());
                loop {
                    match self.reply.sleep_until(patience.until) {
                        Err(ReplyError::Deadline) => {
                            if let Err(error) = self.stream.renew(&mut patience) {
                                // It may have come while we complained.
                                return self.try_wait().unwrap_or(Err(error));
                            }
                        }
                        other => return self.settle(other),
                    }
                }
            }
        }
    }

    /// Blocks until the command is finished, but not beyond `deadline`. After [`Error::Deadline`] the command may still
    /// run, and the ticket can be asked again.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// use std::time::{Duration, Instant};
    /// let (marker, signal) = millrace::Marker::new();
    /// let mut ticket = device.stream()?.submit(marker.wait())?;
    /// assert_eq!(ticket.wait_until(Instant::now()), Err(millrace::Error::Deadline));
    /// device.stream()?.submit(signal)?;
    /// assert_eq!(ticket.wait_until(Instant::now() + Duration::from_secs(10)), Ok(()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_until(&mut self, deadline: Instant) -> Result<T> {
        let deadline = self.deadline.map_or(deadline, |own| own.min(deadline));
        self.stream.prompt.forget(); // who has a deadline cannot run a kernel that may hang
        if let Some(result) = self.try_wait().or_else(|| self.drive(Some(deadline))) {
            return result;
        }
        let mut look = self.stream.next_look();
        loop {
            let until = look.map_or(deadline, |look| look.min(deadline));
            match self.reply.recv_deadline(until) {
                Err(ReplyError::Deadline) if until < deadline => {
                    self.stream.look_after_device();
                    look = self.stream.next_look();
                }
                received => return self.settle(received),
            }
        }
    }

    /// [`Self::wait_until`] from now on.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let mut ticket = device.stream()?.submit(millrace::Synchronize)?;
    /// assert_eq!(ticket.wait_for(std::time::Duration::from_secs(10)), Ok(()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn wait_for(&mut self, timeout: Duration) -> Result<T> {
        let far = Duration::from_secs(60 * 60 * 24 * 365);
        self.wait_until(Instant::now() + timeout.min(far))
    }

    /// The result, if the command is finished.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let (marker, signal) = millrace::Marker::new();
    /// let mut ticket = device.stream()?.submit(marker.wait())?;
    /// assert_eq!(ticket.try_wait(), None);
    /// device.stream()?.submit(signal)?;
    /// while ticket.try_wait().is_none() {
    ///     std::thread::yield_now();
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_wait(&mut self) -> Option<Result<T>> {
        let received = self.reply.try_recv()?;
        Some(self.settle(received))
    }

    /// Asks not to run the command if it has not started. Whether that was in time, the ticket says:
    /// [`Error::Cancelled`] or the result.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// let (marker, signal) = millrace::Marker::new();
    /// let stream = device.stream()?;
    /// stream.submit(marker.wait())?;
    /// let ticket = stream.submit(millrace::Synchronize)?;
    /// ticket.cancel(); // it stands behind the marker and has not started
    /// device.stream()?.submit(signal)?;
    /// assert_eq!(ticket.wait(), Err(millrace::Error::Cancelled));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cancel(&self) {
        self.stream.cancelling();
        self.reply.cancel();
    }

    /// Does the device's work while waiting, as far as that is this thread's to do.
    fn drive(&mut self, deadline: Option<Instant>) -> Option<Result<T>> {
        let reply = &mut self.reply;
        let mut received = None;
        self.stream.clone().drive_while_waiting(deadline, || {
            received = received.take().or_else(|| reply.try_recv());
            received.is_some()
        });
        received.map(|received| self.settle(received))
    }

    fn settle(&mut self, received: Result<Result<Output>, ReplyError>) -> Result<T> {
        match received {
            Ok(result) => {
                self.settled = true;
                T::from_output(result?)
            }
            Err(ReplyError::Deadline) => Err(self.late()),
            Err(ReplyError::Abandoned) => Err(Error::Closed),
        }
    }

    /// A deadline passed. If it is the command's own, nobody has to be told again.
    fn late(&mut self) -> Error {
        if self.deadline.is_some_and(|own| own <= Instant::now()) {
            self.told_late = true;
            self.cancel();
        }
        self.stream.lost().unwrap_or(Error::Deadline)
    }
}

impl<T: Answer> Future for Ticket<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.stream.prompt.forget(); // nor is a task to be held up
        if let Poll::Ready(received) = Pin::new(&mut this.reply).poll(cx) {
            this.alarm = None;
            return Poll::Ready(this.settle(received));
        }
        if let Some(deadline) = this.deadline {
            if Instant::now() >= deadline {
                return Poll::Ready(Err(this.late()));
            }
            // Without a thread for it the answer itself is what wakes the task.
            this.alarm = this.stream.timer().wake_at(deadline, cx.waker().clone());
        }
        Poll::Pending
    }
}

impl<T: Answer> Unpin for Ticket<T> {}

impl<T: Answer> Drop for Ticket<T> {
    fn drop(&mut self) {
        if !self.settled
            && let Some(Ok(Err(error))) = self.reply.leave()
            && !(self.told_late && error == Error::Deadline)
        {
            self.stream.keep_error(error);
        }
    }
}

impl<T: Answer> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket").field("stream", &self.stream.id()).finish_non_exhaustive()
    }
}
