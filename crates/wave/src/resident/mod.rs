//! The engine that stays on the device: one kernel that holds the fields and is told what to do by messages, so that
//! nothing is launched from the first step to the last.
//!
//! Its memory is both fields and the kinds of all cells. Every message is answered, in order, so that whoever counts the
//! answers knows what is done.

mod handler;

use std::time::{Duration, Instant};

use millrace::{
    Device, DeviceKind,
    resident::{self, InUse, Launch, LaunchOptions, Resident as Kernel, Status},
};

use self::handler::{Keeper, Order, PER_ANSWER};
use crate::{Cell, Engine, Error, Result, Room, State, cells::Grid, layout::Layout};

/// Orders on their way, at most.
const UNDER_WAY: usize = 256;
/// Turns of loops that an order may take on a GPU: some drivers end loops early.
const TURNS: u32 = 12_000;
/// Until a kernel's memory can be used again, at most.
const LEAVING: Duration = Duration::from_secs(10);
/// Cells of a row that the WGSL does in one turn.
const PER_TURN: u32 = 8;

/// A kernel that stays on the device and does every step when it is told to.
///
/// On the CPU it is one thread, on a GPU one thread of it: what it saves is the launch, so it is for small rooms and for
/// rooms that are asked often. [`PerStep`](crate::PerStep) is for large ones. A GPU has 16 MiB for all its resident kernels.
///
/// ```
/// use millrace_wave::{Engine, Resident, Setup};
/// let device = millrace::runtime().open("cpu")?;
/// let mut engine = Resident::on(&device, Setup::new([16; 3]).build()?)?;
/// engine.inject([8, 8, 8], 1.0)?;
/// engine.step(10)?;
/// assert!(engine.pressure([8, 12, 8])?.abs() > 1e-4, "sound has come here");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Resident {
    room: Room,
    layout: Layout,
    device: Device,
    options: LaunchOptions,
    /// Or why there is none: fields that were loaded found no place.
    kernel: Result<Kernel<Keeper>>,
    residency: InUse,
    /// Rows of one order.
    rows: u32,
    /// What the kernel has for kinds, so that it can be changed.
    kinds: Vec<u8>,
    /// Which of the two fields is now.
    now: usize,
    /// Orders that have not been seen to be answered.
    under_way: usize,
    steps: u64,
}

impl Resident {
    /// A quiet room on a device.
    ///
    /// ```
    /// use millrace_wave::{Engine, Reference, Resident, Setup, Source};
    /// let room = Setup::new([8; 3]).source(Source::impulse([4, 4, 4], 1.0)).build()?;
    /// let device = millrace::runtime().open("cpu")?;
    /// let (mut plain, mut kernel) = (Reference::new(room.clone())?, Resident::on(&device, room)?);
    /// plain.step(5)?;
    /// kernel.step(5)?;
    /// assert_eq!(plain.state()?, kernel.state()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on(device: &Device, room: Room) -> Result<Self> {
        Self::with(device, room, LaunchOptions::default())
    }

    /// A quiet room on a device, and how its kernel is launched. The capacities of its rings are ours.
    ///
    /// ```
    /// use millrace::resident::{LaunchOptions, WaitPolicy};
    /// use millrace_wave::{Engine, Resident, Setup};
    /// let device = millrace::runtime().open("cpu")?;
    /// let options = LaunchOptions::default().wait(WaitPolicy::Sleep);
    /// let mut engine = Resident::with(&device, Setup::new([8; 3]).build()?, options)?;
    /// engine.inject([4, 4, 4], 1.0)?;
    /// assert_eq!(engine.pressure([4, 4, 4])?, 1.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn with(device: &Device, room: Room, options: LaunchOptions) -> Result<Self> {
        let layout = Layout::of(room.size());
        let kinds = layout.kinds(&room);
        let [nx, ny, nz] = layout.size;
        let rows = match device.info().kind {
            DeviceKind::Cpu => ny * nz,
            // A turn of the loop over rows and one that ends it, and the same for each that goes along a row.
            _ => (TURNS / (3 + 2 * (nx.div_ceil(PER_TURN) + 1))).clamp(1, ny * nz),
        };
        let options = options.inbound(UNDER_WAY).outbound(UNDER_WAY);
        let zeros = vec![0.0; layout.words()];
        let kernel = launch(device, &options, &room, &layout, [&zeros, &zeros], &kinds)?;
        let residency = kernel.residency().clone();
        let (device, kernel, now, under_way, steps) = (device.clone(), Ok(kernel), 0, 0, 0);
        Ok(Self { room, layout, device, options, kernel, residency, rows, kinds, now, under_way, steps })
    }

    /// How the kernel lives on its device.
    ///
    /// ```
    /// use millrace_wave::{Resident, Setup};
    /// let device = millrace::runtime().open("cpu")?;
    /// let engine = Resident::on(&device, Setup::new([8; 3]).build()?)?;
    /// assert_eq!(engine.residency().mode, millrace::resident::Mode::Threads);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn residency(&self) -> &InUse {
        &self.residency
    }

    fn kernel(&self) -> Result<&Kernel<Keeper>> {
        self.kernel.as_ref().map_err(Error::clone)
    }

    fn order(&mut self, order: Order) -> Result<()> {
        if self.under_way == UNDER_WAY {
            self.answer()?;
        }
        self.kernel()?.send(order).map_err(|refused| refused.error)?;
        self.under_way += 1;
        Ok(())
    }

    /// The oldest answer that was not received.
    fn answer(&mut self) -> Result<[f32; PER_ANSWER]> {
        let answer = self.kernel()?.receive(Instant::now() + self.device.timeout())?;
        self.under_way -= 1;
        Ok(answer.values)
    }

    /// Words of the kernel's memory, after everything that was asked for.
    fn read(&mut self, words: std::ops::Range<usize>) -> Result<Vec<f32>> {
        self.finish()?;
        let mut values = Vec::with_capacity(words.len() + PER_ANSWER);
        for at in words.clone().step_by(PER_ANSWER) {
            if self.under_way == UNDER_WAY {
                values.extend(self.answer()?);
            }
            self.order(Order::read(at))?;
        }
        while self.under_way > 0 {
            values.extend(self.answer()?);
        }
        values.truncate(words.len());
        Ok(values)
    }

    /// Where a field begins in the kernel's memory.
    fn field(&self, which: usize) -> usize {
        which * self.layout.words()
    }

    fn whole_field(&mut self, which: usize) -> Result<Vec<f32>> {
        let start = self.field(which);
        let wide = self.read(start..start + self.layout.words())?;
        Ok(self.layout.narrow(&wide, self.layout.rows(), 0))
    }
}

