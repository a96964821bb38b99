//! Kernels become pipelines; bound buffers become bind groups, which are used again.

use std::{
    borrow::Cow,
    collections::HashMap,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
};

use arrayvec::ArrayVec;
use millrace_core::{Error, KernelSpec, MAX_BINDINGS, Result, file};

use crate::device::guarded;

/// Which bindings are written, in order: all that a layout depends on.
type Shape = ArrayVec<bool, MAX_BINDINGS>;

/// A compiled kernel.
pub(crate) struct Pipeline {
    pub(crate) pipeline: wgpu::ComputePipeline,
    pub(crate) layout: Arc<Layout>,
    /// Bytes that each binding needs at least; the driver would refuse a whole batch for less.
    pub(crate) least: ArrayVec<u64, MAX_BINDINGS>,
    /// Whether it was ever dispatched: some drivers make code of it only then.
    pub(crate) used: AtomicBool,
}

/// How buffers are bound. Kernels of the same shape share one, and so their bind groups.
pub(crate) struct Layout {
    number: u32,
    pub(crate) group: wgpu::BindGroupLayout,
}

pub(crate) struct Compiler {
    layouts: Mutex<HashMap<Shape, Arc<Layout>>>,
    cache: Option<DiskCache>,
}

impl Compiler {
    pub(crate) fn new(device: &wgpu::Device, adapter: &wgpu::AdapterInfo) -> Self {
        Self { layouts: Mutex::default(), cache: DiskCache::open(device, adapter) }
    }

    pub(crate) fn compile(&self, device: &wgpu::Device, spec: &KernelSpec) -> Result<Pipeline> {
        let kernel = spec.name();
        let invalid = |what: String| Error::Invalid(format!("kernel {kernel}: {what}").into());
        let broken = |message: String| Error::Compile { kernel: kernel.clone(), message: message.into() };
        let Some(source) = spec.wgsl_code() else {
            return Err(Error::NoImplementation { kernel: kernel.clone(), device: "gpu" });
        };
        if !spec.params_len().is_multiple_of(4) {
            return Err(invalid(format!("{} bytes of parameters are not a multiple of 4", spec.params_len())));
        }
        let module = wgpu::naga::front::wgsl::parse_str(source)
            .map_err(|error| broken(error.emit_to_string_with_path(source, &format!("{kernel}.wgsl"))))?;
        let entry = module.entry_points.iter().find(|entry| entry.name == "main");
        let entry = entry.ok_or_else(|| broken("there is no entry point `main`".to_owned()))?;
        if entry.workgroup_size != spec.block_size().to_array() {
            let (code, block) = (entry.workgroup_size, spec.block_size().to_array());
            return Err(invalid(format!("the code's workgroup size is {code:?}, the kernel's block is {block:?}")));
        }
        let shape: Shape = spec.bindings().iter().map(|binding| binding.access.writes()).collect();
        let layout = self.layout(device, &shape);
        let least = (0..shape.len() as u32).map(|binding| least_bytes(&module, binding)).collect();
        let pipeline = guarded(device, || {
            let shader = wgpu::ShaderSource::Wgsl(Cow::Borrowed(source));
            let module =
                device.create_shader_module(wgpu::ShaderModuleDescriptor { label: Some(kernel), source: shader });
            let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: Some(kernel),
                bind_group_layouts: &[Some(&layout.group)],
                immediate_size: spec.params_len() as u32,
            });
            device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(kernel),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: self.cache.as_ref().map(|cache| &cache.cache),
            })
        });
        let pipeline = pipeline.map_err(|error| broken(error.to_string()))?;
        if let Some(cache) = &self.cache {
            cache.save();
        }
        Ok(Pipeline { pipeline, layout, least, used: AtomicBool::new(false) })
    }

    fn layout(&self, device: &wgpu::Device, shape: &Shape) -> Arc<Layout> {
        let mut layouts = self.layouts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layout) = layouts.get(shape) {
            return layout.clone();
        }
        let entries: Vec<_> = shape
            .iter()
            .enumerate()
            .map(|(i, &writes)| wgpu::BindGroupLayoutEntry {
                binding: i as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: !writes },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let descriptor = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
        let group = device.create_bind_group_layout(&descriptor);
        let layout = Arc::new(Layout { number: layouts.len() as u32, group });
        layouts.insert(shape.clone(), layout.clone());
        layout
    }
}

