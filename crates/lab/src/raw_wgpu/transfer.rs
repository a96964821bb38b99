//! Bytes to the GPU and back.

use super::{Raw, failed};
use crate::Result;

const UP: wgpu::BufferUsages = wgpu::BufferUsages::MAP_WRITE.union(wgpu::BufferUsages::COPY_SRC);
const DOWN: wgpu::BufferUsages = wgpu::BufferUsages::MAP_READ.union(wgpu::BufferUsages::COPY_DST);

/// What arrived: one byte of every page, added up, and the last byte. So every page was really there.
pub(crate) fn touch(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(4096).chain(bytes.last()).map(|byte| u64::from(*byte)).sum()
}

/// Transfers through two staging buffers that are used again and again.
#[derive(Debug)]
pub struct Staged {
    raw: Raw,
    data: wgpu::Buffer,
    /// Mapped, except during an upload.
    up: wgpu::Buffer,
    down: wgpu::Buffer,
    /// The last word of `data`, as the GPU has it.
    proof: wgpu::Buffer,
}

impl Staged {
    /// A buffer of so many bytes on the GPU, and its staging buffers.
    pub fn new(raw: &Raw, bytes: u64) -> Result<Self> {
        let staged = Self {
            raw: raw.clone(),
            data: raw.buffer(bytes, wgpu::BufferUsages::empty()),
            up: raw.host_buffer(bytes, UP),
            down: raw.host_buffer(bytes, DOWN),
            proof: raw.host_buffer(4, DOWN),
        };
        staged.up.map_async(wgpu::MapMode::Write, .., |_| ());
        raw.wait()?;
        Ok(staged)
    }

    /// Copies bytes to the GPU, and answers with their last word as it came back from there.
    pub fn upload(&mut self, bytes: &[u8]) -> Result<u32> {
        self.up.get_mapped_range_mut(..).map_err(failed)?.copy_from_slice(bytes);
        self.up.unmap();
        let mut encoder = self.raw.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&self.up, 0, &self.data, 0, bytes.len() as u64);
        encoder.copy_buffer_to_buffer(&self.data, bytes.len() as u64 - 4, &self.proof, 0, 4);
        self.raw.queue.submit([encoder.finish()]);
        // The wait that sees the copies done also maps both.
        self.up.map_async(wgpu::MapMode::Write, .., |_| ());
        self.proof.map_async(wgpu::MapMode::Read, .., |_| ());
        self.raw.wait()?;
        let word = bytemuck::pod_read_unaligned(&self.proof.get_mapped_range(..).map_err(failed)?);
        self.proof.unmap();
        Ok(word)
    }

    /// Gets the bytes from the GPU, and answers with a sum of some of them.
    pub fn download(&mut self) -> Result<u64> {
        let mut encoder = self.raw.device.create_command_encoder(&Default::default());
        encoder.copy_buffer_to_buffer(&self.data, 0, &self.down, 0, self.data.size());
        self.raw.queue.submit([encoder.finish()]);
        self.down.map_async(wgpu::MapMode::Read, .., |_| ());
        self.raw.wait()?;
        let sum = touch(&self.down.get_mapped_range(..).map_err(failed)?);
        self.down.unmap();
        Ok(sum)
    }
}

/// Transfers to and from a buffer that the host can map, where there is such a thing: no staging, no copy by the GPU.
#[derive(Debug)]
pub struct Mapped {
    raw: Raw,
    data: wgpu::Buffer,
}

impl Mapped {
    /// A buffer of so many bytes; `None` if the adapter does not offer it.
    pub fn new(raw: &Raw, bytes: u64) -> Option<Self> {
        let both = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::MAP_WRITE;
        raw.maps_primary().then(|| Self { raw: raw.clone(), data: raw.buffer(bytes, both) })
    }

    /// Copies bytes into the buffer, and answers with their last word as it is there.
    pub fn upload(&mut self, bytes: &[u8]) -> Result<u32> {
        self.data.map_async(wgpu::MapMode::Write, .., |_| ());
        self.raw.wait()?;
        self.data.get_mapped_range_mut(..).map_err(failed)?.copy_from_slice(bytes);
        self.data.unmap();
        let last = bytes.len() as u64 - 4;
        // Mappings begin at multiples of eight bytes.
        self.data.map_async(wgpu::MapMode::Read, last - 4.., |_| ());
        self.raw.wait()?;
        let words: [u32; 2] = bytemuck::pod_read_unaligned(&self.data.get_mapped_range(last - 4..).map_err(failed)?);
        self.data.unmap();
        Ok(words[1])
    }

    /// Reads the buffer in place, and answers with a sum of some of it.
    pub fn download(&mut self) -> Result<u64> {
        self.data.map_async(wgpu::MapMode::Read, .., |_| ());
        self.raw.wait()?;
        let sum = touch(&self.data.get_mapped_range(..).map_err(failed)?);
        self.data.unmap();
        Ok(sum)
    }
}
