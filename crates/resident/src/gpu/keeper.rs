//! The keeper: a thread of the host that keeps a device's program running for as long as there is something to do, and
//! rings the bells that the device cannot.
//!
//! While messages come it wakes up every now and then, queues the next leases when the last have run, and looks at what
//! the kernels did since, for those who sleep. After a quiet time it ends the leases and sleeps itself: then nothing
//! costs anything, and the next message wakes it. The directory is only changed while no lease runs.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use millrace_core::{Code, Leave, OpenResidence};
use millrace_ring::{Bell, Seat, sleep_until};

use super::{
    arena::{Arena, MOST, MOST_LINKS, Piece, directory, entry, link, own, stop},
    forward::Forwarder,
    program::{self, Part},
    ways::{self, Neighbour, Route, Way},
};
use crate::{
    Error, InUse, LaunchOptions, Mode, Result, Status, WaitPolicy,
    links::{Link, Links},
    port::{Port, lock},
    slots::Slots,
};

/// Turns of a lease: well below what the worst known driver lets a thread make in all its loops.
const BUDGET: u32 = 24_000;
/// Leases of one submission. One that is told to stop ends at once, and each of those behind it costs an empty dispatch.
const LEASES: u32 = 128;
/// How often the keeper looks while kernels are busy.
const TICK: Duration = Duration::from_micros(100);
/// How long nothing must happen before leases are no longer queued.
const QUIET: Duration = Duration::from_millis(20);
/// How long a lease may take to end when it is told to, at least; a handler may be in the middle of its work.
const PATIENCE: Duration = Duration::from_millis(500);

/// A kernel as the keeper knows it.
pub(super) struct Tenant {
    pub(super) port: Arc<Port>,
    links: Arc<Links>,
    pub(super) piece: Piece,
    handler: u32,
    turn: u32,
    checkpoint_every: u32,
    wait: WaitPolicy,
    seen: Seen,
    seat: Seat,
    /// The links that are in the directory, and how many messages the device dropped on each.
    pub(super) linked: Vec<(Arc<Link>, u32)>,
    pub(super) forwarder: Forwarder,
    route: Route,
}

/// What changes when a kernel does something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen {
    status: u32,
    acknowledged: u32,
    checkpoints: u32,
    out: u32,
    high: u32,
    normal: u32,
    link: u32,
}

impl Tenant {
    pub(super) fn new(
        port: Arc<Port>,
        links: Arc<Links>,
        piece: Piece,
        handler: u32,
        turn: u32,
        options: &LaunchOptions,
    ) -> Self {
        let checkpoint_every = options.checkpoint_every.map_or(0, |every| u32::try_from(every).unwrap_or(u32::MAX));
        let (wait, seen, seat) = (options.wait, Seen::default(), Seat::default());
        let unsent = std::mem::take(&mut *lock(&port.unsent));
        let route = Route::by(if unsent.is_empty() { Way::Device } else { Way::Host });
        let (linked, forwarder) = (Vec::new(), Forwarder::default().taking_over(unsent));
        Self { port, links, piece, handler, turn, checkpoint_every, wait, seen, seat, linked, forwarder, route }
    }

    fn look(&self, arena: &Arena) -> Seen {
        let control = self.port.region.control();
        let get = |word: &std::sync::atomic::AtomicU32| word.load(Ordering::Acquire);
        Seen {
            status: get(&control.status),
            acknowledged: get(&control.acknowledged),
            checkpoints: get(&control.checkpoint_made),
            out: get(&control.out_tail),
            high: get(&control.high_head),
            normal: get(&control.normal_head),
            link: arena.get(self.piece.own + own::LINK_HEAD),
        }
    }

