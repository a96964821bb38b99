//! The device: what all of its parts share, and how it is opened and given up.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
};

use bytes::Bytes;
use millrace_core::{
    Backend, Batch, Block, BlockSource, Code, DeviceInfo, DeviceKind, Error, KernelSpec, Leave, Limits, OpenResidence,
    Queued, Result, Sharing,
};

use crate::{
    adapter::{self, Transfers},
    batch::{GpuBatch, Scratch},
    compile::{Compiler, Groups},
    probe, resident,
    staging::{Downloads, Fetches, Uploads},
    submission::Pace,
    timing::{Sheets, Stamps},
    transfer::ByteKernels,
};

/// A GPU as a backend. A device that was opened on one gives it back as that:
///
/// ```
/// use millrace_core::Runtime;
/// use millrace_gpu::{Gpu, GpuProvider};
/// let runtime = Runtime::new(vec![Box::new(GpuProvider::default())]);
/// if let Ok(device) = runtime.open("gpu") {
///     let gpu = device.backend().downcast::<Gpu>().expect("it is one");
///     assert!(gpu.wgpu().limits().max_buffer_size > 0);
///     assert!(gpu.resident_wgpu().is_none(), "no kernel stays there yet");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Gpu {
    shared: Arc<Shared>,
}

/// What batches, blocks and submissions of a device share.
pub(crate) struct Shared {
    adapter: wgpu::Adapter,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) limits: wgpu::Limits,
    info: DeviceInfo,
    pci: String,
    /// Whether host and device share their memory, and idle buffers can be mapped.
    pub(crate) mappable: bool,
    pub(crate) depth: usize,
    /// What the device's clock can tell, and what it takes for that.
    pub(crate) stamps: Stamps,
    pub(crate) sheets: Sheets,
    pub(crate) compiler: Compiler,
    pub(crate) groups: Groups,
    pub(crate) uploads: Arc<Uploads>,
    pub(crate) downloads: Arc<Downloads>,
    pub(crate) fetches: Arc<Fetches>,
    pub(crate) bytes: ByteKernels,
    pub(crate) scratch: Mutex<Option<Arc<Scratch>>>,
    /// For the next batch.
    pub(crate) spare: Mutex<Option<wgpu::CommandEncoder>>,
    next_block: AtomicU64,
    /// The number of the last batch that was begun.
    pub(crate) batches: AtomicU64,
    /// The number of the last batch that has run.
    pub(crate) landed: AtomicU64,
    pub(crate) pace: Pace,
    status: Arc<Status>,
    polling: Mutex<()>,
    /// The device for kernels that stay that was opened last.
    settled: Mutex<Weak<resident::Settled>>,
}

/// What the driver told us out of turn.
#[derive(Default)]
pub(crate) struct Status {
    lost: OnceLock<Arc<str>>,
}

impl Status {
    /// Fails if the device is gone.
    pub(crate) fn check(&self) -> Result<()> {
        match self.lost.get() {
            Some(reason) => Err(Error::DeviceLost(reason.clone())),
            None => Ok(()),
        }
    }
}

impl Gpu {
    /// The device as wgpu knows it, for what Millrace does not offer.
    ///
    /// Do not poll it: that is done whenever something is waited for, and wgpu 30 panics if a wait with a timeout meets
    /// somebody else's poll.
    ///
    /// ```
    /// # use millrace_core::Runtime;
    /// # use millrace_gpu::{Gpu, GpuProvider};
    /// # let runtime = Runtime::new(vec![Box::new(GpuProvider::default())]);
    /// // Where there is no GPU, there is nothing to see.
    /// if let Ok(device) = runtime.open("gpu") {
    ///     let gpu = device.backend().downcast::<Gpu>().expect("it is one");
    ///     assert!(gpu.wgpu().limits().max_compute_workgroup_size_x >= device.info().limits.threads);
    /// }
    /// ```
    pub fn wgpu(&self) -> &wgpu::Device {
        &self.shared.device
    }

