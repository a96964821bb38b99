//! Waiting costs no processor time. In a process of its own, whose time is measured.
#![cfg(all(not(loom), target_os = "linux"))]
#![allow(clippy::unwrap_used)]

use std::{
    env,
    process::Command,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use millrace_ring::{Crew, mpsc, reply::ReplyPool, spsc};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Not zero: a sender that is blocked looks by itself ten times a second, and everyone polls for some microseconds
/// before the first sleep.
const NEXT_TO_NOTHING: Duration = Duration::from_millis(20);

/// One at a time: the time of the whole process is measured.
static ALONE: Mutex<()> = Mutex::new(());

fn cpu_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime).try_into().unwrap()
}

#[test]
fn blocked_ends_use_next_to_no_processor_time() {
    let _alone = ALONE.lock().unwrap();
    let (tx_empty, mut rx_empty) = mpsc::bounded::<u8>(8).unwrap();
    let (mut tx_full, mut rx_full) = spsc::bounded(8).unwrap();
    (0..8).for_each(|i| tx_full.try_send(i).unwrap());
    let replies = ReplyPool::<u8>::new();
    let (answer, asked) = replies.pair().unwrap();
    let crew = Crew::new();
    thread::scope(|scope| {
        let member = scope.spawn(|| crew.serve());
        crew.run(&|| ());
        let receiver = scope.spawn(move || rx_empty.recv());
        let sender = scope.spawn(move || tx_full.send(8));
        let asker = scope.spawn(move || asked.recv());
        thread::sleep(Duration::from_millis(100));

        let before = cpu_time();
        thread::sleep(Duration::from_secs(1));
        let used = cpu_time() - before;

        assert!(!receiver.is_finished() && !sender.is_finished() && !asker.is_finished());
        tx_empty.send(1).unwrap();
        assert_eq!(rx_full.drain(8, drop), 8);
        answer.send(2).unwrap();
        assert_eq!(receiver.join().unwrap(), Ok(1));
        assert!(sender.join().unwrap().is_ok());
        assert_eq!(asker.join().unwrap(), Ok(2));
        crew.dismiss();
        member.join().unwrap();
        assert!(used < NEXT_TO_NOTHING, "an idle second took {used:?}");
    });
}

const CHILD: &str = "MILLRACE_IDLE_TEST_ON_ONE_CORE";

/// Runs itself once more in a child process that may use one core only, from before the first ring on.
#[test]
fn on_one_core_nobody_spins() {
    if env::var_os(CHILD).is_some() {
        use_one_core();
        return wait_on_one_core();
    }
    let _alone = ALONE.lock().unwrap();
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "on_one_core_nobody_spins", "--nocapture"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

fn use_one_core() {
    let allowed = sched_getaffinity(None).unwrap();
    let mut one = CpuSet::new();
    one.set((0..CpuSet::MAX_CPU).find(|&core| allowed.is_set(core)).unwrap());
    // The main thread waits for this one and uses no ring, but it is part of the process.
    for thread in [None, Some(rustix::process::getpid())] {
        sched_setaffinity(thread, &one).unwrap();
    }
    assert_eq!(thread::available_parallelism().unwrap().get(), 1);
}

fn wait_on_one_core() {
    let (ping, mut pinged) = mpsc::bounded(1).unwrap();
    let (mut pong, mut ponged) = spsc::bounded(1).unwrap();
    let other = thread::spawn(move || {
        while let Ok(message) = pinged.recv() {
            pong.send(message).unwrap();
        }
        // The last message comes late, from a thread that sleeps.
        thread::sleep(Duration::from_millis(200));
        pong.send(u32::MAX).unwrap();
    });

    let (start, before) = (Instant::now(), cpu_time());
    const ROUNDS: u32 = 5000;
    for i in 0..ROUNDS {
        ping.send(i).unwrap();
        assert_eq!(ponged.recv(), Ok(i));
    }
    let per_round = (cpu_time() - before) / ROUNDS;
    // Two switches of threads; who spins instead of sleeping needs a time slice of milliseconds.
    assert!(per_round < Duration::from_micros(500), "{per_round:?}");
    assert!(start.elapsed() < Duration::from_secs(30));

    drop(ping);
    let (start, before) = (Instant::now(), cpu_time());
    assert_eq!(ponged.recv(), Ok(u32::MAX));
    let used = cpu_time() - before;
    assert!(start.elapsed() >= Duration::from_millis(150));
    assert!(used < NEXT_TO_NOTHING, "{used:?} to wait for 200 ms");
    other.join().unwrap();
}

/// What a sender used of a processor while it sent so many messages to a receiver that takes ten microseconds for each, and how
/// long that took.
fn share_of_a_sender(mut send: impl FnMut(u32), receive: impl FnMut() -> bool + Send + 'static) -> (Duration, f64) {
    let mut receive = receive;
    let receiver = thread::spawn(move || {
        while receive() {
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(10) {
                std::hint::spin_loop();
            }
        }
    });
    let time = || -> Duration { rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap() };
    let (start, before) = (Instant::now(), time());
    (0..600).for_each(&mut send);
    let (used, took) = (time() - before, start.elapsed());
    drop(send); // and with it the ring's end
    receiver.join().unwrap();
    (took, used.as_secs_f64() / took.as_secs_f64())
}

#[test]
fn a_sender_whose_receiver_is_slow_sleeps() {
    let _alone = ALONE.lock().unwrap();
    let mut runs = Vec::new();
    for _ in 0..30 {
        let (tx, mut rx) = mpsc::bounded(100).unwrap();
        runs.push(share_of_a_sender(move |i| tx.send(i).unwrap(), move || rx.recv().is_ok()));
        let (mut tx, mut rx) = spsc::bounded(100).unwrap();
        runs.push(share_of_a_sender(move |i| tx.send(i).unwrap(), move || rx.recv().is_ok()));
    }
    // The quickest third: in the others the machine was elsewhere for a while, and what that does to a share is not the sender's.
    runs.sort_by_key(|(took, _)| *took);
    let mut shares: Vec<f64> = runs[..20].iter().map(|(_, share)| *share).collect();
    shares.sort_by(f64::total_cmp);
    // One that polls for every message has nine tenths.
    assert!(shares[shares.len() * 3 / 4] < 0.15, "{shares:.2?}");
}
