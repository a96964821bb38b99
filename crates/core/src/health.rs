//! Health: how a device is, and what happens when it hangs or is gone.
//!
//! A context is healthy until something says otherwise. A wait during which nothing moved is a *strike*; strikes without
//! any progress between them add up, and progress takes them away. With the last allowed strike, or when the driver says
//! so, the device is *lost*: every pending command is answered, nothing more is accepted, and that stays so until
//! [`crate::Device::recover`] puts a fresh context in its place. Pressure (memory, temperature) degrades a device too,
//! for as long as it lasts.

use std::{
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use crate::{
    Error,
    counts::Counts,
    events::Event,
    pool::PoolStats,
    road::{Core, Drive},
};

/// How a device is.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::HealthState;
/// let fresh = device.recover()?; // this one is given up
/// assert_eq!([&device, &fresh].map(|device| device.health().state), [HealthState::Lost, HealthState::Healthy]);
/// assert_eq!(device.health().state.name(), "lost");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HealthState {
    /// Nothing is wrong.
    Healthy,
    /// It works, and something should be looked at.
    Degraded,
    /// It hangs or is gone. All of its handles answer [`Error::DeviceLost`].
    Lost,
    /// It is lost, and a fresh context is being opened.
    Recovering,
}

impl HealthState {
    /// In a word, as users read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Degraded => "degraded",
            Self::Lost => "lost",
            Self::Recovering => "recovering",
        }
    }
}

/// A device's condition at one moment.
///
/// ```
/// use millrace::HealthState;
/// let device = millrace::runtime().open("cpu")?;
/// let health = device.health();
/// assert_eq!((health.state, health.generation), (HealthState::Healthy, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Health {
    /// How it is.
    pub state: HealthState,
    /// Why it is not healthy.
    pub reason: Option<Arc<str>>,
    /// Waits in a row during which nothing moved.
    pub strikes: u32,
    /// One, and one more with every recovery.
    pub generation: u32,
    /// The memory pool's accounts.
    pub memory: PoolStats,
    /// Commands in the queues of streams.
    pub waiting: usize,
    /// Batches that the device is working on.
    pub submissions_in_flight: usize,
    /// Bytes on their way to or from the device.
    pub bytes_in_flight: u64,
    /// What it did so far.
    pub counts: Counts,
    /// How long it has been working, over all of its threads.
    pub busy: Duration,
    /// How much work it could do at once.
    pub workers: usize,
    /// Since it was opened.
    pub uptime: Duration,
    /// Degrees Celsius, where the system says.
    pub temperature: Option<f32>,
}

impl Health {
    /// The share of the time since an earlier look during which the device was working.
    ///
    /// ```
    /// let device = millrace::runtime().open("cpu")?;
    /// let before = device.health();
    /// std::thread::sleep(std::time::Duration::from_millis(5));
    /// assert!(device.health().busy_share_since(&before) < 0.5);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn busy_share_since(&self, earlier: &Self) -> f64 {
        let time = self.uptime.saturating_sub(earlier.uptime).as_secs_f64() * self.workers as f64;
        let busy = self.busy.saturating_sub(earlier.busy).as_secs_f64();
        if time > 0.0 { (busy / time).min(1.0) } else { 0.0 }
    }
}

/// When pressure counts as degraded.
///
/// ```
/// use millrace::{DeviceOptions, Thresholds};
/// let options = DeviceOptions::default().budget(1 << 20).thresholds(Thresholds::new(0.2, 95.0));
/// let device = millrace::runtime().open_with("cpu", options)?;
/// let _buffer = device.allocate(1 << 18)?;
/// assert_eq!(device.health().reason.as_deref(), Some("25% of the memory budget is in use"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Thresholds {
    /// Share of the memory budget in use.
    pub memory: f64,
    /// Degrees Celsius.
    pub temperature: f32,
}

impl Thresholds {
    /// Degraded from these on.
    pub fn new(memory: f64, temperature: f32) -> Self {
        Self { memory, temperature }
    }
}

impl Default for Thresholds {
    fn default() -> Self {
        Self { memory: 0.9, temperature: 95.0 }
    }
}

