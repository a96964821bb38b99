//! Convolutions, next to candle's if the feature `candle` is on.

#[cfg(feature = "candle")]
use std::hint::black_box;
use std::{fmt, sync::Arc};

#[cfg(feature = "candle")]
use candle_core as candle;
use millrace::tensor::{Conv, Tensor};

use super::{Effort, context};
use crate::{
    Error, Result,
    gpu::{Context, numbers},
    measure::{Metric, Side, batch_timed, warm_up},
    report::Row,
    targets::{Conditions, best, judge, p50},
};

/// A convolution of squares, without a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    batch: usize,
    channels: usize,
    filters: usize,
    groups: usize,
    len: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, channels, filters, len, kernel, stride, .. } = self;
        match self.groups {
            1 => write!(f, "{channels}-{filters}-{len}-k{kernel}")?,
            _ => write!(f, "depthwise-{channels}-{len}-k{kernel}")?,
        }
        if *stride > 1 {
            write!(f, "-s{stride}")?;
        }
        write!(f, "-batch-{batch}")
    }
}

fn cases(small: bool) -> Vec<Case> {
    let case = |channels, filters, groups, len, kernel, stride, padding| Case {
        batch: 1,
        channels,
        filters,
        groups,
        len,
        kernel,
        stride,
        padding,
    };
    let one = if small {
        vec![
            case(8, 8, 1, 14, 3, 1, 1),
            case(3, 8, 1, 32, 7, 2, 3),
            case(16, 16, 16, 14, 3, 1, 1),
            case(32, 32, 1, 7, 1, 1, 0),
        ]
    } else {
        vec![
            case(64, 64, 1, 28, 3, 1, 1),
            case(3, 64, 1, 224, 7, 2, 3),
            case(128, 128, 128, 56, 3, 1, 1),
            case(256, 256, 1, 28, 1, 1, 0),
        ]
    };
    one.into_iter().flat_map(|case| [1, 8].map(|batch| Case { batch, ..case })).collect()
}

impl Case {
    fn shape(self) -> [usize; 4] {
        [self.batch, self.channels, self.len, self.len]
    }

    fn weight_shape(self) -> [usize; 4] {
        [self.filters, self.channels / self.groups, self.kernel, self.kernel]
    }

    fn operands(self) -> (Vec<f32>, Vec<f32>) {
        (numbers(self.shape().iter().product(), 1), numbers(self.weight_shape().iter().product(), 2))
    }

    fn out(self) -> usize {
        (self.len + 2 * self.padding - self.kernel) / self.stride + 1
    }

    /// Whether `y` is what it should be, by looking at elements all over it.
    fn check(self, y: &[f32]) -> Result<()> {
        let (x, weight) = self.operands();
        let (out, per_group) = (self.out(), self.channels / self.groups);
        let expected = self.batch * self.filters * out * out;
        if y.len() != expected {
            return Err(Error::Wrong(format!("{self} has {} elements, not {expected}", y.len())));
        }
        for at in (0..y.len()).step_by((y.len() / 97).max(1)).chain([y.len() - 1]) {
            let (image, filter) = (at / (self.filters * out * out), at / (out * out) % self.filters);
            let (row, column) = (at / out % out, at % out);
            let group = filter / (self.filters / self.groups);
            let (mut sum, mut scale) = (0.0, 0.0);
            for (i, &by) in weight[filter * per_group * self.kernel * self.kernel..].iter().enumerate() {
                let (channel, h, w) = (i / (self.kernel * self.kernel), i / self.kernel % self.kernel, i % self.kernel);
                if channel == per_group {
                    break;
                }
                let h = (row * self.stride + h).checked_sub(self.padding).filter(|&h| h < self.len);
                let w = (column * self.stride + w).checked_sub(self.padding).filter(|&w| w < self.len);
                if let (Some(h), Some(w)) = (h, w) {
                    let plane = image * self.channels + group * per_group + channel;
                    let term = f64::from(x[(plane * self.len + h) * self.len + w]) * f64::from(by);
                    (sum, scale) = (sum + term, scale + f64::abs(term));
                }
            }
            if (f64::from(y[at]) - sum).abs() > 1e-5 * scale.max(1e-3) {
                return Err(Error::Wrong(format!("element {at} of {self} is {}, not {sum}", y[at])));
            }
        }
        Ok(())
    }
}

