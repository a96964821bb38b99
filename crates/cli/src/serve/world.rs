//! The simulation that the page shows: a thread that owns the engine, takes orders, and makes sixty frames a second.
//!
//! A device may be lost at any moment. The state is saved now and then, with everything that was done since, so that a
//! fresh device goes on where the lost one was.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace::{Device, Runtime};
use millrace_wave::{Boundary, Cell, Engine, PerStep, Reference, Resident, Room, Scene, State};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::frame::{Frame, header};
use crate::wave::{Content, How};

/// Cells on a side, at most: beyond it a frame takes longer than it is shown.
pub(crate) const MAX_SIZE: u32 = 128;
/// Frames a second.
const RATE: f64 = 60.0;
/// How often the state is saved.
const SAVING: Duration = Duration::from_secs(2);
/// How often the current engine's answers are timed.
const TIMING: Duration = Duration::from_millis(500);
/// Orders that can wait.
const ORDERS: usize = 256;
/// Planes of the picture in three dimensions.
const LAYERS: u32 = 9;
/// What a cell of a frame says of an obstacle.
const SOLID: i8 = -128;

/// Everything that can be set.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Settings {
    pub(crate) size: u32,
    pub(crate) device: String,
    pub(crate) engine: How,
    pub(crate) scene: Content,
    /// Steps of a frame.
    pub(crate) speed: u32,
    /// What the walls let through, from 0 to 1.
    pub(crate) damping: f64,
    /// The length of the tone's wave in cells.
    pub(crate) wavelength: f64,
    /// The plane that is shown.
    pub(crate) slice: u32,
    pub(crate) paused: bool,
}

/// Some settings. What is not said stays as it is.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Change {
    size: Option<u32>,
    device: Option<String>,
    engine: Option<How>,
    scene: Option<Content>,
    speed: Option<u32>,
    damping: Option<f64>,
    wavelength: Option<f64>,
    slice: Option<u32>,
    paused: Option<bool>,
}

impl Settings {
    /// The settings with a change. The slice of another room is its middle, if none is said.
    pub(crate) fn with(&self, change: &Change) -> Self {
        let size = change.size.unwrap_or(self.size);
        Self {
            size,
            device: change.device.clone().unwrap_or_else(|| self.device.clone()),
            engine: change.engine.unwrap_or(self.engine),
            scene: change.scene.unwrap_or(self.scene),
            speed: change.speed.unwrap_or(self.speed),
            damping: change.damping.unwrap_or(self.damping),
            wavelength: change.wavelength.unwrap_or(self.wavelength),
            slice: change.slice.unwrap_or(if size == self.size { self.slice } else { size / 2 }),
            paused: change.paused.unwrap_or(self.paused),
        }
    }

    /// What is wrong with them, if anything is.
    pub(crate) fn check(&self) -> Result<(), String> {
        let wrong = |what: &str| Err(what.to_owned());
        if !(8..=MAX_SIZE).contains(&self.size) {
            return Err(format!("a room has from 8 to {MAX_SIZE} cells on a side"));
        }
        if !(0.0..=1.0).contains(&self.damping) {
            return wrong("the damping is from 0 to 1");
        }
        if !(3.0..=64.0).contains(&self.wavelength) {
            return wrong("a wave is from 3 to 64 cells long");
        }
        if !(1..=64).contains(&self.speed) {
            return wrong("a frame has from 1 to 64 steps");
        }
        if self.slice >= self.size {
            return wrong("the slice is not in the room");
        }
        Ok(())
    }

    fn room(&self) -> Result<Room, String> {
        let setup = self.scene.scene().setup(self.size, Boundary::Absorbing, Scene::tone(self.wavelength));
        setup.admittance(self.damping).build().map_err(|error| error.to_string())
    }

    /// Whether a room of these has to be begun anew.
    fn is_another_room(&self, other: &Self) -> bool {
        (self.size, self.scene) != (other.size, other.scene)
    }
}

/// What can be asked of the simulation.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "do", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Order {
    /// Lets pressure into a cell.
    Inject { cell: Cell, amount: f32 },
    /// Makes cells obstacles or open.
    Draw { cells: Vec<Cell>, solid: bool },
    /// Other settings.
    Set(Change),
    /// Silence.
    Reset,
    /// Times all engines.
    Compare,
    /// Destroys the device's context.
    Destroy,
}

