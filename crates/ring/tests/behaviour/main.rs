//! What the rings and replies promise, one promise per test.
#![cfg(not(loom))]
#![allow(clippy::expect_used)]

mod crew;
mod replies;

use std::{
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
        mpsc as std_mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use millrace_ring::{
    CapacityError, Loan, MAX_CAPACITY, RecvDeadlineError, RecvError, Recycle, SendDeadlineError, SendError, Slab,
    TryRecvError, TrySendError, mpsc,
    reply::{ReplyError, ReplyPool, ReplyReceiver, ReplySender},
    spsc,
};

const TIMEOUT: Duration = Duration::from_millis(30);
/// How late a deadline may be noticed.
const TOLERANCE: Duration = Duration::from_millis(50);

/// Long enough for another thread to be asleep.
fn let_it_block() {
    thread::sleep(Duration::from_millis(20));
}

/// Runs `wait`, which must come back at the deadline it is given. A machine that was busy elsewhere gets another try;
/// one that is never in time fails.
fn assert_in_time(mut wait: impl FnMut(Instant)) {
    let mut worst = Duration::ZERO;
    for _ in 0..5 {
        let deadline = Instant::now() + TIMEOUT;
        wait(deadline);
        let now = Instant::now();
        assert!(now >= deadline, "{:?} early", deadline - now);
        if now - deadline < TOLERANCE {
            return;
        }
        worst = worst.max(now - deadline);
    }
    panic!("always late, by up to {worst:?}");
}

/// Counts in `drops` that it was dropped, and then panics if it is a bomb.
struct Counted {
    drops: Arc<AtomicUsize>,
    bomb: bool,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.drops.fetch_add(1, Ordering::SeqCst);
        assert!(!self.bomb, "a bomb");
    }
}

/// Counts how often it was called.
#[derive(Default)]
struct Calls(AtomicUsize);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// The least an executor can be: polls when woken, on this thread.
fn block_on<F: Future>(future: F) -> F::Output {
    struct Signal(std_mpsc::SyncSender<()>);
    impl Wake for Signal {
        fn wake(self: Arc<Self>) {
            let _ = self.0.try_send(());
        }
    }
    let (signal, woken) = std_mpsc::sync_channel(1);
    let waker = Waker::from(Arc::new(Signal(signal)));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        woken.recv_timeout(Duration::from_secs(20)).expect("nobody woke the task");
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F, waker: &Waker) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(waker))
}

