//! A kernel on the CPU: takes messages from its rings, runs the handler, keeps the control block and the telemetry
//! current. One thread at a time runs it; which, is the business of `workers.rs`.

mod answers;

use std::{
    any::Any,
    collections::VecDeque,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
    task::Waker,
};

use millrace_ring::Seat;

use crate::{
    Command, Error, LaunchOptions, Moment, RestartPolicy, STARVATION_BOUND, Status,
    brevity::Brevity,
    carry::Letter,
    drive::{self, Question, Ran},
    handler::{Answer, Behaviour, Emission, Outbox},
    header::Header,
    layout::{fault, flags},
    links::{Link, Links},
    port::{Attachment, Outgoing, Place, Port, Remains, Saved, lock, message_id},
    slots::Slots,
    sync::AtomicU32,
};

/// What came of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Something was done.
    Worked,
    /// There is nothing to do, or no room for what would come of it.
    Idle,
    /// It will never do anything again.
    Ended,
}

/// What the telemetry says.
#[derive(Debug, Default)]
struct Counts {
    handled: u64,
    failed: u64,
    sent: u64,
    dropped: u64,
    clock: u64,
    restarts: u32,
    checkpoints: u32,
}

/// A message that some links still have to get.
struct Pending {
    letter: Letter,
    correlation: u64,
    /// The links; none if it is for the host.
    to: Option<Vec<Arc<Link>>>,
}

pub(crate) struct Kernel {
    port: Arc<Port>,
    life: Life,
}

/// Everything but the port, which most of what it does needs, too.
struct Life {
    links: Arc<Links>,
    /// None once it has ended.
    behaviour: Option<Box<dyn Behaviour>>,
    /// Messages taken from each ring; the lower halves are the rings' positions.
    high: u64,
    normal: u64,
    /// Messages put into the outbound ring; the lower half is the ring's position.
    out: u64,
    burst: u32,
    request: u32,
    status: Status,
    counts: Counts,
    restart: RestartPolicy,
    checkpoint_every: Option<u64>,
    since_checkpoint: u64,
    brevity: Brevity,
    /// While one who asked runs it: when it did.
    asked: Option<Moment>,
    /// Questions that were in no ring.
    direct: u64,
    emissions: VecDeque<Emission>,
    pending: VecDeque<Pending>,
    scratch: Vec<u8>,
    seat: Seat,
    /// The kernels whose room is waited for.
    link_seats: Vec<(Arc<Port>, Seat)>,
}

impl Kernel {
    pub(crate) fn new(
        port: Arc<Port>,
        links: Arc<Links>,
        behaviour: Box<dyn Behaviour>,
        options: &LaunchOptions,
    ) -> Self {
        let life = Life {
            links,
            behaviour: Some(behaviour),
            high: 0,
            normal: 0,
            out: 0,
            burst: 0,
            request: 0,
            status: Status::Launched,
            counts: Counts::default(),
            restart: options.restart,
            checkpoint_every: options.checkpoint_every,
            since_checkpoint: 0,
            brevity: Brevity::new(options),
            asked: None,
            direct: 0,
            emissions: VecDeque::new(),
            pending: VecDeque::new(),
            scratch: Vec::new(),
            seat: Seat::default(),
            link_seats: Vec::new(),
        };
        Self { port, life }
    }

