//! Numbers in eight bits on every device, against naive loops.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::sync::OnceLock;

use millrace::{
    DeviceKind,
    tensor::{
        Error, Quantized, Tensors,
        quant::{Calibration, Calibrator, Invalid, Parameters, Scheme},
    },
};
use proptest::prelude::*;

/// The CPU, and the GPU if there is one.
fn places() -> &'static [Tensors] {
    static PLACES: OnceLock<Vec<Tensors>> = OnceLock::new();
    PLACES.get_or_init(fresh_places)
}

/// The same, with counts of their own.
fn fresh_places() -> Vec<Tensors> {
    let devices = ["cpu", "gpu"].iter().filter_map(|id| millrace::runtime().open(id).ok());
    devices.map(|device| Tensors::on(&device).unwrap()).collect()
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

/// Sums of `(a - s)(b - t)`, and those by the scales, of an m×k and a k×n matrix. Parameters are of rows and of columns.
fn naive(a: &[i8], of_a: &Parameters, b: &[i8], of_b: &Parameters, [m, k, n]: [usize; 3]) -> (Vec<i32>, Vec<f32>) {
    let at = |parameters: &Parameters, i: usize| {
        let i = if parameters.axis().is_some() { i } else { 0 };
        (parameters.scales()[i], i64::from(parameters.zero_points()[i]))
    };
    let (mut sums, mut scaled) = (Vec::new(), Vec::new());
    for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
        let ((a_scale, a_zero), (b_scale, b_zero)) = (at(of_a, i), at(of_b, j));
        let term = |p: usize| (i64::from(a[i * k + p]) - a_zero) * (i64::from(b[p * n + j]) - b_zero);
        let sum = i32::try_from((0..k).map(term).sum::<i64>()).unwrap();
        sums.push(sum);
        scaled.push(sum as f32 * a_scale * b_scale);
    }
    (sums, scaled)
}

fn turned(x: &[i8], rows: usize, columns: usize) -> Vec<i8> {
    (0..columns).flat_map(|j| (0..rows).map(move |i| x[i * columns + j])).collect()
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

    #[test]
    fn products_are_exact_and_the_same_on_every_device(
        (m, k, n) in (1usize..40, 1usize..70, 1usize..80),
        (rows_apart, columns_apart) in any::<(bool, bool)>(),
        (a_zero, b_zero) in (-128i32..=127, -128i32..=127),
        (turn_a, turn_b) in any::<(bool, bool)>(),
        seed in any::<u64>(),
    ) {
        let (a, b) = (bytes(seed, m * k), bytes(!seed, k * n));
        let of_a = if rows_apart { per_channel(seed, m, 0) } else { per_tensor(0.03, a_zero) };
        let of_b = if columns_apart { per_channel(!seed, n, 1) } else { per_tensor(0.7, b_zero) };
        let (sums, scaled) = naive(&a, &of_a, &b, &of_b, [m, k, n]);
        for tensors in places() {
            let matrix = |x: &[i8], rows: usize, columns: usize, parameters: &Parameters, turn: bool| -> Quantized {
                if !turn {
                    return tensors.quantized(x, &[rows, columns], parameters).unwrap();
                }
                let axis = parameters.axis().map(|axis| 1 - axis);
                let (scales, zeros) = (parameters.scales().to_vec(), parameters.zero_points().to_vec());
                let parameters = Parameters::new(scales, zeros, axis).unwrap();
                tensors.quantized(&turned(x, rows, columns), &[columns, rows], &parameters).unwrap().t().unwrap()
            };
            let (a, b) = (matrix(&a, m, k, &of_a, turn_a), matrix(&b, k, n, &of_b, turn_b));
            assert_eq!((a.parameters(), b.parameters()), (&of_a, &of_b));
            let product = a.matmul_i32(&b).unwrap();
            assert_eq!(product.shape(), [m, n]);
            assert_eq!(product.to_vec::<i32>().unwrap(), sums);
            assert_eq!(a.matmul(&b).unwrap().to_vec::<f32>().unwrap(), scaled);
        }
    }

    #[test]
    fn convolutions_are_exact_and_the_same_on_every_device(
        axes in 1usize..=3,
        (batch, groups, channels, filters) in (1usize..3, 1usize..4, 1usize..4, 1usize..4),
        input in prop::collection::vec(1usize..9, 3),
        kernel in prop::collection::vec(1usize..4, 3),
        moves in prop::collection::vec((1usize..4, 0usize..3, 1usize..3), 3),
        (x_zero, w_zero, apart) in (-128i32..=127, -20i32..=20, any::<bool>()),
        seed in any::<u64>(),
    ) {
        let (stride, padding, dilation): (Vec<_>, Vec<_>, Vec<_>) = {
            let part = |of: fn(&(usize, usize, usize)) -> usize| moves[..axes].iter().map(of).collect();
            (part(|m| m.0), part(|m| m.1), part(|m| m.2))
        };
        let fits = |axis: usize| (kernel[axis] - 1) * dilation[axis] < input[axis] + 2 * padding[axis];
        prop_assume!((0..axes).all(fits));
        let x_shape = [&[batch, groups * channels], &input[..axes]].concat();
        let w_shape = [&[groups * filters, channels], &kernel[..axes]].concat();
        let (x, w) = (bytes(seed, x_shape.iter().product()), bytes(!seed, w_shape.iter().product()));
        let of_x = per_tensor(0.25, x_zero);
        let of_w = if apart { per_channel(seed, groups * filters, 0) } else { per_tensor(0.125, w_zero) };
        let conv = Conv { x: &x, x_shape: &x_shape, w: &w, w_shape: &w_shape, stride: &stride, padding: &padding, dilation: &dilation, groups };
        let (shape, want) = conv.naive(&of_x, &of_w);
        for tensors in places() {
            let x = tensors.quantized(&x, &x_shape, &of_x).unwrap();
            let w = tensors.quantized(&w, &w_shape, &of_w).unwrap();
            for _ in 0..2 {
                // Once more with the weights that were kept.
                let y = x.conv(&w, &stride, &padding, &dilation, groups).unwrap();
                assert_eq!(y.shape(), &shape[..]);
                assert_eq!(y.to_vec::<f32>().unwrap(), want);
            }
        }
    }
}