/// What an engine's answers cost.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Timing {
    /// Until an injection is on its way, in nanoseconds.
    pub(crate) inject: f64,
    /// Until a cell's pressure is known, injection included, in nanoseconds.
    pub(crate) round_trip: f64,
    /// How many of those fit into a frame.
    pub(crate) per_frame: f64,
}

/// What everybody may know of the simulation.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Status {
    pub(crate) settings: Settings,
    pub(crate) steps: u64,
    pub(crate) frames: u64,
    pub(crate) frames_per_second: f64,
    pub(crate) cells_per_second: f64,
    /// How often the device was opened.
    pub(crate) generation: u32,
    pub(crate) recoveries: u64,
    /// The pressure that is shown in full colour.
    pub(crate) scale: f32,
    /// By device and engine.
    pub(crate) timings: BTreeMap<String, Timing>,
    /// What went wrong last, or was noteworthy.
    pub(crate) notice: String,
}

/// The simulation as others see it.
#[derive(Clone)]
pub(crate) struct World {
    orders: mpsc::SyncSender<Order>,
    pub(crate) frames: watch::Receiver<Frame>,
    status: Arc<Mutex<Status>>,
    device: Arc<Mutex<Option<Device>>>,
    /// How many look at layers.
    pub(crate) deep: Arc<AtomicUsize>,
}

impl World {
    /// Begins. It ends when the last handle is dropped.
    pub(crate) fn start(runtime: Runtime, settings: Settings) -> Result<Self, String> {
        settings.check()?;
        let (orders, receiver) = mpsc::sync_channel(ORDERS);
        let (sender, frames) = watch::channel(Frame::default());
        let stage = Stage::new(runtime, settings)?;
        let status = Arc::new(Mutex::new(stage.status.clone()));
        let device = Arc::new(Mutex::new(stage.device.clone()));
        let deep = Arc::new(AtomicUsize::new(0));
        let world = Self { orders, frames, status: status.clone(), device: device.clone(), deep: deep.clone() };
        let outlets = Outlets { sender, status, device, deep };
        let thread = std::thread::Builder::new().name("millrace-wave".into());
        thread.spawn(move || stage.run(&receiver, &outlets)).map_err(|error| error.to_string())?;
        Ok(world)
    }

    /// Asks for something; false if too much is waiting.
    pub(crate) fn order(&self, order: Order) -> bool {
        self.orders.try_send(order).is_ok()
    }