    pub(crate) fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// Whether something waits to be sent on.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.life.pending.is_empty()
    }

    /// Handles up to `budget` messages.
    pub(crate) fn run(&mut self, budget: usize) -> Step {
        let mut last = Step::Idle;
        for _ in 0..budget {
            match self.life.step(&self.port) {
                Step::Worked => last = Step::Worked,
                Step::Idle => return last,
                Step::Ended => return Step::Ended,
            }
        }
        last
    }

    /// Whether one who asks may run it: that was shown, and nothing waits to be sent on.
    #[inline]
    pub(crate) fn is_brief(&self) -> bool {
        self.life.brevity.is_proven() && self.life.status == Status::Active && self.life.pending.is_empty()
    }

    /// Messages that wait: urgent ones, and others.
    #[inline]
    pub(crate) fn waiting(&self) -> [u32; 2] {
        let [high, normal] = self.port.tails();
        [high.wrapping_sub(self.life.high as u32), normal.wrapping_sub(self.life.normal as u32)]
    }

    /// Handles messages for one who asked, a few at most, until that of this number is handled.
    #[inline]
    pub(crate) fn run_until(&mut self, id: u64, asked: Moment) {
        let (high, number) = ((id - 1) & 1 == 1, (id - 1) >> 1);
        let end = (number + 1) as u32;
        self.run_up_to(if high { [end, self.life.normal as u32] } else { [self.life.high as u32, end] }, asked);
    }

    /// Handles messages for one who asked, a few at most, until it is past these ends of the rings. Whether it is.
    fn run_up_to(&mut self, ends: [u32; 2], asked: Moment) -> bool {
        self.life.asked = Some(asked);
        for _ in 0..drive::MOST {
            if self.life.is_past(ends) || self.life.step(&self.port) != Step::Worked {
                break;
            }
        }
        self.life.asked = None;
        self.life.is_past(ends)
    }

    /// Whether there is nothing left to do.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        let request = self.port.region.control().request.load(Ordering::Acquire);
        request == self.life.request
            && self.waiting() == [0, 0]
            && self.life.pending.is_empty()
            && !self.life.status.is_ended()
    }

    /// What was left for those who ask was left lying: they do not run it any more until they have asked often again.
    pub(crate) fn forget_askers(&mut self) {
        self.life.brevity.forget();
        self.port.brief.store(false, Ordering::Relaxed);
    }

    /// Handles a question that is in no ring, after all that was sent before it, and has its answer written to a place. None if
    /// that cannot be: the kernel was told something, it does not get that far, or there is no room.
    #[inline(always)]
    pub(crate) fn answer(&mut self, question: &Question<'_>, place: Place) -> Option<Ran<Answer>> {
        let asked = self.port.clock.tick();
        if self.waiting() != [0, 0] && !self.catch_up(asked) {
            return None;
        }
        if self.port.journal.get().is_some() {
            return self.answer_from_ring(question, asked);
        }
        let (port, life) = (&*self.port, &mut self.life);
        // An answer that comes after other messages, and word of a failure, go through the ring.
        if port.region.control().request.load(Ordering::Acquire) != life.request
            || !port.rings.out.is_free(&port.region, life.out as u32)
        {
            return None;
        }
        life.direct += 1;
        let header = question.header(life.direct, asked);
        life.asked = Some(asked);
        let answer = life.handle(port, &header, question.bytes, Some(place));
        life.asked = None;
        Some(answer.map_or(Ran::Sent(header.id), Ran::Answered))
    }

    /// Handles what was sent before a question. Whether it can go on with that: what was handled may have brought something that
    /// comes first, or the end.
    #[cold]
    fn catch_up(&mut self, asked: Moment) -> bool {
        let caught_up = self.run_up_to(self.port.tails(), asked);
        let goes_on = self.life.status == Status::Active && self.life.pending.is_empty();
        caught_up && goes_on && self.waiting()[0] == 0
    }

    /// The same for a kernel that may come back: what it was asked has to be known, so it goes through the rings.
    #[cold]
    fn answer_from_ring(&mut self, question: &Question<'_>, asked: Moment) -> Option<Ran<Answer>> {
        let mut outgoing = Outgoing { head: question.head(asked), bytes: question.bytes, attachment: &mut None };
        let id = self.port.inject(&mut outgoing).ok()?;
        self.run_until(id, asked);
        Some(Ran::Sent(id))
    }

    /// Leaves a waker with everything that could give the kernel something to do. The caller must run it once more.
    pub(crate) fn register(&mut self, waker: &Waker) {
        let rests = &self.port.region.telemetry().rests;
        rests.store(rests.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.port.work.register(&mut self.life.seat, waker);
        if self.port.depth() == (0, 0) {
            self.port.room.ring_for_empty();
        }
        for (to, mut seat) in self.life.link_seats.drain(..) {
            to.room.unregister(&mut seat);
        }
        for link in self.life.pending.iter().flat_map(|pending| pending.to.iter().flatten()) {
            let (Some(to), mut seat) = (link.to(), Seat::default()) else { continue };
            to.room.register(&mut seat, waker);
            self.life.link_seats.push((to, seat));
        }
    }
}

impl Life {
    /// Whether it has taken all messages before these positions of its rings.
    #[inline(always)]
    fn is_past(&self, [high, normal]: [u32; 2]) -> bool {
        let is_past = |taken: u64, end: u32| (taken as u32).wrapping_sub(end) as i32 >= 0;
        is_past(self.high, high) && is_past(self.normal, normal)
    }

