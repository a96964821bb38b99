//! The clock under threads.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::thread;

use millrace_resident::{Clock, Moment};

#[test]
fn eight_threads_see_no_moment_twice_and_none_go_back() {
    let per_thread = if is_slow() { 100_000 } else { 1_000_000 };
    let clock = Clock::new();
    let mut all: Vec<Moment> = thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let clock = &clock;
                scope.spawn(move || {
                    let mut last = Moment::default();
                    let mut seen = Vec::with_capacity(per_thread);
                    for i in 0..per_thread {
                        let moment = match i % 7 {
                            // What comes from elsewhere is a little ahead.
                            0 if n == 0 => clock.observe(Moment::from_raw(last.raw() + 5000)),
                            1 if n == 1 => {
                                clock.see(Moment::from_raw(last.raw() + 100));
                                clock.tick()
                            }
                            _ => clock.tick(),
                        };
                        assert!(moment > last, "{moment:?} after {last:?}");
                        last = moment;
                        seen.push(moment);
                    }
                    seen
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn it_stays_close_to_the_system_clock() {
    let clock = Clock::new();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let read = clock.tick().since_epoch();
    assert!(read.abs_diff(now).as_secs() < 5, "{read:?} {now:?}");
}

#[test]
fn what_was_observed_is_in_the_past() {
    let clock = Clock::new();
    let ahead = Moment::from_raw(clock.tick().raw() + (1 << 40));
    let observed = clock.observe(ahead);
    assert!(observed > ahead && clock.tick() > observed);
    assert!(clock.observe(Moment::from_raw(1)) > observed);
}

/// Whether this was built without optimization, as far as one can tell.
fn is_slow() -> bool {
    cfg!(debug_assertions) && std::env::var_os("MILLRACE_TEST_OPTIMIZED").is_none()
}
