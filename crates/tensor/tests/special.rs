//! NaN and infinities in reductions and Fourier transforms of every length that is done in a way of its own.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use millrace::tensor::{Complex32, Norm, Tensor, Tensors};
use support::{noise, places};

/// Every reduction of one axis, and what it is of the elements in order.
type Reduction = (&'static str, fn(&Tensor) -> f64, fn(&[f32]) -> f64);

fn number(x: millrace::tensor::Result<Tensor>) -> f64 {
    f64::from(x.unwrap().item::<f32>().unwrap())
}

fn place(x: millrace::tensor::Result<Tensor>) -> f64 {
    f64::from(x.unwrap().item::<i32>().unwrap())
}

fn sum(x: &[f32]) -> f64 {
    x.iter().map(|&x| f64::from(x)).sum()
}

fn product(x: &[f32]) -> f64 {
    x.iter().map(|&x| f64::from(x)).product()
}

/// The first that none beats, or the first NaN.
fn first(x: &[f32], beats: impl Fn(f32, f32) -> bool) -> usize {
    let mut best = 0;
    for (at, &now) in x.iter().enumerate() {
        if !x[best].is_nan() && (now.is_nan() || beats(now, x[best])) {
            best = at;
        }
    }
    best
}

fn first_largest(x: &[f32]) -> usize {
    first(x, |a, b| a > b)
}

fn first_smallest(x: &[f32]) -> usize {
    first(x, |a, b| a < b)
}

const REDUCTIONS: [Reduction; 7] = [
    ("sum", |x| number(x.sum_all()), sum),
    ("mean", |x| number(x.mean_all()), |x| sum(x) / x.len() as f64),
    ("prod", |x| number(x.prod_all()), product),
    ("max", |x| number(x.max_all()), |x| f64::from(x[first_largest(x)])),
    ("min", |x| number(x.min_all()), |x| f64::from(x[first_smallest(x)])),
    ("argmax", |x| place(x.argmax_all()), |x| first_largest(x) as f64),
    ("argmin", |x| place(x.argmin_all()), |x| first_smallest(x) as f64),
];

/// The same of every column.
type OfColumns = fn(&Tensor) -> Vec<f64>;

fn numbers(x: millrace::tensor::Result<Tensor>) -> Vec<f64> {
    x.unwrap().to_vec::<f32>().unwrap().into_iter().map(f64::from).collect()
}

fn all_places(x: millrace::tensor::Result<Tensor>) -> Vec<f64> {
    x.unwrap().to_vec::<i32>().unwrap().into_iter().map(f64::from).collect()
}

const OF_COLUMNS: [OfColumns; 7] = [
    |x| numbers(x.sum(&[0])),
    |x| numbers(x.mean(&[0])),
    |x| numbers(x.prod(&[0])),
    |x| numbers(x.max(&[0])),
    |x| numbers(x.min(&[0])),
    |x| all_places(x.argmax(0)),
    |x| all_places(x.argmin(0)),
];

const MINUS_NAN: f32 = f32::from_bits(0xffc0_0000);
const SPECIAL: [f32; 4] = [f32::NAN, MINUS_NAN, f32::INFINITY, f32::NEG_INFINITY];

/// Positive numbers near one, whose product is a number as well.
fn near_one(n: usize) -> Vec<f32> {
    noise(n, 7).into_iter().map(|x| 1.0 + x / 1000.0).collect()
}

fn agrees(name: &str, got: f64, want: f64) -> bool {
    match want {
        want if want.is_nan() => got.is_nan(),
        want if want.is_infinite() || name.starts_with("arg") => got == want,
        want => (got - want).abs() <= 3e-4 * want.abs(),
    }
}

fn put(tensors: &Tensors, x: &[f32], shape: &[usize]) -> Tensor {
    tensors.from_slice(x, shape).unwrap()
}

#[test]
fn every_reduction_keeps_nan_and_infinities_wherever_they_are() {
    for tensors in places() {
        for n in [255, 256, 4096, 4097, 300_000] {
            let plain = near_one(n);
            let check = |what: &str, x: &[f32]| {
                let t = put(&tensors, x, &[n]);
                for (name, run, want) in REDUCTIONS {
                    let (got, want) = (run(&t), want(x));
                    let on = &tensors.device().info().id;
                    assert!(agrees(name, got, want), "{name} of {n} with {what} on {on}: {got}, not {want}");
                }
            };
            check("nothing special", &plain);
            for special in SPECIAL {
                for at in [0, n / 2, n - 1] {
                    let mut x = plain.clone();
                    x[at] = special;
                    check(&format!("{special} at {at}"), &x);
                }
            }
            check("nothing but NaN", &vec![f32::NAN; n]);
            check("nothing but minus NaN", &vec![MINUS_NAN; n]);
        }
    }
}

#[test]
fn every_reduction_of_columns_keeps_nan_and_infinities_in_their_columns() {
    let (rows, columns) = (300, 513);
    let plain = near_one(rows * columns);
    for tensors in places() {
        let check = |what: &str, x: &[f32]| {
            let t = put(&tensors, x, &[rows, columns]);
            let of: Vec<Vec<f32>> =
                (0..columns).map(|column| x[column..].iter().step_by(columns).copied().collect()).collect();
            for ((name, _, want), run) in REDUCTIONS.into_iter().zip(OF_COLUMNS) {
                let on = &tensors.device().info().id;
                for (column, (got, x)) in run(&t).into_iter().zip(&of).enumerate() {
                    let want = want(x);
                    assert!(agrees(name, got, want), "{name} of {column} with {what} on {on}: {got}, not {want}");
                }
            }
        };
        for special in SPECIAL {
            for (row, column) in [(0, 0), (rows / 2, columns / 2), (rows - 1, columns - 1)] {
                let mut x = plain.clone();
                x[row * columns + column] = special;
                check(&format!("{special} at {row}, {column}"), &x);
            }
        }
        check("nothing but NaN", &vec![f32::NAN; rows * columns]);
    }
}

#[test]
fn nan_and_infinities_stay_in_their_lines_of_real_transforms() {
    for tensors in places() {
        let on = &tensors.device().info().id;
        for n in [8, 63, 64, 101, 255, 1000, 1001, 4096] {
            let (plain, half) = (noise(3 * n, 3), n / 2 + 1);
            let spectra =
                put(&tensors, &plain, &[3, n]).rfft(-1, Norm::Backward).unwrap().to_vec::<Complex32>().unwrap();
            for special in SPECIAL {
                for at in [0, n / 2, n - 1] {
                    let what = format!("{special} at {at} of {n} on {on}");
                    let mut x = plain.clone();
                    x[n + at] = special;
                    let y = put(&tensors, &x, &[3, n]).rfft(-1, Norm::Backward).unwrap();
                    let y = y.to_vec::<Complex32>().unwrap();
                    let finite = |y: &Complex32| y.re.is_finite() && y.im.is_finite();
                    let same = |range: std::ops::Range<usize>| {
                        y[range.clone()].iter().zip(&spectra[range]).all(|(a, b)| (a - b).norm() < 1e-3)
                    };
                    assert!(same(0..half) && same(2 * half..3 * half), "forward: neighbours of {what}");
                    assert!(!y[half..2 * half].iter().any(finite), "forward: every frequency of {what}");

                    let at = at / 2;
                    let mut spectra = spectra.clone();
                    spectra[half + at] = Complex32::new(special, 0.0);
                    let z = tensors.from_slice(&spectra, &[3, half]).unwrap().irfft(-1, n, Norm::Backward).unwrap();
                    let z = z.to_vec::<f32>().unwrap();
                    let same = |line: usize| (line * n..(line + 1) * n).all(|i| (z[i] - plain[i]).abs() < 1e-4);
                    assert!(same(0) && same(2), "inverse: neighbours of {what}");
                    assert!(z[n..2 * n].iter().any(|z| !z.is_finite()), "inverse: {what}");
                }
            }
        }
    }
}