    /// Whether the device could do something for it.
    fn has_work(&self, arena: &Arena, tenants: &[Tenant]) -> bool {
        let (region, rings) = (&self.port.region, &self.port.rings);
        let control = region.control();
        if control.request.load(Ordering::Acquire) != control.acknowledged.load(Ordering::Acquire) {
            return true;
        }
        let status = self.port.status();
        let of_own = |at: usize| arena.get(self.piece.own + at);
        if of_own(own::REPLAY) > of_own(own::LOUD) {
            return true;
        }
        if !matches!(status, Status::Active | Status::Draining) {
            return false;
        }
        let filled = |ring: &Slots, head: u32| ring.is_filled(region, head);
        let now = self.look(arena);
        let linked = now.link != of_own(own::LINK_TAIL);
        if !filled(&rings.high, now.high) && !filled(&rings.normal, now.normal) && !linked {
            let ends = [&control.drain_high, &control.drain_normal].map(|end| end.load(Ordering::Relaxed));
            return status == Status::Draining && ends == [now.high, now.normal];
        }
        // Another kernel that has no room makes its own, or nobody can.
        let room = |(n, (link, _)): (usize, &(Arc<Link>, u32))| {
            let Some(port) = link.to() else { return true };
            let to = tenants.iter().find(|tenant| Arc::ptr_eq(&tenant.port, &port));
            if to.is_none() && !link.lossy && port.can_return() {
                return false;
            }
            link.lossy
                || to.is_none_or(|to| {
                    let kept = if to.checkpoint_every == 0 { own::LINK_HEAD } else { own::SAVED_LINK };
                    let of_it = |at: usize| arena.get(to.piece.own + at);
                    let taken = of_it(own::LINK_TAIL).wrapping_sub(of_it(kept));
                    let before = of_own(own::LINKS + n * own::LINK_WORDS + link::BEFORE);
                    (taken as usize + before as usize) < to.piece.link_slots
                        || matches!(to.port.status(), Status::Draining)
                        || to.port.status().is_ended()
                })
        };
        !self.route.is_crossing() && rings.out.is_free(region, now.out) && self.linked.iter().enumerate().all(room)
    }
}

/// How many of some links lead to a kernel, by its number, and take room there.
fn leading_to(links: &[(usize, u32)], kernel: usize) -> usize {
    links.iter().filter(|&&(to, how)| to == kernel && matches!(how, link::LOSSLESS | link::LOSSY)).count()
}

/// Whether an answer that takes several links to one kernel can ever have room there at once: half of the ring may be kept
/// until the next checkpoint.
fn all_fit(links: &[(usize, u32)], slots: &[usize]) -> bool {
    links.iter().all(|&(to, _)| leading_to(links, to) <= slots[to] - (slots[to] - 1) / 2)
}

/// What the keeper and everybody else share.
pub(super) struct Inner {
    arena: Arc<Arena>,
    residency: InUse,
    timeout: Duration,
    /// Somebody wants something of the keeper.
    door: Bell,
    /// It was done.
    done: Bell,
    wanted: AtomicU64,
    applied: AtomicU64,
    entering: Mutex<Vec<Tenant>>,
    /// Kernels inside, and on their way.
    population: AtomicUsize,
    programs: Mutex<Programs>,
    closing: AtomicBool,
    /// The device is lost; nobody enters any more.
    closed: AtomicBool,
}

#[derive(Default)]
struct Programs {
    parts: Vec<Part>,
    /// The one with all parts.
    code: Option<Code>,
}

impl Inner {
    /// Makes the keeper look at everything anew; says when it has.
    fn want(&self) -> u64 {
        let number = self.wanted.fetch_add(1, Ordering::AcqRel) + 1;
        self.door.ring();
        number
    }

    fn is_done(&self, number: u64) -> bool {
        self.applied.load(Ordering::Acquire) >= number || self.closed.load(Ordering::Acquire)
    }

    /// A kernel's links are others: returns when the device knows.
    pub(super) fn links_changed(&self) {
        let number = self.want();
        let deadline = Instant::now() + self.timeout;
        if self.done.wait(Some(deadline), true, || self.is_done(number).then_some(())).is_none() {
            tracing::warn!("the device did not take notice of new links in time");
        }
    }

    fn program(&self) -> Option<Code> {
        lock(&self.programs).code.clone()
    }
}

/// A device's place for kernels that stay. It closes when the last of them has left.
pub(super) struct House {
    inner: Arc<Inner>,
    keeper: Mutex<Option<JoinHandle<()>>>,
}

