//! A device that fails on request, to see what a program does then.
//!
//! It runs everything on another device that works on our threads, but hands it over in batches as a device with a queue
//! of its own does, and its [`Faults`] make batches hang, make the device go away, and make memory, compilation or
//! opening fail.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
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
    /// How long handing over a batch takes.
    hesitation: Duration,
    /// Batches until the device is gone.
    lose_after: Option<u64>,
    refuse_memory: bool,
    break_compiler: bool,
    /// Times that opening still fails.
    refuse_opening: u64,
    /// The kernel whose results are wrong.
    spoiled: Option<String>,
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
    ///
    /// ```
    /// # use millrace::{Runtime, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
    /// # let faults = Faults::default();
    /// # let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
    /// # let device = runtime.open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// use std::time::Duration;
    /// faults.stall();
    /// let mut ticket = stream.submit(buffer.fill(.., 1))?;
    /// assert_eq!(ticket.wait_for(Duration::from_millis(2)), Err(millrace::Error::Deadline));
    /// faults.resume();
    /// ticket.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn stall(&self) {
        self.change(|state| state.stalled = true);
    }

    /// Batches that hang go on.
    ///
    /// ```
    /// # use millrace::{Runtime, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
    /// # let faults = Faults::default();
    /// # let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
    /// # let device = runtime.open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// faults.stall();
    /// let ticket = stream.submit(buffer.fill(.., 1))?;
    /// faults.resume();
    /// assert_eq!(ticket.wait(), Ok(()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resume(&self) {
        self.change(|state| state.stalled = false);
    }

    /// Handing over a batch takes so much time, as it does when a driver is busy.
    ///
    /// ```
    /// # use millrace::{Runtime, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
    /// # let faults = Faults::default();
    /// # let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
    /// # let device = runtime.open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// use std::time::{Duration, Instant};
    /// faults.hesitate(Duration::from_millis(20));
    /// let start = Instant::now();
    /// stream.run(buffer.fill(.., 1))?;
    /// assert!(start.elapsed() >= Duration::from_millis(20));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hesitate(&self, time: Duration) {
        self.change(|state| state.hesitation = time);
    }

    /// After so many more batches the device is gone. The next one that is opened is not.
    ///
    /// ```
    /// # use millrace::{Runtime, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
    /// # let faults = Faults::default();
    /// # let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
    /// # let device = runtime.open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// faults.lose_after(0);
    /// assert!(matches!(stream.run(buffer.fill(.., 1)), Err(millrace::Error::DeviceLost(_))));
    /// let device = device.recover()?;
    /// device.stream()?.run(device.allocate(4)?.fill(.., 1))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn lose_after(&self, batches: u64) {
        self.change(|state| state.lose_after = Some(batches));
    }

    /// Whether new memory is refused.
    ///
    /// ```
    /// # use millrace::{Runtime, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
    /// # let faults = Faults::default();
    /// # let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
    /// # let device = runtime.open("cpu")?;
    /// faults.refuse_memory(true);
    /// assert!(matches!(device.allocate(1 << 20), Err(millrace::Error::SystemMemory(_))));
    /// faults.refuse_memory(false);
    /// assert!(device.allocate(1 << 20).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refuse_memory(&self, refuse: bool) {
        self.change(|state| state.refuse_memory = refuse);
    }

    /// Whether kernels do not compile.
    ///
    /// ```
    /// # use millrace::{Runtime, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
    /// # let faults = Faults::default();
    /// # let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
    /// # let device = runtime.open("cpu")?;
    /// let spec = millrace::KernelSpec::new("nothing").cpu(millrace::CpuKernel::whole(|_| {}));
    /// faults.break_compiler(true);
    /// assert!(matches!(device.kernel(&spec), Err(millrace::Error::Compile { .. })));
    /// faults.break_compiler(false);
    /// assert!(device.kernel(&spec).is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn break_compiler(&self, broken: bool) {
        self.change(|state| state.break_compiler = broken);
    }

    /// Launches of the kernel of this name leave something wrong in the first bytes of what they write.
    ///
    /// ```
    /// # use millrace::{Runtime, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
    /// # let faults = Faults::default();
    /// # let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
    /// # let device = runtime.open("cpu")?;
    /// # let (stream, buffer) = (device.stream()?, device.allocate(4)?);
    /// use millrace::{Access, CpuKernel, KernelSpec};
    /// let ones = CpuKernel::whole(|launch| launch.output::<u8>(0).fill(1));
    /// let ones = device.kernel(&KernelSpec::new("ones").binding::<u8>("out", Access::Overwrite).cpu(ones))?;
    /// faults.spoil("ones");
    /// stream.run(ones.launch().bind(&buffer))?;
    /// assert_eq!(&*stream.run(buffer.read(..))?, [0x41, 1, 1, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn spoil(&self, kernel: impl Into<String>) {
        self.change(|state| state.spoiled = Some(kernel.into()));
    }

    /// The next so many times the device cannot be opened.
    ///
    /// ```
    /// # use millrace::{Runtime, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
    /// # let faults = Faults::default();
    /// # let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
    /// faults.refuse_opening(1);
    /// assert!(runtime.open("cpu").is_err());
    /// assert!(runtime.open("cpu").is_ok(), "once was said");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn refuse_opening(&self, times: u64) {
        self.change(|state| state.refuse_opening = times);
    }
}

