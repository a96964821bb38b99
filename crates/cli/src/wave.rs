//! `millrace wave`

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use millrace::core::file;
use millrace_wave::{Boundary, Engine, Error, PerStep, Picture, Reference, Resident, Room, Scene, Signal};
use serde::{Deserialize, Serialize};

use crate::{
    Failure,
    serve::{self, Settings},
    stop::Run,
    table::time,
};

/// A progress bar comes up when a run takes longer than this.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the steps may take that are asked for at once: as late a stop may be noticed.
const CHUNK: Duration = Duration::from_millis(100);
/// Cells of a tone's wave,
const TONE: f64 = 8.0;
/// and of a pulse's, whose shorter parts would be left behind on a coarser grid.
const PULSE: f64 = 12.0;

#[derive(Args)]
pub(crate) struct Options {
    /// Cells on each side of the room
    #[arg(long, default_value_t = 96, value_parser = clap::value_parser!(u32).range(1..))]
    size: u32,
    /// How many steps to do; sound goes half a cell in each [default: twice the size]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// Where: a device by id or kind [default: cpu]
    #[arg(long)]
    device: Option<String>,
    /// How the steps are done
    #[arg(long, value_enum, default_value_t = How::Launch)]
    engine: How,
    /// What the walls of the room do
    #[arg(long, value_enum, default_value_t = Walls::Absorbing)]
    boundary: Walls,
    /// What is in the room
    #[arg(long, value_enum, default_value_t = Content::Slits)]
    scene: Content,
    /// What makes the sound
    #[arg(long, value_enum, default_value_t = Sound::Sine)]
    source: Sound,
    /// Write a picture of the middle of the room to this file: blue is less pressure and red is more, obstacles are dark
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
    /// Run here and end, without the page; --steps, --png and --json mean it, too
    #[arg(long)]
    headless: bool,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

/// How the steps are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum How {
    /// Plain loops on one thread, without any device
    Reference,
    /// A kernel launch for every step
    Launch,
    /// A kernel that stays on the device and is sent a message for every step
    Resident,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Walls {
    /// They let sound out
    Absorbing,
    /// They are rigid
    Reflecting,
}

/// What is in the room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Content {
    /// Nothing but the source in the middle
    Empty,
    /// A wall with two slits
    Slits,
    /// A ball
    Ball,
}

