//! The kernels that are measured, and the same work as launches.
//!
//! Everything is written once for every device: Rust for the CPU, WGSL for GPUs.

use bytemuck::{Pod, Zeroable};
use millrace::{
    Access, Buffer, CpuKernel, Device, Kernel, KernelSpec, Stream,
    resident::{self, Handler, Launch, LaunchOptions, Message, Resident, Scope, Status},
};

use crate::{Error, Result, devices, measure::guarded};
use std::time::{Duration, Instant};

/// How long any wait of a measurement may last.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What an adder is asked.
#[derive(Debug, Clone, Copy, Message)]
#[repr(C)]
pub struct Pair {
    /// One number.
    pub a: f32,
    /// Another one.
    pub b: f32,
}

/// What everybody who adds is asked, and
pub const PAIR: Pair = Pair { a: 1.5, b: 2.0 };

/// what has to come out.
#[inline]
pub fn check_sum(sum: f32) -> Result<()> {
    if sum == 3.5 { Ok(()) } else { Err(Error::Wrong(format!("1.5 + 2 was {sum}"))) }
}

/// What an adder answers.
#[derive(Debug, Clone, Copy, Message)]
#[repr(C)]
pub struct Sum {
    /// The sum.
    pub value: f32,
}

/// Adds two numbers: the same that the actors do.
#[derive(Debug)]
pub struct Adder;

impl Handler for Adder {
    type Message = Pair;
    type Reply = Sum;
    type State = ();
    const WGSL: Option<&'static str> = Some("return Sum(message.a + message.b);");
    fn state(&self) {}
    #[inline]
    fn handle(&mut self, _: &mut (), pair: &Pair, _: &mut Scope<'_, Sum>) -> Sum {
        Sum { value: pair.a + pair.b }
    }
}

/// A command for [`Taker`] and [`FieldKernel`].
#[derive(Debug, Clone, Copy, Message, Pod, Zeroable)]
#[repr(C)]
pub struct Command {
    /// [`INJECT`], [`STEP`] or [`READ`].
    pub kind: u32,
    /// Which cell.
    pub cell: u32,
    /// How much.
    pub amount: f32,
    /// Nothing: it makes sixteen bytes.
    pub rest: u32,
}

/// Adds something to a cell.
pub const INJECT: u32 = 0;
/// Lets the wave go on by one step.
pub const STEP: u32 = 1;
/// Only answers with a cell.
pub const READ: u32 = 2;

impl Command {
    /// The `n`th command of its kind, at another cell each time.
    #[inline]
    pub fn nth(kind: u32, n: u32) -> Self {
        Self { kind, cell: n % CELLS as u32, amount: 0.25, rest: 0 }
    }
}

/// What a [`Taker`] remembers.
#[derive(Debug, Clone, Copy, Message)]
#[repr(C)]
pub struct Taken {
    /// Commands so far.
    pub commands: u32,
    /// What they added up to.
    pub amount: f32,
}

/// Takes commands and counts them. It answers only those who ask.
#[derive(Debug)]
pub struct Taker;

impl Handler for Taker {
    type Message = Command;
    type Reply = ();
    type State = Taken;
    const WGSL: Option<&'static str> = Some(
        "(*state).commands += 1u;
         (*state).amount += message.amount;",
    );
    fn state(&self) -> Taken {
        Taken { commands: 0, amount: 0.0 }
    }
    #[inline]
    fn handle(&mut self, taken: &mut Taken, command: &Command, _: &mut Scope<'_, ()>) {
        taken.commands += 1;
        taken.amount += command.amount;
    }
}

/// Cells of a [`Field`].
pub const CELLS: usize = 256;

/// A wave on a closed line of cells. Steps take turns: after an even number of them `a` is now and `b` a step ago.
#[derive(Debug, Clone, Copy, Message, Pod, Zeroable)]
#[repr(C)]
pub struct Field {
    /// One of the two states.
    pub a: [f32; 256],
    /// The other one.
    pub b: [f32; 256],
    /// Steps so far.
    pub steps: u32,
}

impl Field {
    /// Nothing moves.
    pub const STILL: Self = Self { a: [0.0; CELLS], b: [0.0; CELLS], steps: 0 };