    /// The device that kernels stay on, while any do: it is another one than that for commands.
    ///
    /// ```
    /// # use millrace_core::{Runtime, Sharing};
    /// # use millrace_gpu::{Gpu, GpuProvider};
    /// # let runtime = Runtime::new(vec![Box::new(GpuProvider::default())]);
    /// // Where there is no GPU, there is nothing to see.
    /// if let Ok(device) = runtime.open("gpu") {
    ///     let gpu = device.backend().downcast::<Gpu>().expect("it is one");
    ///     assert!(gpu.resident_wgpu().is_none());
    ///     let place = device.backend().residence(1024, Sharing::None).expect("every GPU has one")?;
    ///     assert!(gpu.resident_wgpu().is_some(), "as long as somebody has the place");
    ///     # drop(place);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resident_wgpu(&self) -> Option<wgpu::Device> {
        let settled = self.shared.settled.lock().unwrap_or_else(PoisonError::into_inner);
        settled.upgrade().map(|settled| settled.wgpu().clone())
    }

    #[cfg(test)]
    pub(crate) fn stamps(&self) -> Stamps {
        self.shared.stamps
    }

    /// The same device with a clock that can tell less.
    #[cfg(test)]
    pub(crate) fn with_stamps(mut self, stamps: Stamps) -> Self {
        Arc::get_mut(&mut self.shared).expect("nobody has it yet").stamps = stamps;
        self
    }

    pub(crate) fn open(adapter: &wgpu::Adapter, id: &str, transfers: Transfers) -> Result<Self> {
        let adapter_info = adapter.get_info();
        let software = adapter_info.device_type == wgpu::DeviceType::Cpu;
        let shares_memory = software || adapter_info.device_type == wgpu::DeviceType::IntegratedGpu;
        let wanted = wgpu::Features::IMMEDIATES
            | adapter.features().intersection(wgpu::Features::PIPELINE_CACHE | Stamps::features())
            | match transfers {
                Transfers::Best if shares_memory => {
                    adapter.features().intersection(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS)
                }
                _ => wgpu::Features::empty(),
            };
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("millrace"),
            required_features: wanted,
            required_limits: adapter.limits(),
            memory_hints: wgpu::MemoryHints::Performance,
            ..Default::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor))
            .map_err(|error| Error::Device(format!("{}: {error}", adapter_info.name).into()))?;
        let status = Arc::new(Status::default());
        let lost = status.clone();
        device.set_device_lost_callback(move |reason, message| {
            let _ = lost.lost.set(format!("the driver says {reason:?}: {message}").into());
        });
        // What commands do wrong is asked for where they are recorded: this is of somebody who uses the device by hand.
        device.on_uncaptured_error(Arc::new(|error: wgpu::Error| tracing::error!(%error, "the driver complains")));
        let limits = device.limits();
        let (uploads, downloads, fetches) = (Arc::default(), Arc::default(), Arc::default());
        let findings = probe::run(&device, &queue).inspect_err(|_| leave(device.clone(), queue.clone(), ()))?;
        Ok(Self {
            shared: Arc::new(Shared {
                adapter: adapter.clone(),
                info: describe(adapter, id, findings),
                pci: adapter_info.device_pci_bus_id.clone(),
                mappable: device.features().contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS),
                // Software drivers run a submission to its end before they take the next.
                depth: if software { 1 } else { usize::MAX },
                stamps: Stamps::of(&device),
                sheets: Sheets::default(),
                compiler: Compiler::new(&device, &adapter_info),
                groups: Groups::default(),
                uploads,
                downloads,
                fetches,
                bytes: ByteKernels::default(),
                scratch: Mutex::default(),
                spare: Mutex::default(),
                next_block: AtomicU64::new(1),
                batches: AtomicU64::new(0),
                landed: AtomicU64::new(0),
                pace: Pace::new(software),
                status,
                polling: Mutex::default(),
                settled: Mutex::default(),
                limits,
                device,
                queue,
            }),
        })
    }
}

/// Features that matter to compute.
const RELEVANT: wgpu::Features = wgpu::Features::SHADER_F16
    .union(wgpu::Features::SHADER_F64)
    .union(wgpu::Features::SHADER_INT64)
    .union(wgpu::Features::SHADER_FLOAT32_ATOMIC)
    .union(wgpu::Features::SUBGROUP)
    .union(wgpu::Features::TIMESTAMP_QUERY)
    .union(wgpu::Features::PIPELINE_CACHE)
    .union(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS)
    .union(wgpu::Features::IMMEDIATES);

