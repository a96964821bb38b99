//! Adapters: which there are, which one is meant, and what they say of themselves.

use std::sync::{Arc, OnceLock};

use millrace_core::{DeviceKind, Engine, Error, Found, Provider, Result};

use crate::device::Gpu;

/// Says which adapter `gpu` means: its number, a part of its name, or its type.
const CHOICE: &str = "MILLRACE_GPU";

/// How bytes get to a device and back.
///
/// ```
/// use millrace_core::Runtime;
/// use millrace_gpu::{GpuProvider, Transfers};
/// assert_eq!(Transfers::default(), Transfers::Best);
/// for transfers in [Transfers::Best, Transfers::Staged] {
///     let runtime = Runtime::new(vec![Box::new(GpuProvider::with_transfers(transfers))]);
///     let Ok(device) = runtime.open("gpu") else { continue }; // where there is none
///     let (stream, buffer) = (device.stream()?, device.allocate(4)?);
///     stream.run(buffer.write(0, &b"mill"[..]))?;
///     assert_eq!(&*stream.run(buffer.read(..))?, b"mill", "the same either way");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Transfers {
    /// In place where host and device share their memory, and by staging elsewhere.
    #[default]
    Best,
    /// Always by staging: what a device with memory of its own needs, on any device.
    Staged,
}

/// The devices that wgpu reaches. `gpu:0` is the first; `gpu` is that one, or what the environment variable
/// `MILLRACE_GPU` says: a number, a part of the name, or a type (`discrete`, `integrated`, `virtual`, `software`).
/// The same can be said in the id: `gpu:radeon`.
///
/// ```
/// use millrace_core::{Provider, Runtime};
/// use millrace_gpu::GpuProvider;
/// for found in GpuProvider::default().list() {
///     println!("{}: {}", found.id, found.unavailable.as_deref().unwrap_or(&found.name));
/// }
/// let runtime = Runtime::new(vec![Box::new(GpuProvider::default())]);
/// if let Ok(device) = runtime.open("gpu") {
///     let (stream, buffer) = (device.stream()?, device.allocate(4)?);
///     stream.enqueue(buffer.fill(.., 7))?;
///     assert_eq!(*stream.run(buffer.read(..))?, [7; 4]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct GpuProvider {
    transfers: Transfers,
    /// What there is, found out once. A device that is opened gets an instance of its own.
    adapters: OnceLock<Vec<wgpu::Adapter>>,
}

impl GpuProvider {
    /// Devices that move bytes in this way.
    ///
    /// ```
    /// use millrace_core::Provider;
    /// use millrace_gpu::{GpuProvider, Transfers};
    /// let staged = GpuProvider::with_transfers(Transfers::Staged);
    /// assert_eq!(staged.list().len(), GpuProvider::default().list().len(), "the same devices, or the same reason");
    /// ```
    pub fn with_transfers(transfers: Transfers) -> Self {
        Self { transfers, adapters: OnceLock::new() }
    }

    fn adapters(&self) -> &[wgpu::Adapter] {
        self.adapters.get_or_init(enumerate)
    }
}

impl Provider for GpuProvider {
    fn list(&self) -> Vec<Found> {
        let adapters = self.adapters();
        if adapters.is_empty() {
            let reason = "no adapter found: no driver for Vulkan, Metal, DX12 or GL is installed (on Debian without a \
                          GPU, the package mesa-vulkan-drivers has one in software)";
            return vec![Found {
                id: DeviceKind::Gpu.name().to_owned(),
                kind: DeviceKind::Gpu,
                name: "none".to_owned(),
                unavailable: Some(reason.to_owned()),
            }];
        }
        let found = adapters.iter().enumerate().map(|(i, adapter)| Found {
            id: format!("gpu:{i}"),
            kind: DeviceKind::Gpu,
            name: adapter.get_info().name,
            unavailable: unusable(adapter),
        });
        found.collect()
    }

    fn find(&self, wanted: &str) -> Option<String> {
        let choice = match wanted.split_once(':') {
            None if wanted == DeviceKind::Gpu.name() => std::env::var(CHOICE).ok(),
            Some((kind, choice)) if kind == DeviceKind::Gpu.name() => Some(choice.to_owned()),
            _ => return None,
        };
        let adapters = self.adapters();
        let usable = || adapters.iter().enumerate().filter(|(_, adapter)| unusable(adapter).is_none());
        let Some(choice) = choice.filter(|choice| !choice.is_empty()) else {
            return usable().map(|(i, _)| format!("gpu:{i}")).next();
        };
        let lower = choice.to_lowercase();
        let meant = |(i, adapter): &(usize, &wgpu::Adapter)| {
            let info = adapter.get_info();
            match choice.parse::<usize>() {
                Ok(number) => *i == number,
                Err(_) => info.name.to_lowercase().contains(&lower) || type_name(info.device_type) == lower,
            }
        };
        let found = usable().find(meant).map(|(i, _)| format!("gpu:{i}"));
        // Whoever means one that is not there is told by `open` which there are.
        found.or_else(|| (!adapters.is_empty()).then(|| wanted.to_owned()))
    }

