//! Streams: order, overlap, full queues, deadlines, cancellation.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace::{Command, prelude::*};
use support::{
    Gate, Log, assert_in_time, cpu, cpu_with, eventually, is_queued, kernel, only_wait, panics, soon, workers,
};

fn of_capacity(device: &Device, capacity: usize) -> Stream {
    device.stream_with(&StreamOptions::default().capacity(capacity)).unwrap()
}

/// A stream whose queue is full behind a gate, with the tickets of what is in it.
fn full(device: &Device, capacity: usize) -> (Stream, Gate, Vec<Ticket>) {
    let stream = of_capacity(device, capacity);
    let (gate, first) = Gate::across(device, &stream);
    let mut tickets = vec![first];
    tickets.extend((0..capacity).map(|_| stream.try_submit(Synchronize).unwrap()));
    (stream, gate, tickets)
}

/// Long enough for another thread to be where it blocks; if it is late, the test still holds.
fn let_it_block() {
    thread::sleep(Duration::from_millis(20));
}

#[test]
fn commands_on_one_stream_run_in_the_order_they_were_submitted() {
    let device = cpu();
    let (stream, log) = (of_capacity(&device, 8), Log::new(&device));
    const N: u32 = 3000;
    for n in 0..N {
        match n % 7 {
            0 | 3 => stream.run(log.launch(n)).unwrap(),
            1 | 2 | 4 => drop(stream.submit(log.launch(n)).unwrap()),
            _ => eventually("room", || stream.try_submit(log.launch(n)).is_ok()),
        }
    }
    stream.synchronize().unwrap();
    assert_eq!(log.seen(), (0..N).collect::<Vec<_>>());
}

#[test]
fn a_thread_finds_what_it_submitted_before_also_while_others_use_the_stream() {
    let device = workers(2);
    let stream = device.stream().unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mine = device.allocate(8).unwrap();
                for n in 0..8000u64 {
                    stream.submit(mine.write(0, n.to_ne_bytes().to_vec())).unwrap();
                    let read = stream.run(mine.read(..)).unwrap();
                    assert_eq!(read.to::<u64>(), [n], "the read overtook the write");
                }
            });
        }
    });
}

/// Enough runs in a row that a stream counts on the thread that does them.
fn make_at_home(stream: &Stream) {
    (0..1000).for_each(|_| stream.run(Synchronize).unwrap());
}

#[test]
fn a_stream_that_one_thread_has_to_itself_runs_one_command_at_a_time_when_others_come() {
    let device = workers(2);
    let (running, ran) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let alone = {
        let (running, ran) = (running.clone(), ran.clone());
        kernel(&device, move || {
            assert!(!running.swap(true, Ordering::SeqCst), "two commands of a stream at once");
            let before = ran.load(Ordering::Relaxed);
            let start = Instant::now();
            while start.elapsed() < Duration::from_micros(20) {} // long enough to be met, and still brief
            ran.store(before + 1, Ordering::Relaxed);
            running.store(false, Ordering::SeqCst);
        })
    };
    const ROUNDS: usize = 50;
    for _ in 0..ROUNDS {
        let stream = device.stream().unwrap();
        stream.run(alone.launch()).unwrap();
        make_at_home(&stream);
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..5 {
                    only_wait(stream.submit(alone.launch()).unwrap()).unwrap(); // a worker runs it
                    stream.run(alone.launch()).unwrap();
                }
            });
            (0..60).for_each(|_| stream.run(alone.launch()).unwrap());
        });
    }
    assert_eq!(ran.load(Ordering::Relaxed), ROUNDS * 71);
    assert_eq!(device.counts().launches, ROUNDS as u64 * 71);
}

