//! Once everything has grown to its size, nothing allocates.
#![cfg(not(loom))]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use millrace_ring::{
    Recycle, Slab, mpsc,
    reply::{ReplyPool, ReplySender},
    spsc,
};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Whether this thread is one of ours: the test harness allocates when it likes.
    static OURS: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if OURS.get() {
            ALLOCATIONS.fetch_add(1, Ordering::SeqCst);
        }
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: `memory` came from `System` with this layout.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Longer than any yield takes on a busy machine, so that the other one sleeps.
const KEEP_WAITING: Duration = Duration::from_millis(20);

/// Runs `answer` on a thread of its own and `ask` here, first to warm up and then to count. In the warm-up each keeps
/// the other waiting, so that both have slept before.
fn assert_steady(what: &str, mut ask: impl FnMut() + Send, mut answer: impl FnMut() + Send) {
    const WARM_UP: usize = 16;
    const COUNTED: usize = 500;
    let (start, end) = (Barrier::new(2), Barrier::new(2));
    thread::scope(|scope| {
        OURS.set(true);
        scope.spawn(|| {
            OURS.set(true);
            for round in 0..WARM_UP {
                if round >= WARM_UP / 2 {
                    thread::sleep(KEEP_WAITING);
                }
                answer();
            }
            start.wait();
            (0..COUNTED).for_each(|_| answer());
            end.wait();
        });
        for round in 0..WARM_UP {
            if round < WARM_UP / 2 {
                thread::sleep(KEEP_WAITING);
            }
            ask();
        }
        start.wait();
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        (0..COUNTED).for_each(|_| ask());
        end.wait();
        let after = ALLOCATIONS.load(Ordering::SeqCst);
        assert_eq!(after - before, 0, "{what} allocated");
    });
}

/// Long enough for the other thread to have stopped polling and gone to sleep.
fn let_it_sleep() {
    thread::sleep(Duration::from_micros(300));
}

#[derive(Default)]
struct Scratch(Vec<u8>);

impl Recycle for Scratch {
    fn recycle(&mut self) {
        self.0.clear();
    }
}

/// One test, because tests of one file run at the same time and would count each other.
#[test]
fn nothing_allocates_in_steady_state() {
    let (mut tx, mut rx) = spsc::bounded(4).unwrap();
    assert_steady(
        "one sender",
        || (0..100).for_each(|i| tx.send(i).unwrap()),
        || (0..100).for_each(|i| assert_eq!(rx.recv(), Ok(i))),
    );

    let (tx, mut rx) = mpsc::bounded(4).unwrap();
    assert_steady(
        "many senders",
        || (0..100).for_each(|i| tx.send(i).unwrap()),
        || (0..100).for_each(|i| assert_eq!(rx.recv(), Ok(i))),
    );

    let (tx, mut rx) = mpsc::bounded(4).unwrap();
    assert_steady(
        "a receiver that sleeps",
        || {
            let_it_sleep();
            tx.send(1).unwrap();
        },
        || assert_eq!(rx.recv(), Ok(1)),
    );

    let (mut tx, mut rx) = spsc::bounded(1).unwrap();
    tx.send(1).unwrap();
    assert_steady(
        "a sender that sleeps",
        || tx.send(1).unwrap(),
        || {
            let_it_sleep();
            assert_eq!(rx.recv(), Ok(1));
        },
    );

    let (tx, mut rx) = mpsc::bounded(1).unwrap();
    let (back, mut there) = mpsc::bounded(1).unwrap();
    assert_steady(
        "ping and pong",
        || {
            tx.send(1).unwrap();
            there.recv().unwrap();
        },
        || back.send(rx.recv().unwrap()).unwrap(),
    );

    let replies = ReplyPool::new();
    let (tx, mut rx) = mpsc::bounded::<(i32, ReplySender<i32>)>(4).unwrap();
    assert_steady(
        "a request and its answer",
        || {
            let (answer, asked) = replies.pair().unwrap();
            tx.send((7, answer)).unwrap();
            assert_eq!(asked.recv(), Ok(8));
        },
        || {
            let (question, answer) = rx.recv().unwrap();
            let_it_sleep();
            answer.send(question + 1).unwrap();
        },
    );

    let slab = Slab::<Scratch>::new();
    let borrow = || {
        let mut loans = [(); 8].map(|()| slab.take().unwrap());
        for loan in &mut loans {
            loan.0.extend_from_slice(&[1; 64]);
        }
    };
    drop([(); 64].map(|()| {
        let mut loan = slab.take().unwrap();
        loan.0.reserve(64);
        loan
    }));
    assert_steady("a loan of a slab", borrow, borrow);
}
