//! Products and convolutions, what they launch, and what they keep.

use millrace::{
    DeviceKind,
    tensor::{Quantized, Tensors, quant::Parameters},
};
use proptest::prelude::*;

use super::{bytes, fresh_places, per_channel, per_tensor, places};

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
        let settings = millrace::tensor::Conv::new().groups(groups).stride(&stride[..]).padding(&padding[..]).dilation(&dilation[..]);
        for tensors in places() {
            let x = tensors.quantized(&x, &x_shape, &of_x).unwrap();
            let w = tensors.quantized(&w, &w_shape, &of_w).unwrap();
            for _ in 0..2 {
                // Once more with the weights that were kept.
                let y = x.conv(&w, &settings).unwrap();
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
        let wide = b.t().unwrap().matmul_i32(&a.t().unwrap()).unwrap();
        (a.matmul_i32(&b).unwrap().to_vec::<i32>().unwrap(), wide.t().unwrap().to_vec::<i32>().unwrap())
    };
    let (want, _) = naive(&a, &of_a, &b, &of_b, [m, k, n]);
    for threads in [1, 2, 5] {
        let (straight, turned) = of(threads);
        assert!(straight == want, "{threads} threads");
        assert!(turned == want, "{threads} threads, turned");
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
        let conv = || images.conv(&filters, &millrace::tensor::Conv::new().padding(1)).unwrap();
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
