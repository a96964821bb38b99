//! Convolutions through the public interface, on the CPU and on a GPU if there is one, against the sum that they are, in
//! `f64`.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use millrace::{
    Runtime,
    cpu::CpuThreads,
    tensor::{Algorithm, Complex32, Conv, DType, Error, Pool, Tensor, Tensors},
};
use proptest::prelude::*;
use support::{noise, places};

fn random(tensors: &Tensors, shape: &[usize], seed: u64) -> Tensor {
    tensors.from_slice(&noise(shape.iter().product(), seed), shape).unwrap()
}

/// A case: batch, channels, filters, and per axis length, kernel, stride, padding, dilation.
#[derive(Debug, Clone)]
struct Case {
    batch: usize,
    groups: usize,
    /// Of one group.
    channels: usize,
    filters: usize,
    axes: Vec<Axis>,
    bias: bool,
}

#[derive(Debug, Clone, Copy)]
struct Axis {
    len: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
    /// Of a transposed one.
    more: usize,
}

impl Axis {
    fn new(len: usize, kernel: usize, stride: usize, padding: usize, dilation: usize) -> Self {
        Self { len, kernel, stride, padding, dilation, more: 0 }
    }

    fn out(&self) -> usize {
        (self.len + 2 * self.padding - (self.kernel - 1) * self.dilation - 1) / self.stride + 1
    }

    fn back(&self) -> usize {
        (self.len - 1) * self.stride + (self.kernel - 1) * self.dilation + 1 + self.more - 2 * self.padding
    }
}

impl Case {
    fn new(batch: usize, groups: usize, channels: usize, filters: usize, axes: &[Axis]) -> Self {
        Self { batch, groups, channels, filters, axes: axes.to_vec(), bias: true }
    }

    fn each(&self, of: impl Fn(&Axis) -> usize) -> Vec<usize> {
        self.axes.iter().map(of).collect()
    }

    fn conv(&self) -> Conv {
        let (stride, padding, dilation) =
            (self.each(|a| a.stride), self.each(|a| a.padding), self.each(|a| a.dilation));
        Conv::new().stride(&stride[..]).padding(&padding[..]).dilation(&dilation[..]).groups(self.groups)
    }

    fn x_shape(&self) -> Vec<usize> {
        [&[self.batch, self.groups * self.channels][..], &self.each(|a| a.len)].concat()
    }

    fn weight_shape(&self) -> Vec<usize> {
        [&[self.groups * self.filters, self.channels][..], &self.each(|a| a.kernel)].concat()
    }

    fn out_shape(&self) -> Vec<usize> {
        [&[self.batch, self.groups * self.filters][..], &self.each(Axis::out)].concat()
    }

    /// Every element of the result, and the sum of the magnitudes that it is made of.
    fn reference(&self, x: &[f32], weight: &[f32], bias: Option<&[f32]>) -> Vec<(f64, f64)> {
        let (xs, ws, os) = (self.x_shape(), self.weight_shape(), self.out_shape());
        let taps = index_list(&self.each(|a| a.kernel));
        let mut all = Vec::new();
        for at in index_list(&os) {
            let (group, filter) = (at[1] / self.filters, at[1]);
            let start = bias.map_or(0.0, |bias| f64::from(bias[filter]));
            let (mut sum, mut scale) = (start, start.abs());
            for channel in 0..self.channels {
                for tap in &taps {
                    let mut from = vec![at[0], group * self.channels + channel];
                    let mut inside = true;
                    for (i, axis) in self.axes.iter().enumerate() {
                        let place = (at[2 + i] * axis.stride + tap[i] * axis.dilation) as isize - axis.padding as isize;
                        inside &= (0..axis.len as isize).contains(&place);
                        from.push(place.max(0) as usize);
                    }
                    if inside {
                        let by = [&[filter, channel][..], tap].concat();
                        let term = f64::from(x[flat(&xs, &from)]) * f64::from(weight[flat(&ws, &by)]);
                        (sum, scale) = (sum + term, scale + term.abs());
                    }
                }
            }
            all.push((sum, scale));
        }
        all
    }
}

fn flat(shape: &[usize], at: &[usize]) -> usize {
    shape.iter().zip(at).fold(0, |flat, (dim, at)| flat * dim + at)
}

