//! What a device crate offers, and how commands reach it.
//!
//! A backend executes commands that were checked, in the order it is handed them; queues, tickets, pools, priorities and
//! health are not its business. There are two ways to execute, and a device has one of them: on threads of ours
//! ([`Direct`]), or on a queue of the device's own, in batches ([`Queued`]).

use std::{
    any::Any,
    sync::{Arc, Weak},
    time::Duration,
};

use crate::{
    Result,
    command::{Command, Output},
    kernel::KernelSpec,
    pool::BlockSource,
    residence::{OpenResidence, Sharing},
};

/// The kinds of devices there are.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// let kind = device.info().kind;
/// assert_eq!((kind, kind.name()), (millrace::DeviceKind::Cpu, "cpu"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// The processor this program runs on.
    Cpu,
    /// A graphics processor, through wgpu.
    Gpu,
    /// An NVIDIA graphics processor, through CUDA.
    Cuda,
}

impl DeviceKind {
    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Cuda => "cuda",
        }
    }
}

/// How far launches can go.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// use millrace::{CpuKernel, Error, KernelSpec, Limits};
/// let nothing = device.kernel(&KernelSpec::new("nothing").cpu(CpuKernel::whole(|_| {})))?;
/// let limits = &device.info().limits;
/// assert_eq!(*limits, Limits::new([65_535; 3], 1024), "those of WebGPU");
/// let too_many = device.stream()?.run(nothing.launch().block(limits.threads + 1));
/// assert!(matches!(too_many, Err(Error::Geometry { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Groups in each direction.
    pub groups: [u32; 3],
    /// Threads of a group.
    pub threads: u32,
}

impl Limits {
    /// Limits of so many groups in each direction and so many threads of a group.
    pub fn new(groups: [u32; 3], threads: u32) -> Self {
        Self { groups, threads }
    }
}

/// What a device is.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// let info = device.info();
/// assert_eq!((&*info.id, info.kind), ("cpu", millrace::DeviceKind::Cpu));
/// assert!(info.memory > 0 && info.findings.is_empty());
/// for (name, value) in &info.details {
///     println!("{name}: {value}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct DeviceInfo {
    /// How users name it: `cpu`, `gpu:0`, `cuda:0`.
    pub id: String,
    /// Its kind.
    pub kind: DeviceKind,
    /// What the vendor calls it.
    pub name: String,
    /// How far launches can go.
    pub limits: Limits,
    /// Bytes of memory it has.
    pub memory: u64,
    /// What else is worth knowing, as name and value.
    pub details: Vec<(String, String)>,
    /// Faults of the driver that were found when it was opened, in words.
    pub findings: Vec<String>,
}

/// A kernel as a backend has compiled it.
///
/// ```
/// let code: millrace::Code = std::sync::Arc::new("push rax".to_owned());
/// assert_eq!(code.downcast_ref::<String>().unwrap(), "push rax", "the backend knows what it is");
/// ```
pub type Code = Arc<dyn Any + Send + Sync>;

/// Threads that call a driver.
///
/// The workers of a context are some; a backend gets them with [`Backend::attend`], as `crates/gpu` does.
pub trait Leave: Send + Sync {
    /// Ends what they do, and waits until they have ended, if that takes no longer than `patience`.
    fn leave(&self, patience: Duration);
}

/// What every device offers.
///
/// [`Direct`] shows a whole one that does nothing; `crates/cpu` is one that does everything.
pub trait Backend: BlockSource + Any {
    /// What the device is.
    fn info(&self) -> DeviceInfo;

    /// Makes a kernel ready to run here, or says why it cannot. Called once for every kernel of different content.
    fn compile(&self, spec: &KernelSpec) -> Result<Code>;

    /// Frees memory that it keeps for transfers to come; says how many bytes.
    fn trim(&self) -> u64 {
        0
    }

    /// Degrees Celsius, where the system says.
    fn temperature(&self) -> Option<f32> {
        None
    }