impl House {
    pub(super) fn open(arena: Arc<Arena>, residency: InUse, timeout: Duration) -> Result<Arc<Self>> {
        let inner = Arc::new(Inner {
            arena,
            residency,
            timeout,
            door: Bell::new(),
            done: Bell::new(),
            wanted: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            entering: Mutex::default(),
            population: AtomicUsize::new(0),
            programs: Mutex::default(),
            closing: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        let keeper = Keeper::new(inner.clone());
        let refused = |error: std::io::Error| Error::Device(millrace_core::Error::Thread(error.to_string().into()));
        let thread = std::thread::Builder::new().name("millrace-keeper".into()).spawn(move || keeper.keep());
        let residence = inner.arena.residence().clone();
        let house = Arc::new(Self { inner, keeper: Mutex::new(Some(thread.map_err(refused)?)) });
        let leave: Arc<dyn Leave> = house.clone();
        residence.attend(Arc::downgrade(&leave));
        Ok(house)
    }

    /// Whether kernels can enter. Who has seen that one of those inside was lost is told no.
    pub(super) fn is_open(&self) -> bool {
        let _entering = lock(&self.inner.entering);
        !self.inner.closed.load(Ordering::Acquire)
    }

    pub(super) fn arena(&self) -> &Arc<Arena> {
        &self.inner.arena
    }

    pub(super) fn residency(&self) -> &InUse {
        &self.inner.residency
    }

    pub(super) fn notifier(&self) -> Arc<Inner> {
        self.inner.clone()
    }

    /// The number of a handler; the program is made anew if it has not been seen before.
    pub(super) fn handler(&self, part: Part) -> Result<u32> {
        let mut programs = lock(&self.inner.programs);
        if let Some(known) = programs.parts.iter().position(|known| known.source == part.source) {
            return Ok(known as u32);
        }
        let residence = self.inner.arena.residence();
        programs.parts.push(part);
        let source = program::program(&programs.parts, residence.shape());
        match residence.compile(&source) {
            Ok(code) => programs.code = Some(code),
            Err(error) => {
                programs.parts.pop();
                return Err(error.into());
            }
        }
        Ok(programs.parts.len() as u32 - 1)
    }

    /// Lets a kernel in. One that cannot enter keeps what it has to send.
    pub(super) fn enter(&self, mut tenant: Tenant) -> Result<()> {
        let mut entering = lock(&self.inner.entering);
        if self.inner.closed.load(Ordering::Acquire) {
            *lock(&tenant.port.unsent) = tenant.forwarder.leave();
            return Err(Error::Device(millrace_core::Error::DeviceLost("its resident kernels ended".into())));
        }
        let more = |population: usize| (population < MOST).then_some(population + 1);
        if self.inner.population.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            *lock(&tenant.port.unsent) = tenant.forwarder.leave();
            return Err(Error::Invalid(format!("a device holds at most {MOST} resident kernels").into()));
        }
        entering.push(tenant);
        drop(entering);
        self.inner.want();
        Ok(())
    }
}

impl House {
    /// Ends the leases and the keeper, who does not wait for a handler that hangs.
    fn close(&self) {
        self.inner.closing.store(true, Ordering::Release);
        self.inner.want();
        if let Some(keeper) = lock(&self.keeper).take()
            && keeper.join().is_err()
        {
            tracing::error!("the keeper of resident kernels panicked");
        }
    }
}

impl Leave for House {
    fn leave(&self, _: Duration) {
        self.close();
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.close();
    }
}

/// The thread's own.
pub(super) struct Keeper {
    pub(super) inner: Arc<Inner>,
    pub(super) arena: Arc<Arena>,
    pub(super) residence: OpenResidence,
    pub(super) tenants: Vec<Tenant>,
    /// Kernels that were lost, for which some here wait. They may come back elsewhere.
    awaited: Vec<(Arc<Port>, Seat)>,
    /// Leases are queued, or were.
    running: bool,
    door: Seat,
}

/// The device is lost, or the program cannot go on.
pub(super) type Lost = millrace_core::Error;

impl Keeper {
    fn new(inner: Arc<Inner>) -> Self {
        let arena = inner.arena.clone();
        let residence = arena.residence().clone();
        let (tenants, awaited) = (Vec::new(), Vec::new());
        Self { inner, arena, residence, tenants, awaited, running: false, door: Seat::default() }
    }

