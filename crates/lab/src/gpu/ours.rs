//! The tasks as users of Millrace write them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use millrace::{
    Access, Buffer, CpuKernel, Device, DeviceOptions, Kernel, KernelSpec, Stream,
    tensor::{Tensor, Tensors},
};

use super::{
    Job, Task,
    task::{Payloads, arrived, brought},
};
use crate::{
    Error, Result, devices,
    raw_wgpu::{RELU, touch},
};

/// How long a wait may last without any progress. A large product is one launch, and on a software driver and a busy
/// machine it takes most of a minute.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A fresh context on a device.
#[derive(Debug)]
pub struct Context {
    device: Device,
    stream: Stream,
    tensors: Tensors,
}

/// That nothing was left in flight when a context ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Idle {
    /// The device.
    pub device: String,
    /// Batches that it worked on in all; none of them is left.
    pub submissions: u64,
}

impl std::fmt::Display for Idle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: nothing left in flight after {} submissions", self.device, self.submissions)
    }
}

impl Context {
    /// Opens a device by its id or kind.
    pub fn open(device: &str) -> Result<Self> {
        Self::of(millrace::runtime().open_with(devices::id(device), DeviceOptions::default().timeout(TIMEOUT))?)
    }

    /// A context on a device that was just opened.
    pub fn of(device: Device) -> Result<Self> {
        Ok(Self { stream: device.stream()?, tensors: Tensors::on(&device)?, device })
    }

    /// The tensors of this context.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Waits for everything, states that nothing is left in flight, and ends the context; all of it within a deadline.
    pub fn finish(self) -> Result<Idle> {
        self.tensors.synchronize()?;
        self.stream.synchronize()?;
        let health = self.device.health();
        if health.submissions_in_flight != 0 || health.bytes_in_flight != 0 || health.waiting != 0 {
            return Err(Error::Wrong(format!(
                "left in flight: {} submissions, {} bytes, {} commands",
                health.submissions_in_flight, health.bytes_in_flight, health.waiting
            )));
        }
        self.device.shutdown(Instant::now() + TIMEOUT)?;
        Ok(Idle { device: self.device.info().id.clone(), submissions: health.counts.submissions })
    }

    /// Uploads so many bytes again and again, as fast as the device takes them, and answers with how many bytes the
    /// process grew after the first hundred, where the system says.
    pub fn growth_of_uploads(&self, count: usize, bytes: usize) -> Result<Option<u64>> {
        let (buffer, mut payloads) = (self.device.allocate(bytes)?, Payloads::new(bytes));
        let (mut before, mut most, mut last) = (None, None, 0);
        for n in 0..count {
            if n == 100 {
                self.stream.synchronize()?;
                before = resident();
            } else if n > 100 && n % 100 == 0 {
                most = most.max(resident()); // while the last are still on their way
            }
            let (payload, word) = payloads.next();
            self.stream.enqueue(buffer.write(0, payload))?;
            last = word;
        }
        arrived(bytemuck::pod_read_unaligned(&self.stream.run(buffer.read(bytes - 4..))?), last)?;
        Ok(before.zip(most.max(resident())).map(|(before, most)| most.saturating_sub(before)))
    }
}

/// Bytes of memory that the process really has, where the system says.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib << 10)
}

/// Makes a task ready, with tensors; transfers with the stream.
pub fn ours(context: &Context, task: &Task) -> Result<Box<dyn Job>> {
    let (tensors, inputs) = (&context.tensors, task.inputs());
    let tensor = |input: &Vec<f32>, shape: &[usize]| tensors.from_slice(input, shape);
    let flat = |input: &Vec<f32>| tensor(input, &[input.len()]);
    let each = |inputs: &[Vec<f32>]| inputs.iter().map(flat).collect::<Result<Vec<_>, _>>();
    let (inputs, apply): (Vec<Tensor>, Apply) = match *task {
        Task::Empty => return Launches::empty(context),
        Task::Upload(bytes) => return Ok(Box::new(Upload::new(context, bytes)?)),
        Task::Download(bytes) => return Ok(Box::new(Download::new(context, bytes)?)),
        Task::Relus { .. } => (each(&inputs)?, |x, out| {
            for x in x {
                out.push(x.relu()?);
            }
            Ok(())
        }),
        Task::Add(_) => (each(&inputs)?, |x, out| {
            out.push(x[0].add(&x[1])?);
            Ok(())
        }),
        Task::Sum(_) => (each(&inputs)?, |x, out| {
            out.push(x[0].sum(&[0])?);
            Ok(())
        }),
        Task::Matmul(size) => {
            let shape = [size, size];
            (vec![tensor(&inputs[0], &shape)?, tensor(&inputs[1], &shape)?], |x, out| {
                out.push(x[0].matmul(&x[1])?);
                Ok(())
            })
        }
    };
    tensors.synchronize()?;
    Ok(Box::new(Operation { task: task.clone(), tensors: tensors.clone(), inputs, outputs: Vec::new(), apply }))
}