    /// Does a command, and gives the cell it names.
    #[inline]
    pub fn apply(&mut self, command: &Command) -> f32 {
        apply(&mut self.a, &mut self.b, &mut self.steps, command)
    }
}

/// Does a command on the two states of a [`Field`].
#[inline]
fn apply(a: &mut [f32; CELLS], b: &mut [f32; CELLS], steps: &mut u32, command: &Command) -> f32 {
    let cell = command.cell as usize % CELLS;
    if command.kind == STEP {
        if steps.is_multiple_of(2) {
            step(a, b)
        } else {
            step(b, a)
        }
        *steps = steps.wrapping_add(1);
    }
    let now = if steps.is_multiple_of(2) { a } else { b };
    if command.kind == INJECT {
        now[cell] += command.amount;
    }
    now[cell]
}

/// The next state, in the place of the one before.
#[inline]
fn step(now: &[f32; CELLS], before: &mut [f32; CELLS]) {
    // A little is lost with every step, so that a long measurement stays finite.
    let next =
        |left: f32, here: f32, right: f32, old: f32| 0.999 * (2.0 * here - old + 0.25 * (left - 2.0 * here + right));
    before[0] = next(now[CELLS - 1], now[0], now[1], before[0]);
    for i in 1..CELLS - 1 {
        before[i] = next(now[i - 1], now[i], now[i + 1], before[i]);
    }
    before[CELLS - 1] = next(now[CELLS - 2], now[CELLS - 1], now[0], before[CELLS - 1]);
}

/// What a [`FieldKernel`] answers: the cell that the command names.
#[derive(Debug, Clone, Copy, Message)]
#[repr(C)]
pub struct Cell {
    /// Its value.
    pub value: f32,
}

/// How many steps a [`FieldKernel`] has done.
#[derive(Debug, Clone, Copy, Message)]
#[repr(C)]
pub struct Steps {
    steps: u32,
}

/// A [`Field`] that lives on a device, in the kernel's memory.
#[derive(Debug)]
pub struct FieldKernel;

impl Handler for FieldKernel {
    type Message = Command;
    type Reply = Cell;
    type State = Steps;
    const WGSL: Option<&'static str> = Some(include_str!("field_resident.wgsl"));
    fn state(&self) -> Steps {
        Steps { steps: 0 }
    }
    fn memory(&self) -> Vec<u32> {
        vec![0; 2 * CELLS]
    }
    #[inline]
    fn handle(&mut self, state: &mut Steps, command: &Command, scope: &mut Scope<'_, Cell>) -> Cell {
        if !scope.is_ask() {
            scope.no_reply();
        }
        let [a, b]: &mut [[f32; CELLS]; 2] = bytemuck::from_bytes_mut(bytemuck::cast_slice_mut(scope.memory()));
        Cell { value: apply(a, b, &mut state.steps, command) }
    }
}

/// A [`Field`] in a buffer, with a launch for every command.
#[derive(Debug)]
pub struct FieldLaunches {
    _device: Device,
    stream: Stream,
    kernel: Kernel,
    field: Buffer,
    /// The host asked for all of them, so it knows.
    steps: u32,
}

impl FieldLaunches {
    /// On this device.
    pub fn on(device: &Device) -> Result<Self> {
        let spec = KernelSpec::new("field")
            .binding::<Field>("field", Access::ReadWrite)
            .params::<Command>()
            .block(CELLS as u32)
            .wgsl(include_str!("field_launch.wgsl"))
            .cpu(CpuKernel::whole(|launch| {
                let command: Command = launch.params();
                if let Some(field) = launch.output::<Field>(0).first_mut() {
                    field.apply(&command);
                }
            }));
        let (stream, kernel) = (device.stream()?, device.kernel(&spec)?);
        let field = device.allocate(size_of::<Field>())?;
        stream.run(field.write(0, bytemuck::bytes_of(&Field::STILL).to_vec()))?;
        Ok(Self { _device: device.clone(), stream, kernel, field, steps: 0 })
    }

    #[inline]
    fn launch(&mut self, command: Command) -> millrace::Launch {
        self.steps += u32::from(command.kind == STEP);
        self.kernel.launch().bind(&self.field).params(&command).grid(1)
    }

