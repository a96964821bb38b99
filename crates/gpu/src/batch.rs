//! Batches: commands become one encoder, one compute pass as far as possible, and one submission.

use std::{
    ops::Range,
    sync::{Arc, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use arrayvec::ArrayVec;
use millrace_core::{
    Access, Batch, Buffer, BufferSlice, Command, Copy, Error, Fill, LaunchBody, MAX_BINDINGS, Memory, Read, Recorded,
    Result, Submission, Write,
};

use crate::{
    compile::{Bound, Pipeline},
    device::{GpuBlock, Shared, error_of},
    staging::{Download, Mapped, Upload},
    submission::{GpuSubmission, ReadBack, Work},
    timing::{Stamps, Timing},
    transfer::Place,
};

/// A batch that is being recorded.
pub(crate) struct GpuBatch {
    shared: Arc<Shared>,
    /// Blocks remember the last batch they had to do with.
    number: u64,
    encoder: Option<wgpu::CommandEncoder>,
    /// The pass that is open, and the pipeline that is set in it.
    pass: Option<(wgpu::ComputePass<'static>, usize)>,
    work: Work,
    uploads: Vec<Upload>,
    downloads: Vec<Arc<Download>>,
    reads: Vec<ReadBack>,
    /// What is going to be written that never was. If it is not written after all, it has to become zero.
    promised: Vec<Promise>,
    /// While a profile is on.
    timing: Option<Timing>,
}

/// Bytes of a buffer's memory, which may still have what was there before the buffer's time.
struct Promise {
    memory: Arc<Memory>,
    range: Range<usize>,
    /// Up to three bytes behind them are nobody's.
    spill: bool,
}

/// The block of a buffer's memory.
pub(crate) fn block_of(memory: &Memory) -> Result<&GpuBlock> {
    memory.block().downcast().ok_or(Error::WrongDevice { what: "buffer" })
}

fn wide(range: &Range<usize>) -> Range<u64> {
    range.start as u64..range.end as u64
}

impl GpuBatch {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let number = shared.batches.fetch_add(1, Ordering::Relaxed) + 1;
        Self {
            shared,
            number,
            encoder: None,
            pass: None,
            work: Work::default(),
            uploads: Vec::new(),
            downloads: Vec::new(),
            reads: Vec::new(),
            promised: Vec::new(),
            timing: None,
        }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The encoder, outside of any pass.
    pub(crate) fn encoder(&mut self) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        let encoder = self.encoder.get_or_insert_with(|| self.shared.encoder());
        if let Some(timing) = &mut self.timing {
            timing.before_encoding(encoder);
        }
        encoder
    }

    fn open_pass(&mut self) -> wgpu::ComputePass<'static> {
        let timed = self.timing.as_mut().filter(|_| self.shared.stamps == Stamps::Passes);
        let Some(timing) = timed else {
            return self.encoder().begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime();
        };
        let timestamp_writes = timing.before_pass();
        let encoder = self.encoder.get_or_insert_with(|| self.shared.encoder());
        encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes }).forget_lifetime()
    }

    pub(crate) fn dispatch(
        &mut self,
        pipeline: &Pipeline,
        bound: &ArrayVec<Bound, MAX_BINDINGS>,
        buffers: &ArrayVec<&wgpu::Buffer, MAX_BINDINGS>,
        params: &[u8],
        groups: [u32; 3],
    ) {
        let shared = self.shared.clone();
        let group = shared.groups.get(&shared.device, &pipeline.layout, bound, buffers);
        if self.pass.is_none() {
            self.pass = Some((self.open_pass(), 0));
        }
        let Some((pass, set)) = &mut self.pass else { unreachable!("it was opened a moment ago") };
        if let Some(timing) = &mut self.timing {
            timing.before_dispatch(pass);
        }
        let this = std::ptr::from_ref(pipeline).addr();
        if *set != this {
            pass.set_pipeline(&pipeline.pipeline);
            *set = this;
        }
        pass.set_bind_group(0, &group, &[]);
        if !params.is_empty() {
            pass.set_immediates(0, params);
        }
        pass.dispatch_workgroups(groups[0], groups[1], groups[2]);
        let first = !pipeline.used.load(Ordering::Relaxed) && !pipeline.used.swap(true, Ordering::Relaxed);
        self.work.add(groups.iter().map(|&count| u64::from(count)).product(), first);
    }

    /// Notes that this batch has to do with a block.
    fn touch(&self, block: &GpuBlock) {
        block.touched.store(self.number, Ordering::Relaxed);
    }

    /// Whether the host may get at a block's bytes: nothing that was recorded has to do with it and has not run.
    fn is_idle(&self, block: &GpuBlock) -> bool {
        self.shared.mappable && block.touched.load(Ordering::Relaxed) <= self.shared.landed.load(Ordering::Acquire)
    }

    /// A block is about to be written: what was read of it before is saved.
    fn before_write(&mut self, block: &GpuBlock) -> Result<()> {
        for i in 0..self.reads.len() {
            if let ReadBack::InPlace { memory, range } = &self.reads[i]
                && block_of(memory)?.id == block.id
            {
                let range = range.clone();
                self.reads[i] = self.stage(block, &range)?;
            }
        }
        Ok(())
    }

    /// Copies bytes of a block to where the host will see them.
    fn stage(&mut self, block: &GpuBlock, range: &Range<usize>) -> Result<ReadBack> {
        let words = (range.start as u64 / 4 * 4)..(range.end as u64).next_multiple_of(4);
        let bytes = words.end - words.start;
        let at = if let Some(at) = self.downloads.last().and_then(|piece| piece.reserve(bytes)) {
            at
        } else {
            let piece = self.shared.downloads.take(&self.shared.device, bytes)?;
            let at = piece.reserve(bytes).unwrap_or(0); // it is new and large enough
            self.downloads.push(Arc::new(piece));
            at
        };
        let piece = self.downloads[self.downloads.len() - 1].clone();
        self.encoder().copy_buffer_to_buffer(&block.buffer, words.start, &piece.buffer, at, bytes);
        let skip = range.start % 4;
        Ok(ReadBack::Staged { piece, range: at..at + bytes, within: skip..skip + range.len() })
    }

    /// Lets the host write to an idle block; false if it cannot.
    fn write_in_place(
        &self,
        block: &GpuBlock,
        range: &Range<usize>,
        put: impl FnOnce(wgpu::WriteOnly<'_, [u8]>),
    ) -> bool {
        let start = range.start / 8 * 8;
        let end = range.end.next_multiple_of(4);
        let bounds = start as u64..end as u64;
        if !map_now(&self.shared, &block.buffer, wgpu::MapMode::Write, bounds.clone(), Duration::ZERO) {
            return false;
        }
        if let Ok(mut view) = block.buffer.get_mapped_range_mut(bounds) {
            put(view.slice(range.start - start..range.end - start));
            drop(view);
            block.buffer.unmap();
            true
        } else {
            block.buffer.unmap();
            false
        }
    }

    /// Makes a range of a buffer ready to be read or written, as [`Buffer::prepare`] says, and gives its memory.
    fn prepare(&mut self, buffer: &Buffer, range: &Range<usize>, overwrite: bool) -> Result<Arc<Memory>> {
        let mut storage = buffer.storage().write().unwrap_or_else(PoisonError::into_inner);
        buffer.refresh(&mut storage);
        let known = storage.defined();
        let undefined = buffer.prepare(&mut storage, range, overwrite);
        let (defined, memory) = (storage.defined(), storage.memory().clone());
        drop(storage);
        if defined != known {
            let new =
                if known.is_empty() { [defined, 0..0] } else { [defined.start..known.start, known.end..defined.end] };
            for range in new.into_iter().filter(|range| !range.is_empty()) {
                let spill = range.end == buffer.len();
                self.promised.push(Promise { memory: memory.clone(), range, spill });
            }
        }
        for zero in undefined.into_iter().filter(|zero| !zero.is_empty()) {
            self.fill_block(block_of(&memory)?, &zero, 0, zero.end == buffer.len())?;
        }
        Ok(memory)
    }

    fn fill_block(&mut self, block: &GpuBlock, range: &Range<usize>, value: u8, spill: bool) -> Result<()> {
        if self.is_idle(block) && self.write_in_place(block, range, |mut bytes| bytes.fill(value)) {
            return Ok(());
        }
        self.before_write(block)?;
        self.touch(block);
        self.fill_range(place(block), wide(range), value, spill)
    }

    fn write(&mut self, write: &Write) -> Result<Recorded> {
        let (buffer, range) = (write.to.buffer(), write.to.range());
        if range.is_empty() {
            return Ok(Recorded::Done);
        }
        let memory = self.prepare(buffer, &range, true)?;
        let block = block_of(&memory)?;
        if self.is_idle(block) && self.write_in_place(block, &range, |mut to| to.copy_from_slice(&write.data)) {
            return Ok(Recorded::Done);
        }
        self.before_write(block)?;
        self.touch(block);
        let (piece, at) = self.upload(&write.data)?;
        let spill = range.end == buffer.len();
        let target = wide(&range);
        let words = target.start.is_multiple_of(4) && (target.end.is_multiple_of(4) || spill);
        if words {
            self.copy_range((&piece, 0), at, place(block), target, spill)?;
        } else {
            // The kernel cannot read upload memory.
            let scratch = self.shared.scratch(write.data.len() as u64)?;
            let bytes = (write.data.len() as u64).next_multiple_of(4);
            self.copy_range((&piece, 0), at, (&scratch.buffer, scratch.id), 0..bytes, true)?;
            self.copy_range((&scratch.buffer, scratch.id), 0, place(block), target, spill)?;
        }
        Ok(Recorded::Done)
    }

    /// Puts bytes into upload memory; says where.
    fn upload(&mut self, data: &[u8]) -> Result<(wgpu::Buffer, u64)> {
        if let Some(piece) = self.uploads.last_mut()
            && let Some(at) = piece.write(data)
        {
            return Ok((piece.buffer.clone(), at));
        }
        let mut piece = self.shared.uploads.take(&self.shared.device, data.len() as u64)?;
        let at = piece.write(data).ok_or(Error::SystemMemory(data.len() as u64))?;
        let buffer = piece.buffer.clone();
        self.uploads.push(piece);
        Ok((buffer, at))
    }

    fn read(&mut self, read: &Read) -> Result<Recorded> {
        let (buffer, range) = (read.from.buffer(), read.from.range());
        let memory = self.prepare(buffer, &range, false)?;
        let block = block_of(&memory)?;
        let back = if range.is_empty() {
            ReadBack::Nothing
        } else if self.shared.reads_in_place() {
            self.touch(block);
            ReadBack::InPlace { memory, range }
        } else {
            self.touch(block);
            self.stage(block, &range)?
        };
        self.reads.push(back);
        Ok(Recorded::Read(self.reads.len() - 1))
    }

    fn copy(&mut self, copy: &Copy) -> Result<Recorded> {
        let (source, target) = (copy.from.range(), copy.to.range());
        if source.is_empty() {
            return Ok(Recorded::Done);
        }
        // The source must be readable before the target is declared to be.
        let from = self.prepare(copy.from.buffer(), &source, false)?;
        let to = self.prepare(copy.to.buffer(), &target, true)?;
        let (from, to) = (block_of(&from)?, block_of(&to)?);
        self.before_write(to)?;
        self.touch(from);
        self.touch(to);
        let spill = target.end == copy.to.buffer().len();
        if from.id != to.id {
            self.copy_range(place(from), source.start as u64, place(to), wide(&target), spill)?;
            return Ok(Recorded::Done);
        }
        // A buffer is not copied to itself by the device.
        let start = source.start as u64 / 4 * 4;
        let bytes = (source.end as u64).next_multiple_of(4) - start;
        let scratch = self.shared.scratch(bytes)?;
        let scratch = (&scratch.buffer, scratch.id);
        self.copy_range(place(from), start, scratch, 0..bytes, false)?;
        self.copy_range(scratch, source.start as u64 - start, place(to), wide(&target), spill)?;
        Ok(Recorded::Done)
    }

    fn fill(&mut self, fill: &Fill) -> Result<Recorded> {
        let (buffer, range) = (fill.to.buffer(), fill.to.range());
        if !range.is_empty() {
            let memory = self.prepare(buffer, &range, true)?;
            self.fill_block(block_of(&memory)?, &range, fill.value, range.end == buffer.len())?;
        }
        Ok(Recorded::Done)
    }

    fn launch(&mut self, body: &LaunchBody) -> Result<Recorded> {
        let kernel = body.kernel();
        let spec = kernel.spec();
        let Some(pipeline) = kernel.code().downcast_ref::<Pipeline>() else {
            return Err(Error::WrongDevice { what: "kernel" });
        };
        if body.block() != spec.block_size() {
            let (groups, block) = (body.grid().to_array(), body.block().to_array());
            return Err(Error::Geometry { groups, block });
        }
        let limits = &self.shared.limits;
        let align = limits.min_storage_buffer_offset_alignment as usize;
        let most = limits.max_storage_buffer_binding_size;
        // All of them before anything is promised.
        for (i, slice) in body.bindings().iter().enumerate() {
            let (range, bytes, least) = (slice.range(), bound_bytes(slice), pipeline.least[i]);
            if range.start % align != 0 {
                return Err(Error::Misaligned { value: range.start as u64, align: align as u64 });
            }
            if bytes < least || bytes > most {
                let (kernel, given) = (spec.name().clone(), range.len() as u64);
                return Err(Error::BindingSize { kernel, binding: i, given, least, most });
            }
        }
        let mut memories: ArrayVec<Arc<Memory>, MAX_BINDINGS> = ArrayVec::new();
        let mut bound = ArrayVec::new();
        for (slice, binding) in body.bindings().iter().zip(spec.bindings()) {
            let (range, bytes) = (slice.range(), bound_bytes(slice));
            let memory = self.prepare(slice.buffer(), &range, binding.access == Access::Overwrite)?;
            let block = block_of(&memory)?;
            if binding.access.writes() {
                self.before_write(block)?;
            }
            self.touch(block);
            bound.push((block.id, range.start as u64, bytes));
            memories.push(memory);
        }
        let mut buffers = ArrayVec::new();
        for memory in &memories {
            buffers.push(&block_of(memory)?.buffer);
        }
        self.dispatch(pipeline, &bound, &buffers, body.params(), body.grid().to_array());
        Ok(Recorded::Done)
    }

    /// What was promised from there on will not be written: it becomes zero, as if nobody had wanted to.
    fn break_promises(&mut self, from: usize) {
        for Promise { memory, range, spill } in self.promised.split_off(from) {
            let cleared = block_of(&memory).and_then(|block| self.fill_block(block, &range, 0, spill));
            if let Err(error) = cleared {
                // Nobody must see what is there.
                self.shared.lose(format!("memory that was not written cannot be cleared: {error}"));
            }
        }
    }

    fn record_untimed(&mut self, command: &Command) -> Result<Recorded> {
        match command {
            Command::Write(write) => self.write(write),
            Command::Read(read) => self.read(read),
            Command::Copy(copy) => self.copy(copy),
            Command::Fill(fill) => self.fill(fill),
            Command::Launch(launch) => self.launch(launch.body()),
            other => Err(Error::Invalid(format!("{:?} is not for a backend", other.kind()).into())),
        }
    }
}