fn index_list(shape: &[usize]) -> Vec<Vec<usize>> {
    let n: usize = shape.iter().product();
    let place = |mut n: usize| {
        let mut at: Vec<usize> = shape
            .iter()
            .rev()
            .map(|dim| {
                let c = n % dim;
                n /= dim;
                c
            })
            .collect();
        at.reverse();
        at
    };
    (0..n).map(place).collect()
}

/// What an algorithm may be wrong by, relative to the magnitudes of what is added up.
fn tolerance(algorithm: Algorithm) -> f64 {
    match algorithm {
        Algorithm::Direct | Algorithm::Im2col => 2e-6,
        _ => 1e-5,
    }
}

fn close(what: &str, tolerance: f64, spread: f64, got: &[f32], want: &[(f64, f64)]) {
    assert_eq!(got.len(), want.len(), "{what}");
    // Transforms spread errors over neighbours, also over those that a stride leaves out.
    let largest = want.iter().fold(spread.max(1e-3), |largest, (_, scale)| largest.max(*scale));
    for (i, (got, (want, _))) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs() / largest;
        assert!(error <= tolerance, "{what}, element {i}: {got} is not {want}");
    }
}

/// A case with every algorithm that can do it.
fn check(tensors: &Tensors, case: &Case) {
    let (xs, ws) = (case.x_shape(), case.weight_shape());
    let (x, weight) = (noise(xs.iter().product(), 1), noise(ws.iter().product(), 2));
    let bias = case.bias.then(|| noise(case.groups * case.filters, 3));
    let want = case.reference(&x, &weight, bias.as_deref());
    let norm = |x: &[f32]| x.iter().map(|x| f64::from(x * x)).sum::<f64>().sqrt();
    let energy = norm(&x) * norm(&weight);
    let (x, weight) = (tensors.from_slice(&x, &xs).unwrap(), tensors.from_slice(&weight, &ws).unwrap());
    let bias = bias.map(|bias| tensors.from_slice(&bias, &[bias.len()]).unwrap());
    let conv = case.conv();
    let candidates = conv.candidates(&x, &weight).unwrap();
    assert!(candidates.contains(&conv.chosen(&x, &weight).unwrap()), "{case:?}");
    for algorithm in candidates {
        let y = x.conv(&weight, bias.as_ref(), &conv.clone().algorithm(algorithm)).unwrap();
        assert_eq!(y.shape(), case.out_shape(), "{case:?}");
        let what = format!("{algorithm} on {}, {case:?}", tensors.device().info().id);
        let spread = if algorithm == Algorithm::Fft { energy } else { 0.0 };
        close(&what, tolerance(algorithm), spread, &y.to_vec::<f32>().unwrap(), &want);
    }
}