#[test]
fn a_kernel_that_waits_for_its_own_stream_is_told_so_also_where_its_thread_is_at_home() {
    if is_queued() {
        return;
    }
    // A kernel that was held up once is not brief, and runs on a worker: then it is tried again.
    let found = (0..50).find_map(|_| {
        let device = cpu_with(DeviceOptions::default().timeout(Duration::from_millis(100)));
        let stream = device.stream().unwrap();
        let (inner, seen) = (stream.clone(), Arc::new(Mutex::new(None)));
        let waits = {
            let (seen, calls, home) = (seen.clone(), AtomicUsize::new(0), thread::current().id());
            kernel(&device, move || {
                // The first calls show that it is brief.
                if calls.fetch_add(1, Ordering::Relaxed) == 20 && thread::current().id() == home {
                    *seen.lock().unwrap() = Some(inner.run(Synchronize));
                }
            })
        };
        (0..20).for_each(|_| stream.run(waits.launch()).unwrap());
        make_at_home(&stream);
        stream.run(waits.launch()).unwrap();
        stream.synchronize().unwrap();
        seen.lock().unwrap().take()
    });
    assert!(matches!(found, Some(Err(Error::Stalled(_)))), "{found:?}");
}

#[test]
fn a_device_is_not_closed_under_a_command_that_runs_on_its_callers_thread() {
    if is_queued() {
        return;
    }
    let device = cpu();
    let stream = device.stream().unwrap();
    let gate = Arc::new((AtomicBool::new(false), AtomicBool::new(false)));
    let stays = {
        let (gate, calls) = (gate.clone(), AtomicUsize::new(0));
        kernel(&device, move || {
            if calls.fetch_add(1, Ordering::Relaxed) == 20 {
                gate.0.store(true, Ordering::SeqCst);
                eventually("the gate", || gate.1.load(Ordering::SeqCst));
            }
        })
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            (0..20).for_each(|_| stream.run(stays.launch()).unwrap());
            make_at_home(&stream);
            stream.run(stays.launch()).unwrap();
        });
        eventually("the kernel", || gate.0.load(Ordering::SeqCst));
        let closed = device.shutdown(Instant::now() + Duration::from_millis(20));
        gate.1.store(true, Ordering::SeqCst);
        assert!(matches!(closed, Err(Error::Stalled(_))), "{closed:?}");
    });
    device.shutdown(soon()).unwrap();
}

/// Where two kernels meet; whoever waits too long for the other fails.
#[derive(Default)]
struct Meeting {
    came: Mutex<usize>,
    changed: Condvar,
}

impl Meeting {
    fn meet(&self) {
        let mut came = self.came.lock().unwrap();
        *came += 1;
        let both = came.next_multiple_of(2);
        self.changed.notify_all();
        let (_came, timeout) =
            self.changed.wait_timeout_while(came, Duration::from_secs(10), |came| *came < both).unwrap();
        assert!(!timeout.timed_out(), "the other kernel did not run at the same time");
    }
}

#[test]
fn streams_overlap() {
    if is_queued() {
        return;
    }
    let device = workers(2);
    let meeting = Arc::new(Meeting::default());
    let meet = kernel(&device, move || meeting.meet());
    let (a, b) = (device.stream().unwrap(), device.stream().unwrap());
    for _ in 0..200 {
        let tickets = [&a, &b].map(|stream| stream.submit(meet.launch()).unwrap());
        for ticket in tickets {
            only_wait(ticket).unwrap();
        }
    }
}

#[test]
fn two_streams_that_become_ready_while_a_worker_lingers_both_get_a_worker() {
    if is_queued() {
        return;
    }
    let device = workers(2);
    let meeting = Arc::new(Meeting::default());
    let meet = kernel(&device, move || meeting.meet());
    let [busy, a, b] = [(); 3].map(|()| device.stream().unwrap());
    for _ in 0..3000 {
        // Whoever ran this lingers now.
        only_wait(busy.submit(Synchronize).unwrap()).unwrap();
        let tickets = [&a, &b].map(|stream| stream.submit(meet.launch()).unwrap());
        for ticket in tickets {
            only_wait(ticket).unwrap();
        }
    }
}

