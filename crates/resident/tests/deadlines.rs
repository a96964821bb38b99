//! Waiting that ends: tasks with deadlines, and who is held up by a handler that hangs.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::{Duration, Instant},
};

use millrace_resident::{
    ArchivedHandler, Error, Handler, Launch, LaunchOptions, Resident, Scope, Status, WaitPolicy, rkyv,
};
use pollster::block_on;
use support::{Double, Number, cpu, impatient, soon};

const SHORT: Duration = Duration::from_millis(30);

/// Whether it ended at its deadline, and not much later.
fn ends_late<R>(work: impl FnOnce(Instant) -> Result<R, Error>) {
    let start = Instant::now();
    let result = work(start + SHORT).map(drop);
    let waited = start.elapsed();
    assert_eq!(result.unwrap_err(), Error::Deadline);
    assert!(waited >= SHORT && waited < Duration::from_secs(5), "{waited:?}");
}

#[test]
fn tasks_wait_until_their_deadlines() {
    let kernel = cpu().launch(Double, LaunchOptions::default().inbound(2).inactive()).unwrap();
    ends_late(|deadline| block_on(kernel.ask_async_deadline(Number { value: 1 }, deadline)));
    ends_late(|deadline| block_on(kernel.receive_async_deadline(deadline)));
    ends_late(|deadline| block_on(kernel.wait_for_async_deadline(Status::Active, deadline)));
    kernel.send(Number { value: 2 }).unwrap();
    let start = Instant::now();
    let refused = block_on(kernel.send_async_deadline(Number { value: 3 }, start + SHORT)).unwrap_err();
    assert_eq!((refused.message.value, refused.error), (3, Error::Deadline));
    assert!(start.elapsed() >= SHORT);
    // What comes in time is as without a deadline; who gave up has no answer in anybody's way.
    kernel.activate().unwrap();
    block_on(kernel.wait_for_async_deadline(Status::Active, soon())).unwrap();
    assert_eq!(block_on(kernel.receive_async_deadline(soon())).unwrap().value, 4);
    assert_eq!(block_on(kernel.ask_async_deadline(Number { value: 5 }, soon())).unwrap().value, 10);
    block_on(kernel.send_async_deadline(Number { value: 6 }, soon())).unwrap();
    assert_eq!(kernel.receive(soon()).unwrap().value, 12);
}

struct Length;

impl ArchivedHandler for Length {
    type Message = String;
    type Reply = u32;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, (): &mut (), text: &rkyv::Archived<String>, _: &mut Scope<'_, u32>) -> u32 {
        text.len() as u32
    }
}

#[test]
fn tasks_wait_for_archives_until_their_deadlines() {
    let kernel = cpu().launch_archived(Length, LaunchOptions::default().inbound(2).inactive()).unwrap();
    let text = "millrace".to_owned();
    ends_late(|deadline| block_on(kernel.ask_async_deadline(&text, deadline)));
    ends_late(|deadline| block_on(kernel.receive_async_deadline(deadline)));
    kernel.send(&text).unwrap();
    ends_late(|deadline| block_on(kernel.send_async_deadline(&text, deadline)));
    kernel.activate().unwrap();
    assert_eq!(*block_on(kernel.receive_async_deadline(soon())).unwrap(), 8);
    assert_eq!(*block_on(kernel.ask_async_deadline(&text, soon())).unwrap(), 8);
}

/// Brief, except with a zero: then it hangs until it is let go.
struct Hangs(Receiver<()>);

impl Handler for Hangs {
    type Message = Number;
    type Reply = Number;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, (): &mut (), message: &Number, _: &mut Scope<'_, Number>) -> Number {
        if message.value == 0 {
            let _ = self.0.recv();
        }
        *message
    }
}

/// A kernel whose handler has been brief, on a device that is out of patience soon.
fn brief(wait: WaitPolicy) -> (Resident<Hangs>, Sender<()>) {
    let (let_go, hangs) = mpsc::channel();
    let device = impatient(Duration::from_millis(100));
    let kernel = device.launch(Hangs(hangs), LaunchOptions::default().wait(wait)).unwrap();
    for value in 1..2000 {
        assert_eq!(kernel.ask(Number { value }).unwrap().value, value);
    }
    (kernel, let_go)
}

#[test]
fn who_asks_without_a_deadline_may_be_held_by_the_handler() {
    // Now and then the worker takes a question before its asker does.
    let held = |_| {
        let (kernel, let_go) = brief(WaitPolicy::Adaptive);
        thread::scope(|scope| {
            let asker = scope.spawn(|| kernel.ask(Number { value: 0 }));
            thread::sleep(Duration::from_millis(400));
            let held = !asker.is_finished();
            let_go.send(()).unwrap();
            // Longer than the device's timeout, and it has its answer all the same.
            assert_eq!(held, asker.join().unwrap().is_ok());
            held
        })
    };
    assert!((0..10).any(held));
}

#[test]
fn who_asks_with_a_deadline_or_as_a_task_or_a_kernel_that_spins_is_not_held_by_the_handler() {
    let (kernel, let_go) = brief(WaitPolicy::Adaptive);
    ends_late(|deadline| kernel.ask_deadline(Number { value: 0 }, deadline));
    let_go.send(()).unwrap();
    drop(kernel);
    let (kernel, let_go) = brief(WaitPolicy::Adaptive);
    ends_late(|deadline| block_on(kernel.ask_async_deadline(Number { value: 0 }, deadline)));
    let_go.send(()).unwrap();
    drop(kernel);
    let (kernel, let_go) = brief(WaitPolicy::Spin);
    let error = kernel.ask(Number { value: 0 }).unwrap_err();
    assert!(matches!(error, Error::Stalled { status: Status::Active, .. }), "{error}");
    let_go.send(()).unwrap();
}
