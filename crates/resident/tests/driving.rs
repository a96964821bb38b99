//! One who asks runs the kernel itself when that is quicker. Nobody can tell, but by the thread.
#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, ThreadId},
    time::{Duration, Instant},
};

use millrace_core::Priority;
use millrace_resident::{
    ArchivedHandler, Error, Handler, Launch, LaunchOptions, Message, RestartPolicy, Scope, Status, WaitPolicy, rkyv,
};
use support::{Number, cpu, impatient, soon};

#[derive(Clone, Copy, Debug, PartialEq, Message)]
#[repr(C)]
struct Told {
    count: u32,
    hash: u32,
}

/// Remembers who ran it. Panics at 13, and takes as many milliseconds as a number above a million says.
#[derive(Default)]
struct Watcher {
    threads: Arc<Mutex<HashMap<ThreadId, u32>>>,
}

impl Watcher {
    fn run(&self, told: &mut Told, value: u32) -> Told {
        assert!(value != 13, "thirteen");
        *self.threads.lock().unwrap().entry(thread::current().id()).or_default() += 1;
        if value > 1_000_000 {
            thread::sleep(Duration::from_millis(u64::from(value - 1_000_000)));
        }
        told.count += 1;
        told.hash = (told.hash ^ value).wrapping_mul(0x0100_0193);
        *told
    }
}

impl Handler for Watcher {
    type Message = Number;
    type Reply = Told;
    type State = Told;
    fn state(&self) -> Told {
        Told { count: 0, hash: 7 }
    }
    fn handle(&mut self, told: &mut Told, number: &Number, _: &mut Scope<'_, Told>) -> Told {
        self.run(told, number.value)
    }
}

type Threads = Arc<Mutex<HashMap<ThreadId, u32>>>;

fn here(threads: &Threads) -> u32 {
    threads.lock().unwrap().get(&thread::current().id()).copied().unwrap_or(0)
}

/// Asks until this thread runs the handler.
fn ask_until_here(ask: impl Fn(), threads: &Threads) {
    let deadline = soon();
    let before = here(threads);
    while here(threads) == before {
        assert!(Instant::now() < deadline, "it never ran here");
        ask();
    }
}

#[test]
fn one_who_asks_runs_a_brief_handler_itself() {
    for options in [LaunchOptions::default(), LaunchOptions::default().priority(Priority::Low)] {
        let watcher = Watcher::default();
        let threads = watcher.threads.clone();
        let kernel = cpu().launch(watcher, options).unwrap();
        kernel.ask(Number { value: 1 }).unwrap();
        assert_eq!(here(&threads), 0, "nobody knows yet that it is brief");
        ask_until_here(|| _ = kernel.ask(Number { value: 1 }).unwrap(), &threads);
        // With a deadline it is never run here, nor after something that nobody asked.
        let before = here(&threads);
        for _ in 0..100 {
            kernel.ask_deadline(Number { value: 1 }, soon()).unwrap();
        }
        assert_eq!(here(&threads), before);
        let count = kernel.telemetry().handled;
        assert_eq!(kernel.checkpoint().unwrap().state.count, count as u32);
        kernel.send(Number { value: 1 }).unwrap();
        kernel.receive(soon()).unwrap();
        kernel.ask(Number { value: 1 }).unwrap();
        assert_eq!(here(&threads), before);
        // A handler that took its time, one in eight is looked at and then the next as well, is the worker's again.
        ask_until_here(|| _ = kernel.ask(Number { value: 1 }).unwrap(), &threads);
        (0..9).for_each(|_| _ = kernel.ask(Number { value: 1_000_005 }).unwrap());
        let before = here(&threads);
        kernel.ask(Number { value: 1_000_001 }).unwrap();
        kernel.ask(Number { value: 1 }).unwrap();
        assert_eq!(here(&threads), before);
        assert!(kernel.try_receive().is_none());
    }
    let watcher = Watcher::default();
    let threads = watcher.threads.clone();
    let spinning = cpu().launch(watcher, LaunchOptions::default().wait(WaitPolicy::Spin)).unwrap();
    (0..200).for_each(|_| _ = spinning.ask(Number { value: 1 }).unwrap());
    assert_eq!(here(&threads), 0, "its worker never rests");
}

/// A watcher that answers questions only.
#[derive(Default)]
struct Quiet(Watcher);

impl Handler for Quiet {
    type Message = Number;
    type Reply = Told;
    type State = Told;
    fn state(&self) -> Told {
        self.0.state()
    }
    fn handle(&mut self, told: &mut Told, number: &Number, scope: &mut Scope<'_, Told>) -> Told {
        scope.no_reply();
        self.0.run(told, number.value)
    }
}