    /// Obeys, or handles one message.
    #[inline]
    fn step(&mut self, port: &Port) -> Step {
        let request = port.region.control().request.load(Ordering::Acquire);
        if request != self.request {
            return self.obey(port, request);
        }
        match self.status {
            Status::Active => {}
            Status::Draining => {}
            Status::Terminated | Status::Failed => return Step::Ended,
            Status::Launched | Status::Paused => return Step::Idle,
        }
        if !self.pending.is_empty() && !self.flush(port) {
            return Step::Idle;
        }
        let rings = &port.rings;
        let high = rings.high.is_filled(&port.region, self.high as u32);
        let normal = rings.normal.is_filled(&port.region, self.normal as u32);
        let urgent = high && !(normal && self.burst >= STARVATION_BOUND);
        if !high && !normal {
            return self.rest(port);
        }
        if !rings.out.is_free(&port.region, self.out as u32) {
            return Step::Idle;
        }
        self.burst = if urgent && normal { self.burst + 1 } else { 0 };
        self.take(port, urgent);
        if self.status == Status::Failed { Step::Ended } else { Step::Worked }
    }

    /// Nothing waits: the end of a drain, or idleness.
    fn rest(&mut self, port: &Port) -> Step {
        if self.status == Status::Draining {
            let control = port.region.control();
            let ends = [&control.drain_high, &control.drain_normal].map(|end| end.load(Ordering::Relaxed));
            if ends == [self.high as u32, self.normal as u32] {
                self.end(port, Status::Terminated);
                return Step::Ended;
            }
        }
        Step::Idle
    }

    /// The host's line changed.
    #[cold]
    fn obey(&mut self, port: &Port, request: u32) -> Step {
        self.request = request;
        let control = port.region.control();
        let wanted = control.checkpoint_wanted.load(Ordering::Relaxed);
        if wanted != control.checkpoint_made.load(Ordering::Relaxed) {
            self.checkpoint(port);
            control.checkpoint_made.store(wanted, Ordering::Release);
        }
        let status = match Command::from_word(control.command.load(Ordering::Relaxed)) {
            Some(Command::Activate) => Status::Active,
            Some(Command::Pause) => Status::Paused,
            Some(Command::Drain) => Status::Draining,
            Some(Command::Terminate) => Status::Terminated,
            Some(Command::Wait) | None => self.status,
        };
        if status == Status::Terminated {
            self.end(port, status);
        } else if status != self.status {
            self.status = status;
            port.set_status(status);
        }
        control.acknowledged.store(request, Ordering::Release);
        port.mail.ring();
        if self.status.is_ended() { Step::Ended } else { Step::Worked }
    }

    /// Takes a message and handles it.
    #[inline]
    fn take(&mut self, port: &Port, urgent: bool) {
        let (ring, number) =
            if urgent { (&port.rings.high, &mut self.high) } else { (&port.rings.normal, &mut self.normal) };
        let position = *number as u32;
        // SAFETY: the slot is filled, and released below, when nothing refers to it any more.
        let (mut header, bytes) = unsafe { port.message(ring, position) };
        // What the host called it follows from where it lies: damage to a slot cannot make it pass for another message.
        header.id = message_id(*number, urgent);
        *number += 1;
        if header.flags & flags::VOID == 0 {
            self.handle(port, &header, bytes, None);
        }
        self.passed(port, ring, position, urgent);
    }

    /// The kernel is past a place of a ring: it is free for the next lap.
    #[inline]
    fn passed(&self, port: &Port, ring: &Slots, position: u32, urgent: bool) {
        ring.release(&port.region, position);
        let control = port.region.control();
        let (head, next) = (if urgent { &control.high_head } else { &control.normal_head }, position.wrapping_add(1));
        head.store(next, Ordering::Release);
        port.room.ring_for_room(next as usize, 1, ring.capacity() as usize, || {
            let (high, normal) = port.depth();
            (if urgent { high } else { normal }) as usize
        });
    }

    /// Where the next answer goes that is published: its slot was found free.
    #[inline(always)]
    fn slot(&self, port: &Port) -> Place {
        let start = port.region.payload(port.rings.out.at(self.out as u32));
        Place { start, room: port.layout.out_payload() }
    }