/// What a binding is for the driver: whole words, and never nothing.
fn bound_bytes(slice: &BufferSlice) -> u64 {
    (slice.len() as u64).next_multiple_of(4).max(4)
}

fn place(block: &GpuBlock) -> Place<'_> {
    (&block.buffer, block.id)
}

/// Maps a buffer that nothing uses; false if that did not work, or not in time.
pub(crate) fn map_now(
    shared: &Shared,
    buffer: &wgpu::Buffer,
    mode: wgpu::MapMode,
    range: Range<u64>,
    patience: Duration,
) -> bool {
    let mapped = Arc::<Mapped>::default();
    buffer.map_async(mode, range, mapped.setter());
    let there = mapped.comes(shared, patience);
    if !there {
        buffer.unmap(); // it is not to come later
    }
    there
}

impl Batch for GpuBatch {
    fn record(&mut self, command: &Command) -> Result<Recorded> {
        let before = self.promised.len();
        let recorded = self.record_untimed(command);
        if recorded.is_err() {
            self.break_promises(before);
        }
        if let Some(timing) = &mut self.timing {
            timing.after_command(recorded.is_ok(), self.pass.as_mut().map(|(pass, _)| pass), self.encoder.as_mut());
            if self.shared.stamps == Stamps::Passes {
                self.pass = None; // the next one has its own
            }
        }
        recorded
    }