#[test]
fn what_is_sent_before_a_question_is_left_for_who_asks_and_nothing_is_left_lying() {
    let quiet = Quiet::default();
    let threads = quiet.0.threads.clone();
    let kernel = cpu().launch(quiet, LaunchOptions::default()).unwrap();
    let mut expected = Told { count: 0, hash: 7 };
    let mut tell = |value: u32| {
        expected = Told { count: expected.count + 1, hash: (expected.hash ^ value).wrapping_mul(0x0100_0193) };
        (Number { value }, expected)
    };
    let mut round = |start: u32| {
        (0..3).for_each(|n| kernel.send(tell(start + n).0).unwrap());
        let (number, told) = tell(start + 3);
        assert_eq!(kernel.ask(number).unwrap(), told, "in order");
    };
    // For longer than any thread that was woken would wait for its turn; and the worker did not once go back to sleep.
    let deadline = soon();
    let left = || {
        let (before, start, mut rounds) = ((here(&threads), kernel.telemetry().rests), Instant::now(), 0);
        while start.elapsed() < Duration::from_millis(20) {
            round(100 + rounds);
            rounds += 1;
        }
        (here(&threads), kernel.telemetry().rests) == (before.0 + 4 * rounds, before.1)
    };
    let mut left = std::iter::repeat_with(left);
    while !left.next().unwrap() {
        assert!(Instant::now() < deadline, "it was never left for who asks");
    }
    // Who does not ask gets the worker, for one message and for more than an asker would run.
    for many in [1, 3, 40] {
        let before = (here(&threads), kernel.telemetry().handled);
        (0..many).for_each(|n| kernel.send(tell(1000 + n).0).unwrap());
        while kernel.telemetry().handled < before.1 + u64::from(many) {
            assert!(Instant::now() < deadline, "it was left lying");
            thread::yield_now();
        }
        assert_eq!(here(&threads), before.0);
    }
    // So does who asks late.
    let before = here(&threads);
    (0..50).for_each(|n| {
        kernel.send(tell(2000 + n).0).unwrap();
        thread::sleep(Duration::from_micros(200));
        let (number, told) = tell(3000 + n);
        assert_eq!(kernel.ask(number).unwrap(), told);
    });
    assert!(here(&threads) < before + 20, "{} of 100", here(&threads) - before);
    kernel.pause().unwrap();
    let (number, told) = tell(9);
    kernel.send(number).unwrap();
    assert_eq!(kernel.checkpoint().unwrap().state.count, told.count - 1, "not while it rests");
    kernel.activate().unwrap();
    let (number, told) = tell(10);
    assert_eq!(kernel.ask(number).unwrap(), told);
}

/// Sends an urgent 2 to its own kernel when it gets 1, and asks it when it gets 3.
struct Selfish {
    own: Arc<OnceLock<millrace_resident::Resident<Self>>>,
    order: Arc<Mutex<Vec<u32>>>,
}

impl Handler for Selfish {
    type Message = Number;
    type Reply = Number;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), number: &Number, scope: &mut Scope<'_, Number>) -> Number {
        scope.no_reply();
        self.order.lock().unwrap().push(number.value);
        let own = self.own.get().unwrap();
        match number.value {
            1 => own.send_with(Number { value: 2 }, Priority::High).unwrap(),
            3 => {
                assert!(matches!(own.ask(Number { value: 4 }), Err(Error::Stalled { .. })));
                self.order.lock().unwrap().push(5);
            }
            _ => {}
        };
        *number
    }
}

