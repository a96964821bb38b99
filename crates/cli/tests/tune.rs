//! `millrace tune` and `millrace replay`, as users run them.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{
    path::Path,
    process::{Command, Output},
};

use tempfile::tempdir;

fn millrace(cache: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(arguments).env("XDG_CACHE_HOME", cache).env_remove("MILLRACE_TUNE").output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn what_is_tuned_is_kept_shown_and_forgotten() {
    let folder = tempdir().unwrap();
    let case = "reduce sum_f32 1x65536";
    let tuned = millrace(folder.path(), &["tune", case, "matmul 1x32x32x32", "--device", "cpu", "--limit", "0.5"]);
    assert!(tuned.status.success(), "{tuned:?}");
    assert!(text(&tuned).contains("2 measured") && text(&tuned).contains(case), "{}", text(&tuned));

    let shown = millrace(folder.path(), &["tune", "--show", "--device", "cpu", "--json"]);
    let json: serde_json::Value = serde_json::from_slice(&shown.stdout).unwrap();
    let cases = json[0]["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 2);
    assert!(cases.iter().all(|case| case["ns"].as_f64().unwrap() > 0.0));
    assert!(Path::new(json[0]["file"].as_str().unwrap()).is_file());

    // What is known is not measured again, unless that is asked for.
    let again = millrace(folder.path(), &["tune", case, "--device", "cpu"]);
    assert!(text(&again).contains("0 measured"), "{}", text(&again));
    let again = millrace(folder.path(), &["tune", case, "--device", "cpu", "--again", "--limit", "0.2"]);
    assert!(text(&again).contains("1 measured"), "{}", text(&again));

    assert!(millrace(folder.path(), &["tune", "--clear", "--device", "cpu"]).status.success());
    let shown = millrace(folder.path(), &["tune", "--show", "--device", "cpu"]);
    assert!(text(&shown).contains("0 known"), "{}", text(&shown));
}

#[test]
fn wrong_cases_and_places_are_answered() {
    let folder = tempdir().unwrap();
    let wrong = millrace(folder.path(), &["tune", "origami 12", "--device", "cpu"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("is no case of tuning"), "{wrong:?}");
    assert_eq!(millrace(folder.path(), &["tune", "--device", "abacus"]).status.code(), Some(3));
    let listed = millrace(folder.path(), &["tune", "--list", "--op", "conv", "--device", "cpu"]);
    assert!(text(&listed).contains("winograd"), "{}", text(&listed));

    let file = folder.path().join("a file");
    std::fs::write(&file, "no folder").unwrap();
    let unwritten = millrace(&file, &["tune", "matmul 1x16x16x16", "--device", "cpu", "--limit", "0.2"]);
    assert_eq!(unwritten.status.code(), Some(4), "{unwritten:?}");
    assert!(String::from_utf8_lossy(&unwritten.stderr).contains("XDG_CACHE_HOME"), "{unwritten:?}");
}

/// As the system does when memory runs out: ends a process that measures something else than the usual way.
#[cfg(target_os = "linux")]
fn kill_one_that_measures(cache: &Path) -> String {
    let folder = cache.join("millrace");
    let list = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path());
    let start = std::time::Instant::now();
    while start.elapsed() < std::time::Duration::from_secs(60) {
        let notes = list(&folder).filter(|path| path.extension().is_some_and(|end| end == "trying"));
        for note in notes.flat_map(|notes| list(&notes).collect::<Vec<_>>()) {
            let text = std::fs::read_to_string(&note).unwrap_or_default();
            let line = text.lines().next().unwrap_or_default();
            let Ok(json) = serde_json::from_str::<serde_json::Value>(line) else { continue };
            let name = note.file_name().unwrap().to_string_lossy().into_owned();
            if json["way"] != "usual" && name.ends_with("-0") {
                let killed = Command::new("kill").args(["-KILL", name.trim_end_matches("-0")]).status().unwrap();
                assert!(killed.success());
                return json["way"].as_str().unwrap().to_owned();
            }
        }
    }
    panic!("nothing is measured");
}

#[test]
#[cfg(target_os = "linux")]
fn a_process_that_ends_while_it_measures_does_not_end_the_run() {
    let folder = tempdir().unwrap();
    let cache = folder.path().to_owned();
    // Long enough to be met.
    let cases = ["matmul 1x512x512x512", "reduce sum_f32 1x4096"];
    let run = std::thread::spawn(move || millrace(&cache, &[&["tune"], &cases[..], &["--device", "cpu"]].concat()));
    kill_one_that_measures(folder.path());
    let tuned = run.join().unwrap();
    let (said, warned) = (text(&tuned), String::from_utf8_lossy(&tuned.stderr).into_owned());
    assert!(tuned.status.success(), "{said}{warned}");
    assert!(warned.contains("the process ended (signal: 9 (SIGKILL)) while matmul"), "{warned}");
    let dropped: Vec<_> = said.lines().filter(|line| line.starts_with("DROPPED")).collect();
    assert!(dropped.len() == 1 && dropped[0].contains("matmul 1x512x512x512, "), "{said}");
    assert!(dropped[0].ends_with("it ended the process") && said.contains("2 measured"), "{said}");
    // A process that nobody asks any longer ends by itself.
    let mut alone = Command::new(env!("CARGO_BIN_EXE_millrace"));
    let alone = alone.args(["tune-cases", "cpu", "--limit", "1"]).stdin(std::process::Stdio::null());
    assert!(alone.status().unwrap().success());
}

#[test]
fn a_replay_of_nothing_is_an_error() {
    let folder = tempdir().unwrap();
    let missing = millrace(folder.path(), &["replay", "not there.safetensors"]);
    assert_eq!(missing.status.code(), Some(4));
    assert!(String::from_utf8_lossy(&missing.stderr).contains("not there.safetensors"), "{missing:?}");
}
