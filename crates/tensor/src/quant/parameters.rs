//! Scales and zero points.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytemuck::{Pod, Zeroable};
use bytes::Bytes;
use millrace_core::Buffer;

use super::{Calibration, Calibrator, Invalid};
use crate::{Result, Tensor, Tensors, layout::Shape, tensors::Words};

/// How scales and zero points are chosen.
///
/// ```
/// use millrace_tensor::quant::Scheme;
/// let scheme = Scheme::symmetric().per_channel(0);
/// assert!(scheme.is_symmetric());
/// assert_eq!((scheme.axis(), Scheme::affine().axis()), (Some(0), None));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scheme {
    symmetric: bool,
    axis: Option<isize>,
}

impl Scheme {
    /// Zero points of zero: 127 stands for the largest magnitude. What weights usually have.
    pub fn symmetric() -> Self {
        Self { symmetric: true, axis: None }
    }

    /// All 256 numbers are used for the range that was seen, widened so that zero is exact. What activations usually have.
    pub fn affine() -> Self {
        Self { symmetric: false, axis: None }
    }

    /// A scale and a zero point for every index along an axis, which is counted from the end if negative.
    pub fn per_channel(mut self, axis: isize) -> Self {
        self.axis = Some(axis);
        self
    }

    /// Whether zero points are zero.
    pub fn is_symmetric(self) -> bool {
        self.symmetric
    }

    /// The axis whose indices have scales of their own.
    pub fn axis(self) -> Option<isize> {
        self.axis
    }

    /// The scale and the zero point for a range.
    pub(super) fn fit(self, low: f32, high: f32) -> (f32, i32) {
        let (low, high) = (f64::from(low.min(0.0)), f64::from(high.max(0.0)));
        let span = if self.symmetric { high.max(-low) / 127.0 } else { (high - low) / 255.0 };
        // Nothing but zeros: any scale will do.
        let scale = if span == 0.0 { 1.0 } else { (span as f32).max(f32::MIN_POSITIVE) };
        let zero = if self.symmetric { 0.0 } else { (-128.0 - low / f64::from(scale)).round_ties_even() };
        (scale, zero.clamp(-128.0, 127.0) as i32)
    }
}

/// The scales and zero points of a tensor: one of each, or one for every index along an axis.
///
/// ```
/// use millrace::tensor::quant::Parameters;
/// let parameters = Parameters::new(vec![0.5, 0.25], vec![0, -3], Some(1))?;
/// assert_eq!((parameters.scales(), parameters.zero_points()), (&[0.5, 0.25][..], &[0, -3][..]));
/// assert!(Parameters::new(vec![f32::NAN], vec![0], None).is_err());
/// assert!(Parameters::new(vec![1.0], vec![128], None).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Parameters {
    scales: Arc<[f32]>,
    zero_points: Arc<[i32]>,
    axis: Option<isize>,
    /// Where the first device that used them has them.
    table: Arc<OnceLock<(Tensors, Buffer)>>,
}

/// What kernels read of a channel.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Channel {
    pub(crate) scale: f32,
    pub(crate) inverse: f32,
    pub(crate) zero: i32,
    pub(crate) unused: u32,
}

impl Parameters {
    /// Given ones. Without an axis there is one of each; with one, as many as it is long.
    pub fn new(scales: Vec<f32>, zero_points: Vec<i32>, axis: Option<isize>) -> Result<Self> {
        if axis.is_none() && scales.len() != 1 {
            return Err(Invalid::Length { what: "scales", given: scales.len(), expected: 1 }.into());
        }
        if zero_points.len() != scales.len() {
            let (given, expected) = (zero_points.len(), scales.len());
            return Err(Invalid::Length { what: "zero points", given, expected }.into());
        }
        // Devices multiply by the inverse, and may take numbers below the smallest normal one for zero.
        let usable = |scale: f32| scale > 0.0 && scale.is_normal() && scale.recip().is_normal();
        if let Some((index, &scale)) = scales.iter().enumerate().find(|(_, scale)| !usable(**scale)) {
            return Err(Invalid::Scale { index, scale }.into());
        }
        if let Some((index, &zero_point)) = zero_points.iter().enumerate().find(|(_, z)| !(-128..=127).contains(*z)) {
            return Err(Invalid::ZeroPoint { index, zero_point }.into());
        }
        Ok(Self { scales: scales.into(), zero_points: zero_points.into(), axis, table: Arc::default() })
    }

    /// Those that fit the numbers of one tensor. [`Calibrator`] takes several.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, quant::{Calibration, Parameters, Scheme}};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[-1.0f32, 0.0, 3.0], &[3])?;
    /// let affine = Parameters::calibrate(&x, Scheme::affine(), Calibration::MinMax)?;
    /// assert_eq!((affine.scales()[0], affine.zero_points()[0]), (4.0 / 255.0, -64));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn calibrate(x: &Tensor, scheme: Scheme, calibration: Calibration) -> Result<Self> {
        let mut calibrator = Calibrator::new(scheme, calibration)?;
        calibrator.observe(x)?;
        calibrator.parameters()
    }

    /// What one step stands for.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// What zero is stored as.
    pub fn zero_points(&self) -> &[i32] {
        &self.zero_points
    }

    /// The axis whose indices have scales of their own.
    pub fn axis(&self) -> Option<isize> {
        self.axis
    }

    /// With the axis counted from the start, if they go with that shape.
    pub(crate) fn of_shape(&self, op: &'static str, shape: &Shape) -> Result<Self> {
        let Some(axis) = self.axis else { return Ok(self.clone()) };
        let at = shape.axis(op, axis)?;
        if shape[at] != self.scales.len() {
            return Err(Invalid::Length { what: "scales", given: self.scales.len(), expected: shape[at] }.into());
        }
        Ok(Self { axis: Some(at as isize), ..self.clone() })
    }

    /// With the axes of a matrix exchanged.
    pub(crate) fn turned(&self) -> Self {
        Self { axis: self.axis.map(|axis| 1 - axis), ..self.clone() }
    }

    /// The largest magnitude of a number less its zero point.
    pub(crate) fn reach(&self) -> usize {
        let reach = self.zero_points.iter().map(|zero| (127 - zero).max(128 + zero));
        reach.max().unwrap_or(128) as usize
    }

    pub(crate) fn is_symmetric(&self) -> bool {
        self.zero_points.iter().all(|&zero| zero == 0)
    }

    /// On the device, where they stay.
    pub(crate) fn table(&self, tensors: &Tensors) -> Result<Buffer> {
        if let Some((_, buffer)) = self.table.get().filter(|(place, _)| place.is(tensors)) {
            return Ok(buffer.clone());
        }
        let channel = |(&scale, &zero): (&f32, &i32)| Channel { scale, inverse: scale.recip(), zero, unused: 0 };
        let channels: Vec<Channel> = self.scales.iter().zip(&*self.zero_points).map(channel).collect();
        let buffer = tensors.device().allocate(size_of_val(&*channels))?;
        tensors.enqueue(buffer.write(0, Bytes::from_owner(Words(channels))))?;
        let _ = self.table.set((tensors.clone(), buffer.clone())); // another place may have come first
        Ok(buffer)
    }
}

impl PartialEq for Parameters {
    fn eq(&self, other: &Self) -> bool {
        (&self.scales, &self.zero_points, self.axis) == (&other.scales, &other.zero_points, other.axis)
    }
}

impl fmt::Debug for Parameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Parameters");
        debug.field("scales", &self.scales).field("zero_points", &self.zero_points).field("axis", &self.axis).finish()
    }
}
