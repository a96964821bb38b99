//! The host's side of a kernel: putting messages into its rings, steering it, looking at it. It does not know what
//! device the kernel runs on, nor what its messages mean.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering, fence},
    },
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use millrace_ring::{Bell, Seat, poll_while_worthwhile, prefetch_to_write};

pub(crate) use crate::parcel::{Attachment, Head, Outgoing, Place, Remains, Saved, message_id, posted};
use crate::{
    Clock, Command, Error, Moment, Result, Status, Telemetry,
    drive::{self, Wheel},
    header::Header,
    journal::{Entry, Journal},
    layout::{HEADER, LINE, RegionLayout, flags},
    parcel::{Attachments, SavedAt},
    region::{Region, Rings},
    replies::Replies,
    slots::{Refusal, Slots, Tail, Words},
};

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many slots ahead a sender fetches the next one that it will write.
const AHEAD: u32 = 4;

/// Where a kernel is found, whatever became of it. It does not keep the kernel's memory: nobody finds one that is over and
/// whose handle was dropped.
#[derive(Debug)]
pub(crate) struct Address(Mutex<Weak<Port>>);

impl Address {
    /// The kernel; one that was lost and has come back is the one that it is now.
    pub(crate) fn find(&self) -> Option<Arc<Port>> {
        lock(&self.0).upgrade()
    }
}

/// The host's side of a kernel.
pub(crate) struct Port {
    pub(crate) region: Region,
    pub(crate) layout: RegionLayout,
    pub(crate) rings: Rings,
    high: CachePadded<Tail>,
    normal: CachePadded<Tail>,
    /// Who may run it, if that is not always the same.
    pub(crate) wheel: OnceLock<Arc<Wheel>>,
    /// Whether one who asks may run it, for those who only look: the kernel says so.
    pub(crate) brief: AtomicBool,
    /// Messages that were handled and nobody asked with, for its worker. Apart from what senders read.
    pub(crate) posts: CachePadded<AtomicU32>,
    /// Whether its worker looks now and then after what is left for those who ask.
    pub(crate) minded: AtomicBool,
    /// The kernel has something to do.
    pub(crate) work: Bell,
    /// Senders have room.
    pub(crate) room: Bell,
    /// The kernel answered, or is another.
    pub(crate) mail: Bell,
    pub(crate) replies: CachePadded<Replies>,
    pub(crate) attached: Attachments,
    pub(crate) attached_out: Attachments,
    /// The last checkpoint.
    pub(crate) saved: Mutex<Option<Saved>>,
    /// Where it is instead, if a device makes it.
    pub(crate) saved_at: OnceLock<SavedAt>,
    /// What was sent since, if it may have to be sent again.
    pub(crate) journal: OnceLock<Journal>,
    /// Its handler, once it has failed, if it may come back.
    pub(crate) remains: Mutex<Option<Remains>>,
    /// Its handler is to be kept, however it ends.
    pub(crate) wanted_back: AtomicBool,
    /// Held by who brings it back.
    pub(crate) recovering: Mutex<()>,
    /// What it had sent to kernels that its device cannot reach, and was not carried there when it was lost.
    pub(crate) unsent: Mutex<VecDeque<crate::gpu::Unsent>>,
    /// Where those who are linked to it find it. It is also that of what it becomes after it was lost.
    address: OnceLock<Arc<Address>>,
    /// It was lost and came back: another is in its place.
    returned: AtomicBool,
    /// Its handle was dropped.
    abandoned: AtomicBool,
    /// Why it failed.
    reason: Mutex<Option<Arc<str>>>,
    /// Held while the host's line of the control block changes.
    steering: Mutex<()>,
    pub(crate) clock: Arc<CachePadded<Clock>>,
    timeout: Duration,
}

