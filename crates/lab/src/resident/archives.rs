//! Writing messages in place, checking them, and reading them where they are.

use std::{
    hint::black_box,
    mem::offset_of,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::Instant,
};

use bytemuck::{Pod, Zeroable};
use millrace::resident::{
    Archive, ArchivedHandler, ArchivedResident, Handler, Launch, LaunchOptions, Message, Resident, Scope,
    layout::{HEADER, RegionLayout},
    rkyv,
};

use super::{
    Effort,
    ends::{Writer, reader_is_here, rest, until_asleep},
    kernels::{PAIR, PATIENCE, Pair, Sum, until_handled},
};
use crate::{
    Error, Result,
    measure::{Metric, Side, batch_timed, clock_cost},
    resident::kernels::{Command, INJECT},
};

/// A request with two vectors.
#[derive(Debug, rkyv::Archive, rkyv::Serialize)]
#[rkyv(crate = rkyv)]
pub struct VectorAdd {
    /// Which request it is.
    pub id: u64,
    /// Which request it answers.
    pub correlation: Option<u64>,
    /// How urgent it is.
    pub priority: u32,
    /// One vector.
    pub a: Vec<f32>,
    /// The other one.
    pub b: Vec<f32>,
}

/// Floats of a vector, as the seed has them.
pub const FLOATS: usize = 1000;

impl VectorAdd {
    /// With two vectors of so many floats.
    pub fn of(floats: usize) -> Self {
        Self { id: 7, correlation: None, priority: 1, a: vec![1.0; floats], b: vec![2.0; floats] }
    }
}

/// Messages that are sent in a row: few enough that the slots stay in a cache, and so many that what the first one after a
/// rest costs is not most of it.
pub const BURST: usize = 64;
/// The same for messages that fill a large slot, and its bytes.
pub const LARGE_BURST: usize = 32;
const LARGE: usize = 8192;
/// Bytes of a slot for small archives.
const SMALL: usize = 128;

/// Adds up everything that it is sent: a consumer that really reads.
#[derive(Debug)]
pub struct Reader;

impl ArchivedHandler for Reader {
    type Message = VectorAdd;
    type Reply = f32;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), message: &rkyv::Archived<VectorAdd>, scope: &mut Scope<'_, f32>) -> f32 {
        if !scope.is_ask() {
            scope.no_reply();
            reader_is_here();
        }
        message.a.iter().chain(message.b.iter()).map(|value| value.to_native()).sum()
    }
}

pub(super) fn sides(effort: &Effort) -> Vec<Side> {
    let side = |name: &str, body: fn(&Effort) -> Result<Vec<Metric>>| {
        let effort = effort.clone();
        Side::new(name, move || body(&effort))
    };
    vec![side("millrace", ours), side("rkyv", rkyv_alone), side("limit", limit)]
}

/// Whether a reader saw all of two vectors.
fn read_all(sum: f32, floats: usize) -> Result<()> {
    if sum == 3.0 * floats as f32 { Ok(()) } else { Err(Error::Wrong(format!("the reader saw {sum}"))) }
}

/// Writes archives into the slots of a kernel that is paused meanwhile, and sleeps on another core.
#[derive(Debug)]
pub struct Archives {
    reader: ArchivedResident<Reader>,
    message: VectorAdd,
    burst: usize,
    sent: u64,
}

impl Archives {
    /// Messages with two vectors of so many floats.
    pub fn of(floats: usize) -> Result<Self> {
        let device = millrace::runtime().open("cpu")?;
        let (burst, payload) = if floats < FLOATS { (BURST, SMALL) } else { (LARGE_BURST, LARGE) };
        let options = LaunchOptions::default().inbound(burst).payload(payload);
        let (reader, message) = (device.launch_archived(Reader, options)?, VectorAdd::of(floats));
        read_all(reader.ask(&message)?.to_native(), floats)?;
        Ok(Self { reader, message, burst, sent: 1 })
    }