#[test]
fn a_marker_makes_a_stream_of_the_same_device_wait() {
    if is_queued() {
        return;
    }
    let device = workers(2);
    let (first, second, log) = (device.stream().unwrap(), device.stream().unwrap(), Log::new(&device));
    let (gate, _held) = Gate::across(&device, &first);
    first.submit(log.launch(1)).unwrap();
    let marker = first.mark().unwrap();
    second.submit(marker.wait()).unwrap();
    let last = second.submit(log.launch(2)).unwrap();
    device.stream().unwrap().run(log.launch(0)).unwrap(); // others go on
    assert!(!marker.is_reached());
    gate.open();
    last.wait().unwrap();
    assert!(marker.is_reached());
    assert_eq!(log.seen(), [0, 1, 2]);
}

#[test]
fn a_marker_makes_a_stream_of_another_device_wait() {
    let (one, other) = (workers(1), workers(1));
    let (first, second) = (one.stream().unwrap(), other.stream().unwrap());
    let log = Log::new(&one);
    let log_there = log.also_on(&other);
    let (gate, _held) = Gate::across(&one, &first);
    first.submit(log.launch(1)).unwrap();
    let marker = first.mark().unwrap();
    second.submit(marker.wait()).unwrap();
    let last = second.submit(log_there.launch(2)).unwrap();
    // The only worker of the other device is not held by the stream that waits.
    other.stream().unwrap().run(log_there.launch(0)).unwrap();
    gate.open();
    last.wait().unwrap();
    assert_eq!(log.seen(), [0, 1, 2]);
}

#[test]
fn many_streams_that_wait_for_one_marker_all_go_on() {
    let device = workers(2);
    for _ in 0..200 {
        let (marker, signal) = Marker::new();
        let streams: Vec<_> = (0..8).map(|_| device.stream().unwrap()).collect();
        let tickets: Vec<_> = streams.iter().map(|stream| stream.submit(marker.wait()).unwrap()).collect();
        device.stream().unwrap().submit(signal).unwrap();
        for ticket in tickets {
            only_wait(ticket).unwrap();
        }
    }
}

#[test]
fn a_marker_of_several_streams_is_reached_when_the_last_of_them_is_there() {
    if is_queued() {
        return;
    }
    let device = workers(2);
    let [a, b, c] = [(); 3].map(|()| device.stream().unwrap());
    let (gate, _held) = Gate::across(&device, &b);
    let (marker, signal) = Marker::new();
    let waiting = c.submit(marker.wait()).unwrap();
    let mut tickets = millrace::fan_out([&a, &b], signal, soon());
    tickets.swap_remove(0).unwrap().wait().unwrap();
    assert!(!marker.is_reached(), "one of the streams has not got there");
    gate.open();
    only_wait(waiting).unwrap();
    assert!(marker.is_reached());
}

#[test]
fn a_signal_that_never_runs_breaks_its_marker() {
    let device = workers(2);
    let (first, second) = (device.stream().unwrap(), device.stream().unwrap());

    let (marker, signal) = Marker::new();
    let waiting = second.submit(marker.wait()).unwrap();
    drop(signal);
    assert_eq!(waiting.wait(), Err(Error::MarkerBroken), "dropped");
    assert_eq!(second.run(marker.wait()), Err(Error::MarkerBroken), "it stays broken");
    assert!(!marker.is_reached());

    let (gate, _held) = Gate::across(&device, &first);
    let (marker, signal) = Marker::new();
    first.submit(signal).unwrap().cancel();
    let waiting = second.submit(marker.wait()).unwrap();
    gate.open();
    assert_eq!(waiting.wait(), Err(Error::MarkerBroken), "cancelled");

    let (gate, _held) = Gate::across(&device, &first);
    let (marker, signal) = Marker::new();
    let late = first.submit_deadline(signal, Instant::now() + Duration::from_millis(5)).unwrap();
    let waiting = second.submit(marker.wait()).unwrap();
    assert_eq!(late.wait(), Err(Error::Deadline));
    gate.open();
    assert_eq!(waiting.wait(), Err(Error::MarkerBroken), "too late");
}