    /// Handles a message. An answer for which there is a place is written there and given to the caller, who has seen its time
    /// then, unless something has to be sent before it; all others are published.
    #[inline]
    fn handle(&mut self, port: &Port, header: &Header, bytes: &[u8], place: Option<Place>) -> Option<Answer> {
        let ask = header.is_ask();
        let wanted = place.is_some();
        let place = place.or_else(|| (ask || self.links.is_empty()).then(|| self.slot(port)));
        let behaviour = self.behaviour.as_mut()?;
        let attachment =
            if header.flags & flags::ATTACHED != 0 { lock(&port.attached).remove(&header.id) } else { None };
        let mute = header.flags & flags::SILENT != 0;
        port.region.telemetry().busy.store(1, Ordering::Relaxed);
        let mut outbox = Outbox {
            port,
            place,
            answer: None,
            beside: None,
            scratch: &mut self.scratch,
            emissions: &mut self.emissions,
            silent: false,
        };
        let (known, mut since) = (self.brevity.is_proven(), None);
        if self.brevity.matters() {
            if !ask {
                port.posts.store(port.posts.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
            }
            let willing = header.flags & flags::WILLING != 0;
            since = self.brevity.before(header.clock, self.asked, ask, willing, self.counts.handled);
        }
        // An error is large, and nobody is to carry room for one.
        let handled = || behaviour.handle(header, bytes, attachment.as_ref(), &mut outbox).err().map(Box::new);
        let result = catch_unwind(AssertUnwindSafe(handled));
        if let Some(since) = since {
            self.brevity.after(known, since);
        }
        if known != self.brevity.is_proven() {
            port.brief.store(!known, Ordering::Relaxed);
        }
        let answers = !mute && (ask || (behaviour.answers() && !outbox.silent));
        if mute {
            outbox.emissions.clear();
        }
        let answer = outbox.answer.filter(|_| answers);
        let beside = taken_if_there(&mut outbox.beside);
        if attachment.is_some() {
            drop(attachment);
        }
        // As on a device without a clock: later than the message, and than the last one.
        self.counts.clock = self.counts.clock.max(header.clock.believed().map_or(0, Moment::raw)) + 1;
        let clock = Moment::from_raw(self.counts.clock);
        let mut given = None;
        match result {
            Ok(None) => {
                self.counts.handled += 1;
                self.since_checkpoint += 1;
                self.counts.sent += u64::from(answer.is_some_and(Answer::is_in_place));
                self.publish_counts(port);
                match answer {
                    Some(answer) if answer.is_in_place() && wanted => {
                        port.clock.see(clock);
                        given = Some(answer);
                    }
                    Some(answer) if answer.is_in_place() => self.reply(port, header, answer, beside, clock),
                    None if self.emissions.is_empty() => {}
                    answer => self.send_on(port, header, answer.map(|answer| (answer, beside)), clock),
                }
                if self.checkpoint_every.is_some_and(|every| self.since_checkpoint >= every) {
                    self.checkpoint(port);
                    self.publish_counts(port);
                }
            }
            Ok(Some(error)) => {
                self.counts.failed += 1;
                self.emissions.clear();
                self.publish_counts(port);
                if answers {
                    let code = match *error {
                        Error::WrongType { .. } => fault::WRONG_TYPE,
                        Error::WrongLength { .. } | Error::Misaligned { .. } => fault::WRONG_LENGTH,
                        Error::NoPayload => fault::NO_PAYLOAD,
                        _ => fault::INVALID,
                    };
                    self.reply_failure(port, header, clock, code, error.to_string().into());
                }
            }
            Err(panic) => self.panicked(port, header, clock, answers, text_of(panic)),
        }
        given
    }

    /// The handler panicked: says so to who asked, and applies the restart policy.
    #[cold]
    fn panicked(&mut self, port: &Port, header: &Header, clock: Moment, answers: bool, text: Arc<str>) {
        self.counts.failed += 1;
        self.emissions.clear();
        tracing::warn!(panic = &*text, "a resident kernel's handler panicked");
        if let Some(journal) = port.journal.get() {
            let id = header.id - 1;
            journal.forget(id & 1 == 1, id >> 1);
        }
        let restarts = match self.restart {
            RestartPolicy::Never => 0,
            RestartPolicy::UpTo(restarts) => restarts,
        };
        let mut again = self.counts.restarts < restarts;
        if again {
            self.counts.restarts += 1;
            let saved = lock(&port.saved).clone();
            let behaviour = &mut self.behaviour;
            again = catch_unwind(AssertUnwindSafe(|| {
                if let Some(behaviour) = behaviour {
                    behaviour.restart(saved.as_ref().map(|saved| &*saved.state));
                }
            }))
            .is_ok();
        }
        self.publish_counts(port);
        // Who hears of it can rely on it; but the status comes last, because nobody looks for answers after that.
        if !again {
            port.region.control().fault.store(fault::PANIC, Ordering::Relaxed);
            port.fail(text.clone());
        }
        if answers {
            self.reply_failure(port, header, clock, fault::PANIC, text);
        }
        if !again {
            self.end(port, Status::Failed);
        }
    }

    /// Keeps a copy of the state.
    fn checkpoint(&mut self, port: &Port) {
        self.since_checkpoint = 0;
        let Some(behaviour) = &self.behaviour else { return };
        let state = behaviour.state().to_vec();
        let (handled, clock) = (self.counts.handled, Moment::from_raw(self.counts.clock));
        let positions = [self.high as u32, self.normal as u32];
        *lock(&port.saved) = Some(Saved { state, handled, clock, positions });
        self.counts.checkpoints += 1;
        self.publish_counts(port);
    }

    /// Writes the telemetry: whoever reads it sees all of a change or nothing.
    #[inline(always)]
    fn publish_counts(&mut self, port: &Port) {
        let (block, counts) = (port.region.telemetry(), &self.counts);
        let set = |word: &AtomicU32, value: u32| word.store(value, Ordering::Relaxed);
        let set_two = |words: &[AtomicU32; 2], value: u64| {
            set(&words[0], value as u32);
            set(&words[1], (value >> 32) as u32);
        };
        let version = block.version.load(Ordering::Relaxed);
        set(&block.version, version.wrapping_add(1));
        fence(Ordering::Release);
        set(&block.busy, 0);
        set_two(&block.handled, counts.handled);
        set_two(&block.failed, counts.failed);
        set_two(&block.sent, counts.sent);
        set_two(&block.clock, counts.clock);
        set_two(&block.dropped, counts.dropped);
        set(&block.restarts, counts.restarts);
        set(&block.checkpoints, counts.checkpoints);
        block.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// It is over: nobody will take what is still in the rings.
    fn end(&mut self, port: &Port, status: Status) {
        self.status = status;
        self.pending.clear();
        self.emissions.clear();
        let reached = [self.high as u32, self.normal as u32];
        let returns = status == Status::Failed && port.can_return() || port.wanted_back.load(Ordering::Acquire);
        if let Some(behaviour) = self.behaviour.take_if(|_| returns) {
            *lock(&port.remains) = Some(Remains { behaviour, reached });
        }
        if let Some(behaviour) = self.behaviour.take()
            && let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(behaviour)))
        {
            std::mem::forget(panic); // its drop may panic as well
        }
        port.set_status(status);
        lock(&port.attached).clear();
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        self.port.work.unregister(&mut self.life.seat);
        for (to, mut seat) in self.life.link_seats.drain(..) {
            to.room.unregister(&mut seat);
        }
        if !self.life.status.is_ended() {
            // Its thread could not be started, or is being torn down.
            self.port.fail("the kernel's worker ended".into());
            self.life.end(&self.port, Status::Failed);
        }
    }
}

/// What is beside an answer. Usually nothing is, and then nothing is moved: that it is empty may have been written just now.
#[inline(always)]
fn taken_if_there(beside: &mut Option<Attachment>) -> Option<Attachment> {
    if beside.is_some() { beside.take() } else { None }
}

/// What a panic says.
pub(crate) fn text_of(panic: Box<dyn Any + Send>) -> Arc<str> {
    let text = panic.downcast_ref::<&str>().map(|text| Arc::from(*text));
    let text = text.or_else(|| panic.downcast_ref::<String>().map(|text| Arc::from(text.as_str())));
    if catch_unwind(AssertUnwindSafe(|| drop(panic))).is_err() {
        tracing::warn!("a panic's payload panicked when it was dropped");
    }
    text.unwrap_or_else(|| "with something that is not text".into())
}
