//! The `millrace` command as a user or a script calls it.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    path::PathBuf,
    process::{Command, Output},
    sync::{Mutex, PoisonError},
};

use serde_json::Value;
use tempfile::TempDir;

/// One run at a time: most of them keep all cores busy, and some measure.
static MACHINE: Mutex<()> = Mutex::new(());

/// Runs the command.
fn millrace(arguments: &[&str]) -> Output {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    Command::new(env!("CARGO_BIN_EXE_millrace")).args(arguments).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// A file or folder of this test's own, gone with it.
struct Scratch(PathBuf, #[allow(dead_code, reason = "it removes itself")] TempDir);

impl Scratch {
    fn new(name: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        Self(folder.path().join(name), folder)
    }
}

#[test]
fn the_tour_checks_real_work_and_says_what_it_cost() {
    let output = millrace(&[]);
    let text = stdout(&output);
    assert!(output.status.success(), "{text}");
    for part in ["Devices", "not available", "Real work on cpu", "submit a command", "All well"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(!text.contains("FAILED"), "{text}");
}

#[test]
fn devices_as_json_have_the_documented_fields() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    // As on a machine without a desktop session, where a layer of the driver would complain.
    let output = command.args(["devices", "--json"]).env_remove("NODEVICE_SELECT").env_remove("XDG_RUNTIME_DIR");
    let output = output.output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let listing: Value = serde_json::from_slice(&output.stdout).unwrap();
    let devices = listing["devices"].as_array().unwrap();
    for device in devices {
        assert!(["cpu", "gpu", "cuda"].contains(&device["kind"].as_str().unwrap()));
        let (available, reason) = (device["available"].as_bool().unwrap(), device["reason"].as_str());
        assert_eq!(available, reason.is_none(), "a device is available or says why not: {device}");
    }
    let cpu = devices.iter().find(|device| device["id"] == "cpu").unwrap();
    assert_eq!(cpu["available"], true);
    assert!(cpu["memory"].as_u64().unwrap() > 0);
    assert!(cpu["details"]["simd"].is_string());
}

#[test]
fn wrong_usage_is_code_2_and_help_helps() {
    assert_eq!(millrace(&["bench", "nonsense"]).status.code(), Some(2));
    assert_eq!(millrace(&["--nonsense"]).status.code(), Some(2));
    let help = stdout(&millrace(&["--help"]));
    for part in ["devices", "bench", "tour"] {
        assert!(help.contains(part), "no {part:?} in\n{help}");
    }
}

#[test]
fn a_file_that_cannot_be_written_is_said_before_the_run() {
    let output = millrace(&["bench", "commands", "--json", "/nonexistent/rows.json"]);
    assert_eq!(output.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/nonexistent/rows.json"));
    assert!(output.stdout.is_empty(), "nothing was measured");
}

#[test]
fn a_quick_bench_writes_the_documented_rows() {
    let file = Scratch::new("rows.json");
    let output = millrace(&["bench", "commands", "--quick", "--json", file.0.to_str().unwrap()]);
    assert!(output.status.success(), "{}\n{}", stdout(&output), String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file.0).unwrap()).unwrap();
    assert_eq!(report["schema"], 1);
    assert!(report["machine"].is_object());
    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        for field in ["group", "id", "device", "unit"] {
            assert!(row[field].is_string(), "{field} in {row}");
        }
        for field in ["p50", "p99", "mean"] {
            assert!(row[field].as_f64().is_some_and(|n| n.is_finite()), "{field} in {row}");
        }
        assert!(["lower", "higher"].contains(&row["better"].as_str().unwrap()));
        assert!(row["met"].is_null() || row["target"].is_string(), "a verdict without a target: {row}");
    }
    for peer in
        ["millrace", "crossbeam", "kanal", "flume", "std", "tokio-mpsc", "mutex-yield", "mutex-condvar", "limit"]
    {
        let here = rows.iter().any(|row| row["id"].as_str().is_some_and(|id| id.split('/').next() == Some(peer)));
        assert!(here, "no row of {peer}");
    }
    let parts = std::fs::read_dir(file.0.parent().unwrap()).unwrap();
    let name = file.0.file_name().unwrap().to_str().unwrap().to_owned() + ".";
    assert!(!parts.flatten().any(|f| f.file_name().to_string_lossy().starts_with(&name)), "nothing is left behind");
}

#[test]
fn the_benches_of_resident_kernels_write_rows_and_say_what_was_met() {
    let runs = [
        (["resident", "query_state"], "millrace/while-busy"),
        (["interactive", "single_step"], "millrace/over-launch"),
        (["throughput", "wave_32"], "reference"),
    ];
    for ([group, filter], wanted) in runs {
        let file = Scratch::new(&format!("{group}.json"));
        let output = millrace(&["bench", group, filter, "--quick", "--json", file.0.to_str().unwrap()]);
        assert!(output.status.success(), "{}\n{}", stdout(&output), String::from_utf8_lossy(&output.stderr));
        assert!(stdout(&output).contains("targets met"), "{}", stdout(&output));
        let report: Value = serde_json::from_str(&std::fs::read_to_string(&file.0).unwrap()).unwrap();
        let rows = report["rows"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["group"] == filter && row["p50"].is_number()), "{report}");
        assert!(rows.iter().any(|row| row["id"] == wanted), "no {wanted} in {report}");
    }
    assert_eq!(millrace(&["bench", "interactive", "nonsense"]).status.code(), Some(2));
}

