//! The groups of `millrace bench interactive`: a kernel that stays against a launch for every command.
//!
//! Both sides keep the same wave on a line of cells on the same device and do the same commands on it, checked against
//! the host before anything is timed. A command is over when the kernel has acknowledged it: a resident one by its
//! answer, a launch by its completion. `enqueue` is what the caller pays before that, `pick-up` ends when the kernel's
//! telemetry shows the command as handled, `round-trip` with the acknowledgement.
//!
//! A launch is done in the best ways there are: `launch` is `stream.run`, where on the CPU the caller may execute the
//! launch itself and cross no thread; `launch-submit` always goes through the device's worker.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use millrace::resident::{self, LaunchOptions, Resident};

pub use crate::resident::Effort;
use crate::{
    Result,
    commands::Progress,
    devices,
    groups::{self, Group},
    measure::{Better, Measured, Metric, Side, batch_timed, clock_cost, each_timed, warm_up},
    report::{Report, Row},
    resident::kernels::{
        CELLS, Command, FieldKernel, FieldLaunches, INJECT, READ, STEP, Taker, check_field, device_of, launched,
        residential, side_on, until_handled,
    },
    suites::Listed,
    targets::{self, Conditions, judge},
};

/// A frame at sixty of them per second.
pub const FRAME: Duration = Duration::from_micros(16_667);

/// Measures all groups that `wanted` says yes to, the sides in turns, and sets the targets.
///
/// ```
/// use millrace_lab::interactive::{Effort, run_groups};
/// let report = run_groups(&Effort::quick(), &|name| name == "query_state", &mut |_| ());
/// assert!(report.rows.iter().any(|row| row.is_ours()));
/// println!("{}", report.to_json()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn run_groups(effort: &Effort, wanted: &dyn Fn(&str) -> bool, progress: &mut dyn FnMut(Progress<'_>)) -> Report {
    groups::run(groups_here(effort), &effort.turns(), wanted, progress)
}

/// The groups with the devices that are here.
pub(crate) fn groups_here(effort: &Effort) -> Vec<Group> {
    groups(effort, &residential())
}

/// Its groups as a list shows them.
pub(crate) fn listed() -> Vec<Listed> {
    groups(&Effort::quick(), &["cpu", "gpu"]).iter().map(Group::listed).collect()
}

/// The names of all groups, in the order they are measured.
pub fn group_names() -> Vec<&'static str> {
    groups(&Effort::quick(), &["cpu"]).iter().map(|group| group.name).collect()
}