/// Bytes that a binding must have for the code: those of its type, with one element where it has no fixed number.
fn least_bytes(module: &wgpu::naga::Module, binding: u32) -> u64 {
    let at = wgpu::naga::ResourceBinding { group: 0, binding };
    let variable = module.global_variables.iter().find(|(_, variable)| variable.binding == Some(at));
    variable.map_or(0, |(_, variable)| u64::from(module.types[variable.ty].inner.size(module.to_ctx())))
}

/// One bound range: block, offset, bytes.
pub(crate) type Bound = (u64, u64, u64);

#[derive(PartialEq, Eq, Hash)]
struct GroupKey {
    layout: u32,
    bound: ArrayVec<Bound, MAX_BINDINGS>,
}

/// Bind groups that were made, by what they bind.
#[derive(Default)]
pub(crate) struct Groups {
    known: Mutex<HashMap<GroupKey, wgpu::BindGroup>>,
}

/// Bind groups that are kept.
const KEPT: usize = 4096;

impl Groups {
    fn lock(&self) -> MutexGuard<'_, HashMap<GroupKey, wgpu::BindGroup>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The group that binds these ranges of these buffers.
    pub(crate) fn get(
        &self,
        device: &wgpu::Device,
        layout: &Layout,
        bound: &ArrayVec<Bound, MAX_BINDINGS>,
        buffers: &ArrayVec<&wgpu::Buffer, MAX_BINDINGS>,
    ) -> wgpu::BindGroup {
        let key = GroupKey { layout: layout.number, bound: bound.clone() };
        let mut known = self.lock();
        if let Some(group) = known.get(&key) {
            return group.clone();
        }
        let entries: ArrayVec<_, MAX_BINDINGS> = buffers
            .iter()
            .zip(bound)
            .enumerate()
            .map(|(i, (buffer, &(_, offset, size)))| wgpu::BindGroupEntry {
                binding: i as u32,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset,
                    size: std::num::NonZeroU64::new(size),
                }),
            })
            .collect();
        let descriptor = wgpu::BindGroupDescriptor { label: None, layout: &layout.group, entries: &entries };
        let group = device.create_bind_group(&descriptor);
        if known.len() >= KEPT {
            known.clear();
        }
        known.insert(key, group.clone());
        group
    }

    /// Lets go of every group that binds a block.
    pub(crate) fn forget(&self, block: u64) {
        self.lock().retain(|key, _| key.bound.iter().all(|&(bound, ..)| bound != block));
    }
}

/// What the driver compiled, kept for the next process where the driver supports it.
struct DiskCache {
    cache: wgpu::PipelineCache,
    path: PathBuf,
    /// Bytes when it was last saved.
    saved: Mutex<usize>,
}

impl DiskCache {
    fn open(device: &wgpu::Device, adapter: &wgpu::AdapterInfo) -> Option<Self> {
        if !device.features().contains(wgpu::Features::PIPELINE_CACHE) {
            return None;
        }
        let path = file::cache_folder()?.join(wgpu::util::pipeline_cache_key(adapter)?);
        let data = std::fs::read(&path).ok();
        // SAFETY: the data comes from `save` below, or from whoever can write to the user's cache folder; wgpu checks
        // its header against the driver, and with `fallback` starts anew if it does not fit.
        let cache = unsafe {
            device.create_pipeline_cache(&wgpu::PipelineCacheDescriptor {
                label: None,
                data: data.as_deref(),
                fallback: true,
            })
        };
        // Not what the file has: a driver that was updated may have taken nothing of it.
        let taken = cache.get_data().map_or(0, |data| data.len());
        Some(Self { cache, path, saved: Mutex::new(taken) })
    }

    /// Writes what there is to the disk, if there is more than before. That it fails harms nobody.
    fn save(&self) {
        let mut saved = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(data) = self.cache.get_data().filter(|data| data.len() > *saved) else { return };
        let write = || -> std::io::Result<()> {
            let folder = self.path.parent().ok_or(std::io::ErrorKind::NotFound)?;
            std::fs::create_dir_all(folder)?;
            file::write(&self.path, |out| out.write_all(&data))
        };
        match write() {
            Ok(()) => *saved = data.len(),
            Err(error) => tracing::debug!(path = %self.path.display(), %error, "the pipeline cache was not saved"),
        }
    }
}