impl Port {
    pub(crate) fn new(
        region: Region,
        layout: RegionLayout,
        clock: Arc<CachePadded<Clock>>,
        timeout: Duration,
    ) -> Result<Self> {
        let rings = Rings::new(&layout);
        region.initialize(&layout, &rings)?;
        region.control().status.store(Status::Launched as u32, Ordering::Relaxed);
        Ok(Self {
            region,
            layout,
            rings,
            high: CachePadded::new(Tail::new()),
            normal: CachePadded::new(Tail::new()),
            wheel: OnceLock::new(),
            brief: AtomicBool::new(false),
            posts: CachePadded::default(),
            minded: AtomicBool::new(false),
            work: Bell::new(),
            room: Bell::new(),
            mail: Bell::new(),
            replies: CachePadded::default(),
            attached: Attachments::default(),
            attached_out: Attachments::default(),
            saved: Mutex::default(),
            saved_at: OnceLock::new(),
            journal: OnceLock::new(),
            remains: Mutex::default(),
            wanted_back: AtomicBool::new(false),
            recovering: Mutex::default(),
            unsent: Mutex::default(),
            address: OnceLock::new(),
            returned: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
            reason: Mutex::default(),
            steering: Mutex::default(),
            clock,
            timeout,
        })
    }

    fn inlet(&self, high: bool) -> (&Tail, &Slots) {
        if high { (&self.high, &self.rings.high) } else { (&self.normal, &self.rings.normal) }
    }

    /// Writes a message into a slot, if there is one, and tells the kernel. Says its number.
    #[inline(always)]
    pub(crate) fn inject(&self, message: &mut Outgoing<'_>) -> Result<u64, Refusal> {
        let number = self.claim(message.head.high)?;
        Ok(self.put(number, message))
    }

    /// A place in a ring, which is then the caller's to fill, or to pass over if it runs the kernel.
    #[inline(always)]
    pub(crate) fn claim(&self, high: bool) -> Result<u64, Refusal> {
        let (tail, ring) = self.inlet(high);
        tail.claim(ring, &self.region)
    }

    /// Writes a message to the place that was claimed for it, and tells the kernel. Says its number.
    #[inline(always)]
    pub(crate) fn put(&self, number: u64, message: &mut Outgoing<'_>) -> u64 {
        let Outgoing { head, bytes, attachment } = message;
        assert!(bytes.len() <= self.layout.in_payload(), "the layout was made for larger messages");
        self.put_with(number, head, |place| {
            // SAFETY: the slot is ours until it is published, and has room for the message.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.start, bytes.len()) };
            Some((bytes.len(), attachment.take()))
        })
    }

    /// Lets `write` build a message in a slot, if there is one, and tells the kernel. `write` says how long the message
    /// is, and what belongs to it; if it says nothing, the kernel passes over the slot.
    #[inline(always)]
    pub(crate) fn inject_with(
        &self,
        head: &Head,
        write: impl FnOnce(Place) -> Option<(usize, Option<Attachment>)>,
    ) -> Result<u64, Refusal> {
        let number = self.claim(head.high)?;
        Ok(self.put_with(number, head, write))
    }