/// Offers the devices of another provider, with faults.
///
/// ```
/// use millrace::{Runtime, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
/// let provider = FaultyProvider::new(CpuProvider, Faults::default());
/// let device = Runtime::new(vec![Box::new(provider)]).open("cpu")?;
/// device.stream()?.run(device.allocate(4)?.fill(.., 1))?;
/// assert_eq!(device.counts().submissions, 1, "a batch, unlike on the CPU itself");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FaultyProvider {
    inner: Box<dyn Provider>,
    faults: Faults,
    depth: usize,
}

impl FaultyProvider {
    /// The devices of `inner`, as long as they work on our threads.
    pub fn new(inner: impl Provider, faults: Faults) -> Self {
        Self { inner: Box::new(inner), faults, depth: 2 }
    }

    /// So many batches can be handed over before earlier ones have run; two if not said.
    ///
    /// ```
    /// use millrace::{Engine, Provider, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
    /// let provider = FaultyProvider::new(CpuProvider, Faults::default()).depth(5);
    /// assert!(matches!(provider.open("cpu")?, Engine::Queued(device) if device.depth() == 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn depth(mut self, batches: usize) -> Self {
        self.depth = batches;
        self
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
            Engine::Direct(inner) => Ok(Engine::Queued(Arc::new(Faulty::start(inner, &self.faults, self.depth)?))),
            Engine::Queued(_) => Err(Error::Invalid("faults need a device that works on our threads".into())),
        }
    }
}

struct Faulty {
    inner: Arc<dyn Direct>,
    faults: Faults,
    lost: Arc<AtomicBool>,
    queue: mpsc::Sender<Job>,
    depth: usize,
}

impl Faulty {
    fn start(inner: Arc<dyn Direct>, faults: &Faults, depth: usize) -> Result<Self> {
        let ((queue, jobs), lost) = (mpsc::channel(), Arc::<AtomicBool>::default());
        let (on, told, gone) = (inner.clone(), faults.clone(), lost.clone());
        let thread = std::thread::Builder::new().name("millrace-faulty".into());
        let started = thread.spawn(move || work(&jobs, &*on, &told, &gone));
        started.map_err(|error| Error::Thread(error.to_string().into()))?;
        Ok(Self { inner, faults: faults.clone(), lost, queue, depth })
    }
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
        self.lost.store(true, Ordering::Release);
        self.faults.shared.changed.notify_all();
    }
}

fn check(lost: &AtomicBool) -> Result<()> {
    if lost.load(Ordering::Acquire) {
        return Err(Error::DeviceLost("it was told to go away".into()));
    }
    Ok(())
}

impl Queued for Faulty {
    fn begin(&self) -> Result<Box<dyn Batch>> {
        check(&self.lost)?;
        let (queue, faults, lost) = (self.queue.clone(), self.faults.clone(), self.lost.clone());
        Ok(Box::new(FaultyBatch { queue, faults, lost, commands: Vec::new() }))
    }

    fn depth(&self) -> usize {
        self.depth
    }
}

