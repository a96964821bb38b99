//! The device's own clock, around every command of a batch, while a profile is on.
//!
//! A batch that is timed writes a timestamp before the first thing that a command makes the device do, and one behind the
//! last. They are resolved at the end of the batch into memory that the host reads once it has run. Where timestamps can
//! only be written at the ends of passes, every launch gets a pass of its own, and transfers have no times.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use millrace_core::Ran;

use crate::{batch::map_now, device::Shared, submission::LANDED};

/// Timestamps of a batch: two for each command, and as many commands as a batch has.
const QUERIES: u32 = 2 * 256;

/// What the device can time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stamps {
    /// Nothing.
    None,
    /// Passes from their beginning to their end.
    Passes,
    /// Anything.
    Anywhere,
}

impl Stamps {
    /// Features that it needs.
    pub(crate) fn features() -> wgpu::Features {
        wgpu::Features::TIMESTAMP_QUERY
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_ENCODERS
            | wgpu::Features::TIMESTAMP_QUERY_INSIDE_PASSES
    }

    pub(crate) fn of(device: &wgpu::Device) -> Self {
        if device.features().contains(Self::features()) {
            Self::Anywhere
        } else if device.features().contains(wgpu::Features::TIMESTAMP_QUERY) {
            Self::Passes
        } else {
            Self::None
        }
    }
}

/// A set of timestamps, used again by one batch after the other.
struct Sheet {
    queries: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    readable: wgpu::Buffer,
}

impl Sheet {
    fn new(device: &wgpu::Device) -> Self {
        let size = u64::from(QUERIES) * 8;
        let buffer = |usage| {
            let label = Some("timestamps");
            device.create_buffer(&wgpu::BufferDescriptor { label, size, usage, mapped_at_creation: false })
        };
        Self {
            queries: device.create_query_set(&wgpu::QuerySetDescriptor {
                label: Some("timestamps"),
                ty: wgpu::QueryType::Timestamp,
                count: QUERIES,
            }),
            resolved: buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC),
            readable: buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST),
        }
    }
}

/// Sheets that no batch uses.
#[derive(Default)]
pub(crate) struct Sheets(Mutex<Vec<Sheet>>);

impl Sheets {
    fn free(&self) -> MutexGuard<'_, Vec<Sheet>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a command of a batch is known to have run.
#[derive(Clone, Copy)]
enum Known {
    /// On the device, between two timestamps from this one on.
    Stamped(u32),
    /// On the host.
    Host,
    /// Some time.
    Sometime,
}

/// The times of a batch that is being recorded.
pub(crate) struct Timing {
    shared: Arc<Shared>,
    sheet: Option<Sheet>,
    used: u32,
    commands: Vec<Known>,
    /// The device has something to do for the command that is being recorded.
    touched: bool,
    /// Its first timestamp.
    begun: Option<u32>,
}

impl Timing {
    /// None where the device has no such clock.
    pub(crate) fn new(shared: &Arc<Shared>) -> Option<Self> {
        if shared.stamps == Stamps::None {
            return None;
        }
        let kept = shared.sheets.free().pop();
        let sheet = match kept {
            Some(sheet) => sheet,
            None => shared.guarded(|| Sheet::new(&shared.device)).ok()?,
        };
        let (shared, commands) = (shared.clone(), Vec::new());
        Some(Self { shared, sheet: Some(sheet), used: 0, commands, touched: false, begun: None })
    }

    /// The encoder is about to be given something that is not in a pass.
    pub(crate) fn before_encoding(&mut self, encoder: &mut wgpu::CommandEncoder) {
        if self.begins_with(Stamps::Anywhere)
            && let Some(sheet) = &self.sheet
        {
            encoder.write_timestamp(&sheet.queries, self.used);
            self.begin();
        }
    }

    /// The same in a pass that is open.
    pub(crate) fn before_dispatch(&mut self, pass: &mut wgpu::ComputePass<'static>) {
        if self.begins_with(Stamps::Anywhere)
            && let Some(sheet) = &self.sheet
        {
            pass.write_timestamp(&sheet.queries, self.used);
            self.begin();
        }
    }

    /// A pass is about to be opened: it is timed by itself where nothing else can be.
    pub(crate) fn before_pass(&mut self) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        if !self.begins_with(Stamps::Passes) {
            return None;
        }
        self.begin();
        let first = self.begun?;
        let query_set = &self.sheet.as_ref()?.queries;
        let (beginning, end) = (Some(first), Some(first + 1));
        Some(wgpu::ComputePassTimestampWrites {
            query_set,
            beginning_of_pass_write_index: beginning,
            end_of_pass_write_index: end,
        })
    }

    /// Whether a timestamp is to be written before what comes next.
    fn begins_with(&mut self, stamps: Stamps) -> bool {
        let first = !self.touched;
        self.touched = true;
        first && self.shared.stamps == stamps && self.used + 2 <= QUERIES
    }

    fn begin(&mut self) {
        self.begun = Some(self.used);
        self.used += 2;
    }