#[test]
fn a_full_queue_hands_the_very_command_back() {
    let device = workers(1);
    let (stream, _gate, _held) = full(&device, 2);
    let buffer = device.allocate(4).unwrap();
    let payload = Bytes::from(vec![1, 2, 3, 4]);
    let address = payload.as_ptr();
    let rejected = stream.try_submit(buffer.write(0, payload)).unwrap_err();
    assert_eq!(rejected.error, Error::QueueFull { capacity: 2 });
    let Command::Write(write) = rejected.command else { panic!("another command came back") };
    assert_eq!(write.data.as_ptr(), address);
    assert!(write.to.buffer().same_as(&buffer));
}

#[test]
fn a_blocking_submit_waits_until_there_is_room() {
    let device = workers(1);
    let (stream, gate, _held) = full(&device, 2);
    thread::scope(|scope| {
        let submit = scope.spawn(|| {
            let ticket = stream.submit(Synchronize).unwrap();
            (Instant::now(), ticket)
        });
        let_it_block();
        let opened = Instant::now();
        gate.open();
        let (accepted, ticket) = submit.join().unwrap();
        assert!(accepted >= opened, "it was accepted into a full queue");
        ticket.wait().unwrap();
    });
}

#[test]
fn a_blocking_submit_gives_up_when_nothing_moves_for_the_timeout() {
    let device = cpu_with(DeviceOptions::default().workers(1).timeout(Duration::from_millis(50)));
    let (stream, _gate, _held) = full(&device, 1);
    let rejected = stream.submit(Synchronize).unwrap_err();
    assert_eq!(rejected.error, Error::Stalled(Duration::from_millis(50)));
}

#[test]
fn a_submit_with_a_deadline_gives_up_in_time_with_the_command_in_hand() {
    let device = workers(1);
    let (stream, _gate, _held) = full(&device, 2);
    let buffer = device.allocate(4).unwrap();
    let payload = Bytes::from(vec![1, 2, 3, 4]);
    assert_in_time(Duration::from_millis(30), |deadline| {
        let rejected = stream.submit_deadline(buffer.write(0, payload.clone()), deadline).unwrap_err();
        assert_eq!(rejected.error, Error::Deadline);
        let Command::Write(write) = rejected.command else { panic!("another command came back") };
        assert_eq!(write.data.as_ptr(), payload.as_ptr());
    });
}

#[test]
fn an_awaited_submit_goes_on_when_there_is_room() {
    let device = workers(1);
    let (stream, gate, _held) = full(&device, 1);
    thread::scope(|scope| {
        let submit =
            scope.spawn(|| pollster::block_on(async { stream.submit_async(Synchronize).await.unwrap().await }));
        let_it_block();
        assert!(!submit.is_finished());
        gate.open();
        submit.join().unwrap().unwrap();
    });
}

/// An executor of one task.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn an_awaited_submit_wakes_its_task_and_nobody_else_has_to() {
    let device = workers(1);
    let (stream, gate, _held) = full(&device, 1);
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let waker = Waker::from(flag.clone());
    let mut cx = Context::from_waker(&waker);
    let mut submit = pin!(stream.submit_async(Synchronize));
    assert!(submit.as_mut().poll(&mut cx).is_pending());
    gate.open();
    let mut ticket = loop {
        eventually("the task is woken", || flag.0.swap(false, Ordering::SeqCst));
        if let Poll::Ready(ticket) = submit.as_mut().poll(&mut cx) {
            break ticket.unwrap();
        }
    };
    while pin!(&mut ticket).poll(&mut cx).is_pending() {
        eventually("the task is woken", || flag.0.swap(false, Ordering::SeqCst));
    }
}

