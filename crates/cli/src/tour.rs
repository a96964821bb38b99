//! `millrace` without a command: the tour.

use std::{
    hint::black_box,
    io::IsTerminal,
    time::{Duration, Instant},
};

use bytes::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use millrace::{DeviceKind, prelude::*, ring};

use crate::{
    Failure,
    table::{table, time},
};

/// Something a device is asked to do, which says what it did or what went wrong.
pub(crate) type Check = fn(&Device) -> Result<String, String>;

pub(crate) const CHECKS: &[(&str, Check)] = &[
    ("bytes in and out", bytes_in_and_out),
    ("a kernel over a million numbers", saxpy_over_a_million),
    ("two streams, one waiting for the other", a_marker_between_streams),
    ("a queue that is full loses nothing", a_full_queue),
    ("a kernel that fails is an error, not an end", a_failure_is_an_error),
    ("memory is used again, and never shows old bytes", memory_is_used_again),
];

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn expect(what: &str, holds: bool) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("{what} is not so")) }
}

fn saxpy() -> KernelSpec {
    KernelSpec::new("saxpy")
        .binding::<f32>("x", Access::Read)
        .binding::<f32>("y", Access::ReadWrite)
        .params::<f32>()
        .block(256)
        .wgsl(include_str!("saxpy.wgsl"))
        .cpu(CpuKernel::per_group(|group| {
            let (a, start) = (group.params::<f32>(), group.start(1));
            let (x, y) = (group.input::<f32>(0), group.output::<f32>(1));
            for (i, y) in y.iter_mut().enumerate() {
                *y += a * x[start + i];
            }
        }))
}

fn floats(n: usize, f: impl Fn(usize) -> f32) -> Bytes {
    (0..n).flat_map(|i| f(i).to_ne_bytes()).collect()
}

fn bytes_in_and_out(device: &Device) -> Result<String, String> {
    let stream = device.stream().map_err(text)?;
    let size = 16 << 20;
    let data: Bytes = (0..size).map(|i| (i * 31 % 251) as u8).collect();
    let (a, b) = (device.allocate(size).map_err(text)?, device.allocate(size).map_err(text)?);
    let start = Instant::now();
    stream.submit(a.write(0, data.clone())).map_err(text)?;
    stream.submit(a.copy_to(.., &b, 0)).map_err(text)?;
    let back = stream.run(b.read(..)).map_err(text)?;
    let took = start.elapsed();
    expect("what came back is what went in", back[..] == data[..])?;
    Ok(format!("16 MiB written, copied and read in {}", time(took.as_nanos() as f64)))
}

fn saxpy_over_a_million(device: &Device) -> Result<String, String> {
    let n = 1 << 20;
    let stream = device.stream().map_err(text)?;
    let kernel = device.kernel(&saxpy()).map_err(text)?;
    let (x, y) = (device.allocate(4 * n).map_err(text)?, device.allocate(4 * n).map_err(text)?);
    stream.submit(x.write(0, floats(n, |i| (i % 1000) as f32))).map_err(text)?;
    stream.submit(y.write(0, floats(n, |i| (i % 7) as f32))).map_err(text)?;
    stream.synchronize().map_err(text)?;
    let start = Instant::now();
    let launch = kernel.launch().bind(&x).bind(&y).params(&3f32).over(n, 256);
    stream.submit(launch).map_err(text)?.wait().map_err(text)?;
    let took = start.elapsed();
    let result = stream.run(y.read(..)).map_err(text)?;
    let right = result.to::<f32>().iter().enumerate().all(|(i, y)| *y == (i % 7) as f32 + 3.0 * (i % 1000) as f32);
    expect("y + 3 x", right)?;
    Ok(format!("y += 3 x, {n} results compared, {}", time(took.as_nanos() as f64)))
}

fn a_marker_between_streams(device: &Device) -> Result<String, String> {
    let (first, second) = (device.stream().map_err(text)?, device.stream().map_err(text)?);
    let buffer = device.allocate(1 << 20).map_err(text)?;
    for round in 1..=50u8 {
        first.submit(buffer.fill(.., round)).map_err(text)?;
        let marker = first.mark().map_err(text)?;
        second.submit(marker.wait()).map_err(text)?;
        let seen = second.run(buffer.read(..)).map_err(text)?;
        expect("the second stream sees what the first wrote", seen.iter().all(|b| *b == round))?;
    }
    Ok("50 rounds, always in order".to_owned())
}