#[test]
fn every_algorithm_is_the_sum_that_a_convolution_is() {
    let square = |len, kernel, stride, padding, dilation| [Axis::new(len, kernel, stride, padding, dilation); 2];
    let mut cases = vec![
        // Along one axis.
        Case::new(1, 1, 1, 1, &[Axis::new(5, 3, 1, 0, 1)]),
        Case::new(2, 1, 3, 5, &[Axis::new(50, 5, 2, 2, 3)]),
        Case::new(1, 1, 4, 9, &[Axis::new(300, 9, 1, 4, 1)]),
        Case::new(3, 2, 2, 3, &[Axis::new(17, 4, 3, 1, 2)]),
        // Two: usual ones, small ones, wide ones.
        Case::new(1, 1, 8, 16, &square(14, 3, 1, 1, 1)),
        Case::new(3, 1, 3, 8, &square(23, 7, 2, 3, 1)),
        Case::new(2, 1, 5, 7, &square(9, 3, 1, 0, 1)),
        Case::new(2, 1, 16, 24, &square(7, 1, 1, 0, 1)),
        Case::new(1, 1, 16, 13, &square(12, 1, 1, 0, 1)),
        Case::new(2, 1, 6, 5, &square(11, 1, 2, 0, 1)),
        Case::new(1, 1, 4, 4, &square(20, 3, 1, 2, 2)),
        Case::new(1, 1, 2, 3, &square(16, 5, 3, 2, 1)),
        Case::new(1, 1, 1, 1, &square(1, 1, 1, 0, 1)),
        Case::new(1, 1, 3, 2, &square(3, 3, 1, 0, 1)),
        Case::new(2, 1, 2, 2, &[Axis::new(6, 2, 2, 1, 1), Axis::new(40, 5, 1, 0, 2)]),
        Case::new(1, 1, 2, 17, &[Axis::new(1, 1, 1, 0, 1), Axis::new(70, 3, 2, 1, 1)]),
        // More padding than input, and a stride beyond it.
        Case::new(1, 1, 2, 2, &square(4, 3, 5, 6, 1)),
        // Groups, depthwise, several filters for each channel.
        Case::new(2, 4, 2, 3, &square(10, 3, 1, 1, 1)),
        Case::new(1, 8, 1, 1, &square(30, 3, 1, 1, 1)),
        Case::new(2, 5, 1, 1, &square(19, 5, 2, 2, 1)),
        Case::new(1, 3, 1, 2, &square(13, 3, 1, 2, 2)),
        Case::new(2, 4, 1, 1, &square(12, 3, 1, 0, 1)),
        // Three.
        Case::new(1, 1, 2, 4, &[Axis::new(6, 3, 1, 1, 1); 3]),
        Case::new(2, 1, 2, 3, &[Axis::new(7, 3, 2, 1, 1), Axis::new(8, 2, 1, 0, 2), Axis::new(9, 3, 3, 2, 1)]),
        Case::new(1, 3, 1, 1, &[Axis::new(5, 3, 1, 1, 1); 3]),
        Case::new(1, 1, 3, 3, &[Axis::new(4, 1, 1, 0, 1); 3]),
    ];
    let mut plain = cases[4].clone();
    plain.bias = false;
    cases.push(plain);
    for tensors in places() {
        cases.iter().for_each(|case| check(&tensors, case));
    }
}

#[test]
fn large_ones_are_divided_among_threads() {
    let square = |len, kernel, stride, padding| [Axis::new(len, kernel, stride, padding, 1); 2];
    let three = Tensors::on(&Runtime::new(vec![Box::new(CpuThreads(3))]).open("cpu").unwrap()).unwrap();
    check(&three, &Case::new(2, 1, 16, 24, &square(40, 3, 1, 1)));
    check(&three, &Case::new(1, 1, 3, 16, &square(90, 7, 2, 3)));
    check(&three, &Case::new(1, 1, 64, 40, &square(30, 1, 1, 0)));
    check(&three, &Case::new(2, 32, 1, 1, &square(40, 3, 1, 1)));
    check(&three, &Case::new(1, 1, 4, 8, &[Axis::new(14, 3, 1, 1, 1); 3]));
}

#[test]
fn more_than_a_thread_of_a_gpu_may_do_is_several_launches() {
    for tensors in places() {
        // 20,000 products a sum.
        check(&tensors, &Case::new(1, 1, 20, 2, &[Axis::new(1010, 1000, 4, 0, 1)]));
    }
}

