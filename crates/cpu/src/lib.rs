//! The CPU device: always there, really runs everything, and is what other devices are checked against.
//!
//! This room executes commands that `millrace-core` has checked: it copies bytes, keeps the promise that never-written
//! bytes read as zero, and calls kernels over their grid on a pool of threads. It knows no operation. Its `unsafe` code
//! is where memory comes from the system, where threads are kept on a memory node's cores, and where outputs are cut into
//! pieces for groups.

mod block;
mod execute;
mod info;
mod launch;
mod node;
mod threads;

use std::sync::Arc;

use bytes::Bytes;
use millrace_core::{
    Backend, Block, BlockSource, Code, Command, DeviceInfo, DeviceKind, Direct, Engine, Error, Found, KernelSpec,
    Limits, Output, Provider, Result, Threads,
};

pub use info::{Cache, CpuInfo};
use threads::Team;

/// The most groups in each direction and threads of a group: WebGPU's defaults, so that a launch that works here works
/// elsewhere.
const LIMITS: ([u32; 3], u32) = ([65_535; 3], 1024);

/// Finds the CPU.
///
/// ```
/// use millrace_core::Runtime;
/// use millrace_cpu::CpuProvider;
/// let runtime = Runtime::new(vec![Box::new(CpuProvider)]);
/// let device = runtime.open("cpu")?;
/// let (stream, buffer) = (device.stream()?, device.allocate(4)?);
/// stream.run(buffer.write(0, &b"mill"[..]))?;
/// assert_eq!(&*stream.run(buffer.read(..))?, b"mill");
/// # Ok::<(), millrace_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuProvider;

impl Provider for CpuProvider {
    fn list(&self) -> Vec<Found> {
        let (id, kind, name) = ("cpu".to_owned(), DeviceKind::Cpu, CpuInfo::get().name.clone());
        vec![Found { id, kind, name, unavailable: None }]
    }

    fn open(&self, id: &str) -> Result<Engine> {
        CpuThreads(CpuInfo::get().cores).open(id)
    }
}

/// Finds the CPU, and lets it use so many threads instead of one per core.
///
/// ```
/// use millrace_core::Runtime;
/// use millrace_cpu::CpuThreads;
/// let device = Runtime::new(vec![Box::new(CpuThreads(1))]).open("cpu")?;
/// assert_eq!(device.health().workers, 1);
/// # Ok::<(), millrace_core::Error>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct CpuThreads(pub usize);

impl Provider for CpuThreads {
    fn list(&self) -> Vec<Found> {
        CpuProvider.list()
    }

    fn open(&self, _id: &str) -> Result<Engine> {
        Ok(Engine::Direct(Arc::new(Cpu { team: Team::new(self.0.max(1)) })))
    }
}

/// The CPU as a backend.
#[derive(Debug)]
struct Cpu {
    team: Team,
}

impl BlockSource for Cpu {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>> {
        Ok(Box::new(block::Owned::zeroed(bytes).ok_or(Error::SystemMemory(bytes as u64))?))
    }

    fn adopt(&self, bytes: Bytes) -> Result<Box<dyn Block>> {
        Ok(Box::new(block::Adopted(bytes)))
    }
}

impl Backend for Cpu {
    fn info(&self) -> DeviceInfo {
        let cpu = CpuInfo::get();
        DeviceInfo {
            id: "cpu".to_owned(),
            kind: DeviceKind::Cpu,
            name: cpu.name.clone(),
            limits: Limits::new(LIMITS.0, LIMITS.1),
            memory: cpu.memory,
            details: cpu.details(),
            findings: Vec::new(),
        }
    }

    fn compile(&self, spec: &KernelSpec) -> Result<Code> {
        match spec.cpu_code() {
            Some(_) => Ok(Arc::new(())), // it is compiled already
            None => Err(Error::NoImplementation { kernel: spec.name().clone(), device: DeviceKind::Cpu.name() }),
        }
    }

    fn temperature(&self) -> Option<f32> {
        info::temperature()
    }
}

impl Direct for Cpu {
    fn workers(&self) -> usize {
        self.team.count()
    }

    fn execute(&self, command: &Command) -> Result<Output> {
        match command {
            Command::Write(write) => execute::write(write),
            Command::Read(read) => execute::read(read),
            Command::Copy(copy) => execute::copy(copy),
            Command::Fill(fill) => execute::fill(fill),
            Command::Launch(launch) => launch::launch(launch.body(), &self.team),
            other => Err(Error::Invalid(format!("{:?} is not for a backend", other.kind()).into())),
        }
    }
}
