//! Profiles: every command once, in order, with times that make sense, and an exact count of what is missing.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    collections::HashMap,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use millrace::{
    Clock, CommandKind, Profile, ProfileOptions, Span,
    cpu::CpuProvider,
    faulty::{Faults, FaultyProvider},
    prelude::*,
};
use support::{Gate, Log, cpu, is_queued, kernel, panics, soon, workers};

fn options() -> ProfileOptions {
    ProfileOptions::default()
}

/// What must hold of every profile.
fn check(profile: &Profile) {
    for span in profile.spans() {
        assert!(span.submitted <= span.start && span.start <= span.end && span.end <= profile.time(), "{span:?}");
        assert!(!profile.op(span).is_empty());
    }
    for of_stream in profile.spans().chunk_by(|a, b| a.stream == b.stream) {
        if of_stream.iter().all(|span| !span.failed) {
            assert!(of_stream.is_sorted_by_key(|span| span.submitted), "{of_stream:#?}");
        }
    }
    assert!(profile.spans().is_sorted_by_key(|span| span.stream));
    assert!(profile.memory().is_sorted_by_key(|sample| sample.at));
    assert_eq!(profile.memory().iter().map(|sample| sample.in_use).max().unwrap(), profile.peak_memory());
}

fn kinds(spans: &[Span]) -> Vec<CommandKind> {
    spans.iter().map(|span| span.kind).collect()
}

/// The GPU, where there is one.
fn gpu() -> Option<Device> {
    millrace::runtime().open("gpu").ok()
}

fn doubling() -> KernelSpec {
    KernelSpec::new("doubling")
        .binding::<f32>("x", Access::ReadWrite)
        .cpu(CpuKernel::per_group(|group| group.output::<f32>(0).iter_mut().for_each(|x| *x *= 2.0)))
        .wgsl(
            "@group(0) @binding(0) var<storage, read_write> x: array<f32>;
             @compute @workgroup_size(1) fn main(@builtin(workgroup_id) id: vec3<u32>) { x[id.x] = 2.0 * x[id.x]; }",
        )
}

/// Every kind of command on two streams, however it is submitted.
fn every_command_appears_once(device: &Device) {
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());
    let doubling = device.kernel(&doubling()).unwrap();
    first.synchronize().unwrap(); // before the profile
    let profiler = device.profile(&options()).unwrap();
    let (a, b) = (device.allocate(4096).unwrap(), device.allocate(4096).unwrap());
    let launch = || doubling.launch().bind(&a).grid([1024, 1, 1]);
    first.run(a.write(0, bytemuck::bytes_of(&[1f32; 1024]).to_vec())).unwrap();
    let ticket = first.submit(launch()).unwrap();
    first.enqueue(launch()).unwrap();
    first.submit(a.copy_to(.., &b, 0)).unwrap();
    let marker = first.mark().unwrap();
    second.submit(marker.wait()).unwrap();
    let read = second.submit(b.read(..)).unwrap();
    second.run(a.fill(..2048, 0)).unwrap();
    assert_eq!(read.wait().unwrap().to::<f32>(), [4.0; 1024]);
    ticket.wait().unwrap();
    first.synchronize().unwrap();
    let profile = profiler.stop();
    second.synchronize().unwrap(); // after it
    check(&profile);
    let of = |stream: &Stream| -> Vec<Span> {
        profile.spans().iter().filter(|span| span.stream == stream.id()).copied().collect()
    };
    let (one, two) = (of(&first), of(&second));
    use CommandKind::{Copy, Fill, Launch, Mark, Read, Synchronize, WaitFor, Write};
    assert_eq!(kinds(&one), [Write, Launch, Launch, Copy, Mark, Synchronize]);
    assert_eq!(kinds(&two), [WaitFor, Read, Fill]);
    assert_eq!(one.iter().map(|span| span.bytes).collect::<Vec<_>>(), [4096, 4096, 4096, 4096, 0, 0]);
    assert_eq!(two[2].bytes, 2048);
    assert_eq!(one.iter().map(|span| profile.op(span)).collect::<Vec<_>>()[..3], ["write", "doubling", "doubling"]);
    assert!(profile.spans().iter().all(|span| !span.failed));
    let in_use: Vec<_> = profile.memory().iter().map(|sample| sample.in_use).collect();
    assert_eq!(in_use[in_use.len() - 3..], [in_use[0], in_use[0] + 4096, in_use[0] + 8192]);
    assert_eq!((profile.dropped(), profile.dropped_samples()), (0, 0));
    assert_eq!(profile.device(), device.info().id);
}