/// A context's own view of its health.
pub(crate) struct Watch {
    pub(crate) generation: u32,
    opened: Instant,
    /// Whether the state is anything but healthy: all that the road looks at.
    troubled: AtomicBool,
    lost: OnceLock<Error>,
    state: Mutex<State>,
}

struct State {
    now: HealthState,
    reason: Option<Arc<str>>,
    strikes: u32,
    /// Commands finished when the last strike fell.
    progress: u64,
}

impl Watch {
    pub(crate) fn new(generation: u32) -> Self {
        let state = State { now: HealthState::Healthy, reason: None, strikes: 0, progress: 0 };
        Self {
            generation,
            opened: Instant::now(),
            troubled: AtomicBool::new(false),
            lost: OnceLock::new(),
            state: Mutex::new(state),
        }
    }

    #[inline]
    pub(crate) fn is_troubled(&self) -> bool {
        self.troubled.load(Ordering::Relaxed)
    }

    /// Why the device is lost, if it is.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.lost.get().cloned()
    }
}

impl Core {
    fn enter(&self, state: &mut State, to: HealthState, reason: Option<Arc<str>>) {
        let from = std::mem::replace(&mut state.now, to);
        let changed = from != to || state.reason != reason;
        state.reason.clone_from(&reason);
        self.watch.troubled.store(to != HealthState::Healthy, Ordering::Relaxed);
        if changed {
            tracing::info!(device = self.info.id, state = to.name(), reason = reason.as_deref(), "health");
            self.events.emit(|| Event::Health { from, to, reason });
        }
    }

    fn condition(&self) -> std::sync::MutexGuard<'_, State> {
        self.watch.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commands finished on all streams.
    pub(crate) fn progress(&self) -> u64 {
        let streams = self.streams();
        let live = streams.live.values().filter_map(std::sync::Weak::upgrade).collect::<Vec<_>>();
        let gone = streams.gone.total();
        drop(streams); // a stream that ends here takes the lock
        gone + live.iter().map(|stream| stream.tally.total()).sum::<u64>()
    }

    /// A wait ended without anything having moved for `time`.
    pub(crate) fn strike(&self, time: Duration) {
        if let Some(reason) = self.count_strike(self.progress(), time) {
            self.give_up(&reason);
        }
    }

    /// Counts a strike. After the last one the device is lost when this returns, and why; what is pending is not answered
    /// yet.
    pub(crate) fn count_strike(&self, progress: u64, time: Duration) -> Option<Arc<str>> {
        let mut state = self.condition();
        if self.watch.lost.get().is_some() {
            return None;
        }
        state.strikes = if state.progress == progress { state.strikes + 1 } else { 1 };
        state.progress = progress;
        let (strikes, allowed) = (state.strikes, self.options.strikes);
        let reason: Arc<str> = format!("nothing moved for {time:?} (strike {strikes} of {allowed})").into();
        self.enter(&mut state, HealthState::Degraded, Some(reason.clone()));
        (strikes >= allowed && self.is_lost_now(&mut state, &reason)).then_some(reason)
    }

    /// The device is lost from now on; whether it was not before.
    fn is_lost_now(&self, state: &mut State, reason: &Arc<str>) -> bool {
        let first = self.watch.lost.set(Error::DeviceLost(reason.clone())).is_ok();
        if first {
            self.enter(state, HealthState::Lost, Some(reason.clone()));
        }
        first
    }

    /// Something moved while the device was not healthy.
    pub(crate) fn moved(&self) {
        let mut state = self.condition();
        if state.now == HealthState::Degraded && state.strikes > 0 {
            state.strikes = 0;
            self.enter(&mut state, HealthState::Healthy, None);
        }
    }

    /// The device is given up: everything pending is answered, and nothing is accepted any more.
    pub(crate) fn lose(&self, reason: &Arc<str>) {
        let first = self.is_lost_now(&mut self.condition(), reason);
        if first {
            self.give_up(reason);
        }
    }

