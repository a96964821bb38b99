//! How far elementary functions are from the truth, over all of `f32`, with every width of vectors. The bounds are those
//! that the functions' documentation states.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::{f64::consts, process::Command};

use millrace::tensor::{Result, Simd, Tensor, Tensors};

/// Says to the child that walks which level it should find itself at.
const CHILD: &str = "MILLRACE_TEST_ULP_LEVEL";
/// Of all 2³² bit patterns, every so manieth is tried.
const STRIDE: usize = 997;
/// Inputs of one tensor.
const CHUNK: usize = 1 << 16;

/// A function, what it should be, and how far it may be off: units in the last place, or an absolute distance if that is
/// more.
struct Function {
    name: &'static str,
    run: fn(&Tensor) -> Result<Tensor>,
    truth: fn(f64) -> f64,
    ulps: f64,
    distance: f64,
    /// Ranges where an implementation changes its ways: all inputs from one to the other in small steps.
    critical: &'static [(f32, f32)],
}

const FUNCTIONS: [Function; 9] = [
    Function {
        name: "exp",
        run: Tensor::exp,
        truth: f64::exp,
        ulps: 1.0,
        distance: 0.0,
        critical: &[(-104.5, -86.9), (-0.4, 0.4), (86.9, 89.5)],
    },
    Function {
        name: "exp2",
        run: Tensor::exp2,
        truth: f64::exp2,
        ulps: 1.0,
        distance: 0.0,
        critical: &[(-151.0, -125.0), (-0.6, 0.6), (127.0, 129.0)],
    },
    Function {
        name: "log",
        run: Tensor::log,
        truth: f64::ln,
        ulps: 1.0,
        distance: 0.0,
        critical: &[(0.65, 1.5), (0.0, 2e-38)],
    },
    Function {
        name: "log2",
        run: Tensor::log2,
        truth: f64::log2,
        ulps: 1.0,
        distance: 0.0,
        critical: &[(0.65, 1.5), (0.0, 2e-38)],
    },
    Function {
        name: "sin",
        run: Tensor::sin,
        truth: f64::sin,
        ulps: 2.0,
        distance: 1e-8,
        critical: &[(-10.0, 10.0), (8180.0, 8200.0)],
    },
    Function {
        name: "cos",
        run: Tensor::cos,
        truth: f64::cos,
        ulps: 2.0,
        distance: 1e-8,
        critical: &[(-10.0, 10.0), (8180.0, 8200.0)],
    },
    Function {
        name: "tanh",
        run: Tensor::tanh,
        truth: f64::tanh,
        ulps: 2.0,
        distance: 0.0,
        critical: &[(-10.1, 10.1), (-0.2, 0.2)],
    },
    Function {
        name: "sigmoid",
        run: Tensor::sigmoid,
        truth: |x| 1.0 / (1.0 + (-x).exp()),
        ulps: 2.0,
        distance: 0.0,
        critical: &[(-104.0, -86.9), (-20.0, 20.0), (86.9, 88.0)],
    },
    Function {
        name: "gelu",
        run: Tensor::gelu,
        truth: gelu,
        ulps: 16.0,
        distance: 0.0,
        critical: &[(-14.5, -1.3), (-1.5, 4.0)],
    },
];

/// `x` times the share of a normal distribution below it.
fn gelu(x: f64) -> f64 {
    let u = x.abs() / consts::SQRT_2;
    let upper = if u < 2.0 {
        // erf as a series
        let (mut term, mut sum, mut n) = (u, u, 0.0);
        while term.abs() > 1e-18 * sum {
            n += 1.0;
            term *= -u * u / n;
            sum += term / (2.0 * n + 1.0);
        }
        1.0 - consts::FRAC_2_SQRT_PI * sum
    } else {
        // erfc as a continued fraction, from the inside out
        let fraction = (1..100).rev().fold(u, |below, n| u + f64::from(n) / 2.0 / below);
        (-u * u).exp() / consts::PI.sqrt() / fraction
    };
    match x {
        f64::NEG_INFINITY => 0.0,
        _ => x * if x < 0.0 { upper / 2.0 } else { 1.0 - upper / 2.0 },
    }
}