struct Conv<'a> {
    x: &'a [i8],
    x_shape: &'a [usize],
    w: &'a [i8],
    w_shape: &'a [usize],
    stride: &'a [usize],
    padding: &'a [usize],
    dilation: &'a [usize],
    groups: usize,
}

impl Conv<'_> {
    /// The output's shape, and its elements one by one.
    fn naive(&self, of_x: &Parameters, of_w: &Parameters) -> (Vec<usize>, Vec<f32>) {
        let axes = self.stride.len();
        let (input, kernel) = (&self.x_shape[2..], &self.w_shape[2..]);
        let length =
            |a: usize| (input[a] + 2 * self.padding[a] - (kernel[a] - 1) * self.dilation[a] - 1) / self.stride[a] + 1;
        let output: Vec<usize> = (0..axes).map(length).collect();
        let (batch, channels, filters) = (self.x_shape[0], self.w_shape[1], self.w_shape[0]);
        let x_zero = of_x.zero_points()[0];
        let coordinates = |mut at: usize, shape: &[usize]| {
            let mut list = vec![0; shape.len()];
            for axis in (0..shape.len()).rev() {
                (list[axis], at) = (at % shape[axis], at / shape[axis]);
            }
            list
        };
        let (inputs, kernels, outputs) =
            (input.iter().product::<usize>(), kernel.iter().product::<usize>(), output.iter().product::<usize>());
        let mut elements = Vec::new();
        for (image, filter, patch) in
            (0..batch).flat_map(|b| (0..filters).flat_map(move |f| (0..outputs).map(move |p| (b, f, p))))
        {
            let (group, to) = (filter / (filters / self.groups), coordinates(patch, &output));
            let channel = if of_w.axis().is_some() { filter } else { 0 };
            let (w_scale, w_zero) = (of_w.scales()[channel], of_w.zero_points()[channel]);
            let mut sum = 0;
            for (c, k) in (0..channels).flat_map(|c| (0..kernels).map(move |k| (c, k))) {
                let of = coordinates(k, kernel);
                let place = |a: usize| (to[a] * self.stride[a] + of[a] * self.dilation[a]).checked_sub(self.padding[a]);
                let inside = (0..axes)
                    .try_fold(0, |at, a| place(a).filter(|place| *place < input[a]).map(|place| at * input[a] + place));
                // Padding stands for zero, and adds nothing.
                let Some(at) = inside else { continue };
                let x = i32::from(self.x[((image * self.groups + group) * channels + c) * inputs + at]) - x_zero;
                sum += x * (i32::from(self.w[(filter * channels + c) * kernels + k]) - w_zero);
            }
            elements.push(sum as f32 * w_scale * of_x.scales()[0]);
        }
        ([&[batch, filters], &output[..]].concat(), elements)
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
fn scales_that_are_none_are_refused() {
    let scale = |scale: f32| match Parameters::new(vec![1.0, scale], vec![0, 0], Some(0)) {
        Err(Error::Quant(Invalid::Scale { index: 1, scale: said })) => said.to_bits() == scale.to_bits(),
        _ => false,
    };
    for bad in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40, f32::MAX] {
        assert!(scale(bad), "{bad}");
    }
    assert!(!scale(1.0));
}