    /// Writes some in a row, and says how many nanoseconds each took. Then they are read.
    pub fn burst(&mut self) -> Result<f64> {
        let _here = Writer::is_here();
        let rests = self.reader.telemetry().rests;
        self.reader.pause()?;
        until_asleep(|| self.reader.telemetry(), rests);
        let before = Instant::now();
        for _ in 0..self.burst {
            self.reader.try_send(black_box(&self.message))?;
        }
        let took = each(before, self.burst);
        self.sent += self.burst as u64;
        self.reader.activate()?;
        let deadline = Instant::now() + PATIENCE;
        while self.reader.telemetry().handled < self.sent {
            if Instant::now() > deadline {
                return Err(Error::Timeout(PATIENCE));
            }
            thread::yield_now();
        }
        Ok(took)
    }
}

/// Reads plain messages of sixteen bytes.
#[derive(Debug)]
pub struct Listener;

impl Handler for Listener {
    type Message = Command;
    type Reply = ();
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), command: &Command, _: &mut Scope<'_, ()>) {
        reader_is_here();
        black_box(*command);
    }
}

/// The same as [`VectorAdd`], plain.
#[derive(Debug, Clone, Copy, Message)]
#[repr(C)]
pub struct Vectors {
    id: u64,
    correlation: u64,
    priority: u32,
    kind: u32,
    a: [f32; 1000],
    b: [f32; 1000],
}

/// Adds up both vectors of everything that it is sent.
#[derive(Debug)]
pub struct PlainReader;

impl Handler for PlainReader {
    type Message = Vectors;
    type Reply = Sum;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), vectors: &Vectors, scope: &mut Scope<'_, Sum>) -> Sum {
        if !scope.is_ask() {
            scope.no_reply();
            reader_is_here();
        }
        Sum { value: vectors.a.iter().chain(&vectors.b).sum() }
    }
}

/// The same with plain messages.
#[derive(Debug)]
pub struct Plain<H: Handler> {
    kernel: Resident<H>,
    burst: usize,
    sent: u64,
}

impl<H: Handler> Plain<H> {
    fn of(handler: H, burst: usize) -> Result<Self> {
        let device = millrace::runtime().open("cpu")?;
        Ok(Self { kernel: device.launch(handler, LaunchOptions::default().inbound(burst))?, burst, sent: 0 })
    }

    /// As [`Archives::burst`].
    fn burst_of(&mut self, send: impl Fn(&Resident<H>) -> millrace::resident::Result<()>) -> Result<f64> {
        let _here = Writer::is_here();
        let rests = self.kernel.telemetry().rests;
        self.kernel.pause()?;
        until_asleep(|| self.kernel.telemetry(), rests);
        let before = Instant::now();
        for _ in 0..self.burst {
            send(&self.kernel)?;
        }
        let took = each(before, self.burst);
        self.sent += self.burst as u64;
        self.kernel.activate()?;
        until_handled(&self.kernel, self.sent)?;
        Ok(took)
    }
}

impl Plain<Listener> {
    /// A kernel that takes messages of sixteen bytes.
    pub fn small() -> Result<Self> {
        Self::of(Listener, BURST)
    }

    /// As [`Archives::burst`].
    pub fn burst(&mut self) -> Result<f64> {
        let command = Command::nth(INJECT, 0);
        self.burst_of(|listener| Ok(listener.try_send(black_box(command))?))
    }
}

impl Plain<PlainReader> {
    /// A kernel that takes two vectors of 1000 floats.
    pub fn large() -> Result<Self> {
        let plain = Self::of(PlainReader, LARGE_BURST)?;
        let (a, b) = ([1.0; FLOATS], [2.0; FLOATS]);
        let sum = plain.kernel.ask(Vectors { id: 7, correlation: 0, priority: 1, kind: 0, a, b })?;
        read_all(sum.value, FLOATS)?;
        Ok(Self { sent: 1, ..plain })
    }

