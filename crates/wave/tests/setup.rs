//! What cannot be simulated is said, with the numbers that a person needs.
#![allow(clippy::unwrap_used, reason = "a test")]

use millrace_wave::{Error, Setup, Source};

fn refused(setup: Setup) -> String {
    let error = setup.build().unwrap_err();
    assert!(error.is_callers());
    error.to_string()
}

#[test]
fn sizes_are_checked() {
    for size in [[0, 4, 4], [4, 0, 4], [4, 4, 0]] {
        assert!(refused(Setup::new(size)).ends_with("has no cells"));
    }
    for size in [[65_536, 1, 1], [1, 1, u32::MAX], [u32::MAX; 3], [1024, 1024, 1024]] {
        let text = refused(Setup::new(size).obstacles(|_| true));
        assert!(text.contains("too large") && text.contains("65535"), "{text}");
    }
    assert!(Setup::new([65_535, 1, 1]).build().is_ok());
}

#[test]
fn time_steps_beyond_the_limit_are_refused_and_the_limit_is_named() {
    let longest = 0.01 / 343.0 / 3f64.sqrt();
    assert!(Setup::new([4; 3]).time_step(longest * 0.999_999).build().is_ok());
    let text = refused(Setup::new([4; 3]).time_step(longest * 1.001));
    assert!(text.contains("CFL") && text.contains("0.5774") && text.contains("1.683"), "{text}");
    assert!(refused(Setup::new([4; 3]).time_step(1e-5).speed(5000.0)).contains("unstable"));
    for step in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        assert!(refused(Setup::new([4; 3]).time_step(step)).contains("time step has to be a positive number"));
    }
    assert!(refused(Setup::new([4; 3]).spacing(0.0)).contains("side of a cell"));
    assert!(refused(Setup::new([4; 3]).speed(f64::NAN)).contains("speed of sound"));
}

#[test]
fn sources_are_checked() {
    let with = |source| refused(Setup::new([4, 5, 6]).obstacle([1, 1, 1]).source(source));
    let text = with(Source::impulse([4, 0, 0], 1.0));
    assert_eq!(text, "the source at (4, 0, 0) is outside of a room of 4 × 5 × 6 cells");
    assert_eq!(with(Source::impulse([1, 1, 1], 1.0)), "the source at (1, 1, 1) is inside an obstacle");
    assert!(with(Source::impulse([0; 3], f32::INFINITY)).contains("amplitude"));
    assert!(with(Source::sine([0; 3], 1.0, -3.0)).contains("frequency"));
    assert!(with(Source::ricker([0; 3], 1.0, 17_500.0)).contains("1.96 cells long"));
    let many = (0..9).fold(Setup::new([9; 3]), |setup, n| setup.source(Source::impulse([n; 3], 1.0)));
    assert_eq!(refused(many), "9 sources are more than 8");
}

#[test]
fn obstacles_are_checked() {
    let text = refused(Setup::new([4, 5, 6]).obstacle([0, 0, 6]).obstacle([1, 1, 1]));
    assert_eq!(text, "the obstacle at (0, 0, 6) is outside of a room of 4 × 5 × 6 cells");
}

#[test]
fn errors_of_the_machine_are_told_apart() {
    assert!(!Error::Memory(1).is_callers());
    assert!(!Error::Device(millrace::Error::Closed).is_callers());
}
