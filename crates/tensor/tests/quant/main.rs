//! Numbers in eight bits on every device, against naive loops.

#![allow(clippy::unwrap_used, reason = "a test")]

mod calibration;
mod products;
mod refused;
#[path = "../support/mod.rs"]
mod support;

use std::sync::OnceLock;

use millrace::tensor::{
    Tensors,
    quant::{Calibration, Parameters, Scheme},
};
use proptest::prelude::*;
use support::fresh_places;

/// The CPU, and the GPU if there is one.
fn places() -> &'static [Tensors] {
    static PLACES: OnceLock<Vec<Tensors>> = OnceLock::new();
    PLACES.get_or_init(fresh_places)
}

/// Numbers from -1 to 1.
fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Numbers in eight bits, with many of the extremes.
fn bytes(seed: u64, n: usize) -> Vec<i8> {
    let of = |x: f32| {
        if x > 0.9 {
            127
        } else if x < -0.9 {
            -128
        } else {
            (x * 142.0) as i8
        }
    };
    numbers(seed, n).into_iter().map(of).collect()
}

fn per_tensor(scale: f32, zero: i32) -> Parameters {
    Parameters::new(vec![scale], vec![zero], None).unwrap()
}

/// Scales and zero points of their own for every channel.
fn per_channel(seed: u64, channels: usize, axis: isize) -> Parameters {
    let scales = numbers(seed, channels).iter().map(|x| 0.5 + 0.4 * x).collect();
    let zeros = bytes(!seed, channels).into_iter().map(i32::from).collect();
    Parameters::new(scales, zeros, Some(axis)).unwrap()
}

/// The nearest whole number, and of two the even one.
fn nearest(x: f32, scale: f32, zero: i32) -> i8 {
    if x.is_nan() {
        return zero as i8;
    }
    let steps = f64::from(x * scale.recip()).round_ties_even();
    (steps + f64::from(zero)).clamp(-128.0, 127.0) as i8
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn quantizing_finds_the_nearest_number_and_back_is_within_half_a_step(
        shape in prop::collection::vec(1usize..12, 1..4),
        axis in 0usize..4,
        affine in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let n = shape.iter().product();
        let x: Vec<f32> = numbers(seed, n).iter().map(|x| 3.0 * x).collect();
        let axis = (axis < shape.len()).then_some(axis);
        let scheme = if affine { Scheme::affine() } else { Scheme::symmetric() };
        let scheme = axis.map_or(scheme, |axis| scheme.per_channel(axis as isize));
        let mut results = Vec::new();
        for tensors in places() {
            let tensor = tensors.from_slice(&x, &shape).unwrap();
            let parameters = Parameters::calibrate(&tensor, scheme, Calibration::MinMax).unwrap();
            let quantized = tensor.quantize(&parameters).unwrap();
            let (q, back) = (quantized.to_vec().unwrap(), quantized.dequantize().unwrap());
            assert_eq!(back.shape(), &shape[..]);
            let back = back.to_vec::<f32>().unwrap();
            for (i, &x) in x.iter().enumerate() {
                let channel = axis.map_or(0, |axis| i / shape[axis + 1..].iter().product::<usize>() % shape[axis]);
                let (scale, zero) = (parameters.scales()[channel], parameters.zero_points()[channel]);
                assert_eq!(q[i], nearest(x, scale, zero), "element {i}: {x}");
                assert_eq!(back[i], (i32::from(q[i]) - zero) as f32 * scale);
                assert!((back[i] - x).abs() <= 0.5001 * scale + 1e-6, "element {i}: {x} became {}", back[i]);
            }
            results.push((parameters, q, back));
        }
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "devices differ");
    }
}

#[test]
fn halves_go_to_the_even_number_and_both_ends_saturate() {
    let x =
        [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 127.5, 1e30, -127.5, -128.5, -1e30, f32::INFINITY, f32::NEG_INFINITY];
    for tensors in places() {
        let tensor = tensors.from_slice(&x, &[x.len()]).unwrap();
        let q = tensor.quantize(&per_tensor(1.0, 0)).unwrap();
        assert_eq!(q.to_vec().unwrap(), [0, 2, 2, 0, -2, -2, 126, 127, 127, -128, -128, -128, 127, -128]);
        // Zero points at both ends move what saturates, not what is even.
        let q = tensor.quantize(&per_tensor(1.0, 127)).unwrap();
        assert_eq!(q.to_vec().unwrap(), [127, 127, 127, 127, 125, 125, 127, 127, 127, -1, -1, -128, 127, -128]);
        let q = tensor.quantize(&per_tensor(1.0, -128)).unwrap();
        assert_eq!(q.to_vec().unwrap()[..9], [-128, -126, -126, -128, -128, -128, -2, 0, 127]);
        let special = tensors.from_slice(&[f32::NAN, -f32::NAN, 1e-45, -0.0], &[4]).unwrap();
        assert_eq!(special.quantize(&per_tensor(0.5, 7)).unwrap().to_vec().unwrap(), [7; 4]);
        assert_eq!(q.dequantize().unwrap().to_vec::<f32>().unwrap()[8], 255.0);
    }
}

#[test]
fn the_smallest_and_the_largest_scales_that_are_taken_work_on_every_device() {
    let largest = f32::MIN_POSITIVE.recip();
    for scale in [f32::MIN_POSITIVE, 1e-30, 1e30, largest] {
        for tensors in places() {
            let x = tensors.from_slice(&[3.0 * scale, -2.0 * scale, 0.0], &[3]).unwrap();
            let q = x.quantize(&per_tensor(scale, 0)).unwrap();
            assert_eq!(q.to_vec().unwrap(), [3, -2, 0], "{scale}");
            assert_eq!(q.dequantize().unwrap().to_vec::<f32>().unwrap(), x.to_vec::<f32>().unwrap());
        }
    }
}

#[test]
fn large_tensors_are_quantized_alike_with_and_without_padding() {
    for tensors in places() {
        for shape in [[64, 16_384], [1023, 1025], [300_001, 3]] {
            let x = tensors.rand(&shape, 7).unwrap().sub(0.5).unwrap();
            let parameters = Parameters::calibrate(&x, Scheme::affine(), Calibration::MinMax).unwrap();
            let q = x.quantize(&parameters).unwrap();
            let (scale, zero) = (parameters.scales()[0], parameters.zero_points()[0]);
            let want: Vec<i8> = x.to_vec::<f32>().unwrap().iter().map(|&x| nearest(x, scale, zero)).collect();
            assert!(q.to_vec().unwrap() == want, "{shape:?}");
            assert!(q.accuracy_against(&x).unwrap().largest <= 0.5001 * f64::from(scale), "{shape:?}");
        }
    }
}

#[test]
fn views_are_quantized_as_they_are_seen() {
    for tensors in places() {
        let x = tensors.arange(0.0, 1.0, 60).unwrap().reshape(&[6, 10]).unwrap();
        let view = x.slice(0, 1..5).unwrap().t().unwrap().flip(0).unwrap();
        let q = view.quantize(&per_tensor(1.0, -60)).unwrap();
        let want: Vec<i8> = view.to_vec::<f32>().unwrap().iter().map(|&x| x as i8 - 60).collect();
        assert_eq!(q.to_vec().unwrap(), want);
        let part = x.slice(0, 2..3).unwrap().quantize(&per_tensor(1.0, 0)).unwrap();
        assert_eq!(part.to_vec().unwrap(), (20..30).collect::<Vec<i8>>());
    }
}