    /// As [`Archives::burst`]: builds each where it will lie.
    pub fn burst(&mut self, from: &VectorAdd) -> Result<f64> {
        self.burst_of(|reader| {
            let from = black_box(from);
            reader.try_send_in_place(|vectors| {
                (vectors.id, vectors.correlation) = (from.id, from.correlation.unwrap_or(0));
                (vectors.priority, vectors.kind) = (from.priority, 0);
                vectors.a.copy_from_slice(&from.a);
                vectors.b.copy_from_slice(&from.b);
            })
        })
    }
}

/// Nanoseconds of each of so many since then, less what the clock costs.
fn each(since: Instant, many: usize) -> f64 {
    static CLOCK: OnceLock<f64> = OnceLock::new();
    let took = since.elapsed().as_nanos() as f64;
    (took - CLOCK.get_or_init(clock_cost)).max(0.0) / many as f64
}

/// The mean time of a write, burst by burst.
fn written(effort: &Effort, mut burst: impl FnMut() -> Result<f64>) -> Result<Vec<f64>> {
    let (mut samples, start) = (Vec::new(), Instant::now());
    while start.elapsed() < effort.turn {
        samples.push(burst()?);
    }
    Ok(samples)
}

fn ours(effort: &Effort) -> Result<Vec<Metric>> {
    let (mut small, mut large, vectors) = (Plain::small()?, Plain::large()?, VectorAdd::of(FLOATS));
    let mut metrics = vec![
        Metric::lower("write-16B", "ns", written(effort, || small.burst())?),
        Metric::lower("write-2x1000", "ns", written(effort, || large.burst(&vectors))?),
    ];
    for (case, floats) in [("write-archive-2x1", 1), ("write-archive-2x1000", FLOATS)] {
        let mut archives = Archives::of(floats)?;
        metrics.push(Metric::lower(case, "ns", written(effort, || archives.burst())?));
    }
    metrics.extend(read(effort)?);
    Ok(metrics)
}

/// Checks an archive as a kernel does before its handler sees it, and reads one field.
#[inline]
pub fn checked(bytes: &[u8]) -> Result<usize> {
    let checked = rkyv::access::<rkyv::Archived<VectorAdd>, rkyv::rancor::Error>(bytes);
    Ok(checked.map_err(|error| Error::Wrong(error.to_string()))?.a.len())
}

/// Reads two fields where they are.
#[inline]
pub fn accessed(archive: &Archive<VectorAdd>) -> usize {
    archive.a.len() + archive.priority.to_native() as usize
}

/// Reading what is there already.
fn read(effort: &Effort) -> Result<Vec<Metric>> {
    let bytes = PAIR.as_bytes();
    let plain = batch_timed(effort.turn, 1000, || {
        let pair = Pair::from_bytes(black_box(bytes))?;
        black_box(pair.a + pair.b);
        Ok(())
    })?;
    let mut metrics = vec![Metric::lower("read-8B", "ns", plain)];
    for (case, access, floats) in
        [("read-archive-2x1", "access-archive-2x1", 1), ("read-archive-2x1000", "access-archive-2x1000", FLOATS)]
    {
        let archive = Archive::new(&VectorAdd::of(floats))?;
        let read = batch_timed(effort.turn, 1000, || {
            black_box(checked(black_box(&archive).bytes())?);
            Ok(())
        })?;
        let in_place = batch_timed(effort.turn, 1000, || {
            black_box(accessed(black_box(&archive)));
            Ok(())
        })?;
        metrics.extend([Metric::lower(case, "ns", read), Metric::lower(access, "ns", in_place)]);
    }
    Ok(metrics)
}