#[test]
fn lists_of_the_wrong_length_are_refused() {
    let length = |error: Error, what: &str, given: usize, expected: usize| {
        assert_eq!(error.to_string(), format!("there are {given} {what}, not {expected}"));
        assert!(matches!(error, Error::Quant(Invalid::Length { .. })));
    };
    length(Parameters::new(vec![1.0; 2], vec![0; 2], None).unwrap_err(), "scales", 2, 1);
    length(Parameters::new(vec![], vec![], None).unwrap_err(), "scales", 0, 1);
    length(Parameters::new(vec![1.0; 3], vec![0; 2], Some(0)).unwrap_err(), "zero points", 2, 3);
    for tensors in places() {
        let x = tensors.ones(&[4, 5]).unwrap();
        let four = Parameters::new(vec![1.0; 4], vec![0; 4], Some(-1)).unwrap();
        length(x.quantize(&four).unwrap_err(), "scales", 4, 5);
        length(tensors.quantized(&[0; 6], &[2, 3], &four).unwrap_err(), "scales", 4, 3);
        let nowhere = Parameters::new(vec![1.0; 4], vec![0; 4], Some(2)).unwrap();
        assert!(matches!(x.quantize(&nowhere), Err(Error::Axis { op: "quantize", axis: 2, .. })));
        assert!(matches!(tensors.quantized(&[0; 5], &[2, 3], &per_tensor(1.0, 0)), Err(Error::Elements { .. })));
    }
}

#[test]
fn zero_points_out_of_range_are_refused() {
    for bad in [128, -129, i32::MAX, i32::MIN] {
        let error = Parameters::new(vec![1.0; 2], vec![0, bad], Some(0)).unwrap_err();
        assert_eq!(error, Error::Quant(Invalid::ZeroPoint { index: 1, zero_point: bad }));
    }
    for good in [127, -128] {
        assert!(Parameters::new(vec![1.0], vec![good], None).is_ok());
    }
}

#[test]
fn factors_that_do_not_go_together_are_refused() {
    for tensors in places() {
        let of = |shape: &[usize], parameters: &Parameters| {
            tensors.quantized(&vec![1; shape.iter().product()], shape, parameters).unwrap()
        };
        let one = per_tensor(1.0, 0);
        let a = of(&[2, 3], &one);
        let error = a.matmul(&of(&[2, 3], &one)).unwrap_err();
        assert!(error.to_string().starts_with("matmul: shapes [2, 3] and [2, 3] do not multiply"), "{error}");
        assert!(matches!(a.matmul(&of(&[3], &one)), Err(Error::Shapes { .. })));
        assert!(matches!(a.matmul(&of(&[3, 2, 1], &one)), Err(Error::Shapes { .. })));
        assert!(matches!(of(&[], &one).matmul(&of(&[1, 1], &one)), Err(Error::Shapes { .. })));
        assert!(matches!(of(&[2, 3, 4], &one).t(), Err(Error::Rank { .. })));
        // Scales that differ inside of a sum cannot be taken out of it.
        let along = |shape: &[usize], axis: usize| of(shape, &per_channel(1, shape[axis], axis as isize));
        let axis = |error: Error| matches!(error, Error::Quant(Invalid::Axis { .. }));
        assert!(axis(along(&[2, 3], 1).matmul(&of(&[3, 2], &one)).unwrap_err()));
        assert!(axis(a.matmul(&along(&[3, 2], 0)).unwrap_err()));
        assert!(axis(a.matmul_i32(&along(&[2, 3], 1).t().unwrap()).unwrap_err()));
        assert!(a.matmul(&along(&[2, 3], 0).t().unwrap()).is_ok());
        let elsewhere = Tensors::on(tensors.device()).unwrap().quantized(&[1; 6], &[3, 2], &one).unwrap();
        assert!(matches!(a.matmul(&elsewhere), Err(Error::Strangers { .. })));
        assert!(matches!(tensors.arange(0, 1, 3).unwrap().quantize(&one), Err(Error::DType { .. })));
    }
}

