//! Health: stalls, strikes, loss, recovery, pressure; on a device that is told to fail, on the CPU, and on a real GPU.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use millrace::{
    Access, Class, CpuKernel, Device, DeviceOptions, Error, Event, HealthState, KernelSpec, Runtime, StreamOptions,
    Synchronize, Thresholds,
    cpu::CpuProvider,
    faulty::{Faults, FaultyProvider},
};

const SHORT: Duration = Duration::from_millis(60);
/// How late a wait may end.
const GRACE: Duration = Duration::from_millis(50);

fn faulty(options: DeviceOptions) -> (Device, Faults) {
    let faults = Faults::default();
    let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone()))]);
    (runtime.open_with("cpu", options).unwrap(), faults)
}

fn impatient() -> DeviceOptions {
    DeviceOptions::default().timeout(SHORT)
}

fn is_lost<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::DeviceLost(_)))
}

/// Waits until a device is lost; it must not take long.
fn until_lost(device: &Device) {
    let start = Instant::now();
    while device.health().state != HealthState::Lost {
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", device.health());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_wait_on_a_stalled_device_ends_and_what_hung_goes_on_later() {
    let (device, faults) = faulty(impatient());
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(16).unwrap());
    faults.stall();
    let start = Instant::now();
    assert_eq!(stream.submit(buffer.fill(.., 1)).unwrap().wait(), Err(Error::Stalled(SHORT)));
    assert!(start.elapsed() < SHORT + GRACE, "{:?}", start.elapsed());
    assert_eq!(device.health().state, HealthState::Degraded);
    assert!(device.health().reason.unwrap().contains("nothing moved"));
    let start = Instant::now();
    let read = stream.submit_deadline(buffer.read(..), start + Duration::from_millis(20)).unwrap();
    assert!(matches!(read.wait(), Err(Error::Deadline)));
    assert!(start.elapsed() < Duration::from_millis(20) + GRACE, "{:?}", start.elapsed());
    faults.resume();
    assert_eq!(*stream.run(buffer.read(..)).unwrap(), [1; 16], "the fill was not lost");
    let health = device.health();
    assert_eq!((health.state, health.strikes, health.reason), (HealthState::Healthy, 0, None));
}

#[test]
fn strikes_without_progress_add_up_and_the_last_one_loses_the_device() {
    let (device, faults) = faulty(impatient());
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(16).unwrap());
    let mut events = device.subscribe(64).unwrap();
    faults.stall();
    let tickets: Vec<_> = (0..50).map(|_| stream.submit(buffer.fill(.., 1)).unwrap()).collect();
    let start = Instant::now();
    until_lost(&device);
    assert!(start.elapsed() > 2 * SHORT, "not with the first strike");
    for mut ticket in tickets {
        assert!(is_lost(&ticket.wait_for(GRACE)), "every ticket is answered");
    }
    let mut states = Vec::new();
    while let Some(event) = events.try_next() {
        if let Event::Health { from, to, .. } = event {
            states.push((from, to));
        }
    }
    assert_eq!(states[0], (HealthState::Healthy, HealthState::Degraded));
    assert_eq!(states.last(), Some(&(HealthState::Degraded, HealthState::Lost)));
}

#[test]
fn progress_takes_strikes_away() {
    let (device, faults) = faulty(impatient());
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(16).unwrap());
    for _ in 0..4 {
        faults.stall();
        let ticket = stream.submit(buffer.fill(.., 1)).unwrap();
        std::thread::sleep(SHORT + SHORT / 2); // one strike, not two
        faults.resume();
        ticket.wait().unwrap();
    }
    assert_eq!(device.health().state, HealthState::Healthy);
}

