use loom::{cell::Cell, sync::atomic::AtomicUsize as Counter};
use millrace_ring::Crew;

use super::*;

/// Pieces of a job, each a cell that loom watches: two threads with the same piece, or one that goes on with it after the
/// caller has returned, are noticed.
fn pieces(crew: &Crew, round: usize) {
    let (next, cells) = (Counter::new(0), [Cell::new(0), Cell::new(0)]);
    crew.run(
        &Watched(&|| {
            while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                cell.set(round);
            }
        })
        .call(),
    );
    assert!(cells.iter().all(|cell| cell.get() == round), "all is done, and seen by the caller");
}

/// Loom's cells are not `Sync`, because they are what it checks.
struct Watched<'a>(&'a dyn Fn());

// SAFETY: whether the threads take turns at each cell is what is explored.
unsafe impl Sync for Watched<'_> {}

impl Watched<'_> {
    fn call(&self) -> impl Fn() + Sync + '_ {
        move || (self.0)()
    }
}

#[test]
fn members_do_a_part_or_come_too_late() {
    explore(2, || {
        let crew = loom::sync::Arc::new(Crew::new());
        let member = thread::spawn({
            let crew = crew.clone();
            move || crew.serve()
        });
        pieces(&crew, 1);
        pieces(&crew, 2);
        crew.dismiss();
        member.join().unwrap();
    });
}

#[test]
fn two_callers_both_get_all_done() {
    explore(2, || {
        let crew = loom::sync::Arc::new(Crew::new());
        let member = thread::spawn({
            let crew = crew.clone();
            move || crew.serve()
        });
        let other = thread::spawn({
            let crew = crew.clone();
            move || pieces(&crew, 1)
        });
        pieces(&crew, 2);
        other.join().unwrap();
        crew.dismiss();
        member.join().unwrap();
    });
}