    /// Opens a place for kernels that stay, with so many words of memory. None where there is no such thing; an error
    /// says why it is not possible in this way.
    fn residence(&self, words: usize, sharing: Sharing) -> Option<Result<OpenResidence>> {
        let _ = (words, sharing);
        None
    }

    /// A context was opened on it, whose threads call it. A driver that must not be called while the process exits
    /// keeps this, and makes them leave before.
    fn attend(&self, threads: Weak<dyn Leave>) {
        let _ = threads;
    }

    /// The device was given up: it hangs or is gone. Nothing is asked of it any more; what is left of it must not make
    /// the caller wait.
    fn abandon(&self) {}
}

impl dyn Backend {
    /// The backend as the crate that made it knows it.
    ///
    /// ```
    /// # let device = millrace::runtime().open("cpu")?;
    /// struct Abacus;
    /// # impl millrace::BlockSource for Abacus {
    /// #     fn allocate(&self, bytes: usize) -> millrace::Result<Box<dyn millrace::Block>> {
    /// #         Err(millrace::Error::SystemMemory(bytes as u64))
    /// #     }
    /// #     fn adopt(&self, bytes: bytes::Bytes) -> millrace::Result<Box<dyn millrace::Block>> {
    /// #         self.allocate(bytes.len())
    /// #     }
    /// # }
    /// # impl millrace::Backend for Abacus {
    /// #     fn info(&self) -> millrace::DeviceInfo { unreachable!() }
    /// #     fn compile(&self, _: &millrace::KernelSpec) -> millrace::Result<millrace::Code> { unreachable!() }
    /// # }
    /// let abacus: &dyn millrace::Backend = &Abacus;
    /// assert!(abacus.downcast::<Abacus>().is_some());
    /// assert!(device.backend().downcast::<Abacus>().is_none(), "it is the CPU");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn downcast<T: Backend>(&self) -> Option<&T> {
        (self as &dyn Any).downcast_ref()
    }
}

/// A device that runs commands on our threads, one at a time on each.
///
/// ```
/// use std::sync::Arc;
/// use millrace::{Backend, Block, BlockSource, Code, Command, Device, DeviceInfo, DeviceKind, DeviceOptions, Direct};
/// use millrace::{Engine, Error, KernelSpec, Limits, Output, Result, Synchronize};
///
/// /// A device that does nothing, as fast as it can: what is left is the road.
/// struct Null;
///
/// impl BlockSource for Null {
///     fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>> {
///         Err(Error::SystemMemory(bytes as u64))
///     }
///     fn adopt(&self, bytes: bytes::Bytes) -> Result<Box<dyn Block>> {
///         Err(Error::SystemMemory(bytes.len() as u64))
///     }
/// }
///
/// impl Backend for Null {
///     fn info(&self) -> DeviceInfo {
///         DeviceInfo {
///             id: "null".into(),
///             kind: DeviceKind::Cpu,
///             name: "nothing".into(),
///             limits: Limits::new([1; 3], 1),
///             memory: 0,
///             details: Vec::new(),
///             findings: Vec::new(),
///         }
///     }
///     fn compile(&self, _: &KernelSpec) -> Result<Code> {
///         Ok(Arc::new(()))
///     }
/// }
///
/// impl Direct for Null {
///     fn workers(&self) -> usize {
///         1
///     }
///     fn execute(&self, _: &Command) -> Result<Output> {
///         Ok(Output::Done)
///     }
/// }
///
/// let device = Device::open(Engine::Direct(Arc::new(Null)), DeviceOptions::default())?;
/// let kernel = device.kernel(&KernelSpec::new("nothing"))?;
/// device.stream()?.submit(kernel.launch())?.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Direct: Backend {
    /// How many commands of different streams may run at once.
    fn workers(&self) -> usize;
    /// Runs one command to its end: a transfer or a launch.
    fn execute(&self, command: &Command) -> Result<Output>;
}

