//! Groups in processes of their own: whatever befalls one is a row, and nothing of it is left.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use millrace_lab::isolated::{Ended, Isolated};

/// Runs a script in the place of a group.
fn script(text: &str, timeout: Duration, stop: &dyn Fn() -> bool) -> Ended {
    let mut command = Command::new("sh");
    command.args(["-c", text]);
    Isolated { command, timeout, patience: Duration::from_millis(500) }.run("group", stop, &mut |_| ())
}

fn why(ended: &Ended) -> &str {
    let row = ended.rows.last().unwrap();
    assert!(row.is_error() && row.met == Some(false) && row.group == "group" && row.is_ours(), "{row:?}");
    row.target.as_deref().unwrap()
}

const LONG: Duration = Duration::from_secs(30);
const ROW: &str = r#"{"row":{"group":"group","id":"millrace","device":"cpu","unit":"ns","p50":7,"p99":8,"mean":7.5,"target":null,"met":null,"better":"lower"}}"#;

#[test]
fn rows_and_steps_arrive_and_everything_else_is_not_taken_for_one() {
    let mut command = Command::new("sh");
    let step = r#"{"step":{"side":"a","done":1,"total":2}}"#;
    command.args(["-c", &format!("echo hello; echo '{step}'; echo '{ROW}'; echo '\"end\"'")]);
    let mut steps = Vec::new();
    let isolated = Isolated { command, timeout: LONG, patience: LONG };
    let ended = isolated.run("group", &|| false, &mut |step| steps.push(step.clone()));
    assert_eq!((ended.rows.len(), ended.rows[0].p50, ended.stopped), (1, Some(7.0), false));
    assert_eq!((steps.len(), steps[0].done, &*steps[0].side), (1, 1, "a"));
}

#[test]
fn a_crash_is_a_row_with_the_signal_and_the_last_lines_and_what_was_measured_stays() {
    let ended = script(&format!("echo '{ROW}'; echo one; echo two >&2; kill -SEGV $$"), LONG, &|| false);
    assert_eq!((ended.rows.len(), ended.rows[0].p50), (2, Some(7.0)));
    let why = why(&ended);
    assert!(why.contains("SIGSEGV") && why.contains("one") && why.contains("two"), "{why}");
}

#[test]
fn codes_early_ends_and_programs_that_are_not_there_are_rows() {
    assert!(why(&script("echo no; exit 3", LONG, &|| false)).contains("code 3"));
    assert!(why(&script("true", LONG, &|| false)).contains("before it was done"));
    let command = Command::new("/nonexistent/program");
    let ended = Isolated { command, timeout: LONG, patience: LONG }.run("group", &|| false, &mut |_| ());
    assert!(why(&ended).contains("cannot be started"));
}

/// Whether a process with this in its command line is there.
fn is_there(mark: &str) -> bool {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.into_iter().any(|line| String::from_utf8_lossy(&line).contains(mark))
}

fn until_gone(mark: &str) {
    let deadline = Instant::now() + LONG;
    while is_there(mark) {
        assert!(Instant::now() < deadline, "{mark} is still there");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_hang_ends_after_its_timeout_with_everything_it_started() {
    let start = Instant::now();
    let ended = script("echo begun; sleep 97.25 & sleep 97.25", Duration::from_millis(300), &|| false);
    assert!(start.elapsed() < LONG);
    let why = why(&ended);
    assert!(why.contains("said nothing for 300ms") && why.contains("begun"), "{why}");
    until_gone("97.25");
}

#[test]
fn the_clock_begins_anew_with_everything_that_is_said() {
    let step = r#"{"step":{"side":"a","done":1,"total":2}}"#;
    let text = format!("for i in 1 2 3 4 5 6; do echo '{step}'; sleep 0.25; done; echo '\"end\"'");
    let ended = script(&text, Duration::from_secs(1), &|| false);
    assert!(ended.rows.is_empty() && !ended.stopped, "{ended:?}");
}

#[test]
fn a_stop_is_said_to_the_process_and_what_it_answers_is_kept() {
    let late = ROW.replace("\"p50\":7", "\"interrupted\":true,\"p50\":9");
    let ended = script(&format!("read line; echo \"$line\"; echo '{late}'; echo '\"end\"'"), LONG, &|| true);
    assert!(ended.stopped);
    let rows: Vec<_> = ended.rows.iter().map(|row| (row.p50, row.interrupted)).collect();
    assert_eq!(rows, [(Some(9.0), true)]);
    // One that falls meanwhile is still a row that says so.
    let ended = script("read line; exit 3", LONG, &|| true);
    assert!(ended.stopped && why(&ended).contains("code 3"), "{ended:?}");
}

#[test]
fn a_stop_that_is_not_heeded_keeps_the_rows_and_leaves_nothing() {
    let stop = AtomicBool::new(false);
    let ended = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(400));
            stop.store(true, Ordering::Relaxed);
        });
        script(&format!("echo '{ROW}'; sleep 98.25"), LONG, &|| stop.load(Ordering::Relaxed))
    });
    assert!(ended.stopped);
    assert_eq!((ended.rows.len(), ended.rows[0].p50), (1, Some(7.0)));
    until_gone("98.25");
}
