//! The right that one thread has: nobody is inside with it, and what was done alone is seen by those who share.

use loom::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};
use millrace_ring::Solo;

use super::explore;

struct Counter {
    solo: Solo,
    count: AtomicUsize,
}

impl Counter {
    fn new() -> Arc<Self> {
        Arc::new(Self { solo: Solo::new(), count: AtomicUsize::new(0) })
    }

    /// Counts, and says which it was.
    fn add(&self) -> usize {
        match self.solo.enter() {
            Some(_alone) => {
                let count = self.count.load(Ordering::Relaxed);
                self.count.store(count + 1, Ordering::Relaxed);
                count
            }
            None => self.count.fetch_add(1, Ordering::Relaxed),
        }
    }
}

#[test]
fn a_right_that_is_taken_away_is_used_by_one_at_a_time() {
    explore(3, || {
        let counter = Counter::new();
        assert_eq!(counter.add(), 0, "the right is this thread's");
        let other = {
            let counter = counter.clone();
            thread::spawn(move || [counter.add(), counter.add()])
        };
        let ours = counter.add();
        let theirs = other.join().unwrap();
        let mut all = [ours, theirs[0], theirs[1]];
        all.sort_unstable();
        assert_eq!((all, counter.add()), ([1, 2, 3], 4));
    });
}

#[test]
fn two_that_want_it_take_turns() {
    explore(2, || {
        let counter = Counter::new();
        counter.add();
        let others: Vec<_> = (0..2)
            .map(|_| {
                let counter = counter.clone();
                thread::spawn(move || counter.add())
            })
            .collect();
        let mut all = vec![counter.add()];
        all.extend(others.into_iter().map(|other| other.join().unwrap()));
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3]);
    });
}

#[test]
fn what_was_done_alone_is_before_what_is_done_by_many() {
    explore(3, || {
        let counter = Counter::new();
        counter.add();
        let other = {
            let counter = counter.clone();
            thread::spawn(move || {
                counter.solo.share();
                assert!(counter.solo.enter().is_none());
                counter.add()
            })
        };
        let ours = counter.add();
        let theirs = other.join().unwrap();
        assert_eq!((ours.min(theirs), ours.max(theirs)), (1, 2));
    });
}