    fn keep(mut self) {
        let kept = self.serve();
        if let Err(error) = &kept {
            tracing::error!(%error, "resident kernels are lost");
            // What is queued may still run, although nobody can be asked about it.
            self.arena.set(directory::STOP, stop::NOW);
            let deadline = Instant::now() + PATIENCE;
            while self.arena.get(directory::RUNNING) != 0 && Instant::now() < deadline {
                std::thread::sleep(TICK);
            }
            self.residence.abandon();
        }
        // Nobody enters another house before those here have ended for all to see: who is linked to one of them would take
        // it for one that is merely elsewhere.
        let inner = self.inner.clone();
        let mut entering = lock(&inner.entering);
        self.tenants.append(&mut entering);
        if kept.is_err() {
            self.finish();
        }
        for tenant in &mut self.tenants {
            tenant.port.work.unregister(&mut tenant.seat);
            match &kept {
                Err(error) => {
                    if !tenant.port.status().is_ended() {
                        tenant.port.fail(error.to_string().into());
                        tenant.port.set_status(Status::Failed);
                    }
                }
                Ok(()) if tenant.port.status().is_ended() => tenant.port.set_status(tenant.port.status()),
                Ok(()) => tenant.port.set_status(Status::Terminated),
            }
        }
        self.inner.closed.store(true, Ordering::Release);
        drop(entering);
        self.inner.door.unregister(&mut self.door);
        self.inner.done.ring();
    }

    /// Serves until the house closes.
    fn serve(&mut self) -> Result<(), Lost> {
        let mut quiet = Instant::now();
        loop {
            let wanted = self.inner.wanted.load(Ordering::Acquire);
            if wanted != self.inner.applied.load(Ordering::Relaxed) {
                self.halt()?;
                self.rearrange();
                self.inner.applied.store(wanted, Ordering::Release);
                self.inner.done.ring();
                quiet = Instant::now();
                if self.inner.closing.load(Ordering::Acquire) {
                    return Ok(());
                }
            }
            if self.tenants.is_empty() {
                self.sleep();
                continue;
            }
            match self.inner.residency.mode {
                Mode::Batched => {
                    if self.tenants.iter().any(|tenant| tenant.has_work(&self.arena, &self.tenants)) {
                        self.batch()?;
                        self.observe();
                    } else if !self.observe() {
                        self.sleep();
                    }
                }
                _ => {
                    self.lease()?;
                    if self.observe() {
                        quiet = Instant::now();
                    }
                    // Also one that never rests is halted now and then: that its leases end shows that no handler hangs.
                    let patience = self.patience();
                    if quiet.elapsed() >= patience.unwrap_or(self.inner.timeout) {
                        self.halt()?;
                        self.observe();
                        if patience.is_some() {
                            self.sleep();
                        }
                        quiet = Instant::now();
                    } else {
                        std::thread::sleep(TICK);
                    }
                }
            }
        }
    }

    /// How long nothing must happen before leases end; nothing if they do not.
    fn patience(&self) -> Option<Duration> {
        let of = |tenant: &Tenant| match tenant.wait {
            WaitPolicy::Spin => None,
            WaitPolicy::Adaptive => Some(QUIET),
            WaitPolicy::Sleep => Some(Duration::ZERO),
        };
        let all: Option<Vec<Duration>> = self.tenants.iter().map(of).collect();
        all.map(|all| all.into_iter().max().unwrap_or(QUIET))
    }

    pub(super) fn program(&self) -> Result<Code, Lost> {
        self.inner.program().ok_or_else(|| Lost::Invalid("there is no program".into()))
    }

    pub(super) fn timeout(&self) -> Duration {
        self.inner.timeout
    }

    /// Queues leases if there are none.
    fn lease(&mut self) -> Result<(), Lost> {
        if self.running && !self.residence.wait(Duration::ZERO)? {
            return Ok(());
        }
        let program = self.program()?;
        self.arena.set(directory::BUDGET, BUDGET);
        self.arena.set(directory::STOP, stop::NEVER);
        self.residence.submit(&program, LEASES)?;
        self.running = true;
        Ok(())
    }

    /// Ends all leases.
    fn halt(&mut self) -> Result<(), Lost> {
        if !self.running {
            return Ok(());
        }
        self.arena.set(directory::STOP, stop::NOW);
        let start = Instant::now();
        while !self.residence.wait(Duration::from_millis(50))? {
            // Who leaves does not wait for a handler that hangs.
            let closing = self.inner.closing.load(Ordering::Acquire);
            let patience = if closing { PATIENCE } else { self.inner.timeout.max(PATIENCE) };
            if start.elapsed() > patience {
                return Err(Lost::DeviceLost(format!("a lease did not end within {patience:?}").into()));
            }
        }
        self.running = false;
        Ok(())
    }

