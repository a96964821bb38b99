//! Fourier transforms through the public interface, on the CPU and on a GPU if there is one, against the sum that they
//! are, in `f64`.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::f64::consts::PI;

use millrace::{
    Runtime,
    cpu::CpuThreads,
    tensor::{Complex32, DType, Error, Norm, Tensor, Tensors},
};
use proptest::prelude::*;
use support::{noise, places};

/// An error, relative to the root of the sum of the squares of what was transformed, which is what a frequency of noise
/// is. Bluestein's lengths are transformed twice.
const TOLERANCE: f64 = 6e-7;

type C = (f64, f64);

fn complex_noise(n: usize, seed: u64) -> Vec<Complex32> {
    noise(2 * n, seed).chunks_exact(2).map(|part| Complex32::new(part[0], part[1])).collect()
}

fn wide(x: &[Complex32]) -> Vec<C> {
    x.iter().map(|x| (f64::from(x.re), f64::from(x.im))).collect()
}

fn widened(x: &[f32]) -> Vec<C> {
    x.iter().map(|&x| (f64::from(x), 0.0)).collect()
}

/// The sum that a transform is.
fn dft(x: &[C], inverse: bool, norm: Norm) -> Vec<C> {
    let n = x.len();
    let sign = if inverse { 2.0 } else { -2.0 };
    let roots: Vec<C> = (0..n).map(|k| (sign * PI * k as f64 / n as f64).sin_cos()).map(|(s, c)| (c, s)).collect();
    let scale = match norm {
        Norm::Backward if !inverse => 1.0,
        Norm::Forward if inverse => 1.0,
        Norm::Ortho => 1.0 / (n as f64).sqrt(),
        _ => 1.0 / n as f64,
    };
    let frequency = |k: usize| {
        let terms = x.iter().enumerate().map(|(i, x)| (x, roots[i * k % n]));
        let (re, im) =
            terms.fold((0.0, 0.0), |sum, (x, w)| (sum.0 + x.0 * w.0 - x.1 * w.1, sum.1 + x.0 * w.1 + x.1 * w.0));
        (re * scale, im * scale)
    };
    (0..n).map(frequency).collect()
}

/// Along an axis of a shape.
fn dft_along(x: &[C], shape: &[usize], axis: usize, inverse: bool, norm: Norm) -> Vec<C> {
    let (n, inner) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let mut out = x.to_vec();
    for start in (0..x.len()).filter(|at| at / inner % n == 0) {
        let line: Vec<C> = (0..n).map(|i| x[start + i * inner]).collect();
        for (i, y) in dft(&line, inverse, norm).into_iter().enumerate() {
            out[start + i * inner] = y;
        }
    }
    out
}

fn norm_of(x: &[C]) -> f64 {
    x.iter().map(|x| x.0 * x.0 + x.1 * x.1).sum::<f64>().sqrt()
}

/// The largest error, relative to the root of the mean square of what is wanted.
fn error(got: &[C], want: &[C]) -> f64 {
    assert_eq!(got.len(), want.len());
    let typical = norm_of(want) / (want.len() as f64).sqrt();
    let largest = got.iter().zip(want).map(|(g, w)| (g.0 - w.0).hypot(g.1 - w.1)).fold(0.0, f64::max);
    largest / typical.max(1e-30)
}

/// What a length may add to the tolerance: an error grows with its logarithm.
fn tolerance(n: usize) -> f64 {
    TOLERANCE * (2.0 + (n as f64).log2())
}

fn close(what: &str, n: usize, got: &[C], want: &[C]) {
    let error = error(got, want);
    assert!(error <= tolerance(n), "{what}, length {n}: {error:e} > {:e}", tolerance(n));
}

fn values(x: &Tensor) -> Vec<C> {
    if x.dtype() == DType::F32 { widened(&x.to_vec::<f32>().unwrap()) } else { wide(&x.to_vec::<Complex32>().unwrap()) }
}

