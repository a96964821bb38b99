//! Every interleaving, within a bound, of short scenarios for each algorithm.
//!
//! ```sh
//! RUSTFLAGS="--cfg loom" cargo test -p millrace-ring --release --test loom
//! ```
#![cfg(loom)]

mod crew;
mod replies;
mod slab;
mod solo;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use loom::{future::block_on, thread};
use millrace_ring::{
    Recycle, SendError, Slab, TryRecvError,
    reply::{ReplyError, ReplyPool},
};

/// Explores `scenario` with at most `preemptions` involuntary switches of threads.
fn explore(preemptions: usize, scenario: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.check(scenario);
}

/// Counts how often each of the messages it made was dropped.
#[derive(Clone, Default)]
struct Drops(Arc<[AtomicUsize; 2]>);

impl Drops {
    fn message(&self, which: usize) -> Counted {
        Counted(self.clone(), which)
    }

    fn assert_once_each(&self) {
        let counts = self.0.each_ref().map(|n| n.load(Ordering::SeqCst));
        assert_eq!(counts, [1, 1]);
    }
}

struct Counted(Drops, usize);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0[self.1].fetch_add(1, Ordering::SeqCst);
    }
}

/// The same scenarios for both rings.
macro_rules! both_rings {
    ($($(#[doc = $doc:literal])* fn $name:ident() $body:block)+) => {
        mod one_sender {
            use super::*;
            use millrace_ring::spsc::bounded;
            $($(#[doc = $doc])* #[test] fn $name() $body)+
        }
        mod many_senders {
            use super::*;
            use millrace_ring::mpsc::bounded;
            $($(#[doc = $doc])* #[test] #[allow(unused_mut)] fn $name() $body)+
        }
    };
}

both_rings! {
    fn messages_stay_in_order_over_a_wrap_of_one_slot() {
        explore(2, || {
            let (mut tx, mut rx) = bounded(1).unwrap();
            let sender = thread::spawn(move || (0..3).try_for_each(|i| tx.send(i)));
            let got: Vec<_> = std::iter::from_fn(|| rx.recv().ok()).collect();
            assert_eq!(got, [0, 1, 2]);
            sender.join().unwrap().unwrap();
        });
    }

    fn messages_stay_in_order_over_a_wrap_of_two_slots() {
        explore(2, || {
            let (mut tx, mut rx) = bounded(2).unwrap();
            tx.try_send(0).unwrap();
            let sender = thread::spawn(move || (1..4).try_for_each(|i| tx.send(i)));
            let got: Vec<_> = std::iter::from_fn(|| rx.recv().ok()).collect();
            assert_eq!(got, [0, 1, 2, 3]);
            sender.join().unwrap().unwrap();
        });
    }

    fn a_sleeping_receiver_hears_a_send() {
        explore(3, || {
            let (mut tx, mut rx) = bounded(2).unwrap();
            let sender = thread::spawn(move || {
                tx.try_send(7).unwrap();
                tx // alive, so that only the send can wake
            });
            assert_eq!(rx.recv(), Ok(7));
            drop(sender.join().unwrap());
        });
    }

    fn a_sleeping_sender_hears_of_room() {
        explore(3, || {
            let (mut tx, mut rx) = bounded(1).unwrap();
            tx.try_send(1).unwrap();
            let sender = thread::spawn(move || tx.send(2));
            assert_eq!(rx.recv(), Ok(1));
            sender.join().unwrap().unwrap();
            assert_eq!(rx.try_recv(), Ok(2));
        });
    }

    fn a_drain_wakes_a_sleeping_sender() {
        explore(3, || {
            let (mut tx, mut rx) = bounded(2).unwrap();
            tx.try_send(1).unwrap();
            tx.try_send(2).unwrap();
            let sender = thread::spawn(move || tx.send(3));
            let mut got = Vec::new();
            assert!(rx.drain(2, |i| got.push(i)) == 2);
            sender.join().unwrap().unwrap();
            rx.drain(2, |i| got.push(i));
            assert_eq!(got, [1, 2, 3]);
        });
    }

    fn a_pending_receive_is_woken_by_a_send() {
        explore(3, || {
            let (mut tx, mut rx) = bounded(2).unwrap();
            let sender = thread::spawn(move || {
                block_on(tx.send_async(7)).unwrap();
                tx
            });
            assert_eq!(block_on(rx.recv_async()), Ok(7));
            drop(sender.join().unwrap());
        });
    }

    /// Also when most of the ring stays full: a task has no clock to look again by itself.
    fn a_pending_send_is_woken_by_the_first_receive() {
        explore(3, || {
            let (mut tx, mut rx) = bounded(4).unwrap();
            (0..4).for_each(|i| tx.try_send(i).unwrap());
            let sender = thread::spawn(move || block_on(tx.send_async(4)));
            assert_eq!(rx.try_recv(), Ok(0));
            sender.join().unwrap().unwrap();
            assert_eq!(rx.len(), 4);
        });
    }

    fn a_dropped_pending_send_neither_sends_nor_swallows_a_wake_up() {
        explore(3, || {
            let (mut tx, mut rx) = bounded(1).unwrap();
            tx.try_send(1).unwrap();
            let sender = thread::spawn(move || {
                let mut cx = Context::from_waker(Waker::noop());
                let mut sending = tx.send_async(2);
                let sent = std::pin::Pin::new(&mut sending).poll(&mut cx).is_ready();
                drop(sending);
                block_on(tx.send_async(3)).unwrap();
                sent
            });
            let mut got = vec![rx.recv().unwrap()];
            got.extend(std::iter::from_fn(|| rx.recv().ok()));
            assert_eq!(got, if sender.join().unwrap() { vec![1, 2, 3] } else { vec![1, 3] });
        });
    }

    fn a_close_by_the_receiver_splits_sends_into_received_and_handed_back() {
        explore(3, || {
            let (mut tx, mut rx) = bounded(2).unwrap();
            let sender = thread::spawn(move || {
                let mut sent = Vec::new();
                for i in 0..2 {
                    match tx.try_send(i) {
                        Ok(()) => sent.push(i),
                        Err(refused) => assert_eq!(refused.into_inner(), i),
                    }
                }
                sent
            });
            rx.close();
            let got: Vec<_> = std::iter::from_fn(|| rx.recv().ok()).collect();
            assert_eq!(got, sender.join().unwrap());
            assert_eq!(rx.try_recv(), Err(TryRecvError::Closed));
        });
    }

    fn a_receive_during_the_close_takes_no_message_that_is_handed_back() {
        explore(3, || {
            let (mut tx, mut rx) = bounded(2).unwrap();
            tx.try_send(0).unwrap();
            let sender = thread::spawn(move || tx.try_send(1).is_ok());
            let mut got = vec![rx.try_recv().unwrap()];
            got.extend(rx.try_recv());
            rx.close();
            got.extend(std::iter::from_fn(|| rx.recv().ok()));
            assert_eq!(got, if sender.join().unwrap() { vec![0, 1] } else { vec![0] });
        });
    }

    fn a_close_by_the_sender_ends_a_waiting_receive_after_the_last_message() {
        explore(3, || {
            let (mut tx, mut rx) = bounded(2).unwrap();
            let sender = thread::spawn(move || {
                tx.try_send(1).unwrap();
                tx.close();
                assert_eq!(tx.try_send(2).map_err(|e| e.into_inner()), Err(2));
            });
            assert_eq!(rx.recv(), Ok(1));
            assert!(rx.recv().is_err());
            sender.join().unwrap();
        });
    }

    fn a_dropped_sender_ends_a_waiting_receive() {
        explore(3, || {
            let (tx, mut rx) = bounded::<u8>(1).unwrap();
            let sender = thread::spawn(move || drop(tx));
            assert!(rx.recv().is_err());
            sender.join().unwrap();
        });
    }

    fn a_dropped_receiver_ends_a_waiting_send_which_keeps_its_message() {
        explore(3, || {
            let (mut tx, rx) = bounded(1).unwrap();
            tx.try_send(1).unwrap();
            let sender = thread::spawn(move || tx.send(2));
            drop(rx);
            assert_eq!(sender.join().unwrap(), Err(SendError(2)));
        });
    }

    fn a_receiver_dropped_during_a_send_drops_each_message_once() {
        explore(3, || {
            let drops = Drops::default();
            let (mut tx, rx) = bounded(2).unwrap();
            let sender = {
                let drops = drops.clone();
                thread::spawn(move || {
                    for i in 0..2 {
                        drop(tx.try_send(drops.message(i)));
                    }
                })
            };
            drop(rx);
            sender.join().unwrap();
            drops.assert_once_each();
        });
    }
}

mod two_senders {
    use super::*;
    use millrace_ring::mpsc::bounded;

    #[test]
    fn each_message_arrives_once_and_in_the_order_of_its_sender() {
        explore(1, || {
            let (tx, mut rx) = bounded(2).unwrap();
            let other = tx.clone();
            let sender = thread::spawn(move || {
                other.send(10).unwrap();
                other.send(11).unwrap();
            });
            let last = thread::spawn(move || tx.send(20).unwrap());
            let got: Vec<_> = std::iter::from_fn(|| rx.recv().ok()).collect();
            assert_eq!(got.len(), 3);
            let of = |sender| got.iter().copied().filter(move |m| m / 10 == sender);
            assert!(of(1).eq([10, 11]) && of(2).eq([20]), "{got:?}");
            sender.join().unwrap();
            last.join().unwrap();
        });
    }

    /// A sender that lost the race for the last slot must not wait for the winner to write its message.
    #[test]
    fn one_of_two_gets_the_last_slot_and_the_other_its_message_back() {
        explore(3, || {
            let (tx, mut rx) = bounded(1).unwrap();
            let other = tx.clone();
            let sender = thread::spawn(move || other.try_send(1).is_ok());
            let ours = tx.try_send(2).is_ok();
            let theirs = sender.join().unwrap();
            assert!(ours != theirs);
            assert_eq!(rx.try_recv(), Ok(if ours { 2 } else { 1 }));
        });
    }

    #[test]
    fn both_wake_when_there_is_room() {
        explore(1, || {
            let (tx, mut rx) = bounded(1).unwrap();
            tx.try_send(0).unwrap();
            let other = tx.clone();
            let a = thread::spawn(move || other.send(1));
            let b = thread::spawn(move || tx.send(2));
            // Two make room for both. What they sent last, and until it is closed, is other models': with it this takes minutes.
            let before = rx.recv().unwrap() + rx.recv().unwrap();
            a.join().unwrap().unwrap();
            b.join().unwrap().unwrap();
            assert_eq!(before + rx.try_recv().unwrap(), 3);
        });
    }

    #[test]
    fn the_last_to_go_closes_the_ring() {
        explore(3, || {
            let (tx, mut rx) = bounded::<u8>(1).unwrap();
            let other = tx.clone();
            let a = thread::spawn(move || drop(other));
            let b = thread::spawn(move || drop(tx));
            assert!(rx.recv().is_err());
            a.join().unwrap();
            b.join().unwrap();
        });
    }

    #[test]
    fn a_full_ring_says_so_while_the_receiver_moves_on() {
        explore(3, || {
            let (tx, mut rx) = bounded(2).unwrap();
            tx.try_send(0).unwrap();
            tx.try_send(1).unwrap();
            let sender = thread::spawn(move || {
                if tx.try_send(2).is_ok() && tx.try_send(3).is_ok() {
                    assert_eq!(tx.len(), 2);
                }
            });
            assert_eq!((rx.try_recv(), rx.try_recv()), (Ok(0), Ok(1)));
            sender.join().unwrap();
        });
    }
}

mod lock {
    use millrace_ring::BriefLock;

    use super::*;

    #[test]
    fn a_brief_lock_lets_one_in_at_a_time_and_shows_what_the_one_before_did() {
        // Without a bound on preemptions: a waiting thread could not give way once it is used up.
        loom::model(|| {
            let lock = loom::sync::Arc::new(BriefLock::new(loom::cell::UnsafeCell::new(0)));
            // Loom notices if the accesses are not ordered.
            let add = |lock: &BriefLock<loom::cell::UnsafeCell<i32>>| {
                // SAFETY: what the model is to show.
                lock.lock().with_mut(|n| unsafe { *n += 1 });
            };
            let theirs = lock.clone();
            let other = thread::spawn(move || add(&theirs));
            add(&lock);
            other.join().unwrap();
            // SAFETY: the other thread is gone.
            assert_eq!(lock.lock().with(|n| unsafe { *n }), 2);
        });
    }

    type Number = BriefLock<loom::cell::UnsafeCell<i32>>;

    fn add(lock: &Number) {
        // SAFETY: what the models are to show.
        lock.lock().with_mut(|n| unsafe { *n += 1 });
    }

    /// A lock that is biased to the calling thread, which has added two.
    fn biased() -> loom::sync::Arc<Number> {
        let lock = loom::sync::Arc::new(BriefLock::new(loom::cell::UnsafeCell::new(0)));
        (0..2).for_each(|_| add(&lock));
        assert!(lock.pass().is_some());
        lock
    }

    #[test]
    fn the_owner_of_a_lock_and_one_who_takes_it_are_not_inside_together() {
        loom::model(|| {
            let lock = biased();
            let theirs = lock.clone();
            let other = thread::spawn(move || add(&theirs));
            (0..2).for_each(|_| add(&lock));
            other.join().unwrap();
            // SAFETY: the other thread is gone.
            assert_eq!(lock.lock().with(|n| unsafe { *n }), 5);
        });
    }

    #[test]
    fn an_owner_that_was_ended_and_comes_back_is_ended_again() {
        explore(2, || {
            let lock = biased();
            let theirs = lock.clone();
            let other = thread::spawn(move || (0..2).for_each(|_| add(&theirs)));
            (0..4).for_each(|_| add(&lock));
            other.join().unwrap();
            // SAFETY: the other thread is gone.
            assert_eq!(lock.lock().with(|n| unsafe { *n }), 8);
        });
    }

    type Gate = millrace_ring::Turnstile<loom::cell::UnsafeCell<i32>>;

    /// A turnstile that the calling thread passes, and has passed or gone through so many times.
    fn passed(times: i32) -> loom::sync::Arc<Gate> {
        let gate = loom::sync::Arc::new(Gate::new(loom::cell::UnsafeCell::new(0)));
        (0..times).for_each(|_| assert!(pass(&gate)));
        gate
    }

    /// Adds one, if nobody else is inside.
    fn pass(gate: &Gate) -> bool {
        let turn = gate.try_pass();
        // SAFETY: what the models are to show.
        turn.map(|turn| turn.with_mut(|n| unsafe { *n += 1 })).is_some()
    }

    #[test]
    fn who_passes_a_turnstile_and_one_who_waits_for_it_are_not_inside_together() {
        loom::model(|| {
            let gate = passed(3);
            let theirs = gate.clone();
            // SAFETY: what the model is to show.
            let other = thread::spawn(move || theirs.lock().with_mut(|n| unsafe { *n += 1 }));
            let more = i32::from(pass(&gate)) + i32::from(pass(&gate));
            other.join().unwrap();
            // SAFETY: the other thread is gone.
            assert_eq!(gate.lock().with(|n| unsafe { *n }), 3 + more + 1);
        });
    }

    #[test]
    fn of_two_who_pass_a_turnstile_one_at_a_time_is_inside() {
        loom::model(|| {
            let gate = passed(3);
            let theirs = gate.clone();
            let other = thread::spawn(move || i32::from(pass(&theirs)) + i32::from(pass(&theirs)));
            let mine = i32::from(pass(&gate)) + i32::from(pass(&gate));
            let others = other.join().unwrap();
            // SAFETY: the other thread is gone.
            assert_eq!(gate.lock().with(|n| unsafe { *n }), 3 + mine + others);
        });
    }

    #[test]
    fn nobody_gets_into_a_turnstile_twice() {
        loom::model(|| {
            let gate = passed(3);
            let is_closed = || gate.try_pass().is_none() && gate.try_lock().is_none();
            let turn = gate.try_pass();
            assert!(turn.is_some() && is_closed());
            drop(turn);
            let turn = gate.lock();
            assert!(is_closed(), "nor does who took the lock although it could have passed");
            drop(turn);
            (0..9).for_each(|_| assert!(pass(&gate)));
            let turn = gate.try_lock();
            assert!(turn.is_some() && is_closed());
        });
    }

    #[test]
    fn who_looks_whether_the_owner_is_inside_is_seen_or_sees_it() {
        loom::model(|| {
            let bias = loom::sync::Arc::new(millrace_ring::Bias::new());
            (0..2).for_each(|_| bias.count());
            let closed = loom::sync::Arc::new(loom::sync::atomic::AtomicBool::new(false));
            let work = loom::sync::Arc::new(loom::cell::UnsafeCell::new(0));
            let (bias2, closed2, work2) = (bias.clone(), closed.clone(), work.clone());
            let closer = thread::spawn(move || {
                closed2.store(true, Ordering::SeqCst);
                if !bias2.is_occupied() {
                    // SAFETY: what the model is to show: the owner is gone, and does not come back.
                    work2.with_mut(|n| unsafe { *n += 1 });
                }
            });
            let inside = bias.enter().expect("nobody ends it");
            if !closed.load(Ordering::SeqCst) {
                // SAFETY: as above.
                work.with_mut(|n| unsafe { *n += 1 });
            }
            drop(inside);
            closer.join().unwrap();
        });
    }
}
