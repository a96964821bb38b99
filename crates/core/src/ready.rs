//! The ready queue: streams that have something to do, by priority.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_ring::poll_while_worthwhile;

use crate::stream::{Priority, StreamInner};

/// How often a less urgent stream is passed over before it gets a turn.
const PASSED_OVER: u32 = 8;

/// How long a worker naps: what is not urgent waits for it between one nap and two, unless a caller takes it before. As long
/// as callers take everything before that, naps become longer, up to this: each one disturbs those who work, and may leave the
/// threads of a software driver on other processors for a while. The first thing that no caller comes for then waits for at most
/// as long as callers had come for everything.
const NAP: Duration = Duration::from_micros(500);
const LONGEST_NAP: Duration = Duration::from_millis(64);
/// After so many naps in which nothing came, it sleeps until it is woken.
const NAPS: u32 = 10;

/// More often than this the length of naps need not be doubled.
const MOST_CALM: u32 = 8;

const LEVELS: usize = 3;

/// The streams that have something to do.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    state: Mutex<ReadyState>,
    work: Condvar,
    /// Streams that are ready, by priority: hints that need no lock.
    waiting: [AtomicUsize; LEVELS],
    /// Streams that are left for their callers: such a hint, too.
    offered: AtomicUsize,
    /// Whether a worker polls instead of sleeping: at most one does.
    lingering: AtomicBool,
    /// Whether the worker will look by itself within a nap.
    napping: AtomicBool,
    /// Streams that became ready so far.
    pushed: AtomicUsize,
    pub(crate) stopping: AtomicBool,
}

/// A stream whose caller will come for it, and when it is a worker's after all.
#[derive(Debug)]
struct Offer {
    stream: Arc<StreamInner>,
    until: Instant,
}

#[derive(Debug, Default)]
struct ReadyState {
    queues: [VecDeque<Arc<StreamInner>>; LEVELS],
    /// Beside the queues: no worker takes one of these before its time. The first is the oldest.
    offers: VecDeque<Offer>,
    /// How often each level was passed over since its last turn.
    passed_over: [u32; LEVELS],
    sleeping: usize,
    /// Something came that cannot wait, since a worker last looked.
    urgent: bool,
    /// Something came that can wait for a nap, since a worker last looked.
    patient: bool,
    /// Since when it waits, until somebody takes it.
    patient_since: Option<Instant>,
    /// How much longer than usual naps are: so many times doubled.
    calm: u32,
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, ReadyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a stream into the queue, unless it is there, and sees to it that somebody takes it.
    pub(crate) fn push(&self, stream: Arc<StreamInner>) {
        let mut state = self.lock();
        self.withdraw(&mut state, &stream);
        self.add_and_wake(state, stream);
    }