#[test]
fn a_lost_device_answers_every_question_with_the_loss() {
    let (device, faults) = faulty(impatient());
    let stream = device.stream_with(&StreamOptions::default().capacity(4)).unwrap();
    let buffer = device.allocate(16).unwrap();
    let kernel = device.kernel(&KernelSpec::new("nothing").cpu(CpuKernel::per_group(|_| {}))).unwrap();
    faults.lose_after(0);
    assert!(is_lost(&stream.run(buffer.fill(.., 1))));
    for _ in 0..10 {
        assert!(is_lost(&stream.run(buffer.fill(.., 1))), "it stays lost, and a small queue does not block");
    }
    assert!(is_lost(&stream.run(kernel.launch())));
    assert!(is_lost(&stream.try_submit(Synchronize).map(drop).map_err(Error::from)));
    assert!(is_lost(&device.stream().map(drop)));
    assert!(is_lost(&device.allocate(16).map(drop)));
    assert!(is_lost(&device.allocate(1 << 20).map(drop)));
    assert!(is_lost(&device.kernel(&KernelSpec::new("other").cpu(CpuKernel::per_group(|_| {}))).map(drop)));
    let error = stream.run(Synchronize).unwrap_err();
    assert_eq!(error.class(), Class::Fatal);
    assert!(error.to_string().contains("recover()"), "{error}");
}

#[test]
fn what_ran_before_the_loss_stands_and_the_rest_is_answered() {
    let (device, faults) = faulty(impatient());
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(16).unwrap());
    faults.lose_after(3);
    let results: Vec<_> = (0..6).map(|_| stream.run(buffer.fill(.., 1))).collect();
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 3);
    assert!(results[3..].iter().all(is_lost));
}

#[test]
fn other_contexts_do_not_share_the_fate() {
    let faults = Faults::default();
    let runtime = Runtime::new(vec![Box::new(FaultyProvider::new(CpuProvider, faults.clone())), Box::new(CpuProvider)]);
    let lost = runtime.open_with("cpu", impatient()).unwrap();
    let (stream, buffer) = (lost.stream().unwrap(), lost.allocate(16).unwrap());
    faults.lose_after(0);
    assert!(is_lost(&stream.run(buffer.fill(.., 1))));
    let other = runtime.open("cpu").unwrap(); // the same provider, a context of its own
    let (stream, buffer) = (other.stream().unwrap(), other.allocate(16).unwrap());
    stream.run(buffer.fill(.., 2)).unwrap();
    assert_eq!(*stream.run(buffer.read(..)).unwrap(), [2; 16]);
    assert_eq!(other.health().state, HealthState::Healthy);
}

#[test]
fn recovery_gives_a_fresh_generation_and_a_second_failure_is_survived() {
    let (device, faults) = faulty(impatient());
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(1 << 20).unwrap());
    faults.lose_after(0);
    assert!(is_lost(&stream.run(buffer.fill(.., 1))));
    faults.refuse_opening(2);
    for _ in 0..2 {
        assert!(matches!(device.recover(), Err(Error::Device(_))));
        assert_eq!(device.health().state, HealthState::Lost);
    }
    let fresh = device.recover().unwrap();
    assert_eq!((fresh.health().generation, fresh.health().state), (2, HealthState::Healthy));
    assert!(is_lost(&stream.run(buffer.fill(.., 1))), "old handles stay lost");
    let (fresh_stream, fresh_buffer) = (fresh.stream().unwrap(), fresh.allocate(16).unwrap());
    let mixed = fresh_stream.run(buffer.fill(.., 1));
    assert!(matches!(mixed, Err(Error::WrongDevice { .. })), "and never reach the new one");
    assert_eq!(*fresh_stream.run(fresh_buffer.read(..)).unwrap(), [0; 16], "nothing of the old shows");
    drop((stream, buffer));
    let start = Instant::now();
    while (device.memory().in_use, device.memory().reserved) != (0, 0) {
        assert!(start.elapsed() < Duration::from_secs(5), "the old memory is gone with what hung on it");
    }
    // And once more.
    faults.lose_after(0);
    assert!(is_lost(&fresh_stream.run(fresh_buffer.fill(.., 1))));
    assert_eq!(fresh.recover().unwrap().health().generation, 3);
}

