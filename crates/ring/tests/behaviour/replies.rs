use super::*;

#[test]
fn an_unanswered_request_is_abandoned() {
    let replies = ReplyPool::<u8>::new();
    let (answer, mut asked) = replies.pair().unwrap();
    assert_eq!(asked.try_recv(), None);
    drop(answer);
    assert_eq!(asked.try_recv(), Some(Err(ReplyError::Abandoned)));
    assert_eq!(asked.recv(), Err(ReplyError::Abandoned));
    assert_eq!(replies.in_use(), 0);
}

#[test]
fn an_answer_is_given_once() {
    let replies = ReplyPool::new();
    let (answer, mut asked) = replies.pair().unwrap();
    answer.send(1).unwrap();
    assert_eq!(asked.try_recv(), Some(Ok(1)));
    assert_eq!(asked.recv(), Err(ReplyError::Abandoned));
    assert_eq!(replies.in_use(), 0);
}

#[test]
fn the_value_comes_back_when_the_asker_is_gone() {
    let replies = ReplyPool::new();
    let (answer, asked) = replies.pair().unwrap();
    drop(asked);
    assert_eq!(answer.send("value"), Err("value"));
    assert_eq!(replies.in_use(), 0);
}

#[test]
fn an_answer_that_nobody_takes_is_dropped_once() {
    let drops = Arc::new(AtomicUsize::new(0));
    let replies = ReplyPool::new();
    let (answer, asked) = replies.pair().unwrap();
    let value = Counted { drops: drops.clone(), bomb: false };
    assert!(answer.send(value).is_ok());
    drop(asked);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
    assert_eq!(replies.in_use(), 0);
    drop(replies);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

#[test]
fn the_answering_end_sees_a_cancellation() {
    let replies = ReplyPool::<u8>::new();
    let (answer, asked) = replies.pair().unwrap();
    assert!(!answer.is_cancelled());
    asked.cancel();
    assert!(answer.is_cancelled());
    answer.send(1).unwrap();
    assert_eq!(asked.recv(), Ok(1), "it may come all the same");

    let (answer, asked) = replies.pair().unwrap();
    assert!(!answer.is_cancelled(), "a slot is clean when it is used again");
    drop(asked);
    assert!(!answer.is_cancelled(), "leaving does not say that the work is not wanted");
}

#[test]
fn a_wait_for_an_answer_ends_at_its_deadline_and_can_go_on() {
    let replies = ReplyPool::new();
    let (answer, mut asked) = replies.pair().unwrap();
    assert_in_time(|deadline| {
        assert_eq!(asked.recv_deadline(deadline), Err(ReplyError::Deadline));
    });
    answer.send(1).unwrap();
    assert_eq!(asked.recv_deadline(Instant::now()), Ok(1));
}

#[test]
fn an_answer_can_be_awaited_on_any_executor() {
    let replies = ReplyPool::new();
    let ask = || {
        let (answer, asked) = replies.pair().unwrap();
        thread::spawn(move || {
            let_it_block();
            answer.send(5).unwrap();
        });
        asked
    };
    assert_eq!(block_on(ask()), Ok(5));
    assert_eq!(pollster::block_on(ask()), Ok(5));
    assert_eq!(futures_lite::future::block_on(ask()), Ok(5));
}

#[test]
fn a_future_dropped_half_way_leaves_no_waker_behind() {
    let replies = ReplyPool::new();
    let calls = Arc::new(Calls::default());
    let (answer, mut asked) = replies.pair().unwrap();
    assert!(poll_once(&mut asked, &calls.clone().into()).is_pending());
    drop(asked);
    assert_eq!(answer.send(5), Err(5));
    assert_eq!(calls.0.load(Ordering::SeqCst), 0);
    assert_eq!(Arc::strong_count(&calls), 1);
    assert_eq!(replies.in_use(), 0);
}

#[test]
fn replies_outlive_their_pool() {
    let replies = ReplyPool::new();
    let (answer, asked) = replies.pair().unwrap();
    drop(replies);
    answer.send(5).unwrap();
    assert_eq!(asked.recv(), Ok(5));
}
