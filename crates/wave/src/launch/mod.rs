//! The engine that launches a kernel for every step, on any device.
//!
//! Two fields are enough: the new pressure of a cell takes the place of the one before, which no other cell needs, and
//! then the two buffers change their names. A step reads both and writes one: twelve bytes for every cell.

mod cpu;

use bytemuck::{Pod, Zeroable};
use millrace::{Access, Buffer, Device, Dim3, Kernel, KernelSpec, Stream, View};

use crate::{Cell, Engine, Error, MAX_SOURCES, Result, Room, State, cells::Grid, layout::Layout};

/// Threads of a group in `step.wgsl`,
const BLOCK: [u32; 2] = [32, 4];
/// and the planes that each of them goes through.
const DEPTH: u32 = 8;

/// The parameters of `step.wgsl`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Step {
    grid: Grid,
    /// How many of the following are used.
    sources: u32,
    cells: [u32; MAX_SOURCES],
    gains: [f32; MAX_SOURCES],
}

/// The parameters of `inject.wgsl`.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Injection {
    cell: u32,
    amount: f32,
}

fn step_spec() -> KernelSpec {
    let source = include_str!("step.wgsl").replace("{DEPTH}", &DEPTH.to_string());
    KernelSpec::new("wave_step")
        .binding::<f32>("now", Access::Read)
        .binding::<f32>("before", Access::ReadWrite)
        .binding::<u32>("kinds", Access::Read)
        .params::<Step>()
        .block(BLOCK)
        .cpu(cpu::step())
        .wgsl(source)
}

fn inject_spec() -> KernelSpec {
    KernelSpec::new("wave_inject")
        .binding::<f32>("now", Access::ReadWrite)
        .binding::<f32>("before", Access::ReadWrite)
        .params::<Injection>()
        .cpu(cpu::inject())
        .wgsl(include_str!("inject.wgsl"))
}

/// A kernel launch for every step.
///
/// ```
/// use millrace_wave::{Engine, PerStep, Setup};
/// let device = millrace::runtime().open("cpu")?;
/// let mut engine = PerStep::on(&device, Setup::new([32; 3]).build()?)?;
/// engine.inject([16, 16, 16], 1.0)?;
/// let start = engine.energy()?;
/// engine.step(500)?;
/// assert!((engine.energy()? / start - 1.0).abs() < 1e-4, "the walls reflect");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PerStep {
    room: Room,
    layout: Layout,
    device: Device,
    stream: Stream,
    step: Kernel,
    inject: Kernel,
    now: Buffer,
    before: Buffer,
    kinds: Buffer,
    /// What is in `kinds`, so that it can be changed.
    known_kinds: Vec<u8>,
    params: Step,
    steps: u64,
}

impl PerStep {
    /// A quiet room on a device.
    ///
    /// ```
    /// use millrace_wave::{Engine, PerStep, Setup};
    /// let device = millrace::runtime().open("cpu")?;
    /// let mut engine = PerStep::on(&device, Setup::new([8; 3]).build()?)?;
    /// engine.step(3)?;
    /// engine.finish()?;
    /// assert_eq!((engine.energy()?, engine.device()), (0.0, Some("cpu")));
    /// assert!(device.counts().launches >= 3, "one for a step");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on(device: &Device, room: Room) -> Result<Self> {
        let layout = Layout::of(room.size());
        let bytes = 4 * layout.words();
        let (now, before) = (device.allocate(bytes)?, device.allocate(bytes)?);
        let known_kinds = layout.kinds(&room);
        let kinds = device.allocate(known_kinds.len())?;
        let stream = device.stream()?;
        stream.run(kinds.write(0, known_kinds.clone()))?;
        let params = Step { grid: Grid::of(&room, &layout), ..Step::zeroed() };
        let (step, inject) = (device.kernel(&step_spec())?, device.kernel(&inject_spec())?);
        let device = device.clone();
        Ok(Self { room, layout, device, stream, step, inject, now, before, kinds, known_kinds, params, steps: 0 })
    }

    fn step_once(&mut self) -> Result<()> {
        let mut params = self.params;
        for (cell, gain) in self.room.gains(self.steps) {
            let n = params.sources as usize;
            (params.cells[n], params.gains[n]) = (self.layout.at(cell) as u32, gain);
            params.sources += 1;
        }
        let [nx, ny, nz] = self.layout.size;
        let grid = Dim3::from([nx.div_ceil(BLOCK[0]), ny.div_ceil(BLOCK[1]), nz.div_ceil(DEPTH)]);
        let launch = self.step.launch().bind(&self.now).bind(&self.before).bind(&self.kinds).params(&params).grid(grid);
        self.stream.enqueue(launch)?;
        std::mem::swap(&mut self.now, &mut self.before);
        self.steps += 1;
        Ok(())
    }

    /// Reads some words of a field, after everything that was asked for; an error of that comes first.
    fn read(&self, field: &Buffer, words: std::ops::Range<usize>) -> Result<View> {
        let view = self.stream.run(field.read(4 * words.start..4 * words.end))?;
        self.stream.synchronize()?;
        Ok(view)
    }

    fn field(&self, field: &Buffer) -> Result<Vec<f32>> {
        let view = self.read(field, 0..self.layout.words())?;
        Ok(self.layout.narrow(view.to(), self.layout.rows(), 0))
    }
}