    fn add_and_wake(&self, mut state: MutexGuard<'_, ReadyState>, stream: Arc<StreamInner>) {
        if !self.add(&mut state, stream) {
            return;
        }
        state.urgent = true;
        let wake = state.sleeping > 0 && !self.lingering.load(Ordering::SeqCst);
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    /// Leaves a stream for its caller, who will come for it; a worker takes it if that has not happened within a nap.
    pub(crate) fn offer(&self, stream: Arc<StreamInner>) {
        let mut state = self.lock();
        // After the end nobody would take it out again.
        if self.stopping.load(Ordering::Relaxed) || stream.queued.swap(true, Ordering::Relaxed) {
            return;
        }
        stream.offered.store(true, Ordering::Relaxed);
        state.offers.push_back(Offer { stream, until: Instant::now() + NAP });
        self.offered.store(state.offers.len(), Ordering::Relaxed);
        let wake = state.sleeping > 0 && !self.napping.load(Ordering::Relaxed);
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    /// The caller that a stream was left for does something else: it is a worker's now.
    pub(crate) fn end_offer(&self, stream: &Arc<StreamInner>) {
        if !stream.offered.load(Ordering::Relaxed) {
            return;
        }
        let mut state = self.lock();
        // If it is gone by now, somebody else has the right to drive it.
        if self.withdraw(&mut state, stream) {
            self.add_and_wake(state, stream.clone());
        }
    }

    /// The same for all that nobody came for, for a worker that has no time to rest.
    pub(crate) fn end_due_offers(&self) {
        if self.offered.load(Ordering::Relaxed) > 0 {
            self.end_offers(&mut self.lock());
        }
    }

    /// Takes a stream out of those that are left for their callers; false if it is none of them.
    fn withdraw(&self, state: &mut ReadyState, stream: &Arc<StreamInner>) -> bool {
        if !stream.offered.load(Ordering::Relaxed) {
            return false;
        }
        state.offers.retain(|offer| !Arc::ptr_eq(&offer.stream, stream));
        self.offered.store(state.offers.len(), Ordering::Relaxed);
        stream.offered.store(false, Ordering::Relaxed);
        stream.queued.store(false, Ordering::Relaxed);
        true
    }

    /// Streams that nobody came for become the workers'.
    fn end_offers(&self, state: &mut ReadyState) {
        let stopping = self.stopping.load(Ordering::Relaxed);
        while let Some(Offer { stream, until }) = state.offers.front() {
            if !stopping && Instant::now() < *until {
                break;
            }
            let stream = stream.clone();
            stream.habit.forget();
            self.withdraw(state, &stream);
            self.enqueue(state, stream);
        }
    }

    /// Puts a stream into the queue for the caller to take.
    pub(crate) fn push_quietly(&self, stream: Arc<StreamInner>) {
        self.add(&mut self.lock(), stream);
    }

    /// Puts a stream into the queue for whoever comes: a caller, or in a while a worker.
    pub(crate) fn push_patiently(&self, stream: Arc<StreamInner>) {
        let mut state = self.lock();
        state.patient = true;
        state.patient_since.get_or_insert_with(Instant::now);
        let wake = self.add(&mut state, stream) && state.sleeping > 0 && !self.napping.load(Ordering::Relaxed);
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    /// Puts a stream into the queue; false if it is there already.
    fn add(&self, state: &mut ReadyState, stream: Arc<StreamInner>) -> bool {
        // After the end nobody would take it out again.
        if self.stopping.load(Ordering::Relaxed) || stream.queued.swap(true, Ordering::Relaxed) {
            return false;
        }
        self.enqueue(state, stream);
        true
    }

    fn enqueue(&self, state: &mut ReadyState, stream: Arc<StreamInner>) {
        let level = stream.priority as usize;
        stream.queued.store(true, Ordering::Relaxed);
        state.queues[level].push_back(stream);
        self.pushed.store(self.pushed.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.waiting[level].store(state.queues[level].len(), Ordering::SeqCst);
    }

    /// Wakes a worker, if one sleeps.
    pub(crate) fn wake_one(&self) {
        // Under the lock, so that a worker on its way to sleep is either seen or sees the queue.
        let mut state = self.lock();
        state.urgent = true;
        self.napping.store(false, Ordering::Relaxed);
        let wake = state.sleeping > 0;
        drop(state);
        if wake {
            self.work.notify_one();
        }
    }

    /// Something joined a stream that is ready already, and cannot wait as the rest of it can.
    pub(crate) fn hurry(&self) {
        if self.napping.load(Ordering::Relaxed) {
            self.wake_one();
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

    /// The next stream, if one is ready.
    pub(crate) fn try_next(&self) -> Option<Arc<StreamInner>> {
        if !self.any() {
            return None;
        }
        self.take(&mut self.lock())
    }

    fn take(&self, state: &mut ReadyState) -> Option<Arc<StreamInner>> {
        let level = state.choose()?;
        let stream = state.queues[level].pop_front()?;
        if state.has_waited_for_a_nap() {
            state.calm = 0; // whoever takes it: a worker should have
        }
        state.patient_since = None;
        self.waiting[level].store(state.queues[level].len(), Ordering::SeqCst);
        stream.queued.store(false, Ordering::Relaxed);
        Some(stream)
    }

    /// Rests until something is urgent, or what can wait has waited for a nap, or `more` says so; false when the device
    /// stops. Only while there are things that can wait, now and then, are there naps: they disturb others.
    pub(crate) fn rest(&self, more: impl Fn() -> bool) -> bool {
        let mut state = self.lock();
        let mut naps = NAPS;
        loop {
            if std::mem::take(&mut state.urgent) && self.any() || more() {
                return true;
            }
            if self.stopping.load(Ordering::Relaxed) {
                return self.any();
            }
            if std::mem::take(&mut state.patient) {
                naps = 0;
            }
            state.sleeping += 1;
            if naps < NAPS {
                self.napping.store(true, Ordering::Relaxed);
                let nap = if self.any() { NAP } else { (NAP * (1 << state.calm)).min(LONGEST_NAP) };
                let timeout;
                (state, timeout) = self.work.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner);
                self.napping.store(false, Ordering::Relaxed);
                naps += 1;
                match (timeout.timed_out(), self.any()) {
                    (true, true) if state.patient_since.is_none() || state.has_waited_for_a_nap() => {
                        state.sleeping -= 1;
                        return true;
                    }
                    (true, false) => state.calm = (state.calm + 1).min(MOST_CALM),
                    _ => {}
                }
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.sleeping -= 1;
        }
    }

    /// The next stream to drive; blocks until there is one, and ends when the device stops.
    pub(crate) fn next(&self) -> Option<Arc<StreamInner>> {
        let mut state = self.lock();
        let mut seen = self.pushed.load(Ordering::Relaxed);
        let mut naps = NAPS;
        loop {
            self.end_offers(&mut state);
            if let Some(stream) = self.take(&mut state) {
                // Several may have become ready while one worker lingered and nobody was woken.
                let wake = state.sleeping > 0 && (self.any() || !state.offers.is_empty());
                drop(state);
                if wake {
                    self.work.notify_one();
                }
                return Some(stream);
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
            // Somebody looks after what was left for callers: one is enough, and it goes on for a while, so that nobody has
            // to be woken for the next.
            let until = state.offers.front().map(|offer| offer.until);
            naps = if until.is_some() { 0 } else { naps + 1 };
            state.sleeping += 1;
            if naps < NAPS && !self.napping.swap(true, Ordering::Relaxed) {
                let nap = until.map_or(NAP, |until| until.saturating_duration_since(Instant::now()));
                (state, _) = self.work.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner);
                self.napping.store(false, Ordering::Relaxed);
            } else {
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.sleeping -= 1;
        }
    }

    /// Polls for about as long as waking a worker would take, so that none has to be woken meanwhile.
    pub(crate) fn linger<R>(&self, attempt: impl FnMut() -> Option<R>) -> Option<R> {
        if self.lingering.swap(true, Ordering::SeqCst) {
            return None; // one is enough
        }
        let result = poll_while_worthwhile(attempt);
        self.lingering.store(false, Ordering::SeqCst);
        result
    }

    /// Takes a stream out of the queue to drive it; false if it is not there, or something more urgent is.
    pub(crate) fn claim(&self, stream: &Arc<StreamInner>) -> bool {
        // Usually a worker has it, and polls what lies beside the lock.
        if !stream.queued.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.lock();
        if !stream.queued.load(Ordering::Relaxed) || self.has_before(stream.priority) {
            return false;
        }
        if self.withdraw(&mut state, stream) {
            return true;
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
    /// Whether something that can wait has waited for as long as it should.
    fn has_waited_for_a_nap(&self) -> bool {
        self.patient_since.is_some_and(|since| since.elapsed() >= NAP)
    }

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