fn describe(adapter: &wgpu::Adapter, id: &str, findings: Vec<String>) -> DeviceInfo {
    let (info, limits) = (adapter.get_info(), adapter.limits());
    let features = adapter.features().intersection(RELEVANT);
    let detail = |name: &str, value: String| (name.to_owned(), value);
    let threads = limits.max_compute_invocations_per_workgroup;
    DeviceInfo {
        id: id.to_owned(),
        kind: DeviceKind::Gpu,
        name: info.name.clone(),
        limits: Limits::new([limits.max_compute_workgroups_per_dimension; 3], threads),
        memory: adapter::memory(adapter).unwrap_or(limits.max_buffer_size),
        details: vec![
            detail("backend", info.backend.to_string()),
            detail("type", adapter::type_name(info.device_type).to_owned()),
            detail("driver", format!("{} {}", info.driver, info.driver_info).trim().to_owned()),
            detail("subgroups", format!("{} to {} threads", info.subgroup_min_size, info.subgroup_max_size)),
            detail("binding", format!("at most {} MiB", limits.max_storage_buffer_binding_size >> 20)),
            detail(
                "features",
                features.iter_names().map(|(name, _)| name.to_lowercase()).collect::<Vec<_>>().join(" "),
            ),
        ],
        findings,
    }
}

impl Shared {
    /// Fails if the device is gone.
    pub(crate) fn check(&self) -> Result<()> {
        self.status.check()
    }

    /// A number that names a buffer among bind groups. Upload memory is never bound and has number zero.
    pub(crate) fn new_id(&self) -> u64 {
        self.next_block.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether reads can be left in the buffer until the batch has run: no other batch gets at it before.
    pub(crate) fn reads_in_place(&self) -> bool {
        self.mappable && self.depth == 1
    }

    /// Polls the device, one thread at a time: if another one sees a batch end between a wait's time running out and its last
    /// look, wgpu takes that for a contradiction and panics.
    pub(crate) fn poll(&self, how: wgpu::PollType) -> Result<wgpu::PollStatus, wgpu::PollError> {
        let _alone = self.polling.lock().unwrap_or_else(PoisonError::into_inner);
        self.device.poll(how)
    }

    /// Lets the driver say what it has to say, unless somebody else is about to.
    pub(crate) fn poll_if_nobody_does(&self) {
        if let Ok(_alone) = self.polling.try_lock() {
            let _ = self.device.poll(wgpu::PollType::Poll);
        }
    }

    /// The device cannot be used any more.
    pub(crate) fn lose(&self, reason: String) {
        let _ = self.status.lost.set(reason.into());
    }

    /// Runs `work` and says what the driver had against it.
    pub(crate) fn guarded<T>(&self, work: impl FnOnce() -> T) -> Result<T, wgpu::Error> {
        guarded(&self.device, work)
    }
}

/// Runs `work` and says what the driver had against it.
pub(crate) fn guarded<T>(device: &wgpu::Device, work: impl FnOnce() -> T) -> Result<T, wgpu::Error> {
    let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
    let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
    let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
    let result = work();
    let errors = [validation, internal, memory].map(error_of);
    match errors.into_iter().flatten().next() {
        Some(error) => Err(error),
        None => Ok(result),
    }
}

/// What went wrong since the scope was opened. It is known at once, outside of browsers.
pub(crate) fn error_of(scope: wgpu::ErrorScopeGuard) -> Option<wgpu::Error> {
    match pin!(scope.pop()).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(error) => error,
        Poll::Pending => None,
    }
}

/// A piece of device memory.
pub(crate) struct GpuBlock {
    pub(crate) id: u64,
    pub(crate) buffer: wgpu::Buffer,
    shared: Arc<Shared>,
    /// The last batch that has something to do with it.
    pub(crate) touched: AtomicU64,
}

impl Block for GpuBlock {
    fn host(&self) -> Option<&[u8]> {
        None
    }

    fn host_mut(&mut self) -> Option<&mut [u8]> {
        None
    }
}