fn a_full_queue(device: &Device) -> Result<String, String> {
    let stream = device.stream_with(&StreamOptions::default().capacity(8)).map_err(text)?;
    let buffer = device.allocate(8).map_err(text)?;
    let (mut tickets, mut handed_back) = (Vec::new(), 0);
    for i in 0..2000u64 {
        let mut command = buffer.write(0, i.to_ne_bytes().to_vec()).into();
        loop {
            match stream.try_submit::<millrace::Command>(command) {
                Ok(ticket) => break tickets.push(ticket),
                Err(rejected) => {
                    handed_back += 1;
                    command = rejected.command;
                    stream.synchronize().map_err(text)?;
                }
            }
        }
    }
    tickets.into_iter().try_for_each(|ticket| ticket.wait().map(drop)).map_err(text)?;
    let last = stream.run(buffer.read(..)).map_err(text)?;
    expect("the last write is the last", last.to::<u64>() == [1999])?;
    Ok(format!("2000 commands through 8 places, {handed_back} handed back and sent again"))
}

fn a_failure_is_an_error(device: &Device) -> Result<String, String> {
    if device.info().kind != DeviceKind::Cpu {
        let broken = KernelSpec::new("trip").wgsl("@compute @workgroup_size(1)\nfn main() { let x: i32 = 1.5; }");
        let said = matches!(device.kernel(&broken), Err(Error::Compile { message, .. }) if message.contains(":2:"));
        expect("the error shows the line", said)?;
        device.stream().and_then(|stream| stream.synchronize()).map_err(text)?;
        return Ok("code that does not compile says where".to_owned());
    }
    let spec = KernelSpec::new("trip").cpu(CpuKernel::per_group(|_| {
        // Without the default hook's report on the terminal.
        std::panic::resume_unwind(Box::new("tripped on purpose"));
    }));
    let (stream, kernel) = (device.stream().map_err(text)?, device.kernel(&spec).map_err(text)?);
    let error = stream.submit(kernel.launch()).map_err(text)?.wait();
    let said = matches!(&error, Err(Error::Panicked(message)) if message.contains("on purpose"));
    expect("the ticket says why", said)?;
    stream.synchronize().map_err(text)?;
    Ok("it panicked, and the device goes on".to_owned())
}

fn memory_is_used_again(device: &Device) -> Result<String, String> {
    let stream = device.stream().map_err(text)?;
    let before = device.memory();
    for _ in 0..100 {
        let buffer = device.allocate(1 << 20).map_err(text)?;
        let fresh = stream.run(buffer.read(1000..2000)).map_err(text)?;
        expect("never-written bytes are zero", fresh.iter().all(|b| *b == 0))?;
        drop(fresh);
        stream.run(buffer.fill(.., 0xff)).map_err(text)?;
    }
    let after = device.memory();
    expect("all of it came back", after.in_use == before.in_use)?;
    let (hits, all) = (after.hits - before.hits, after.hits + after.misses - before.hits - before.misses);
    Ok(format!("{hits} of {all} allocations served from the pool"))
}

/// The median time of `f` over many runs, in nanoseconds.
fn median(samples: usize, per_sample: u32, f: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    median_after(|| (), samples, per_sample, f)
}

/// The same with something before each sample that is not measured.
fn median_after(
    before: impl Fn(),
    samples: usize,
    per_sample: u32,
    mut f: impl FnMut() -> Result<(), Error>,
) -> Result<f64, Error> {
    let mut times = Vec::with_capacity(samples);
    for _ in 0..samples {
        before();
        let start = Instant::now();
        for _ in 0..per_sample {
            f()?;
        }
        times.push(start.elapsed().as_nanos() as f64 / f64::from(per_sample));
    }
    times.sort_by(f64::total_cmp);
    Ok(times[samples / 2])
}

