//! How scales are found from numbers that were seen.

use super::{Invalid, Parameters, Scheme, histogram::Histogram};
use crate::{DType, Error, Result, Tensor, layout::Shape};

/// Which of the numbers that were seen are to be represented.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Calibration {
    /// All of them.
    MinMax,
    /// So many of a hundred. With a symmetric scheme those of the largest magnitude are clipped, with an affine one half of
    /// them at each end. Exact to a bin of 2048 on each side of zero.
    Percentile(f64),
    /// As many as make the distribution in eight bits diverge least from the one that was seen, after Kullback and Leibler.
    /// What is clipped has the largest magnitude, with either scheme.
    Entropy,
}

/// Watches tensors, and says which parameters fit them.
///
/// Ranges are reduced on the device. Histograms, which percentiles and entropies need, are made on the host, from elements
/// that are read back.
///
/// ```
/// use millrace::tensor::{Tensors, quant::{Calibration, Calibrator, Scheme}};
/// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
/// let mut calibrator = Calibrator::new(Scheme::symmetric(), Calibration::MinMax)?;
/// calibrator.observe(&tensors.from_slice(&[1.0f32, -2.0], &[2])?)?;
/// calibrator.observe(&tensors.from_slice(&[12.7f32], &[1])?)?;
/// assert_eq!(calibrator.parameters()?.scales(), [0.1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Calibrator {
    scheme: Scheme,
    calibration: Calibration,
    channels: Vec<Seen>,
}

/// What was seen of a channel.
#[derive(Debug, Clone)]
struct Seen {
    low: f32,
    high: f32,
    histogram: Option<Histogram>,
}

impl Calibrator {
    /// One that has seen nothing.
    pub fn new(scheme: Scheme, calibration: Calibration) -> Result<Self> {
        match calibration {
            Calibration::Percentile(percentile) if !(percentile > 0.0 && percentile <= 100.0) => {
                Err(Invalid::Percentile { percentile }.into())
            }
            _ => Ok(Self { scheme, calibration, channels: Vec::new() }),
        }
    }

    /// Looks at a tensor of `f32`. Waits for it. Nothing is seen of a tensor that has no elements.
    pub fn observe(&mut self, x: &Tensor) -> Result<()> {
        let op = "calibrate";
        if x.dtype() != DType::F32 {
            return Err(Error::DType { op, given: x.dtype(), takes: "f32" });
        }
        let shape = x.shaped();
        let axis = self.scheme.axis().map(|axis| shape.axis(op, axis)).transpose()?;
        let channels = axis.map_or(1, |axis| shape[axis]);
        if x.elements() == 0 {
            return Ok(());
        }
        if !self.channels.is_empty() && channels != self.channels.len() {
            return Err(Invalid::Channels { before: self.channels.len(), now: channels }.into());
        }
        let others: Vec<isize> =
            (0..shape.len()).filter(|other| Some(*other) != axis).map(|other| other as isize).collect();
        let reduced = |extreme: Tensor| extreme.to_vec::<f32>();
        let (lows, highs) = match others.is_empty() {
            true => (reduced(x.clone())?, reduced(x.clone())?),
            false => (reduced(x.min(&others)?)?, reduced(x.max(&others)?)?),
        };
        let ranges = lows.into_iter().zip(highs);
        for (channel, (low, high)) in ranges.clone().enumerate() {
            if !(low.is_finite() && high.is_finite()) {
                return Err(Invalid::Range { channel, low, high }.into());
            }
        }
        let counts = self.calibration != Calibration::MinMax;
        if self.channels.is_empty() {
            let seen =
                |(low, high): (f32, f32)| Seen { low, high, histogram: counts.then(|| Histogram::new(high.max(-low))) };
            self.channels = ranges.clone().map(seen).collect();
        }
        for (seen, (low, high)) in self.channels.iter_mut().zip(ranges) {
            (seen.low, seen.high) = (seen.low.min(low), seen.high.max(high));
            if let Some(histogram) = &mut seen.histogram {
                histogram.grow(high.max(-low));
            }
        }
        if counts {
            self.count(&x.to_vec::<f32>()?, &shape, axis);
        }
        Ok(())
    }

    fn count(&mut self, elements: &[f32], shape: &Shape, axis: Option<usize>) {
        let (inner, channels) = match axis {
            Some(axis) => (shape[axis + 1..].iter().product(), shape[axis]),
            None => (elements.len(), 1),
        };
        for (run, elements) in elements.chunks(inner).enumerate() {
            if let Some(histogram) = &mut self.channels[run % channels].histogram {
                elements.iter().for_each(|&x| histogram.add(x));
            }
        }
    }

    /// What fits everything that was seen.
    pub fn parameters(&self) -> Result<Parameters> {
        if self.channels.is_empty() {
            return Err(Invalid::Nothing.into());
        }
        let (scales, zero_points) = self.channels.iter().map(|seen| self.fit(seen)).unzip();
        Parameters::new(scales, zero_points, self.scheme.axis())
    }

    fn fit(&self, seen: &Seen) -> (f32, i32) {
        let (low, high) = match (&seen.histogram, self.calibration) {
            (Some(histogram), Calibration::Percentile(percentile)) => {
                histogram.range(percentile / 100.0, self.scheme.is_symmetric())
            }
            (Some(histogram), Calibration::Entropy) => {
                let threshold = histogram.least_divergent();
                (-threshold, threshold)
            }
            _ => (seen.low, seen.high),
        };
        // Bins are wider than what is in them.
        self.scheme.fit(low.max(seen.low), high.min(seen.high))
    }
}
