//! The peer on the GPU: wgpu used by hand, in the best way we know for each job.
//!
//! What makes it fast: pipelines, bind groups and staging buffers are made once; all dispatches of a job go into one pass
//! and one submission; parameters are immediates; staging buffers are asked to be mapped again with the same wait that
//! the job needs anyway; and the host can poll instead of sleeping ([`Waiting`]), because waking a thread can cost more
//! than the whole job. It keeps no accounts, checks nothing, serves one thread and has one job in flight.

mod ops;
mod transfer;

use std::{
    thread,
    time::{Duration, Instant},
};

pub use ops::Operation;
pub(crate) use transfer::touch;
pub use transfer::{Mapped, Staged};

use crate::{Error, Result};

/// How the host waits for the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// `poll` with `Wait`: the thread sleeps in the driver.
    Sleep,
    /// `poll` with `Poll` and a yield in between, again and again.
    Yield,
}

/// `max(x, 0)`, an element a thread: the same for [`crate::gpu::ours_by_stream`].
pub(crate) const RELU: &str = include_str!("relu.wgsl");

/// When a job is given up.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A device of wgpu.
#[derive(Debug, Clone)]
pub struct Raw {
    device: wgpu::Device,
    queue: wgpu::Queue,
    waiting: Waiting,
}

/// An error of wgpu.
fn failed(what: impl std::fmt::Display) -> Error {
    let lines = what.to_string(); // in one line, since it becomes a row of a table
    Error::Device(format!("raw wgpu: {}", lines.split_whitespace().collect::<Vec<_>>().join(" ")))
}

impl Raw {
    /// Opens the adapter with this name, or the first one.
    pub fn open(name: Option<&str>, waiting: Waiting) -> Result<Self> {
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            flags: wgpu::InstanceFlags::empty(),
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let mut adapters = pollster::block_on(instance.enumerate_adapters(wgpu::Backends::PRIMARY));
        let place = adapters.iter().position(|adapter| name.is_some_and(|name| adapter.get_info().name == name));
        if adapters.is_empty() {
            return Err(failed("there is no adapter"));
        }
        let adapter = adapters.swap_remove(place.unwrap_or(0));
        let wanted = wgpu::Features::IMMEDIATES | wgpu::Features::MAPPABLE_PRIMARY_BUFFERS;
        let descriptor = wgpu::DeviceDescriptor {
            required_features: adapter.features() & wanted,
            required_limits: adapter.limits(),
            ..Default::default()
        };
        let (device, queue) = pollster::block_on(adapter.request_device(&descriptor)).map_err(failed)?;
        if !device.features().contains(wgpu::Features::IMMEDIATES) {
            return Err(failed("the adapter has no immediates"));
        }
        Ok(Self { device, queue, waiting })
    }