    /// A command, until the kernel has done it. On the CPU the caller may be the one who executes it.
    #[inline]
    pub fn run(&mut self, command: Command) -> Result<()> {
        let launch = self.launch(command);
        Ok(self.stream.run(launch)?)
    }

    /// The same, always through the device's own thread or queue.
    #[inline]
    pub fn submit(&mut self, command: Command) -> Result<()> {
        let launch = self.launch(command);
        Ok(self.stream.submit(launch)?.wait()?)
    }

    /// A command, without waiting for it.
    #[inline]
    pub fn enqueue(&mut self, command: Command) -> Result<()> {
        let launch = self.launch(command);
        Ok(self.stream.enqueue(launch)?)
    }

    /// Waits for all of them.
    pub fn finish(&self) -> Result<()> {
        Ok(self.stream.synchronize()?)
    }

    /// A cell, after everything before.
    #[inline]
    pub fn read(&self, cell: u32) -> Result<f32> {
        let now = if self.steps.is_multiple_of(2) { 0 } else { CELLS };
        let at = 4 * (now + cell as usize % CELLS);
        Ok(bytemuck::pod_read_unaligned(&self.stream.run(self.field.read(at..at + 4))?))
    }
}

/// Commands whose result is known.
fn script() -> impl Iterator<Item = Command> {
    (0..40).map(|n| Command::nth(if n % 3 == 1 { STEP } else { INJECT }, 7 * n))
}

/// That a field on a device does what it should, however it is asked.
pub fn check_field(mut command: impl FnMut(Command) -> Result<()>, read: impl Fn(u32) -> Result<f32>) -> Result<()> {
    let mut expected = Field::STILL;
    for next in script() {
        command(next)?;
        expected.apply(&next);
    }
    for cell in [0, 7, 8, CELLS as u32 - 1] {
        let (got, wanted) = (read(cell)?, expected.apply(&Command { kind: READ, cell, amount: 0.0, rest: 0 }));
        if (got - wanted).abs() > 1e-5 {
            return Err(Error::Wrong(format!("cell {cell} is {got} instead of {wanted}")));
        }
    }
    Ok(())
}

/// A fresh context on a device, and a kernel that is active there.
pub fn launched<H: Handler>(device: &str, handler: H, options: LaunchOptions) -> Result<(Device, Resident<H>)> {
    let device = devices::open(device)?;
    let kernel = device.launch(handler, options)?;
    kernel.wait_for(Status::Active, Instant::now() + PATIENCE)?;
    Ok((device, kernel))
}

/// Waits until a kernel has handled so many messages, as its telemetry says.
#[inline]
pub fn until_handled<H: Handler>(kernel: &Resident<H>, messages: u64) -> Result<()> {
    let (mut looks, mut deadline) = (0u32, None);
    while kernel.telemetry().handled < messages {
        looks = looks.wrapping_add(1);
        if looks.is_multiple_of(1024) {
            // Whoever is late may need this core.
            std::thread::yield_now();
            let now = Instant::now();
            if now > *deadline.get_or_insert(now + PATIENCE) {
                return Err(Error::Timeout(PATIENCE));
            }
        }
        std::hint::spin_loop();
    }
    Ok(())
}

/// The kinds of devices on which kernels can be resident here. One that says that it cannot is left out; one that fails
/// otherwise is kept, so that the failure shows.
pub fn residential() -> Vec<&'static str> {
    let lives = |id: &'static str| {
        let tried = guarded(6 * PATIENCE, move || {
            let device = devices::open(id).ok()?;
            Some(device.launch(Adder, LaunchOptions::default()).map(drop))
        });
        !matches!(tried, Ok(None | Some(Err(resident::Error::NoImplementation { .. }))))
    };
    ["cpu", "gpu"].into_iter().filter(|id| devices::chosen().has(id) && lives(id)).collect()
}

/// What a side is called on a device: those on the CPU just so.
pub fn side_on(side: &str, device: &str) -> String {
    if device == "cpu" { side.to_owned() } else { format!("{side}-{device}") }
}

/// The device that is in a side's name.
pub fn device_of(side: &str) -> &'static str {
    if side.ends_with("-gpu") { "gpu" } else { "cpu" }
}
