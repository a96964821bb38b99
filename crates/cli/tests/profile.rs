//! `millrace profile` as a user or a script calls it.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

fn millrace(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_millrace")).args(arguments).output().unwrap()
}

fn file(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

#[test]
fn a_profile_is_printed_and_written_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, svg, json) = (file(&folder, "trace.json"), file(&folder, "flame.svg"), file(&folder, "table.json"));
    for what in ["commands", "tour", "reduce_ops", "fft"] {
        let arguments = ["profile", what, "--seconds", "0.1", "--trace", &trace, "--svg", &svg, "--json", &json];
        let output = millrace(&arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{what}: {text}");
        assert!(text.contains("write") && text.contains("stream ") && text.contains("commands on cpu"), "{text}");
        let table: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
        assert_eq!((table["what"].as_str(), table["device"].as_str()), (Some(what), Some("cpu")));
        let commands = table["commands"].as_u64().unwrap();
        let of_ops: u64 = table["ops"].as_array().unwrap().iter().map(|op| op["count"].as_u64().unwrap()).sum();
        let traced: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
        let spans = traced["traceEvents"].as_array().unwrap().iter().filter(|event| event["ph"] == "X").count() as u64;
        assert_eq!((of_ops, spans), (commands, commands));
        assert!(std::fs::read_to_string(&svg).unwrap().ends_with("</svg>\n"));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 3, "nothing is left beside them");
    }
}

#[test]
fn what_does_not_fit_is_said() {
    let output = millrace(&["profile", "commands", "--seconds", "0.1", "--events", "10"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("10 commands on cpu") && text.contains("are missing"), "{text}");
}

#[test]
fn help_lists_what_can_be_profiled() {
    let help = String::from_utf8(millrace(&["profile", "--help"]).stdout).unwrap();
    for what in ["tour", "reduce_ops", "sparse_product", "functions", "int8", "conv", "rnn"] {
        assert!(help.contains(&format!("- {what}:")), "no {what} in\n{help}");
    }
}

#[test]
fn exit_codes_are_those_of_every_command() {
    let code = |arguments: &[&str]| millrace(arguments).status.code();
    assert_eq!(code(&["profile", "nothing-like-that"]), Some(2));
    assert_eq!(code(&["profile"]), Some(2));
    assert_eq!(code(&["profile", "commands", "--seconds", "-1"]), Some(2));
    assert_eq!(code(&["profile", "commands", "--device", "cuda:7"]), Some(3));
    assert_eq!(code(&["profile", "commands", "--trace", "/no/such/folder/trace.json"]), Some(4));
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error_that_names_the_file() {
    for form in ["--trace", "--svg", "--json"] {
        let output = millrace(&["profile", "commands", "--seconds", "0.1", form, "/dev/full"]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(4), "{form}: {said}");
        assert!(said.contains("cannot write /dev/full"), "{form}: {said}");
    }
}

#[test]
#[cfg(unix)]
fn stopping_it_writes_what_there_is() {
    let folder = tempfile::tempdir().unwrap();
    let trace = file(&folder, "trace.json");
    let arguments = ["profile", "commands", "--seconds", "600", "--events", "5000", "--trace", &trace];
    let child =
        Command::new(env!("CARGO_BIN_EXE_millrace")).args(arguments).stdout(std::process::Stdio::piped()).spawn();
    let child = child.unwrap();
    std::thread::sleep(std::time::Duration::from_secs(1));
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(String::from_utf8(output.stdout).unwrap().contains("commands on cpu"));
    let traced: Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
    assert!(traced["traceEvents"].as_array().unwrap().len() > 1);
}
