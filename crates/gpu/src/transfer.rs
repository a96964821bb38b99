//! Transfers as the device sees them. Its own copies and clears know whole words only; for the rest there are two small
//! kernels.

use std::{ops::Range, sync::OnceLock};

use arrayvec::ArrayVec;
use millrace_core::{Access, Error, KernelSpec, Result};

use crate::{batch::GpuBatch, compile::Pipeline, device::Shared};

const GROUP: u32 = 64;
/// The widest row of groups.
const ROW: u32 = 32768;
/// Bytes that one launch of a kernel covers: less than any device's largest binding.
const WINDOW: u64 = 64 << 20;

#[derive(Default)]
pub(crate) struct ByteKernels {
    copy: OnceLock<Pipeline>,
    fill: OnceLock<Pipeline>,
}

impl ByteKernels {
    fn get<'a>(of: &'a OnceLock<Pipeline>, shared: &Shared, spec: impl FnOnce() -> KernelSpec) -> Result<&'a Pipeline> {
        if let Some(pipeline) = of.get() {
            return Ok(pipeline);
        }
        let pipeline = shared.compiler.compile(&shared.device, &spec())?;
        Ok(of.get_or_init(|| pipeline))
    }

    fn copy<'a>(&'a self, shared: &Shared) -> Result<&'a Pipeline> {
        Self::get(&self.copy, shared, || {
            KernelSpec::new("copy_bytes")
                .binding::<u32>("to", Access::ReadWrite)
                .binding::<u32>("from", Access::Read)
                .params::<[u32; 4]>()
                .block(GROUP)
                .wgsl(include_str!("copy_bytes.wgsl"))
        })
    }

    fn fill<'a>(&'a self, shared: &Shared) -> Result<&'a Pipeline> {
        Self::get(&self.fill, shared, || {
            KernelSpec::new("fill_bytes")
                .binding::<u32>("to", Access::ReadWrite)
                .params::<[u32; 4]>()
                .block(GROUP)
                .wgsl(include_str!("fill_bytes.wgsl"))
        })
    }
}

/// A buffer and the number that names it among bind groups.
pub(crate) type Place<'a> = (&'a wgpu::Buffer, u64);

fn is_word(n: u64) -> bool {
    n.is_multiple_of(4)
}

impl GpuBatch {
    /// Copies bytes between two buffers. With `spill`, up to three bytes behind the target's may be overwritten.
    pub(crate) fn copy_range(
        &mut self,
        from: Place<'_>,
        source: u64,
        to: Place<'_>,
        target: Range<u64>,
        spill: bool,
    ) -> Result<()> {
        let len = target.end - target.start;
        if is_word(source) && is_word(target.start) && (is_word(len) || spill) {
            self.encoder().copy_buffer_to_buffer(from.0, source, to.0, target.start, len.next_multiple_of(4));
            return Ok(());
        }
        let shared = self.shared().clone();
        let pipeline = shared.bytes.copy(&shared)?;
        for window in windows(target.clone()) {
            let read = source + (window.start - target.start);
            let (to_base, from_base) = (align_down(&shared, window.start), align_down(&shared, read));
            let len = window.end - window.start;
            let params = [window.start - to_base, read - from_base, len, 0];
            let bound = [(to, to_base, window.end), (from, from_base, read + len)];
            self.run_on_bytes(pipeline, &bound, params, &window)?;
        }
        Ok(())
    }

    /// Sets bytes of a buffer.
    pub(crate) fn fill_range(&mut self, to: Place<'_>, target: Range<u64>, value: u8, spill: bool) -> Result<()> {
        let len = target.end - target.start;
        if len == 0 {
            return Ok(());
        }
        if value == 0 && is_word(target.start) && (is_word(len) || spill) {
            self.encoder().clear_buffer(to.0, target.start, Some(len.next_multiple_of(4)));
            return Ok(());
        }
        let shared = self.shared().clone();
        let pipeline = shared.bytes.fill(&shared)?;
        for window in windows(target) {
            let base = align_down(&shared, window.start);
            let value = u64::from(u32::from(value) * 0x0101_0101);
            let params = [window.start - base, window.end - window.start, value, 0];
            self.run_on_bytes(pipeline, &[(to, base, window.end)], params, &window)?;
        }
        Ok(())
    }

    /// Launches one of the kernels over a window of the target. The last parameter is set here.
    fn run_on_bytes(
        &mut self,
        pipeline: &Pipeline,
        bound: &[(Place<'_>, u64, u64)],
        params: [u64; 4],
        window: &Range<u64>,
    ) -> Result<()> {
        let words = window.end.div_ceil(4) - window.start / 4;
        let groups = words.div_ceil(u64::from(GROUP)) as u32;
        let (x, y) = (groups.min(ROW), groups.div_ceil(ROW));
        let mut params = params.map(|n| n as u32); // windows are small
        params[3] = x * GROUP;
        let mut ranges = ArrayVec::new();
        let mut buffers = ArrayVec::new();
        for &((buffer, id), base, end) in bound {
            ranges.push((id, base, (end - base).next_multiple_of(4)));
            buffers.push(buffer);
        }
        if ranges.iter().any(|&(_, _, size)| size > self.shared().limits.max_storage_buffer_binding_size) {
            return Err(Error::Device("a transfer that is not of whole words is beyond the largest binding".into()));
        }
        self.dispatch(pipeline, &ranges, &buffers, bytemuck::bytes_of(&params), [x, y, 1]);
        Ok(())
    }
}

fn windows(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = (range.start / WINDOW * WINDOW..range.end).step_by(WINDOW as usize);
    starts.map(move |start| start.max(range.start)..(start + WINDOW).min(range.end))
}

/// The last place at or before `offset` where a binding can start.
fn align_down(shared: &Shared, offset: u64) -> u64 {
    let align = u64::from(shared.limits.min_storage_buffer_offset_alignment).max(4);
    offset / align * align
}
