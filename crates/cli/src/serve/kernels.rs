//! Resident kernels that the page launches, steers and talks to.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use millrace::{
    Device,
    resident::{Handler, Launch, LaunchOptions, Message, Resident, Scope, Status},
};
use serde::{Deserialize, Serialize};

/// Kernels at a time.
const MOST: usize = 32;
/// How long a question may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Two numbers.
#[derive(Debug, Clone, Copy, Message, Serialize, Deserialize)]
#[repr(C)]
pub(crate) struct Pair {
    a: f32,
    b: f32,
}

/// One number.
#[derive(Debug, Clone, Copy, Message, Serialize)]
#[repr(C)]
pub(crate) struct Number {
    value: f32,
}

/// Adds two numbers.
struct Adder;

impl Handler for Adder {
    type Message = Pair;
    type Reply = Number;
    type State = ();
    const WGSL: Option<&'static str> = Some("return Number(message.a + message.b);");
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), pair: &Pair, _: &mut Scope<'_, Number>) -> Number {
        Number { value: pair.a + pair.b }
    }
}

/// Adds what it is sent to what it remembers: `a` times `b`.
struct Account;

impl Handler for Account {
    type Message = Pair;
    type Reply = Number;
    type State = Number;
    const WGSL: Option<&'static str> = Some("(*state).value += message.a * message.b; return Number((*state).value);");
    fn state(&self) -> Number {
        Number { value: 0.0 }
    }
    fn handle(&mut self, sum: &mut Number, pair: &Pair, _: &mut Scope<'_, Number>) -> Number {
        sum.value += pair.a * pair.b;
        *sum
    }
}

/// What can be launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    Adder,
    Account,
}

/// What a kernel can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Command {
    Activate,
    Pause,
    Drain,
    Terminate,
    /// Terminate, and forget it.
    Remove,
}

enum Kernel {
    Adder(Resident<Adder>),
    Account(Resident<Account>),
}

/// Does the same with a kernel of any kind.
macro_rules! either {
    ($kernel:expr, $it:ident => $what:expr) => {
        match $kernel {
            Kernel::Adder($it) => $what,
            Kernel::Account($it) => $what,
        }
    };
}

/// A kernel as the page shows it.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Shown {
    id: u32,
    kind: Kind,
    device: String,
    status: &'static str,
    residency: String,
    handled: u64,
    failed: u64,
    sent: u64,
    rests: u32,
    waiting: (u32, u32),
    clock_ns: u128,
}

struct Entry {
    kind: Kind,
    device: String,
    kernel: Kernel,
}

/// All kernels that the page launched.
#[derive(Default)]
pub(crate) struct Kernels {
    all: Mutex<(u32, BTreeMap<u32, std::sync::Arc<Entry>>)>,
}

impl Kernels {
    fn lock(&self) -> MutexGuard<'_, (u32, BTreeMap<u32, std::sync::Arc<Entry>>)> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn launch(&self, kind: Kind, device: &Device) -> Result<u32, String> {
        if self.lock().1.len() >= MOST {
            return Err(format!("there are {MOST} kernels already; remove one"));
        }
        let (options, text) = (LaunchOptions::default(), |error: millrace::resident::Error| error.to_string());
        let kernel = match kind {
            Kind::Adder => Kernel::Adder(device.launch(Adder, options).map_err(text)?),
            Kind::Account => Kernel::Account(device.launch(Account, options).map_err(text)?),
        };
        let mut all = self.lock();
        all.0 += 1;
        let id = all.0;
        all.1.insert(id, std::sync::Arc::new(Entry { kind, device: device.info().id.clone(), kernel }));
        Ok(id)
    }

    fn find(&self, id: u32) -> Result<std::sync::Arc<Entry>, String> {
        self.lock().1.get(&id).cloned().ok_or_else(|| format!("there is no kernel {id}"))
    }

    pub(crate) fn list(&self) -> Vec<Shown> {
        let all: Vec<_> = self.lock().1.iter().map(|(&id, entry)| (id, entry.clone())).collect();
        let show = |(id, entry): (u32, std::sync::Arc<Entry>)| {
            let (telemetry, residency) =
                either!(&entry.kernel, kernel => (kernel.telemetry(), kernel.residency().to_string()));
            Shown {
                id,
                kind: entry.kind,
                device: entry.device.clone(),
                status: telemetry.status.name(),
                residency,
                handled: telemetry.handled,
                failed: telemetry.failed,
                sent: telemetry.sent,
                rests: telemetry.rests,
                waiting: telemetry.waiting,
                clock_ns: telemetry.clock.since_epoch().as_nanos(),
            }
        };
        all.into_iter().map(show).collect()
    }

    pub(crate) fn command(&self, id: u32, command: Command) -> Result<(), String> {
        let entry = self.find(id)?;
        let told = either!(&entry.kernel, kernel => match command {
            Command::Activate => kernel.activate(),
            Command::Pause => kernel.pause(),
            Command::Drain => kernel.drain(),
            Command::Terminate | Command::Remove => kernel.terminate(),
        });
        if command == Command::Remove {
            self.lock().1.remove(&id);
            return Ok(());
        }
        told.map_err(|error| error.to_string())
    }

    /// Asks a kernel; says what it answered and how long that took in nanoseconds.
    pub(crate) fn ask(&self, id: u32, message: Pair) -> Result<(Number, u128), String> {
        let entry = self.find(id)?;
        let paused = either!(&entry.kernel, kernel => matches!(kernel.status(), Status::Paused | Status::Launched));
        if paused {
            return Err("the kernel is paused; activate it to get answers".to_owned());
        }
        let start = Instant::now();
        let answer = either!(&entry.kernel, kernel => kernel.ask_deadline(message, start + PATIENCE));
        answer.map(|answer| (answer, start.elapsed().as_nanos())).map_err(|error| error.to_string())
    }
}
