//! Kernels that stay: a device and a queue of their own on the same adapter, so that commands never wait for them, and
//! memory that they share with the host where Vulkan offers it.

mod hal;
mod probe;

use std::{
    borrow::Cow,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU32, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use millrace_core::{Code, Error, Leave, Residence, Result, Shape, Sharing};

use crate::device::{guarded, leave};

use self::hal::HostMemory;

/// How long what polls for the end of something short gives its core away before it sleeps.
const EAGER: Duration = Duration::from_millis(2);

/// A device of its own for kernels that stay.
pub(crate) struct Settled {
    device: wgpu::Device,
    queue: wgpu::Queue,
    buffer: wgpu::Buffer,
    /// None if the memory is the device's own, or once it was given up.
    memory: Option<HostMemory>,
    staging: Mutex<Option<wgpu::Buffer>>,
    layout: wgpu::BindGroupLayout,
    group: wgpu::BindGroup,
    shape: Shape,
    lost: Arc<OnceLock<Arc<str>>>,
    abandoned: AtomicBool,
}

/// A program, ready to run.
struct Program(wgpu::ComputePipeline);

/// Opens a device for kernels that stay.
pub(crate) fn settle(adapter: &wgpu::Adapter, words: usize, sharing: Sharing) -> Result<Settled> {
    let info = adapter.get_info();
    let failed = |what: String| Error::Device(format!("{}: {what}", info.name).into());
    let limits = adapter.limits();
    let limit = limits.max_buffer_size.min(limits.max_storage_buffer_binding_size);
    let bytes = words as u64 * 4;
    if bytes > limit {
        return Err(Error::TooLarge { requested: bytes, limit });
    }
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("millrace resident"),
        required_limits: limits,
        memory_hints: wgpu::MemoryHints::Performance,
        ..Default::default()
    };
    let (device, queue) =
        pollster::block_on(adapter.request_device(&descriptor)).map_err(|error| failed(error.to_string()))?;
    let lost: Arc<OnceLock<Arc<str>>> = Arc::default();
    let loss = lost.clone();
    device.set_device_lost_callback(move |reason, message| {
        let _ = loss.set(format!("the driver says {reason:?}: {message}").into());
    });
    let complaint = lost.clone();
    device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
        tracing::error!(%error, "the driver complains");
        let _ = complaint.set(error.to_string().into());
    }));
    let turns = crate::probe::turns(&device, &queue).inspect_err(|_| leave(device.clone(), queue.clone(), ()))?;
    let (memory, buffer) = match sharing {
        Sharing::Required => {
            let (memory, buffer) = HostMemory::allocate(&device, words).map_err(&failed)?;
            (Some(memory), buffer)
        }
        Sharing::None => {
            let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
            let descriptor =
                wgpu::BufferDescriptor { label: Some("resident"), size: bytes, usage, mapped_at_creation: false };
            let buffer = guarded(&device, || device.create_buffer(&descriptor));
            (None, buffer.map_err(|_| Error::SystemMemory(bytes))?)
        }
    };
    let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: None,
        entries: &[wgpu::BindGroupLayoutEntry {
            binding: 0,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only: false },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        }],
    });
    let entries = [wgpu::BindGroupEntry { binding: 0, resource: buffer.as_entire_binding() }];
    let group =
        device.create_bind_group(&wgpu::BindGroupDescriptor { label: None, layout: &layout, entries: &entries });
    // A software driver runs a group as vectors, and a vector whose threads do not all take part in a loop runs it to the
    // driver's end; hardware masks them, and a group of one may use barriers anywhere.
    let shape = match info.device_type {
        wgpu::DeviceType::Cpu => Shape::new(info.subgroup_min_size.max(1), false, turns),
        _ => Shape::new(1, true, turns),
    };
    let settled = Settled {
        device,
        queue,
        buffer,
        memory,
        staging: Mutex::default(),
        layout,
        group,
        shape,
        lost,
        abandoned: AtomicBool::new(false),
    };
    if sharing == Sharing::Required {
        probe::run(&settled).map_err(failed)?;
    }
    Ok(settled)
}

impl Settled {
    /// The device as wgpu knows it.
    pub(crate) fn wgpu(&self) -> &wgpu::Device {
        &self.device
    }

    fn alive(&self) -> Result<()> {
        match self.lost.get() {
            Some(reason) => Err(Error::DeviceLost(reason.clone())),
            None => Ok(()),
        }
    }

    fn program<'a>(&self, program: &'a Code) -> Result<&'a wgpu::ComputePipeline> {
        let program = program.downcast_ref::<Program>();
        program.map(|program| &program.0).ok_or_else(|| Error::Invalid("the program is not of this device".into()))
    }

    fn record(&self, encoder: &mut wgpu::CommandEncoder, program: &wgpu::ComputePipeline, times: u32) {
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        pass.set_pipeline(program);
        pass.set_bind_group(0, &self.group, &[]);
        for _ in 0..times {
            pass.dispatch_workgroups(1, 1, 1);
        }
    }

    fn polled(&self, timeout: Option<Duration>) -> Result<bool> {
        let poll = match timeout {
            None => wgpu::PollType::Poll,
            timeout => wgpu::PollType::Wait { submission_index: None, timeout },
        };
        let polled = self.device.poll(poll);
        self.alive()?;
        match polled {
            Ok(status) => Ok(status.is_queue_empty()),
            Err(wgpu::PollError::Timeout) => Ok(false),
            Err(error) => Err(Error::DeviceLost(error.to_string().into())),
        }
    }
}

