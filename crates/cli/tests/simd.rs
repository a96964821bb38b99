//! What `millrace bench tensor simd` compares.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

use serde_json::Value;

fn rows(level: Option<&str>) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_millrace"));
    command.args(["bench", "tensor", "simd", "--quick", "--json"]).arg(&file).env_remove("MILLRACE_SIMD");
    let output = command.envs(level.map(|level| ("MILLRACE_SIMD", level))).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    report["rows"].as_array().unwrap().clone()
}

#[test]
fn the_widest_level_is_compared_with_the_scalar_one_in_another_process() {
    let [wide, scalar] = [None, Some("scalar")].map(rows);
    let value = |rows: &[Value], id: &str| {
        let row = rows.iter().find(|row| row["id"] == id).unwrap_or_else(|| panic!("{id} in {rows:?}"));
        (row["p50"].as_f64().unwrap(), row["target"].clone())
    };
    for case in ["add", "sum", "exp"] {
        let ours = value(&scalar, &format!("millrace/{case}")).0;
        assert!(ours > 0.0);
        if millrace::tensor::Simd::all().len() > 1 {
            let (factor, target) = value(&wide, &format!("millrace/{case}-over-scalar"));
            let sides = [format!("millrace/{case}"), format!("scalar/{case}")].map(|id| value(&wide, &id).0);
            assert!((factor - sides[0] / sides[1]).abs() < 1e-6 * factor, "{case}");
            assert!(target.as_str().unwrap().contains("4"), "{target}");
        }
    }
    // Where the level is the scalar one the group has no other side. So the process of the scalar side was at that level: at any
    // other it would have started one of its own, and that one, too. How much faster it is depends on how tests are optimized.
    assert!(!scalar.iter().any(|row| row["id"].as_str().unwrap().starts_with("scalar/")), "there it is the same");
}