/// The rows of a report: group, id and device of each.
fn rows_of(report: &Value) -> Vec<(String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let rows = report["rows"].as_array().unwrap();
    rows.iter().map(|row| (text(&row["group"]), text(&row["id"]), text(&row["device"]))).collect()
}

fn bench_to(file: &Scratch, arguments: &[&str]) -> (Output, Value) {
    let json = ["--quick", "--json", file.0.to_str().unwrap()];
    let output = millrace(&[&["bench"], arguments, &json].concat());
    let said = format!("{}\n{}", stdout(&output), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    (output, serde_json::from_str(&std::fs::read_to_string(&file.0).unwrap()).unwrap())
}

#[test]
fn every_group_has_a_process_of_its_own_and_their_order_does_not_matter() {
    let file = Scratch::new("order.json");
    let (output, one) = bench_to(&file, &["bytes_clone", "query_state", "--device", "cpu"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("1 of 3: commands bytes_clone, 6 rows in"), "{said}");
    let (_, other) = bench_to(&file, &["query_state", "--device", "cpu", "bytes_clone"]);
    assert_eq!(rows_of(&one), rows_of(&other));
    assert!(rows_of(&one).iter().all(|(.., device)| device == "cpu"));
    let clone = one["rows"].as_array().unwrap().iter().find(|row| row["id"] == "millrace/1024").unwrap();
    assert!(clone["samples"].as_u64().unwrap() > 100 && clone["spread"].as_array().unwrap().len() == 21, "{clone}");
    assert_eq!(clone["p999"].is_number(), clone["samples"].as_u64().unwrap() >= 10_000, "{clone}");
}

#[test]
fn devices_are_chosen_and_unknown_ones_are_answered_with_those_there_are() {
    let output = millrace(&["bench", "query_state", "--device", "cpu,quantum:7"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == Some(3) && said.contains("quantum:7") && said.contains("there is cpu"), "{said}");
    assert_eq!(millrace(&["bench", "gpu", "--device", "cpu"]).status.code(), Some(2), "nothing to measure");
    if millrace::runtime().open("gpu:0").is_ok() {
        let file = Scratch::new("device.json");
        let (_, report) = bench_to(&file, &["resident", "query_state", "--device", "gpu:0"]);
        let rows = rows_of(&report);
        assert!(!rows.is_empty() && rows.iter().all(|(.., device)| device == "gpu:0"), "{rows:?}");
        assert!(report["machine"]["driver"].is_string(), "{}", report["machine"]);
    }
}

#[test]
fn a_group_that_hangs_is_a_row_and_the_others_go_on() {
    let file = Scratch::new("hangs.json");
    // Nobody waits for a sleeping server in ten milliseconds on this machine; cloning takes less.
    let arguments = ["bench", "wave_128", "bytes_clone", "--device", "cpu", "--timeout", "0.01"];
    let output = millrace(&[&arguments[..], &["--json", file.0.to_str().unwrap()]].concat());
    assert_eq!(output.status.code(), Some(4), "{}", stdout(&output));
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&file.0).unwrap()).unwrap();
    let rows = report["rows"].as_array().unwrap();
    let late = |row: &&Value| row["target"].as_str().is_some_and(|text| text.contains("did not finish within"));
    assert!(rows.iter().any(|row| row["group"] == "wave_128" && late(&row)), "{report}");
    assert!(rows.iter().any(|row| row["group"] == "bytes_clone"), "{report}");
}

#[cfg(unix)]
#[test]
fn an_interrupted_bench_keeps_what_was_measured_and_leaves_nothing_behind() {
    let file = Scratch::new("stopped.json");
    for (signal, keeps) in [("-INT", true), ("-KILL", false)] {
        let arguments = ["bench", "bytes_clone", "overload", "--json", file.0.to_str().unwrap()];
        let mut run = Command::new(env!("CARGO_BIN_EXE_millrace"));
        let pipe = std::process::Stdio::piped;
        let mut run = run.args(arguments).stdout(pipe()).stderr(pipe()).spawn().unwrap();
        // The first group is over.
        let mut line = String::new();
        let mut errors = std::io::BufReader::new(run.stderr.take().unwrap());
        std::io::BufRead::read_line(&mut errors, &mut line).unwrap();
        assert!(line.contains("bytes_clone"), "{line}");
        std::thread::sleep(std::time::Duration::from_millis(300));
        let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).unwrap();
        let child = children.split_whitespace().next().unwrap_or_default().to_owned();
        assert!(Command::new("kill").args([signal, &run.id().to_string()]).status().unwrap().success());
        let output = run.wait_with_output().unwrap();
        if keeps {
            assert_eq!(output.status.code(), Some(130), "{}", stdout(&output));
            let report: Value = serde_json::from_str(&std::fs::read_to_string(&file.0).unwrap()).unwrap();
            let rows = rows_of(&report);
            assert!(rows.len() >= 6 && rows.iter().any(|(group, ..)| group == "bytes_clone"), "{rows:?}");
        }
        let there = || !child.is_empty() && std::path::Path::new(&format!("/proc/{child}")).exists();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while there() {
            assert!(std::time::Instant::now() < deadline, "{child} is still there after {signal}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

/// A run that says every turn, until some of its only group's turns are over.
#[cfg(unix)]
fn bench_under_way(folder: &std::path::Path, json: &Scratch) -> (std::process::Child, std::thread::JoinHandle<String>) {
    use std::io::{BufRead, Read as _};
    let pipe = std::process::Stdio::piped;
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(["bench", "channel_send_latency", "--follow", "--save", "cut", "--json", json.0.to_str().unwrap()]);
    command.env("MILLRACE_HISTORY", folder).stdin(pipe()).stdout(pipe()).stderr(pipe());
    let mut run = command.spawn().unwrap();
    let mut out = std::io::BufReader::new(run.stdout.take().unwrap());
    let mut line = String::new();
    // Eleven sides, thirty rounds.
    while serde_json::from_str::<Value>(&line).ok().and_then(|going| going["done"].as_u64()).unwrap_or(0) < 25 {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "it ended by itself");
    }
    let rest = std::thread::spawn(move || {
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        rest
    });
    (run, rest)
}

#[cfg(unix)]
fn interrupt(run: &std::process::Child) {
    assert!(Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap().success());
}

#[cfg(unix)]
#[test]
fn a_group_that_is_interrupted_keeps_its_rows_without_a_verdict() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let (json, folder) = (Scratch::new("cut.json"), tempfile::tempdir().unwrap());
    let (mut run, rest) = bench_under_way(folder.path(), &json);
    let _input = run.stdin.take(); // it ends at once with that
    interrupt(&run);
    let output = run.wait_with_output().unwrap();
    let (said, shown) = (String::from_utf8_lossy(&output.stderr).into_owned(), rest.join().unwrap());
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("stopped after 0 of 1 groups and in the middle of channel_send_latency"), "{said}");
    assert!(shown.contains("interrupted after") && shown.contains("kept as cut"), "{shown}");
    for file in [json.0.clone(), folder.path().join("cut.json")] {
        let report: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 44, "every side had a turn with its four cases: {report}");
        for row in rows {
            let rounds = row["rounds"].as_array().unwrap().len();
            assert!(row["p50"].is_number() && (2..30).contains(&rounds), "{row}");
            assert!(row["interrupted"] == true && row["met"].is_null(), "a verdict was drawn: {row}");
        }
    }
}