    #[inline(always)]
    fn put_with(
        &self,
        number: u64,
        head: &Head,
        write: impl FnOnce(Place) -> Option<(usize, Option<Attachment>)>,
    ) -> u64 {
        /// A slot that was claimed has to be published, whatever happens.
        struct Claimed<'a> {
            port: &'a Port,
            head: &'a Head,
            number: u64,
        }
        impl Drop for Claimed<'_> {
            #[cold]
            fn drop(&mut self) {
                self.port.publish(self.head, self.number, 0, flags::VOID);
            }
        }
        let ring = self.inlet(head.high).1;
        let claimed = Claimed { port: self, head, number };
        let place = Place { start: self.region.payload(ring.at(number as u32)), room: self.layout.in_payload() };
        let written = write(place);
        let id = message_id(number, head.high);
        let Some((length, attachment)) = written else { return id };
        let mut flags = head.flags;
        if let Some(attachment) = attachment {
            flags |= flags::ATTACHED;
            lock(&self.attached).insert(id, attachment);
        }
        std::mem::forget(claimed);
        self.publish(head, number, length, flags);
        id
    }

    /// Hands a slot that was claimed to the kernel, and tells it.
    #[inline(always)]
    fn publish(&self, head: &Head, number: u64, length: usize, flags: u32) {
        let (region, ring, position) = (&self.region, self.inlet(head.high).1, number as u32);
        let header = head.header(number, length, flags);
        if let Some(journal) = self.journal.get() {
            self.note(journal, &header, ring.at(position));
        }
        // SAFETY: the slot is ours until it is published.
        unsafe { header.write(region, ring.at(position)) };
        ring.publish(region, position);
        self.fetch(ring, position.wrapping_add(AHEAD));
        // A kernel that rests until it is told to go on need not know. When it is told, it says that it is active before it
        // leaves its waker and looks once more: it finds the message, or is found to be active here.
        if !head.quietly && self.work.has_listeners() && !self.is_resting() && !self.is_left(flags) {
            self.work.ring();
        }
    }

    /// Whether what was sent a moment ago, and listeners were looked for since, is left for when its sender asks. A worker that
    /// no longer minds says so, leaves its waker and looks once more.
    #[inline]
    fn is_left(&self, flags: u32) -> bool {
        flags & (flags::WILLING | flags::ASK) == flags::WILLING
            && self.minded.load(Ordering::Relaxed)
            && self.brief.load(Ordering::Relaxed)
            && matches!(self.depth(), (0, waiting) if waiting < drive::MOST.min(self.rings.normal.capacity()))
    }

    /// Who is about to wait is not going to ask: what was left for it is the worker's.
    fn leave_nothing(&self) {
        if self.minded.load(Ordering::Relaxed) && self.stirs() {
            self.work.ring();
        }
    }

    /// Where the rings end: urgent messages, and others.
    pub(crate) fn tails(&self) -> [u32; 2] {
        [self.high.position(), self.normal.position()]
    }

    /// Whether the kernel has yet to come to these ends.
    pub(crate) fn is_before(&self, [high, normal]: [u32; 2]) -> bool {
        let control = self.region.control();
        let is_before = |head: &AtomicU32, tail| (head.load(Ordering::Acquire).wrapping_sub(tail) as i32) < 0;
        is_before(&control.high_head, high) || is_before(&control.normal_head, normal)
    }

    /// A reading of the clock for a message. Fetches the slots of the next few, if some time has passed since the last one:
    /// until there is one that was fetched by a message before.
    #[inline(always)]
    pub(crate) fn stamp(&self, high: bool) -> Moment {
        self.clock.tick_or(
            #[cold]
            || {
                let (tail, ring) = self.inlet(high);
                let next = tail.position();
                prefetch_to_write(&self.work);
                (0..AHEAD).for_each(|n| self.fetch(ring, next.wrapping_add(n)));
            },
        )
    }

    /// Brings a slot that was the kernel's a lap ago to this core: as much of it as small messages have.
    #[inline(always)]
    fn fetch(&self, ring: &Slots, position: u32) {
        let start = self.region.word(ring.at(position));
        prefetch_to_write(start);
        if ring.stride * 4 > LINE {
            prefetch_to_write(std::ptr::from_ref(start).wrapping_byte_add(LINE));
        }
    }

    /// Keeps a message that is in its slot, in case it has to be sent again.
    #[cold]
    fn note(&self, journal: &Journal, header: &Header, at: usize) {
        let length = header.length as usize;
        // SAFETY: that much was written, and the slot is ours until it is published.
        let bytes = unsafe { std::slice::from_raw_parts(self.region.payload(at), length) }.to_vec();
        let (high, number) = ((header.id - 1) & 1 == 1, (header.id - 1) >> 1);
        let (kind, clock, ask) = (header.kind, header.clock, header.is_ask());
        let attached = header.flags & flags::ATTACHED != 0;
        let attachment = attached.then(|| lock(&self.attached).get(&header.id).cloned()).flatten();
        if header.flags & flags::VOID == 0 {
            journal.note(Entry { high, number, kind, clock, bytes, attachment, ask });
        }
    }

    /// [`Self::inject`], waiting for room: until the deadline, or without one for as long as the kernel makes progress.
    #[inline(always)]
    pub(crate) fn inject_blocking(&self, message: &mut Outgoing<'_>, deadline: Option<Instant>) -> Result<u64> {
        // Usually there is room.
        self.inject(message).or_else(|_| self.inject_patiently(message, deadline))
    }

    #[cold]
    fn inject_patiently(&self, message: &mut Outgoing<'_>, deadline: Option<Instant>) -> Result<u64> {
        self.send_blocking(deadline, || self.inject(message))
    }

    /// Sends with `inject`, waiting for room.
    #[inline]
    pub(crate) fn send_blocking(
        &self,
        deadline: Option<Instant>,
        mut inject: impl FnMut() -> Result<u64, Refusal>,
    ) -> Result<u64> {
        let attempt = || self.sent(inject());
        self.patiently(deadline, attempt, |until, attempt| self.room.wait_for_room(Some(until), false, attempt))
            .flatten()
    }

    /// Sends with `inject`, awaiting room.
    pub(crate) async fn send_async(&self, mut inject: impl FnMut() -> Result<u64, Refusal>) -> Result<u64> {
        on_bell(&self.room, || self.sent(inject())).await
    }

    /// What came of an attempt to send; nothing if it is to be tried again.
    #[inline(always)]
    fn sent(&self, result: Result<u64, Refusal>) -> Option<Result<u64>> {
        match result {
            Ok(id) => Some(Ok(id)),
            Err(Refusal::Closed) => Some(Err(self.ended())),
            Err(Refusal::Full) => None,
        }
    }

    /// Waits with `wait` until `attempt` succeeds. With a deadline it ends there. Without, it ends when the kernel has
    /// made no progress for the device's timeout.
    fn patiently<R, F: FnMut() -> Option<R>>(
        &self,
        deadline: Option<Instant>,
        mut attempt: F,
        wait: impl Fn(Instant, &mut F) -> Option<R>,
    ) -> Result<R> {
        // Most answers come while it is worth polling for them, and looking at the clock would only delay that.
        if let Some(result) = poll_while_worthwhile(&mut attempt) {
            return Ok(result);
        }
        if let Some(deadline) = deadline {
            return wait(deadline, &mut attempt).ok_or(Error::Deadline);
        }
        let mut before = self.progress();
        loop {
            if let Some(result) = wait(Instant::now() + self.timeout, &mut attempt) {
                return Ok(result);
            }
            let now = self.progress();
            if now == std::mem::replace(&mut before, now) {
                return Err(self.stalled());
            }
        }
    }

    /// Why nothing has come of waiting for the device's timeout.
    #[cold]
    fn stalled(&self) -> Error {
        let (status, waited) = (self.status(), self.timeout);
        let next = self.region.control().out_tail.load(Ordering::Relaxed);
        let works = matches!(status, Status::Active | Status::Draining);
        if works && !self.rings.out.is_free(&self.region, next) {
            return Error::Unreceived { answers: self.unreceived(), waited };
        }
        Error::Stalled { status, waited }
    }

    /// Something that changes whenever the kernel does anything.
    fn progress(&self) -> [u32; 4] {
        let (control, telemetry) = (self.region.control(), self.region.telemetry());
        [&control.status, &control.acknowledged, &telemetry.handled[0], &telemetry.failed[0]]
            .map(|word| word.load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(crate) fn status(&self) -> Status {
        let word = self.region.control().status.load(Ordering::Acquire);
        Status::from_word(word).unwrap_or(Status::Failed)
    }

    /// Whether messages have to wait until the kernel is told to go on. Not said of a device's, which reads its rings by itself.
    #[inline(always)]
    fn is_resting(&self) -> bool {
        matches!(self.status(), Status::Launched | Status::Paused) && !self.is_of_device()
    }

    /// For the kernel's side: it is going to fail, and takes nothing from now on.
    pub(crate) fn fail(&self, reason: Arc<str>) {
        *lock(&self.reason) = Some(reason);
        self.close();
    }

    /// Whether it has failed, or is about to.
    pub(crate) fn is_failing(&self) -> bool {
        lock(&self.reason).is_some()
    }

    /// For the kernel's side: how it is from now on.
    pub(crate) fn set_status(&self, status: Status) {
        if status.is_ended() {
            self.close();
        }
        self.region.control().status.store(status as u32, Ordering::Release);
        self.mail.ring();
        self.room.ring();
    }

    /// Why a kernel that has ended takes nothing and answers nothing.
    pub(crate) fn ended(&self) -> Error {
        if let Some(reason) = lock(&self.reason).clone() {
            return Error::Failed(reason);
        }
        match self.status() {
            Status::Failed => Error::Failed("for an unknown reason".into()),
            // Draining already, as far as a sender is concerned.
            Status::Launched | Status::Active | Status::Paused => Error::Ended(Status::Draining),
            status => Error::Ended(status),
        }
    }

    /// Nobody has its handle any more: those who wait for it to come back need not.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Release);
        self.room.ring();
    }

    /// Of a kernel that takes nothing any more: whether it may be recovered.
    pub(crate) fn can_return(&self) -> bool {
        let told = Command::from_word(self.region.control().command.load(Ordering::Acquire));
        let ending = matches!(told, Some(Command::Drain | Command::Terminate));
        self.journal.get().is_some() && !ending && !self.abandoned.load(Ordering::Acquire)
    }

    /// Of a kernel that was lost: whether those who send to it need not wait any longer, because it is back, or never will be.
    pub(crate) fn is_settled(&self) -> bool {
        self.has_returned() || !self.can_return()
    }

    /// Whether another device than the processor runs it.
    pub(crate) fn is_of_device(&self) -> bool {
        self.saved_at.get().is_some()
    }

    /// Whether it has ended, and nothing will come in its place.
    pub(crate) fn is_gone(&self) -> bool {
        self.status().is_ended() && !self.has_returned() && !self.can_return()
    }

    /// Whether it was lost and has come back as another.
    pub(crate) fn has_returned(&self) -> bool {
        self.returned.load(Ordering::Acquire)
    }

    pub(crate) fn address(self: &Arc<Self>) -> Arc<Address> {
        self.address.get_or_init(|| Arc::new(Address(Mutex::new(Arc::downgrade(self))))).clone()
    }

    /// The kernel came back: whoever is linked to it goes on with the new one.
    pub(crate) fn succeed(self: &Arc<Self>, by: &Arc<Self>) {
        let address = self.address();
        *lock(&address.0) = Arc::downgrade(by);
        let _ = by.address.set(address); // nobody has linked anything to the new one yet
        self.returned.store(true, Ordering::Release);
        self.room.ring();
    }

    /// Takes no more messages. Says where the rings end.
    fn close(&self) -> (u32, u32) {
        let ends = (self.high.close(), self.normal.close());
        self.room.ring();
        ends
    }

    /// Whether everything that was sent, from these positions on, is in its slot.
    pub(crate) fn is_all_published(&self, [high, normal]: [u32; 2]) -> bool {
        let all = |(tail, ring): (&Tail, &Slots), from: u32| {
            let count = tail.position().wrapping_sub(from).min(ring.capacity());
            (0..count).all(|n| ring.is_filled(&self.region, from.wrapping_add(n)))
        };
        all(self.inlet(true), high) && all(self.inlet(false), normal)
    }

    /// Whether the kernel has something to look at: requests, or messages.
    #[inline]
    pub(crate) fn stirs(&self) -> bool {
        let control = self.region.control();
        let filled = |ring: &Slots, head: &AtomicU32| ring.is_filled(&self.region, head.load(Ordering::Acquire));
        control.request.load(Ordering::Acquire) != control.acknowledged.load(Ordering::Relaxed)
            || filled(&self.rings.high, &control.high_head)
            || filled(&self.rings.normal, &control.normal_head)
    }

    /// Messages that wait, urgent ones and others.
    pub(crate) fn depth(&self) -> (u32, u32) {
        let control = self.region.control();
        let depth = |tail: &Tail, head: &AtomicU32| {
            // The head first: it cannot be ahead of a tail that is read later.
            let head = head.load(Ordering::Acquire);
            tail.position().wrapping_sub(head)
        };
        (depth(&self.high, &control.high_head), depth(&self.normal, &control.normal_head))
    }

    /// Where the next message goes that is not urgent.
    pub(crate) fn normal_tail(&self) -> u32 {
        self.normal.position()
    }

    /// Waits until nothing that was sent waits any more, for as long as the kernel makes progress.
    pub(crate) fn wait_until_empty(&self) -> Result<()> {
        self.wait_while_working(|| self.depth() == (0, 0))
    }

    /// Waits until something is so, for as long as the kernel makes progress.
    pub(crate) fn wait_while_working(&self, is_so: impl Fn() -> bool) -> Result<()> {
        self.leave_nothing();
        let (mut before, mut since) = (self.progress(), Instant::now());
        while !is_so() {
            if self.status().is_ended() {
                return Err(self.ended());
            }
            let now = self.progress();
            if now != std::mem::replace(&mut before, now) {
                since = Instant::now();
            } else if since.elapsed() > self.timeout {
                return Err(self.stalled());
            }
            std::thread::sleep(Duration::from_micros(20));
        }
        Ok(())
    }

    pub(crate) fn telemetry(&self) -> Telemetry {
        let block = self.region.telemetry();
        let two = |words: &[AtomicU32; 2]| {
            u64::from(words[0].load(Ordering::Relaxed)) | u64::from(words[1].load(Ordering::Relaxed)) << 32
        };
        let mut looks = 0;
        loop {
            let version = block.version.load(Ordering::Acquire);
            let telemetry = Telemetry {
                status: self.status(),
                busy: block.busy.load(Ordering::Relaxed) != 0,
                handled: two(&block.handled),
                failed: two(&block.failed),
                sent: two(&block.sent),
                dropped: two(&block.dropped),
                clock: Moment::from_raw(two(&block.clock)),
                restarts: block.restarts.load(Ordering::Relaxed),
                checkpoints: block.checkpoints.load(Ordering::Relaxed),
                rests: block.rests.load(Ordering::Relaxed),
                waiting: self.depth(),
            };
            fence(Ordering::Acquire);
            // A kernel that was stopped in the middle of a change must not keep us here.
            looks += 1;
            if (version & 1 == 0 && version == block.version.load(Ordering::Relaxed)) || looks == 1000 {
                return telemetry;
            }
            std::hint::spin_loop();
        }
    }

    /// Tells the kernel what to do. Gives the number of the request; none if it is so already.
    fn request(&self, command: Command) -> Result<Option<u32>> {
        let _steering = lock(&self.steering);
        let (control, from) = (self.region.control(), self.status());
        let told = Command::from_word(control.command.load(Ordering::Relaxed)).unwrap_or(Command::Wait);
        let to = match command {
            Command::Wait => Status::Launched,
            Command::Activate => Status::Active,
            Command::Pause => Status::Paused,
            Command::Drain => Status::Draining,
            Command::Terminate => Status::Terminated,
        };
        if from == Status::Failed && command != Command::Terminate {
            return Err(self.ended());
        }
        let ending = matches!(told, Command::Drain | Command::Terminate) || from.is_ended();
        let allowed = match command {
            Command::Wait => false,
            Command::Activate => !ending,
            Command::Pause => !ending && told != Command::Wait,
            Command::Drain => !from.is_ended() && told != Command::Terminate,
            Command::Terminate => true,
        };
        if !allowed {
            return Err(Error::NotFrom { from, to });
        }
        if told == command || from.is_ended() {
            return Ok(Some(control.request.load(Ordering::Relaxed)));
        }
        if matches!(command, Command::Drain | Command::Terminate) {
            let (high, normal) = self.close();
            control.drain_high.store(high, Ordering::Relaxed);
            control.drain_normal.store(normal, Ordering::Relaxed);
        }
        control.command.store(command as u32, Ordering::Relaxed);
        Ok(Some(self.bump()))
    }

    /// Makes the kernel look at the host's line.
    fn bump(&self) -> u32 {
        let request = &self.region.control().request;
        let number = request.load(Ordering::Relaxed).wrapping_add(1);
        request.store(number, Ordering::Release);
        self.work.ring();
        number
    }

    /// Whether a request took effect.
    fn is_acknowledged(&self, number: u32) -> Option<Result<()>> {
        let ended = self.status().is_ended();
        let acknowledged = self.region.control().acknowledged.load(Ordering::Acquire);
        (ended || acknowledged.wrapping_sub(number) as i32 >= 0).then_some(Ok(()))
    }

    /// Whether the kernel is like that; an error if it never will be.
    pub(crate) fn has_become(&self, wanted: Status) -> Option<Result<()>> {
        let status = self.status();
        if status == wanted {
            return Some(Ok(()));
        }
        status.is_ended().then(|| Err(self.ended()))
    }

    /// Tells the kernel what to do, without waiting for it.
    pub(crate) fn tell(&self, command: Command) {
        let _ = self.request(command);
    }

    /// [`Self::tell`] for a kernel that came back. If it has been lost again, what it would have been told is kept for when
    /// it comes back the next time.
    pub(crate) fn resume(&self, command: Command) {
        if self.request(command).is_err() {
            let _steering = lock(&self.steering);
            self.region.control().command.store(command as u32, Ordering::Relaxed);
        }
    }

    /// Tells the kernel what to do, and waits until it does.
    pub(crate) fn steer(&self, command: Command) -> Result<()> {
        let Some(number) = self.request(command)? else { return Ok(()) };
        self.wait_for_mail(None, || self.is_acknowledged(number)).flatten()
    }

    /// [`Self::steer`] for tasks.
    pub(crate) async fn steer_async(&self, command: Command) -> Result<()> {
        let Some(number) = self.request(command)? else { return Ok(()) };
        self.await_mail(|| self.is_acknowledged(number)).await
    }

    /// Asks for a checkpoint; gives its number.
    pub(crate) fn want_checkpoint(&self) -> u32 {
        let _steering = lock(&self.steering);
        let wanted = &self.region.control().checkpoint_wanted;
        let number = wanted.load(Ordering::Relaxed).wrapping_add(1);
        wanted.store(number, Ordering::Relaxed);
        self.bump();
        number
    }

    /// The last checkpoint.
    pub(crate) fn saved(&self) -> Option<Saved> {
        self.saved_at.get().map_or_else(|| lock(&self.saved).clone(), |read| read())
    }

    /// Whether a checkpoint was made; an error if it never will be.
    pub(crate) fn is_checkpointed(&self, number: u32) -> Option<Result<()>> {
        let ended = self.status().is_ended();
        let made = self.region.control().checkpoint_made.load(Ordering::Acquire);
        if made.wrapping_sub(number) as i32 >= 0 {
            return Some(Ok(()));
        }
        ended.then(|| Err(self.ended()))
    }

    /// Waits for something that the kernel rings the mail bell for.
    pub(crate) fn wait_for_mail<R>(&self, deadline: Option<Instant>, attempt: impl FnMut() -> Option<R>) -> Result<R> {
        self.leave_nothing();
        self.patiently(deadline, attempt, |until, attempt| self.mail.wait(Some(until), false, attempt))
    }

    /// [`Self::wait_for_mail`] for tasks.
    pub(crate) async fn await_mail<R>(&self, attempt: impl FnMut() -> Option<R>) -> R {
        self.leave_nothing();
        on_bell(&self.mail, attempt).await
    }

    /// The message in a slot of the outbound ring: its header and as much of it as there can be.
    ///
    /// # Safety
    /// The slot is filled, and not released while the bytes are used.
    #[inline(always)]
    pub(crate) unsafe fn message(&self, ring: &Slots, position: u32) -> (Header, &[u8]) {
        let at = ring.at(position);
        let header = Header::read(&self.region, at);
        let length = (header.length as usize).min(ring.stride * 4 - HEADER);
        // SAFETY: that much of the slot is its message, and by the caller's word nobody writes it.
        (header, unsafe { std::slice::from_raw_parts(self.region.payload(at), length) })
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Port").field("status", &self.status()).field("layout", &self.layout).finish_non_exhaustive()
    }
}

/// Waits, as a task, until `attempt` succeeds.
pub(crate) async fn on_bell<R>(bell: &Bell, mut attempt: impl FnMut() -> Option<R>) -> R {
    struct Seated<'a>(&'a Bell, Seat);
    impl Drop for Seated<'_> {
        fn drop(&mut self) {
            self.0.unregister(&mut self.1);
        }
    }
    let mut seated = Seated(bell, Seat::default());
    std::future::poll_fn(move |cx| {
        let waker: &Waker = cx.waker();
        if let Some(result) = attempt() {
            return Poll::Ready(result);
        }
        seated.0.register(&mut seated.1, waker);
        attempt().map_or(Poll::Pending, Poll::Ready)
    })
    .await
}
