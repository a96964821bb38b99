//! Memory that host and running programs see at the same time: allocated with Vulkan itself, through wgpu-hal, and
//! bound as a wgpu buffer.

use std::sync::atomic::AtomicU32;

/// Memory that is mapped into the process for as long as it lives.
pub(super) struct HostMemory {
    #[cfg(not(target_vendor = "apple"))]
    inner: vulkan::Mapped,
}

impl HostMemory {
    /// Zeroed memory, and the buffer that it is to programs; or why there is none.
    pub(super) fn allocate(device: &wgpu::Device, words: usize) -> Result<(Self, wgpu::Buffer), String> {
        #[cfg(not(target_vendor = "apple"))]
        {
            let (inner, buffer) = vulkan::allocate(device, words)?;
            Ok((Self { inner }, buffer))
        }
        #[cfg(target_vendor = "apple")]
        {
            let _ = (device, words);
            Err("only Vulkan offers memory that host and device share while a kernel runs".to_owned())
        }
    }

    pub(super) fn words(&self) -> &[AtomicU32] {
        #[cfg(not(target_vendor = "apple"))]
        {
            self.inner.words()
        }
        #[cfg(target_vendor = "apple")]
        {
            &[]
        }
    }
}

#[cfg(not(target_vendor = "apple"))]
mod vulkan {
    use std::{ptr::NonNull, sync::atomic::AtomicU32};

    use ash::vk;
    use wgpu::hal::api::Vulkan;

    pub(super) struct Mapped {
        raw: ash::Device,
        memory: vk::DeviceMemory,
        start: NonNull<AtomicU32>,
        words: usize,
        /// Keeps Vulkan's device, which the memory is part of.
        _device: wgpu::Device,
    }

    // SAFETY: it is memory, reached with atomics only, and freed once.
    unsafe impl Send for Mapped {}
    // SAFETY: as above.
    unsafe impl Sync for Mapped {}

    impl Mapped {
        pub(super) fn words(&self) -> &[AtomicU32] {
            // SAFETY: so many words are mapped there until `self` is dropped, and nobody accesses them but with atomics,
            // except for the device, whose accesses are atomics of its own.
            unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
        }
    }

    impl Drop for Mapped {
        fn drop(&mut self) {
            // SAFETY: the owner waited for all programs to end, or gave the device up and keeps this for ever; the
            // device is the one it was allocated from, and lives. Freeing memory unmaps it.
            unsafe { self.raw.free_memory(self.memory, None) };
        }
    }

    pub(super) fn allocate(device: &wgpu::Device, words: usize) -> Result<(Mapped, wgpu::Buffer), String> {
        let size = words as u64 * 4;
        // SAFETY: the device is only used to create what is ours; nothing of it is destroyed.
        let hal = unsafe { device.as_hal::<Vulkan>() }
            .ok_or("only Vulkan offers memory that host and device share while a kernel runs")?;
        let raw = hal.raw_device().clone();
        let failed = |what: &str, error: vk::Result| format!("{what}: {error}");
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default().size(size).usage(usage);
        // SAFETY: the device lives, and the description is complete.
        let buffer = unsafe { raw.create_buffer(&info, None) }.map_err(|error| failed("no buffer", error))?;
        // SAFETY: the buffer is the device's.
        let needs = unsafe { raw.get_buffer_memory_requirements(buffer) };
        let instance = hal.shared_instance().raw_instance();
        // SAFETY: the physical device belongs to this instance, and both live as long as the device.
        let offers = unsafe { instance.get_physical_device_memory_properties(hal.raw_physical_device()) };
        let wanted = vk::MemoryPropertyFlags::HOST_VISIBLE | vk::MemoryPropertyFlags::HOST_COHERENT;
        let kinds = offers
            .memory_types_as_slice()
            .iter()
            .enumerate()
            .filter(|(i, kind)| needs.memory_type_bits & (1 << i) != 0 && kind.property_flags.contains(wanted));
        // What both sides cache is the fastest to poll.
        let cached = |flags: vk::MemoryPropertyFlags| flags.contains(vk::MemoryPropertyFlags::HOST_CACHED);
        let Some((kind, _)) = kinds.max_by_key(|(_, kind)| cached(kind.property_flags)) else {
            // SAFETY: it is ours and was never used.
            unsafe { raw.destroy_buffer(buffer, None) };
            return Err("the driver has no memory that is visible and coherent to the host".to_owned());
        };
        let wants = vk::MemoryAllocateInfo::default().allocation_size(needs.size).memory_type_index(kind as u32);
        let mapped = || -> Result<(vk::DeviceMemory, NonNull<AtomicU32>), String> {
            // SAFETY: the memory type exists.
            let memory = unsafe { raw.allocate_memory(&wants, None) }.map_err(|error| failed("no memory", error))?;
            // SAFETY: both are the device's and new; the whole memory is mapped once, and zeroed within its size.
            let start = unsafe {
                raw.bind_buffer_memory(buffer, memory, 0)
                    .and_then(|()| raw.map_memory(memory, 0, vk::WHOLE_SIZE, vk::MemoryMapFlags::empty()))
                    .inspect(|&start| std::ptr::write_bytes(start.cast::<u8>(), 0, size as usize))
            };
            let start = start.map_err(|error| failed("the memory cannot be mapped", error));
            match start.map(|start| NonNull::new(start.cast::<AtomicU32>())) {
                Ok(Some(start)) => Ok((memory, start)),
                other => {
                    // SAFETY: it is ours and nothing uses it.
                    unsafe { raw.free_memory(memory, None) };
                    Err(other.err().unwrap_or_else(|| "the memory is mapped nowhere".to_owned()))
                }
            }
        };
        let (memory, start) = mapped().inspect_err(|_| {
            // SAFETY: it is ours and was never used.
            unsafe { raw.destroy_buffer(buffer, None) };
        })?;
        drop(hal);
        let descriptor = wgpu::BufferDescriptor {
            label: Some("resident"),
            size,
            usage: wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        };
        // SAFETY: the buffer was created on this device as described, is zeroed, and is wgpu's from now on; its memory
        // outlives it, see `Drop`.
        let bound = unsafe {
            device.create_buffer_from_hal::<Vulkan>(wgpu::hal::vulkan::Buffer::from_raw(buffer), &descriptor)
        };
        Ok((Mapped { raw, memory, start, words, _device: device.clone() }, bound))
    }
}
