//! Millions of messages through every way to send and to receive.
#![cfg(not(loom))]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use millrace_ring::{
    BriefLock, RecvDeadlineError, Solo, TryRecvError, TrySendError, Turnstile, mpsc,
    reply::{ReplyPool, ReplySender},
    spsc,
};

const MESSAGES: u64 = 10_000_000;
const CAPACITY: usize = 128;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// Sends `$message` through `$tx` in a way that changes every few hundred messages.
macro_rules! send_somehow {
    ($tx:expr, $message:expr) => {{
        let message = $message;
        match message >> 8 & 3 {
            0 => $tx.send(message).unwrap(),
            1 => $tx.send_deadline(message, soon()).unwrap(),
            2 => pollster::block_on($tx.send_async(message)).unwrap(),
            _ => {
                if let Err(TrySendError::Full(message)) = $tx.try_send(message) {
                    $tx.send(message).unwrap();
                }
            }
        }
    }};
}

/// Receives everything from `$rx` in ways that change, and hands it to `$each`.
macro_rules! receive_somehow {
    ($rx:expr, $each:expr) => {{
        let mut each = $each;
        for way in (0..4u8).cycle() {
            let mut open = true;
            for _ in 0..256 {
                let received = match way {
                    0 => $rx.recv().ok(),
                    1 => match $rx.recv_deadline(soon()) {
                        Ok(message) => Some(message),
                        Err(RecvDeadlineError::Closed) => None,
                        Err(RecvDeadlineError::Deadline) => panic!("nothing came for a minute"),
                    },
                    2 => pollster::block_on($rx.recv_async()).ok(),
                    _ => {
                        $rx.drain(100, &mut each);
                        match $rx.try_recv() {
                            Err(TryRecvError::Empty) => continue,
                            received => received.ok(),
                        }
                    }
                };
                match received {
                    Some(message) => each(message),
                    None => open = false,
                }
            }
            if !open {
                break;
            }
        }
    }};
}

#[test]
fn ten_million_messages_of_four_senders_arrive_once_and_in_order() {
    const SENDERS: u64 = 4;
    let (tx, mut rx) = mpsc::bounded(CAPACITY).unwrap();
    let mut next = [0u64; SENDERS as usize];
    thread::scope(|scope| {
        for id in 0..SENDERS {
            let tx = tx.clone();
            scope.spawn(move || {
                for i in 0..MESSAGES / SENDERS {
                    send_somehow!(tx, i * SENDERS + id);
                }
            });
        }
        drop(tx);
        receive_somehow!(rx, |message: u64| {
            let expected = &mut next[(message % SENDERS) as usize];
            assert_eq!(message / SENDERS, *expected);
            *expected += 1;
        });
    });
    assert_eq!(next, [MESSAGES / SENDERS; SENDERS as usize]);
}

#[test]
fn ten_million_messages_of_one_sender_arrive_once_and_in_order() {
    let (mut tx, mut rx) = spsc::bounded(CAPACITY).unwrap();
    let mut next = 0;
    thread::scope(|scope| {
        scope.spawn(move || (0..MESSAGES).for_each(|i| send_somehow!(tx, i)));
        receive_somehow!(rx, |message: u64| {
            assert_eq!(message, next);
            next += 1;
        });
    });
    assert_eq!(next, MESSAGES);
}

#[test]
fn a_million_requests_get_the_answer_that_belongs_to_them() {
    const ASKERS: u64 = 3;
    const IN_FLIGHT: u64 = 16;
    let replies = ReplyPool::new();
    let (tx, mut rx) = mpsc::bounded::<(u64, ReplySender<u64>)>(CAPACITY).unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            while let Ok((question, answer)) = rx.recv() {
                answer.send(!question).unwrap();
            }
        });
        for id in 0..ASKERS {
            let (tx, replies) = (tx.clone(), &replies);
            scope.spawn(move || {
                for batch in 0..1_000_000 / ASKERS / IN_FLIGHT + 1 {
                    let question = |i| (batch * IN_FLIGHT + i) * ASKERS + id;
                    let asked: [_; IN_FLIGHT as usize] = std::array::from_fn(|i| {
                        let (answer, asked) = replies.pair().unwrap();
                        tx.send((question(i as u64), answer)).unwrap();
                        asked
                    });
                    for (i, mut asked) in (0..).zip(asked) {
                        let answer = match i % 3 {
                            0 => asked.recv(),
                            1 => asked.recv_deadline(soon()),
                            _ => pollster::block_on(asked),
                        };
                        assert_eq!(answer, Ok(!question(i)));
                    }
                }
            });
        }
        drop(tx);
    });
    assert_eq!(replies.in_use(), 0);
}

/// Two numbers that are always the same.
type Pair = (u64, u64);

fn add_to(pair: &mut Pair) {
    pair.0 += 1;
    pair.1 += 1;
    assert_eq!(pair.0, pair.1);
}

/// One that adds long enough in a row to own a lock, again and again, and two that end that. How often they added in all.
fn change_the_owner(often: impl Fn() + Sync, seldom: impl Fn() + Sync) -> u64 {
    const ROUNDS: u64 = if cfg!(miri) { 2 } else { 1000 };
    thread::scope(|s| {
        s.spawn(|| {
            for round in 0..ROUNDS {
                (0..3000).for_each(|_| often());
                if round % 8 == 0 {
                    thread::sleep(Duration::from_micros(50));
                }
            }
        });
        for pause in [30, 170] {
            let seldom = &seldom;
            s.spawn(move || {
                for round in 0..ROUNDS {
                    (0..round % 5).for_each(|_| seldom());
                    thread::sleep(Duration::from_micros(pause));
                }
            });
        }
    });
    let some: u64 = (0..ROUNDS).map(|round| round % 5).sum();
    3000 * ROUNDS + 2 * some
}

#[test]
fn a_lock_whose_owner_changes_its_mind_a_thousand_times_lets_one_in_at_a_time() {
    let lock = BriefLock::new((0, 0));
    let add = || add_to(&mut lock.lock());
    let added = change_the_owner(add, add);
    assert_eq!(*lock.lock(), (added, added));
}

#[test]
fn a_turnstile_whose_owner_changes_its_mind_a_thousand_times_lets_one_in_at_a_time() {
    let (gate, missed) = (Turnstile::new((0, 0)), AtomicU64::new(0));
    let pass = || match gate.try_pass() {
        Some(mut turn) => add_to(&mut turn),
        None => drop(missed.fetch_add(1, Ordering::Relaxed)),
    };
    let added = change_the_owner(pass, || add_to(&mut gate.lock())) - missed.load(Ordering::Relaxed);
    assert_eq!(*gate.lock(), (added, added));
}

#[test]
fn a_right_that_threads_take_from_each_other_is_used_by_one_at_a_time() {
    for round in 0..300 {
        let (solo, count) = (Solo::new(), AtomicU64::new(0));
        let add = || match solo.enter() {
            Some(_alone) => count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed),
            None => drop(count.fetch_add(1, Ordering::Relaxed)),
        };
        thread::scope(|scope| {
            for n in 0..4 {
                let add = &add;
                // Some come when the others are in the middle of it.
                scope.spawn(move || (0..1000 * (n + 1)).for_each(|_| add()));
            }
            if round % 3 == 0 {
                solo.share();
            }
            add();
        });
        assert_eq!(count.into_inner(), 10_001);
    }
}