    /// Lets kernels in and out, and writes the directory. No lease runs.
    fn rearrange(&mut self) {
        self.tenants.append(&mut lock(&self.inner.entering));
        self.awaited.clear(); // found anew below
        self.observe();
        let ended = |tenant: &mut Tenant| tenant.port.status().is_ended() && !tenant.forwarder.is_blocked();
        for mut tenant in self.tenants.extract_if(.., ended) {
            tenant.port.work.unregister(&mut tenant.seat);
            self.inner.population.fetch_sub(1, Ordering::Relaxed);
        }
        let arena = &self.arena;
        let all: Vec<Neighbour> = self.tenants.iter().map(|tenant| (tenant.port.clone(), tenant.piece.own)).collect();
        let link_slots: Vec<usize> = self.tenants.iter().map(|tenant| tenant.piece.link_slots).collect();
        let mut fed = vec![false; all.len()];
        let place_of = |link: &Arc<Link>| {
            let to = link.to()?;
            all.iter().position(|(port, _)| Arc::ptr_eq(port, &to))
        };
        // Who waits for another way, and who sends to whom: two that wait for each other would do so for long.
        let mut crossing: Vec<bool> = self.tenants.iter().map(|tenant| tenant.route.is_crossing()).collect();
        let sends: Vec<Vec<usize>> =
            self.tenants.iter().map(|tenant| tenant.links.all().iter().filter_map(place_of).collect()).collect();
        for (own_number, tenant) in self.tenants.iter_mut().enumerate() {
            let links = tenant.links.all();
            // Where a link leads, and what happens if there is no room. One that was lost is waited for here, and one that
            // has ended for good is passed over.
            let place = |link: &Arc<Link>| {
                let Some(to) = link.to().filter(|to| !to.is_gone()) else { return Some((own_number, link::PASSED)) };
                let found = place_of(link).filter(|_| link.is_direct());
                let lost = to.status().is_ended() && to.can_return() && to.is_of_device();
                if lost && found.is_none() && !self.awaited.iter().any(|(known, _)| Arc::ptr_eq(known, &to)) {
                    self.awaited.push((to, Seat::default()));
                }
                match (found, link.lossy) {
                    (Some(at), false) => Some((at, link::LOSSLESS)),
                    (Some(at), true) => Some((at, link::LOSSY)),
                    (None, false) if lost => Some((own_number, link::WAITS)),
                    (None, true) if lost => Some((own_number, link::PASSED)),
                    (None, _) => None,
                }
            };
            let there: Option<Vec<(usize, u32)>> = links.iter().map(place).collect();
            let there = there.filter(|there| there.len() <= MOST_LINKS && all_fit(there, &link_slots));
            let way = if there.is_some() { Way::Device } else { Way::Host };
            if way == Way::Device {
                tenant.forwarder.set_links(&tenant.port, &[]);
            }
            let near = |link: &Arc<Link>| place_of(link).filter(|&at| at != own_number).map(|at| all[at].clone());
            let near: Vec<_> = links.iter().filter_map(near).collect();
            let can_wait_for = |(port, _): &Neighbour| {
                let at = all.iter().position(|(known, _)| Arc::ptr_eq(known, port));
                at.is_some_and(|at| !crossing[at] || !ways::leads(&sends, at, own_number))
            };
            let carrying = tenant.forwarder.is_blocked();
            let waits = !tenant.route.take(way, arena, &near, can_wait_for, carrying, self.inner.timeout);
            crossing[own_number] = waits;
            tenant.linked.clear();
            let there = match there {
                _ if waits => vec![(own_number, link::WAITS)],
                Some(there) => there,
                None => {
                    tenant.forwarder.set_links(&tenant.port, &links);
                    continue;
                }
            };
            for (n, (link, &(to, how))) in links.iter().zip(&there).enumerate() {
                fed[to] |= matches!(how, link::LOSSLESS | link::LOSSY);
                let at = tenant.piece.own + own::LINKS + n * own::LINK_WORDS;
                arena.set(at + link::TO, to as u32);
                arena.set(at + link::HOW, how);
                arena.set(at + link::BEFORE, leading_to(&there[..n], to) as u32);
                arena.set(at + link::DROPPED, 0);
                arena.set(at + link::DROPPED + 1, 0);
                tenant.linked.push((link.clone(), 0));
            }
        }
        for (i, tenant) in self.tenants.iter().enumerate() {
            let at = directory::ENTRIES + i * entry::WORDS;
            let set = |word: usize, value: usize| arena.set(at + word, value as u32);
            set(entry::REGION, tenant.piece.first);
            set(entry::OWN, tenant.piece.own);
            set(entry::HANDLER, tenant.handler as usize);
            set(entry::STATE, tenant.piece.state);
            set(entry::LINK_FIRST, tenant.piece.links);
            set(entry::LINK_MASK, tenant.piece.link_slots - 1);
            set(entry::TURN, tenant.turn as usize);
            set(entry::CHECKPOINT_EVERY, tenant.checkpoint_every as usize);
            set(entry::LINKS, tenant.linked.len());
            set(entry::MEMORY, tenant.piece.memory);
            set(entry::MEMORY_WORDS, tenant.piece.memory_words);
            // What other kernels sent before they were cut off is still there.
            let at = tenant.piece.own;
            let left = arena.get(at + own::LINK_TAIL) != arena.get(at + own::LINK_HEAD);
            set(entry::FED, usize::from(left || fed[i]));
        }
        arena.set(directory::KERNELS, self.tenants.len() as u32);
    }

