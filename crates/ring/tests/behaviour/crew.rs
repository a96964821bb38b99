use std::sync::atomic::AtomicU64;

use millrace_ring::Crew;

use super::*;

/// A crew whose members go home when it is over.
struct Hired {
    crew: Arc<Crew>,
    members: Vec<thread::JoinHandle<()>>,
}

impl Hired {
    fn new(members: usize) -> Self {
        let crew = Arc::new(Crew::new());
        let serve = |_| {
            let crew = crew.clone();
            thread::spawn(move || crew.serve())
        };
        Self { members: (0..members).map(serve).collect(), crew }
    }
}

impl Drop for Hired {
    fn drop(&mut self) {
        self.crew.dismiss();
        for member in self.members.drain(..) {
            let ended = member.join();
            assert!(ended.is_ok() || thread::panicking(), "a member never panics itself");
        }
    }
}

/// Does `n` pieces of work, each `each`.
fn pieces(crew: &Crew, n: u64, each: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    crew.run(&|| {
        loop {
            match next.fetch_add(1, Ordering::Relaxed) {
                piece if piece < n => each(piece),
                _ => return,
            }
        }
    });
}

#[test]
fn every_piece_is_done_once_whatever_the_number_of_members() {
    for members in 0..4 {
        let hired = Hired::new(members);
        for round in 0..20_000u64 {
            let n = round % 17;
            let done: Vec<_> = (0..n).map(|_| AtomicUsize::new(0)).collect();
            pieces(&hired.crew, n, |piece| {
                done[piece as usize].fetch_add(1, Ordering::Relaxed);
            });
            assert!(done.iter().all(|times| times.load(Ordering::Relaxed) == 1), "round {round}");
        }
    }
}

#[test]
fn members_help_with_long_jobs() {
    let hired = Hired::new(1);
    let helped = (0..200).any(|_| {
        let threads = std::sync::Mutex::new(std::collections::HashSet::new());
        pieces(&hired.crew, 20, |_| {
            thread::sleep(Duration::from_millis(1));
            threads.lock().unwrap().insert(thread::current().id());
        });
        threads.into_inner().unwrap().len() == 2
    });
    assert!(helped, "in two hundred jobs of 20 ms the member never came");
}

#[test]
fn a_job_inside_of_a_job_and_two_callers_at_once_are_done_too() {
    let hired = Hired::new(2);
    let sum = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    pieces(&hired.crew, 3, |_| {
                        pieces(&hired.crew, 3, |n| {
                            sum.fetch_add(n, Ordering::Relaxed);
                        });
                    });
                }
            });
        }
    });
    assert_eq!(sum.into_inner(), 3 * 2000 * 3 * 3);
}

#[test]
fn a_panic_is_the_callers_wherever_it_happened_and_the_crew_goes_on() {
    let hired = Hired::new(1);
    for bad in 0..50 {
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            pieces(&hired.crew, 50, |piece| {
                thread::sleep(Duration::from_micros(20));
                assert!(piece != bad, "piece {bad} is bad");
            });
        }));
        let said = panicked.expect_err("it panicked");
        assert_eq!(said.downcast_ref::<String>().map(String::as_str), Some(&*format!("piece {bad} is bad")));
        let sum = AtomicU64::new(0);
        pieces(&hired.crew, 10, |n| {
            sum.fetch_add(n, Ordering::Relaxed);
        });
        assert_eq!(sum.into_inner(), 45, "what was thrown is not thrown again");
    }
}

#[test]
fn without_its_members_a_crew_is_its_caller() {
    let crew = Hired::new(2);
    crew.crew.dismiss();
    let sum = AtomicU64::new(0);
    pieces(&crew.crew, 10, |n| {
        sum.fetch_add(n, Ordering::Relaxed);
    });
    assert_eq!(sum.into_inner(), 45);
}