/// The same promises of both rings.
macro_rules! both_rings {
    ($(#[test] fn $name:ident() $body:block)+) => {
        mod one_sender {
            use super::*;
            use spsc::bounded;
            $(#[test] fn $name() $body)+
        }
        mod many_senders {
            use super::*;
            use mpsc::bounded;
            $(#[test] #[allow(unused_mut)] fn $name() $body)+
        }
    };
}

both_rings! {
    #[test]
    fn a_capacity_of_zero_or_beyond_the_limit_is_refused() {
        for capacity in [0, MAX_CAPACITY + 1, usize::MAX] {
            assert_eq!(bounded::<u8>(capacity).unwrap_err(), CapacityError(capacity));
        }
        assert_eq!(bounded::<u8>(3).unwrap().0.capacity(), 3);
    }

    #[test]
    fn a_ring_holds_exactly_its_capacity() {
        for capacity in [1, 2, 3, 5, 64, 100] {
            let (mut tx, mut rx) = bounded(capacity).unwrap();
            for lap in 0..3 {
                for i in 0..capacity {
                    assert_eq!(tx.len(), i);
                    tx.try_send(lap * capacity + i).unwrap();
                }
                assert!(matches!(tx.try_send(usize::MAX), Err(TrySendError::Full(usize::MAX))));
                assert_eq!((tx.len(), rx.len()), (capacity, capacity));
                for i in 0..capacity {
                    assert_eq!(rx.try_recv(), Ok(lap * capacity + i));
                }
                assert_eq!(rx.try_recv(), Err(TryRecvError::Empty));
            }
        }
    }

    #[test]
    fn a_closed_ring_hands_the_message_back_in_every_way_to_send() {
        let (mut tx, rx) = bounded(4).unwrap();
        drop(rx);
        assert!(tx.is_closed());
        assert!(matches!(tx.try_send(1), Err(TrySendError::Closed(1))));
        assert_eq!(tx.send(2), Err(SendError(2)));
        assert_eq!(tx.send_timeout(3, TIMEOUT), Err(SendDeadlineError::Closed(3)));
        assert_eq!(block_on(tx.send_async(4)), Err(SendError(4)));
    }

    #[test]
    fn a_full_ring_that_is_closed_says_closed() {
        let (mut tx, mut rx) = bounded(1).unwrap();
        tx.try_send(1).unwrap();
        rx.close();
        assert!(matches!(tx.try_send(2), Err(TrySendError::Closed(2))));
    }

    #[test]
    fn what_was_sent_before_a_close_is_still_received() {
        for close_from_the_receiver in [false, true] {
            let (mut tx, mut rx) = bounded(4).unwrap();
            (0..3).for_each(|i| tx.try_send(i).unwrap());
            if close_from_the_receiver { rx.close() } else { tx.close() }
            assert_eq!(tx.send(9), Err(SendError(9)));
            assert_eq!(rx.try_recv(), Ok(0));
            assert_eq!(rx.recv(), Ok(1));
            assert_eq!(block_on(rx.recv_async()), Ok(2));
            assert_eq!(rx.try_recv(), Err(TryRecvError::Closed));
            assert_eq!(rx.recv(), Err(RecvError));
            assert_eq!(rx.recv_timeout(TIMEOUT), Err(RecvDeadlineError::Closed));
            assert_eq!(block_on(rx.recv_async()), Err(RecvError));
        }
    }

    #[test]
    fn a_dropped_receiver_drops_what_is_inside_once() {
        let drops = Arc::new(AtomicUsize::new(0));
        let (mut tx, mut rx) = bounded(5).unwrap();
        // Over the end of the storage, and partly received.
        for _ in 0..8 {
            while tx.try_send(Counted { drops: drops.clone(), bomb: false }).is_ok() {}
            drop((rx.try_recv(), rx.try_recv()));
        }
        let (before, inside) = (drops.load(Ordering::SeqCst), rx.len());
        assert_eq!(inside, 3);
        drop(rx);
        assert_eq!(drops.load(Ordering::SeqCst), before + inside);
        drop(tx);
        assert_eq!(drops.load(Ordering::SeqCst), before + inside);
        assert_eq!(Arc::strong_count(&drops), 1);
    }

    #[test]
    fn a_message_whose_drop_panics_does_not_keep_the_others() {
        let drops = Arc::new(AtomicUsize::new(0));
        let (mut tx, rx) = bounded(8).unwrap();
        for i in 0..8 {
            let bomb = i % 3 == 1;
            tx.try_send(Counted { drops: drops.clone(), bomb }).map_err(|_| ()).unwrap();
        }
        let panic = catch_unwind(AssertUnwindSafe(|| drop(rx))).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"a bomb"));
        assert_eq!(drops.load(Ordering::SeqCst), 8);
        assert!(tx.is_closed());
    }

    #[test]
    fn a_panic_while_draining_loses_only_the_message_that_was_handed_out() {
        let (mut tx, mut rx) = bounded(4).unwrap();
        (0..4).for_each(|i| tx.try_send(i).unwrap());
        let drained = catch_unwind(AssertUnwindSafe(|| rx.drain(4, |i| assert_ne!(i, 1))));
        assert!(drained.is_err());
        assert_eq!(tx.len(), 2);
        tx.try_send(4).unwrap();
        assert_eq!(std::iter::from_fn(|| rx.try_recv().ok()).collect::<Vec<_>>(), [2, 3, 4]);
    }

    #[test]
    fn a_sender_that_panics_in_a_burst_has_sent_what_it_sent() {
        let (mut tx, mut rx) = bounded(4).unwrap();
        let sender = thread::spawn(move || {
            for i in 0..10 {
                assert!(i < 7, "half way");
                tx.send(i).unwrap();
            }
        });
        let got: Vec<_> = std::iter::from_fn(|| rx.recv().ok()).collect();
        assert_eq!(got, [0, 1, 2, 3, 4, 5, 6]);
        assert!(sender.join().is_err());
    }

    #[test]
    fn a_receive_ends_at_its_deadline() {
        let (_tx, mut rx) = bounded::<u8>(1).unwrap();
        assert_in_time(|deadline| {
            assert_eq!(rx.recv_deadline(deadline), Err(RecvDeadlineError::Deadline));
        });
        let past = Instant::now();
        assert_eq!(rx.recv_deadline(past), Err(RecvDeadlineError::Deadline));
    }

    #[test]
    fn a_send_ends_at_its_deadline_and_hands_the_message_back() {
        let (mut tx, _rx) = bounded(1).unwrap();
        tx.try_send(0).unwrap();
        assert_in_time(|deadline| {
            assert_eq!(tx.send_deadline(1, deadline), Err(SendDeadlineError::Deadline(1)));
        });
        let past = Instant::now();
        assert_eq!(tx.send_deadline(1, past), Err(SendDeadlineError::Deadline(1)));
    }

    #[test]
    fn an_endless_timeout_waits_for_what_comes() {
        let (mut tx, mut rx) = bounded(1).unwrap();
        tx.try_send(1).unwrap();
        let sender = thread::spawn(move || {
            tx.send_timeout(2, Duration::MAX).unwrap();
            let_it_block();
            tx.send_timeout(3, Duration::MAX).unwrap();
        });
        let_it_block();
        for i in 1..=3 {
            assert_eq!(rx.recv_timeout(Duration::MAX), Ok(i));
        }
        sender.join().unwrap();
    }

    #[test]
    fn a_drain_wakes_a_blocked_sender() {
        let (mut tx, mut rx) = bounded(64).unwrap();
        (0..64).for_each(|i| tx.try_send(i).unwrap());
        let sender = thread::spawn(move || tx.send(64));
        let_it_block();
        assert_eq!(rx.drain(usize::MAX, drop), 64);
        sender.join().unwrap().unwrap();
        assert_eq!(rx.try_recv(), Ok(64));
    }

    #[test]
    fn a_blocked_sender_gets_in_though_the_receiver_stops_after_one_message() {
        let (mut tx, mut rx) = bounded(64).unwrap();
        (0..64).for_each(|i| tx.try_send(i).unwrap());
        let sender = thread::spawn(move || tx.send_timeout(64, Duration::from_secs(10)));
        let_it_block();
        assert_eq!(rx.try_recv(), Ok(0));
        sender.join().unwrap().unwrap();
        assert_eq!(rx.len(), 64);
    }

    #[test]
    fn a_waker_that_panics_costs_no_message() {
        struct Bomb;
        impl Wake for Bomb {
            fn wake(self: Arc<Self>) {
                std::panic::resume_unwind(Box::new("a bomb"));
            }
        }
        let waker = Waker::from(Arc::new(Bomb));
        let (mut tx, mut rx) = bounded(1).unwrap();
        let mut receive = rx.recv_async();
        assert!(poll_once(&mut receive, &waker).is_pending());
        tx.try_send(1).unwrap();
        drop(receive);
        let mut send = tx.send_async(2);
        assert!(poll_once(&mut send, &waker).is_pending());
        assert_eq!(rx.try_recv(), Ok(1));
        assert!(poll_once(&mut send, &waker).is_ready());
        drop(send);
        assert_eq!(rx.try_recv(), Ok(2));
    }

    #[test]
    fn a_pending_send_is_woken_by_the_first_message_that_is_received() {
        let (mut tx, mut rx) = bounded(64).unwrap();
        (0..64).for_each(|i| tx.try_send(i).unwrap());
        let calls = Arc::new(Calls::default());
        let mut sending = tx.send_async(64);
        assert!(poll_once(&mut sending, &calls.clone().into()).is_pending());
        assert_eq!(rx.try_recv(), Ok(0));
        assert_eq!(calls.0.load(Ordering::SeqCst), 1);
        assert_eq!(poll_once(&mut sending, &calls.into()), Poll::Ready(Ok(())));
    }

    #[test]
    fn a_future_dropped_half_way_leaves_nothing_behind() {
        let drops = Arc::new(AtomicUsize::new(0));
        let message = |bomb| Counted { drops: drops.clone(), bomb };
        let calls = Arc::new(Calls::default());
        let waker = Waker::from(calls.clone());
        let (mut tx, mut rx) = bounded(1).unwrap();

        let mut receiving = rx.recv_async();
        assert!(poll_once(&mut receiving, &waker).is_pending());
        drop(receiving);
        assert!(tx.try_send(message(false)).is_ok());

        let mut sending = tx.send_async(message(false));
        assert!(poll_once(&mut sending, &waker).is_pending());
        drop(sending);
        assert_eq!(drops.load(Ordering::SeqCst), 1, "the message went with the future");

        drop(rx.try_recv().unwrap());
        assert!(matches!(rx.try_recv(), Err(TryRecvError::Empty)));
        drop(waker);
        assert_eq!(calls.0.load(Ordering::SeqCst), 0, "a dropped future is not woken");
        assert_eq!(Arc::strong_count(&calls), 1, "a dropped future keeps no waker");
    }

    #[test]
    fn the_last_waker_of_a_future_is_the_one_that_is_called() {
        let (mut tx, mut rx) = bounded(1).unwrap();
        let calls = [Arc::new(Calls::default()), Arc::new(Calls::default())];
        let mut receiving = rx.recv_async();
        for calls in &calls {
            assert!(poll_once(&mut receiving, &calls.clone().into()).is_pending());
        }
        tx.try_send(1).unwrap();
        assert_eq!(calls.each_ref().map(|c| c.0.load(Ordering::SeqCst)), [0, 1]);
    }

    #[test]
    fn both_ends_can_be_awaited_on_any_executor() {
        let (mut tx, mut rx) = bounded(2).unwrap();
        let sender = thread::spawn(move || {
            for i in 0..300 {
                match i % 3 {
                    0 => block_on(tx.send_async(i)),
                    1 => pollster::block_on(tx.send_async(i)),
                    _ => futures_lite::future::block_on(tx.send_async(i)),
                }
                .unwrap();
            }
        });
        for i in 0..300 {
            let got = match i % 3 {
                0 => futures_lite::future::block_on(rx.recv_async()),
                1 => block_on(rx.recv_async()),
                _ => pollster::block_on(rx.recv_async()),
            };
            assert_eq!(got, Ok(i));
        }
        sender.join().unwrap();
    }

    #[test]
    fn messages_of_several_lines_arrive_whole_at_any_capacity() {
        const MESSAGES: usize = 5000;
        for capacity in [1, 2, 7, 8, 9, 17, 100] {
            let (mut tx, mut rx) = bounded(capacity).unwrap();
            let sender = thread::spawn(move || (0..MESSAGES).all(|i| tx.send([i; 21]).is_ok()));
            (0..MESSAGES).for_each(|i| assert_eq!(rx.recv(), Ok([i; 21])));
            assert!(sender.join().unwrap());
        }
    }

    #[test]
    fn the_length_never_exceeds_the_capacity() {
        const MESSAGES: usize = 20_000;
        let (mut tx, mut rx) = bounded(3).unwrap();
        let sender = thread::spawn(move || {
            for i in 0..MESSAGES {
                tx.send(i).unwrap();
                assert!(tx.len() <= tx.capacity());
            }
        });
        for i in 0..MESSAGES {
            assert!(rx.len() <= rx.capacity());
            assert_eq!(rx.recv(), Ok(i));
        }
        sender.join().unwrap();
    }
}

#[test]
fn the_ring_stays_open_until_the_last_sender_is_gone() {
    let (tx, mut rx) = mpsc::bounded(4).unwrap();
    let panics = tx.clone();
    let sender = thread::spawn(move || {
        panics.send(1).unwrap();
        panic!("half way");
    });
    assert!(sender.join().is_err());
    assert_eq!(rx.recv(), Ok(1));
    assert_eq!(rx.try_recv(), Err(TryRecvError::Empty));
    tx.send(2).unwrap();
    drop(tx);
    assert_eq!(rx.recv(), Ok(2));
    assert_eq!(rx.recv(), Err(RecvError));
}

#[test]
fn many_blocked_senders_all_get_in() {
    let (tx, mut rx) = mpsc::bounded(1).unwrap();
    tx.try_send(0).unwrap();
    let senders: Vec<_> = (1..=8)
        .map(|i| {
            let tx = tx.clone();
            thread::spawn(move || tx.send(i))
        })
        .collect();
    drop(tx);
    let_it_block();
    let mut got: Vec<_> = std::iter::from_fn(|| rx.recv().ok()).collect();
    got.sort_unstable();
    assert!(got.into_iter().eq(0..=8));
    for sender in senders {
        sender.join().unwrap().unwrap();
    }
}

#[test]
fn no_sender_of_a_busy_ring_is_left_asleep() {
    const ENOUGH: usize = 100;
    let (tx, mut rx) = mpsc::bounded(16).unwrap();
    let sent: Arc<[AtomicUsize; 8]> = Arc::default();
    let senders: Vec<_> = (0..sent.len())
        .map(|sender| {
            let (tx, sent) = (tx.clone(), sent.clone());
            thread::spawn(move || {
                while tx.send(sender).is_ok() {
                    sent[sender].fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    // Those that are awake keep it full: none of them stops before all have had their turn.
    let start = Instant::now();
    while sent.iter().any(|sent| sent.load(Ordering::Relaxed) < ENOUGH) {
        assert!(start.elapsed() < Duration::from_secs(60), "{sent:?}");
        assert!((0..1000).all(|_| rx.recv().is_ok()));
    }
    drop(rx);
    senders.into_iter().for_each(|sender| sender.join().unwrap());
}

#[test]
fn a_receiver_is_empty_exactly_when_nothing_can_be_received() {
    let (tx, mut rx) = mpsc::bounded(2).unwrap();
    assert!(rx.is_empty() && tx.is_empty());
    tx.try_send(1).unwrap();
    assert!(!rx.is_empty() && !tx.is_empty());
    rx.recv().unwrap();
    assert!(rx.is_empty() && tx.is_empty());
}

/// Sendable, but not to be shared between threads.
#[derive(Default)]
struct NotShared(std::cell::Cell<u8>);

impl Recycle for NotShared {
    fn recycle(&mut self) {
        self.0.set(0);
    }
}

/// Holds when it compiles: the ends go to other threads with messages that can, and can be shared where no two
/// threads get at one message.
const _: () = {
    const fn send<T: Send>() {}
    const fn sync<T: Sync>() {}
    send::<mpsc::Sender<NotShared>>();
    sync::<mpsc::Sender<NotShared>>();
    send::<mpsc::Receiver<NotShared>>();
    send::<spsc::Sender<NotShared>>();
    send::<spsc::Receiver<NotShared>>();
    send::<ReplyPool<NotShared>>();
    sync::<ReplyPool<NotShared>>();
    send::<ReplySender<NotShared>>();
    sync::<ReplySender<NotShared>>();
    send::<ReplyReceiver<NotShared>>();
    sync::<ReplyReceiver<NotShared>>();
    send::<Slab<NotShared>>();
    sync::<Slab<NotShared>>();
    send::<Loan<NotShared>>();
};

/// `false`, unless the type is `Sync`: the inherent constant hides that of the trait.
macro_rules! is_sync {
    ($type:ty) => {{
        #[allow(dead_code)]
        trait Otherwise {
            const IS_SYNC: bool = false;
        }
        impl<T: ?Sized> Otherwise for T {}
        struct Ask<T: ?Sized>(std::marker::PhantomData<T>);
        #[allow(dead_code)]
        impl<T: ?Sized + Sync> Ask<T> {
            const IS_SYNC: bool = true;
        }
        <Ask<$type>>::IS_SYNC
    }};
}

#[test]
fn a_loan_is_shared_only_if_its_object_can_be() {
    assert!(is_sync!(Loan<Shared>));
    assert!(!is_sync!(Loan<NotShared>));
}

#[derive(Default)]
struct Shared;

impl Recycle for Shared {
    fn recycle(&mut self) {}
}

#[test]
fn who_holds_a_lock_cannot_pass_it() {
    let lock = millrace_ring::BriefLock::new(0);
    let mut passed = 0;
    for _ in 0..2000 {
        let guard = lock.lock();
        passed += usize::from(lock.pass().is_some());
        drop(guard);
    }
    assert_eq!(passed, 0);
    assert!(lock.pass().is_some(), "who does not hold it can");
}