#[test]
fn an_awaited_submit_that_is_dropped_has_submitted_nothing() {
    let device = workers(1);
    let (stream, gate, held) = full(&device, 1);
    let log = Log::new(&device);
    {
        let mut submit = pin!(stream.submit_async(log.launch(1)));
        assert!(submit.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    gate.open();
    for ticket in held {
        ticket.wait().unwrap();
    }
    stream.synchronize().unwrap();
    assert!(log.seen().is_empty());
}

#[test]
fn two_tasks_of_one_executor_share_a_full_queue() {
    let device = workers(2);
    let (stream, log) = (of_capacity(&device, 1), Log::new(&device));
    let task = |first: u32| {
        let (stream, log) = (&stream, &log);
        async move {
            for n in 0..200 {
                stream.submit_async(log.launch(first + n)).await.unwrap().await.unwrap();
            }
        }
    };
    futures_lite::future::block_on(futures_lite::future::zip(task(0), task(1000)));
    let (one, other): (Vec<u32>, Vec<u32>) = log.seen().into_iter().partition(|n| *n < 1000);
    assert_eq!(one, (0..200).collect::<Vec<_>>());
    assert_eq!(other, (1000..1200).collect::<Vec<_>>());
}

#[test]
fn a_queue_of_no_or_of_absurd_capacity_is_refused_with_a_reason() {
    let device = cpu();
    for capacity in [0, usize::MAX, 1 << 30] {
        let error = device.stream_with(&StreamOptions::default().capacity(capacity)).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        assert!(error.to_string().contains(&capacity.to_string()), "{error}");
    }
}

#[test]
fn a_command_that_expires_in_the_queue_is_never_executed() {
    let device = workers(1);
    let (stream, log) = (device.stream().unwrap(), Log::new(&device));
    let (gate, _held) = Gate::across(&device, &stream);
    assert_in_time(Duration::from_millis(20), |deadline| {
        let ticket = stream.submit_deadline(log.launch(1), deadline).unwrap();
        assert_eq!(ticket.wait(), Err(Error::Deadline));
    });
    assert_in_time(Duration::from_millis(20), |deadline| {
        let ticket = stream.submit_deadline(log.launch(2), deadline).unwrap();
        assert_eq!(pollster::block_on(ticket), Err(Error::Deadline));
    });
    gate.open();
    stream.run(log.launch(3)).unwrap();
    assert_eq!(log.seen(), [3]);
}

#[test]
fn a_deadline_that_was_reported_does_not_come_up_again() {
    let device = workers(1);
    let stream = device.stream().unwrap();
    let (gate, _held) = Gate::across(&device, &stream);
    let in_a_moment = || Instant::now() + Duration::from_millis(5);
    assert_eq!(stream.submit_deadline(Synchronize, in_a_moment()).unwrap().wait(), Err(Error::Deadline));
    let awaited = stream.submit_deadline(Synchronize, in_a_moment()).unwrap();
    assert_eq!(pollster::block_on(awaited), Err(Error::Deadline));
    gate.open();
    stream.synchronize().unwrap();
}

#[test]
fn a_deadline_covers_a_command_that_runs() {
    let device = workers(1);
    let stream = device.stream().unwrap();
    let gate = Gate::new(&device);
    for awaited in [false, true] {
        let mut running = Vec::new();
        assert_in_time(Duration::from_millis(50), |deadline| {
            let gate = Gate::new(&device);
            let ticket = stream.submit_deadline(gate.launch(), deadline).unwrap();
            gate.until_entered();
            let result = if awaited { pollster::block_on(ticket) } else { ticket.wait() };
            assert_eq!(result, Err(Error::Deadline));
            running.push(gate);
        });
        drop(running);
    }
    gate.open();
    stream.run(gate.launch()).unwrap();
}

#[test]
fn a_ticket_can_be_asked_again_after_a_wait_that_was_too_short() {
    let device = workers(1);
    let stream = device.stream().unwrap();
    let (gate, mut ticket) = Gate::across(&device, &stream);
    assert!(ticket.try_wait().is_none());
    assert_in_time(Duration::from_millis(20), |deadline| assert_eq!(ticket.wait_until(deadline), Err(Error::Deadline)));
    assert_eq!(ticket.wait_for(Duration::from_millis(1)), Err(Error::Deadline));
    gate.open();
    ticket.wait().unwrap();
}

#[test]
fn a_wait_on_a_stream_that_does_not_move_ends_with_the_devices_timeout() {
    let timeout = Duration::from_millis(50);
    let device = cpu_with(DeviceOptions::default().workers(1).timeout(timeout));
    let stream = device.stream().unwrap();
    let (_gate, ticket) = Gate::across(&device, &stream);
    assert_eq!(ticket.wait(), Err(Error::Stalled(timeout)));
}

#[test]
fn a_device_may_have_no_timeout() {
    let device = cpu_with(DeviceOptions::default().workers(1).timeout(Duration::MAX));
    let stream = device.stream().unwrap();
    let gate = Gate::new(&device);
    let ticket = stream.submit(gate.launch()).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| ticket.wait());
        gate.until_entered();
        gate.open();
        waiting.join().unwrap().unwrap();
    });
}