/// All four transforms of one length.
fn all_transforms(tensors: &Tensors, n: usize, norm: Norm) {
    let (x, real) = (complex_noise(n, n as u64), noise(n, 7 * n as u64));
    let device = tensors.device().info().id.clone();
    let say = |op: &str| format!("{op} on {device}, {norm:?}");
    let t = tensors.from_slice(&x, &[n]).unwrap();
    close(&say("fft"), n, &values(&t.fft(0, norm).unwrap()), &dft(&wide(&x), false, norm));
    close(&say("ifft"), n, &values(&t.ifft(0, norm).unwrap()), &dft(&wide(&x), true, norm));
    let r = tensors.from_slice(&real, &[n]).unwrap();
    let half = r.rfft(0, norm).unwrap();
    assert_eq!(half.shape(), [n / 2 + 1]);
    close(&say("rfft"), n, &values(&half), &dft(&widened(&real), false, norm)[..n / 2 + 1]);
    let back = half.irfft(0, n, norm).unwrap();
    assert_eq!((back.shape(), back.dtype()), (&[n][..], DType::F32));
    close(&say("irfft"), n, &values(&back), &widened(&real));
}

#[test]
fn every_small_length_is_the_sum_that_a_transform_is() {
    for tensors in places() {
        for n in (1..=66).chain([97, 128, 210, 243, 343, 360, 509, 512, 625, 1000, 1009, 1024]) {
            all_transforms(&tensors, n, Norm::Backward);
        }
    }
}

#[test]
fn lengths_beyond_one_group_are_the_sum_too() {
    for tensors in places() {
        for n in [1025, 1080, 2048, 2187, 2401, 3125, 4096, 4099, 6000] {
            all_transforms(&tensors, n, Norm::Backward);
        }
    }
}

#[test]
fn every_norm_is_numpy_s() {
    for tensors in places() {
        for norm in [Norm::Backward, Norm::Ortho, Norm::Forward] {
            for n in [8, 15, 22, 31] {
                all_transforms(&tensors, n, norm);
            }
        }
    }
}

#[test]
fn long_transforms_find_the_frequencies_that_were_put_in() {
    // A sum in f64 would take minutes; two waves are known.
    for tensors in places() {
        let lengths: &[usize] =
            if tensors.device().info().id == "cpu" { &[1 << 20, 1 << 18, 100_003] } else { &[1 << 18, 20_011] };
        for &n in lengths {
            let waves = [(3usize, 1.0), (n / 3, 0.5)];
            let at = |i: usize| {
                waves.iter().fold(Complex32::ZERO, |sum, &(k, a)| {
                    let angle = 2.0 * PI * ((i as u128 * k as u128) % n as u128) as f64 / n as f64;
                    sum + Complex32::new((a * angle.cos()) as f32, (a * angle.sin()) as f32)
                })
            };
            let x: Vec<_> = (0..n).map(at).collect();
            let y = tensors.from_slice(&x, &[n]).unwrap().fft(0, Norm::Forward).unwrap().to_vec::<Complex32>().unwrap();
            for (k, y) in y.iter().enumerate() {
                let want = waves.iter().find(|(wave, _)| *wave == k).map_or(0.0, |(_, a)| *a as f32);
                assert!((y - Complex32::from(want)).norm() < 2e-6, "{n}, {k}: {y}");
            }
        }
    }
}

