use super::*;
use loom::cell::Cell;

/// Loom notices when two threads use the cell without an order between them.
struct Thing(Cell<u32>);

impl Default for Thing {
    fn default() -> Self {
        Self(Cell::new(0))
    }
}

impl Recycle for Thing {
    fn recycle(&mut self) {
        self.0.set(0);
    }
}

#[test]
fn two_threads_never_have_the_same_object() {
    explore(3, || {
        let slab = loom::sync::Arc::new(Slab::<Thing>::new());
        let use_twice = |slab: &Slab<Thing>, mark: u32| {
            for _ in 0..2 {
                let loan = slab.take().unwrap();
                assert_eq!(loan.0.get(), 0);
                loan.0.set(mark);
                assert_eq!(loan.0.get(), mark);
            }
        };
        let theirs = slab.clone();
        let other = thread::spawn(move || use_twice(&theirs, 1));
        use_twice(&slab, 2);
        other.join().unwrap();
        assert_eq!(slab.out(), 0);
    });
}

/// While one thread is about to take the first free object, the other takes two and returns the first: the list
/// begins as before and as many are out, but the second is gone.
#[test]
fn a_free_list_that_changed_and_looks_the_same_is_noticed() {
    explore(3, || {
        let slab = loom::sync::Arc::new(Slab::<Thing>::new());
        drop([(); 3].map(|()| slab.take().unwrap()));
        let (theirs, out) = (slab.clone(), slab.take().unwrap());
        let other = thread::spawn(move || {
            let (first, second) = (theirs.take().unwrap(), theirs.take().unwrap());
            second.0.set(1);
            drop(out);
            drop(first);
            assert_eq!(second.0.get(), 1);
        });
        let pair = [slab.take().unwrap(), slab.take().unwrap()];
        pair.iter().for_each(|loan| loan.0.set(2));
        assert!(pair.iter().all(|loan| loan.0.get() == 2));
        drop(pair);
        other.join().unwrap();
        assert_eq!(slab.out(), 0);
    });
}

/// How many objects there are; the one test that uses them explores one interleaving at a time.
static ALIVE: Mutex<isize> = Mutex::new(0);

struct Tracked;

impl Default for Tracked {
    fn default() -> Self {
        *ALIVE.lock().unwrap() += 1;
        Self
    }
}

impl Drop for Tracked {
    fn drop(&mut self) {
        *ALIVE.lock().unwrap() -= 1;
    }
}

impl Recycle for Tracked {
    fn recycle(&mut self) {}
}

#[test]
fn whoever_is_last_frees_the_slab() {
    explore(3, || {
        let slab = Slab::<Tracked>::new();
        let loans = [slab.take().unwrap(), slab.take().unwrap()];
        let [a, b] = loans.map(|loan| thread::spawn(move || drop(loan)));
        drop(slab);
        a.join().unwrap();
        b.join().unwrap();
        assert_eq!(*ALIVE.lock().unwrap(), 0);
    });
}

/// What another thread gives back is found again, while the taker gives back as well.
#[test]
fn what_comes_back_from_elsewhere_is_used_again() {
    explore(3, || {
        let slab = Slab::<Thing>::new();
        let (theirs, ours) = (slab.take().unwrap(), slab.take().unwrap());
        let other = thread::spawn(move || {
            theirs.0.set(1);
            drop(theirs);
        });
        drop(ours);
        // Three objects exist; with the third of these two are near, or one is near and one far.
        let pair = [slab.take().unwrap(), slab.take().unwrap()];
        assert!(pair.iter().all(|loan| loan.0.get() == 0));
        pair.iter().for_each(|loan| loan.0.set(2));
        other.join().unwrap();
        assert_eq!(slab.out(), 2);
        let third = slab.take().unwrap();
        assert_eq!(third.0.get(), 0);
        drop((pair, third));
        assert_eq!(slab.out(), 0);
    });
}

/// The owner goes while a loan makes a sibling and another comes back, to the list that is being closed or to the other.
#[test]
fn nothing_is_left_behind_when_the_owner_goes() {
    static ALIVE: Mutex<isize> = Mutex::new(0);

    struct Tracked;

    impl Default for Tracked {
        fn default() -> Self {
            *ALIVE.lock().unwrap() += 1;
            Self
        }
    }

    impl Drop for Tracked {
        fn drop(&mut self) {
            *ALIVE.lock().unwrap() -= 1;
        }
    }

    impl Recycle for Tracked {
        fn recycle(&mut self) {}
    }

    for sibling_first in [true, false] {
        explore(3, move || {
            let slab = Slab::<Tracked>::new();
            let (a, b) = (slab.take().unwrap(), slab.take().unwrap());
            let owner = thread::spawn(move || drop(slab));
            let other = thread::spawn(move || {
                let sibling = b.sibling().unwrap();
                if sibling_first {
                    drop((sibling, b));
                } else {
                    drop((b, sibling));
                }
            });
            drop(a); // by the thread that took it
            owner.join().unwrap();
            other.join().unwrap();
            assert_eq!(*ALIVE.lock().unwrap(), 0);
        });
    }
}