/// What the usual things cost on a device, in nanoseconds.
fn latencies(device: &Device) -> Result<Vec<(&'static str, f64)>, Error> {
    let stream = device.stream_with(&StreamOptions::default().capacity(1024))?;
    let small = device.allocate(1024)?;
    let payload = Bytes::from(vec![1u8; 1024]);
    let kernel = device.kernel(&saxpy())?;
    let other = device.allocate(1024)?;
    let mut rows = Vec::new();
    rows.push(("submit a command (caller's side)", {
        let mut submitted = 0;
        let mut spent = Duration::ZERO;
        for _ in 0..100 {
            stream.submit(Synchronize)?.wait()?; // awake
            let start = Instant::now();
            for _ in 0..256 {
                drop(stream.submit(Synchronize)?);
            }
            spent += start.elapsed();
            submitted += 256;
            stream.synchronize()?;
        }
        spent.as_nanos() as f64 / f64::from(submitted)
    }));
    let add = || kernel.launch().bind(&small).bind(&other).params(&2f32).over(256, 256);
    rows.push(("submit a kernel and wait, device awake", median(5000, 1, || stream.submit(add())?.wait())?));
    rows.push(("submit a kernel and wait, device asleep", {
        let asleep = || std::thread::sleep(Duration::from_millis(1));
        median_after(asleep, 50, 1, || stream.submit(add())?.wait())?
    }));
    rows.push(("write 1 KiB and wait", median(200, 100, || stream.run(small.write(0, payload.clone())))?));
    rows.push((
        "read 1 KiB (a view)",
        median(200, 100, || stream.run(small.read(..)).map(|view| drop(black_box(view))))?,
    ));
    rows.push(("kernel on 256 numbers and wait", median(200, 100, || stream.run(add()))?));
    rows.push(("allocate and free 1 MiB", median(200, 100, || device.allocate(1 << 20).map(|b| drop(black_box(b))))?));
    Ok(rows)
}

/// One thread asks another through the rings, in nanoseconds.
fn ring_round_trip() -> Result<f64, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::Failed(error.to_string());
    let replies = ring::reply::ReplyPool::new();
    let (ask, mut asked) = ring::mpsc::bounded::<(u64, ring::reply::ReplySender<u64>)>(128).map_err(|e| failed(&e))?;
    let answering = std::thread::spawn(move || {
        while let Ok((n, reply)) = asked.recv() {
            let _ = reply.send(n + 1);
        }
    });
    let mut times = Vec::new();
    for n in 0..20_000 {
        let start = Instant::now();
        let (reply, answer) = replies.pair().ok_or_else(|| failed(&"no reply slot"))?;
        ask.send((n, reply)).map_err(|e| failed(&e))?;
        let answer = answer.recv().map_err(|e| failed(&e))?;
        times.push(start.elapsed().as_nanos() as f64);
        if answer != n + 1 {
            return Err(failed(&"a wrong answer came through the rings"));
        }
    }
    drop(ask);
    let _ = answering.join();
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

pub(crate) fn tour() -> Result<(), Failure> {
    let begin = Instant::now();
    println!("Millrace {}: a tour\n", env!("CARGO_PKG_VERSION"));
    let runtime = millrace::runtime();
    let found = runtime.devices();
    println!("Devices");
    for device in &found {
        match &device.unavailable {
            None => println!("  {:<6} {}", device.id, device.name),
            Some(reason) => println!("  {:<6} not available: {reason}", device.id),
        }
    }
    let mut all_well = true;
    for device in found.iter().filter(|device| device.unavailable.is_none()) {
        let start = Instant::now();
        let opened = runtime.open(&device.id)?;
        println!("\nReal work on {}, opened in {}", device.id, time(start.elapsed().as_nanos() as f64));
        for finding in &opened.info().findings {
            println!("  WARNING {finding}");
        }
        for (name, check) in CHECKS {
            let bar = progress(name);
            let result = check(&opened);
            bar.finish_and_clear();
            match result {
                Ok(said) => println!("  ok      {name}: {said}"),
                Err(why) => {
                    all_well = false;
                    println!("  FAILED  {name}: {why}");
                }
            }
        }
        let bar = progress("measuring");
        let mut rows = latencies(&opened)?;
        rows.push(("ask another thread through the rings", ring_round_trip()?));
        bar.finish_and_clear();
        let mut out = table(&["What it costs here", "median"], 1);
        for (name, ns) in rows {
            out.add_row([name.to_owned(), time(ns)]);
        }
        println!("\n{out}");
        opened.shutdown(Instant::now() + Duration::from_secs(5))?;
    }
    println!(
        "\n{} after {}.",
        if all_well { "All well" } else { "NOT all well" },
        time(begin.elapsed().as_nanos() as f64)
    );
    println!("Next: `millrace devices`, `millrace validate`, `millrace bench commands --quick`, `millrace --help`.");
    if all_well { Ok(()) } else { Err(Failure::No) }
}

fn progress(what: &str) -> ProgressBar {
    if !std::io::stdout().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new_spinner().with_message(what.to_owned());
    if let Ok(style) = ProgressStyle::with_template("  {spinner} {msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