#[test]
fn long_lines_agree_with_the_same_numbers_along_two_axes() {
    // A transform of n = a b is one along each axis of a matrix with a turn between them; the sum is too long here.
    let two = Runtime::new(vec![Box::new(CpuThreads(2))]).open("cpu").unwrap();
    let tensors = Tensors::on(&two).unwrap();
    for (a, b) in [(512, 512), (512, 520)] {
        let n = a * b;
        let x = complex_noise(n, 3);
        let columns = tensors.from_slice(&x, &[a, b]).unwrap().fft(0, Norm::Backward).unwrap();
        let turned: Vec<Complex32> = wide(&columns.to_vec::<Complex32>().unwrap())
            .into_iter()
            .enumerate()
            .map(|(at, (re, im))| {
                let (s, c) = (-2.0 * PI * ((at / b) * (at % b)) as f64 / n as f64).sin_cos();
                Complex32::new((re * c - im * s) as f32, (re * s + im * c) as f32)
            })
            .collect();
        let rows = tensors.from_slice(&turned, &[a, b]).unwrap().fft(1, Norm::Backward).unwrap().t().unwrap();
        let want = values(&rows);
        let line = tensors.from_slice(&x, &[n]).unwrap();
        close("a long fft", n, &values(&line.fft(0, Norm::Backward).unwrap()), &want);
        // Apart, there and back, and in place as the second axis of two.
        let three = tensors.from_slice(&x, &[n, 1]).unwrap().expand(&[n, 3]).unwrap().contiguous().unwrap();
        let apart = three.slice(1, 1..2).unwrap();
        let back = apart.fft(0, Norm::Ortho).unwrap().ifft(0, Norm::Ortho).unwrap();
        close("a long ifft", n, &values(&back), &wide(&x));
        close("a long fft in place", n, &values(&apart.fftn(&[0, 1], Norm::Backward).unwrap()), &want);
        let flipped = line.flip(0).unwrap().fft(0, Norm::Backward).unwrap();
        let reversed: Vec<_> = x.iter().rev().copied().collect();
        let straight = tensors.from_slice(&reversed, &[n]).unwrap().fft(0, Norm::Backward).unwrap();
        close("a long fft of a flipped line", n, &values(&flipped), &values(&straight));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_lengths_axes_and_views(
        dims in prop::collection::vec(1usize..24, 3),
        axis in 0usize..3,
        turn in 0usize..6,
        flipped in any::<bool>(),
        inverse in any::<bool>(),
        seed in any::<u64>(),
    ) {
        const ORDERS: [[isize; 3]; 6] = [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]];
        for tensors in places() {
            let n: usize = dims.iter().product();
            let t = tensors.from_slice(&complex_noise(n, seed), &dims).unwrap().permute(&ORDERS[turn]).unwrap();
            let t = if flipped { t.flip(axis as isize).unwrap() } else { t };
            let t = t.slice(((axis + 1) % 3) as isize, t.shape()[(axis + 1) % 3] / 2..).unwrap();
            let (x, shape) = (values(&t), t.shape().to_vec());
            let got = if inverse { t.ifft(axis as isize, Norm::Ortho) } else { t.fft(axis as isize, Norm::Ortho) };
            let want = dft_along(&x, &shape, axis, inverse, Norm::Ortho);
            close("fft of a view", shape[axis], &values(&got.unwrap()), &want);
            // The real parts are a view of every other number.
            let r = t.real().unwrap();
            let half = r.rfft(axis as isize, Norm::Backward).unwrap();
            let back = half.irfft(axis as isize, shape[axis], Norm::Backward).unwrap();
            close("irfft of rfft of a view", shape[axis], &values(&back), &values(&r));
            let full = dft_along(&values(&r), &shape, axis, false, Norm::Backward);
            let inner: usize = shape[axis + 1..].iter().product();
            let kept: Vec<C> = full.iter().enumerate()
                .filter(|(at, _)| at / inner % shape[axis] <= shape[axis] / 2).map(|(_, x)| *x).collect();
            close("rfft of a view", shape[axis], &values(&half), &kept);
        }
    }

    #[test]
    fn random_longer_lengths(n in 1usize..1500, seed in any::<u64>()) {
        for tensors in places() {
            let x = complex_noise(n, seed);
            let y = tensors.from_slice(&x, &[n]).unwrap().fft(0, Norm::Backward).unwrap();
            close("fft", n, &values(&y), &dft(&wide(&x), false, Norm::Backward));
        }
    }
}