/// Distance in units of the last place of the true result.
fn ulps(got: f32, want: f64, distance: f64) -> f64 {
    let near = want as f32;
    if near.is_nan() || got.is_nan() {
        return if near.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if near.is_infinite() || got.is_infinite() {
        return if near == got { 0.0 } else { f64::INFINITY };
    }
    let off = (f64::from(got) - want).abs();
    let ulp = f64::from(f32::from_bits(near.abs().to_bits() + 1)) - f64::from(near.abs());
    if off <= distance { 0.0 } else { off / ulp.max(2f64.powi(-149)) }
}

/// The worst error of a function over some inputs, and where it is.
fn worst(tensors: &Tensors, function: &Function, inputs: &mut dyn Iterator<Item = f32>) -> (f64, f32) {
    let mut worst = (0.0, 0.0);
    loop {
        let x: Vec<f32> = inputs.take(CHUNK).collect();
        if x.is_empty() {
            return worst;
        }
        let y = (function.run)(&tensors.from_slice(&x, &[x.len()]).unwrap()).unwrap().to_vec::<f32>().unwrap();
        for (x, y) in x.into_iter().zip(y) {
            let error = ulps(y, (function.truth)(f64::from(x)), function.distance);
            if error > worst.0 {
                worst = (error, x);
            }
        }
    }
}

/// All floats from one to another, both signs of zero included, in steps of a few dozen.
fn range(low: f32, high: f32) -> impl Iterator<Item = f32> {
    // Numbers in the order of their values.
    let order = |x: f32| if x < 0.0 { -i64::from(x.abs().to_bits()) } else { i64::from(x.to_bits()) };
    let float = |n: i64| f32::from_bits(n.unsigned_abs() as u32).copysign(if n < 0 { -1.0 } else { 1.0 });
    let (low, high) = (order(low), order(high));
    let step = ((high - low) / 400_000).max(1) as usize;
    (low..=high).step_by(step).map(float)
}

/// What `pow` may be off by.
const POWER: f64 = 1.0;

/// The worst error of powers over some pairs of a base and an exponent, and where it is.
fn worst_power(tensors: &Tensors, pairs: &mut dyn Iterator<Item = (f32, f32)>) -> (f64, (f32, f32)) {
    let mut worst = (0.0, (0.0, 0.0));
    loop {
        let (x, y): (Vec<f32>, Vec<f32>) = pairs.take(CHUNK).unzip();
        if x.is_empty() {
            return worst;
        }
        let [bases, exponents] = [&x, &y].map(|x| tensors.from_slice(x, &[x.len()]).unwrap());
        let powers = bases.pow(&exponents).unwrap().to_vec::<f32>().unwrap();
        for ((x, y), power) in x.into_iter().zip(y).zip(powers) {
            let error = ulps(power, f64::from(x).powf(f64::from(y)), 0.0);
            if error > worst.0 {
                worst = (error, (x, y));
            }
        }
    }
}

/// Bases of all kinds with exponents of all kinds, and with those whose powers are numbers: from the smallest to the largest.
fn pairs() -> impl Iterator<Item = (f32, f32)> {
    let spread = |n: u32| f64::from(n.wrapping_mul(0x9e37_79b9)) / 4_294_967_296.0;
    let bases = || (0..=u32::MAX).step_by(9973).map(f32::from_bits);
    let any = bases().zip(0u32..).map(|(x, n)| (x, f32::from_bits(n.wrapping_mul(0x9e37_79b9))));
    let near_one = range(0.99, 1.01);
    let numbers = bases()
        .chain(near_one)
        .zip(0u32..)
        .map(move |(x, n)| (x.abs(), ((282.0 * spread(n) - 152.0) / f64::from(x.abs()).log2()) as f32));
    let whole = bases().zip(0u32..).map(|(x, n)| (x, (n % 41) as f32 - 20.0));
    let special = [0.0, -0.0, 1.0, -1.0, 0.5, -8.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, 1e-45, 3.0];
    let every = special.into_iter().flat_map(move |x| special.into_iter().map(move |y| (x, y)));
    any.chain(numbers).chain(whole).chain(every)
}

#[test]
fn child_that_walks() {
    let Ok(level) = std::env::var(CHILD) else { return };
    assert_eq!(Simd::in_use().name(), level);
    let tensors = Tensors::on(&millrace::runtime().open("cpu").unwrap()).unwrap();
    let mut missed = Vec::new();
    for function in &FUNCTIONS {
        let mut walks: Vec<(f64, f32)> =
            vec![worst(&tensors, function, &mut (0..=u32::MAX).step_by(STRIDE).map(f32::from_bits))];
        walks.extend(function.critical.iter().map(|&(low, high)| worst(&tensors, function, &mut range(low, high))));
        let (error, at) = walks.into_iter().fold((0.0, 0.0), |a, b| if b.0 > a.0 { b } else { a });
        let line =
            format!("{level}: {} is off by {error:.2} ULP at {at:e}, {} are stated", function.name, function.ulps);
        println!("{line}");
        if error > function.ulps {
            missed.push(line);
        }
    }
    let (error, at) = worst_power(&tensors, &mut pairs());
    let line = format!("{level}: pow is off by {error:.2} ULP at {at:?}, {POWER} are stated");
    println!("{line}");
    if error > POWER {
        missed.push(line);
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn every_function_is_as_exact_as_it_says_with_every_width_of_vectors() {
    let is_slow = cfg!(debug_assertions) && std::env::var_os("MILLRACE_TEST_OPTIMIZED").is_none();
    let levels = Simd::all();
    // Without optimization the truth alone takes minutes.
    for level in levels.iter().filter(|_| !is_slow) {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "child_that_walks", "--nocapture"]);
        let output = child.env("MILLRACE_SIMD", level.name()).env(CHILD, level.name()).output().unwrap();
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success(), "{said}");
        println!("{said}");
    }
}

