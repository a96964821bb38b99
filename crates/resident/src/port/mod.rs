//! The host's side of a kernel: putting messages into its rings, steering it, looking at it. It does not know what
//! device the kernel runs on, nor what its messages mean.

mod send;
mod steer;

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
use millrace_ring::{Bell, Seat, poll_while_worthwhile};

pub(crate) use crate::parcel::{Attachment, Head, Outgoing, Place, Remains, Saved, message_id, posted};
use crate::{
    Clock, Command, Error, Moment, Result, Status, Telemetry,
    drive::Wheel,
    header::Header,
    journal::Journal,
    layout::{HEADER, RegionLayout},
    parcel::{Attachments, SavedAt},
    region::{Region, Rings},
    replies::Replies,
    slots::{Slots, Tail},
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