#[test]
fn a_cancelled_command_that_has_not_started_never_does() {
    let device = workers(1);
    let (stream, log) = (device.stream().unwrap(), Log::new(&device));
    let (gate, held) = Gate::across(&device, &stream);
    let [cancelled, kept] = [1, 2].map(|n| stream.submit(log.launch(n)).unwrap());
    cancelled.cancel();
    gate.open();
    held.wait().unwrap();
    assert_eq!(cancelled.wait(), Err(Error::Cancelled));
    kept.wait().unwrap();
    assert_eq!(log.seen(), [2]);
}

#[test]
fn cancelling_a_command_that_runs_changes_nothing() {
    let device = workers(1);
    let stream = device.stream().unwrap();
    let (gate, ticket) = Gate::across(&device, &stream);
    ticket.cancel();
    gate.open();
    ticket.wait().unwrap();
}

#[test]
fn the_first_error_that_nobody_waited_for_comes_up_at_the_next_synchronize_once() {
    let device = workers(1);
    let stream = device.stream().unwrap();
    let (gate, _held) = Gate::across(&device, &stream);
    for message in ["the first", "the second"] {
        drop(stream.submit(panics(&device, message).launch()).unwrap());
    }
    gate.open();
    assert_eq!(stream.synchronize(), Err(Error::Panicked("the first".into())));
    stream.synchronize().unwrap();
}

#[test]
fn an_error_that_was_waited_for_does_not_come_up_again() {
    let device = workers(1);
    let stream = device.stream().unwrap();
    let failing = panics(&device, "told");
    assert!(stream.submit(failing.launch()).unwrap().wait().is_err());
    assert!(pollster::block_on(stream.submit(failing.launch()).unwrap()).is_err());
    assert!(stream.run(failing.launch()).is_err());
    let mut ticket = stream.submit(failing.launch()).unwrap();
    eventually("an answer", || ticket.try_wait().is_some());
    drop(ticket);
    stream.synchronize().unwrap();
}

#[test]
fn an_error_is_not_lost_when_its_ticket_is_dropped_at_that_very_moment() {
    let device = workers(1);
    let stream = device.stream().unwrap();
    let (broken, _) = Marker::new();
    for round in 0..30_000 {
        let ticket = stream.submit(broken.wait()).unwrap();
        for _ in 0..round % 64 {
            std::hint::spin_loop();
        }
        drop(ticket);
        let synchronized = stream.submit(Synchronize).unwrap().wait();
        assert_eq!(synchronized, Err(Error::MarkerBroken), "lost in round {round}");
    }
}

#[test]
fn a_cancelled_command_is_no_error_that_somebody_missed() {
    let device = workers(1);
    let stream = device.stream().unwrap();
    let (gate, held) = Gate::across(&device, &stream);
    let [before, after] = [(); 2].map(|()| stream.submit(Synchronize).unwrap());
    before.cancel();
    after.cancel();
    drop(before); // before it is answered
    gate.open();
    held.wait().unwrap();
    let last = stream.submit(Synchronize).unwrap();
    only_wait(last).unwrap();
    drop(after); // after it was
    stream.synchronize().unwrap();
}

#[test]
fn the_more_urgent_stream_is_served_first() {
    let device = workers(1);
    let log = Log::new(&device);
    let (gate, _held) = Gate::across(&device, &device.stream().unwrap());
    let mut tickets = Vec::new();
    for (first, priority) in [(200, Priority::Low), (100, Priority::Normal), (0, Priority::High)] {
        let stream = device.stream_with(&StreamOptions::default().priority(priority)).unwrap();
        tickets.extend((first..first + 20).map(|n| stream.submit(log.launch(n)).unwrap()));
    }
    gate.open();
    for ticket in tickets {
        only_wait(ticket).unwrap();
    }
    let expected: Vec<_> = [0, 100, 200].into_iter().flat_map(|first| first..first + 20).collect();
    assert_eq!(log.seen(), expected);
}

