//! Every interleaving, within a bound, of short scenarios: for the slots, with the very file that the crate uses and loom's
//! atomics; and for the right to run a kernel, with the protocol of `drive.rs`.
#![allow(clippy::unwrap_used, reason = "a test")]

mod sync {
    pub(crate) use loom::{
        sync::{
            Mutex, MutexGuard,
            atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
        },
        thread,
    };

    pub(crate) use crate::solo::Solo;

    pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }

    /// A thread's number, from one on.
    pub(crate) fn me() -> u64 {
        static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        loom::thread_local!(static ME: u64 = LAST.fetch_add(1, Ordering::Relaxed) + 1);
        ME.with(|me| *me)
    }
}

/// As `ring` has it under loom.
mod fence {
    use loom::sync::atomic::{Ordering, fence};

    pub(crate) fn prepare() {}

    pub(crate) fn is_asymmetric() -> bool {
        true
    }

    pub(crate) fn light() {
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
    }
}

#[path = "../../ring/src/solo.rs"]
#[allow(dead_code, unreachable_pub, reason = "the file of another crate")]
mod solo;

#[path = "../src/slots.rs"]
#[allow(dead_code, reason = "not every scenario uses everything")]
mod slots;

use loom::{
    sync::{Arc, Condvar, Mutex},
    thread,
};
use slots::{Refusal, Slots, Tail, Words};
use sync::{AtomicU32, Ordering};

/// Two words a slot: the sequence and the message.
struct Memory {
    words: Vec<AtomicU32>,
    slots: Slots,
    tail: Tail,
}

impl Words for Memory {
    fn word(&self, index: usize) -> &AtomicU32 {
        &self.words[index]
    }
}

impl Memory {
    fn new(capacity: u32) -> Arc<Self> {
        let words = (0..2 * capacity).map(|_| AtomicU32::new(0)).collect();
        let memory = Self { words, slots: Slots { first: 0, stride: 2, mask: capacity - 1 }, tail: Tail::new() };
        memory.slots.initialize(&memory);
        Arc::new(memory)
    }

    fn message(&self, position: u32) -> &AtomicU32 {
        self.word(self.slots.at(position) + 1)
    }

    /// Any number of these.
    fn send(&self, message: u32) -> Result<u64, Refusal> {
        let number = self.tail.claim(&self.slots, self)?;
        self.put(number, message);
        Ok(number)
    }

    fn put(&self, number: u64, message: u32) {
        self.message(number as u32).store(message, Ordering::Relaxed);
        self.slots.publish(self, number as u32);
    }

    /// Only one of these.
    fn receive(&self, position: &mut u32) -> Option<u32> {
        if !self.slots.is_filled(self, *position) {
            return None;
        }
        let message = self.message(*position).load(Ordering::Relaxed);
        self.slots.release(self, *position);
        *position = position.wrapping_add(1);
        Some(message)
    }
}

fn explore(preemptions: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(scenario);
}

#[test]
fn a_message_is_seen_whole_and_in_order_over_a_wrap() {
    explore(3, || {
        let memory = Memory::new(2);
        let sender = {
            let memory = memory.clone();
            thread::spawn(move || {
                for message in 1..=3 {
                    while memory.send(message).is_err() {
                        thread::yield_now();
                    }
                }
            })
        };
        let (mut position, mut next) = (0, 1);
        while next <= 3 {
            match memory.receive(&mut position) {
                Some(message) => {
                    assert_eq!(message, next);
                    next += 1;
                }
                None => thread::yield_now(),
            }
        }
        sender.join().unwrap();
        assert_eq!(memory.receive(&mut position), None);
    });
}

#[test]
fn two_senders_never_share_a_slot() {
    explore(3, || {
        let memory = Memory::new(2);
        let senders: Vec<_> = (1..=2)
            .map(|message| {
                let memory = memory.clone();
                thread::spawn(move || memory.send(message).unwrap())
            })
            .collect();
        let numbers: Vec<_> = senders.into_iter().map(|sender| sender.join().unwrap()).collect();
        assert_ne!(numbers[0], numbers[1]);
        assert_eq!(memory.send(3), Err(Refusal::Full));
        let mut position = 0;
        let mut received = [memory.receive(&mut position).unwrap(), memory.receive(&mut position).unwrap()];
        received.sort_unstable();
        assert_eq!(received, [1, 2]);
        assert_eq!(memory.send(3), Ok(2));
    });
}

