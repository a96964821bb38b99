//! The lab itself is checked: sides deliver, groups yield rows, reports keep their form.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::{collections::HashMap, thread, time::Duration};

use millrace_lab::{
    Message, Parcel,
    commands::{Effort, group_names, run_groups},
    peers::*,
    report::{Report, Row},
    workloads::{self, CAPACITY, Flow, RoundTrip},
};

/// More than any queue holds, so that both ends wait.
const MESSAGES: u64 = 20_000;

fn delivers<P: Link<u64>>() {
    let (mut tx, mut rx) = P::pair(16);
    let producer = thread::spawn(move || (0..MESSAGES).all(|n| tx.send(n).is_ok()));
    for expected in 0..MESSAGES {
        assert_eq!(rx.recv(), Some(expected), "{}", P::NAME);
    }
    assert_eq!(rx.recv(), None, "{}: the sender is gone", P::NAME);
    assert!(producer.join().unwrap());
}

#[test]
fn every_peer_delivers_every_message_once_and_in_order() {
    delivers::<Millrace>();
    delivers::<MillraceSpsc>();
    delivers::<Crossbeam>();
    delivers::<Kanal>();
    delivers::<Flume>();
    delivers::<Std>();
    delivers::<TokioMpsc>();
    delivers::<MutexYield>();
    delivers::<MutexCondvar>();
    delivers::<Limit>();
}

fn is_bounded<P: Link<u64>>() {
    let (mut tx, mut rx) = P::pair(4);
    assert!((0..4).all(|n| tx.try_send(n).is_ok()), "{}", P::NAME);
    assert_eq!(tx.try_send(4), Err(4), "{}: a fifth message does not fit", P::NAME);
    assert_eq!(rx.try_recv(), Some(0));
    assert_eq!(tx.try_send(4), Ok(()));
    assert!((1..5).all(|n| rx.try_recv() == Some(n)));
    assert_eq!(rx.try_recv(), None);
    drop(rx);
    assert!(tx.send(5).is_err(), "{}: nobody would receive it", P::NAME);
}

#[test]
fn every_peer_is_bounded_and_hands_back_what_does_not_fit() {
    is_bounded::<Millrace>();
    is_bounded::<MillraceSpsc>();
    is_bounded::<Crossbeam>();
    is_bounded::<Kanal>();
    is_bounded::<Flume>();
    is_bounded::<Std>();
    is_bounded::<TokioMpsc>();
    is_bounded::<MutexYield>();
    is_bounded::<MutexCondvar>();
}

fn answers<P: Service>() {
    let mut server = RoundTrip::start::<P>().unwrap();
    for message in [Message::small(), Message::medium(), Message::large(&millrace_lab::payload(1024))] {
        for _ in 0..100 {
            server.ask(message.clone(), message.clone().consume()).unwrap();
        }
    }
}

#[test]
fn every_service_answers_every_request() {
    answers::<Millrace>();
    answers::<Crossbeam>();
    answers::<Kanal>();
    answers::<Flume>();
    answers::<Std>();
    answers::<TokioMpsc>();
    answers::<TokioBroadcast>();
    answers::<MutexYield>();
    answers::<MutexCondvar>();
    answers::<Limit>();
    answers::<Parked>();
}

#[test]
fn an_asker_learns_that_the_server_is_gone() {
    fn check<P: Service>() {
        let (mut client, server) = P::connect(4);
        drop(server);
        assert_eq!(client.ask(Message::small()), Err(Gone), "{}", P::NAME);
    }
    check::<Millrace>();
    check::<Crossbeam>();
    check::<MutexYield>();
    check::<MutexCondvar>();
    check::<Limit>();
    check::<Parked>();
}

#[test]
fn a_flow_counts_what_the_consumer_saw() {
    let mut flow = Flow::start::<Millrace>(CAPACITY, 1000).unwrap();
    for _ in 0..10 {
        flow.batch(&Message::medium()).unwrap();
    }
    flow.finish().unwrap();
}

