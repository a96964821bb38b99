//! Commands that run on their callers' threads, and those that are left for them.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace::prelude::*;
use support::{cpu, eventually, is_queued, kernel, soon, workers};

/// Says on which thread its last handle was dropped: for a command's payload, that is where it ran.
struct Tracer(Arc<Mutex<Option<ThreadId>>>);

impl AsRef<[u8]> for Tracer {
    fn as_ref(&self) -> &[u8] {
        b"trace"
    }
}

impl Drop for Tracer {
    fn drop(&mut self) {
        *self.0.lock().unwrap() = Some(thread::current().id());
    }
}

#[test]
fn run_executes_a_brief_command_of_an_idle_stream_on_the_calling_thread() {
    if is_queued() {
        return;
    }
    let device = workers(1);
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(5).unwrap());
    let ran_on = Arc::new(Mutex::new(None));
    stream.run(buffer.write(0, Bytes::from_owner(Tracer(ran_on.clone())))).unwrap();
    assert_eq!(*ran_on.lock().unwrap(), Some(thread::current().id()));
}

#[test]
fn run_executes_an_unknown_or_long_kernel_on_a_worker_and_a_brief_one_here() {
    if is_queued() {
        return;
    }
    let device = workers(1);
    let stream = device.stream().unwrap();
    let ran_on = Arc::new(Mutex::new(None));
    let lasts = Arc::new(Mutex::new(Duration::ZERO));
    let (place, time) = (ran_on.clone(), lasts.clone());
    let probe = kernel(&device, move || {
        *place.lock().unwrap() = Some(thread::current().id());
        thread::sleep(*time.lock().unwrap());
    });
    let ran_here = || {
        stream.run(probe.launch()).unwrap();
        *ran_on.lock().unwrap() == Some(thread::current().id())
    };
    assert!(!ran_here(), "nothing is known of the kernel");
    eventually("it is known to be brief", ran_here);
    *lasts.lock().unwrap() = Duration::from_millis(60);
    ran_here();
    assert!(!ran_here(), "it is known to be long");
    assert!(probe.longest().unwrap() >= Duration::from_millis(60));
}

#[test]
fn a_wait_of_one_thread_does_not_run_the_long_kernels_before_its_command() {
    if is_queued() {
        return;
    }
    let device = workers(1);
    let stream = device.stream().unwrap();
    let ran_on = Arc::new(Mutex::new(None));
    let place = ran_on.clone();
    let long = kernel(&device, move || {
        *place.lock().unwrap() = Some(thread::current().id());
        thread::sleep(Duration::from_millis(60));
    });
    for _ in 0..5 {
        stream.submit(long.launch()).unwrap();
        stream.submit(Synchronize).unwrap().wait().unwrap();
        assert_ne!(*ran_on.lock().unwrap(), Some(thread::current().id()));
    }
}

/// A kernel of a millisecond, a stream, and where it ran last and how often.
struct Habit {
    device: Device,
    stream: Stream,
    kernel: Kernel,
    ran_on: Arc<Mutex<Option<ThreadId>>>,
    ran: Arc<AtomicU32>,
}

impl Habit {
    fn new(device: Device) -> Self {
        let (ran_on, ran) = (Arc::new(Mutex::new(None)), Arc::new(AtomicU32::new(0)));
        let (place, count) = (ran_on.clone(), ran.clone());
        let kernel = kernel(&device, move || {
            thread::sleep(Duration::from_millis(1));
            *place.lock().unwrap() = Some(thread::current().id());
            count.fetch_add(1, Ordering::Relaxed);
        });
        Self { stream: device.stream().unwrap(), device, kernel, ran_on, ran }
    }

    fn ran_here(&self) -> bool {
        *self.ran_on.lock().unwrap() == Some(thread::current().id())
    }

    /// Enqueues and waits, until that is what is expected of this thread.
    fn get_used_to_it(&self) {
        eventually("the caller runs what it waits for", || {
            self.stream.enqueue(self.kernel.launch()).unwrap();
            self.stream.synchronize().unwrap();
            self.ran_here()
        });
        // It may have been lucky.
        for _ in 0..5 {
            self.stream.enqueue(self.kernel.launch()).unwrap();
            self.stream.synchronize().unwrap();
        }
    }
}