#[test]
fn after_a_close_everything_up_to_its_end_arrives_and_nothing_else() {
    explore(3, || {
        let memory = Memory::new(2);
        let sender = {
            let memory = memory.clone();
            thread::spawn(move || memory.send(1).is_ok())
        };
        let end = memory.tail.close();
        assert_eq!(memory.send(2), Err(Refusal::Closed));
        let mut position = 0;
        while position != end {
            match memory.receive(&mut position) {
                Some(message) => assert_eq!(message, 1),
                None => thread::yield_now(),
            }
        }
        assert_eq!(sender.join().unwrap(), end == 1);
        assert_eq!(memory.receive(&mut position), None);
    });
}

/// The right to run a kernel: how far it got is the kernel; `woken` is the worker's bell, and whether it listens.
struct Wheel {
    memory: Arc<Memory>,
    kernel: Mutex<(u32, Vec<u32>)>,
    listens: AtomicU32,
    /// Whether the worker looks again by itself.
    minded: AtomicU32,
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Wheel {
    fn new() -> Arc<Self> {
        Self::with(4)
    }

    fn with(capacity: u32) -> Arc<Self> {
        Arc::new(Self {
            memory: Memory::new(capacity),
            kernel: Mutex::new((0, Vec::new())),
            listens: AtomicU32::new(0),
            minded: AtomicU32::new(0),
            woken: Mutex::new(false),
            bell: Condvar::new(),
        })
    }

    fn ring(&self) {
        loom::sync::atomic::fence(Ordering::SeqCst);
        if self.listens.load(Ordering::Relaxed) != 0 {
            *self.woken.lock().unwrap() = true;
            self.bell.notify_one();
        }
    }

    /// Handles everything that is there.
    fn run(&self, kernel: &mut (u32, Vec<u32>)) {
        while let Some(message) = self.memory.receive(&mut kernel.0) {
            kernel.1.push(message);
        }
    }

    fn send(&self, message: u32) {
        self.memory.send(message).unwrap();
        self.ring();
    }

    /// As in `Port::publish`: left for when its sender asks, which it may never do, if the worker minds.
    fn leave(&self, message: u32) {
        self.memory.send(message).unwrap();
        loom::sync::atomic::fence(Ordering::SeqCst);
        if self.minded.load(Ordering::Relaxed) == 0 {
            self.ring();
        }
    }

    /// As in `Port::call`, or else as any sender.
    fn ask(&self, message: u32) {
        let Ok(mut kernel) = self.kernel.try_lock() else { return self.send(message) };
        let number = self.memory.tail.claim(&self.memory.slots, &*self.memory).unwrap();
        // What was left comes first, as far as it is there.
        while kernel.0 < number as u32 {
            let Some(message) = self.memory.receive(&mut kernel.0) else { break };
            kernel.1.push(message);
        }
        if number as u32 == kernel.0 {
            // It is handled where it is, and its place is passed over.
            kernel.1.push(message);
            self.memory.slots.release(&*self.memory, kernel.0);
            kernel.0 += 1;
        } else {
            self.memory.put(number, message);
        }
        // It stops after its own message, and may leave others, or its own behind one that is not there yet.
        while kernel.0 <= number as u32 {
            let Some(message) = self.memory.receive(&mut kernel.0) else { break };
            kernel.1.push(message);
        }
        let position = kernel.0;
        let left = position <= number as u32 || self.memory.slots.is_filled(&*self.memory, position);
        drop(kernel);
        if left {
            self.ring();
        }
    }

    /// The worker, whose waker is where it left it, minds for a while and does not look at all; then it works.
    fn mind_and_work(&self, messages: usize) -> Vec<u32> {
        self.listens.store(1, Ordering::Relaxed);
        self.minded.store(1, Ordering::Relaxed);
        thread::yield_now();
        self.minded.store(0, Ordering::Relaxed);
        self.work(messages)
    }

    /// The worker, until so many messages are handled. It has slept through none.
    fn work(&self, messages: usize) -> Vec<u32> {
        loop {
            {
                let mut kernel = self.kernel.lock().unwrap();
                self.listens.store(1, Ordering::Relaxed);
                loom::sync::atomic::fence(Ordering::SeqCst);
                self.run(&mut kernel);
                if kernel.1.len() == messages {
                    return kernel.1.clone();
                }
            }
            let mut woken = self.woken.lock().unwrap();
            while !*woken {
                woken = self.bell.wait(woken).unwrap();
            }
            *woken = false;
        }
    }
}

/// Loom calls it a deadlock if the worker sleeps for ever. The last one who asks leaves nothing undone, so the worker need
/// not hear of it; a sender comes after it.
#[test]
fn whoever_runs_the_kernel_everything_is_handled_once() {
    explore(2, || {
        let wheel = Wheel::new();
        let asker = {
            let wheel = wheel.clone();
            thread::spawn(move || {
                wheel.ask(1);
                wheel.send(2);
            })
        };
        let sender = {
            let wheel = wheel.clone();
            thread::spawn(move || wheel.leave(3))
        };
        let mut handled = wheel.mind_and_work(3);
        asker.join().unwrap();
        sender.join().unwrap();
        assert!(handled.iter().position(|&n| n == 1) < handled.iter().position(|&n| n == 2), "{handled:?}");
        handled.sort_unstable();
        assert_eq!(handled, [1, 2, 3]);
    });
}

/// Who leaves a message has seen that the worker minds, and one that no longer does looks once more.
#[test]
fn what_is_left_for_who_asks_is_handled_if_nobody_does() {
    explore(3, || {
        let wheel = Wheel::new();
        let sender = {
            let wheel = wheel.clone();
            thread::spawn(move || (1..=2).for_each(|message| wheel.leave(message)))
        };
        assert_eq!(wheel.mind_and_work(2), [1, 2]);
        sender.join().unwrap();
    });
}

/// Also over a lap: a place that was passed over is free for the next message that comes to it.
#[test]
fn a_place_that_was_passed_over_is_used_again() {
    explore(2, || {
        let wheel = Wheel::with(2);
        let asker = {
            let wheel = wheel.clone();
            thread::spawn(move || {
                (1..=2).for_each(|message| wheel.ask(message));
                while wheel.memory.send(3) == Err(Refusal::Full) {
                    thread::yield_now();
                }
                wheel.ring();
            })
        };
        assert_eq!(wheel.work(3), [1, 2, 3]);
        asker.join().unwrap();
    });
}

/// Whether a sender that finds a kernel paused may leave it asleep: the kernel is told to go on at the same time, says so,
/// leaves its waker and looks once more.
#[test]
fn a_kernel_that_goes_on_finds_what_it_was_sent_while_it_rested() {
    const PAUSED: u32 = 0;
    const ACTIVE: u32 = 1;
    explore(3, || {
        let memory = Memory::new(2);
        let words = Arc::new([AtomicU32::new(PAUSED), AtomicU32::new(0)]);
        let bell = Arc::new(loom::sync::Notify::new());
        let sender = {
            let (memory, words, bell) = (memory.clone(), words.clone(), bell.clone());
            thread::spawn(move || {
                let [status, waiting] = &*words;
                memory.send(7).unwrap();
                loom::sync::atomic::fence(Ordering::SeqCst);
                if waiting.load(Ordering::Relaxed) == 1 && status.load(Ordering::Acquire) != PAUSED {
                    bell.notify();
                }
            })
        };
        let ([status, waiting], mut position) = (&*words, 0);
        status.store(ACTIVE, Ordering::Release);
        let mut found = memory.receive(&mut position);
        if found.is_none() {
            waiting.store(1, Ordering::Relaxed);
            loom::sync::atomic::fence(Ordering::SeqCst);
            found = memory.receive(&mut position);
        }
        while found.is_none() {
            bell.wait(); // for ever, if nobody rings: loom calls that a deadlock
            found = memory.receive(&mut position);
        }
        assert_eq!(found, Some(7));
        sender.join().unwrap();
    });
}