    pub(crate) fn status(&self) -> Status {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The device that it runs on, if it runs on one.
    pub(crate) fn device(&self) -> Option<Device> {
        self.device.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Where the thread puts what it makes.
struct Outlets {
    sender: watch::Sender<Frame>,
    status: Arc<Mutex<Status>>,
    device: Arc<Mutex<Option<Device>>>,
    deep: Arc<AtomicUsize>,
}

/// What was done to the room, so that it can be done again.
#[derive(Debug, Clone)]
enum Deed {
    Inject(Cell, f32),
    Draw(Cell, bool),
}

/// The thread's own.
struct Stage {
    runtime: Runtime,
    engine: Box<dyn Engine>,
    device: Option<Device>,
    status: Status,
    saved: (u64, State),
    /// What was done since, and before which step.
    since: Vec<(u64, Deed)>,
    saved_at: Instant,
    timed_at: Instant,
    /// Seconds of a frame, smoothed.
    frame: f64,
}

fn engine_on(device: Option<&Device>, how: How, room: Room) -> Result<Box<dyn Engine>, String> {
    let text = |error: millrace_wave::Error| error.to_string();
    Ok(match (how, device) {
        (How::Reference, _) | (_, None) => Box::new(Reference::new(room).map_err(text)?),
        (How::Launch, Some(device)) => Box::new(PerStep::on(device, room).map_err(text)?),
        (How::Resident, Some(device)) => Box::new(Resident::on(device, room).map_err(text)?),
    })
}

fn open(runtime: &Runtime, settings: &Settings) -> Result<Option<Device>, String> {
    if settings.engine == How::Reference {
        return Ok(None);
    }
    runtime.open(&settings.device).map(Some).map_err(|error| error.to_string())
}

impl Stage {
    fn new(runtime: Runtime, settings: Settings) -> Result<Self, String> {
        let device = open(&runtime, &settings)?;
        let mut engine = engine_on(device.as_ref(), settings.engine, settings.room()?)?;
        let state = engine.state().map_err(|error| error.to_string())?;
        let status = Status {
            settings,
            steps: 0,
            frames: 0,
            frames_per_second: 0.0,
            cells_per_second: 0.0,
            generation: device.as_ref().map_or(0, |device| device.health().generation),
            recoveries: 0,
            scale: 1e-3,
            timings: BTreeMap::new(),
            notice: String::new(),
        };
        let (now, since) = (Instant::now(), Vec::new());
        let (saved_at, timed_at, frame) = (now, now, 1.0 / RATE);
        Ok(Self { runtime, engine, device, status, saved: (0, state), since, saved_at, timed_at, frame })
    }

    fn run(mut self, orders: &mpsc::Receiver<Order>, outlets: &Outlets) {
        let mut next = Instant::now();
        let mut last = Instant::now();
        let mut shown = Frame::default();
        loop {
            loop {
                match orders.try_recv() {
                    Ok(order) => self.obey(order),
                    Err(mpsc::TryRecvError::Empty) => break,
                    Err(mpsc::TryRecvError::Disconnected) => return,
                }
            }
            let frame = match self.advance(outlets.deep.load(Ordering::Relaxed) > 0) {
                Ok(frame) => frame,
                Err(error) if self.recover(&error) => continue,
                Err(_) => {
                    // Everybody learns why nothing moves. It is tried again, not in haste.
                    if !self.publish(outlets, shown.under(&self.status)) {
                        return;
                    }
                    std::thread::sleep(Duration::from_millis(500));
                    continue;
                }
            };
            shown = frame.clone();
            self.status.frames += 1;
            self.frame += 0.05 * (last.elapsed().as_secs_f64() - self.frame);
            last = Instant::now();
            self.status.frames_per_second = 1.0 / self.frame.max(1e-6);
            if !self.publish(outlets, frame) {
                return;
            }
            next = (next + Duration::from_secs_f64(1.0 / RATE)).max(Instant::now());
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }

    /// Shows how it is; false if nobody is left.
    fn publish(&self, outlets: &Outlets, frame: Frame) -> bool {
        *outlets.status.lock().unwrap_or_else(PoisonError::into_inner) = self.status.clone();
        *outlets.device.lock().unwrap_or_else(PoisonError::into_inner) = self.device.clone();
        outlets.sender.send(frame).is_ok()
    }

    fn obey(&mut self, order: Order) {
        self.status.notice.clear();
        let done = match order {
            Order::Inject { cell, amount } => self.change(Deed::Inject(cell, amount.clamp(-1e3, 1e3))),
            Order::Draw { cells, solid } => cells.into_iter().try_for_each(|cell| self.change(Deed::Draw(cell, solid))),
            Order::Set(change) => {
                let settings = self.status.settings.with(&change);
                settings.check().and_then(|()| self.set(settings))
            }
            Order::Reset => self.renew(self.status.settings.clone()),
            Order::Compare => self.compare(),
            Order::Destroy => self.destroy(),
        };
        if let Err(notice) = done {
            self.status.notice = notice;
        }
    }

    fn change(&mut self, change: Deed) -> Result<(), String> {
        apply(&mut *self.engine, &change).map_err(|error| error.to_string())?;
        self.since.push((self.engine.steps(), change));
        Ok(())
    }

    /// A room from the beginning.
    fn renew(&mut self, settings: Settings) -> Result<(), String> {
        let device = open(&self.runtime, &settings)?;
        let mut engine = engine_on(device.as_ref(), settings.engine, settings.room()?)?;
        self.saved = (0, engine.state().map_err(|error| error.to_string())?);
        self.since.clear();
        (self.engine, self.device, self.status.settings, self.status.scale) = (engine, device, settings, 1e-3);
        Ok(())
    }

    /// Other settings: the sound that is in the room stays, if it is the same room.
    fn set(&mut self, settings: Settings) -> Result<(), String> {
        let old = &self.status.settings;
        if settings.is_another_room(old) {
            return self.renew(settings);
        }
        let same_engine = (&settings.device, settings.engine) == (&old.device, old.engine);
        if same_engine && (settings.damping, settings.wavelength) == (old.damping, old.wavelength) {
            self.status.settings = settings;
            return Ok(());
        }
        let text = |error: millrace_wave::Error| error.to_string();
        let (state, steps) = (self.engine.state().map_err(text)?, self.engine.steps());
        let mut device = if same_engine { self.device.clone() } else { open(&self.runtime, &settings)? };
        let room = settings.room()?;
        let mut engine = match engine_on(device.as_ref(), settings.engine, room.clone()) {
            // A device may have room for one of them only, and the old one stays until nothing can go wrong any more.
            Err(_) if same_engine => {
                device = open(&self.runtime, &settings)?;
                engine_on(device.as_ref(), settings.engine, room)?
            }
            done => done?,
        };
        // What was drawn is in the old room only.
        let [nx, ny, nz] = engine.room().size();
        for z in 0..nz {
            for y in 0..ny {
                for x in 0..nx {
                    let solid = self.engine.room().is_solid([x, y, z]);
                    if solid != engine.room().is_solid([x, y, z]) {
                        engine.set_obstacle([x, y, z], solid).map_err(text)?;
                    }
                }
            }
        }
        engine.load(&state).map_err(text)?;
        engine.set_steps(steps);
        (self.engine, self.device, self.status.settings) = (engine, device, settings);
        (self.saved, self.saved_at) = ((steps, state), Instant::now());
        self.since.clear();
        Ok(())
    }

    /// Makes the device lose its context, as a driver's fault would.
    fn destroy(&mut self) -> Result<(), String> {
        let Some(device) = &self.device else { return Err("the reference runs on no device".to_owned()) };
        match device.backend().downcast::<millrace::gpu::Gpu>() {
            Some(gpu) => {
                gpu.wgpu().destroy();
                if let Some(resident) = gpu.resident_wgpu() {
                    resident.destroy();
                }
            }
            // A processor is not lost; its context can be given up.
            None => drop(self.recover("it was given up")),
        }
        Ok(())
    }

    /// Goes on with a fresh device, from what was saved.
    fn recover(&mut self, error: &str) -> bool {
        let steps = self.engine.steps();
        let mut again = || -> Result<(), String> {
            let fresh = match &self.device {
                Some(device) => Some(device.recover().map_err(|error| error.to_string())?),
                None => None,
            };
            let text = |error: millrace_wave::Error| error.to_string();
            // The room as it was when it was saved: what was drawn since is drawn again.
            let mut plain = Reference::new(self.engine.room().clone()).map_err(text)?;
            for (_, change) in self.since.iter().rev() {
                if let Deed::Draw(cell, solid) = change {
                    plain.set_obstacle(*cell, !solid).map_err(text)?;
                }
            }
            let room = plain.room().clone();
            let mut engine = engine_on(fresh.as_ref(), self.status.settings.engine, room)?;
            engine.load(&self.saved.1).map_err(text)?;
            engine.set_steps(self.saved.0);
            for (before, change) in &self.since {
                engine.step(before.saturating_sub(engine.steps())).map_err(text)?;
                apply(&mut *engine, change).map_err(text)?;
            }
            engine.step(steps.saturating_sub(engine.steps())).map_err(text)?;
            engine.finish().map_err(text)?;
            (self.engine, self.device) = (engine, fresh);
            Ok(())
        };
        match again() {
            Ok(()) => {
                self.status.recoveries += 1;
                self.status.generation = self.device.as_ref().map_or(0, |device| device.health().generation);
                self.status.notice = format!("the device was lost ({error}); a fresh one goes on at step {steps}");
                true
            }
            Err(again) => {
                self.status.notice = format!("the device was lost ({error}) and cannot be opened again: {again}");
                false
            }
        }
    }

    /// The steps of a frame, and the frame.
    fn advance(&mut self, deep: bool) -> Result<Frame, String> {
        let text = |error: millrace_wave::Error| error.to_string();
        let settings = self.status.settings.clone();
        if !settings.paused {
            let start = Instant::now();
            self.engine.step(settings.speed.into()).map_err(text)?;
            self.engine.finish().map_err(text)?;
            let cells = self.engine.room().cells() as f64 * f64::from(settings.speed);
            let rate = cells / start.elapsed().as_secs_f64().max(1e-9);
            let smoothed = self.status.cells_per_second;
            self.status.cells_per_second = if smoothed == 0.0 { rate } else { smoothed + 0.1 * (rate - smoothed) };
        }
        if self.timed_at.elapsed() > TIMING {
            self.timed_at = Instant::now();
            let timing = timing(&mut *self.engine, 8).map_err(text)?;
            self.status.timings.insert(name_of(&settings), timing);
        }
        if self.saved_at.elapsed() > SAVING {
            self.saved = (self.engine.steps(), self.engine.state().map_err(text)?);
            self.since.clear();
            self.saved_at = Instant::now();
        }
        self.status.steps = self.engine.steps();
        self.frame(deep)
    }

    fn frame(&mut self, deep: bool) -> Result<Frame, String> {
        let text = |error: millrace_wave::Error| error.to_string();
        let slice = self.engine.plane(self.status.settings.slice).map_err(text)?;
        // A few times what is usual: the source alone does not set the scale.
        let power = slice.iter().map(|p| p * p).sum::<f32>() / slice.len() as f32;
        self.status.scale = (self.status.scale * 0.97).max(4.0 * power.sqrt()).max(1e-6);
        let mut bytes = header(&self.status);
        bytes.reserve(slice.len());
        self.put(&mut bytes, self.status.settings.slice, &slice);
        let flat = Bytes::from(bytes.clone());
        if !deep {
            return Ok(Frame { flat: flat.clone(), deep: flat });
        }
        let size = self.status.settings.size;
        for n in 0..LAYERS {
            let z = ((2 * n + 1) * size / (2 * LAYERS)).min(size - 1);
            let plane = self.engine.plane(z).map_err(text)?;
            self.put(&mut bytes, z, &plane);
        }
        Ok(Frame { flat, deep: bytes.into() })
    }

    /// A byte for every cell of a plane.
    fn put(&self, bytes: &mut Vec<u8>, z: u32, plane: &[f32]) {
        let (room, side) = (self.engine.room(), self.status.settings.size);
        let factor = 127.0 / self.status.scale;
        bytes.extend(plane.iter().zip(0u32..).map(|(pressure, n)| {
            let level = (pressure * factor).clamp(-127.0, 127.0) as i8;
            (if room.is_solid([n % side, n / side, z]) { SOLID } else { level }) as u8
        }));
    }

    /// Times every engine on every device, with the sound that is in the room now.
    fn compare(&mut self) -> Result<(), String> {
        let text = |error: millrace_wave::Error| error.to_string();
        let state = self.engine.state().map_err(text)?;
        let room = self.engine.room().clone();
        let found = self.runtime.devices().into_iter().filter(|found| found.unavailable.is_none());
        let devices: Vec<String> = found.map(|found| found.id).collect();
        for device in devices {
            for engine in [How::Resident, How::Launch] {
                let settings = Settings { device: device.clone(), engine, ..self.status.settings.clone() };
                let timed = || -> Result<Timing, String> {
                    let opened = open(&self.runtime, &settings)?;
                    let mut engine = engine_on(opened.as_ref(), engine, room.clone())?;
                    engine.load(&state).map_err(text)?;
                    timing(&mut *engine, 32).map_err(text)
                };
                match timed() {
                    Ok(timing) => drop(self.status.timings.insert(name_of(&settings), timing)),
                    Err(why) => self.status.notice = format!("{}: {why}", name_of(&settings)),
                }
            }
        }
        Ok(())
    }
}

fn name_of(settings: &Settings) -> String {
    match settings.engine {
        How::Reference => "reference".to_owned(),
        How::Launch => format!("launch on {}", settings.device),
        How::Resident => format!("resident on {}", settings.device),
    }
}

fn apply(engine: &mut dyn Engine, change: &Deed) -> millrace_wave::Result<()> {
    match *change {
        Deed::Inject(cell, amount) => engine.inject(cell, amount),
        Deed::Draw(cell, solid) => engine.set_obstacle(cell, solid),
    }
}

/// Times an injection of nothing, and how long it takes to know a cell afterwards; the middle of several.
fn timing(engine: &mut dyn Engine, times: usize) -> millrace_wave::Result<Timing> {
    let [nx, ny, nz] = engine.room().size();
    let open = (0..nx).map(|x| [x, ny / 2, nz / 2]).find(|&cell| !engine.room().is_solid(cell)).unwrap_or([0; 3]);
    engine.finish()?;
    let (mut injections, mut trips) = (Vec::new(), Vec::new());
    for _ in 0..times {
        let start = Instant::now();
        engine.inject(open, 0.0)?;
        injections.push(start.elapsed().as_nanos() as f64);
        engine.pressure(open)?;
        trips.push(start.elapsed().as_nanos() as f64);
    }
    let middle = |mut samples: Vec<f64>| {
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    };
    let (inject, round_trip) = (middle(injections), middle(trips));
    Ok(Timing { inject, round_trip, per_frame: 1e9 / RATE / round_trip })
}

#[cfg(test)]
mod tests;
