//! Wakes tasks at their deadlines. Futures have no clock of their own, and no async runtime is assumed; the thread is
//! started with the first deadline that a task waits for, and sleeps until the next one.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Condvar, Mutex, PoisonError, Weak},
    task::Waker,
    time::Instant,
};

#[derive(Default)]
struct State {
    /// Earliest first. The number makes entries distinct.
    due: BinaryHeap<Reverse<(Instant, u64)>>,
    wakers: std::collections::HashMap<u64, Waker>,
    next: u64,
    running: bool,
    closed: bool,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

/// The alarm clock of one device.
#[derive(Default)]
pub(crate) struct Timer {
    inner: Arc<Inner>,
}

/// A wake-up that is due, of [`Device::wake_at`](crate::Device::wake_at); taken back when dropped.
///
/// ```
/// let device = millrace::runtime().open("cpu")?;
/// let late = std::time::Instant::now() + std::time::Duration::from_secs(3600);
/// let alarm: Option<millrace_core::Alarm> = device.wake_at(late, std::task::Waker::noop().clone());
/// drop(alarm); // nobody is woken
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "an alarm that is dropped wakes nobody"]
pub struct Alarm {
    timer: Weak<Inner>,
    number: u64,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Timer")
    }
}

impl Timer {
    /// Calls the waker at `deadline`. `None` if no thread could be started.
    pub(crate) fn wake_at(&self, deadline: Instant, waker: Waker) -> Option<Alarm> {
        let mut state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.running {
            let inner = self.inner.clone();
            std::thread::Builder::new().name("millrace-timer".into()).spawn(move || inner.run()).ok()?;
            state.running = true;
        }
        state.next += 1;
        let number = state.next;
        state.due.push(Reverse((deadline, number)));
        state.wakers.insert(number, waker);
        drop(state);
        self.inner.changed.notify_one();
        Some(Alarm { timer: Arc::downgrade(&self.inner), number })
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.inner.changed.notify_one();
    }
}

impl Inner {
    fn run(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while !state.closed {
            let now = Instant::now();
            match state.due.peek() {
                Some(&Reverse((due, number))) if due <= now => {
                    state.due.pop();
                    if let Some(waker) = state.wakers.remove(&number) {
                        drop(state);
                        // Foreign code: not under the lock, and its panic is not ours.
                        let _ = catch_unwind(AssertUnwindSafe(|| waker.wake()));
                        state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
                    }
                }
                Some(&Reverse((due, _))) => {
                    let (next, _) = self.changed.wait_timeout(state, due - now).unwrap_or_else(PoisonError::into_inner);
                    state = next;
                }
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.upgrade() {
            let mut state = timer.state.lock().unwrap_or_else(PoisonError::into_inner);
            let waker = state.wakers.remove(&self.number);
            // Entries without a waker are dropped when they are due, or here once they are most of the heap.
            if state.due.len() > 64 && state.due.len() > 4 * state.wakers.len() {
                let State { due, wakers, .. } = &mut *state;
                due.retain(|Reverse((_, number))| wakers.contains_key(number));
            }
            drop(state);
            drop(waker); // foreign code, so not under the lock
        }
    }
}