#[test]
fn convolutions_that_cannot_be_are_refused() {
    for tensors in places() {
        let of =
            |shape: &[usize]| tensors.quantized(&vec![1; shape.iter().product()], shape, &per_tensor(1.0, 0)).unwrap();
        let (x, w) = (of(&[1, 4, 5, 5]), of(&[4, 2, 3, 3]));
        let conv = |w: &Quantized, stride: &[usize], padding: &[usize], dilation: &[usize], groups: usize| {
            x.conv(w, stride, padding, dilation, groups).map(|y| y.shape().to_vec())
        };
        assert_eq!(conv(&w, &[1, 1], &[0, 0], &[1, 1], 2).unwrap(), [1, 4, 3, 3]);
        let quant = |result: Result<Vec<usize>, Error>| match result.unwrap_err() {
            Error::Quant(invalid) => invalid,
            other => panic!("{other}"),
        };
        let one = [1, 1];
        assert_eq!(quant(conv(&w, &one, &[0, 0], &one, 3)), Invalid::Groups { groups: 3, channels: 4 });
        assert_eq!(quant(conv(&w, &one, &[0, 0], &one, 0)), Invalid::Groups { groups: 0, channels: 4 });
        assert_eq!(quant(conv(&of(&[5, 2, 3, 3]), &one, &[0, 0], &one, 2)), Invalid::Groups { groups: 2, channels: 5 });
        assert!(matches!(conv(&w, &one, &[0, 0], &one, 1), Err(Error::Shapes { .. })), "channels of a group");
        assert!(matches!(conv(&of(&[4, 2, 3]), &one, &[0, 0], &one, 2), Err(Error::Shapes { .. })));
        assert!(matches!(conv(&of(&[4, 2]), &[], &[], &[], 2), Err(Error::Shapes { .. })));
        assert_eq!(quant(conv(&w, &[1, 0], &[0, 0], &one, 2)), Invalid::Zero { what: "stride", axis: 1 });
        assert_eq!(quant(conv(&w, &one, &[0, 0], &[0, 1], 2)), Invalid::Zero { what: "dilation", axis: 0 });
        assert_eq!(
            quant(conv(&of(&[4, 2, 0, 3]), &one, &one, &one, 2)),
            Invalid::Zero { what: "kernel size", axis: 0 }
        );
        assert_eq!(quant(conv(&w, &[1], &[0, 0], &one, 2)), Invalid::Length { what: "strides", given: 1, expected: 2 });
        assert_eq!(
            quant(conv(&of(&[4, 2, 3, 6]), &one, &[0, 0], &one, 2)),
            Invalid::Kernel { kernel: 6, input: 5, axis: 1 }
        );
        assert_eq!(quant(conv(&w, &one, &[0, 0], &[3, 1], 2)), Invalid::Kernel { kernel: 7, input: 5, axis: 0 });
        assert!(conv(&w, &one, &[0, usize::MAX], &one, 2).is_err());
        assert!(conv(&w, &one, &[0, 0], &[1, usize::MAX], 2).is_err());
        assert_eq!(conv(&w, &[usize::MAX, 1], &[0, 0], &one, 2).unwrap(), [1, 4, 1, 3]);
        let apart = tensors.quantized(&[1; 100], &[1, 4, 5, 5], &per_channel(1, 4, 1)).unwrap();
        assert!(matches!(apart.conv(&w, &one, &one, &one, 2), Err(Error::Quant(Invalid::Axis { axis: 1, .. }))));
        let apart = tensors.quantized(&[1; 72], &[4, 2, 3, 3], &per_channel(1, 2, 1)).unwrap();
        assert!(matches!(x.conv(&apart, &one, &one, &one, 2), Err(Error::Quant(Invalid::Axis { axis: 1, .. }))));
        // No images are no error.
        assert_eq!(of(&[0, 4, 5, 5]).conv(&w, &one, &[0, 0], &one, 2).unwrap().shape(), [0, 4, 3, 3]);
    }
}

