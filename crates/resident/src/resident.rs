//! The handle of a resident kernel.

use std::{
    future::poll_fn,
    marker::PhantomData,
    mem::MaybeUninit,
    pin::pin,
    sync::{Arc, OnceLock},
    task::Poll,
    time::Instant,
};

use millrace_core::{Buffer, Device, Priority, Stream, StreamOptions};

use crate::{
    ArchivedHandler, ArchivedResident, Command, Error, Handler, InUse, LaunchOptions, Message, Mode, Refused, Region,
    Result, Status, Telemetry,
    asked::{Asked, failure, look_for_any},
    drive::{Question, Ran},
    engine::{Launched, Plan, Recovery, Types, engine_for},
    handler::{Behaviour, Plain, check_kind},
    header::Header,
    layout::{RegionLayout, flags},
    links::Links,
    port::{Attachment, Head, Outgoing, Place, Port, posted},
    slots::Refusal,
};

/// Launches kernels; every [`Device`] does.
///
/// What is launched is the owner's of its handle, not the device's: [`Device::shutdown`] and [`Device::abort`] end streams,
/// and no kernel is launched after them, but those that live go on until they are terminated, drained or dropped.
///
/// ```
/// # use millrace_resident::*;
/// # struct Nothing;
/// # impl Handler for Nothing {
/// #     type Message = (); type Reply = (); type State = ();
/// #     fn state(&self) {}
/// #     fn handle(&mut self, _: &mut (), _: &(), _: &mut Scope<'_, ()>) {}
/// # }
/// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
/// # let device = runtime.open("cpu")?;
/// let kernel = device.launch(Nothing, LaunchOptions::default())?;
/// assert!(matches!(device.launch(Nothing, LaunchOptions::default().grid(2)), Err(Error::Unsupported { .. })));
/// # Ok::<(), Error>(())
/// ```
pub trait Launch {
    /// Launches a kernel. It lives until it is terminated, or its handle is dropped.
    fn launch<H: Handler>(&self, handler: H, options: LaunchOptions) -> Result<Resident<H>>;

    /// Launches a kernel whose messages are archives, which may be of any size. On the CPU only.
    fn launch_archived<H: ArchivedHandler>(&self, handler: H, options: LaunchOptions) -> Result<ArchivedResident<H>>;
}

impl Launch for Device {
    fn launch<H: Handler>(&self, handler: H, options: LaunchOptions) -> Result<Resident<H>> {
        options.check()?;
        let state = restored(&options)?.unwrap_or_else(|| handler.state());
        let memory = handler.memory();
        if !memory.is_empty() && options.checkpoint_every.is_some() {
            return Err(Error::Invalid("checkpoints hold the state of a kernel, not its memory".into()));
        }
        let plan = plan::<H>(state.as_bytes(), &memory, &options);
        let base = Base::launch(self, &plan, Box::new(Plain::new(handler, state, memory.clone())))?;
        Ok(Resident { base, handler: PhantomData })
    }

    fn launch_archived<H: ArchivedHandler>(&self, handler: H, options: LaunchOptions) -> Result<ArchivedResident<H>> {
        ArchivedResident::launch(self, handler, &options)
    }
}

/// A plain handler without its types.
pub(crate) fn plan<'a, H: Handler>(state: &'a [u8], memory: &'a [u32], options: &'a LaunchOptions) -> Plan<'a> {
    Plan {
        handler: std::any::type_name::<H>(),
        wgsl: H::WGSL,
        types: Some(Types { message: H::Message::LAYOUT, reply: H::Reply::LAYOUT, state: H::State::LAYOUT }),
        state,
        memory,
        layout: RegionLayout::new(
            options.inbound,
            options.outbound,
            options.payload.max(size_of::<H::Message>()),
            options.payload.max(size_of::<H::Reply>()),
        ),
        options,
    }
}