    /// A command was recorded, or could not be.
    pub(crate) fn after_command(
        &mut self,
        recorded: bool,
        pass: Option<&mut wgpu::ComputePass<'static>>,
        encoder: Option<&mut wgpu::CommandEncoder>,
    ) {
        let known = match self.begun.take() {
            Some(first) => {
                if let (Stamps::Anywhere, Some(sheet)) = (self.shared.stamps, &self.sheet) {
                    match (pass, encoder) {
                        (Some(pass), _) => pass.write_timestamp(&sheet.queries, first + 1),
                        (None, Some(encoder)) => encoder.write_timestamp(&sheet.queries, first + 1),
                        (None, None) => {}
                    }
                }
                Known::Stamped(first)
            }
            None if self.touched => Known::Sometime,
            None => Known::Host,
        };
        self.touched = false;
        if recorded {
            self.commands.push(known);
        }
    }

    /// The batch is complete.
    pub(crate) fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        if let (Some(sheet), 1..) = (&self.sheet, self.used) {
            encoder.resolve_query_set(&sheet.queries, 0..self.used, &sheet.resolved, 0);
            let bytes = u64::from(self.used) * 8;
            encoder.copy_buffer_to_buffer(&sheet.resolved, 0, &sheet.readable, 0, bytes);
        }
    }

    pub(crate) fn close(self) -> Times {
        Times { timing: self, stamps: OnceLock::new() }
    }
}

impl Drop for Timing {
    fn drop(&mut self) {
        if let Some(sheet) = self.sheet.take() {
            self.shared.sheets.free().push(sheet);
        }
    }
}

/// The times of a batch that was submitted.
pub(crate) struct Times {
    timing: Timing,
    /// Read when they are first asked for, in nanoseconds; none if they cannot be.
    stamps: OnceLock<Option<Vec<u64>>>,
}

impl Times {
    fn read(&self) -> Option<Vec<u64>> {
        let (shared, buffer) = (&self.timing.shared, &self.timing.sheet.as_ref()?.readable);
        let bounds = 0..u64::from(self.timing.used) * 8;
        if bounds.is_empty() || !map_now(shared, buffer, wgpu::MapMode::Read, bounds.clone(), LANDED) {
            return None;
        }
        let period = f64::from(shared.queue.get_timestamp_period());
        let stamps = buffer.get_mapped_range(bounds).map(|view| {
            let (words, _) = view.as_chunks();
            words.iter().map(|word| (u64::from_le_bytes(*word) as f64 * period) as u64).collect()
        });
        buffer.unmap();
        stamps.ok()
    }

    pub(crate) fn ran(&self, command: usize) -> Ran {
        match self.timing.commands.get(command) {
            Some(Known::Host) => Ran::Host,
            Some(Known::Stamped(first)) => {
                let stamps = self.stamps.get_or_init(|| self.read()).as_deref().unwrap_or(&[]);
                match stamps.get(*first as usize..*first as usize + 2) {
                    Some(&[start, end]) if start <= end => Ran::Device { start, end },
                    _ => Ran::Unknown,
                }
            }
            Some(Known::Sometime) | None => Ran::Unknown,
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used, reason = "a test")]
mod tests {
    use millrace_core::{Access, Clock, CommandKind, Device, DeviceOptions, Engine, KernelSpec, ProfileOptions};

    use super::*;
    use crate::{
        adapter::{Transfers, enumerate},
        device::Gpu,
    };

    /// The clocks of three launches with a transfer between them, on a device whose own can do so much.
    fn clocks(stamps: Stamps) -> Option<Vec<(CommandKind, Clock)>> {
        let adapter = enumerate().into_iter().next()?;
        let gpu = Gpu::open(&adapter, "gpu:0", Transfers::Staged).expect("it opens");
        if gpu.stamps() != Stamps::Anywhere {
            return None; // nothing can be taken from it
        }
        let engine = Engine::Queued(Arc::new(gpu.with_stamps(stamps)));
        let device = Device::open(engine, DeviceOptions::default()).expect("it opens");
        let spec = KernelSpec::new("double").binding::<f32>("x", Access::ReadWrite).wgsl(
            "@group(0) @binding(0) var<storage, read_write> x: array<f32>;
             @compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3<u32>) { x[id.x] *= 2.0; }",
        );
        let kernel = device.kernel(&spec).expect("it compiles");
        let (stream, buffer) = (device.stream().expect("a stream"), device.allocate(4096).expect("memory"));
        let launch = || kernel.launch().bind(&buffer).grid([1024, 1, 1]);
        stream.run(buffer.fill(.., 0)).expect("it runs");
        let profiler = device.profile(&ProfileOptions::default()).expect("none is on");
        stream.enqueue(launch()).expect("there is room");
        stream.enqueue(launch()).expect("there is room");
        stream.enqueue(buffer.write(0, vec![1; 4096])).expect("there is room");
        stream.run(launch()).expect("it runs");
        let profile = profiler.stop();
        assert!(profile.spans().iter().all(|span| span.submitted <= span.start && span.start <= span.end));
        Some(profile.spans().iter().map(|span| (span.kind, span.clock)).collect())
    }

    #[test]
    fn everything_that_the_device_can_time_has_its_time() {
        for stamps in [Stamps::Anywhere, Stamps::Passes, Stamps::None] {
            let Some(clocks) = clocks(stamps) else { continue };
            assert_eq!(clocks.len(), 4);
            for (kind, clock) in clocks {
                let expected = match (stamps, kind) {
                    (Stamps::Anywhere, _) | (Stamps::Passes, CommandKind::Launch) => Clock::Device,
                    _ => Clock::Batch,
                };
                assert_eq!(clock, expected, "{kind:?} with {stamps:?}");
            }
        }
    }
}