impl Engine for PerStep {
    fn name(&self) -> &'static str {
        "launch"
    }

    fn device(&self) -> Option<&str> {
        Some(&self.device.info().id)
    }

    fn room(&self) -> &Room {
        &self.room
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    fn step(&mut self, steps: u64) -> Result<()> {
        (0..steps).try_for_each(|_| self.step_once())
    }

    fn finish(&mut self) -> Result<()> {
        self.stream.synchronize().map_err(Error::Device)
    }

    fn inject(&mut self, cell: Cell, amount: f32) -> Result<()> {
        self.room.check_impulse(cell, amount)?;
        let params = Injection { cell: self.layout.at(cell) as u32, amount };
        self.stream.enqueue(self.inject.launch().bind(&self.now).bind(&self.before).params(&params))?;
        Ok(())
    }

    fn set_obstacle(&mut self, cell: Cell, solid: bool) -> Result<()> {
        if !self.room.set_solid(cell, solid)? {
            return Ok(());
        }
        for changed in self.layout.update(&self.room, &mut self.known_kinds, cell) {
            let words = changed.start / 4 * 4..changed.end.next_multiple_of(4);
            self.stream.enqueue(self.kinds.write(words.start, self.known_kinds[words].to_vec()))?;
        }
        for field in [&self.now, &self.before] {
            self.stream.enqueue(field.write(4 * self.layout.at(cell), vec![0; 4]))?;
        }
        Ok(())
    }

    fn pressure(&mut self, cell: Cell) -> Result<f32> {
        self.room.index(cell)?; // which checks it
        let at = self.layout.at(cell);
        Ok(self.read(&self.now, at..at + 1)?.to::<f32>()[0])
    }

    fn plane(&mut self, z: u32) -> Result<Vec<f32>> {
        self.room.index([0, 0, z])?; // which checks it
        let start = (z as usize + 1) * self.layout.plane;
        let view = self.read(&self.now, start..start + self.layout.plane)?;
        let rows = (0..self.layout.size[1]).map(|y| self.layout.at([0, y, z]));
        Ok(self.layout.narrow(view.to(), rows, start))
    }

    fn state(&mut self) -> Result<State> {
        Ok(State { now: self.field(&self.now)?, before: self.field(&self.before)? })
    }

    fn load(&mut self, state: &State) -> Result<()> {
        // Both, before anything is written.
        self.room.check_length(state.now.len())?;
        self.room.check_length(state.before.len())?;
        for (field, pressures) in [(&self.now, &state.now), (&self.before, &state.before)] {
            let wide = self.layout.widen_open(pressures, &self.known_kinds);
            self.stream.run(field.write(0, bytemuck::cast_slice(&wide).to_vec()))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wgsl_module_is_valid_and_fits_its_kernel() {
        use naga::valid::{Capabilities, ValidationFlags, Validator};
        for spec in [step_spec(), inject_spec()] {
            let source = spec.wgsl_code().unwrap();
            let module = naga::front::wgsl::parse_str(source)
                .unwrap_or_else(|error| panic!("{}: {}", spec.name(), error.emit_to_string(source)));
            let mut validator = Validator::new(ValidationFlags::all(), Capabilities::IMMEDIATES);
            let checked = validator.validate(&module);
            checked.unwrap_or_else(|error| panic!("{}: {}", spec.name(), error.emit_to_string(source)));
            let entry = module.entry_points.iter().find(|entry| entry.name == "main").unwrap();
            assert_eq!(entry.workgroup_size, spec.block_size().to_array(), "{}", spec.name());
            assert!(spec.params_len() <= millrace::MAX_PARAMS);
        }
    }
}