#[test]
fn every_command_appears_once_in_order() {
    every_command_appears_once(&cpu());
}

#[test]
fn every_command_appears_once_in_order_on_a_gpu() {
    let Some(device) = gpu() else { return };
    every_command_appears_once(&device);
    every_command_appears_once(&device); // and again: a device can be profiled as often as one likes
}

#[test]
#[cfg(feature = "gpu")]
fn staged_transfers_on_a_gpu_have_the_devices_time() {
    use millrace::gpu::{GpuProvider, Transfers};
    let runtime = Runtime::new(vec![Box::new(GpuProvider::with_transfers(Transfers::Staged))]);
    let Ok(device) = runtime.open("gpu") else { return };
    every_command_appears_once(&device);
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(1 << 20).unwrap());
    let profiler = device.profile(&options()).unwrap();
    stream.run(buffer.write(0, vec![1; 1 << 20])).unwrap();
    stream.run(buffer.write(1, vec![2; 1 << 19])).unwrap(); // not of whole words
    stream.run(buffer.read(..)).unwrap();
    let profile = profiler.stop();
    check(&profile);
    let clocks: Vec<_> = profile.spans().iter().map(|span| span.clock).collect();
    assert!(clocks.iter().all(|clock| *clock == Clock::Device) || clocks.iter().all(|clock| *clock == Clock::Batch));
}

#[test]
fn launches_on_a_gpu_have_the_devices_time() {
    let Some(device) = gpu() else { return };
    let stream = device.stream().unwrap();
    let buffer = device.allocate(4 << 20).unwrap();
    let doubling = device.kernel(&doubling()).unwrap();
    let launch = |groups: u32| doubling.launch().bind(&buffer).grid([groups, 1, 1]);
    stream.run(launch(1)).unwrap();
    let profiler = device.profile(&options()).unwrap();
    for _ in 0..3 {
        stream.enqueue(launch(60_000)).unwrap();
        stream.enqueue(launch(1)).unwrap();
        stream.enqueue(launch(60_000)).unwrap();
        stream.synchronize().unwrap();
    }
    let profile = profiler.stop();
    check(&profile);
    let launches: Vec<_> = profile.spans().iter().filter(|span| span.kind == CommandKind::Launch).collect();
    assert_eq!(launches.len(), 9);
    let features = device.info().details.iter().find(|(name, _)| name == "features").unwrap().1.clone();
    if !features.split(' ').any(|feature| feature == "timestamp_query") {
        assert!(launches.iter().all(|span| span.clock == Clock::Batch), "there is no better clock");
        return;
    }
    assert!(launches.iter().all(|span| span.clock == Clock::Device), "{launches:#?}");
    for batch in launches.chunks(3) {
        assert!(batch.is_sorted_by(|a, b| a.end <= b.start), "{batch:#?}");
        let [large, small, also_large] = batch else { unreachable!() };
        assert!(large.time() > 0 && also_large.time() > 0);
        assert!(small.time() < large.time() + also_large.time(), "{batch:#?}");
    }
}