#[test]
fn one_who_enqueues_and_waits_again_and_again_runs_it_itself() {
    if is_queued() {
        return;
    }
    let habit = Habit::new(workers(1));
    habit.get_used_to_it();
    let before = habit.ran.load(Ordering::Relaxed);
    let mut here = 0;
    for _ in 0..20 {
        habit.stream.enqueue(habit.kernel.launch()).unwrap();
        habit.stream.enqueue(habit.kernel.launch()).unwrap();
        habit.stream.synchronize().unwrap();
        here += u32::from(habit.ran_here());
    }
    assert_eq!(habit.ran.load(Ordering::Relaxed), before + 40);
    assert!(here >= 10, "{here} of 20 on this thread, which may be held up but not always");
}

#[test]
fn what_was_left_for_a_caller_that_does_not_come_runs_all_the_same() {
    let habit = Habit::new(workers(1));
    if !is_queued() {
        habit.get_used_to_it();
    }
    for _ in 0..5 {
        let before = habit.ran.load(Ordering::Relaxed);
        habit.stream.enqueue(habit.kernel.launch()).unwrap();
        eventually("a worker takes it", || habit.ran.load(Ordering::Relaxed) == before + 1);
        assert!(!habit.ran_here());
    }
}

#[test]
fn what_was_left_for_a_caller_runs_also_while_another_stream_never_runs_dry() {
    if is_queued() {
        return;
    }
    let habit = Habit::new(workers(1));
    habit.get_used_to_it();
    let (other, done) = (habit.device.stream().unwrap(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                other.submit(Synchronize).unwrap();
            }
        });
        let before = habit.ran.load(Ordering::Relaxed);
        habit.stream.enqueue(habit.kernel.launch()).unwrap();
        eventually("the worker takes it", || habit.ran.load(Ordering::Relaxed) == before + 1);
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn what_was_left_for_a_caller_is_done_for_whoever_else_waits() {
    let habit = Habit::new(workers(1));
    let used = || {
        if !is_queued() {
            habit.get_used_to_it();
        }
        let before = habit.ran.load(Ordering::Relaxed);
        habit.stream.enqueue(habit.kernel.launch()).unwrap();
        before + 1
    };
    let expected = used();
    pollster::block_on(async { habit.stream.submit_async(Synchronize).await.unwrap().await }).unwrap();
    assert_eq!(habit.ran.load(Ordering::Relaxed), expected, "a task");
    let expected = used();
    habit.stream.submit_deadline(Synchronize, soon()).unwrap().wait().unwrap();
    assert_eq!(habit.ran.load(Ordering::Relaxed), expected, "one with a deadline");
    let expected = used();
    let marker = habit.stream.mark().unwrap();
    let other = habit.device.stream().unwrap();
    other.submit(marker.wait()).unwrap();
    other.synchronize().unwrap();
    assert_eq!(habit.ran.load(Ordering::Relaxed), expected, "another stream");
    let expected = used();
    thread::scope(|scope| scope.spawn(|| habit.stream.synchronize().unwrap()).join().unwrap());
    assert_eq!(habit.ran.load(Ordering::Relaxed), expected, "another thread");
    let expected = used();
    habit.device.shutdown(soon()).unwrap();
    assert_eq!(habit.ran.load(Ordering::Relaxed), expected, "the end");
}

#[test]
fn nothing_is_forgotten_however_callers_come_and_go() {
    let device = cpu();
    let total = Arc::new(AtomicU32::new(0));
    let count = total.clone();
    let busy = kernel(&device, move || {
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(250) {
            std::hint::spin_loop();
        }
        count.fetch_add(1, Ordering::Relaxed);
    });
    let streams: Vec<_> = (0..2).map(|_| device.stream().unwrap()).collect();
    const EACH: u32 = 150;
    thread::scope(|scope| {
        for thread in 0..3 {
            let (streams, busy) = (&streams, &busy);
            scope.spawn(move || {
                for n in 0..EACH {
                    let stream = &streams[(thread + n as usize / 40) % 2];
                    stream.enqueue(busy.launch()).unwrap();
                    match n % 13 {
                        11 => thread::sleep(Duration::from_millis(1)),
                        12 => drop(stream.submit(Synchronize).unwrap()),
                        _ => stream.synchronize().unwrap(),
                    }
                }
            });
        }
    });
    streams.iter().for_each(|stream| stream.synchronize().unwrap());
    assert_eq!(total.load(Ordering::Relaxed), 3 * EACH);
}