#[test]
fn a_gpus_powers_are_as_exact_as_they_say() {
    let Ok(gpu) = millrace::runtime().open("gpu") else { return };
    let tensors = Tensors::on(&gpu).unwrap();
    // It may take numbers below the smallest normal one for zero.
    let kept = |(x, y): &(f32, f32)| {
        let power = f64::from(*x).powf(f64::from(*y)).abs();
        x.abs() >= f32::MIN_POSITIVE && power >= f64::from(f32::MIN_POSITIVE) && power <= 0.99 * f64::from(f32::MAX)
    };
    let (x, y): (Vec<f32>, Vec<f32>) = pairs().step_by(5).filter(kept).unzip();
    let [bases, exponents] = [&x, &y].map(|x| tensors.from_slice(x, &[x.len()]).unwrap());
    let powers = bases.pow(&exponents).unwrap().to_vec::<f32>().unwrap();
    let error = |at: usize| (f64::from(powers[at]) / f64::from(x[at]).powf(f64::from(y[at])) - 1.0).abs();
    let worst = (0..x.len()).max_by(|&a, &b| error(a).total_cmp(&error(b))).unwrap();
    println!("off by {:e} at {} to the power of {}", error(worst), x[worst], y[worst]);
    assert!(error(worst) <= 2e-6, "{} to the power of {} is {}", x[worst], y[worst], powers[worst]);
}

#[test]
fn the_measure_sees_what_is_off() {
    assert_eq!(ulps(1.0, 1.0, 0.0), 0.0);
    assert_eq!(ulps(f32::from_bits(1.0f32.to_bits() + 3), 1.0, 0.0), 3.0);
    assert_eq!(ulps(f32::INFINITY, 1e30, 0.0), f64::INFINITY);
    assert_eq!(ulps(f32::NAN, 1.0, 0.0), f64::INFINITY);
    assert_eq!((ulps(1e-9, 0.0, 1e-8), ulps(1e-40, 0.0, 0.0) > 2.0), (0.0, true));
    let walked: Vec<f32> = range(-1e-44, 1e-44).collect();
    assert!(walked.is_sorted() && walked.len() > 10 && walked[0] < 0.0 && *walked.last().unwrap() > 0.0);
    assert!(
        (gelu(1.0) - 0.841_344_746_068_542_9).abs() < 1e-15
            && (gelu(-3.0) / -0.004_049_694_094_890_283_6 - 1.0).abs() < 1e-12
    );
}