impl Drop for GpuBlock {
    fn drop(&mut self) {
        // A bind group would keep the memory.
        self.shared.groups.forget(self.id);
    }
}

impl BlockSource for Gpu {
    fn allocate(&self, bytes: usize) -> Result<Box<dyn Block>> {
        let shared = &self.shared;
        shared.check()?;
        let limit = shared.limits.max_buffer_size;
        if bytes as u64 > limit {
            return Err(Error::TooLarge { requested: bytes as u64, limit });
        }
        let mut usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        if shared.mappable {
            usage |= wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::MAP_WRITE;
        }
        let descriptor = wgpu::BufferDescriptor { label: None, size: bytes as u64, usage, mapped_at_creation: false };
        let buffer = shared.guarded(|| shared.device.create_buffer(&descriptor)).map_err(|error| match error {
            wgpu::Error::OutOfMemory { .. } => Error::SystemMemory(bytes as u64),
            other => Error::Device(other.to_string().into()),
        })?;
        shared.check()?;
        let id = shared.new_id();
        Ok(Box::new(GpuBlock { id, buffer, shared: shared.clone(), touched: AtomicU64::new(0) }))
    }

    fn adopt(&self, _: Bytes) -> Result<Box<dyn Block>> {
        Err(Error::Invalid("a GPU device cannot use the host's bytes in place; write them to a buffer".into()))
    }
}

impl Backend for Gpu {
    fn info(&self) -> DeviceInfo {
        self.shared.info.clone()
    }

    fn compile(&self, spec: &KernelSpec) -> Result<Code> {
        self.shared.check()?;
        Ok(Arc::new(self.shared.compiler.compile(&self.shared.device, spec)?))
    }

    fn trim(&self) -> u64 {
        let Shared { uploads, downloads, fetches, .. } = &*self.shared;
        uploads.trim() + downloads.trim() + fetches.trim()
    }

    fn temperature(&self) -> Option<f32> {
        let sensors = std::path::Path::new("/sys/bus/pci/devices").join(&self.shared.pci).join("hwmon");
        let read = |sensor: std::fs::DirEntry| -> Option<f32> {
            let text = std::fs::read_to_string(sensor.path().join("temp1_input")).ok()?;
            Some(text.trim().parse::<f32>().ok()? / 1000.0)
        };
        // Without an address the path would be that of all devices.
        (!self.shared.pci.is_empty()).then_some(())?;
        std::fs::read_dir(sensors).ok()?.flatten().filter_map(read).reduce(f32::max)
    }

    fn residence(&self, words: usize, sharing: Sharing) -> Option<Result<OpenResidence>> {
        let opened = self.shared.check().and_then(|()| resident::settle(&self.shared.adapter, words, sharing));
        Some(opened.map(|settled| {
            let settled = Arc::new(settled);
            *self.shared.settled.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(&settled);
            settled as OpenResidence
        }))
    }

    fn attend(&self, threads: Weak<dyn Leave>) {
        crate::exit::attend(threads);
    }

    fn abandon(&self) {
        let shared = self.shared.clone();
        shared.lose("it was given up".to_owned());
        leave(shared.device.clone(), shared.queue.clone(), shared);
    }
}

/// Gives up a device that may hang. Whoever drops the last handle of such a one waits for it, perhaps forever: that is a thread
/// of its own. `others` have handles, too.
pub(crate) fn leave(device: wgpu::Device, queue: wgpu::Queue, others: impl Send + 'static) {
    let last = move || {
        drop(others);
        let _ = device.poll(wgpu::PollType::Wait { submission_index: None, timeout: None });
        device.destroy();
        let _ = device.poll(wgpu::PollType::Poll);
        drop(queue);
    };
    if let Err(error) = std::thread::Builder::new().name("millrace-gpu-abandoned".into()).spawn(last) {
        tracing::warn!(%error, "no thread for a lost device; its memory stays");
    }
}

impl Queued for Gpu {
    fn begin(&self) -> Result<Box<dyn Batch>> {
        self.shared.check()?;
        Ok(Box::new(GpuBatch::new(self.shared.clone())))
    }

    fn depth(&self) -> usize {
        self.shared.depth
    }
}