#[test]
fn recovery_answers_what_still_hangs() {
    let (device, faults) = faulty(DeviceOptions::default());
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(16).unwrap());
    faults.stall();
    let tickets: Vec<_> = (0..20).map(|_| stream.submit(buffer.fill(.., 1)).unwrap()).collect();
    std::thread::sleep(Duration::from_millis(20));
    let fresh = device.recover().unwrap();
    let start = Instant::now();
    assert!(tickets.into_iter().all(|ticket| is_lost(&ticket.wait())));
    assert!(start.elapsed() < GRACE, "{:?}", start.elapsed());
    faults.resume();
    fresh.stream().unwrap().synchronize().unwrap();
}

#[test]
fn memory_and_compilation_can_fail_and_the_device_goes_on() {
    let (device, faults) = faulty(impatient());
    faults.refuse_memory(true);
    let refused = device.allocate(1 << 20).unwrap_err();
    assert_eq!((refused.class(), &refused), (Class::Resource, &Error::SystemMemory(1 << 20)));
    faults.refuse_memory(false);
    faults.break_compiler(true);
    let spec = KernelSpec::new("k").cpu(CpuKernel::per_group(|_| {}));
    assert!(matches!(device.kernel(&spec), Err(Error::Compile { .. })));
    faults.break_compiler(false);
    let kernel = device.kernel(&spec).unwrap();
    device.allocate(1 << 20).unwrap();
    device.stream().unwrap().run(kernel.launch()).unwrap();
    assert_eq!(device.health().state, HealthState::Healthy);
}

#[test]
fn memory_pressure_degrades_for_as_long_as_it_lasts() {
    let options = DeviceOptions::default().budget(1 << 20).thresholds(Thresholds::new(0.5, 1000.0));
    let device = millrace::runtime().open_with("cpu", options).unwrap();
    let mut events = device.subscribe(8).unwrap();
    let buffer = device.allocate(700_000).unwrap();
    let health = device.health();
    assert_eq!(health.state, HealthState::Degraded);
    assert!(health.reason.unwrap().contains("memory budget"));
    drop(buffer);
    assert_eq!(device.health().state, HealthState::Healthy);
    assert!(matches!(events.try_next(), Some(Event::Health { to: HealthState::Degraded, .. })));
    assert!(matches!(events.try_next(), Some(Event::Health { to: HealthState::Healthy, .. })));
}

#[test]
fn a_device_has_its_time_from_when_it_was_handed_the_work_and_who_waits_hears_of_the_strike() {
    let (device, faults) = faulty(impatient().strikes(1));
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(4).unwrap());
    faults.hesitate(SHORT / 2);
    faults.stall();
    let start = Instant::now();
    let answer = stream.run(buffer.fill(.., 1));
    assert!(is_lost(&answer), "{answer:?}");
    assert!(start.elapsed() >= SHORT + SHORT / 2, "{:?}", start.elapsed());
}

#[test]
fn who_waits_for_room_does_not_blame_a_device_that_has_finished() {
    let (device, faults) = faulty(impatient().strikes(1));
    let stream = device.stream_with(&StreamOptions::default().capacity(1)).unwrap();
    let buffer = device.allocate(4).unwrap();
    let fill = |value| stream.submit(buffer.fill(.., value));
    // Handing over takes longer than the timeout, and whoever is at it does not see that the batch before has finished.
    faults.hesitate(3 * SHORT);
    let first = fill(1).unwrap();
    std::thread::sleep(SHORT);
    let second = fill(2).unwrap();
    std::thread::sleep(2 * SHORT + SHORT / 2);
    let third = fill(3).unwrap();
    let fourth = fill(4);
    assert_ne!(device.health().state, HealthState::Lost, "{fourth:?}");
    faults.hesitate(Duration::ZERO);
    for ticket in [first, second, third] {
        assert_eq!(ticket.wait(), Ok(()));
    }
}