impl Content {
    pub(crate) fn scene(self) -> Scene {
        match self {
            Self::Empty => Scene::Empty,
            Self::Slits => Scene::Slits,
            Self::Ball => Scene::Ball,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sound {
    /// One cell, once
    Impulse,
    /// A lasting tone
    Sine,
    /// One smooth pulse
    Ricker,
}

#[derive(Serialize)]
struct Report {
    engine: &'static str,
    device: Option<String>,
    device_name: Option<String>,
    size: [u32; 3],
    boundary: &'static str,
    steps: u64,
    /// Of simulated time.
    seconds_simulated: f64,
    /// Of the run.
    seconds: f64,
    cells_per_second: f64,
    steps_per_second: f64,
    /// In squares of pressure.
    energy: f64,
    png: Option<PathBuf>,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Device(error) => Self::Device(error),
            error if error.is_callers() => Self::Usage(error.to_string()),
            error => Self::Failed(error.to_string()),
        }
    }
}

/// The run that Ctrl-C stops.
pub(crate) static RUN: Run = Run::new();

impl Options {
    fn room(&self) -> Result<Room, Failure> {
        let signal = match self.source {
            Sound::Impulse => Signal::Impulse,
            Sound::Sine => Scene::tone(TONE),
            Sound::Ricker => Scene::pulse(PULSE),
        };
        let boundary = match self.boundary {
            Walls::Absorbing => Boundary::Absorbing,
            Walls::Reflecting => Boundary::Reflecting,
        };
        Ok(self.scene.scene().setup(self.size, boundary, signal).build()?)
    }
}

impl Options {
    /// What the page begins with; it has no pulses.
    fn settings(&self) -> Settings {
        Settings {
            size: self.size,
            device: self.device.clone().unwrap_or_else(|| "cpu".to_owned()),
            engine: self.engine,
            scene: self.scene,
            speed: 2,
            damping: if self.boundary == Walls::Absorbing { 1.0 } else { 0.0 },
            wavelength: TONE,
            slice: self.size / 2,
            paused: false,
        }
    }
}

pub(crate) fn wave(options: &Options) -> Result<(), Failure> {
    if !options.headless && options.steps.is_none() && options.png.is_none() && !options.json {
        let settings = options.settings();
        let can = settings.check().and(if options.source == Sound::Sine {
            Ok(())
        } else {
            Err("the page has a lasting tone only".to_owned())
        });
        can.map_err(|why| Failure::Usage(format!("{why}; or take --headless")))?;
        return serve::watch(settings);
    }
    if options.engine == How::Reference && options.device.is_some() {
        return Err(Failure::Usage("the reference runs on no device; leave --device out".to_owned()));
    }
    let device = match options.engine {
        How::Reference => None,
        How::Launch | How::Resident => Some(millrace::runtime().open(options.device.as_deref().unwrap_or("cpu"))?),
    };
    let room = options.room()?;
    if let Some(path) = &options.png {
        // Better known before the run than after.
        file::check(path)?;
    }
    let mut engine: Box<dyn Engine> = match &device {
        None => Box::new(Reference::new(room)?),
        Some(device) if options.engine == How::Resident => Box::new(Resident::on(device, room)?),
        Some(device) => Box::new(PerStep::on(device, room)?),
    };
    let steps = options.steps.unwrap_or(2 * u64::from(options.size));
    let seconds = run(&mut *engine, steps)?.as_secs_f64();
    let energy = engine.energy()?;
    let middle = options.size / 2;
    if let Some(path) = &options.png {
        let plane = engine.plane(middle)?;
        let picture = Picture::of(engine.room(), middle, &plane)?.to_png()?;
        file::write(path, |out| out.write_all(&picture))?;
    }
    let room = engine.room();
    let report = Report {
        engine: engine.name(),
        device: engine.device().map(str::to_owned),
        device_name: device.map(|device| device.info().name.clone()),
        size: room.size(),
        boundary: match options.boundary {
            Walls::Absorbing => "absorbing",
            Walls::Reflecting => "reflecting",
        },
        steps,
        seconds_simulated: steps as f64 * room.time_step(),
        seconds,
        cells_per_second: room.cells() as f64 * steps as f64 / seconds,
        steps_per_second: steps as f64 / seconds,
        energy,
        png: options.png.clone(),
    };
    if options.json {
        let text = serde_json::to_string_pretty(&report);
        println!("{}", text.map_err(|error| Failure::Failed(error.to_string()))?);
    } else {
        print(&report);
    }
    Ok(())
}

/// Does the steps, in pieces after which the user can stop them; says how long it took.
fn run(engine: &mut dyn Engine, steps: u64) -> Result<Duration, Failure> {
    let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
    if let Ok(style) = ProgressStyle::with_template("{bar:32} {percent:>3}%  {eta:>4} left  step {pos} of {len}") {
        bar.set_style(style);
    }
    RUN.begin();
    let start = Instant::now();
    let mut piece = 1;
    while engine.steps() < steps {
        if RUN.is_stopping() {
            bar.finish_and_clear();
            return Err(Failure::Stopped(format!("stopped after {} of {steps} steps", engine.steps())));
        }
        let began = Instant::now();
        engine.step(piece.min(steps - engine.steps()))?;
        engine.finish()?;
        // As many steps as fit, but never many more than the last time.
        let fit = CHUNK.as_secs_f64() / began.elapsed().as_secs_f64().max(1e-9);
        piece = ((piece as f64 * fit.min(4.0)) as u64).max(1);
        if bar.is_hidden() && start.elapsed() > PATIENCE {
            bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        bar.set_position(engine.steps());
    }
    let took = start.elapsed();
    RUN.end();
    bar.finish_and_clear();
    Ok(took)
}

fn print(report: &Report) {
    let [nx, ny, nz] = report.size;
    let place = match (&report.device, &report.device_name) {
        (Some(id), Some(name)) => format!("{id} ({name})"),
        _ => "one thread, no device".to_owned(),
    };
    let took = time(report.seconds * 1e9);
    println!("room      {nx} × {ny} × {nz} cells, {} walls", report.boundary);
    println!("engine    {} on {place}", report.engine);
    println!("steps     {} in {took}; {} of sound", report.steps, time(report.seconds_simulated * 1e9));
    println!("speed     {:.1} million cells per second", report.cells_per_second / 1e6);
    println!("energy    {:.6e}", report.energy);
    if let Some(path) = &report.png {
        println!("picture   {}", path.display());
    }
}