#[test]
fn several_axes_are_one_after_the_other() {
    for tensors in places() {
        let shape = [5, 8, 12];
        let x = complex_noise(480, 3);
        let t = tensors.from_slice(&x, &shape).unwrap();
        let mut want = wide(&x);
        for axis in [2, 1, 0] {
            want = dft_along(&want, &shape, axis, false, Norm::Backward);
        }
        close("fftn", 480, &values(&t.fftn(&[0, 1, 2], Norm::Backward).unwrap()), &want);
        close("fftn, other order", 480, &values(&t.fftn(&[2, 0, -2], Norm::Backward).unwrap()), &want);
        let back = t.fftn(&[0, 1, 2], Norm::Ortho).unwrap().ifftn(&[0, 1, 2], Norm::Ortho).unwrap();
        close("ifftn", 480, &values(&back), &wide(&x));
        let two = t.fft2(Norm::Backward).unwrap();
        let mut want = dft_along(&wide(&x), &shape, 2, false, Norm::Backward);
        want = dft_along(&want, &shape, 1, false, Norm::Backward);
        close("fft2", 96, &values(&two), &want);
        close("ifft2", 96, &values(&two.ifft2(Norm::Backward).unwrap()), &wide(&x));
        // The input is as it was: only what is in between is written in place.
        assert_eq!(t.to_vec::<Complex32>().unwrap(), x);
    }
}

#[test]
fn neighbours_are_transformed_together_however_many_there_are() {
    for tensors in places() {
        for shape in [[40, 64], [64, 37], [33, 100], [7, 1000], [600, 9], [256, 16]] {
            let x = complex_noise(shape[0] * shape[1], 5);
            let t = tensors.from_slice(&x, &shape).unwrap();
            let turned = t.t().unwrap();
            for (axis, inverse) in [(0, false), (1, false), (0, true), (1, true)] {
                let fft = |t: &Tensor, axis: usize| {
                    let axis = axis as isize;
                    if inverse { t.ifft(axis, Norm::Ortho).unwrap() } else { t.fft(axis, Norm::Ortho).unwrap() }
                };
                let want = dft_along(&wide(&x), &shape, axis, inverse, Norm::Ortho);
                close("fft", shape[axis], &values(&fft(&t, axis)), &want);
                // From rows to columns, and from columns to rows.
                close("fft of a view", shape[axis], &values(&fft(&turned, 1 - axis).t().unwrap()), &want);
            }
        }
    }
}

#[test]
fn real_transforms_along_several_axes_agree_with_complex_ones() {
    for tensors in places() {
        for (shape, axes) in [([6, 10, 9], [0isize, 1, 2]), ([6, 10, 8], [2, 0, 1]), ([3, 7, 22], [1, 0, 2])] {
            let n: usize = shape.iter().product();
            let x = noise(n, 11);
            let last = axes[2] as usize;
            let t = tensors.from_slice(&x, &shape).unwrap();
            let c: Vec<_> = x.iter().map(|&x| Complex32::from(x)).collect();
            let full = tensors.from_slice(&c, &shape).unwrap().fftn(&axes, Norm::Backward).unwrap();
            let kept = full.slice(axes[2], ..shape[last] / 2 + 1).unwrap();
            let half = t.rfftn(&axes, Norm::Backward).unwrap();
            assert_eq!(half.shape(), kept.shape());
            close("rfftn", n, &values(&half), &values(&kept));
            let back = half.irfftn(&axes, shape[last], Norm::Backward).unwrap();
            close("irfftn", n, &values(&back), &widened(&x));
        }
        let image = tensors.from_slice(&noise(35, 2), &[5, 7]).unwrap();
        let back = image.rfft2(Norm::Forward).unwrap().irfft2(7, Norm::Forward).unwrap();
        close("irfft2", 35, &values(&back), &values(&image));
    }
}

