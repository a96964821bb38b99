//! What variables of the environment change, as a user sees it.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

use serde_json::Value;

/// A short run under some variables: what it printed, what it said, and its code.
fn under(variables: &[(&str, &str)], arguments: &[&str]) -> (String, String, Option<i32>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    let output = command.args(arguments).env_remove("MILLRACE_GPU").envs(variables.iter().copied()).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr), output.status.code())
}

#[test]
fn which_adapter_is_meant_can_be_said_and_a_wrong_choice_is_told_what_there_is() {
    let listing: Value = serde_json::from_str(&under(&[], &["devices", "--json"]).0).unwrap();
    let adapters: Vec<_> =
        listing["devices"].as_array().unwrap().iter().filter(|device| device["kind"] == "gpu").collect();
    let Some(first) = adapters.iter().find(|device| device["available"] == true) else { return };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let (id, name, kind) = (text(&first["id"]), text(&first["name"]), text(&first["details"]["type"]));
    let wave = ["wave", "--size", "8", "--steps", "1", "--json", "--device"];
    let run = |variables: &[(&str, &str)], device: &str| under(variables, &[&wave[..], &[device]].concat());
    let part: String = name.chars().take(6).collect();
    for choice in [&id["gpu:".len()..], &part, &part.to_uppercase(), &kind, ""] {
        for (variables, device) in
            [(vec![], format!("gpu:{choice}")), (vec![("MILLRACE_GPU", choice)], "gpu".to_owned())]
        {
            let (out, said, code) = run(&variables, &device);
            assert_eq!(code, Some(0), "{device:?} under {variables:?}: {said}");
            let report: Value = serde_json::from_str(&out).unwrap();
            assert_eq!(report["device"], *id, "{device:?} under {variables:?}: {out}");
        }
    }
    for choice in ["voodoo", "77"] {
        let (_, said, code) = run(&[("MILLRACE_GPU", choice)], "gpu");
        let named = said.contains(&format!("MILLRACE_GPU is {choice:?}"));
        assert!(code == Some(3) && named && said.contains(&name) && said.contains(&kind), "{said}");
        let (_, said, code) = run(&[("MILLRACE_GPU", "0")], &format!("gpu:{choice}"));
        assert!(code == Some(3) && !said.contains("MILLRACE_GPU") && said.contains(&name), "{said}");
    }
}

#[test]
fn variables_choose_the_instructions_and_wrong_ones_are_said() {
    for asked in ["scalar", "Scalar"] {
        let (out, said, code) = under(&[("MILLRACE_SIMD", asked)], &["devices"]);
        assert!(code == Some(0) && said.is_empty(), "{said}");
        assert!(out.contains("scalar, of "), "{out}");
    }
    for (variable, wrong) in [("MILLRACE_SIMD", "mmx"), ("MILLRACE_SYNC_TIMEOUT", "soon")] {
        let (_, said, code) = under(&[(variable, wrong)], &["devices"]);
        assert!(code == Some(0) && said.contains(variable) && said.contains(wrong), "{said}");
        let (_, said, _) = under(&[(variable, wrong), ("MILLRACE_LOG", "error")], &["devices"]);
        assert!(said.is_empty(), "{said}");
    }
}