    fn time_commands(&mut self) {
        self.timing = Timing::new(&self.shared);
    }

    fn submit(self: Box<Self>) -> Result<Box<dyn Submission>> {
        let Self { shared, number, mut encoder, pass, work, uploads, downloads, reads, promised, timing } = *self;
        drop(pass);
        if let (Some(timing), Some(encoder)) = (&timing, &mut encoder) {
            timing.resolve(encoder);
        }
        let uploads: Vec<_> = uploads.into_iter().map(Upload::close).collect();
        let submitted = encoder.map(|encoder| shared.hand_over(encoder)).transpose();
        uploads.into_iter().for_each(|piece| shared.uploads.take_back(piece));
        downloads.iter().for_each(|piece| piece.map());
        shared.check()?;
        let index = submitted.map_err(|error| {
            shared.clear(promised);
            Error::Device(error.to_string().into())
        })?;
        let times = timing.map(Timing::close);
        Ok(Box::new(GpuSubmission::new(shared, number, index, reads, work, times)))
    }
}

/// Memory of the device for intermediate results of transfers.
pub(crate) struct Scratch {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) id: u64,
}

impl Shared {
    /// After a batch was refused: what it had promised to write becomes zero.
    fn clear(self: &Arc<Self>, promised: Vec<Promise>) {
        let mut batch = GpuBatch::new(self.clone());
        batch.promised = promised;
        batch.break_promises(0);
        batch.pass = None;
        if let Some(encoder) = batch.encoder.take()
            && let Err(error) = self.hand_over(encoder)
        {
            self.lose(format!("memory that was not written cannot be cleared: {error}"));
        }
    }