#[test]
fn a_hand_over_that_never_ends_loses_the_device_and_its_commands_are_answered() {
    let (device, faults) = faulty(impatient());
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(4).unwrap());
    faults.hesitate(Duration::from_secs(20));
    let start = Instant::now();
    let mut ticket = stream.submit(buffer.fill(.., 1)).unwrap();
    // The worker is at it: who waits at once for an idle device hands over itself.
    while device.health().submissions_in_flight == 0 {
        assert!(start.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    let answer = ticket.wait_for(Duration::from_secs(15));
    assert!(is_lost(&answer), "{answer:?} after {:?}: {:?}", start.elapsed(), device.health());
    assert!(start.elapsed() > 10 * SHORT, "handing over has its time: {:?}", start.elapsed());
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    faults.hesitate(Duration::ZERO);
    let device = device.recover().unwrap();
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(4).unwrap());
    stream.enqueue(buffer.fill(.., 2)).unwrap();
    assert_eq!(*stream.run(buffer.read(..)).unwrap(), [2; 4]);
}

#[test]
fn a_kernel_that_hangs_on_the_cpu_is_noticed_and_left_behind() {
    let device = millrace::runtime().open_with("cpu", impatient().strikes(2)).unwrap();
    let go_on = Arc::new(AtomicBool::new(false));
    let until = go_on.clone();
    let hang = KernelSpec::new("hang").cpu(CpuKernel::whole(move |_| {
        while !until.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }));
    let (stream, kernel) = (device.stream().unwrap(), device.kernel(&hang).unwrap());
    let _hanging = stream.submit(kernel.launch()).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(stream.submit(Synchronize).unwrap().wait(), Err(Error::Stalled(SHORT)));
    assert_eq!(device.health().state, HealthState::Degraded);
    assert!(is_lost(&stream.submit(Synchronize).unwrap().wait()), "with the second strike");
    let fresh = device.recover().unwrap();
    fresh.stream().unwrap().synchronize().unwrap();
    drop((stream, kernel, device)); // does not wait for the one that hangs
    go_on.store(true, Ordering::Relaxed);
}

#[test]
fn waiting_for_a_marker_is_no_fault_of_the_device() {
    let device = millrace::runtime().open_with("cpu", impatient().strikes(1)).unwrap();
    let stream = device.stream().unwrap();
    let (marker, signal) = millrace::Marker::new();
    let waiting = stream.submit(marker.wait()).unwrap();
    assert_eq!(stream.submit(Synchronize).unwrap().wait(), Err(Error::Stalled(SHORT)));
    assert_eq!(device.health().state, HealthState::Healthy);
    device.stream().unwrap().submit(signal).unwrap();
    waiting.wait().unwrap();
}

#[test]
fn busy_time_and_counts_tell_of_work() {
    let device = millrace::runtime().open("cpu").unwrap();
    let spec = KernelSpec::new("spin").binding::<u8>("out", Access::Overwrite).cpu(CpuKernel::whole(|_| {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) {}
    }));
    let (stream, kernel, out) = (device.stream().unwrap(), device.kernel(&spec).unwrap(), device.allocate(1).unwrap());
    let before = device.health();
    stream.run(kernel.launch().bind(&out)).unwrap();
    let after = device.health();
    assert!(after.busy - before.busy >= Duration::from_millis(30));
    assert!(after.busy_share_since(&before) > 0.1);
    assert_eq!((after.counts - before.counts).launches, 1);
    drop(stream);
    assert_eq!((device.health().counts - before.counts).launches, 1, "a stream that is gone still counts");
}