#[test]
fn sums_that_may_not_fit_are_refused_and_the_longest_that_fit_are_right() {
    for tensors in places() {
        // The largest products there are, with the most that fit.
        for (zero, limit, product) in [(0, 131_071, 128 * 128), (-128, 33_025, 255 * 255)] {
            let of = |shape: &[usize], value: i8| {
                let elements = vec![value; shape.iter().product()];
                tensors.quantized(&elements, shape, &per_tensor(1.0, zero)).unwrap()
            };
            let value = if zero == 0 { -128 } else { 127 };
            let sums = of(&[1, limit], value).matmul_i32(&of(&[limit, 1], value)).unwrap();
            assert_eq!(sums.to_vec::<i32>().unwrap(), [(limit * product) as i32]);
            let error = of(&[1, limit + 1], value).matmul_i32(&of(&[limit + 1, 1], value)).unwrap_err();
            assert_eq!(error, Error::Quant(Invalid::Depth { op: "matmul_i32", depth: limit + 1, limit }));
        }
    }
}

#[test]
fn factors_without_elements_give_zeros_or_nothing() {
    for tensors in places() {
        let of =
            |shape: &[usize]| tensors.quantized(&vec![5; shape.iter().product()], shape, &per_tensor(1.0, 3)).unwrap();
        for (m, k, n) in [(0, 3, 2), (3, 0, 2), (3, 4, 0), (0, 0, 0)] {
            let product = of(&[m, k]).matmul(&of(&[k, n])).unwrap();
            assert_eq!((product.shape(), product.to_vec::<f32>().unwrap()), (&[m, n][..], vec![0.0; m * n]));
            assert_eq!(of(&[m, k]).matmul_i32(&of(&[k, n])).unwrap().to_vec::<i32>().unwrap(), vec![0; m * n]);
        }
        let nothing = tensors.zeros(&[3, 0]).unwrap().quantize(&per_tensor(1.0, 0)).unwrap();
        assert_eq!((nothing.to_vec().unwrap(), nothing.dequantize().unwrap().shape()), (vec![], &[3, 0][..]));
        let scalar = tensors.scalar(2.0f32).unwrap().quantize(&per_tensor(1.0, 0)).unwrap();
        assert_eq!((scalar.shape(), scalar.to_vec().unwrap()), (&[][..], vec![2]));
    }
}

#[test]
fn axes_before_the_last_are_rows_with_scales_of_their_own() {
    for tensors in places() {
        let a = bytes(3, 4 * 3 * 10);
        let apart = Parameters::new(vec![1.0, 2.0, 4.0], vec![0, 5, -5], Some(1)).unwrap();
        let b = tensors.quantized(&bytes(4, 10 * 6), &[10, 6], &per_tensor(0.5, 1)).unwrap();
        let y = tensors.quantized(&a, &[4, 3, 10], &apart).unwrap().matmul(&b).unwrap();
        assert_eq!(y.shape(), [4, 3, 6]);
        let flat = Parameters::new([1.0, 2.0, 4.0].repeat(4), [0, 5, -5].repeat(4), Some(0)).unwrap();
        let want = tensors.quantized(&a, &[12, 10], &flat).unwrap().matmul(&b).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), want.to_vec::<f32>().unwrap());
        // A vector is one row.
        let row = tensors.quantized(&a[..10], &[10], &per_tensor(1.0, 0)).unwrap().matmul(&b).unwrap();
        assert_eq!(
            (row.shape(), row.to_vec::<f32>().unwrap()),
            (&[6][..], want.to_vec::<f32>().unwrap()[..6].to_vec())
        );
    }
}