    /// The rest of losing it, for the one who said so first.
    pub(crate) fn give_up(&self, reason: &Arc<str>) {
        let error = Error::DeviceLost(reason.clone());
        self.aborting.store(true, Ordering::SeqCst);
        self.backend.abandon();
        self.streams().closed = Some(error.clone());
        let streams = self.live_streams();
        for stream in &streams {
            stream.close();
        }
        if let Drive::Line(line) = &self.drive {
            self.give_up_flights(line, &error);
        }
        for stream in &streams {
            // One that is being driven is refused by its driver.
            let Ok(mut lane) = stream.lane.try_lock() else { continue };
            let mut refused = 0;
            while let Some(envelope) = stream.next(&mut lane) {
                refused += 1;
                self.refuse(stream, envelope, error.clone());
            }
            drop(lane);
            self.leave(stream, refused);
        }
        self.pool.close();
    }

    /// A fresh context is about to be opened in this one's place.
    pub(crate) fn recovering(&self) {
        let reason: Arc<str> = "it was replaced by a fresh context".into();
        self.lose(&reason);
        let mut state = self.condition();
        let reason = state.reason.clone();
        self.enter(&mut state, HealthState::Recovering, reason);
    }

    /// The attempt to recover has ended, well or not.
    pub(crate) fn recovered(&self) {
        let mut state = self.condition();
        let reason = state.reason.clone();
        self.enter(&mut state, HealthState::Lost, reason);
    }

    pub(crate) fn counts(&self) -> Counts {
        let streams = self.streams();
        let mut counts = Counts::default();
        streams.gone.add_to(&mut counts);
        let live = streams.live.values().filter_map(std::sync::Weak::upgrade).collect::<Vec<_>>();
        drop(streams);
        live.iter().for_each(|stream| stream.tally.add_to(&mut counts));
        if let Drive::Line(line) = &self.drive {
            counts.submissions = line.submissions();
        }
        (counts.compiled, counts.reused) = self.kernels.counts();
        counts
    }

    pub(crate) fn health(&self) -> Health {
        let memory = self.pool.stats();
        let temperature = self.watch.lost.get().is_none().then(|| self.backend.temperature()).flatten();
        self.weigh(&memory, temperature);
        let streams = self.live_streams();
        let (workers, submissions_in_flight, bytes_in_flight, mut busy) = match &self.drive {
            Drive::Direct(device) => (self.options.workers.unwrap_or_else(|| device.workers()), 0, 0, Duration::ZERO),
            Drive::Line(line) => (1, line.len(), line.bytes(), line.busy()),
        };
        let now = self.life();
        busy += streams.iter().map(|stream| stream.tally.busy_time(now)).sum::<Duration>();
        busy += self.streams().gone.busy_time(now);
        let counts = self.counts();
        let state = self.condition();
        Health {
            state: state.now,
            reason: state.reason.clone(),
            strikes: state.strikes,
            generation: self.watch.generation,
            memory,
            waiting: streams.iter().map(|stream| stream.waiting()).sum(),
            submissions_in_flight,
            bytes_in_flight,
            counts,
            busy,
            workers,
            uptime: self.watch.opened.elapsed(),
            temperature,
        }
    }

    /// Looks whether there is pressure.
    fn weigh(&self, memory: &PoolStats, temperature: Option<f32>) {
        let limits = &self.options.thresholds;
        let share = memory.in_use as f64 / memory.budget.max(1) as f64;
        let pressure: Option<Arc<str>> = if share >= limits.memory {
            Some(format!("{:.0}% of the memory budget is in use", share * 100.0).into())
        } else {
            temperature.filter(|&t| t >= limits.temperature).map(|t| format!("it is at {t:.0} °C").into())
        };
        let mut state = self.condition();
        match (state.now, pressure) {
            (HealthState::Healthy, Some(reason)) => self.enter(&mut state, HealthState::Degraded, Some(reason)),
            (HealthState::Degraded, pressure) if state.strikes == 0 => {
                let now = if pressure.is_some() { HealthState::Degraded } else { HealthState::Healthy };
                self.enter(&mut state, now, pressure);
            }
            _ => {}
        }
    }
}