#[test]
fn a_transform_is_linear_and_keeps_the_energy() {
    for tensors in places() {
        for n in [64, 77, 101] {
            let (a, b) = (complex_noise(n, 1), complex_noise(n, 2));
            let fft = |x: &[Complex32], norm| values(&tensors.from_slice(x, &[n]).unwrap().fft(0, norm).unwrap());
            let sum: Vec<_> = a.iter().zip(&b).map(|(a, b)| a * 2.0 + b).collect();
            let (fa, fb) = (fft(&a, Norm::Backward), fft(&b, Norm::Backward));
            let want: Vec<C> = fa.iter().zip(&fb).map(|(a, b)| (2.0 * a.0 + b.0, 2.0 * a.1 + b.1)).collect();
            close("a sum", n, &fft(&sum, Norm::Backward), &want);
            let (before, after) = (norm_of(&wide(&a)), norm_of(&fft(&a, Norm::Ortho)));
            assert!((before / after - 1.0).abs() < 1e-6, "{before} and {after}");
        }
    }
}

#[test]
fn parts_that_real_numbers_cannot_have_are_ignored() {
    for tensors in places() {
        for n in [8, 9, 1] {
            let mut x = complex_noise(n / 2 + 1, 5);
            let dirty = tensors.from_slice(&x, &[n / 2 + 1]).unwrap().irfft(0, n, Norm::Backward).unwrap();
            x[0].im = 0.0;
            if n % 2 == 0 {
                x[n / 2].im = 0.0;
            }
            let clean = tensors.from_slice(&x, &[n / 2 + 1]).unwrap().irfft(0, n, Norm::Backward).unwrap();
            assert_eq!(dirty.to_vec::<f32>().unwrap(), clean.to_vec::<f32>().unwrap());
        }
    }
}

#[test]
fn nan_stays_in_its_line() {
    for tensors in places() {
        let mut x = complex_noise(3 * 16, 1);
        x[20].re = f32::NAN;
        let y =
            tensors.from_slice(&x, &[3, 16]).unwrap().fft(1, Norm::Backward).unwrap().to_vec::<Complex32>().unwrap();
        assert!(y[..16].iter().chain(&y[32..]).all(|y| y.is_finite()));
        assert!(y[16..32].iter().all(|y| y.is_nan()));
    }
}

#[test]
fn what_cannot_be_transformed_is_said() {
    for tensors in places() {
        let c = tensors.full(&[4, 6], Complex32::ONE).unwrap();
        let r = tensors.ones(&[4, 6]).unwrap();
        let text = |got: Result<Tensor, Error>| got.unwrap_err().to_string();
        assert_eq!(text(r.fft(0, Norm::Backward)), "fft: takes complex (`rfft` takes f32), not f32");
        assert_eq!(text(c.rfft(0, Norm::Backward)), "rfft: takes f32 (`fft` takes complex), not complex");
        assert_eq!(text(r.irfft(0, 6, Norm::Backward)), "irfft: takes complex, not f32");
        assert_eq!(text(c.fft(2, Norm::Backward)), "fft: axis 2 of shape [4, 6] does not exist");
        assert_eq!(text(c.fftn(&[0, -2], Norm::Backward)), "fftn: axis -2 of shape [4, 6] is named twice");
        assert_eq!(text(r.rfftn(&[], Norm::Backward)), "rfftn: shapes [4, 6] and [] have no axis to transform");
        assert_eq!(text(c.irfft(1, 0, Norm::Backward)), "irfft: axis 1 of shape [4, 6] would have length zero");
        assert!(text(c.irfft(1, 6, Norm::Backward)).starts_with("irfft: shapes [4, 6] and [4, 4] differ"));
        let empty = tensors.from_slice::<Complex32>(&[], &[3, 0]).unwrap();
        assert_eq!(text(empty.fft(1, Norm::Backward)), "fft: axis 1 of shape [3, 0] has length zero");
        // No lines at all are fine.
        assert_eq!(empty.fft(0, Norm::Backward).unwrap().shape(), [3, 0]);
        let empty = tensors.from_slice::<f32>(&[], &[0, 6]).unwrap();
        assert_eq!(empty.rfft(1, Norm::Backward).unwrap().shape(), [0, 4]);
        assert!(matches!(c.add(&c), Err(Error::DType { .. })));
    }
}