struct FaultyBatch {
    queue: mpsc::Sender<Job>,
    faults: Faults,
    lost: Arc<AtomicBool>,
    commands: Vec<Command>,
}

impl Batch for FaultyBatch {
    fn record(&mut self, command: &Command) -> Result<Recorded> {
        self.commands.push(command.duplicate()?);
        Ok(Recorded::Read(self.commands.len() - 1))
    }

    fn submit(self: Box<Self>) -> Result<Box<dyn Submission>> {
        check(&self.lost)?;
        let mut state = self.faults.state();
        if let Some(left) = &mut state.lose_after {
            if *left == 0 {
                self.lost.store(true, Ordering::Release);
            }
            *left = left.saturating_sub(1);
        }
        let hesitation = state.hesitation;
        drop(state);
        std::thread::sleep(hesitation);
        let (done, lost) = (Arc::<Done>::default(), self.lost);
        let gone = |_| Error::DeviceLost("its queue has ended".into());
        self.queue.send(Job { commands: self.commands, done: done.clone() }).map_err(gone)?;
        Ok(Box::new(FaultySubmission { done, lost }))
    }
}

/// A batch on its way, and where its results go.
struct Job {
    commands: Vec<Command>,
    done: Arc<Done>,
}

#[derive(Default)]
struct Done {
    outputs: Mutex<Option<Vec<Result<Output>>>>,
    changed: Condvar,
}

/// The device's queue: runs one batch after the other.
fn work(jobs: &mpsc::Receiver<Job>, inner: &dyn Direct, faults: &Faults, lost: &AtomicBool) {
    for Job { commands, done } in jobs {
        let mut state = faults.state();
        while state.stalled && !lost.load(Ordering::Acquire) {
            let waited = faults.shared.changed.wait_timeout(state, Duration::from_millis(10));
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        let caught = |work: &mut dyn FnMut() -> Result<Output>| {
            catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(Error::from_panic(&*panic)))
        };
        let run = |command: Command| {
            let output = caught(&mut || {
                let output = inner.execute(&command)?;
                spoil(inner, &command, faults)?;
                Ok(output)
            });
            let mut command = Some(command);
            let dropped = caught(&mut || {
                drop(command.take());
                Ok(Output::Done)
            });
            output.and_then(|output| dropped.map(|_| output))
        };
        let outputs = commands.into_iter().map(run).collect();
        *done.outputs.lock().unwrap_or_else(PoisonError::into_inner) = Some(outputs);
        done.changed.notify_all();
    }
}

/// Overwrites the first bytes of what a launch has written, if it is told to.
fn spoil(inner: &dyn Direct, command: &Command, faults: &Faults) -> Result<()> {
    let Command::Launch(launch) = command else { return Ok(()) };
    let (body, spec) = (launch.body(), launch.body().kernel().spec());
    if faults.state().spoiled.as_deref() != Some(&**spec.name()) {
        return Ok(());
    }
    let written = body.bindings().iter().zip(spec.bindings()).find(|(_, binding)| binding.access.writes());
    let Some((slice, binding)) = written else { return Ok(()) };
    let start = slice.range().start;
    inner.execute(&slice.buffer().fill(start..start + binding.element.min(slice.len()), 0x41).into())?;
    Ok(())
}

struct FaultySubmission {
    done: Arc<Done>,
    lost: Arc<AtomicBool>,
}

impl Submission for FaultySubmission {
    fn wait(&self, timeout: Duration) -> Result<bool> {
        check(&self.lost)?;
        let outputs = self.done.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        let until = |outputs: &mut Option<_>| outputs.is_none();
        let waited = self.done.changed.wait_timeout_while(outputs, timeout, until);
        let ran = waited.unwrap_or_else(PoisonError::into_inner).0.is_some();
        check(&self.lost)?;
        Ok(ran)
    }

    fn read(&self, number: usize) -> Result<Output> {
        let mut outputs = self.done.outputs.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken, not shared: what is read must not outlive the one who asked for it.
        let output = outputs.as_mut().and_then(|outputs| outputs.get_mut(number));
        output.map_or(Ok(Output::Done), |output| std::mem::replace(output, Ok(Output::Done)))
    }
}
