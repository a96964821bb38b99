//! Operations are right with every kind of vector instructions that the processor has.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::process::Command;

use millrace::tensor::{
    Simd,
    validate::{Effort, validate},
};

/// Set in children.
const CHILD: &str = "MILLRACE_TEST_CHILD";

/// Started by the test below in processes of their own, because it is decided once.
#[test]
fn child_that_validates() {
    let Ok(level) = std::env::var(CHILD) else { return };
    assert_eq!(Simd::in_use().name(), level);
    // The widest is what all other tests use; and the reference takes its time without optimization.
    if is_slow() || Simd::all().last() == Some(&Simd::in_use()) {
        return;
    }
    let device = millrace::runtime().open("cpu").unwrap();
    let rows = validate(&device, &Effort::default().large(20_000), |_| ()).unwrap();
    let wrong: Vec<_> = rows.iter().filter(|row| !row.ok).collect();
    assert!(wrong.is_empty() && rows.len() > 500, "{level}: {wrong:#?}");
}

#[test]
fn every_level_agrees_with_the_reference() {
    let run = |asked: &str, used: &str| {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let output =
            child.args(["--exact", "child_that_validates"]).env("MILLRACE_SIMD", asked).env(CHILD, used).output();
        let output = output.unwrap();
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success(), "{asked}: {said}");
    };
    let all = Simd::all();
    assert_eq!(all[0], Simd::Scalar);
    all.iter().for_each(|level| run(level.name(), level.name()));
    let widest = all.last().unwrap().name();
    run("abacus", widest);
}

/// Whether this was built without optimization, as far as one can tell.
fn is_slow() -> bool {
    cfg!(debug_assertions) && std::env::var_os("MILLRACE_TEST_OPTIMIZED").is_none()
}
