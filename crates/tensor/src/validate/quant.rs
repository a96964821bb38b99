//! Numbers in eight bits. Sums are exact, so are numbers that are quantized; what is scaled is rounded twice.

use super::{
    Run,
    reference::{Array, Expected},
    sample::{Case, Domain, Random},
};
use crate::{Conv, DType, Quantized, Result, Tensor, Tensors, quant::Parameters};

/// A whole number times two scales.
const SCALED: f64 = 1.5e-7;

const SCALE: f32 = 0.7;
const ZERO: i32 = -5;

/// From floats and back.
pub(super) fn conversions(run: &mut Run<'_>, case: Case) -> Result<()> {
    let s = run.samples.any(case, DType::F32, Domain { range: (-120.0, 120.0), huge: true })?;
    let dims: Vec<_> = s.tensor.shape().iter().map(ToString::to_string).collect();
    let size = format!("{} {}", case.name(), dims.join("x"));
    let q = s.tensor.quantize(&Parameters::new(vec![SCALE], vec![ZERO], None)?)?;
    let nearest = s.array.map(|x| match (x as f32) * SCALE.recip() {
        steps if steps.is_nan() => f64::from(ZERO),
        steps => (f64::from(steps).round_ties_even() + f64::from(ZERO)).clamp(-128.0, 127.0),
    });
    let back = nearest.map(|q| (q - f64::from(ZERO)) * f64::from(SCALE));
    run.compare("quantize", size.clone(), 0.0, whole(&q), &nearest.into())?;
    run.compare("dequantize", size, SCALED, q.dequantize(), &back.into())
}

/// The numbers as a tensor of `i32`.
fn whole(q: &Quantized) -> Result<Tensor> {
    q.tensors().from_vec(q.to_vec()?.into_iter().map(i32::from).collect(), q.shape())
}

/// A tensor of any numbers with a scale per index of an axis, and what they stand for, whole and scaled.
fn sample(tensors: &Tensors, random: &mut Random, shape: &[usize], axis: usize) -> Result<(Quantized, Array, Array)> {
    let n = shape.iter().product();
    let numbers: Vec<i8> = (0..n).map(|_| random.bits() as i8).collect();
    // Powers of two, so that scaling does not round.
    let scales: Vec<f32> = (0..shape[axis]).map(|_| [0.0625, 0.125, 0.5, 1.0][random.bits() as usize % 4]).collect();
    let zeros: Vec<i32> = (0..shape[axis]).map(|_| i32::from(random.bits() as i8)).collect();
    let q =
        tensors.quantized(&numbers, shape, &Parameters::new(scales.clone(), zeros.clone(), Some(axis as isize))?)?;
    let inner: usize = shape[axis + 1..].iter().product();
    let channel = |at: usize| at / inner % shape[axis];
    let stands = |at: usize| f64::from(numbers[at]) - f64::from(zeros[channel(at)]);
    let of = |value: &dyn Fn(usize) -> f64| Array { shape: shape.to_vec(), data: (0..n).map(value).collect() };
    Ok((q, of(&stands), of(&|at| stands(at) * f64::from(scales[channel(at)]))))
}

/// Products and convolutions.
pub(super) fn products(run: &mut Run<'_>) -> Result<()> {
    for [m, k, n] in [[1, 1, 1], [5, 7, 9], [33, 130, 65], [70, 513, 40], [64, 1024, 96]] {
        let samples = &mut run.samples;
        let (a, a_whole, a_scaled) = sample(samples.tensors, &mut samples.random, &[m, k], 0)?;
        let (b, b_whole, b_scaled) = sample(samples.tensors, &mut samples.random, &[k, n], 1)?;
        let size = format!("random {m}x{k}, {k}x{n}");
        run.compare("int8 matmul i32", size.clone(), 0.0, a.matmul_i32(&b), &a_whole.matmul(&b_whole))?;
        run.compare("int8 matmul", size, SCALED, a.matmul(&b), &a_scaled.matmul(&b_scaled))?;
    }
    for [channels, filters, side, kernel, stride, padding] in
        [[1, 1, 5, 3, 1, 0], [3, 8, 17, 7, 2, 3], [16, 16, 12, 3, 1, 1], [6, 4, 9, 1, 2, 0]]
    {
        let samples = &mut run.samples;
        let (w, _, w_scaled) = sample(samples.tensors, &mut samples.random, &[filters, channels, kernel, kernel], 0)?;
        let shape = [2, channels, side, side];
        let numbers: Vec<i8> = (0..shape.iter().product()).map(|_| samples.random.bits() as i8).collect();
        let x = samples.tensors.quantized(&numbers, &shape, &Parameters::new(vec![0.5], vec![ZERO], None)?)?;
        let data = numbers.iter().map(|&q| (f64::from(q) - f64::from(ZERO)) * 0.5).collect();
        let x_scaled = Array { shape: shape.to_vec(), data };
        let size =
            format!("random 2x{channels}x{side}x{side}, {filters}x{channels}x{kernel}x{kernel} s{stride} p{padding}");
        let got = x.conv(&w, &Conv::new().stride(stride).padding(padding));
        run.compare("int8 conv", size, SCALED, got, &convolved(&x_scaled, &w_scaled, stride, padding))?;
    }
    Ok(())
}

/// A convolution of squares, one product after the other.
fn convolved(x: &Array, w: &Array, stride: usize, padding: usize) -> Expected {
    let (side, kernel) = (x.shape[2], w.shape[2]);
    let out = (side + 2 * padding - kernel) / stride + 1;
    let sum = |each: &dyn Fn(f64) -> f64| {
        Array::from_fn(&[x.shape[0], w.shape[0], out, out], |at| {
            let mut sum = 0.0;
            for (c, i, j) in
                (0..w.shape[1]).flat_map(|c| (0..kernel).flat_map(move |i| (0..kernel).map(move |j| (c, i, j))))
            {
                let place = |at: usize, k: usize| (at * stride + k).checked_sub(padding).filter(|place| *place < side);
                if let (Some(y), Some(z)) = (place(at[2], i), place(at[3], j)) {
                    sum += each(x.at(&[at[0], c, y, z]) * w.at(&[at[1], c, i, j]));
                }
            }
            sum
        })
    };
    Expected { array: sum(&|x| x), scale: sum(&f64::abs).data }
}