#[test]
fn a_less_urgent_stream_gets_its_turn_under_a_flood() {
    let device = workers(1);
    let log = Log::new(&device);
    let (gate, _held) = Gate::across(&device, &device.stream().unwrap());
    let with = |priority, capacity| {
        device.stream_with(&StreamOptions::default().priority(priority).capacity(capacity)).unwrap()
    };
    const FLOOD: u32 = 6000;
    let (low, normal) = (with(Priority::Low, 16), with(Priority::Normal, 16));
    let patient: Vec<_> = (0..5)
        .flat_map(|n| [low.submit(log.launch(FLOOD + n)).unwrap(), normal.submit(log.launch(FLOOD + 5 + n)).unwrap()])
        .collect();
    let high = [(); 2].map(|()| with(Priority::High, FLOOD as usize));
    let flood: Vec<_> = (0..FLOOD).map(|n| high[n as usize % 2].submit(log.launch(n)).unwrap()).collect();
    gate.open();
    for ticket in patient.into_iter().chain(flood) {
        only_wait(ticket).unwrap();
    }
    let seen = log.seen();
    let mut since = 0;
    for n in seen.iter().take_while(|n| **n != FLOOD + 4) {
        since = if (FLOOD..FLOOD + 5).contains(n) { 0 } else { since + 1 };
        assert!(since < 500, "the low stream was passed over for {since} commands");
    }
    assert!(seen.contains(&(FLOOD + 4)));
}

/// Bytes that count how often they are dropped.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn fan_out_shares_one_payload_and_skips_nobody() {
    if is_queued() {
        return;
    }
    let device = workers(2);
    let (full, gate, _held) = full(&device, 1);
    let (free, full_for_good) = (device.stream().unwrap(), of_capacity(&device, 1));
    let (_other_gate, _other) = Gate::across(&device, &full_for_good);
    full_for_good.try_submit(Synchronize).unwrap();

    let dropped = Arc::new(AtomicUsize::new(0));
    let payload = Bytes::from_owner(Counted(vec![7; 64], dropped.clone()));
    let address = payload.as_ptr();
    let buffer = device.allocate(64).unwrap();
    let streams = [&full, &full_for_good, &free];
    let mut tickets = thread::scope(|scope| {
        let (write, deadline) = (buffer.write(0, payload), Instant::now() + Duration::from_millis(200));
        let fan_out = scope.spawn(move || millrace::fan_out(streams, write, deadline));
        let_it_block();
        gate.open();
        fan_out.join().unwrap()
    });
    assert_eq!(tickets.len(), 3);
    let rejected = tickets.remove(1).unwrap_err();
    assert_eq!(rejected.error, Error::Deadline);
    let Command::Write(write) = &rejected.command else { panic!("another command came back") };
    assert_eq!(write.data.as_ptr(), address);
    for ticket in tickets {
        ticket.unwrap().wait().unwrap();
    }
    assert_eq!(&*free.run(buffer.read(..)).unwrap(), [7; 64]);
    assert_eq!(dropped.load(Ordering::SeqCst), 0, "what came back still holds it");
    drop(rejected);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
}

#[test]
fn fan_out_says_which_stream_is_closed_and_serves_the_others() {
    let (open, closed) = (cpu(), cpu());
    let [a, b] = [&open, &closed].map(|device| device.stream().unwrap());
    closed.shutdown(soon()).unwrap();
    let mut tickets = millrace::fan_out([&b, &a], Synchronize, soon());
    tickets.pop().unwrap().unwrap().wait().unwrap();
    assert_eq!(tickets.pop().unwrap().unwrap_err().error, Error::Closed);
}