/// Launches and writes that a call takes.
fn commands(tensors: &Tensors, call: impl FnOnce() -> Tensor) -> (u64, u64) {
    tensors.synchronize().unwrap();
    let before = tensors.device().counts();
    let _result = call();
    tensors.synchronize().unwrap();
    let counts = tensors.device().counts() - before;
    (counts.launches, counts.writes)
}

#[test]
fn a_gpu_makes_one_pass_for_every_radix_and_uploads_tables_once() {
    // A device of its own: nobody else's commands are counted.
    let Ok(gpu) = millrace::runtime().open("gpu") else { return };
    let tensors = Tensors::on(&gpu).unwrap();
    let fft = |n: usize| {
        let x = tensors.full(&[2, n], Complex32::ONE).unwrap();
        let first = commands(&tensors, || x.fft(-1, Norm::Backward).unwrap());
        let second = commands(&tensors, || x.ifft(-1, Norm::Backward).unwrap());
        assert_eq!((first.1, second.1), (1, 0), "tables of length {n} are uploaded once, for both directions");
        assert_eq!(first.0, second.0);
        first.0
    };
    // What fits into a group's memory, what two radices make, what three make.
    assert_eq!([64, 360, 1024].map(fft), [1, 1, 1]);
    assert_eq!([2048, 6000, 65_536].map(fft), [2, 2, 2]);
    assert_eq!(fft(1 << 17), 3);
    // There and back again over 2n - 1 or a little more.
    assert_eq!([11, 509, 1009].map(fft), [2, 2, 4]);
    // Real numbers in pairs, and one launch more to tell them apart; on the way back that is part of reading.
    let r = tensors.ones(&[3, 2048]).unwrap();
    assert_eq!(commands(&tensors, || r.rfft(-1, Norm::Backward).unwrap()), (2, 1));
    let y = r.rfft(-1, Norm::Backward).unwrap();
    assert_eq!(commands(&tensors, || y.irfft(-1, 2048, Norm::Backward).unwrap()), (1, 0));
    // One transform for every axis, without copies between them.
    let x = tensors.full(&[32, 16, 64], Complex32::ONE).unwrap();
    assert_eq!(commands(&tensors, || x.fftn(&[0, 1, 2], Norm::Backward).unwrap()).0, 3);
    assert_eq!(commands(&tensors, || x.t().unwrap().fft(0, Norm::Backward).unwrap()).0, 1);
}

#[test]
fn the_cpu_takes_one_launch_for_every_axis() {
    let tensors = &Tensors::on(&millrace::runtime().open("cpu").unwrap()).unwrap();
    let x = tensors.full(&[8, 9, 11], Complex32::ONE).unwrap();
    assert_eq!(commands(tensors, || x.fftn(&[0, 1, 2], Norm::Backward).unwrap()), (3, 0));
    assert_eq!(commands(tensors, || x.real().unwrap().rfft2(Norm::Backward).unwrap()), (2, 0));
}

#[test]
fn planes_are_transformed_along_both_axes_at_once() {
    for tensors in places() {
        for shape in [[3, 24, 40], [2, 33, 18], [1, 64, 16]] {
            let x = complex_noise(shape.iter().product(), 9);
            let t = tensors.from_slice(&x, &shape).unwrap();
            for inverse in [false, true] {
                let fft = |t: &Tensor| if inverse { t.ifft2(Norm::Backward) } else { t.fft2(Norm::Backward) }.unwrap();
                let along = |x: &[C], axis| dft_along(x, &shape, axis, inverse, Norm::Backward);
                let want = along(&along(&wide(&x), 2), 1);
                close("fft2", shape[1] * shape[2], &values(&fft(&t)), &want);
                // Of views whose planes do not lie one behind the other it is the same.
                let turned = t.transpose(1, 2).unwrap();
                close("of a view", shape[1] * shape[2], &values(&fft(&turned).transpose(1, 2).unwrap()), &want);
            }
        }
    }
}