#[test]
fn times_are_those_of_the_work() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let nap = kernel(&device, || std::thread::sleep(Duration::from_millis(20)));
    let profiler = device.profile(&options()).unwrap();
    let tickets: Vec<_> = (0..3).map(|_| stream.submit(nap.launch()).unwrap()).collect();
    tickets.into_iter().for_each(|ticket| ticket.wait().unwrap());
    let profile = profiler.stop();
    check(&profile);
    let spans = profile.spans();
    assert_eq!(spans.len(), 3);
    assert!(spans.iter().all(|span| span.time() >= 20_000_000 && span.time() < 10_000_000_000));
    assert!(spans[2].queued() >= 20_000_000 || spans[2].clock == Clock::Batch, "it waited for those before it");
    let summary = profile.summary();
    assert_eq!((&*summary.ops[0].op, summary.ops[0].figures.count), ("test", 3));
    assert!(summary.busy >= 60_000_000 && summary.time >= summary.busy || is_queued());
}

#[test]
fn what_does_not_fit_is_counted() {
    for bound in [0, 1, 100, 2000] {
        let device = cpu();
        let stream = device.stream().unwrap();
        let profiler = device.profile(&options().events(bound)).unwrap();
        for n in 0..1500 {
            if n % 2 == 0 {
                stream.synchronize().unwrap();
            } else {
                drop(stream.submit(Synchronize).unwrap());
            }
        }
        stream.synchronize().unwrap();
        let profile = profiler.stop();
        assert_eq!(profile.spans().len(), bound.min(1501));
        assert_eq!(profile.dropped(), 1501 - bound.min(1501) as u64);
    }
}

#[test]
fn changes_of_memory_that_do_not_fit_are_counted_and_the_peak_is_still_exact() {
    let device = cpu();
    let profiler = device.profile(&options().events(10)).unwrap();
    let held: Vec<_> = (0..20).map(|_| device.allocate(1024).unwrap()).collect();
    drop(held);
    let profile = profiler.stop();
    assert_eq!((profile.memory().len(), profile.dropped_samples()), (10, 31), "the first is that of the beginning");
    assert_eq!(profile.peak_memory(), 20 * 1024);
}

#[test]
fn many_threads_on_many_streams_lose_nothing() {
    let device = workers(2);
    let profiler = device.profile(&options()).unwrap();
    let (threads, each) = (8, 500);
    std::thread::scope(|s| {
        for _ in 0..threads {
            s.spawn(|| {
                let stream = device.stream().unwrap();
                let buffer = device.allocate(64).unwrap();
                for n in 0..each {
                    match n % 3 {
                        0 => stream.run(buffer.fill(.., 1)).unwrap(),
                        1 => drop(stream.submit(buffer.fill(.., 2)).unwrap()),
                        _ => stream.enqueue(buffer.fill(.., 3)).unwrap(),
                    }
                }
                stream.synchronize().unwrap();
            });
        }
    });
    let profile = profiler.stop(); // the streams are gone by now, their spans are not
    check(&profile);
    let mut of_streams: HashMap<u64, usize> = HashMap::new();
    profile.spans().iter().for_each(|span| *of_streams.entry(span.stream).or_default() += 1);
    assert_eq!(of_streams.len(), threads);
    assert!(of_streams.values().all(|&count| count == each + 1), "{of_streams:?}");
}

#[test]
fn many_threads_on_one_stream_lose_nothing() {
    let device = workers(2);
    let stream = device.stream().unwrap();
    let log = Log::new(&device);
    let profiler = device.profile(&options()).unwrap();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| (0..500).for_each(|n| drop(stream.submit(log.launch(n)).unwrap())));
        }
    });
    stream.synchronize().unwrap();
    let profile = profiler.stop();
    assert_eq!(profile.spans().len(), 2001);
    assert!(profile.spans().iter().all(|span| span.start <= span.end && span.submitted <= span.start));
    assert_eq!(log.seen().len(), 2000);
}