/// The transpose by its definition: every input adds a kernel to the result.
fn transposed(case: &Case, x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<(f64, f64)> {
    let lengths = case.each(Axis::back);
    let (xs, ws) =
        ([&[case.batch, case.groups * case.channels][..], &case.each(|a| a.len)].concat(), transposed_weight(case));
    let os = [&[case.batch, case.groups * case.filters][..], &lengths].concat();
    let positions: usize = lengths.iter().product();
    let start = |i: usize| f64::from(bias[i / positions % bias.len()]);
    let mut all: Vec<(f64, f64)> = (0..os.iter().product()).map(|i| (start(i), start(i).abs())).collect();
    let taps = index_list(&case.each(|a| a.kernel));
    for at in index_list(&xs) {
        for filter in 0..case.filters {
            for tap in &taps {
                let place = |i: usize| {
                    let axis = case.axes[i];
                    (at[2 + i] * axis.stride + tap[i] * axis.dilation)
                        .checked_sub(axis.padding)
                        .filter(|&p| p < lengths[i])
                };
                let Some(places) = (0..case.axes.len()).map(place).collect::<Option<Vec<_>>>() else { continue };
                let to = [&[at[0], at[1] / case.channels * case.filters + filter][..], &places].concat();
                let by = [&[at[1], filter][..], tap].concat();
                let term = f64::from(x[flat(&xs, &at)]) * f64::from(weight[flat(&ws, &by)]);
                let sum = &mut all[flat(&os, &to)];
                *sum = (sum.0 + term, sum.1 + term.abs());
            }
        }
    }
    all
}

fn transposed_weight(case: &Case) -> Vec<usize> {
    [&[case.groups * case.channels, case.filters][..], &case.each(|a| a.kernel)].concat()
}

fn check_transposed(tensors: &Tensors, case: &Case) {
    let (xs, ws) = (case.x_shape(), transposed_weight(case));
    let (x, weight) = (noise(xs.iter().product(), 1), noise(ws.iter().product(), 2));
    let bias = noise(case.groups * case.filters, 3);
    let want = transposed(case, &x, &weight, &bias);
    let conv = case.conv().output_padding(&case.each(|a| a.more)[..]);
    let (x, weight) = (tensors.from_slice(&x, &xs).unwrap(), tensors.from_slice(&weight, &ws).unwrap());
    let y = x.conv_transpose(&weight, Some(&tensors.from_slice(&bias, &[bias.len()]).unwrap()), &conv).unwrap();
    assert_eq!(y.shape()[2..], case.each(Axis::back));
    close(&format!("{case:?}"), 2e-6, 0.0, &y.to_vec::<f32>().unwrap(), &want);
}

#[test]
fn a_transposed_convolution_adds_every_kernel_where_it_belongs() {
    let axis = |len, kernel, stride, padding, dilation, more| Axis { len, kernel, stride, padding, dilation, more };
    let cases = [
        Case::new(1, 1, 1, 1, &[axis(4, 3, 1, 0, 1, 0)]),
        Case::new(2, 1, 3, 2, &[axis(7, 4, 3, 2, 2, 2)]),
        Case::new(2, 1, 4, 3, &[axis(5, 3, 2, 1, 1, 1), axis(6, 2, 2, 0, 1, 0)]),
        Case::new(1, 3, 2, 2, &[axis(5, 3, 2, 1, 1, 1), axis(4, 3, 1, 1, 2, 1)]),
        Case::new(1, 4, 1, 1, &[axis(6, 3, 2, 1, 1, 0); 2]),
        Case::new(1, 2, 2, 1, &[axis(3, 3, 2, 1, 1, 1), axis(3, 2, 1, 0, 1, 0), axis(4, 3, 3, 1, 2, 2)]),
    ];
    for tensors in places() {
        cases.iter().for_each(|case| check_transposed(&tensors, case));
        // Of nothing there is nothing, and views are as good as copies.
        let (x, weight) = (random(&tensors, &[2, 4, 5], 1), random(&tensors, &[4, 3, 3], 2));
        let conv = Conv::new().stride(2).algorithm(Algorithm::Im2col);
        let y = x.conv_transpose(&weight, None, &conv).unwrap().to_vec::<f32>().unwrap();
        let turned = random(&tensors, &[2, 4, 5], 1).flip(2).unwrap();
        let turned = copied(&turned).flip(2).unwrap().conv_transpose(&weight, None, &conv).unwrap();
        assert_eq!(turned.to_vec::<f32>().unwrap(), y);
        assert_eq!(x.slice(0, ..0).unwrap().conv_transpose(&weight, None, &conv).unwrap().shape(), [0, 3, 11]);
    }
}

#[test]
fn what_cannot_be_transposed_is_an_error() {
    for tensors in places() {
        let (x, weight) = (tensors.ones(&[1, 4, 5, 5]).unwrap(), tensors.ones(&[4, 2, 3, 3]).unwrap());
        let with = |conv: Conv| x.conv_transpose(&weight, None, &conv);
        refused(
            "other channels",
            tensors.ones(&[1, 3, 5, 5]).unwrap().conv_transpose(&weight, None, &Conv::new()),
            "groups",
        );
        refused("groups", with(Conv::new().groups(3)), "groups have to divide");
        refused("much more", with(Conv::new().stride(2).output_padding(2)), "smaller than the stride or the dilation");
        refused("padding", with(Conv::new().padding(4)), "takes away all");
        refused("stride", with(Conv::new().stride(0)), "at least one");
        refused("dilation", with(Conv::new().dilation([1, 0])), "at least one");
        refused("numbers", with(Conv::new().output_padding([0, 0, 0])), "one for each axis");
        refused("an algorithm", with(Conv::new().algorithm(Algorithm::Fft)), "does no transposed");
        let bias = tensors.ones(&[4]).unwrap();
        refused("a bias", x.conv_transpose(&weight, Some(&bias), &Conv::new()), "one for each channel");
        refused("integers", x.cast(DType::I32).unwrap().conv_transpose(&weight, None, &Conv::new()), "takes f32");
        refused("too large", with(Conv::new().stride(usize::MAX / 4)), "more than");
    }
}

#[test]
fn an_algorithm_that_cannot_do_a_shape_says_so() {
    for tensors in places() {
        let force = |x: &[usize], weight: &[usize], conv: Conv| {
            let (x, weight) = (tensors.ones(x).unwrap(), tensors.ones(weight).unwrap());
            assert!(!conv.candidates(&x, &weight).unwrap().contains(&Algorithm::Winograd));
            let conv = conv.algorithm(Algorithm::Winograd);
            assert!(matches!(conv.chosen(&x, &weight), Err(Error::Algorithm { .. })));
            refused("winograd", x.conv(&weight, None, &conv), "winograd takes two axes, a kernel of 3 by 3");
        };
        force(&[1, 2, 9], &[2, 2, 3], Conv::new());
        force(&[1, 2, 9, 9, 9], &[2, 2, 3, 3, 3], Conv::new());
        force(&[1, 2, 9, 9], &[2, 2, 5, 5], Conv::new());
        force(&[1, 2, 9, 9], &[2, 2, 3, 3], Conv::new().stride(2));
        force(&[1, 2, 9, 9], &[2, 2, 3, 3], Conv::new().dilation([1, 2]));
        force(&[1, 2, 9, 9], &[2, 1, 3, 3], Conv::new().groups(2));
    }
}

fn launches(tensors: &Tensors, call: impl FnOnce() -> Tensor) -> u64 {
    tensors.synchronize().unwrap();
    let before = tensors.device().counts();
    let _result = call();
    tensors.synchronize().unwrap();
    (tensors.device().counts() - before).launches
}

#[test]
fn algorithms_are_told_apart_by_what_they_launch() {
    for (device, expected) in [("cpu", [1, 1, 2, 10]), ("gpu", [1, 1, 4, 12])] {
        // A device of its own: nobody else's commands are counted.
        let Ok(device) = millrace::runtime().open(device) else { continue };
        let tensors = Tensors::on(&device).unwrap();
        let (x, weight) = (random(&tensors, &[2, 8, 30, 30], 1), random(&tensors, &[8, 8, 3, 3], 2));
        let bias = random(&tensors, &[8], 3);
        let of = |algorithm| {
            let conv = Conv::new().padding(1).algorithm(algorithm);
            launches(&tensors, || x.conv(&weight, Some(&bias), &conv).unwrap())
        };
        // Sums; columns; transforms of weights, inputs and outputs and a product; padding, transforms along two axes of
        // both, a product, back along two axes, and the bias.
        assert_eq!(Algorithm::ALL.map(of), expected, "{}", device.info().id);
        let names = |algorithm| {
            let profiler = device.profile(&millrace::ProfileOptions::default()).unwrap();
            let _y = x.conv(&weight, None, &Conv::new().algorithm(algorithm)).unwrap();
            tensors.synchronize().unwrap();
            let profile = profiler.stop();
            profile.spans().iter().map(|span| profile.op(span).to_owned()).collect::<Vec<_>>().join(" ")
        };
        assert!(names(Algorithm::Direct).contains("conv_direct"), "{}", names(Algorithm::Direct));
        assert!(names(Algorithm::Im2col).contains("conv_im2col"));
        assert!(names(Algorithm::Winograd).contains("winograd_weights"));
        assert!(names(Algorithm::Fft).contains("conv_spectral"));
        // A transposed one is a product and a sum; normalization and pooling are one launch each.
        assert_eq!(launches(&tensors, || x.conv_transpose(&weight, None, &Conv::new().stride(2)).unwrap()), 2);
        assert_eq!(launches(&tensors, || x.max_pool(2, &Pool::new()).unwrap()), 1);
        assert_eq!(launches(&tensors, || x.batch_norm(&bias, &bias, None, None, 2.0).unwrap()), 1);
        assert_eq!(launches(&tensors, || x.layer_norm(2, None, None, 1e-5).unwrap()), 1);
    }
}

#[test]
fn views_are_convolved_like_copies() {
    for tensors in places() {
        let x = random(&tensors, &[9, 6, 2, 11], 1).permute(&[2, 1, 0, 3]).unwrap().flip(3).unwrap();
        let weight = random(&tensors, &[3, 3, 6, 4], 2).permute(&[3, 2, 0, 1]).unwrap();
        let bias = random(&tensors, &[8], 3).slice_step(0, .., 2).unwrap();
        let (packed_x, packed_weight) = (copied(&x), copied(&weight));
        let conv = Conv::new().padding(1);
        let want = packed_x.conv(&packed_weight, Some(&copied(&bias)), &conv).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(x.conv(&weight, Some(&bias), &conv).unwrap().to_vec::<f32>().unwrap(), want);
        // One image for all.
        let one = random(&tensors, &[1, 6, 5, 5], 4);
        let all = one.expand(&[3, 6, 5, 5]).unwrap().conv(&weight, None, &conv).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(all, one.conv(&weight, None, &conv).unwrap().to_vec::<f32>().unwrap().repeat(3));
        // A part of a buffer.
        let part = packed_x.slice(0, 1..).unwrap().conv(&weight, Some(&bias), &conv).unwrap();
        assert_eq!(part.to_vec::<f32>().unwrap(), want[want.len() / 2..]);
    }
}

fn copied(x: &Tensor) -> Tensor {
    x.tensors().from_slice(&x.to_vec::<f32>().unwrap(), x.shape()).unwrap()
}

#[test]
fn an_empty_batch_has_an_empty_result() {
    for tensors in places() {
        let (x, weight) = (tensors.zeros(&[0, 3, 8, 8]).unwrap(), tensors.ones(&[4, 3, 3, 3]).unwrap());
        for algorithm in Conv::new().candidates(&x, &weight).unwrap() {
            let y = x.conv(&weight, None, &Conv::new().algorithm(algorithm)).unwrap();
            assert_eq!((y.shape(), y.to_vec::<f32>().unwrap().len()), (&[0, 4, 6, 6][..], 0), "{algorithm}");
        }
    }
}

#[test]
fn what_is_not_a_number_stays_where_the_kernel_sees_it() {
    for tensors in places() {
        let mut elements = vec![1.0f32; 100];
        elements[37] = f32::NAN;
        let x = tensors.from_slice(&elements, &[1, 1, 10, 10]).unwrap();
        let weight = tensors.ones(&[1, 1, 3, 3]).unwrap();
        for algorithm in [Algorithm::Direct, Algorithm::Im2col] {
            let conv = Conv::new().padding(1).algorithm(algorithm);
            let y = x.conv(&weight, None, &conv).unwrap().to_vec::<f32>().unwrap();
            for (i, y) in y.iter().enumerate() {
                let near = (i / 10).abs_diff(3) <= 1 && (i % 10).abs_diff(7) <= 1;
                assert_eq!(y.is_nan(), near, "{algorithm}, {i}");
            }
        }
    }
}

fn refused(what: &str, got: Result<Tensor, Error>, part: &str) {
    let error = got.err().unwrap_or_else(|| panic!("{what} was accepted"));
    assert!(!matches!(error, Error::Device(_)), "{what}: {error}");
    assert!(error.to_string().contains(part), "{what}: {error}");
}

#[test]
fn what_does_not_fit_is_an_error_that_says_why() {
    for tensors in places() {
        let x = tensors.ones(&[2, 6, 8, 8]).unwrap();
        let weight = tensors.ones(&[4, 6, 3, 3]).unwrap();
        let conv = Conv::new;
        let with = |conv: Conv| x.conv(&weight, None, &conv);
        refused("groups that divide nothing", with(conv().groups(4)), "groups have to divide");
        let grouped = tensors.ones(&[4, 2, 3, 3]).unwrap();
        refused(
            "filters that groups do not divide",
            x.conv(&grouped, None, &conv().groups(3)),
            "groups have to divide",
        );
        refused("no groups", with(conv().groups(0)), "groups 0 have to be at least one");
        refused("other channels", x.conv(&tensors.ones(&[4, 5, 3, 3]).unwrap(), None, &conv()), "[4, 5, 3, 3]");
        refused(
            "a large kernel",
            x.conv(&tensors.ones(&[4, 6, 9, 3]).unwrap(), None, &conv()),
            "larger than the input",
        );
        let just = x.conv(&tensors.ones(&[4, 6, 10, 3]).unwrap(), None, &conv().padding(1)).unwrap();
        assert_eq!(just.shape(), [2, 4, 1, 8]);
        refused("dilation past the edge", with(conv().dilation(4)), "larger than the input");
        assert_eq!(with(conv().dilation([3, 1])).unwrap().shape(), [2, 4, 2, 6]);
        refused("dilation beyond counting", with(conv().dilation(usize::MAX / 2)), "more than");
        refused("padding beyond counting", with(conv().padding(usize::MAX / 2)), "more than");
        refused("a result beyond counting", with(conv().padding(1 << 20)), "more than");
        refused("stride zero", with(conv().stride([1, 0])), "stride [1, 0] has to be at least one");
        refused("dilation zero", with(conv().dilation(0)), "dilation [0] has to be at least one");
        refused("too many strides", with(conv().stride([1, 1, 1])), "one number, or one for each axis");
        refused("no strides", with(conv().stride([])), "one number, or one for each axis");
        refused("output padding", with(conv().output_padding(1)), "is for transposed");
        refused("a kernel of length zero", x.conv(&tensors.ones(&[4, 6, 0, 3]).unwrap(), None, &conv()), "length zero");
        refused("no filters", x.conv(&tensors.ones(&[0, 6, 3, 3]).unwrap(), None, &conv()), "length zero");
        let thin = tensors.ones(&[1, 6, 0, 8]).unwrap();
        refused("an input of length zero", thin.conv(&weight, None, &conv().padding(2)), "length zero");
        refused("too few axes", x.flatten().unwrap().conv(&weight, None, &conv()), "one to three axes");
        refused("other axes", x.conv(&tensors.ones(&[4, 6, 3]).unwrap(), None, &conv()), "one to three axes");
        let many = tensors.ones(&[1, 1, 2, 2, 2, 2]).unwrap();
        refused("too many axes", many.conv(&many, None, &conv()), "one to three axes");
        let whole = x.cast(DType::I32).unwrap();
        refused("integers", whole.conv(&weight, None, &conv()), "takes f32, not i32");
        refused("integer weights", x.conv(&weight.cast(DType::I32).unwrap(), None, &conv()), "takes f32, not i32");
        let complex = tensors.full(&[4, 6, 3, 3], Complex32::I).unwrap();
        refused("complex weights", x.conv(&complex, None, &conv()), "takes f32, not complex");
        refused("a long bias", x.conv(&weight, Some(&tensors.ones(&[6]).unwrap()), &conv()), "one for each channel");
        let bias = tensors.full(&[4], 1).unwrap();
        refused("an integer bias", x.conv(&weight, Some(&bias), &conv()), "takes f32, not i32");
        let stranger = Tensors::on(tensors.device()).unwrap().ones(&[4, 6, 3, 3]).unwrap();
        refused("a stranger", x.conv(&stranger, None, &conv()), "different `Tensors`");
    }
}

fn axis() -> impl Strategy<Value = Axis> {
    (1usize..5, 1usize..4, 0usize..4, 1usize..4, 0usize..20).prop_map(|(kernel, stride, padding, dilation, more)| {
        let extent = (kernel - 1) * dilation + 1;
        Axis::new(extent.saturating_sub(2 * padding).max(1) + more, kernel, stride, padding, dilation)
    })
}

fn case() -> impl Strategy<Value = Case> {
    let sizes = (1usize..3, 1usize..4, 1usize..4, 1usize..10, any::<bool>());
    (sizes, proptest::collection::vec(axis(), 1..=3))
        .prop_map(|((batch, groups, channels, filters, bias), axes)| {
            let axes = if axes.len() == 3 {
                axes.into_iter().map(|axis| Axis { len: axis.len.min(9), ..axis }).collect()
            } else {
                axes
            };
            Case { batch, groups, channels, filters, axes, bias }
        })
        .prop_filter("a kernel that fits", |case| {
            case.axes.iter().all(|a| a.len + 2 * a.padding > (a.kernel - 1) * a.dilation)
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_small_convolution_is_the_sum(case in case()) {
        for tensors in places() {
            check(&tensors, &case);
        }
    }
}