/// The state that a launch starts with, if it is another than the handler's.
pub(crate) fn restored<S: Message>(options: &LaunchOptions) -> Result<Option<S>> {
    let Some(restored) = &options.restored else { return Ok(None) };
    if restored.id != S::TYPE {
        return Err(Error::WrongType { expected: S::TYPE, found: restored.id });
    }
    S::read_from(&restored.bytes).map(Some)
}

/// What handles of kernels have in common, whatever their messages are.
pub struct Base {
    pub(crate) device: Device,
    pub(crate) port: Arc<Port>,
    pub(crate) links: Arc<Links>,
    /// Reads the buffers that messages carry; made with the first of them.
    stream: OnceLock<Stream>,
    /// How it came to live there.
    pub(crate) residency: InUse,
    /// How it can go on when the device is lost.
    pub(crate) recovery: Option<Box<dyn Recovery>>,
    pub(crate) options: LaunchOptions,
    /// What the engine wants to be kept.
    _keep: Option<Box<dyn std::any::Any + Send + Sync>>,
}

impl Base {
    pub(crate) fn launch(device: &Device, plan: &Plan<'_>, behaviour: Box<dyn Behaviour>) -> Result<Self> {
        if u32::try_from(plan.layout.words()).is_err() {
            let text = format!("a region of {} words is more than 32 bits can count", plan.layout.words());
            return Err(Error::Invalid(text.into()));
        }
        // A device that is shut down or lost says so here.
        drop(device.stream_with(&StreamOptions::default().capacity(1))?);
        let engine = engine_for(device, plan.handler)?;
        let launched = engine.launch(device, plan, behaviour)?;
        Ok(Self::launched(device, plan, launched))
    }

    /// The handle of a kernel that was launched.
    pub(crate) fn launched(device: &Device, plan: &Plan<'_>, launched: Launched) -> Self {
        let Launched { port, links, residency, recovery, caught_up: _, keep } = launched;
        if plan.options.active {
            port.tell(Command::Activate);
        }
        let (device, options, stream) = (device.clone(), plan.options.clone(), OnceLock::new());
        Self { device, port, links, stream, residency, recovery, options, _keep: keep }
    }

    /// The bytes of a buffer as they are now, without copying them.
    fn view(&self, buffer: &Buffer) -> Result<Attachment> {
        if self.residency.mode != Mode::Threads {
            let (what, device) = ("a message with a buffer", self.device.info().id.as_str().into());
            return Err(Error::Unsupported { what, device, why: "a handler there sees its message and its state" });
        }
        let stream = match self.stream.get() {
            Some(stream) => stream,
            None => {
                let new = self.device.stream_with(&StreamOptions::default().capacity(8))?;
                self.stream.get_or_init(|| new)
            }
        };
        Ok(Attachment::View(stream.run(buffer.read(..))?))
    }

    /// The same as `work`, until the deadline. Where no thread can be had to keep time, that is told instead.
    pub(crate) async fn by<R>(&self, deadline: Instant, work: impl Future<Output = Result<R>>) -> Result<R> {
        let (mut work, mut alarm) = (pin!(work), None);
        poll_fn(|cx| {
            if let Poll::Ready(result) = work.as_mut().poll(cx) {
                return Poll::Ready(result);
            }
            if Instant::now() >= deadline {
                return Poll::Ready(Err(Error::Deadline));
            }
            alarm = self.device.wake_at(deadline, cx.waker().clone());
            match &alarm {
                Some(_) => Poll::Pending,
                None => Poll::Ready(Err(millrace_core::Error::Thread("none to keep time".into()).into())),
            }
        })
        .await
    }

    pub(crate) fn refusal(&self, refusal: Refusal) -> Error {
        match refusal {
            Refusal::Full => Error::Full { capacity: self.port.layout.inbound as usize },
            Refusal::Closed => self.port.ended(),
        }
    }
}

impl Drop for Base {
    fn drop(&mut self) {
        self.port.abandon();
        self.port.tell(Command::Terminate);
    }
}

/// Reads a plain answer.
#[inline(always)]
fn decode<R: Message>(header: &Header, bytes: &[u8], attachment: Option<Attachment>) -> Result<R> {
    failure(header, attachment.as_ref())?;
    check_kind(header, bytes, R::TYPE)?;
    R::read_from(bytes)
}