#[test]
fn complex_tensors_are_made_viewed_copied_and_padded() {
    for tensors in places() {
        let x = complex_noise(24, 9);
        let t = tensors.from_vec(x.clone(), &[2, 3, 4]).unwrap();
        assert_eq!((t.dtype(), t.to_vec::<Complex32>().unwrap()), (DType::Complex, x.clone()));
        let turned = t.permute(&[2, 0, 1]).unwrap().flip(1).unwrap().slice(0, 1..3).unwrap();
        let at = |i: usize, j: usize, k: usize| x[(1 - j) * 12 + k * 4 + i + 1];
        let want: Vec<_> = (0..12).map(|n| at(n / 6, n / 3 % 2, n % 3)).collect();
        assert_eq!(turned.to_vec::<Complex32>().unwrap(), want);
        assert_eq!(turned.reshape(&[12]).unwrap().to_vec::<Complex32>().unwrap(), want);
        let row = t.slice(0, ..1).unwrap().slice(1, ..1).unwrap().reshape(&[1, 4]).unwrap();
        let repeated = row.expand(&[3, 4]).unwrap().contiguous().unwrap();
        assert_eq!(repeated.to_vec::<Complex32>().unwrap(), [&x[..4]; 3].concat());
        let around = Complex32::new(5.0, -6.0);
        let padded = row.pad(&[(0, 0), (1, 2)], around).unwrap().to_vec::<Complex32>().unwrap();
        assert_eq!(padded, [&[around][..], &x[..4], &[around; 2]].concat());
        assert_eq!(tensors.full(&[3], around).unwrap().to_vec::<Complex32>().unwrap(), [around; 3]);
        assert_eq!(tensors.scalar(around).unwrap().item::<Complex32>().unwrap(), around);
        // A large transposition has a path of its own.
        let big = complex_noise(200 * 130, 4);
        let t = tensors.from_slice(&big, &[200, 130]).unwrap().t().unwrap().contiguous().unwrap();
        let want: Vec<_> = (0..26_000).map(|n| big[n % 200 * 130 + n / 200]).collect();
        assert_eq!(t.to_vec::<Complex32>().unwrap(), want);
        let imag: Vec<f32> = x.iter().map(|x| x.im).collect();
        assert_eq!(tensors.from_slice(&x, &[24]).unwrap().imag().unwrap().to_vec::<f32>().unwrap(), imag);
    }
}

#[test]
fn what_complex_numbers_do_not_do_is_an_error() {
    for tensors in places() {
        let c = tensors.full(&[2, 2], Complex32::I).unwrap();
        let yes = tensors.full(&[2, 2], true).unwrap();
        let refused = [
            c.add(&c),
            c.eq(&c),
            c.neg(),
            c.exp(),
            c.sum(&[0]),
            c.mean(&[0]),
            c.prod(&[0]),
            c.max(&[0]),
            c.argmax(0),
            c.softmax(0),
            c.matmul(&c),
            c.cast(DType::F32),
            tensors.ones(&[2]).unwrap().cast(DType::Complex),
            yes.select(&c, &c),
            tensors.arange(Complex32::ZERO, Complex32::ONE, 3),
            c.view_as_complex(),
            tensors.ones(&[3]).unwrap().view_as_complex(),
            tensors.ones(&[3]).unwrap().real(),
        ];
        for (number, got) in refused.into_iter().enumerate() {
            let error = got.unwrap_err();
            assert!(matches!(error, Error::DType { .. } | Error::Axis { .. }), "{number}: {error}");
        }
        assert!(matches!(c.to_vec::<f32>(), Err(Error::DTypes { .. })));
    }
}
