//! The ready queue: streams that have something to do, by priority.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use millrace_ring::poll_while_worthwhile;

use crate::stream::{Priority, StreamInner};

/// How often a less urgent stream is passed over before it gets a turn.
const PASSED_OVER: u32 = 8;

const LEVELS: usize = 3;

/// The streams that have something to do.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    state: Mutex<ReadyState>,
    work: Condvar,
    /// Streams that are ready, by priority: hints that need no lock.
    waiting: [AtomicUsize; LEVELS],
    /// Whether a worker polls instead of sleeping: at most one does.
    lingering: AtomicBool,
    /// Streams that became ready so far.
    pushed: AtomicUsize,
    pub(crate) stopping: AtomicBool,
}

#[derive(Debug, Default)]
struct ReadyState {
    queues: [VecDeque<Arc<StreamInner>>; LEVELS],
    /// How often each level was passed over since its last turn.
    passed_over: [u32; LEVELS],
    sleeping: usize,
}

impl Ready {
    fn lock(&self) -> MutexGuard<'_, ReadyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a stream into the queue, unless it is there, and sees to it that somebody takes it.
    pub(crate) fn push(&self, stream: Arc<StreamInner>) {
        if self.push_quietly(stream) {
            self.work.notify_one();
        }
    }

    /// Puts a stream into the queue for the caller to take; true if a worker should be woken otherwise.
    pub(crate) fn push_quietly(&self, stream: Arc<StreamInner>) -> bool {
        let mut state = self.lock();
        // After the end nobody would take it out again.
        if self.stopping.load(Ordering::Relaxed) || stream.queued.swap(true, Ordering::Relaxed) {
            return false;
        }
        let level = stream.priority as usize;
        state.queues[level].push_back(stream);
        self.pushed.store(self.pushed.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.waiting[level].store(state.queues[level].len(), Ordering::SeqCst);
        state.sleeping > 0 && !self.lingering.load(Ordering::SeqCst)
    }

    /// Wakes a worker, if one sleeps.
    pub(crate) fn wake_one(&self) {
        // Under the lock, so that a worker on its way to sleep is either seen or sees the queue.
        let sleeping = self.lock().sleeping;
        if sleeping > 0 {
            self.work.notify_one();
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
        self.waiting[level].store(state.queues[level].len(), Ordering::SeqCst);
        stream.queued.store(false, Ordering::Relaxed);
        Some(stream)
    }

    /// Sleeps until a stream is ready or `more` says so; false when the device stops.
    pub(crate) fn sleep(&self, more: impl Fn() -> bool) -> bool {
        let mut state = self.lock();
        while !self.any() && !more() {
            if self.stopping.load(Ordering::Relaxed) {
                return false;
            }
            state.sleeping += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.sleeping -= 1;
        }
        true
    }

    /// The next stream to drive; blocks until there is one, and ends when the device stops.
    pub(crate) fn next(&self) -> Option<Arc<StreamInner>> {
        let mut state = self.lock();
        let mut seen = self.pushed.load(Ordering::Relaxed);
        loop {
            if let Some(stream) = self.take(&mut state) {
                // Several may have become ready while one worker lingered and nobody was woken.
                let wake = state.sleeping > 0 && self.any();
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
            state.sleeping += 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
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
        let mut state = self.lock();
        if !stream.queued.load(Ordering::Relaxed) || self.has_before(stream.priority) {
            return false;
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
