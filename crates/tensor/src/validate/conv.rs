//! Convolutions by every algorithm, pooling and normalization, against the sums that they are.

use super::{
    Run,
    reference::{Array, Expected},
    sample::{Domain, Sample},
};
use crate::{Algorithm, Conv, DType, Pool, Result, Tensor};

/// Sums in another order: relative to the magnitudes of what is added up.
const SUMMED: f64 = 3e-6;
/// Transforms spread errors over neighbours: relative to the largest of those.
const TRANSFORMED: f64 = 1e-5;
/// A few roundings.
const ROUNDED: f64 = 1e-6;

const UNIT: Domain = Domain { range: (-1.0, 1.0), huge: false };

/// What slides over an axis.
#[derive(Debug, Clone, Copy)]
struct Slide {
    len: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Slide {
    const fn new([len, kernel, stride, padding, dilation]: [usize; 5]) -> Self {
        Self { len, kernel, stride, padding, dilation }
    }

    fn out(&self) -> usize {
        (self.len + 2 * self.padding - (self.kernel - 1) * self.dilation - 1) / self.stride + 1
    }

    /// The result's length of the transpose.
    fn back(&self) -> usize {
        (self.len - 1) * self.stride + (self.kernel - 1) * self.dilation + 1 - 2 * self.padding
    }

    fn place(&self, position: usize, k: usize, len: usize) -> Option<usize> {
        (position * self.stride + k * self.dilation).checked_sub(self.padding).filter(|&place| place < len)
    }
}

/// Where every position of a kernel is, for one position of the output.
fn places(slides: &[Slide], at: &[usize], k: &[usize], lens: &[usize]) -> Option<Vec<usize>> {
    slides.iter().enumerate().map(|(i, slide)| slide.place(at[i], k[i], lens[i])).collect()
}

fn each(slides: &[Slide], of: impl Fn(&Slide) -> usize) -> Vec<usize> {
    slides.iter().map(of).collect()
}

/// All positions of a shape.
fn all_of(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = Vec::new();
    Array::from_fn(shape, |at| {
        all.push(at.to_vec());
        0.0
    });
    all
}

fn convolved(x: &Array, weight: &Array, bias: &Array, slides: &[Slide], groups: usize) -> Expected {
    let (channels, filters) = (weight.shape[1], weight.shape[0] / groups);
    let shape = [&[x.shape[0], weight.shape[0]][..], &each(slides, Slide::out)].concat();
    let (taps, lens) = (all_of(&weight.shape[2..]), each(slides, |slide| slide.len));
    let mut scale = Vec::new();
    let array = Array::from_fn(&shape, |at| {
        let start = bias.data[at[1]];
        let (mut sum, mut size) = (start, start.abs());
        for channel in 0..channels {
            for k in &taps {
                if let Some(place) = places(slides, &at[2..], k, &lens) {
                    let from = [&[at[0], at[1] / filters * channels + channel][..], &place].concat();
                    let term = x.at(&from) * weight.at(&[&[at[1], channel][..], k].concat());
                    (sum, size) = (sum + term, size + term.abs());
                }
            }
        }
        scale.push(size);
        sum
    });
    Expected { array, scale }
}

fn transposed(x: &Array, weight: &Array, slides: &[Slide], groups: usize) -> Expected {
    let (channels, filters) = (weight.shape[0] / groups, weight.shape[1]);
    let lens = each(slides, Slide::back);
    let shape = [&[x.shape[0], groups * filters][..], &lens].concat();
    let mut want = Expected { array: Array::from_fn(&shape, |_| 0.0), scale: vec![0.0; shape.iter().product()] };
    for at in all_of(&x.shape) {
        for k in all_of(&weight.shape[2..]) {
            let Some(place) = places(slides, &at[2..], &k, &lens) else { continue };
            for filter in 0..filters {
                let to = [&[at[0], at[1] / channels * filters + filter][..], &place].concat();
                let term = x.at(&at) * weight.at(&[&[at[1], filter][..], &k].concat());
                let flat = shape.iter().zip(&to).fold(0, |flat, (dim, at)| flat * dim + at);
                want.array.data[flat] += term;
                want.scale[flat] += term.abs();
            }
        }
    }
    want
}

fn settings(slides: &[Slide], groups: usize) -> Conv {
    Conv::new()
        .stride(&each(slides, |slide| slide.stride)[..])
        .padding(&each(slides, |slide| slide.padding)[..])
        .dilation(&each(slides, |slide| slide.dilation)[..])
        .groups(groups)
}

/// A case: batch, groups, and channels and filters of a group.
fn conv(run: &mut Run<'_>, name: &str, sizes: [usize; 4], slides: &[Slide]) -> Result<()> {
    let [batch, groups, channels, filters] = sizes;
    let (lens, kernel) = (each(slides, |slide| slide.len), each(slides, |slide| slide.kernel));
    let x_shape = [&[batch, groups * channels][..], &lens].concat();
    let weight_shape = [&[groups * filters, channels][..], &kernel].concat();
    let special = name == "nan and inf";
    let x = match name {
        "non-contiguous" | "nan and inf" => run.samples.tangled(&x_shape, DType::F32, UNIT, special)?,
        _ => run.samples.shaped(&x_shape, DType::F32, UNIT)?,
    };
    let weight = match name {
        "non-contiguous" => run.samples.tangled(&weight_shape, DType::F32, UNIT, false)?,
        _ => run.samples.shaped(&weight_shape, DType::F32, UNIT)?,
    };
    let bias = run.samples.shaped(&[groups * filters], DType::F32, UNIT)?;
    let (want, settings) = (convolved(&x.array, &weight.array, &bias.array, slides, groups), settings(slides, groups));
    let text = |shape: &[usize]| shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x");
    let size = format!("{name} {}, {}", text(&x_shape), text(&weight_shape));
    for algorithm in settings.candidates(&x.tensor, &weight.tensor)? {
        let exact = matches!(algorithm, Algorithm::Direct | Algorithm::Im2col);
        // One number that is none is everywhere in a transform.
        if special && !exact {
            continue;
        }
        let got = x.tensor.conv(&weight.tensor, Some(&bias.tensor), &settings.clone().algorithm(algorithm));
        let op = format!("conv {algorithm}");
        if exact {
            run.compare(&op, size.clone(), SUMMED, got, &want)?;
        } else {
            let largest = want.scale.iter().fold(0.0, |largest: f64, scale| largest.max(*scale));
            let spread = Expected { array: want.array.clone(), scale: vec![largest; want.scale.len()] };
            run.compare(&op, size.clone(), TRANSFORMED, got, &spread)?;
        }
    }
    Ok(())
}

fn back(run: &mut Run<'_>, sizes: [usize; 4], slides: &[Slide]) -> Result<()> {
    let [batch, groups, channels, filters] = sizes;
    let x_shape = [&[batch, groups * channels][..], &each(slides, |slide| slide.len)].concat();
    let weight_shape = [&[groups * channels, filters][..], &each(slides, |slide| slide.kernel)].concat();
    let x = run.samples.shaped(&x_shape, DType::F32, UNIT)?;
    let weight = run.samples.shaped(&weight_shape, DType::F32, UNIT)?;
    let got = x.tensor.conv_transpose(&weight.tensor, None, &settings(slides, groups));
    let want = transposed(&x.array, &weight.array, slides, groups);
    run.compare("conv_transpose", format!("random {x_shape:?}, {weight_shape:?}"), SUMMED, got, &want)
}

/// The windows of a tensor, folded.
fn windows(x: &Array, slides: &[Slide], fold: impl Fn(&[f64]) -> (f64, f64)) -> Expected {
    let shape = [&x.shape[..2], &each(slides, Slide::out)].concat();
    let (taps, lens) = (all_of(&each(slides, |slide| slide.kernel)), each(slides, |slide| slide.len));
    let mut scale = Vec::new();
    let array = Array::from_fn(&shape, |at| {
        let seen = taps.iter().filter_map(|k| places(slides, &at[2..], k, &lens));
        let seen: Vec<f64> = seen.map(|place| x.at(&[&at[..2], &place].concat())).collect();
        let (value, size) = fold(&seen);
        scale.push(size);
        value
    });
    Expected { array, scale }
}

fn pooling(run: &mut Run<'_>, name: &str, slides: &[Slide]) -> Result<()> {
    let shape = [&[2, 3][..], &each(slides, |slide| slide.len)].concat();
    let s = match name {
        "random" => run.samples.shaped(&shape, DType::F32, UNIT)?,
        _ => run.samples.tangled(&shape, DType::F32, UNIT, name == "nan and inf")?,
    };
    let kernel = each(slides, |slide| slide.kernel);
    let pool =
        Pool::new().stride(&each(slides, |slide| slide.stride)[..]).padding(&each(slides, |slide| slide.padding)[..]);
    let size = format!("{name} {shape:?}, {kernel:?}");
    let largest =
        windows(&s.array, slides, |all| (all.iter().copied().fold(f64::NEG_INFINITY, super::reference::maximum), 0.0));
    run.compare("max_pool", size.clone(), 0.0, s.tensor.max_pool(&kernel[..], &pool), &largest)?;
    let mean = windows(&s.array, slides, |all| {
        let n = all.len() as f64;
        (all.iter().sum::<f64>() / n, all.iter().map(|x| x.abs()).sum::<f64>() / n)
    });
    run.compare("avg_pool", size, ROUNDED, s.tensor.avg_pool(&kernel[..], &pool.count_padding(false)), &mean)
}

fn normalization(run: &mut Run<'_>, name: &str, shape: &[usize]) -> Result<()> {
    let x = match name {
        "random" => run.samples.shaped(shape, DType::F32, UNIT)?,
        _ => run.samples.tangled(shape, DType::F32, UNIT, false)?,
    };
    let positive = Domain { range: (0.1, 2.0), huge: false };
    let size = format!("{name} {shape:?}");
    let mut of = |len: &[usize], domain| run.samples.shaped(len, DType::F32, domain);
    let [mean, weight, bias] = [of(&shape[1..2], UNIT)?, of(&shape[1..2], UNIT)?, of(&shape[1..2], UNIT)?];
    let (variance, epsilon) = (of(&shape[1..2], positive)?, 1e-3f32);
    let inner: usize = shape[2..].iter().product();
    let want = scaled(&x, |i| {
        let (c, x) = (i / inner % shape[1], x.array.data[i]);
        let by = weight.array.data[c] / (variance.array.data[c] + f64::from(epsilon)).sqrt();
        let (apart, bias) = (x - mean.array.data[c], bias.array.data[c]);
        (apart * by + bias, (x.abs() + mean.array.data[c].abs()) * by.abs() + bias.abs())
    });
    let got = x.tensor.batch_norm(&mean.tensor, &variance.tensor, Some(&weight.tensor), Some(&bias.tensor), epsilon);
    run.compare("batch_norm", size.clone(), ROUNDED, got, &want)?;
    let along = &shape[1..];
    let mut of = |domain| run.samples.shaped(along, DType::F32, domain);
    let (weight, bias) = (of(UNIT)?, of(UNIT)?);
    let n: usize = along.iter().product();
    let want = scaled(&x, |i| {
        let row = &x.array.data[i / n * n..][..n];
        let mean = row.iter().sum::<f64>() / n as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
        let by = weight.array.data[i % n] / (variance + f64::from(epsilon)).sqrt();
        let bias = bias.array.data[i % n];
        ((x.array.data[i] - mean) * by + bias, (x.array.data[i].abs() + 1.0) * by.abs() + bias.abs())
    });
    let got: Result<Tensor> = x.tensor.layer_norm(along.len(), Some(&weight.tensor), Some(&bias.tensor), epsilon);
    run.compare("layer_norm", size, 3.0 * ROUNDED, got, &want)
}

/// Every element of a sample, and what its error is relative to.
fn scaled(x: &Sample, each: impl Fn(usize) -> (f64, f64)) -> Expected {
    let (data, scale) = (0..x.array.data.len()).map(each).unzip();
    Expected { array: Array { shape: x.array.shape.clone(), data }, scale }
}

pub(super) fn all(run: &mut Run<'_>) -> Result<()> {
    let square = |each: [usize; 5]| [Slide::new(each); 2];
    conv(run, "random", [2, 1, 3, 5], &[Slide::new([40, 5, 2, 2, 3])])?;
    conv(run, "random", [2, 1, 8, 12], &square([13, 3, 1, 1, 1]))?;
    conv(run, "random", [1, 1, 3, 6], &square([21, 7, 2, 3, 1]))?;
    conv(run, "random", [1, 1, 16, 9], &square([8, 1, 1, 0, 1]))?;
    conv(run, "random", [2, 3, 2, 2], &square([10, 3, 1, 2, 2]))?;
    conv(run, "random", [1, 8, 1, 1], &square([19, 3, 1, 1, 1]))?;
    conv(run, "random", [1, 1, 2, 3], &[Slide::new([6, 3, 1, 1, 1]); 3])?;
    conv(run, "one", [1, 1, 1, 1], &square([1, 1, 1, 0, 1]))?;
    conv(run, "non-contiguous", [2, 1, 4, 4], &square([9, 3, 1, 1, 1]))?;
    conv(run, "nan and inf", [1, 1, 2, 5], &square([12, 3, 1, 1, 1]))?;
    conv(run, "large", [1, 1, 16, 16], &square([run.samples.large.isqrt().clamp(6, 32), 3, 1, 1, 1]))?;
    back(run, [2, 1, 3, 4], &[Slide::new([9, 4, 3, 2, 1])])?;
    back(run, [1, 2, 2, 3], &square([6, 3, 2, 1, 1]))?;
    back(run, [1, 1, 2, 2], &[Slide::new([4, 2, 2, 0, 2]); 3])?;
    for name in ["random", "non-contiguous", "nan and inf"] {
        pooling(run, name, &[Slide::new([17, 3, 2, 1, 1])])?;
        pooling(run, name, &square([12, 2, 2, 0, 1]))?;
        pooling(run, name, &[Slide::new([7, 3, 1, 1, 1]); 3])?;
    }
    for name in ["random", "non-contiguous"] {
        normalization(run, name, &[3, 5, 7])?;
        normalization(run, name, &[2, 4, 9, 70])?;
    }
    let (x, weight) =
        (run.samples.shaped(&[1, 2, 4], DType::F32, UNIT)?, run.samples.shaped(&[2, 2, 5], DType::F32, UNIT)?);
    run.refused(
        "conv direct",
        "a kernel larger than its input".to_owned(),
        x.tensor.conv(&weight.tensor, None, &Conv::new()),
    )
}