/// A kernel that lives on a device. Any number of threads may use the handle; when it is dropped the kernel ends.
///
/// A message that was sent is handled, in the order of its ring, unless the kernel is terminated or fails before. The
/// answer to a message that was *sent* goes to whoever [receives](Self::receive), or to linked kernels; the answer to one
/// that was *asked* goes to the asker. Answers that nobody receives stay in the outbound ring, and when that is full the
/// kernel waits.
///
/// ```
/// # use millrace_resident::*;
/// # #[derive(Clone, Copy, Message)] #[repr(C)] struct Number { value: u32 }
/// # struct Double;
/// # impl Handler for Double {
/// #     type Message = Number; type Reply = Number; type State = ();
/// #     fn state(&self) {}
/// #     fn handle(&mut self, _: &mut (), n: &Number, _: &mut Scope<'_, Number>) -> Number { Number { value: n.value * 2 } }
/// # }
/// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
/// # let device = runtime.open("cpu")?;
/// let soon = std::time::Instant::now() + std::time::Duration::from_secs(5);
/// let double = device.launch(Double, LaunchOptions::default().inactive())?;
/// double.send(Number { value: 4 })?; // it waits
/// double.activate()?;
/// assert_eq!(double.receive(soon)?.value, 8);
/// assert_eq!(double.ask(Number { value: 5 })?.value, 10);
/// assert_eq!(pollster::block_on(double.ask_async(Number { value: 6 }))?.value, 12);
/// double.drain()?;
/// double.wait_for(Status::Terminated, soon)?;
/// assert_eq!(double.send(Number { value: 7 }).unwrap_err().error, Error::Ended(Status::Terminated));
/// # Ok::<(), Error>(())
/// ```
pub struct Resident<H: Handler> {
    pub(crate) base: Base,
    pub(crate) handler: PhantomData<fn(H)>,
}

impl<H: Handler> Resident<H> {
    pub(crate) fn port(&self) -> &Arc<Port> {
        &self.base.port
    }

    pub(crate) fn links(&self) -> &Arc<Links> {
        &self.base.links
    }