#[test]
fn a_device_that_is_at_work_is_busy_before_it_has_finished() {
    let spin = KernelSpec::new("spin").cpu(CpuKernel::whole(|_| std::thread::sleep(Duration::from_millis(400))));
    let on_threads = millrace::runtime().open_with("cpu", DeviceOptions::default().workers(1)).unwrap();
    let (queued, _faults) = faulty(DeviceOptions::default());
    for device in [on_threads, queued] {
        let (stream, kernel) = (device.stream().unwrap(), device.kernel(&spin).unwrap());
        let ticket = stream.submit(kernel.launch()).unwrap();
        std::thread::sleep(Duration::from_millis(100));
        let before = device.health();
        std::thread::sleep(Duration::from_millis(100));
        let share = device.health().busy_share_since(&before);
        assert!(share > 0.8, "{share}");
        ticket.wait().unwrap();
        let after = device.health();
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(device.health().busy_share_since(&after), 0.0, "it has nothing to do");
    }
}

#[cfg(feature = "gpu")]
mod gpu {
    use super::*;
    use millrace::gpu::Gpu;

    fn work(device: &Device) -> Result<Vec<u8>, Error> {
        let (stream, buffer) = (device.stream()?, device.allocate(4096)?);
        stream.enqueue(buffer.fill(.., 5)).map_err(Error::from)?;
        Ok(stream.run(buffer.read(..))?.to_vec())
    }

    #[test]
    fn a_gpu_that_is_destroyed_under_load_loses_nothing_silently_and_comes_back() {
        let runtime = millrace::runtime();
        let Ok(device) = runtime.open_with("gpu", DeviceOptions::default().timeout(Duration::from_secs(5))) else {
            return;
        };
        let other = runtime.open("gpu").unwrap();
        let gpu = device.backend().downcast::<Gpu>().unwrap().wgpu().clone();
        let stop = Arc::new(AtomicBool::new(false));
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    scope.spawn(|| {
                        let (stream, buffer) = (device.stream().unwrap(), device.allocate(1 << 16).unwrap());
                        let mut answered = 0;
                        loop {
                            let late = stop.load(Ordering::Relaxed);
                            let tickets: Result<Vec<_>, _> =
                                (0..10).map(|i| stream.submit(buffer.fill(.., i))).collect();
                            let Ok(tickets) = tickets else { break };
                            for ticket in tickets {
                                let result = ticket.wait();
                                assert!(result.is_ok() || is_lost(&result), "{result:?}");
                                answered += 1;
                            }
                            assert!(!late, "it goes on without a device");
                        }
                        answered
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(50));
            gpu.destroy();
            let start = Instant::now();
            until_lost(&device);
            assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
            std::thread::sleep(Duration::from_millis(100));
            stop.store(true, Ordering::Relaxed);
            assert!(threads.into_iter().all(|thread| thread.join().unwrap() > 0));
        });
        assert_eq!(work(&other).unwrap(), [5; 4096], "another context on the same adapter keeps working");
        let fresh = device.recover().unwrap();
        assert_eq!(work(&fresh).unwrap(), [5; 4096]);
        assert!(is_lost(&work(&device)));
        assert_eq!((device.memory().in_use, device.memory().reserved), (0, 0));
        // And again, while it recovers.
        fresh.backend().downcast::<Gpu>().unwrap().wgpu().destroy();
        let third = fresh.recover().unwrap();
        assert_eq!((work(&third).unwrap(), third.health().generation), (vec![5; 4096], 3));
    }

    #[test]
    fn the_probes_find_the_loops_that_mesa_22_ends_early() {
        let Ok(device) = millrace::runtime().open("gpu") else { return };
        let info = device.info();
        let driver = info.details.iter().find(|(name, _)| name == "driver").map_or("", |(_, value)| value);
        let truncates = info.findings.iter().any(|finding| finding.contains("ends loops early"));
        if driver.contains("Mesa 22.") && driver.contains("llvmpipe") {
            assert!(truncates, "{:?}", info.findings);
        }
        assert_eq!(work(&device).unwrap(), [5; 4096], "and it can be used");
    }
}
