use super::*;

/// A waker that remembers that it was called.
#[derive(Default)]
struct Called(AtomicBool);

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn a_blocked_asker_gets_the_answer() {
    explore(3, || {
        let pool = ReplyPool::new();
        let (answer, asked) = pool.pair().unwrap();
        let sender = thread::spawn(move || answer.send(5).unwrap());
        assert_eq!(asked.recv(), Ok(5));
        sender.join().unwrap();
        assert_eq!(pool.in_use(), 0);
    });
}

#[test]
fn an_awaiting_asker_gets_the_answer() {
    explore(3, || {
        let pool = ReplyPool::new();
        let (answer, asked) = pool.pair().unwrap();
        let sender = thread::spawn(move || answer.send(5).unwrap());
        assert_eq!(block_on(asked), Ok(5));
        sender.join().unwrap();
        assert_eq!(pool.in_use(), 0);
    });
}

#[test]
fn an_answer_to_an_asker_that_leaves_is_dropped_once() {
    explore(3, || {
        let drops = Drops::default();
        drop(drops.message(1));
        let pool = ReplyPool::new();
        let (answer, mut asked) = pool.pair().unwrap();
        let message = drops.message(0);
        let sender = thread::spawn(move || drop(answer.send(message)));
        let mut cx = Context::from_waker(Waker::noop());
        drop(std::pin::Pin::new(&mut asked).poll(&mut cx));
        drop(asked);
        sender.join().unwrap();
        drops.assert_once_each();
        assert_eq!(pool.in_use(), 0);
    });
}

#[test]
fn a_waiting_asker_learns_that_there_will_be_no_answer() {
    explore(3, || {
        let pool = ReplyPool::<u8>::new();
        let (answer, asked) = pool.pair().unwrap();
        let sender = thread::spawn(move || drop(answer));
        assert_eq!(asked.recv(), Err(ReplyError::Abandoned));
        sender.join().unwrap();
        assert_eq!(pool.in_use(), 0);
    });
}

#[test]
fn both_ends_may_leave_at_once() {
    explore(3, || {
        let pool = ReplyPool::<u8>::new();
        let (answer, asked) = pool.pair().unwrap();
        let sender = thread::spawn(move || drop(answer));
        drop(asked);
        sender.join().unwrap();
        assert_eq!(pool.in_use(), 0);
    });
}

#[test]
fn the_last_waker_is_called_when_the_answer_comes_between_two_polls() {
    explore(3, || {
        let pool = ReplyPool::new();
        let (answer, mut asked) = pool.pair().unwrap();
        let wakers = [Arc::new(Called::default()), Arc::new(Called::default())];
        let mut poll = |called: &Arc<Called>| {
            let waker = Waker::from(called.clone());
            std::pin::Pin::new(&mut asked).poll(&mut Context::from_waker(&waker))
        };
        assert!(poll(&wakers[0]).is_pending());
        let sender = thread::spawn(move || answer.send(5).unwrap());
        let second = poll(&wakers[1]);
        sender.join().unwrap();
        if second.is_pending() {
            assert!(wakers[1].0.load(Ordering::SeqCst));
            assert_eq!(poll(&wakers[1]), Poll::Ready(Ok(5)));
        } else {
            assert_eq!(second, Poll::Ready(Ok(5)));
        }
        assert_eq!(pool.in_use(), 0);
    });
}

#[test]
fn a_cancellation_does_not_disturb_an_answer_that_comes_all_the_same() {
    explore(3, || {
        let pool = ReplyPool::new();
        let (answer, asked) = pool.pair().unwrap();
        let sender = thread::spawn(move || {
            let cancelled = answer.is_cancelled();
            answer.send(5).unwrap();
            cancelled
        });
        asked.cancel();
        assert_eq!(asked.recv(), Ok(5));
        sender.join().unwrap();
        assert_eq!(pool.in_use(), 0);
    });
}

/// The next request may get the slot while the thread that answered the last one is still on its way out.
#[test]
fn a_slot_serves_the_next_request_cleanly() {
    for takes_the_answer in [true, false] {
        explore(3, move || {
            let pool = ReplyPool::new();
            let (answer, asked) = pool.pair().unwrap();
            let sender = thread::spawn(move || drop(answer.send(Box::new(1))));
            if takes_the_answer {
                assert_eq!(asked.recv(), Ok(Box::new(1)));
            } else {
                drop(asked);
            }
            let (answer, mut asked) = pool.pair().unwrap();
            let mut cx = Context::from_waker(Waker::noop());
            assert!(std::pin::Pin::new(&mut asked).poll(&mut cx).is_pending());
            answer.send(Box::new(2)).unwrap();
            assert_eq!(asked.recv(), Ok(Box::new(2)));
            sender.join().unwrap();
            assert_eq!(pool.in_use(), 0);
        });
    }
}

#[test]
fn the_pool_may_go_before_the_answer_comes() {
    explore(3, || {
        let pool = ReplyPool::new();
        let (answer, asked) = pool.pair().unwrap();
        let sender = thread::spawn(move || answer.send(5).unwrap());
        drop(pool);
        assert_eq!(asked.recv(), Ok(5));
        sender.join().unwrap();
    });
}