#[test]
fn back_pressure_holds_the_producer_and_loses_nothing() {
    let work = Duration::from_micros(10);
    let pressure = workloads::backpressure::<Millrace>(100, 1000, work, &Message::medium()).unwrap();
    assert_eq!(pressure.lost, 0);
    assert!(pressure.depth <= 100, "{pressure:?}");
    assert!(pressure.total >= work * 1000, "the consumer really worked: {pressure:?}");
}

fn smoke() -> Effort {
    let mut effort = Effort::quick();
    effort.rounds = 1;
    effort.turn = Duration::from_millis(1);
    effort.runs = 1;
    effort.each = 200;
    effort.overloaded = Duration::from_millis(5);
    effort
}

/// Rows that may well be zero.
fn can_be_zero(row: &Row) -> bool {
    matches!(row.case(), "lost" | "depth" | "producer-cpu")
}

#[test]
fn every_group_yields_a_row_per_side_with_numbers_and_our_rows_have_targets() {
    let mut steps = 0;
    let report = run_groups(&smoke(), &|_| true, &mut |progress| {
        assert_eq!(progress.done, steps);
        assert!(progress.done < progress.total);
        steps += 1;
    });
    let mut sides: HashMap<&str, Vec<&str>> = HashMap::new();
    for row in &report.rows {
        assert!(!row.is_error(), "{row:?}");
        assert!(can_be_zero(row) || row.p50 > Some(0.0), "{row:?}");
        sides.entry(&row.group).or_default().push(row.side());
        let computed = row.case() == "over-mutex-yield";
        assert_eq!(row.target.is_some(), row.is_ours() && !computed, "{row:?}");
        let undecided = row.target.as_ref().is_some_and(|target| target.contains("[undecided"));
        assert_eq!(row.met.is_some(), row.target.is_some() && !undecided, "{row:?}");
    }
    assert_eq!(group_names().len(), sides.len());
    for group in group_names() {
        assert!(sides[group].iter().any(|side| side.starts_with("millrace")), "{group}");
    }
    let channels = ["crossbeam", "kanal", "flume", "std", "tokio-mpsc", "mutex-yield", "mutex-condvar"];
    let compared = ["channel_send_latency", "round_trip_latency", "after_idle", "throughput_1to1", "throughput_4to1"];
    for group in compared.into_iter().chain(["contention", "backpressure", "overload_1to1", "overload_4to1"]) {
        for channel in channels {
            assert!(sides[group].contains(&channel), "{channel} in {group}");
        }
    }
    for group in ["channel_send_latency", "round_trip_latency", "after_idle", "throughput_1to1", "backpressure"] {
        assert!(sides[group].contains(&"limit"), "{group}");
    }
}

#[test]
fn a_report_has_the_promised_form_and_can_be_read_back() {
    let report = run_groups(&smoke(), &|group| group == "bytes_clone", &mut |_| ());
    let json = report.to_json().unwrap();
    assert_eq!(serde_json::from_str::<Report>(&json).unwrap(), report);

    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(&value), ["machine", "rows", "schema"]);
    assert_eq!(value["schema"], 1);
    let fields = ["better", "device", "group", "id", "mean", "met", "p50", "p99"];
    let fields = [&fields[..], &["rounds", "samples", "spread", "target", "unit"]].concat();
    let rows = value["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 6, "three sizes, cloned and copied");
    for row in rows {
        let mut found = keys(row);
        found.retain(|key| key != "p999"); // only where there are enough samples
        // On a machine that is busy enough a turn gets a single sample, which has no distribution.
        let mut wanted = fields.clone();
        wanted.retain(|field| *field != "spread" || row["samples"] != 1);
        assert_eq!(found, wanted);
        assert_eq!(row["better"], "lower");
        assert_eq!(row["device"], "cpu");
        let ours = row["id"].as_str().unwrap().starts_with("millrace/");
        assert_eq!(row["target"].is_string(), ours);
        assert_eq!(row["met"].is_boolean(), ours);
    }
    let machine = &value["machine"];
    for field in ["cpu", "cores", "memory", "os", "kernel", "load", "others", "version", "commit", "date"] {
        assert!(machine.get(field).is_some(), "{field}");
    }
}