#[test]
fn who_runs_a_kernel_handles_urgent_messages_first_and_never_two_at_a_time() {
    let (own, order) = (Arc::new(OnceLock::new()), Arc::new(Mutex::new(Vec::new())));
    let device = impatient(Duration::from_secs(1));
    let kernel = device.launch(Selfish { own: own.clone(), order: order.clone() }, LaunchOptions::default()).unwrap();
    let kernel = own.get_or_init(|| kernel);
    for _ in 0..200 {
        // So often that who asks runs it.
        (0..50).for_each(|_| _ = kernel.ask(Number { value: 7 }).unwrap());
        order.lock().unwrap().clear();
        kernel.send(Number { value: 1 }).unwrap();
        kernel.ask(Number { value: 7 }).unwrap();
        let handled = std::mem::take(&mut *order.lock().unwrap());
        assert_eq!(handled, [1, 2, 7], "what is urgent is not overtaken");
    }
    // It waits for itself, and hears that nobody answers; who asked it may hear the same.
    order.lock().unwrap().clear();
    let (answer, deadline) = (kernel.ask(Number { value: 3 }), soon());
    assert!(matches!(answer, Ok(Number { value: 3 }) | Err(Error::Stalled { .. })), "{answer:?}");
    let handled = || order.lock().unwrap().iter().copied().filter(|&n| n != 2).collect::<Vec<_>>();
    while handled().len() < 3 {
        assert!(Instant::now() < deadline, "{:?}", handled());
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(handled(), [3, 5, 4], "one after the other");
    kernel.terminate().unwrap();
}

#[test]
fn panics_restarts_pauses_and_ends_are_the_same_whoever_runs_it() {
    let watcher = Watcher::default();
    let threads = watcher.threads.clone();
    let options = LaunchOptions::default().restart(RestartPolicy::UpTo(1)).checkpoint_every(10);
    let kernel = impatient(Duration::from_millis(300)).launch(watcher, options).unwrap();
    let ask = || _ = kernel.ask(Number { value: 1 }).unwrap();
    ask_until_here(ask, &threads);
    assert!(matches!(kernel.ask(Number { value: 13 }), Err(Error::Panicked(_))));
    let telemetry = kernel.telemetry();
    assert_eq!((telemetry.failed, telemetry.restarts, telemetry.status), (1, 1, Status::Active));
    assert_eq!(kernel.checkpoint().unwrap().state.count as u64, telemetry.handled / 10 * 10, "as at the checkpoint");
    ask_until_here(ask, &threads);
    kernel.pause().unwrap();
    assert!(matches!(kernel.ask(Number { value: 1 }), Err(Error::Stalled { status: Status::Paused, .. })));
    kernel.activate().unwrap();
    ask_until_here(ask, &threads);
    assert!(matches!(kernel.ask(Number { value: 13 }), Err(Error::Panicked(_) | Error::Stalled { .. })));
    kernel.wait_for(Status::Failed, soon()).unwrap();
    assert!(matches!(kernel.ask(Number { value: 1 }), Err(Error::Failed(_))));
    let kernel = kernel.recover().unwrap();
    ask_until_here(|| _ = kernel.ask(Number { value: 1 }).unwrap(), &threads);
    kernel.drain().unwrap();
    kernel.wait_for(Status::Terminated, soon()).unwrap();
    assert!(matches!(kernel.ask(Number { value: 1 }), Err(Error::Ended(_))));
}

struct Length(Threads);

impl ArchivedHandler for Length {
    type Message = String;
    type Reply = u32;
    type State = ();
    fn state(&self) {}
    fn handle(&mut self, _: &mut (), text: &rkyv::Archived<String>, _: &mut Scope<'_, u32>) -> u32 {
        *self.0.lock().unwrap().entry(thread::current().id()).or_default() += 1;
        text.len() as u32
    }
}

#[test]
fn archives_are_read_on_the_thread_that_asks_too() {
    let threads = Threads::default();
    let kernel = cpu().launch_archived(Length(threads.clone()), LaunchOptions::default().payload(64)).unwrap();
    ask_until_here(|| assert_eq!(*kernel.ask(&"x".repeat(10)).unwrap(), 10), &threads);
    assert_eq!(*kernel.ask(&"x".repeat(1000)).unwrap(), 1000);
}

/// Asks, urgent asks, sends, pauses and checkpoints from many threads: everything is handled once, each thread's in order.
#[test]
fn nothing_is_lost_doubled_or_late_while_the_right_moves() {
    #[derive(Clone, Copy, Message)]
    #[repr(C)]
    struct Numbered {
        from: u32,
        number: u32,
    }
    #[derive(Clone, Copy, Message)]
    #[repr(C)]
    struct Next {
        of: [u32; 8],
    }
    struct Order;
    impl Handler for Order {
        type Message = Numbered;
        type Reply = Numbered;
        type State = Next;
        fn state(&self) -> Next {
            Next { of: [0; 8] }
        }
        fn handle(&mut self, next: &mut Next, it: &Numbered, scope: &mut Scope<'_, Numbered>) -> Numbered {
            assert_eq!(next.of[it.from as usize], it.number);
            next.of[it.from as usize] += 1;
            scope.no_reply();
            *it
        }
    }
    let kernel = cpu().launch(Order, LaunchOptions::default().inbound(8).outbound(8)).unwrap();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let ask = |from: u32, many: u32, every: u32| {
            for number in 0..many {
                let it = Numbered { from, number };
                if every > 0 && number % every == 0 {
                    kernel.send(it).unwrap();
                } else {
                    assert_eq!(kernel.ask(it).unwrap().number, number);
                }
            }
        };
        let asking = [(0, 40_000, 0), (1, 20_000, 1000), (2, 20_000, 7), (3, 2000, 1)];
        let all: Vec<_> = asking.map(|(from, many, every)| scope.spawn(move || ask(from, many, every))).into();
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(3));
                kernel.pause().unwrap();
                kernel.checkpoint().unwrap();
                kernel.activate().unwrap();
            }
        });
        all.into_iter().for_each(|thread| thread.join().unwrap());
        over.store(true, Ordering::Relaxed);
    });
    kernel.drain().unwrap();
    kernel.wait_for(Status::Terminated, soon()).unwrap();
    let telemetry = kernel.telemetry();
    assert_eq!((telemetry.handled, telemetry.failed, telemetry.waiting), (82_000, 0, (0, 0)));
}