/// Launches a kernel with these fields, the one that is now first.
fn launch(
    device: &Device,
    options: &LaunchOptions,
    room: &Room,
    layout: &Layout,
    fields: [&[f32]; 2],
    kinds: &[u8],
) -> Result<Kernel<Keeper>> {
    let mut memory: Vec<u32> = fields.iter().flat_map(|field| field.iter().map(|value| value.to_bits())).collect();
    memory.extend(kinds.chunks_exact(4).map(|kinds| u32::from_le_bytes([kinds[0], kinds[1], kinds[2], kinds[3]])));
    let keeper = Keeper::new(Grid::of(room, layout), layout.words(), memory);
    Ok(device.launch(keeper, options.clone())?)
}

impl Engine for Resident {
    fn name(&self) -> &'static str {
        "resident"
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
        let all = self.layout.size[1] * self.layout.size[2];
        for _ in 0..steps {
            for first in (0..all).step_by(self.rows as usize) {
                self.order(Order::step(first, self.rows.min(all - first), self.now))?;
            }
            self.now = 1 - self.now;
            let gains: Vec<_> = self.room.gains(self.steps).collect();
            for (cell, gain) in gains {
                self.order(Order::add(self.field(self.now) + self.layout.at(cell), gain))?;
            }
            self.steps += 1;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        while self.under_way > 0 {
            self.answer()?;
        }
        Ok(())
    }

    fn inject(&mut self, cell: Cell, amount: f32) -> Result<()> {
        self.room.check_impulse(cell, amount)?;
        for field in [0, 1] {
            self.order(Order::add(self.field(field) + self.layout.at(cell), amount))?;
        }
        Ok(())
    }

    fn set_obstacle(&mut self, cell: Cell, solid: bool) -> Result<()> {
        if !self.room.set_solid(cell, solid)? {
            return Ok(());
        }
        let kinds = self.field(2);
        for changed in self.layout.update(&self.room, &mut self.kinds, cell) {
            for word in changed.start / 4..changed.end.div_ceil(4) {
                let bytes = [0, 1, 2, 3].map(|i| self.kinds[4 * word + i]);
                self.order(Order::set(kinds + word, u32::from_le_bytes(bytes)))?;
            }
        }
        for field in [0, 1] {
            self.order(Order::set(self.field(field) + self.layout.at(cell), 0))?;
        }
        Ok(())
    }

    fn pressure(&mut self, cell: Cell) -> Result<f32> {
        self.room.index(cell)?; // which checks it
        let at = self.field(self.now) + self.layout.at(cell);
        Ok(self.read(at..at + 1)?[0])
    }

    fn plane(&mut self, z: u32) -> Result<Vec<f32>> {
        self.room.index([0, 0, z])?; // which checks it
        let (start, plane) = ((z as usize + 1) * self.layout.plane, self.layout.plane);
        let at = self.field(self.now) + start;
        let wide = self.read(at..at + plane)?;
        let rows = (0..self.layout.size[1]).map(|y| self.layout.at([0, y, z]));
        Ok(self.layout.narrow(&wide, rows, start))
    }

    fn state(&mut self) -> Result<State> {
        Ok(State { now: self.whole_field(self.now)?, before: self.whole_field(1 - self.now)? })
    }

    fn load(&mut self, state: &State) -> Result<()> {
        self.finish()?;
        let mut fields = Vec::with_capacity(2);
        for pressures in [&state.now, &state.before] {
            self.room.check_length(pressures.len())?;
            let wide = self.layout.widen_open(pressures, &self.kinds);
            fields.push(wide);
        }
        let deadline = Instant::now() + LEAVING;
        if let Ok(kernel) = &self.kernel {
            kernel.terminate()?;
            kernel.wait_for(Status::Terminated, deadline)?;
        }
        // A GPU's memory for kernels may not hold two of these, so the old one is dropped first. That it has gone is
        // noticed by a thread of the device, which gives its place back soon after.
        self.kernel = Err(resident::Error::Ended(Status::Terminated).into());
        let fields = [&*fields[0], &*fields[1]];
        self.kernel = loop {
            let launched = launch(&self.device, &self.options, &self.room, &self.layout, fields, &self.kinds);
            let full = matches!(launched, Err(Error::Kernel(resident::Error::NoRoom { .. })));
            if !full || Instant::now() > deadline {
                break launched;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        self.residency = self.kernel()?.residency().clone();
        self.now = 0;
        Ok(())
    }
}
