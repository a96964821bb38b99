//! A device that fails on request, to see what a program does then.
//!
//! It runs everything on another device that works on our threads, but hands it over in batches as a device with a queue
//! of its own does, and its [`Faults`] make batches hang, make the device go away, and make memory, compilation or
//! opening fail.

use std::{
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;

use crate::{
    Error, Result,
    backend::{Backend, Batch, Code, DeviceInfo, Direct, Engine, Queued, Recorded, Submission},
    command::{Command, Output},
    kernel::KernelSpec,
    memory::Block,
    pool::BlockSource,
    runtime::{Found, Provider},
};

/// What is to go wrong, from now on. Clones are handles of the same.
///
/// ```
/// use millrace::{Error, HealthState, Runtime, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
/// let faults = Faults::default();
/// let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
/// let device = runtime.open("cpu")?;
/// let (stream, buffer) = (device.stream()?, device.allocate(4)?);
/// stream.run(buffer.fill(.., 1))?;
/// faults.lose_after(1); // one more batch, and then it is gone
/// stream.run(buffer.fill(.., 2))?;
/// assert!(matches!(stream.run(buffer.fill(.., 3)), Err(Error::DeviceLost(_))));
/// assert_eq!(device.health().state, HealthState::Lost);
/// let device = device.recover()?;
/// device.stream()?.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct Faults {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stalled: bool,
    /// Batches until the device is gone.
    lose_after: Option<u64>,
    refuse_memory: bool,
    break_compiler: bool,
    /// Times that opening still fails.
    refuse_opening: u64,
}

impl Faults {
    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.shared.changed.notify_all();
    }

    /// Batches hang until [`Self::resume`].
    pub fn stall(&self) {
        self.change(|state| state.stalled = true);
    }

    /// Batches that hang go on.
    pub fn resume(&self) {
        self.change(|state| state.stalled = false);
    }

    /// After so many more batches the device is gone. The next one that is opened is not.
    pub fn lose_after(&self, batches: u64) {
        self.change(|state| state.lose_after = Some(batches));
    }

    /// Whether new memory is refused.
    pub fn refuse_memory(&self, refuse: bool) {
        self.change(|state| state.refuse_memory = refuse);
    }

    /// Whether kernels do not compile.
    pub fn break_compiler(&self, broken: bool) {
        self.change(|state| state.break_compiler = broken);
    }

    /// The next so many times the device cannot be opened.
    pub fn refuse_opening(&self, times: u64) {
        self.change(|state| state.refuse_opening = times);
    }
}

/// Offers the devices of another provider, with faults.
pub struct FaultyProvider {
    inner: Box<dyn Provider>,
    faults: Faults,
}

impl FaultyProvider {
    /// The devices of `inner`, as long as they work on our threads.
    pub fn new(inner: impl Provider, faults: Faults) -> Self {
        Self { inner: Box::new(inner), faults }
    }
}

impl Provider for FaultyProvider {
    fn list(&self) -> Vec<Found> {
        self.inner.list()
    }

    fn open(&self, id: &str) -> Result<Engine> {
        let mut state = self.faults.state();
        if state.refuse_opening > 0 {
            state.refuse_opening -= 1;
            return Err(Error::Device("it was told not to open".into()));
        }
        state.lose_after = None;
        drop(state);
        match self.inner.open(id)? {
            Engine::Direct(inner) => {
                Ok(Engine::Queued(Arc::new(Faulty { inner, faults: self.faults.clone(), lost: Arc::default() })))
            }
            Engine::Queued(_) => Err(Error::Invalid("faults need a device that works on our threads".into())),
        }
    }
}

struct Faulty {
    inner: Arc<dyn Direct>,
    faults: Faults,
    /// One if the device is gone.
    lost: Arc<AtomicU64>,
}

impl BlockSource for Faulty {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>> {
        check(&self.lost)?;
        if self.faults.state().refuse_memory {
            return Err(Error::SystemMemory(bytes as u64));
        }
        self.inner.allocate(bytes)
    }

    fn adopt(&self, bytes: Bytes) -> Result<Box<dyn Block>> {
        check(&self.lost)?;
        self.inner.adopt(bytes)
    }
}

impl Backend for Faulty {
    fn info(&self) -> DeviceInfo {
        self.inner.info()
    }

    fn compile(&self, spec: &KernelSpec) -> Result<Code> {
        check(&self.lost)?;
        if self.faults.state().break_compiler {
            return Err(Error::Compile { kernel: spec.name().clone(), message: "it was told not to compile".into() });
        }
        self.inner.compile(spec)
    }

    fn abandon(&self) {
        self.lost.store(1, Ordering::Release);
    }
}

fn check(lost: &AtomicU64) -> Result<()> {
    match lost.load(Ordering::Acquire) {
        0 => Ok(()),
        _ => Err(Error::DeviceLost("it was told to go away".into())),
    }
}

impl Queued for Faulty {
    fn begin(&self) -> Result<Box<dyn Batch>> {
        check(&self.lost)?;
        let (inner, faults, lost) = (self.inner.clone(), self.faults.clone(), self.lost.clone());
        Ok(Box::new(FaultyBatch { inner, faults, lost, commands: Vec::new() }))
    }

    fn depth(&self) -> usize {
        2
    }
}

struct FaultyBatch {
    inner: Arc<dyn Direct>,
    faults: Faults,
    lost: Arc<AtomicU64>,
    commands: Vec<Command>,
}

impl Batch for FaultyBatch {
    fn record(&mut self, command: &Command) -> Result<Recorded> {
        self.commands.push(command.duplicate()?);
        Ok(Recorded::Read(self.commands.len() - 1))
    }

    fn submit(self: Box<Self>) -> Result<Box<dyn Submission>> {
        check(&self.lost)?;
        let outputs = self.commands.iter().map(|command| self.inner.execute(command)).collect();
        let mut state = self.faults.state();
        let mut lost = false;
        if let Some(left) = &mut state.lose_after {
            lost = *left == 0;
            *left = left.saturating_sub(1);
        }
        drop(state);
        Ok(Box::new(FaultySubmission { outputs, lost, faults: self.faults, gone: self.lost }))
    }
}

struct FaultySubmission {
    outputs: Vec<Result<Output>>,
    lost: bool,
    faults: Faults,
    gone: Arc<AtomicU64>,
}

impl Submission for FaultySubmission {
    fn wait(&self, timeout: Duration) -> Result<bool> {
        if self.lost {
            self.gone.store(1, Ordering::Release);
        }
        check(&self.gone)?;
        let until = Instant::now() + timeout;
        let mut state = self.faults.state();
        while state.stalled {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let changed = &self.faults.shared.changed;
            (state, _) = changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(true)
    }

    fn read(&self, number: usize) -> Result<Output> {
        self.outputs.get(number).cloned().unwrap_or(Ok(Output::Done))
    }
}