    /// Whether the host can map the buffers that kernels use.
    pub fn maps_primary(&self) -> bool {
        self.device.features().contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS)
    }

    /// Runs `work`, and turns what wgpu has to say about it into an error.
    fn checked<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let result = work();
        match pollster::block_on(scope.pop()) {
            None => Ok(result),
            Some(error) => Err(failed(error)),
        }
    }

    /// Memory that kernels can use.
    fn buffer(&self, bytes: u64, more: wgpu::BufferUsages) -> wgpu::Buffer {
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST | more;
        self.host_buffer(bytes, usage)
    }

    fn host_buffer(&self, size: u64, usage: wgpu::BufferUsages) -> wgpu::Buffer {
        self.device.create_buffer(&wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
    }

    /// A buffer of these floats.
    fn floats(&self, floats: &[f32]) -> Result<wgpu::Buffer> {
        let bytes = bytemuck::cast_slice(floats);
        let buffer = self.buffer(bytes.len() as u64, wgpu::BufferUsages::empty());
        self.queue.write_buffer(&buffer, 0, bytes);
        self.queue.submit([]);
        self.wait()?;
        Ok(buffer)
    }

    /// What is in a buffer, for checks.
    fn floats_of(&self, buffer: &wgpu::Buffer) -> Result<Vec<f32>> {
        let staging = self.host_buffer(buffer.size(), wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
        let mut encoder = self.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(buffer, 0, &staging, 0, buffer.size());
        self.queue.submit([encoder.finish()]);
        staging.map_async(wgpu::MapMode::Read, .., |_| ());
        self.wait()?;
        let view = staging.get_mapped_range(..).map_err(failed)?;
        Ok(bytemuck::pod_collect_to_vec(&view))
    }

    /// Waits until nothing is left to do, mappings included.
    fn wait(&self) -> Result<()> {
        let poll = |poll| self.device.poll(poll).map_err(failed);
        let deadline = Instant::now() + TIMEOUT;
        match self.waiting {
            Waiting::Sleep => poll(wgpu::PollType::Wait { submission_index: None, timeout: Some(TIMEOUT) }).map(drop),
            Waiting::Yield => {
                while poll(wgpu::PollType::Poll)? != wgpu::PollStatus::QueueEmpty {
                    if Instant::now() > deadline {
                        return Err(Error::Timeout(TIMEOUT));
                    }
                    thread::yield_now();
                }
                Ok(())
            }
        }
    }

    /// A kernel whose first bindings are read and whose last one is written.
    fn kernel(&self, source: &str, bindings: u32, immediate_size: u32) -> Result<Kernel> {
        let entry = |binding| wgpu::BindGroupLayoutEntry {
            binding,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only: binding + 1 < bindings },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: None,
        };
        let entries: Vec<_> = (0..bindings).map(entry).collect();
        self.checked(|| {
            let source = wgpu::ShaderSource::Wgsl(source.into());
            let module = self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
            let layout = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
            let layout = self.device.create_bind_group_layout(&layout);
            let whole =
                wgpu::PipelineLayoutDescriptor { label: None, bind_group_layouts: &[Some(&layout)], immediate_size };
            let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: None,
                layout: Some(&self.device.create_pipeline_layout(&whole)),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: None,
            });
            Kernel { pipeline, layout }
        })
    }

    /// One use of a kernel.
    fn call(&self, kernel: &Kernel, buffers: &[&wgpu::Buffer], immediates: &[u32], groups: [u32; 3]) -> Result<Call> {
        let numbered = buffers.iter().enumerate();
        let entries: Vec<_> = numbered
            .map(|(number, buffer)| wgpu::BindGroupEntry {
                binding: number as u32,
                resource: buffer.as_entire_binding(),
            })
            .collect();
        let bindings = self.checked(|| {
            self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &kernel.layout,
                entries: &entries,
            })
        })?;
        let immediates = bytemuck::cast_slice(immediates).to_vec();
        Ok(Call { pipeline: kernel.pipeline.clone(), bindings, immediates, groups })
    }

    /// Runs calls in one pass and one submission, and waits for them.
    fn run(&self, calls: &[Call]) -> Result<()> {
        let mut encoder = self.device.create_command_encoder(&Default::default());
        let mut pass = encoder.begin_compute_pass(&Default::default());
        let mut current: Option<&wgpu::ComputePipeline> = None;
        for call in calls {
            if current != Some(&call.pipeline) {
                pass.set_pipeline(&call.pipeline);
                current = Some(&call.pipeline);
            }
            pass.set_bind_group(0, &call.bindings, &[]);
            if !call.immediates.is_empty() {
                pass.set_immediates(0, &call.immediates);
            }
            let [x, y, z] = call.groups;
            pass.dispatch_workgroups(x, y, z);
        }
        drop(pass);
        self.queue.submit([encoder.finish()]);
        self.wait()
    }
}

#[derive(Debug)]
struct Kernel {
    pipeline: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

#[derive(Debug)]
struct Call {
    pipeline: wgpu::ComputePipeline,
    bindings: wgpu::BindGroup,
    immediates: Vec<u8>,
    groups: [u32; 3],
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{Task, by_hand};

    /// Without an adapter there is nothing to test.
    fn raw() -> Option<Raw> {
        Raw::open(None, Waiting::Yield).ok()
    }

    #[test]
    fn uploads_arrive_and_downloads_bring_what_was_uploaded() {
        let Some(raw) = raw() else { return };
        let bytes: Vec<u8> = (0..1 << 16).map(|n: u32| (n % 251) as u8).collect();
        let last = u32::from_ne_bytes(bytes[bytes.len() - 4..].try_into().unwrap());
        let mut staged = Staged::new(&raw, bytes.len() as u64).unwrap();
        for _ in 0..2 {
            assert_eq!(staged.upload(&bytes).unwrap(), last);
            assert_eq!(staged.download().unwrap(), transfer::touch(&bytes));
        }
        if let Some(mut mapped) = Mapped::new(&raw, bytes.len() as u64) {
            for _ in 0..2 {
                assert_eq!(mapped.upload(&bytes).unwrap(), last);
                assert_eq!(mapped.download().unwrap(), transfer::touch(&bytes));
            }
        }
    }

    #[test]
    fn operations_by_hand_compute_what_they_say() {
        let Some(raw) = raw() else { return };
        for waiting in [Waiting::Sleep, Waiting::Yield] {
            let raw = Raw { waiting, ..raw.clone() };
            Operation::empty(&raw).unwrap().run().unwrap();
            for task in [
                Task::Relus { count: 3, len: 256 },
                Task::Relus { count: 2, len: 5120 },
                Task::Relus { count: 1, len: (1 << 18) + 4 },
                Task::Add((1 << 18) + 4),
                Task::Sum(256),
                Task::Sum((1 << 18) + 4),
                Task::Matmul(72),
            ] {
                let mut job = by_hand(&raw, &task, false).unwrap();
                assert!(job.check().is_err(), "{task:?} has not run yet");
                job.run().unwrap();
                job.check().unwrap();
            }
        }
    }
}