/// Submits a write and says whether it has run here before its ticket was had; `then` is what is done with the ticket.
fn runs_in_submit(stream: &Stream, buffer: &Buffer, then: impl FnOnce(Ticket<()>)) -> bool {
    let ran_on = Arc::new(Mutex::new(None));
    let ticket = stream.submit(buffer.write(0, Bytes::from_owner(Tracer(ran_on.clone())))).unwrap();
    let before = *ran_on.lock().unwrap() == Some(thread::current().id());
    then(ticket);
    eventually("it ran", || ran_on.lock().unwrap().is_some());
    before
}

#[test]
fn what_is_submitted_and_waited_for_at_once_again_and_again_runs_before_its_ticket_is_had() {
    if is_queued() {
        return;
    }
    let device = workers(1);
    let (stream, buffer) = (device.stream().unwrap(), device.allocate(5).unwrap());
    let waits = || runs_in_submit(&stream, &buffer, |ticket| ticket.wait().unwrap());
    let get_used_to_it = || eventually("it is run at once", waits);
    get_used_to_it();

    let leaves = || runs_in_submit(&stream, &buffer, drop);
    leaves();
    assert!(!leaves(), "one who does not wait does not run it");
    get_used_to_it();
    let has_a_deadline = || {
        runs_in_submit(&stream, &buffer, |mut ticket| ticket.wait_for(Duration::from_secs(10)).unwrap());
    };
    has_a_deadline();
    assert!(!waits(), "nor one with a deadline");
    get_used_to_it();
    runs_in_submit(&stream, &buffer, |ticket| pollster::block_on(ticket).unwrap());
    assert!(!waits(), "nor a task");
    get_used_to_it();
    runs_in_submit(&stream, &buffer, |ticket| {
        thread::sleep(Duration::from_millis(1));
        ticket.wait().unwrap();
    });
    assert!(!waits(), "nor one who does something else before");
}

#[test]
fn a_kernel_never_runs_before_its_ticket_is_had() {
    let device = workers(1);
    let stream = device.stream().unwrap();
    let kept = Arc::new(Mutex::new(()));
    let needs = kept.clone();
    let kernel = kernel(&device, move || drop(needs.lock().unwrap()));
    for _ in 0..50 {
        let in_hand = kept.lock().unwrap();
        let ticket = stream.submit(kernel.launch()).unwrap();
        drop(in_hand);
        ticket.wait().unwrap();
        stream.submit(Synchronize).unwrap().wait().unwrap();
    }
}

#[test]
fn an_error_of_what_ran_before_its_ticket_was_had_is_not_lost() {
    let device = cpu();
    let (stream, fails) = (device.stream().unwrap(), Arc::new(AtomicBool::new(false)));
    let inside = fails.clone();
    let probe = kernel(&device, move || assert!(!inside.load(Ordering::Relaxed), "as it should"));
    let wait_at_once = || (0..20).for_each(|_| stream.submit(Synchronize).unwrap().wait().unwrap());
    wait_at_once();
    fails.store(true, Ordering::Relaxed);
    drop(stream.submit(probe.launch()).unwrap());
    let told = |ticket: Ticket<()>| assert_eq!(ticket.wait(), Err(Error::Panicked("as it should".into())));
    told(stream.submit(Synchronize).unwrap());
    wait_at_once();
    drop(stream.submit(probe.launch()).unwrap());
    eventually("it has run", || device.counts().launches == 2);
    // Synchronizing brings what nobody waited for, and if nobody waits for that, the next one does.
    drop(stream.submit(Synchronize).unwrap());
    told(stream.submit(Synchronize).unwrap());
}
