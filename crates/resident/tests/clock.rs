//! The clock under threads.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

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

#[test]
fn a_thread_that_was_told_of_a_moment_reads_later_ones() {
    let turns = 20_000;
    let (clock, told) = (Clock::new(), AtomicU64::new(0));
    // Each in turn reads some in a row, and tells the last one to the other.
    let read = |parity: u64| {
        for turn in (0..turns).filter(|turn| turn % 2 == parity) {
            let before = loop {
                let told = told.load(Ordering::Acquire);
                if told >> 63 == parity {
                    break Moment::from_raw(told & !(1 << 63));
                }
                thread::yield_now();
            };
            let mut last = before;
            for _ in 0..turn % 5 {
                let now = clock.tick();
                assert!(now > last, "{now:?} after {last:?}");
                last = now;
            }
            told.store(last.raw() | (1 - parity) << 63, Ordering::Release);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| read(1));
        read(0);
    });
}

#[test]
fn what_was_seen_is_in_the_past_for_every_thread() {
    let clock = Clock::new();
    let ahead = |moment: Moment, by: u64| Moment::from_raw(moment.raw() + by);
    for by in 0..100 {
        // By the thread that reads it over and over, and by another.
        let seen = ahead((0..10).map(|_| clock.tick()).max().unwrap(), by);
        clock.see(seen);
        assert!(clock.last() >= seen && clock.tick() > seen);
        let seen = ahead((0..10).map(|_| clock.tick()).max().unwrap(), by);
        thread::scope(|scope| scope.spawn(|| clock.see(seen)).join().unwrap());
        assert!(clock.last() >= seen && clock.tick() > seen, "{by} ahead");
    }
}

#[test]
fn a_thread_that_reads_two_clocks_keeps_them_apart() {
    let (one, other) = (Clock::new(), Clock::new());
    let (mut of_one, mut of_other) = (one.tick(), other.tick());
    for _ in 0..1000 {
        let (next, next_other) = (one.tick(), other.tick());
        assert!(next > of_one && next_other > of_other);
        (of_one, of_other) = (next, next_other);
    }
    one.see(Moment::from_raw(of_one.raw() + (1 << 40)));
    assert!(other.tick().raw() < of_one.raw() + (1 << 40));
}

#[test]
fn a_reading_after_a_rest_has_the_time_of_the_system() {
    let clock = Clock::new();
    for _ in 0..20 {
        let read: Vec<_> = (0..5).map(|_| clock.tick()).collect();
        assert!(read.is_sorted());
        thread::sleep(Duration::from_millis(3));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let read = clock.tick().since_epoch();
        assert!(read + Duration::from_millis(1) > now, "{read:?} is before {now:?}");
    }
}

#[test]
fn a_moment_that_cannot_be_believed_leaves_the_clock_as_it_is() {
    let clock = Clock::new();
    let mut last = clock.tick();
    for damaged in (0..40).map(|n| Moment::from_raw(u64::MAX - n)) {
        clock.see(damaged);
        let (observed, read) = (clock.observe(damaged), clock.tick());
        assert!(last < observed && observed < read && read < damaged, "{last:?} {observed:?} {read:?}");
        last = read;
    }
    // The last that is believed leaves room for all that come after it.
    clock.see(Moment::from_raw(u64::MAX - (u64::MAX >> 4)));
    let read: Vec<_> = (0..1000).map(|_| clock.tick()).collect();
    assert!(read.is_sorted_by(|one, next| one < next) && read[0] > last);
}

/// Whether this was built without optimization, as far as one can tell.
fn is_slow() -> bool {
    cfg!(debug_assertions) && std::env::var_os("MILLRACE_TEST_OPTIMIZED").is_none()
}