impl Residence for Settled {
    fn shared(&self) -> Option<&[AtomicU32]> {
        self.memory.as_ref().map(HostMemory::words)
    }

    fn shape(&self) -> Shape {
        self.shape
    }

    fn check(&self, name: &str, source: &str) -> Result<()> {
        let broken = |message: String| Error::Compile { kernel: name.into(), message: message.into() };
        let path = format!("{name}.wgsl");
        let module = wgpu::naga::front::wgsl::parse_str(source)
            .map_err(|error| broken(error.emit_to_string_with_path(source, &path)))?;
        let (flags, capabilities) =
            (wgpu::naga::valid::ValidationFlags::all(), wgpu::naga::valid::Capabilities::empty());
        let validated = wgpu::naga::valid::Validator::new(flags, capabilities).validate(&module);
        validated.map(drop).map_err(|error| broken(error.emit_to_string_with_path(source, &path)))
    }

    fn compile(&self, source: &str) -> Result<Code> {
        self.alive()?;
        let device = &self.device;
        let pipeline = guarded(device, || {
            let descriptor = wgpu::ShaderModuleDescriptor {
                label: Some("resident"),
                source: wgpu::ShaderSource::Wgsl(Cow::Borrowed(source)),
            };
            // Accesses stay checked: handlers are not ours. Loops do not: a lease ends by itself, and the counter that is
            // added to every loop would only make polling slower.
            let checks =
                wgpu::ShaderRuntimeChecks { force_loop_bounding: false, ..wgpu::ShaderRuntimeChecks::checked() };
            // SAFETY: a loop without an end in a handler makes the program hang, which the host notices; it does not make
            // the program touch what is not its own.
            let module = unsafe { device.create_shader_module_trusted(descriptor, checks) };
            let layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[Some(&self.layout)],
                immediate_size: 0,
            });
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some("resident"),
                layout: Some(&layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: None,
            })
        });
        let broken =
            |error: wgpu::Error| Error::Compile { kernel: "resident".into(), message: error.to_string().into() };
        Ok(Arc::new(Program(pipeline.map_err(broken)?)))
    }

    fn submit(&self, program: &Code, leases: u32) -> Result<()> {
        self.alive()?;
        let program = self.program(program)?;
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.record(&mut encoder, program, leases);
        self.queue.submit([encoder.finish()]);
        self.alive()
    }

    fn wait(&self, timeout: Duration) -> Result<bool> {
        self.alive()?;
        let start = Instant::now();
        loop {
            if self.polled(None)? {
                return Ok(true);
            }
            let waited = start.elapsed();
            if waited >= timeout {
                return Ok(false);
            }
            if waited > EAGER {
                return self.polled(Some(timeout - waited));
            }
            std::thread::yield_now();
        }
    }

    fn exchange(&self, program: &Code, words: &mut [u32], timeout: Duration) -> Result<()> {
        self.alive()?;
        let program = self.program(program)?;
        let bytes = words.len() as u64 * 4;
        let mut staging = self.staging.lock().unwrap_or_else(PoisonError::into_inner);
        let back = match staging.take().filter(|staging| staging.size() >= bytes) {
            Some(staging) => staging,
            None => self.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: bytes.next_power_of_two(),
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            }),
        };
        self.queue.write_buffer(&self.buffer, 0, bytemuck::cast_slice(words));
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.record(&mut encoder, program, 1);
        encoder.copy_buffer_to_buffer(&self.buffer, 0, &back, 0, bytes);
        self.queue.submit([encoder.finish()]);
        let (sender, receiver) = mpsc::channel();
        back.map_async(wgpu::MapMode::Read, ..bytes, move |result| _ = sender.send(result));
        if !self.wait(timeout)? {
            return Err(Error::DeviceLost(format!("a batch of messages did not run within {timeout:?}").into()));
        }
        let failed = |error: String| Error::DeviceLost(format!("the result cannot be mapped: {error}").into());
        match receiver.try_recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(failed(error.to_string())),
            Err(error) => return Err(failed(error.to_string())),
        }
        let mapped = back.get_mapped_range(..bytes).map_err(|error| failed(error.to_string()))?;
        bytemuck::cast_slice_mut(words).copy_from_slice(&mapped);
        drop(mapped);
        back.unmap();
        *staging = Some(back);
        Ok(())
    }

    fn attend(&self, threads: Weak<dyn Leave>) {
        crate::exit::attend(threads);
    }

    fn abandon(&self) {
        let _ = self.lost.set("it was given up".into());
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

impl Drop for Settled {
    fn drop(&mut self) {
        if self.abandoned.load(Ordering::Relaxed) {
            // It may hang. Its memory may be written to as long as it does, and dropping its handles would wait for it:
            // a thread does that, which may never return.
            let (device, queue, memory) = (self.device.clone(), self.queue.clone(), self.memory.take());
            let last = move || {
                let _ = device.poll(wgpu::PollType::Wait { submission_index: None, timeout: None });
                drop(memory);
                drop(queue);
            };
            if let Err(error) = std::thread::Builder::new().name("millrace-gpu-abandoned".into()).spawn(last) {
                tracing::warn!(%error, "no thread for a lost device; its memory stays");
            }
        } else {
            let _ = self.device.poll(wgpu::PollType::Wait { submission_index: None, timeout: None });
        }
    }
}