type Apply = fn(&[Tensor], &mut Vec<Tensor>) -> Result<()>;

struct Operation {
    task: Task,
    tensors: Tensors,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    apply: Apply,
}

impl Job for Operation {
    fn run(&mut self) -> Result<()> {
        self.outputs.clear();
        (self.apply)(&self.inputs, &mut self.outputs)?;
        Ok(self.tensors.synchronize()?)
    }

    fn check(&mut self) -> Result<()> {
        let outputs: Result<Vec<_>, _> = self.outputs.iter().map(Tensor::to_vec::<f32>).collect();
        self.task.check(&outputs?)
    }
}

/// Makes a task ready without tensors, where that is possible: launches of the kernel that is used by hand, too.
pub fn ours_by_stream(context: &Context, task: &Task) -> Result<Box<dyn Job>> {
    let Task::Relus { len, .. } = *task else { return ours(context, task) };
    let spec = KernelSpec::new("relu by hand")
        .binding::<f32>("x", Access::Read)
        .binding::<f32>("y", Access::Overwrite)
        .params::<u32>()
        .block(256)
        .wgsl(RELU)
        .cpu(CpuKernel::per_group(|group| {
            let start = group.start(1);
            let (x, y) = (group.input::<f32>(0), group.output::<f32>(1));
            y.iter_mut().zip(&x[start..]).for_each(|(y, x)| *y = x.max(0.0));
        }));
    let put = |input: &Vec<f32>| {
        let (x, y) = (context.device.allocate(4 * len)?, context.device.allocate(4 * len)?);
        context.stream.run(x.write(0, Bytes::copy_from_slice(bytemuck::cast_slice(input))))?;
        Ok((x, y))
    };
    let buffers = task.inputs().iter().map(put).collect::<Result<Vec<_>>>()?;
    let kernel = context.device.kernel(&spec)?;
    Ok(Box::new(Launches { task: task.clone(), stream: context.stream.clone(), kernel, buffers, len }))
}

/// Launches on a stream.
struct Launches {
    task: Task,
    stream: Stream,
    kernel: Kernel,
    /// What is read and what is written.
    buffers: Vec<(Buffer, Buffer)>,
    len: usize,
}

impl Launches {
    fn empty(context: &Context) -> Result<Box<dyn Job>> {
        let spec = KernelSpec::new("empty")
            .block(1)
            .wgsl("@compute @workgroup_size(1) fn main() {}")
            .cpu(CpuKernel::per_group(|_| ()));
        let kernel = context.device.kernel(&spec)?;
        let (stream, buffers) = (context.stream.clone(), Vec::new());
        Ok(Box::new(Self { task: Task::Empty, stream, kernel, buffers, len: 0 }))
    }
}

impl Job for Launches {
    fn run(&mut self) -> Result<()> {
        if self.buffers.is_empty() {
            return Ok(self.stream.run(self.kernel.launch())?);
        }
        for (x, y) in &self.buffers {
            let launch = self.kernel.launch().bind(x).bind(y).params(&(self.len as u32)).over(self.len, 256);
            self.stream.enqueue(launch)?;
        }
        Ok(self.stream.synchronize()?)
    }

    fn check(&mut self) -> Result<()> {
        let outputs = self.buffers.iter().map(|(_, y)| Ok(self.stream.run(y.read(..))?.to::<f32>().to_vec()));
        self.task.check(&outputs.collect::<Result<Vec<_>>>()?)
    }
}

struct Upload {
    stream: Stream,
    buffer: Buffer,
    payloads: Payloads,
}

impl Upload {
    fn new(context: &Context, bytes: usize) -> Result<Self> {
        let (stream, buffer) = (context.stream.clone(), context.device.allocate(bytes)?);
        Ok(Self { stream, buffer, payloads: Payloads::new(bytes) })
    }
}

impl Job for Upload {
    fn run(&mut self) -> Result<()> {
        let (payload, last) = self.payloads.next();
        self.stream.enqueue(self.buffer.write(0, payload))?;
        let there = self.stream.run(self.buffer.read(self.buffer.len() - 4..))?;
        arrived(bytemuck::pod_read_unaligned(&there), last)
    }

    /// Every run was.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }
}

struct Download {
    stream: Stream,
    buffer: Buffer,
    expected: u64,
}

impl Download {
    fn new(context: &Context, bytes: usize) -> Result<Self> {
        let (stream, buffer) = (context.stream.clone(), context.device.allocate(bytes)?);
        let (payload, _) = Payloads::new(bytes).next();
        stream.run(buffer.write(0, payload.clone()))?;
        Ok(Self { stream, buffer, expected: touch(&payload) })
    }
}

impl Job for Download {
    fn run(&mut self) -> Result<()> {
        brought(touch(&self.stream.run(self.buffer.read(..))?), self.expected)
    }

    /// Every run was.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }
}