/// rkyv by itself, as its users call it: into memory that is allocated for it.
fn rkyv_alone(effort: &Effort) -> Result<Vec<Metric>> {
    let timed = |(case, floats): (&'static str, usize)| {
        let message = VectorAdd::of(floats);
        let samples = batch_timed(effort.turn, 20, || {
            let bytes = rkyv::to_bytes::<rkyv::rancor::Error>(black_box(&message));
            black_box(bytes.map_err(|error| Error::Wrong(error.to_string()))?);
            Ok(())
        })?;
        Ok(Metric::lower(case, "ns", samples))
    };
    [("write-archive-2x1", 1), ("write-archive-2x1000", FLOATS)].into_iter().map(timed).collect()
}

/// A thread that reads what was copied.
struct Audience {
    stage: Arc<Mutex<Vec<Line>>>,
    ready: SyncSender<()>,
    read: Receiver<f32>,
    thread: thread::JoinHandle<()>,
}

/// Nothing but copying the floats: to where they lie in the slots of a kernel, which a thread on another core reads in between. How
/// long a copy takes depends on where it goes.
fn limit(effort: &Effort) -> Result<Vec<Metric>> {
    // In an archive, what a message points to comes first.
    [("write-2x1000", size_of::<Vectors>(), offset_of!(Vectors, a)), ("write-archive-2x1000", LARGE, 0)]
        .map(|(case, payload, floats_at)| {
            let layout = RegionLayout::new(LARGE_BURST, LARGE_BURST, payload, 0);
            Ok(Metric::lower(case, "ns", copied(effort, layout.in_stride, (HEADER + floats_at) / size_of::<f32>())?))
        })
        .into_iter()
        .collect()
}

/// The mean time of copying two vectors to a place in each slot, burst by burst.
fn copied(effort: &Effort, stride: usize, floats_at: usize) -> Result<Vec<f64>> {
    let stage = Arc::new(Mutex::new(vec![Line::default(); LARGE_BURST * stride / Line::default().0.len()]));
    let ((ready, wake), (done, read)) = (sync_channel::<()>(1), sync_channel(1));
    let thread = {
        let stage = stage.clone();
        let body = move || {
            while wake.recv().is_ok() {
                reader_is_here();
                let sum = floats_of(&mut stage.lock().unwrap_or_else(PoisonError::into_inner)).iter().sum::<f32>();
                if done.send(sum).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("lab-audience".to_owned()).spawn(body)
    };
    let audience = Audience { stage, ready, read, thread: thread.map_err(|error| Error::System(error.to_string()))? };
    let VectorAdd { a, b, .. } = VectorAdd::of(FLOATS);
    let mut samples = Vec::new();
    let start = Instant::now();
    while start.elapsed() < effort.turn {
        let _here = Writer::is_here();
        rest();
        let mut stage = audience.stage.lock().unwrap_or_else(PoisonError::into_inner);
        let before = Instant::now();
        for slot in floats_of(&mut stage).chunks_exact_mut(stride) {
            let floats = &mut slot[floats_at..];
            floats[..FLOATS].copy_from_slice(black_box(&a));
            floats[FLOATS..2 * FLOATS].copy_from_slice(black_box(&b));
        }
        samples.push(each(before, LARGE_BURST));
        drop(stage);
        let gone = |_| Error::Closed("the reader");
        audience.ready.send(()).map_err(|_| Error::Closed("the reader"))?;
        let sum = audience.read.recv_timeout(PATIENCE).map_err(gone)?;
        read_all(sum / LARGE_BURST as f32, FLOATS)?;
    }
    let Audience { ready, thread, .. } = audience;
    drop(ready);
    thread.join().map_err(|_| Error::Panicked)?;
    Ok(samples)
}

/// Memory that begins where slots do.
#[derive(Debug, Clone, Copy, Default, Zeroable, Pod)]
#[repr(C, align(64))]
struct Line([f32; 16]);

fn floats_of(lines: &mut [Line]) -> &mut [f32] {
    bytemuck::cast_slice_mut(lines)
}