#[test]
fn a_profile_can_be_stopped_and_begun_while_others_submit() {
    let device = workers(2);
    let done = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..3 {
            s.spawn(|| {
                let stream = device.stream().unwrap();
                while !done.load(Ordering::Relaxed) {
                    drop(stream.submit(Synchronize).unwrap());
                    stream.run(Synchronize).unwrap();
                }
            });
        }
        let mut spans = 0;
        for _ in 0..50 {
            let profiler = device.profile(&options()).unwrap();
            std::thread::sleep(Duration::from_millis(2));
            let profile = profiler.stop();
            check(&profile);
            spans += profile.spans().len();
        }
        done.store(true, Ordering::Relaxed);
        assert!(spans > 0);
    });
    // Nothing of theirs is left for the next.
    let profile = device.profile(&options()).unwrap().stop();
    assert_eq!(profile.spans().len(), 0);
}

#[test]
fn there_is_one_profile_at_a_time() {
    let device = cpu();
    let profiler = device.profile(&options()).unwrap();
    assert!(matches!(device.profile(&options()), Err(Error::Invalid(_))));
    drop(profiler);
    device.profile(&options()).unwrap();
}

#[test]
fn what_fails_or_never_runs_is_in_it() {
    let device = workers(1);
    let stream = device.stream().unwrap();
    let panics = panics(&device, "on purpose");
    let profiler = device.profile(&options()).unwrap();
    assert!(stream.submit(panics.launch()).unwrap().wait().is_err());
    let (gate, entered) = Gate::across(&device, &stream);
    let cancelled = stream.submit(Synchronize).unwrap();
    cancelled.cancel();
    gate.open();
    entered.wait().unwrap();
    let refused = cancelled.wait();
    stream.synchronize().unwrap();
    let profile = profiler.stop();
    assert_eq!(profile.spans().len(), 4);
    let failed: Vec<_> = profile.spans().iter().map(|span| span.failed).collect();
    assert!(failed[0] && !failed[1] && !failed[3]);
    assert_eq!(failed[2], refused.is_err(), "a queue of the device's own may have taken it already");
    assert_eq!(profile.summary().all.failed, failed.iter().filter(|failed| **failed).count() as u64);
}

#[test]
fn a_device_that_is_lost_while_it_is_profiled_ends_all_spans() {
    let faults = Faults::default();
    let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()).depth(2))]);
    let device = runtime.open_with("cpu", DeviceOptions::default().timeout(Duration::from_millis(50))).unwrap();
    let stream = device.stream().unwrap();
    let buffer = device.allocate(64).unwrap();
    stream.run(buffer.fill(.., 1)).unwrap();
    let profiler = device.profile(&options()).unwrap();
    stream.run(buffer.fill(.., 2)).unwrap();
    faults.stall();
    let tickets: Vec<_> = (0..10).map(|n| stream.submit(buffer.fill(.., n)).unwrap()).collect();
    let fresh = device.recover().unwrap();
    for mut ticket in tickets {
        assert!(matches!(ticket.wait_until(soon()), Err(Error::DeviceLost(_))));
    }
    let profile = profiler.stop();
    check(&profile);
    assert_eq!(profile.spans().len(), 11);
    assert_eq!(profile.spans().iter().filter(|span| span.failed).count(), 10);
    faults.resume();
    fresh.profile(&options()).unwrap();
}

#[test]
fn a_profile_holds_after_its_device_is_gone() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let profiler = device.profile(&options()).unwrap();
    stream.synchronize().unwrap();
    drop((stream, device));
    assert_eq!(profiler.stop().spans().len(), 1);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error_that_names_the_file() {
    let device = cpu();
    let profiler = device.profile(&options()).unwrap();
    device.stream().unwrap().synchronize().unwrap();
    let profile = profiler.stop();
    let full = std::path::Path::new("/dev/full");
    for error in [profile.write_trace(full).unwrap_err(), profile.write_svg(full).unwrap_err()] {
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("/dev/full"), "{error}");
    }
    assert!(profile.write_trace(std::path::Path::new("/no/such/folder/trace.json")).is_err());
}