#[test]
fn fan_out_with_gives_every_device_its_own_command() {
    let devices = [cpu(), cpu()];
    let streams: Vec<_> = devices.iter().map(|device| device.stream().unwrap()).collect();
    let buffers: Vec<_> = devices.iter().map(|device| device.allocate(5).unwrap()).collect();
    let payload = Bytes::from_static(b"shaft");
    let mut next = 0;
    let write = |_: &Stream| {
        next += 1;
        Ok(buffers[next - 1].write(0, payload.clone()).into())
    };
    for ticket in millrace::fan_out_with(&streams, write, soon()) {
        ticket.unwrap().wait().unwrap();
    }
    for (stream, buffer) in streams.iter().zip(&buffers) {
        assert_eq!(&*stream.run(buffer.read(..)).unwrap(), b"shaft");
    }
    let wrong = millrace::fan_out(&streams, buffers[0].write(0, payload.clone()), soon());
    assert!(wrong[0].is_ok());
    assert_eq!(wrong[1].as_ref().unwrap_err().error, Error::WrongDevice { what: "buffer" });
}

#[test]
fn every_command_of_four_threads_runs_once_and_each_threads_in_order() {
    const EACH: u32 = 10_000;
    let device = workers(2);
    let (stream, log) = (device.stream().unwrap(), Log::new(&device));
    thread::scope(|scope| {
        for thread in 0..4 {
            let (stream, log) = (&stream, &log);
            scope.spawn(move || {
                for n in 0..EACH {
                    stream.submit(log.launch(thread * EACH + n)).unwrap();
                }
            });
        }
    });
    stream.synchronize().unwrap();
    let seen = log.seen();
    assert_eq!(seen.len(), 4 * EACH as usize);
    for thread in 0..4 {
        let of_thread: Vec<_> = seen.iter().copied().filter(|n| n / EACH == thread).collect();
        assert_eq!(of_thread, (thread * EACH..(thread + 1) * EACH).collect::<Vec<_>>());
    }
}

#[test]
fn what_a_panicking_producer_has_submitted_is_executed() {
    let device = workers(1);
    let (stream, log) = (device.stream().unwrap(), Log::new(&device));
    let producer = stream.clone();
    let burst = catch_unwind(AssertUnwindSafe(|| {
        for n in 0..100 {
            let ticket = producer.submit(log.launch(n)).unwrap();
            assert!(n < 50, "in the middle of the burst");
            drop(ticket);
        }
    }));
    assert!(burst.is_err());
    stream.synchronize().unwrap();
    assert_eq!(log.seen(), (0..=50).collect::<Vec<_>>());
}

#[test]
fn a_thousand_streams_come_and_go() {
    let device = workers(2);
    let log = Log::new(&device);
    let buffer = device.allocate(64).unwrap();
    for n in 0..1000 {
        let stream = device.stream().unwrap();
        if n % 2 == 0 {
            stream.submit(buffer.fill(.., 1)).unwrap();
            stream.submit(log.launch(n)).unwrap();
        }
    }
    let at_once: Vec<_> = (0..1000).map(|_| device.stream().unwrap()).collect();
    for (n, stream) in at_once.iter().enumerate() {
        stream.submit(log.launch(1000 + n as u32)).unwrap();
    }
    drop(at_once);
    eventually("all that was submitted ran", || log.seen().len() == 1500);
    let mut seen = log.seen();
    seen.sort_unstable();
    assert_eq!(seen, (0..1000).step_by(2).chain(1000..2000).collect::<Vec<_>>());
    drop(buffer);
    eventually("no command holds memory", || device.memory().buffers == 0);
    device.shutdown(soon()).unwrap();
}

#[test]
fn tickets_go_between_threads() {
    let device = cpu();
    let stream = device.stream().unwrap();
    let (send, receive) = std::sync::mpsc::channel();
    let waiter = thread::spawn(move || receive.iter().map(|ticket: Ticket| ticket.wait().unwrap()).count());
    for _ in 0..1000 {
        send.send(stream.submit(Synchronize).unwrap()).unwrap();
    }
    drop(send);
    assert_eq!(waiter.join().unwrap(), 1000);
}