#[cfg(unix)]
#[test]
fn a_second_interrupt_ends_a_bench_at_once() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    let (json, folder) = (Scratch::new("twice.json"), tempfile::tempdir().unwrap());
    let (mut run, _rest) = bench_under_way(folder.path(), &json);
    let _input = run.stdin.take(); // it ends at once with that
    // Frozen, the group cannot answer the first.
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", run.id())).unwrap();
    let child = children.split_whitespace().next().unwrap().to_owned();
    let signal = |signal: &str| assert!(Command::new("kill").args([signal, &child]).status().unwrap().success());
    signal("-STOP");
    let start = std::time::Instant::now();
    interrupt(&run);
    std::thread::sleep(std::time::Duration::from_millis(300));
    interrupt(&run);
    let output = run.wait_with_output().unwrap();
    let took = start.elapsed();
    signal("-CONT");
    assert!(output.status.code() == Some(130) && !json.0.exists(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(took < millrace_lab::isolated::PATIENCE, "{took:?}");
}

#[test]
fn every_row_that_a_promised_figure_is_about_is_measured() {
    let file = Scratch::new("targets.json");
    let (output, report) = bench_to(&file, &["--targets"]);
    assert!(stdout(&output).contains("promised figures reached"), "{}", stdout(&output));
    let rows = rows_of(&report);
    let gpu = millrace::runtime().open("gpu").is_ok();
    for target in millrace_lab::seeds::targets() {
        for id in target.ids.iter().filter(|id| gpu || !id.contains("gpu") && target.suite != "gpu") {
            let row = report["rows"]
                .as_array()
                .unwrap()
                .iter()
                .find(|row| row["group"] == *target.group && row["id"] == **id);
            let row = row.unwrap_or_else(|| panic!("no {id} in {}: {rows:?}", target.group));
            assert!(target.metric != millrace_lab::seeds::Figure::P50 || row["unit"] == *target.unit, "{row}");
        }
    }
}

#[test]
fn validate_as_json_has_the_documented_rows() {
    let output = millrace(&["validate", "--device", "cpu", "--quick", "--json"]);
    assert!(output.status.success(), "{}", stdout(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = report["rows"].as_array().unwrap();
    for row in rows {
        assert!(row["op"].is_string() && row["size"].is_string(), "{row}");
        assert_eq!((&row["device"], &row["ok"]), (&Value::from("cpu"), &Value::from(true)), "{row}");
        assert!(row["error"].as_f64().unwrap() <= row["tolerance"].as_f64().unwrap(), "{row}");
        assert!(row["why"].is_null(), "{row}");
    }
    assert_eq!(report["failed"], Value::Array(Vec::new()));
    for op in ["add", "exp", "matmul", "softmax", "sum"] {
        assert!(rows.iter().any(|row| row["op"].as_str().is_some_and(|name| name.contains(op))), "no row of {op}");
    }
    assert_eq!(millrace(&["validate", "--device", "nonsense"]).status.code(), Some(3));
}

#[test]
fn top_shows_what_a_program_publishes_and_forgets_what_a_killed_one_left() {
    let device = millrace::runtime().open("cpu").unwrap();
    let kept = device.allocate(1 << 20).unwrap();
    let publication = device.publish(&millrace::published_folder()).unwrap();
    let left = publication.path().with_file_name("999999999-1.json");
    std::fs::copy(publication.path(), &left).unwrap();
    std::fs::File::open(&left).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();

    let listing: Value = serde_json::from_slice(&millrace(&["top", "--json"]).stdout).unwrap();
    let ours: Vec<_> =
        listing["contexts"].as_array().unwrap().iter().filter(|entry| entry["pid"] == std::process::id()).collect();
    assert_eq!(ours.len(), 1, "{listing}");
    assert_eq!((&ours[0]["device"], &ours[0]["state"]), (&Value::from("cpu"), &Value::from("healthy")));
    assert!(ours[0]["memory_in_use"].as_u64().unwrap() >= kept.len() as u64);
    assert!(!left.exists(), "nobody is behind it any more");

    let pid = std::process::id().to_string();
    let text = stdout(&millrace(&["top", "--once", "--interval", "0.1"]));
    assert!(text.lines().any(|line| line.contains(&pid) && line.contains("1.0 MiB")), "{text}");
    drop(publication);
    let listing: Value = serde_json::from_slice(&millrace(&["top", "--json"]).stdout).unwrap();
    assert!(!listing.to_string().contains(&format!("\"pid\":{pid}")), "{listing}");
}

/// Runs `millrace wave` with a small room.
fn wave(arguments: &[&str]) -> Output {
    millrace(&[&["wave", "--headless", "--size", "24", "--steps", "30"], arguments].concat())
}

#[test]
fn a_wave_run_writes_a_picture_and_says_how_fast_it_was() {
    let file = Scratch::new("wave.png");
    let output = wave(&["--png", file.0.to_str().unwrap()]);
    let text = stdout(&output);
    assert!(output.status.success(), "{text}");
    for part in ["24 × 24 × 24", "launch on cpu", "30 in", "cells per second", "energy"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    assert!(output.stderr.is_empty(), "no progress bar for a brief run");
    let picture = std::fs::read(&file.0).unwrap();
    assert!(picture.starts_with(b"\x89PNG\r\n\x1a\n") && picture.len() > 500);
    let size = |at: usize| u32::from_be_bytes(picture[at..at + 4].try_into().unwrap());
    assert_eq!((size(16), size(20)), (528, 528), "small rooms are shown large");
}

#[test]
fn engines_and_devices_give_a_wave_the_same_energy() {
    let energy = |arguments: &[&str]| {
        let output = wave(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&report["size"], &report["steps"]), (&serde_json::json!([24, 24, 24]), &serde_json::json!(30)));
        assert!(report["cells_per_second"].as_f64().unwrap() > 0.0);
        report["energy"].as_f64().unwrap()
    };
    let reference = energy(&["--engine", "reference"]);
    assert!(reference > 0.0);
    assert_eq!(energy(&["--engine", "launch", "--device", "cpu"]), reference);
    assert_eq!(energy(&["--engine", "resident"]), reference);
    assert_ne!(energy(&["--boundary", "reflecting"]), reference);
    assert_ne!(energy(&["--scene", "ball"]), reference);
    assert_ne!(energy(&["--source", "ricker"]), reference);
    if millrace::runtime().open("gpu").is_ok() {
        for engine in ["launch", "resident"] {
            assert!((energy(&["--device", "gpu", "--engine", engine]) / reference - 1.0).abs() < 1e-4);
        }
    }
}

#[test]
fn a_wave_run_that_cannot_be_says_why() {
    let refused = |arguments: &[&str], code: i32, part: &str| {
        let output = millrace(&[&["wave", "--headless"], arguments].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
        assert!(text.contains(part), "no {part:?} in\n{text}");
    };
    refused(&["--size", "0"], 2, "--size");
    refused(&["--size", "70000"], 2, "too large");
    refused(&["--steps", "0"], 2, "--steps");
    refused(&["--engine", "magic"], 2, "magic");
    refused(&["--engine", "reference", "--device", "cpu"], 2, "no device");
    refused(&["--device", "nonsense"], 3, "nonsense");
    refused(&["--png", "/nonexistent/wave.png"], 4, "/nonexistent/wave.png");
}

#[cfg(unix)]
#[test]
fn a_wave_run_that_is_interrupted_ends_soon_and_leaves_nothing() {
    let file = Scratch::new("stopped.png");
    let arguments = ["wave", "--size", "32", "--steps", "1000000000", "--png", file.0.to_str().unwrap()];
    let mut run = Command::new(env!("CARGO_BIN_EXE_millrace"));
    let run = run.args(arguments).stderr(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    let killed = Command::new("kill").args(["-INT", &run.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let start = std::time::Instant::now();
    let output = run.wait_with_output().unwrap();
    assert!(start.elapsed().as_secs() < 10);
    assert_eq!(output.status.code(), Some(130));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("stopped after") && text.contains("of 1000000000 steps"), "{text}");
    assert!(!file.0.exists());
}

#[test]
fn layout_shows_the_blocks_and_their_constants() {
    let text = stdout(&millrace(&["layout"]));
    for part in ["ControlBlock, 128 bytes", "Telemetry, 64 bytes", "slot, 48 bytes", "status"] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
    let listing: Value = serde_json::from_slice(&millrace(&["layout", "--json"]).stdout).unwrap();
    let constants = stdout(&millrace(&["layout", "--wgsl"]));
    for row in listing["rows"].as_array().unwrap() {
        let Some(name) = row["wgsl"].as_str() else { continue };
        let line = format!("const {name}: u32 = {}u;", row["word"]);
        assert!(constants.contains(&line), "no {line:?} in\n{constants}");
    }
}

#[test]
fn there_are_completions_and_manual_pages() {
    for shell in ["bash", "zsh", "fish"] {
        let output = millrace(&["completions", shell]);
        assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("validate"), "{shell}");
    }
    let output = millrace(&["man"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains(".TH millrace"));
    let folder = Scratch::new("man");
    assert!(millrace(&["man", folder.0.to_str().unwrap()]).status.success());
    assert!(folder.0.join("millrace-bench.1").exists());
    assert_eq!(millrace(&["man", "/dev/null/here"]).status.code(), Some(4));
}

#[test]
fn runs_are_kept_and_compared() {
    let folder = Scratch::new("history");
    let bench = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command.args(["bench"]).args(arguments).env("MILLRACE_HISTORY", &folder.0).output().unwrap()
    };
    let one = ["throughput", "wave_8", "--quick"];
    assert!(stdout(&bench(&["--list"])).contains("throughput wave_8"));
    assert!(stdout(&bench(&["--history"])).contains("no run was kept"));
    assert!(bench(&[&one[..], &["--save", "before"]].concat()).status.success());
    assert!(stdout(&bench(&["--history"])).contains("before"));

    // Half the speed of a baseline that was doctored to be twice as fast.
    let path = folder.0.join("before.json");
    let mut report: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for row in report["rows"].as_array_mut().unwrap() {
        for round in row["rounds"].as_array_mut().unwrap() {
            *round = (round.as_f64().unwrap() * 100.0).into();
        }
    }
    std::fs::write(&path, report.to_string()).unwrap();
    let slower = bench(&[&one[..], &["--baseline", "before", "--fail-on-regression", "5%"]].concat());
    assert_eq!(slower.status.code(), Some(1), "{}", stdout(&slower));
    assert!(stdout(&slower).contains("SLOWER"), "{}", stdout(&slower));

    let refused = |name: &str, part: &str| {
        let output = bench(&[&one[..], &["--baseline", name]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(4) && said.contains(part), "{name}: {said}");
    };
    report["machine"]["cpu"] = "another".into();
    std::fs::write(folder.0.join("elsewhere.json"), report.to_string()).unwrap();
    std::fs::write(folder.0.join("broken.json"), "{").unwrap();
    refused("elsewhere", "--force");
    refused("broken", "is no run of the lab");
    refused("nothing", "there is no run called");
    refused("../up", "is no name");
    assert_eq!(bench(&[&one[..], &["--fail-on-regression", "5%"]].concat()).status.code(), Some(2));
}

#[test]
fn a_page_about_a_run_stands_alone_and_shows_every_group() {
    let (file, folder) = (Scratch::new("report.html"), Scratch::new("report-history"));
    let bench = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        let command = command.args(["bench", "bytes_clone", "wave_8", "--quick", "--device", "cpu"]);
        let output = command.args(arguments).env("MILLRACE_HISTORY", &folder.0).output().unwrap();
        assert!(output.status.success(), "{}\n{}", stdout(&output), String::from_utf8_lossy(&output.stderr));
    };
    bench(&["--save", "one"]);
    bench(&["--save", "two", "--baseline", "one", "--html", file.0.to_str().unwrap()]);
    let page = std::fs::read_to_string(&file.0).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    for part in [
        "bytes_clone",
        "wave_8",
        "targets met",
        "promised figures",
        "Against one",
        "Over 2 runs",
        "<svg",
        "Samples",
        "Over size",
        "prefers-color-scheme: dark",
        "Cloning a shared payload",
        "p99.9",
        "How the numbers were made",
    ] {
        assert!(page.contains(part), "no {part:?} in the page");
    }
    for outside in ["http://", "https://", "<script", "<link", "@import", "url("] {
        assert!(!page.contains(outside), "{outside} in the page");
    }
    assert_eq!(page.matches("<div").count(), page.matches("</div>").count());
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert_eq!(millrace(&["bench", "wave_8", "--html", "/nonexistent/page.html"]).status.code(), Some(4));
}

#[test]
fn instructions_are_counted_where_valgrind_is_and_otherwise_that_is_said() {
    let run = |path: Option<&str>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
        command.args(["bench", "--instructions", "bytes-clone", "allocate-free"]);
        path.map(|path| command.env("PATH", path));
        command.output().unwrap()
    };
    let without = run(Some("/nonexistent"));
    let said = String::from_utf8_lossy(&without.stderr).into_owned();
    assert!(without.status.code() == Some(4) && said.contains("valgrind is not installed"), "{said}");
    if Command::new("valgrind").arg("--version").output().is_err() {
        return;
    }
    let counts = || -> Vec<f64> {
        let output = run(None);
        let text = stdout(&output);
        assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
        let of = |name: &str| {
            let line = text.lines().find(|line| line.contains(name)).unwrap();
            line.split_whitespace().nth(1).unwrap().parse().unwrap()
        };
        vec![of("allocate-free"), of("bytes-clone")]
    };
    let (first, second) = (counts(), counts());
    assert!(first.iter().all(|count| (2.0..5000.0).contains(count)), "{first:?}");
    for (first, second) in first.iter().zip(&second) {
        assert!((first - second).abs() < 0.05 * first + 1.0, "{first} and then {second}: that is noise");
    }
    assert_eq!(millrace(&["bench", "--instructions", "nonsense"]).status.code(), Some(2));
}