/// Ours and candle's, both on all threads.
pub(super) fn sides(effort: &Effort) -> Vec<Side> {
    let cases: Arc<[Case]> = cases(effort.small).into();
    let ours = {
        let (effort, cases) = (effort.clone(), cases.clone());
        Side::new("millrace", move || {
            let context = context(millrace::cpu::CpuInfo::get().cores)?;
            let metrics = cases.iter().map(|case| ours(&effort, &context, *case).map(|(metric, _)| metric)).collect();
            context.finish()?;
            metrics
        })
    };
    #[cfg_attr(not(feature = "candle"), allow(unused_mut, reason = "then there is one side"))]
    let mut sides = vec![ours];
    #[cfg(feature = "candle")]
    {
        let effort = effort.clone();
        let all = move || cases.iter().map(|case| theirs(&effort, *case).map(|(metric, _)| metric)).collect();
        sides.push(Side::new("candle", all));
    }
    sides
}

/// Our side on any device, with the small cases.
pub(super) fn on(effort: &Effort, context: &Context) -> Result<()> {
    cases(true).into_iter().try_for_each(|case| ours(effort, context, case).map(drop))
}

fn timed(effort: &Effort, case: Case, mut run: impl FnMut() -> Result<()>) -> Result<Metric> {
    warm_up(effort.turn / 4, &mut run)?;
    let times = batch_timed(effort.turn, 1, run)?;
    Ok(Metric::lower(case.to_string(), "us", times.into_iter().map(|ns| ns / 1e3).collect()))
}

fn ours(effort: &Effort, context: &Context, case: Case) -> Result<(Metric, Vec<f32>)> {
    let (x, weight) = case.operands();
    let tensors = context.tensors();
    let (x, weight) = (tensors.from_slice(&x, &case.shape())?, tensors.from_slice(&weight, &case.weight_shape())?);
    let conv = Conv::new().stride(case.stride).padding(case.padding).groups(case.groups);
    let mut y: Option<Tensor> = None;
    let metric = timed(effort, case, || {
        y = None; // back to the pool
        y = Some(x.conv(&weight, None, &conv)?);
        Ok(tensors.synchronize()?)
    })?;
    let y = y.map(|y| y.to_vec::<f32>()).transpose()?.unwrap_or_default();
    case.check(&y)?;
    Ok((metric, y))
}

#[cfg(feature = "candle")]
fn theirs(effort: &Effort, case: Case) -> Result<(Metric, Vec<f32>)> {
    let wrong = |error: candle::Error| Error::Wrong(error.to_string());
    let (x, weight) = case.operands();
    let device = candle::Device::Cpu;
    let x = candle::Tensor::from_vec(x, &case.shape(), &device).map_err(wrong)?;
    let weight = candle::Tensor::from_vec(weight, &case.weight_shape(), &device).map_err(wrong)?;
    let mut y = None;
    let metric = timed(effort, case, || {
        y = Some(black_box(x.conv2d(&weight, case.padding, case.stride, 1, case.groups).map_err(wrong)?));
        Ok(())
    })?;
    let y = y.map(|y| y.flatten_all()?.to_vec1::<f32>()).transpose().map_err(wrong)?.unwrap_or_default();
    case.check(&y)?;
    Ok((metric, y))
}

/// Faster than the other library.
pub(super) fn target(rows: &mut [Row]) {
    judge(rows, |rows, row, median| {
        let mut conditions = Conditions::default();
        if let Some((fastest, name)) = best(rows, row.case(), |row| !row.is_ours(), p50) {
            conditions.at_most("p50", median, Some(fastest), &format!("{name}, the fastest"));
        }
        conditions
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_right_and_wrong_results_are_found() {
        let mut effort = Effort::quick();
        effort.turn = std::time::Duration::from_micros(50);
        let context = context(2).unwrap();
        for case in cases(true) {
            let ours = ours(&effort, &context, case).unwrap().1;
            assert!(case.check(&vec![0.0; ours.len()]).is_err(), "{case}");
        }
    }

    #[test]
    #[cfg(feature = "candle")]
    fn both_sides_give_the_same_results() {
        let mut effort = Effort::quick();
        effort.turn = std::time::Duration::from_micros(50);
        let context = context(2).unwrap();
        for case in cases(true) {
            let (ours, theirs) = (ours(&effort, &context, case).unwrap().1, theirs(&effort, case).unwrap().1);
            assert_eq!(ours.len(), theirs.len(), "{case}");
            assert!(ours.iter().zip(&theirs).all(|(a, b)| (a - b).abs() < 1e-3), "{case}");
        }
    }
}