    #[inline(always)]
    fn outgoing<'a>(
        &self,
        message: &'a H::Message,
        priority: Priority,
        flags: u32,
        attachment: &'a mut Option<Attachment>,
    ) -> Outgoing<'a> {
        let high = priority == Priority::High;
        let clock = self.port().stamp(high);
        let head = Head { high, kind: H::Message::TYPE, flags, clock, buffer: (0, 0), quietly: false };
        Outgoing { head, bytes: message.as_bytes(), attachment }
    }

    /// Sends a message if there is room. Otherwise it comes back.
    #[inline]
    pub fn try_send(&self, message: H::Message) -> Result<(), Refused<H::Message>> {
        self.try_send_with(message, Priority::Normal)
    }

    /// [`Self::try_send`]; a high message overtakes those that wait, except that after eight in a row a normal one has
    /// its turn. For messages, low is the same as normal.
    #[inline]
    pub fn try_send_with(&self, message: H::Message, priority: Priority) -> Result<(), Refused<H::Message>> {
        let sent = self.port().inject(&mut self.outgoing(&message, priority, posted(priority), &mut None));
        sent.map(drop).map_err(|refusal| Refused { message, error: self.base.refusal(refusal) })
    }

    /// Sends a message, waiting for room for as long as the kernel makes progress.
    ///
    /// On the CPU, whoever asks soon after what it sends, every time, runs both itself, as [`Self::ask`] says. What it does not
    /// ask for after all is handled by the kernel's own thread, within a millisecond or so.
    #[inline]
    pub fn send(&self, message: H::Message) -> Result<(), Refused<H::Message>> {
        self.send_with(message, Priority::Normal)
    }

    /// [`Self::send`] with a priority, as in [`Self::try_send_with`].
    #[inline]
    pub fn send_with(&self, message: H::Message, priority: Priority) -> Result<(), Refused<H::Message>> {
        let sent =
            self.port().inject_blocking(&mut self.outgoing(&message, priority, posted(priority), &mut None), None);
        sent.map(drop).map_err(|error| Refused { message, error })
    }

    /// Sends a message, waiting for room until the deadline.
    pub fn send_deadline(&self, message: H::Message, deadline: Instant) -> Result<(), Refused<H::Message>> {
        let mut attachment = None;
        let mut outgoing = self.outgoing(&message, Priority::Normal, flags::WILLING, &mut attachment);
        let sent = self.port().inject_blocking(&mut outgoing, Some(deadline));
        sent.map(drop).map_err(|error| Refused { message, error })
    }

    /// Sends a message when there is room. Dropped before it is done, it has sent nothing.
    pub async fn send_async(&self, message: H::Message) -> Result<(), Refused<H::Message>> {
        let sent = self.inject_async(&message, 0).await;
        sent.map(drop).map_err(|error| Refused { message, error })
    }

    /// [`Self::send_async`] until the deadline.
    pub async fn send_async_deadline(&self, message: H::Message, deadline: Instant) -> Result<(), Refused<H::Message>> {
        let sent = self.base.by(deadline, self.inject_async(&message, 0)).await;
        sent.map(drop).map_err(|error| Refused { message, error })
    }

    async fn inject_async(&self, message: &H::Message, flags: u32) -> Result<u64> {
        let mut attachment = None;
        let mut outgoing = self.outgoing(message, Priority::Normal, flags, &mut attachment);
        self.port().send_async(|| self.port().inject(&mut outgoing)).await
    }

    /// Sends a message that `build` makes where it will lie, if there is room: one that is large is not copied. What is there
    /// before is whatever an earlier message left, so `build` has to set all of it. Messages behind it wait for it, so it should
    /// be brief, and must not send to the same kernel. If it panics, nothing is sent.
    ///
    /// ```
    /// # use millrace_resident::*;
    /// #[derive(Clone, Copy, Message)]
    /// #[repr(C)]
    /// struct Block {
    ///     samples: [f32; 1024],
    /// }
    /// # #[derive(Clone, Copy, Message)] #[repr(C)] struct Sum { value: f32 }
    /// # struct Meter;
    /// # impl Handler for Meter {
    /// #     type Message = Block; type Reply = Sum; type State = ();
    /// #     fn state(&self) {}
    /// #     fn handle(&mut self, _: &mut (), block: &Block, _: &mut Scope<'_, Sum>) -> Sum { Sum { value: block.samples.iter().sum() } }
    /// # }
    /// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
    /// # let device = runtime.open("cpu")?;
    /// # let soon = std::time::Instant::now() + std::time::Duration::from_secs(5);
    /// let meter = device.launch(Meter, LaunchOptions::default())?;
    /// let recorded = vec![0.5; 1024];
    /// meter.try_send_in_place(|block| block.samples.copy_from_slice(&recorded))?;
    /// assert_eq!(meter.receive(soon)?.value, 512.0);
    /// # Ok::<(), Error>(())
    /// ```
    #[inline]
    pub fn try_send_in_place(&self, build: impl FnOnce(&mut H::Message)) -> Result<()> {
        let sent = self.inject_in_place(&mut Some(build));
        sent.map(drop).map_err(|refusal| self.base.refusal(refusal))
    }

    /// [`Self::try_send_in_place`], waiting for room for as long as the kernel makes progress.
    #[inline]
    pub fn send_in_place(&self, build: impl FnOnce(&mut H::Message)) -> Result<()> {
        let mut build = Some(build);
        self.port().send_blocking(None, || self.inject_in_place(&mut build)).map(drop)
    }

    /// Has a message built in a slot, if there is one; `build` is gone then.
    #[inline(always)]
    fn inject_in_place(&self, build: &mut Option<impl FnOnce(&mut H::Message)>) -> Result<u64, Refusal> {
        let clock = self.port().stamp(false);
        let head =
            Head { high: false, kind: H::Message::TYPE, flags: flags::WILLING, clock, buffer: (0, 0), quietly: false };
        self.port().inject_with(&head, |place| {
            let (build, message) = (build.take()?, place.start.cast::<H::Message>());
            assert!(
                size_of::<H::Message>() <= place.room && message.is_aligned(),
                "the layout was made for other messages"
            );
            // SAFETY: the slot is ours until it is published, has room for the message and is aligned for it, and every bit
            // pattern is a message.
            build(unsafe { &mut *message });
            Some((size_of::<H::Message>(), None))
        })
    }

    /// Sends a message together with a buffer, which is not copied: the handler sees its bytes as they are now.
    pub fn send_buffer(&self, message: H::Message, buffer: &Buffer) -> Result<(), Refused<H::Message>> {
        self.inject_buffer(&message, buffer, 0).map(drop).map_err(|error| Refused { message, error })
    }

    fn inject_buffer(&self, message: &H::Message, buffer: &Buffer, flags: u32) -> Result<u64> {
        let mut attachment = Some(self.base.view(buffer)?);
        let id = buffer.id();
        let mut outgoing = self.outgoing(message, Priority::Normal, flags, &mut attachment);
        outgoing.head.buffer = (id.index, id.generation);
        self.port().inject_blocking(&mut outgoing, None)
    }

    /// Sends a message and waits for its answer, for as long as the kernel makes progress.
    ///
    /// On the CPU, when the kernel rests and its handler has been brief so far, the handler runs on this thread: that
    /// spares waking another. A handler that then takes long, or hangs, holds its caller for as long as it does, whatever the
    /// device's timeout. Never run by who asks is a handler that is asked with a deadline, as in [`Self::ask_deadline`], or by
    /// a task, as in [`Self::ask_async`], and one of a kernel with [`WaitPolicy::Spin`](crate::WaitPolicy::Spin), whose own
    /// thread is always awake.
    #[inline]
    pub fn ask(&self, message: H::Message) -> Result<H::Reply> {
        self.ask_until(message, Priority::Normal, None)
    }

    /// [`Self::ask`] with a priority, as in [`Self::try_send_with`].
    pub fn ask_with(&self, message: H::Message, priority: Priority) -> Result<H::Reply> {
        self.ask_until(message, priority, None)
    }

    /// Sends a message and waits for its answer until the deadline. The message may be handled all the same.
    pub fn ask_deadline(&self, message: H::Message, deadline: Instant) -> Result<H::Reply> {
        self.ask_until(message, Priority::Normal, Some(deadline))
    }

    /// [`Self::ask`] together with a buffer, as in [`Self::send_buffer`].
    pub fn ask_buffer(&self, message: H::Message, buffer: &Buffer) -> Result<H::Reply> {
        let id = self.inject_buffer(&message, buffer, flags::ASK)?;
        self.answer(id, None)
    }

    #[inline]
    fn ask_until(&self, message: H::Message, priority: Priority, deadline: Option<Instant>) -> Result<H::Reply> {
        if deadline.is_none()
            && let Some(ran) = self.run(&message, priority)
        {
            return match ran {
                Ran::Answered(reply) => Ok(reply),
                Ran::Sent(id) => self.answer(id, None),
            };
        }
        let mut attachment = None;
        let flags = flags::ASK | if deadline.is_none() { flags::WILLING } else { 0 };
        let id =
            self.port().inject_blocking(&mut self.outgoing(&message, priority, flags, &mut attachment), deadline)?;
        self.answer(id, deadline)
    }

    /// Has the kernel answer on this thread, if that may be.
    #[inline(always)]
    fn run(&self, message: &H::Message, priority: Priority) -> Option<Ran<H::Reply>> {
        let mut reply = MaybeUninit::<H::Reply>::uninit();
        let (urgent, kind, bytes) = (priority == Priority::High, H::Message::TYPE, message.as_bytes());
        let place = Place { start: reply.as_mut_ptr().cast(), room: size_of::<H::Reply>() };
        Some(match self.port().call(&Question { urgent, kind, bytes }, place)? {
            Ran::Answered(answer) => {
                let (kind, length) = (answer.kind(), answer.length() as usize);
                assert!((kind, length) == (H::Reply::TYPE, size_of::<H::Reply>()), "its handler is another");
                // SAFETY: all of it was written, and every bit pattern is a message.
                Ran::Answered(unsafe { reply.assume_init() })
            }
            Ran::Sent(id) => Ran::Sent(id),
        })
    }

    #[inline]
    fn answer(&self, id: u64, deadline: Option<Instant>) -> Result<H::Reply> {
        let mut asked = Asked::new(self.port(), id);
        self.port().wait_for_mail(deadline, || asked.look(&decode::<H::Reply>))?;
        asked.answer()
    }

    /// [`Self::ask`] for tasks. Dropped before it is done, the message may be handled all the same.
    pub async fn ask_async(&self, message: H::Message) -> Result<H::Reply> {
        let id = self.inject_async(&message, flags::ASK).await?;
        let mut asked = Asked::new(self.port(), id);
        self.port().await_mail(|| asked.look(&decode::<H::Reply>)).await;
        asked.answer()
    }

    /// [`Self::ask_async`] until the deadline. The message may be handled all the same.
    ///
    /// ```
    /// # use millrace_resident::*;
    /// # #[derive(Clone, Copy, Message)] #[repr(C)] struct Number { value: u32 }
    /// # struct Double;
    /// # impl Handler for Double {
    /// #     type Message = Number; type Reply = Number; type State = ();
    /// #     fn state(&self) {}
    /// #     fn handle(&mut self, _: &mut (), n: &Number, _: &mut Scope<'_, Number>) -> Number { Number { value: n.value * 2 } }
    /// # }
    /// # let runtime = millrace_core::Runtime::new(vec![Box::new(millrace_cpu::CpuProvider)]);
    /// # let device = runtime.open("cpu")?;
    /// let double = device.launch(Double, LaunchOptions::default().inactive())?;
    /// let soon = std::time::Instant::now() + std::time::Duration::from_millis(20);
    /// let answer = pollster::block_on(double.ask_async_deadline(Number { value: 5 }, soon));
    /// assert_eq!(answer.map(|answer| answer.value), Err(Error::Deadline), "it was not activated");
    /// # Ok::<(), Error>(())
    /// ```
    pub async fn ask_async_deadline(&self, message: H::Message, deadline: Instant) -> Result<H::Reply> {
        self.base.by(deadline, self.ask_async(message)).await
    }

    /// The next answer to a message that was sent, or the next message that the handler emitted: waits until the
    /// deadline.
    pub fn receive(&self, deadline: Instant) -> Result<H::Reply> {
        self.port().wait_for_mail(Some(deadline), || look_for_any(self.port(), &decode::<H::Reply>)).flatten()
    }

    /// [`Self::receive`], if it is there.
    pub fn try_receive(&self) -> Option<Result<H::Reply>> {
        look_for_any(self.port(), &decode::<H::Reply>)
    }

    /// [`Self::receive`] for tasks. Dropped before it is done, it has received nothing.
    pub async fn receive_async(&self) -> Result<H::Reply> {
        self.port().await_mail(|| look_for_any(self.port(), &decode::<H::Reply>)).await
    }

    /// [`Self::receive_async`] until the deadline.
    pub async fn receive_async_deadline(&self, deadline: Instant) -> Result<H::Reply> {
        self.base.by(deadline, self.receive_async()).await
    }
}