    /// Looks at what the kernels did, and wakes who waits for it. Says whether they did anything.
    fn observe(&mut self) -> bool {
        let mut any = false;
        // Who is here, or by which way they send.
        let mut changed = self.awaited.iter().any(|(port, _)| port.is_settled());
        for tenant in &mut self.tenants {
            let now = tenant.look(&self.arena);
            if tenant.forwarder.forward(&tenant.port) {
                any = true;
                changed |= tenant.port.status().is_ended();
            }
            changed |= tenant.route.can_cross(&self.arena, tenant.forwarder.is_blocked());
            if now == tenant.seen {
                continue;
            }
            any = true;
            let (port, before) = (&tenant.port, std::mem::replace(&mut tenant.seen, now));
            let status = port.status();
            if status.is_ended() {
                port.set_status(status);
                lock(&port.attached).clear();
                changed = true;
            }
            port.mail.ring();
            let taken =
                now.high.wrapping_sub(before.high).wrapping_add(now.normal.wrapping_sub(before.normal)) as usize;
            match port.depth() {
                _ if taken == 0 => {}
                // Nothing may change any more, so this is the last look.
                (0, 0) => port.room.ring_for_empty(),
                (high, normal) => {
                    port.room.ring_for_room(0, taken, port.layout.inbound as usize, || high.max(normal) as usize);
                }
            }
            for (i, (link, known)) in tenant.linked.iter_mut().enumerate() {
                let dropped = self.arena.get(tenant.piece.own + own::LINKS + i * own::LINK_WORDS + link::DROPPED);
                link.add_dropped(u64::from(dropped.wrapping_sub(std::mem::replace(known, dropped))));
            }
        }
        if changed {
            self.inner.wanted.fetch_add(1, Ordering::AcqRel);
        }
        any
    }

    /// Sleeps until there is something to do.
    fn sleep(&mut self) {
        for tenant in &self.tenants {
            let rests = &tenant.port.region.telemetry().rests;
            rests.store(rests.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        }
        let Self { inner, arena, tenants, awaited, door, .. } = self;
        let patience = tenants.iter().filter_map(|tenant| tenant.route.until()).min();
        sleep_until(patience, |waker| {
            if let Some(waker) = waker {
                inner.door.register(door, waker);
                for tenant in tenants.iter_mut() {
                    tenant.port.work.register(&mut tenant.seat, waker);
                    tenant.forwarder.register(waker);
                }
                awaited.iter_mut().for_each(|(port, seat)| port.room.register(seat, waker));
            }
            let forwarded = tenants.iter_mut().any(|tenant| tenant.forwarder.forward(&tenant.port));
            let called = inner.wanted.load(Ordering::Acquire) != inner.applied.load(Ordering::Relaxed);
            let settled = awaited.iter().any(|(port, _)| port.is_settled());
            (called || forwarded || settled || tenants.iter().any(|tenant| tenant.has_work(arena, tenants)))
                .then_some(())
        });
        inner.door.unregister(door);
        for tenant in tenants.iter_mut() {
            tenant.port.work.unregister(&mut tenant.seat);
            tenant.forwarder.unregister();
        }
        awaited.iter_mut().for_each(|(port, seat)| port.room.unregister(seat));
    }
}