/// What one way does in a turn, on a device.
type Body = fn(&Effort, &'static str) -> Result<Vec<Metric>>;

fn groups(effort: &Effort, on: &[&'static str]) -> Vec<Group> {
    let sides = |ways: &[(&str, Body)]| -> Vec<Side> {
        let side = |(name, body): (&str, Body), device: &'static str| {
            let effort = effort.clone();
            Side::new(side_on(name, device), move || body(&effort, device))
        };
        on.iter().flat_map(|device| ways.iter().map(|way| side(*way, device))).collect()
    };
    let group =
        |name, about, ways: &[(&str, Body)], judge| Group::new(name, sides(ways), judge).on(device_of).about(about);
    let inject: [(&str, Body); 3] =
        [("millrace", inject_resident), ("launch", inject_launch), ("launch-submit", inject_submit)];
    let query: [(&str, Body); 2] = [("millrace", query_resident), ("launch", query_launch)];
    let step: [(&str, Body); 3] = [
        ("millrace", |effort, device| single_step(effort, &mut Staying::on(device)?)),
        ("launch", |effort, device| single_step(effort, &mut Launching::on(device, false)?)),
        ("launch-submit", |effort, device| single_step(effort, &mut Launching::on(device, true)?)),
    ];
    let mixed: [(&str, Body); 3] = [
        ("millrace", |effort, device| mixed_workload(effort, &mut Staying::on(device)?)),
        ("launch", |effort, device| mixed_workload(effort, &mut Launching::on(device, false)?)),
        ("launch-submit", |effort, device| mixed_workload(effort, &mut Launching::on(device, true)?)),
    ];
    let frame: [(&str, Body); 3] = [
        ("millrace", |effort, device| operations(effort, &mut Staying::on(device)?)),
        ("launch", |effort, device| operations(effort, &mut Launching::on(device, false)?)),
        ("launch-submit", |effort, device| operations(effort, &mut Launching::on(device, true)?)),
    ];
    vec![
        group(
            "inject_command",
            "What a command costs its sender, until it is picked up, and until it is acknowledged.",
            &inject,
            judge_inject,
        )
        .with(factors),
        group(
            "query_state",
            "Reading telemetry, and one cell of the state after everything before.",
            &query,
            judge_query,
        ),
        group("single_step", "One step of a wave on a line of cells, until it is acknowledged.", &step, judge_step)
            .with(factors),
        group(
            "mixed_workload",
            "Thirty-two operations, two injections, a step and a read in turn.",
            &mixed,
            targets::promised,
        )
        .with(factors),
        group(
            "operations_per_frame",
            "How many operations of that mix fit into 16.67 ms, one after the other.",
            &frame,
            targets::promised,
        )
        .with(factors),
    ]
}

/// A way to have commands done.
trait Way {
    /// A command, until the kernel has acknowledged it.
    fn acknowledged(&mut self, command: Command) -> Result<()>;
    /// A command, without waiting for it.
    fn posted(&mut self, command: Command) -> Result<()>;
    /// A cell, after everything before.
    fn read(&mut self, cell: u32) -> Result<f32>;
}

/// The kernel stays.
struct Staying {
    device: &'static str,
    _context: millrace::Device,
    kernel: Resident<FieldKernel>,
}

impl Staying {
    fn on(device: &'static str) -> Result<Self> {
        let (context, kernel) = launched(device, FieldKernel, LaunchOptions::default())?;
        let ask = |command| Ok(kernel.ask(command)?.value);
        check_field(|command| ask(command).map(drop), |cell| ask(Command::nth(READ, cell)))?;
        Ok(Self { device, _context: context, kernel })
    }
}

impl Way for Staying {
    #[inline]
    fn acknowledged(&mut self, command: Command) -> Result<()> {
        black_box(self.kernel.ask(command)?.value);
        Ok(())
    }

    #[inline]
    fn posted(&mut self, command: Command) -> Result<()> {
        Ok(self.kernel.send(command).map_err(resident::Error::from)?)
    }

    #[inline]
    fn read(&mut self, cell: u32) -> Result<f32> {
        let value = self.kernel.ask(Command::nth(READ, cell))?.value;
        // On a GPU those that were only posted are answered as well; the handler cannot say otherwise there.
        if self.device != "cpu" {
            while let Some(answer) = self.kernel.try_receive() {
                black_box(answer?.value);
            }
        }
        Ok(value)
    }
}

/// A launch for every command.
struct Launching {
    field: FieldLaunches,
    submit: bool,
}

impl Launching {
    fn on(device: &'static str, submit: bool) -> Result<Self> {
        let context = devices::open(device)?;
        let field = std::cell::RefCell::new(FieldLaunches::on(&context)?);
        check_field(|command| field.borrow_mut().run(command), |cell| field.borrow().read(cell))?;
        Ok(Self { field: field.into_inner(), submit })
    }
}

impl Way for Launching {
    #[inline]
    fn acknowledged(&mut self, command: Command) -> Result<()> {
        if self.submit { self.field.submit(command) } else { self.field.run(command) }
    }

    #[inline]
    fn posted(&mut self, command: Command) -> Result<()> {
        self.field.enqueue(command)
    }

    #[inline]
    fn read(&mut self, cell: u32) -> Result<f32> {
        self.field.read(cell)
    }
}

/// Commands between two looks at what has become of them.
const BURST: u32 = 64;

fn inject_resident(effort: &Effort, device: &'static str) -> Result<Vec<Metric>> {
    let (_device, taker) = launched(device, Taker, LaunchOptions::default().inbound(2 * BURST as usize))?;
    let mut sent = 0u32;
    let mut send = || {
        sent += 1;
        taker.try_send(Command::nth(INJECT, sent)).map_err(resident::Error::from)?;
        Ok::<_, crate::Error>(u64::from(sent))
    };
    let enqueue = enqueued(effort, &mut send, |sent| until_handled(&taker, sent))?;
    let pick_up = each_timed(effort.turn, || until_handled(&taker, send()?))?;
    let mut asked = 0;
    let round_trip = each_timed(effort.turn, || {
        asked += 1;
        Ok(taker.ask(Command::nth(INJECT, asked))?)
    })?;
    let (taken, expected) = (taker.checkpoint()?.state.commands, sent + asked);
    if taken != expected {
        return Err(crate::Error::Sum { got: taken.into(), expected: expected.into() });
    }
    Ok(vec![
        Metric::lower("enqueue", "ns", enqueue),
        Metric::lower("pick-up", "ns", pick_up),
        Metric::lower("round-trip", "ns", round_trip),
    ])
}

/// What `send` costs in bursts, after each of which everything has to be acknowledged.
fn enqueued(
    effort: &Effort,
    send: &mut impl FnMut() -> Result<u64>,
    acknowledged: impl Fn(u64) -> Result<()>,
) -> Result<Vec<f64>> {
    let clock = clock_cost();
    let mut samples = Vec::new();
    let start = Instant::now();
    while start.elapsed() < effort.turn {
        let before = Instant::now();
        let mut sent = 0;
        for _ in 0..BURST {
            sent = send()?;
        }
        samples.push((before.elapsed().as_nanos() as f64 - clock) / f64::from(BURST));
        acknowledged(sent)?;
    }
    Ok(samples)
}

fn inject_launch(effort: &Effort, device: &'static str) -> Result<Vec<Metric>> {
    let mut way = Launching::on(device, false)?;
    let mut n = 0;
    let field = std::cell::RefCell::new(&mut way.field);
    let mut send = || {
        n += 1;
        field.borrow_mut().enqueue(Command::nth(INJECT, n)).map(|()| u64::from(n))
    };
    let enqueue = enqueued(effort, &mut send, |_| field.borrow().finish())?;
    let mut metrics = vec![Metric::lower("enqueue", "ns", enqueue)];
    metrics.extend(inject_and_wait(effort, &mut way)?);
    Ok(metrics)
}

fn inject_submit(effort: &Effort, device: &'static str) -> Result<Vec<Metric>> {
    inject_and_wait(effort, &mut Launching::on(device, true)?)
}

fn inject_and_wait(effort: &Effort, way: &mut impl Way) -> Result<Vec<Metric>> {
    let mut n = 0;
    let mut inject = || {
        n += 1;
        way.acknowledged(Command::nth(INJECT, n))
    };
    warm_up(effort.turn / 4, &mut inject)?;
    Ok(vec![Metric::lower("round-trip", "ns", each_timed(effort.turn, inject)?)])
}

fn query_resident(effort: &Effort, device: &'static str) -> Result<Vec<Metric>> {
    let mut way = Staying::on(device)?;
    let telemetry = batch_timed(effort.turn, 100, || {
        black_box(way.kernel.telemetry());
        Ok(())
    })?;
    let mut metrics = vec![Metric::lower("telemetry", "ns", telemetry)];
    metrics.extend(read_a_cell(effort, &mut way)?);
    Ok(metrics)
}

fn query_launch(effort: &Effort, device: &'static str) -> Result<Vec<Metric>> {
    read_a_cell(effort, &mut Launching::on(device, false)?)
}

fn read_a_cell(effort: &Effort, way: &mut impl Way) -> Result<Vec<Metric>> {
    let mut n = 0;
    let mut read = || {
        n += 1;
        black_box(way.read(n)?);
        Ok(())
    };
    warm_up(effort.turn / 4, &mut read)?;
    Ok(vec![Metric::lower("cell", "ns", each_timed(effort.turn, read)?)])
}

fn single_step(effort: &Effort, way: &mut impl Way) -> Result<Vec<Metric>> {
    let mut step = || way.acknowledged(Command::nth(STEP, 0));
    warm_up(effort.turn / 4, &mut step)?;
    Ok(vec![Metric::lower("", "ns", each_timed(effort.turn, step)?)])
}

/// What happens again and again while somebody uses a simulation.
const MIX: [u32; 4] = [INJECT, INJECT, STEP, READ];
/// Operations of a run of the mixed workload.
const MIXED: u32 = 32;

#[inline]
fn operation(way: &mut impl Way, n: u32, wait: bool) -> Result<()> {
    let command = Command::nth(MIX[n as usize % MIX.len()], n);
    match command.kind {
        READ => black_box(way.read(n % CELLS as u32)).map(drop),
        _ if wait => way.acknowledged(command),
        _ => way.posted(command),
    }
}

fn mixed_workload(effort: &Effort, way: &mut impl Way) -> Result<Vec<Metric>> {
    let mut metrics = Vec::new();
    for (case, wait) in [("each-acknowledged", true), ("pipelined", false)] {
        let mut mix = || (0..MIXED).try_for_each(|n| operation(way, n, wait));
        warm_up(effort.turn / 4, &mut mix)?;
        let times = each_timed(effort.turn, mix)?;
        metrics.push(Metric::lower(case, "us", times.into_iter().map(|ns| ns / 1e3).collect()));
    }
    Ok(metrics)
}

/// How many operations of the mix fit into a frame, each acknowledged before the next.
fn operations(effort: &Effort, way: &mut impl Way) -> Result<Vec<Metric>> {
    let mut n = 0u32;
    let mut frames = Vec::new();
    warm_up(effort.turn / 4, &mut || (0..MIXED).try_for_each(|n| operation(way, n, true)))?;
    for _ in 0..effort.runs {
        let (first, start) = (n, Instant::now());
        // Asking what time it is takes as long as an operation: it is done once in a while, and what was too much is taken off.
        let took = loop {
            for _ in 0..MIXED {
                operation(way, n, true)?;
                n = n.wrapping_add(1);
            }
            let took = start.elapsed();
            if took >= FRAME {
                break took;
            }
        };
        frames.push((f64::from(n.wrapping_sub(first)) * FRAME.as_secs_f64() / took.as_secs_f64()).floor());
    }
    Ok(vec![Metric::higher("", "ops", frames)])
}

/// How many times better than every kind of launch a kernel that stays is, for every case that both have.
fn factors(rows: &[Row]) -> Vec<Row> {
    let against = |ours: &Row, peer: &Row| {
        let ratio = peer.p50? / ours.p50?;
        let factor = if ours.better == Better::Lower { ratio } else { 1.0 / ratio };
        let case = if ours.case().is_empty() { String::new() } else { format!("{}-", ours.case()) };
        let id = format!("{}/{case}over-{}", ours.side(), peer.side());
        Some(Row::new(&ours.group, Measured::computed(id, "x", Better::Higher, factor)))
    };
    let ours = rows.iter().filter(|row| row.is_ours());
    let pairs = ours.flat_map(|ours| {
        let is_peer =
            |row: &&Row| !row.is_ours() && row.case() == ours.case() && device_of(row.side()) == device_of(ours.side());
        rows.iter().filter(is_peer).map(move |peer| (ours, peer))
    });
    pairs.filter_map(|(ours, peer)| against(ours, peer)).collect()
}

fn judge_inject(rows: &mut [Row]) {
    judge(rows, |_, row, median| {
        let mut conditions = Conditions::default();
        match (row.case(), &*row.device) {
            ("enqueue", _) => {
                conditions.at_most("p50", median, Some(100.0), "acknowledged later");
            }
            ("round-trip", "gpu") => {
                conditions.at_most("p50", median, Some(1000.0), "while active");
            }
            (case, "gpu") if case.starts_with("round-trip-over-launch") => {
                conditions.at_least("p50", median, Some(100.0), "both to the acknowledgement");
            }
            _ => {}
        }
        conditions
    });
}

fn judge_query(rows: &mut [Row]) {
    judge(rows, |_, row, median| {
        let mut conditions = Conditions::default();
        if row.case() == "telemetry" {
            conditions.at_most("p50", median, Some(50.0), "kept current by the kernel");
        }
        conditions
    });
}

fn judge_step(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if row.case().is_empty() {
            for peer in rows.iter().filter(|peer| !peer.is_ours() && peer.device == "cpu" && row.device == "cpu") {
                conditions.at_most("p50", median, peer.p50, peer.side());
            }
        }
        conditions
    });
}