/// The lifecycle, for every kind of handle.
macro_rules! lifecycle {
    (<H: $bound:path> for $type:ty) => {
        impl<H: $bound> $type {
            /// Lets it handle messages.
            pub fn activate(&self) -> Result<()> {
                self.base.port.steer(Command::Activate)
            }

            /// [`Self::activate`] for tasks.
            pub async fn activate_async(&self) -> Result<()> {
                self.base.port.steer_async(Command::Activate).await
            }

            /// Lets it handle no messages; it still takes them. Returns when that is so.
            pub fn pause(&self) -> Result<()> {
                self.base.port.steer(Command::Pause)
            }

            /// [`Self::pause`] for tasks.
            pub async fn pause_async(&self) -> Result<()> {
                self.base.port.steer_async(Command::Pause).await
            }

            /// Takes no more messages, handles those that were sent, and then ends: see [`Self::wait_for`].
            pub fn drain(&self) -> Result<()> {
                self.base.port.steer(Command::Drain)
            }

            /// [`Self::drain`] for tasks.
            pub async fn drain_async(&self) -> Result<()> {
                self.base.port.steer_async(Command::Drain).await
            }

            /// Ends it after the message that it handles now. What else was sent is not handled; who asked is told so.
            pub fn terminate(&self) -> Result<()> {
                self.base.port.steer(Command::Terminate)
            }

            /// [`Self::terminate`] for tasks.
            pub async fn terminate_async(&self) -> Result<()> {
                self.base.port.steer_async(Command::Terminate).await
            }

            /// The state between two messages. The kernel may be paused; it makes the copy itself.
            pub fn checkpoint(&self) -> Result<$crate::Checkpoint<H::State>> {
                let (port, number) = (&self.base.port, self.base.port.want_checkpoint());
                port.wait_for_mail(None, || port.is_checkpointed(number)).flatten()?;
                self.last_checkpoint().unwrap_or(Err($crate::Error::NoPayload))
            }

            /// [`Self::checkpoint`] for tasks.
            pub async fn checkpoint_async(&self) -> Result<$crate::Checkpoint<H::State>> {
                let (port, number) = (&self.base.port, self.base.port.want_checkpoint());
                port.await_mail(|| port.is_checkpointed(number)).await?;
                self.last_checkpoint().unwrap_or(Err($crate::Error::NoPayload))
            }

            /// The last checkpoint that was made, also of a kernel that has failed since.
            pub fn last_checkpoint(&self) -> Option<Result<$crate::Checkpoint<H::State>>> {
                let saved = self.base.port.saved()?;
                let (handled, clock) = (saved.handled, saved.clock);
                let state = <H::State as $crate::Message>::read_from(&saved.state);
                Some(state.map(|state| $crate::Checkpoint { state, handled, clock }))
            }

            /// How it is.
            #[inline]
            pub fn status(&self) -> Status {
                self.base.port.status()
            }

            /// What it did so far. Looks at memory and asks nobody.
            #[inline]
            pub fn telemetry(&self) -> Telemetry {
                self.base.port.telemetry()
            }

            /// How it lives on its device, and why in this way.
            pub fn residency(&self) -> &$crate::InUse {
                &self.base.residency
            }

            /// The memory that it shares with the host, for those who look at it word by word.
            pub fn region(&self) -> &Region {
                &self.base.port.region
            }

            /// Where everything lies in that memory.
            pub fn region_layout(&self) -> RegionLayout {
                self.base.port.layout
            }

            /// Waits until it is like that, until the deadline. An error if it has ended otherwise.
            pub fn wait_for(&self, status: Status, deadline: Instant) -> Result<()> {
                self.base.port.wait_for_mail(Some(deadline), || self.base.port.has_become(status)).flatten()
            }

            /// [`Self::wait_for`] for tasks.
            pub async fn wait_for_async(&self, status: Status) -> Result<()> {
                self.base.port.await_mail(|| self.base.port.has_become(status)).await
            }

            /// [`Self::wait_for_async`] until the deadline.
            pub async fn wait_for_async_deadline(&self, status: Status, deadline: Instant) -> Result<()> {
                self.base.by(deadline, self.wait_for_async(status)).await
            }
        }

        impl<H: $bound> std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct("Resident")
                    .field("device", &self.base.device)
                    .field("status", &self.status())
                    .finish_non_exhaustive()
            }
        }
    };
}
pub(crate) use lifecycle;

lifecycle!(<H: Handler> for Resident<H>);
