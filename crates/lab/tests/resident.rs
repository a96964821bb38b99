//! The groups for resident kernels yield rows, with peers, targets and a row for every device that can do it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::HashMap, time::Duration};

use millrace::resident::{Handler, LaunchOptions, Message, Scope, WaitPolicy};
use millrace_lab::{
    interactive,
    report::{Report, Row},
    resident::{
        self, Effort,
        kernels::{CELLS, Command, Field, INJECT, READ, STEP, check_field, launched, residential},
    },
    throughput,
};

fn smoke() -> Effort {
    let mut effort = Effort::quick();
    effort.rounds = 1;
    effort.turn = Duration::from_micros(300);
    effort.runs = 1;
    effort
}

/// The rows of a group, by id.
fn rows_of<'a>(report: &'a Report, group: &str) -> HashMap<&'a str, &'a Row> {
    report.rows.iter().filter(|row| row.group == group).map(|row| (row.id.as_str(), row)).collect()
}

fn all_rows_have_numbers(report: &Report) {
    for row in &report.rows {
        assert!(!row.is_error(), "{row:?}");
        assert!(row.p50 > Some(0.0), "{row:?}");
        assert_eq!(row.met.is_some(), row.target.is_some(), "{row:?}");
        assert!(row.is_ours() || row.target.is_none(), "{row:?}");
    }
}

#[test]
fn every_group_of_resident_kernels_has_rows_with_targets_and_all_peers() {
    let mut steps = 0;
    let report = resident::run_groups(&smoke(), &|_| true, &mut |progress| {
        assert_eq!(progress.done, steps);
        assert!(progress.done < progress.total);
        steps += 1;
    });
    all_rows_have_numbers(&report);
    for group in resident::group_names() {
        let ours: Vec<_> = report.rows.iter().filter(|row| row.group == group && row.is_ours()).collect();
        assert!(!ours.is_empty(), "{group}");
        let judged = |row: &&Row| row.target.is_some() || row.side() == "millrace-resident" || row.device != "cpu";
        assert!(ours.iter().all(judged), "{group}");
    }
    let trips = rows_of(&report, "kernel_round_trip");
    for peer in ["limit", "actix/task", "actix/thread", "ractor/task", "kameo/task", "tokio/task", "tokio/thread"] {
        assert!(trips.contains_key(peer), "{peer} in {:?}", trips.keys());
    }
    let crossing = trips["millrace-spin/other-thread"].target.as_ref().unwrap();
    assert!(crossing.contains("2 x limit") && crossing.contains("the fastest actor"), "{crossing}");
    let inline = trips["millrace/same-thread"].target.as_ref().unwrap();
    assert!(!inline.contains("limit") && inline.contains("the fastest actor"), "{inline}");
    assert!(rows_of(&report, "serialization").contains_key("limit/write-2x1000"));
    let on_gpu = report.rows.iter().any(|row| row.device == "gpu");
    assert_eq!(on_gpu, residential().contains(&"gpu"), "the GPU has rows as soon as kernels can live there");
}

/// Counts the questions that were answered by the thread with this name.
struct Whose(std::thread::ThreadId);

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Count {
    by_it: u32,
}

impl Handler for Whose {
    type Message = Count;
    type Reply = Count;
    type State = Count;
    fn state(&self) -> Count {
        Count { by_it: 0 }
    }
    fn handle(&mut self, state: &mut Count, _: &Count, _: &mut Scope<'_, Count>) -> Count {
        state.by_it += u32::from(std::thread::current().id() == self.0);
        *state
    }
}

#[test]
fn questions_cross_a_thread_only_where_the_rows_say_so() {
    let by_asker = |wait: WaitPolicy| {
        let options = LaunchOptions::default().wait(wait);
        let (_device, kernel) = launched("cpu", Whose(std::thread::current().id()), options).unwrap();
        (0..20_000).map(|_| kernel.ask(Count { by_it: 0 }).unwrap().by_it).last().unwrap()
    };
    assert_eq!(by_asker(WaitPolicy::Spin), 0, "`other-thread` is one");
    assert!(by_asker(WaitPolicy::Adaptive) > 0, "`same-thread` is the asker's");
}

#[test]
fn the_interactive_table_has_every_row_of_both_ways() {
    let report = interactive::run_groups(&smoke(), &|_| true, &mut |_| ());
    all_rows_have_numbers(&report);
    let inject = rows_of(&report, "inject_command");
    for id in ["millrace/enqueue", "millrace/pick-up", "millrace/round-trip", "launch/enqueue", "launch/round-trip"] {
        assert!(inject.contains_key(id), "{id} in {:?}", inject.keys());
    }
    assert!(rows_of(&report, "query_state").contains_key("millrace/telemetry"));
    assert!(rows_of(&report, "single_step")["millrace"].target.is_some());
    let mixed = rows_of(&report, "mixed_workload");
    for case in ["each-acknowledged", "pipelined"] {
        let factor = mixed[format!("millrace/{case}-over-launch").as_str()];
        let (ours, theirs) = (mixed[format!("millrace/{case}").as_str()], mixed[format!("launch/{case}").as_str()]);
        assert!((factor.p50.unwrap() - theirs.p50.unwrap() / ours.p50.unwrap()).abs() < 1e-9, "{factor:?}");
    }
    // One over launches in the caller's own thread is only reported.
    assert!(mixed["millrace/each-acknowledged-over-launch-submit"].target.is_some());
    let frame = rows_of(&report, "operations_per_frame");
    let (ours, theirs) = (frame["millrace"].p50.unwrap(), frame["launch"].p50.unwrap());
    assert!((frame["millrace/over-launch"].p50.unwrap() - ours / theirs).abs() < 1e-9, "more is better there");
}

#[test]
fn throughput_compares_the_engines_over_sizes() {
    let mut effort = smoke();
    effort.small = false;
    let report = throughput::run_groups(&effort, &|name| name != "wave_128", &mut |_| ());
    all_rows_have_numbers(&report);
    for group in ["wave_8", "wave_16", "wave_32", "wave_64"] {
        let rows = rows_of(&report, group);
        for side in ["millrace-launch", "millrace-resident", "reference"] {
            assert!(rows.contains_key(side), "{group}: {side}");
        }
    }
    let quick = throughput::run_groups(&smoke(), &|_| true, &mut |_| ());
    assert!(quick.rows.iter().all(|row| row.group == "wave_8"));
}

#[test]
fn a_field_that_forgets_a_command_is_noticed() {
    let mut field = Field::STILL;
    assert_eq!(field.apply(&Command::nth(INJECT, 3)), 0.25);
    assert!(field.apply(&Command::nth(STEP, 3)) > 0.25, "it goes on as it was");
    assert_eq!(field.apply(&Command::nth(READ, CELLS as u32 + 3)), field.apply(&Command::nth(READ, 3)));

    let run = |forget: bool| {
        let field = std::cell::RefCell::new(Field::STILL);
        let mut count = 0;
        let command = |command| {
            count += 1;
            if !forget || count != 20 {
                field.borrow_mut().apply(&command);
            }
            Ok(())
        };
        check_field(command, |cell| Ok(field.borrow_mut().apply(&Command::nth(READ, cell))))
    };
    assert!(run(false).is_ok());
    assert!(run(true).is_err());
}