/// A device with a queue of its own: commands are recorded into batches, which run in the order they are submitted and
/// finish later.
///
/// ```
/// # use millrace::{Runtime, cpu::CpuProvider, faulty::{Faults, FaultyProvider}};
/// # let faults = Faults::default();
/// # let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
/// use std::time::Duration;
/// use millrace::{Engine, Output, Provider, Ran, Recorded};
/// # let provider = FaultyProvider::new(CpuProvider, faults);
/// # let buffer = runtime.open("cpu")?.allocate(4)?;
/// let Engine::Queued(queued) = provider.open("cpu")? else { unreachable!() };
/// let mut batch = queued.begin()?;
/// batch.record(&buffer.fill(.., 7).into())?;
/// let Recorded::Read(number) = batch.record(&buffer.read(..).into())? else { unreachable!() };
/// let submission = batch.submit()?;
/// while !submission.wait(Duration::from_secs(1))? {}
/// let Output::View(bytes) = submission.read(number)? else { unreachable!() };
/// assert_eq!(&*bytes, [7; 4]);
/// assert_eq!(submission.ran(0), Ran::Unknown, "it has no clock");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Queued: Backend {
    /// Starts an empty batch. Only one is open at a time.
    fn begin(&self) -> Result<Box<dyn Batch>>;
    /// Batches that can be handed over before earlier ones have run without making the caller wait.
    fn depth(&self) -> usize;
}

/// Commands that are submitted together.
///
/// [`Queued`] shows one at work; the [`faulty`](crate::faulty) device has a small one to read.
pub trait Batch: Send {
    /// Records a command behind those that were recorded before. After an error the others still run.
    fn record(&mut self, command: &Command) -> Result<Recorded>;
    /// A profile is on: whoever submits this will ask when each command ran. Called before anything is recorded.
    fn time_commands(&mut self) {}
    /// Hands everything to the device.
    fn submit(self: Box<Self>) -> Result<Box<dyn Submission>>;
}

/// What is to be said of a recorded command once its batch has run.
///
/// [`Queued`] shows one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// That it is done.
    Done,
    /// The bytes that it reads: [`Submission::read`] gives them by this number.
    Read(usize),
}

/// A batch that the device is working on.
///
/// [`Queued`] shows one at work; the [`faulty`](crate::faulty) device has a small one to read.
pub trait Submission: Send + Sync {
    /// Waits until it has run; false if that took longer than the timeout. An error means that the device is lost.
    fn wait(&self, timeout: Duration) -> Result<bool>;
    /// After it has run: the bytes of one of its reads.
    fn read(&self, number: usize) -> Result<Output>;
    /// After it has run, if its commands were to be timed: when the command ran that was recorded after so many others.
    fn ran(&self, command: usize) -> Ran {
        let _ = command;
        Ran::Unknown
    }
}

/// When a recorded command ran, as far as a device can tell.
///
/// [`Queued`] shows a device that cannot tell; `crates/gpu/src/timing.rs` asks one that can.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ran {
    /// In between these moments, in nanoseconds on a clock of the device's own.
    Device {
        /// When it began.
        start: u64,
        /// When it ended.
        end: u64,
    },
    /// The host did it: while it was recorded, or, what is read, while it was fetched.
    Host,
    /// Some time between its batch being handed over and being done.
    Unknown,
}

/// How a device executes.
///
/// ```
/// use millrace::{DeviceOptions, Device, Engine, Provider, cpu::CpuProvider};
/// let engine = CpuProvider.open("cpu")?;
/// assert!(matches!(engine, Engine::Direct(_)), "it runs on our threads");
/// assert_eq!(engine.backend().info().id, "cpu");
/// Device::open(engine, DeviceOptions::default())?.stream()?.synchronize()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub enum Engine {
    /// On our threads.
    Direct(Arc<dyn Direct>),
    /// On a queue of its own.
    Queued(Arc<dyn Queued>),
}

impl Engine {
    /// The device itself.
    pub fn backend(&self) -> Arc<dyn Backend> {
        match self {
            Self::Direct(direct) => direct.clone(),
            Self::Queued(queued) => queued.clone(),
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Direct(_) => "Engine::Direct",
            Self::Queued(_) => "Engine::Queued",
        })
    }
}