    fn open(&self, id: &str) -> Result<Engine> {
        let number = id.strip_prefix("gpu:").and_then(|number| number.parse::<usize>().ok());
        let adapters = enumerate();
        let adapter = number.and_then(|number| adapters.get(number)).filter(|adapter| unusable(adapter).is_none());
        let Some(adapter) = adapter else {
            return Err(Error::NoSuchDevice { wanted: id.into(), known: known(id, &adapters).into() });
        };
        Ok(Engine::Queued(Arc::new(Gpu::open(adapter, id, self.transfers)?)))
    }
}

/// What there is instead of the device that was wanted, and who wanted it if that was the environment.
fn known(wanted: &str, adapters: &[wgpu::Adapter]) -> String {
    let chosen = std::env::var(CHOICE).ok().filter(|_| wanted == DeviceKind::Gpu.name());
    let chosen = chosen.map(|choice| format!("{CHOICE} is {choice:?}, and ")).unwrap_or_default();
    let each = adapters.iter().enumerate().map(|(i, adapter)| {
        let info = adapter.get_info();
        let reason = unusable(adapter).map(|reason| format!(", but {reason}")).unwrap_or_default();
        format!("gpu:{i} ({}, {}{reason})", info.name, type_name(info.device_type))
    });
    let each: Vec<_> = each.collect();
    format!("{chosen}there is {}", if each.is_empty() { "none any more".to_owned() } else { each.join(", ") })
}

/// All adapters, the most capable first. Each call makes an instance of its own.
pub(crate) fn enumerate() -> Vec<wgpu::Adapter> {
    // GL is a second way to devices that Vulkan, Metal or DX12 reach as well, so it is asked only if they found none.
    for backends in [wgpu::Backends::PRIMARY, wgpu::Backends::GL] {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = backends;
        descriptor.flags = wgpu::InstanceFlags::empty();
        let instance = wgpu::Instance::new(descriptor);
        let mut adapters = pollster::block_on(instance.enumerate_adapters(backends));
        if !adapters.is_empty() {
            adapters.sort_by_key(|adapter| rank(adapter.get_info().device_type));
            return adapters;
        }
    }
    Vec::new()
}

fn rank(kind: wgpu::DeviceType) -> u8 {
    match kind {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    }
}

pub(crate) fn type_name(kind: wgpu::DeviceType) -> &'static str {
    match kind {
        wgpu::DeviceType::DiscreteGpu => "discrete",
        wgpu::DeviceType::IntegratedGpu => "integrated",
        wgpu::DeviceType::VirtualGpu => "virtual",
        wgpu::DeviceType::Cpu => "software",
        wgpu::DeviceType::Other => "other",
    }
}

/// Why an adapter cannot be used, if it cannot.
fn unusable(adapter: &wgpu::Adapter) -> Option<String> {
    let missing = |what: &str| Some(format!("the driver has no {what}"));
    if !adapter.get_downlevel_capabilities().flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS) {
        return missing("compute shaders");
    }
    if !adapter.features().contains(wgpu::Features::IMMEDIATES) {
        return missing("immediate data (push constants)");
    }
    None
}

/// Bytes of memory that are the device's own, or that it shares with the host.
pub(crate) fn memory(adapter: &wgpu::Adapter) -> Option<u64> {
    #[cfg(not(target_vendor = "apple"))]
    {
        // SAFETY: the adapter is only asked, and nothing of it is kept or destroyed.
        let vulkan = unsafe { adapter.as_hal::<wgpu::hal::api::Vulkan>() }?;
        let instance = vulkan.shared_instance().raw_instance();
        // SAFETY: the physical device belongs to this instance, and both live as long as the adapter.
        let heaps = unsafe { instance.get_physical_device_memory_properties(vulkan.raw_physical_device()) };
        let own = |heap: &&ash::vk::MemoryHeap| heap.flags.contains(ash::vk::MemoryHeapFlags::DEVICE_LOCAL);
        Some(heaps.memory_heaps_as_slice().iter().filter(own).map(|heap| heap.size).sum()).filter(|&bytes| bytes > 0)
    }
    #[cfg(target_vendor = "apple")]
    {
        let _ = adapter;
        None
    }
}