#[test]
fn large_products_are_the_same_on_any_number_of_threads() {
    let (m, k, n) = (517, 1203, 391);
    let (a, b) = (bytes(1, m * k), bytes(2, k * n));
    let (of_a, of_b) = (per_tensor(0.1, -7), per_channel(5, n, 1));
    let of = |threads: usize| {
        let runtime = millrace::Runtime::new(vec![Box::new(millrace::cpu::CpuThreads(threads))]);
        let tensors = Tensors::on(&runtime.open("cpu").unwrap()).unwrap();
        let a = tensors.quantized(&a, &[m, k], &of_a).unwrap();
        let b = tensors.quantized(&b, &[k, n], &of_b).unwrap();
        let wide = b.t().unwrap().matmul_i32(&a.t().unwrap());
        assert!(matches!(wide, Ok(_)), "{wide:?}");
        (a.matmul_i32(&b).unwrap().to_vec::<i32>().unwrap(), wide.unwrap().t().unwrap().to_vec::<i32>().unwrap())
    };
    let (want, _) = naive(&a, &of_a, &b, &of_b, [m, k, n]);
    for threads in [1, 2, 5] {
        let (straight, turned) = of(threads);
        assert!(straight == want, "{threads} threads");
        assert!(turned == want, "{threads} threads, turned");
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

/// Numbers near zero, and one far out.
fn with_outlier(n: usize) -> Vec<f32> {
    // A sum of several is bell-shaped.
    let all = numbers(9, 8 * n);
    let mut x: Vec<f32> = all.chunks_exact(8).map(|some| some.iter().sum::<f32>() / 4.0).collect();
    x[n / 2] = 100.0;
    x
}

#[test]
fn kinds_of_calibration_tell_outliers_apart() {
    for tensors in places() {
        let x = tensors.from_slice(&with_outlier(20_000), &[20_000]).unwrap();
        let scale = |calibration| {
            let parameters = Parameters::calibrate(&x, Scheme::symmetric(), calibration).unwrap();
            f64::from(parameters.scales()[0])
        };
        let all = scale(Calibration::MinMax);
        assert_eq!(all, f64::from(100.0f32 / 127.0), "nothing is clipped");
        assert!((scale(Calibration::Percentile(100.0)) / all - 1.0).abs() < 1e-6);
        let most = scale(Calibration::Percentile(99.9));
        assert!(most < all / 30.0, "{most} of {all}");
        let half = scale(Calibration::Percentile(50.0));
        assert!(half < most / 2.0, "{half}, {most}");
        let entropy = scale(Calibration::Entropy);
        assert!(entropy < all / 8.0 && entropy > half, "{entropy} of {all}");
        // What is not clipped is worth more than what is.
        let of = |calibration| {
            let parameters = Parameters::calibrate(&x, Scheme::symmetric(), calibration).unwrap();
            let q = x.quantize(&parameters).unwrap();
            q.accuracy_against(&x).unwrap()
        };
        let (all, entropy) = (of(Calibration::MinMax), of(Calibration::Entropy));
        assert!(all.largest < 1.0 && entropy.largest > 80.0, "{all:?}, {entropy:?}");
        assert!(entropy.mean * 4.0 < all.mean, "{all:?}, {entropy:?}");
        // Both ends of an affine range are clipped.
        let affine = Parameters::calibrate(&x, Scheme::affine(), Calibration::Percentile(99.0)).unwrap();
        let (scale, zero) = (affine.scales()[0], affine.zero_points()[0]);
        assert!(255.0 * scale < 6.0 && (-10..10).contains(&zero), "{affine:?}");
    }
}

#[test]
fn a_calibrator_sees_all_that_it_was_shown_channel_by_channel() {
    for tensors in places() {
        let first = tensors.from_slice(&[1.0f32, 0.0, -2.0, 0.5, 3.0, 0.25], &[3, 2]).unwrap();
        let second = tensors.from_slice(&[-5.0f32, 0.125], &[1, 2]).unwrap();
        for (calibration, slack) in [(Calibration::MinMax, 1e-6), (Calibration::Percentile(100.0), 1e-3)] {
            let mut calibrator = Calibrator::new(Scheme::affine().per_channel(-1), calibration).unwrap();
            calibrator.observe(&first).unwrap();
            calibrator.observe(&second).unwrap();
            let parameters = calibrator.parameters().unwrap();
            for (got, want) in parameters.scales().iter().zip([8.0 / 255.0, 0.5 / 255.0]) {
                assert!((got / want - 1.0).abs() < slack, "{parameters:?}");
            }
            assert_eq!(parameters.zero_points(), [31, -128]);
            let error = calibrator.observe(&tensors.ones(&[2, 3]).unwrap()).unwrap_err();
            assert_eq!(error, Error::Quant(Invalid::Channels { before: 2, now: 3 }));
        }
    }
}

#[test]
fn a_scale_per_channel_is_more_accurate_than_one_for_all() {
    for tensors in places() {
        // Rows of very different sizes.
        let data: Vec<f32> = numbers(3, 64 * 128).iter().enumerate().map(|(i, x)| x * (i / 128 + 1) as f32).collect();
        let w = tensors.from_slice(&data, &[64, 128]).unwrap();
        let db = |scheme| {
            let parameters = Parameters::calibrate(&w, scheme, Calibration::MinMax).unwrap();
            let back = w.quantize(&parameters).unwrap().dequantize().unwrap();
            // Every row counts the same.
            let scales = w.abs().unwrap().max(&[1]).unwrap().unsqueeze(1).unwrap();
            back.div(&scales).unwrap().accuracy_against(&w.div(&scales).unwrap()).unwrap().signal_to_noise_db
        };
        let (one, each) = (db(Scheme::symmetric()), db(Scheme::symmetric().per_channel(0)));
        assert!(each > one + 10.0 && each > 45.0, "{each} dB and {one} dB");
    }
}

#[test]
fn what_cannot_be_calibrated_with_is_refused() {
    for tensors in places() {
        let of = |x: &[f32]| {
            let x = tensors.from_slice(x, &[x.len()]).unwrap();
            Parameters::calibrate(&x, Scheme::affine(), Calibration::MinMax)
        };
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(matches!(of(&[1.0, bad, 2.0]), Err(Error::Quant(Invalid::Range { channel: 0, .. }))), "{bad}");
        }
        assert_eq!(of(&[]).unwrap_err(), Error::Quant(Invalid::Nothing));
        // Zeros stand for themselves, and the widest range there is has a scale.
        assert_eq!(of(&[0.0, 0.0]).unwrap(), per_tensor(1.0, -128));
        let widest = of(&[f32::MAX, f32::MIN]).unwrap();
        assert!(widest.scales()[0].is_finite() && (-1..=0).contains(&widest.zero_points()[0]), "{widest:?}");
        let whole = tensors.arange(0, 1, 3).unwrap();
        assert!(matches!(
            Parameters::calibrate(&whole, Scheme::affine(), Calibration::MinMax),
            Err(Error::DType { .. })
        ));
    }
    for bad in [0.0, -1.0, 100.1, f64::NAN, f64::INFINITY] {
        let error = Calibrator::new(Scheme::affine(), Calibration::Percentile(bad)).unwrap_err();
        assert!(matches!(error, Error::Quant(Invalid::Percentile { .. })), "{bad}");
    }
    let nothing = Calibrator::new(Scheme::symmetric(), Calibration::Entropy).unwrap();
    assert_eq!(nothing.parameters().unwrap_err(), Error::Quant(Invalid::Nothing));
}

#[test]
fn accuracy_is_what_it_says() {
    for tensors in places() {
        let of = |x: &[f32]| tensors.from_slice(x, &[x.len()]).unwrap();
        let accuracy = of(&[3.0, 4.0, 1.0]).accuracy_against(&of(&[3.0, 4.0, 0.0])).unwrap();
        assert!((accuracy.signal_to_noise_db - 10.0 * 25f64.log10()).abs() < 1e-9, "{accuracy:?}");
        assert_eq!((accuracy.largest, accuracy.mean), (1.0, 1.0 / 3.0));
        assert!((accuracy.cosine - 25.0 / (25.0f64 * 26.0).sqrt()).abs() < 1e-12);
        let same = of(&[0.0, 0.0]).accuracy_against(&of(&[0.0, 0.0])).unwrap();
        assert_eq!((same.signal_to_noise_db, same.largest, same.cosine), (f64::INFINITY, 0.0, 1.0));
        assert!(of(&[f32::NAN]).accuracy_against(&of(&[1.0])).unwrap().largest.is_nan());
        assert!(matches!(of(&[1.0]).accuracy_against(&of(&[1.0, 2.0])), Err(Error::Shapes { .. })));
        // A product in eight bits is near the one in f32.
        let (a, b) = (tensors.rand(&[64, 300], 1).unwrap(), tensors.rand(&[300, 48], 2).unwrap().sub(0.5).unwrap());
        let quantize = |x: &millrace::tensor::Tensor, scheme| {
            x.quantize(&Parameters::calibrate(x, scheme, Calibration::MinMax).unwrap()).unwrap()
        };
        let y = quantize(&a, Scheme::affine()).matmul(&quantize(&b, Scheme::symmetric().per_channel(1))).unwrap();
        let accuracy = y.accuracy_against(&a.matmul(&b).unwrap()).unwrap();
        assert!(accuracy.signal_to_noise_db > 30.0 && accuracy.cosine > 0.999, "{accuracy:?}");
    }
}

/// How many launches, writes, reads and copies an operation takes.
fn counted<T>(tensors: &Tensors, operation: impl FnOnce() -> T) -> [u64; 4] {
    tensors.synchronize().unwrap();
    let before = tensors.device().counts();
    let kept = operation();
    tensors.synchronize().unwrap();
    drop(kept);
    let counts = tensors.device().counts() - before;
    [counts.launches, counts.writes, counts.reads, counts.copies]
}

#[test]
fn operations_take_one_launch_once_weights_are_arranged() {
    for tensors in fresh_places() {
        let gpu = u64::from(tensors.device().info().kind != DeviceKind::Cpu);
        let x = tensors.rand(&[50, 64], 1).unwrap();
        let symmetric = per_tensor(0.01, 0);
        // Parameters are written once.
        assert_eq!(counted(&tensors, || x.quantize(&symmetric).unwrap()), [1, 1, 0, 0]);
        assert_eq!(counted(&tensors, || x.quantize(&symmetric).unwrap()), [1, 0, 0, 0]);
        let q = x.quantize(&symmetric).unwrap();
        assert_eq!(counted(&tensors, || q.dequantize().unwrap()), [1, 0, 0, 0]);
        // Weights are woven once, whichever way they lie.
        for w in [tensors.quantized(&bytes(1, 64 * 40), &[64, 40], &symmetric).unwrap(), {
            tensors.quantized(&bytes(1, 64 * 40), &[40, 64], &symmetric).unwrap().t().unwrap()
        }] {
            assert_eq!(counted(&tensors, || q.matmul(&w).unwrap()), [2, 0, 0, 0]);
            assert_eq!(counted(&tensors, || q.matmul(&w).unwrap()), [1, 0, 0, 0]);
            assert_eq!(counted(&tensors, || q.matmul_i32(&w.clone()).unwrap()), [1, 0, 0, 0], "clones share");
            // A left factor with zero points needs the sums of the weights, once.
            let affine = x.quantize(&per_tensor(0.01, -128)).unwrap();
            assert_eq!(counted(&tensors, || affine.matmul(&w).unwrap()), [2, 0, 0, 0]);
            assert_eq!(counted(&tensors, || affine.matmul(&w).unwrap()), [1, 0, 0, 0]);
        }
        // A right factor with zero points needs those of the rows; the CPU has them at hand.
        let w = tensors.quantized(&bytes(1, 64 * 40), &[64, 40], &per_tensor(0.01, 3)).unwrap();
        assert_eq!(counted(&tensors, || q.matmul(&w).unwrap()), [2 + gpu, 1, 0, 0]);
        // A convolution unfolds and multiplies; weights whose lines have gaps are put together once.
        let images = tensors.rand(&[2, 4, 9, 9], 3).unwrap().quantize(&symmetric).unwrap();
        let filters = tensors.quantized(&bytes(1, 6 * 4 * 9), &[6, 4, 3, 3], &symmetric).unwrap();
        let conv = || images.conv(&filters, &[1, 1], &[1, 1], &[1, 1], 1).unwrap();
        assert_eq!(counted(&tensors, conv), [3, 0, 0, 0]);
        assert_eq!(counted(&tensors, conv), [2, 0, 0, 0]);
    }
}

#[test]
fn four_numbers_take_a_word_and_a_factor_is_arranged_once() {
    for tensors in fresh_places() {
        let grown = |before: u64| {
            tensors.synchronize().unwrap();
            tensors.device().memory().in_use - before
        };
        let (x, parameters) = (tensors.rand(&[64, 1024], 1).unwrap(), per_tensor(0.01, 0));
        drop(x.quantize(&parameters).unwrap()); // the parameters stay on the device
        let before = grown(0);
        let q = x.quantize(&parameters).unwrap();
        assert_eq!(grown(before), 64 * 1024);
        let w = tensors.quantized(&bytes(1, 1024 * 64), &[1024, 64], &parameters).unwrap();
        assert_eq!(grown(before), 2 * 64 * 1024);
        let y = q.matmul(&w).unwrap();
        assert_eq!(grown(before), 3 * 64 * 1024 + 4 * 64 * 64, "a woven factor, and the product");
        let z = q.matmul(&w).unwrap();
        assert_eq!(grown(before), 3 * 64 * 1024 + 2 * 4 * 64 * 64, "the product alone");
        drop((y, z));
        let back = q.dequantize().unwrap();
        assert_eq!(grown(before), 3 * 64 * 1024 + 4 * 64 * 1024);
        drop((q, w, back));
        assert_eq!(grown(before), 0);
    }
}