    fn spare(&self) -> MutexGuard<'_, Option<wgpu::CommandEncoder>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn new_encoder(&self) -> wgpu::CommandEncoder {
        self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default())
    }

    fn encoder(&self) -> wgpu::CommandEncoder {
        let spare = self.spare().take();
        spare.unwrap_or_else(|| self.new_encoder())
    }

    /// Makes what the next batch begins with, for one who has to wait anyway.
    pub(crate) fn prepare_encoder(&self) {
        self.spare().get_or_insert_with(|| self.new_encoder());
    }

    /// Submits what was recorded. What a command did wrong, or an encoder, is a validation error here; whatever else goes wrong
    /// loses the device, so nothing else is asked for.
    fn hand_over(&self, encoder: wgpu::CommandEncoder) -> Result<wgpu::SubmissionIndex, wgpu::Error> {
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let index = self.queue.submit([encoder.finish()]);
        error_of(scope).map_or(Ok(index), Err)
    }

    /// Scratch memory of at least so many bytes. Commands run in order, so all of them can use the same.
    pub(crate) fn scratch(&self, bytes: u64) -> Result<Arc<Scratch>> {
        let mut scratch = self.scratch.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scratch) = &*scratch
            && scratch.buffer.size() >= bytes
        {
            return Ok(scratch.clone());
        }
        let size = bytes.next_power_of_two().max(4096).min(self.limits.max_buffer_size);
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let descriptor = wgpu::BufferDescriptor { label: Some("scratch"), size, usage, mapped_at_creation: false };
        let buffer = self.guarded(|| self.device.create_buffer(&descriptor)).map_err(|_| Error::SystemMemory(bytes))?;
        if let Some(old) = scratch.take() {
            self.groups.forget(old.id);
        }
        let new = Arc::new(Scratch { buffer, id: self.new_id() });
        *scratch = Some(new.clone());
        Ok(new)
    }
}
