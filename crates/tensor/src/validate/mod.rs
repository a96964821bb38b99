//! Whether a device gives the results that it should.
//!
//! [`validate`] runs every operation on random, empty, single, non-contiguous, broadcast, special (NaN, infinities,
//! extremes) and large inputs, and compares with a naive reference in `f64`. An error is relative to the result, or,
//! where a result is a difference of larger terms (sums, matmul), to the sum of their magnitudes, and for transforms to the
//! root of the sum of their squares, as errors add up there. Special results (NaN,
//! infinities) have to be the same. Numbers below the smallest normal one count as zero: devices may flush them.
//! Sine and cosine are checked up to an absolute value of 100; beyond 8192 only the CPU keeps all their digits.

mod checks;
mod conv;
mod fourier;
mod quant;
mod recurrent;
mod reference;
mod sample;
mod sparse;

use millrace_core::{Device, DeviceKind, HealthState};

use crate::{Complex32, DType, Error, Result, Tensor, Tensors};
use reference::Expected;
use sample::{Random, Samples};

/// How thorough a validation is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Effort {
    /// Elements of large inputs.
    pub large: usize,
    /// Where random numbers start.
    pub seed: u64,
}

impl Effort {
    /// Large inputs of so many elements.
    pub fn large(mut self, elements: usize) -> Self {
        self.large = elements;
        self
    }

    /// Other random numbers.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

impl Default for Effort {
    fn default() -> Self {
        Self { large: 1 << 20, seed: 1 }
    }
}

/// One operation on one kind of input.
#[derive(Debug, Clone, serde::Serialize)]
#[non_exhaustive]
pub struct Row {
    /// The operation, with its element type if that is not `f32`.
    pub op: String,
    /// The device's id.
    pub device: String,
    /// The kind of input and its shape.
    pub size: String,
    /// The largest error; infinite if something is NaN or infinite that should not be, or the other way round, or if there
    /// is no result. JSON has no such number: it is `null` there.
    pub error: f64,
    /// What the error may be.
    pub tolerance: f64,
    /// Whether it is within the tolerance.
    pub ok: bool,
    /// What is behind an error that is infinite: what was said instead of a result, or which element is not what it should
    /// be.
    pub why: Option<String>,
}

/// Runs every operation on every kind of input. `progress` sees each row as soon as it is known. An operation that the
/// device fails at has a row that is not well and says why, and the others go on. A device that is lost ends its validation
/// with a row that says so.
///
/// ```
/// use millrace::tensor::validate::{Effort, validate};
/// let device = millrace::runtime().open("cpu")?;
/// let rows = validate(&device, &Effort::default().large(1000), |_| ())?;
/// assert!(rows.iter().all(|row| row.ok));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn validate(device: &Device, effort: &Effort, progress: impl FnMut(&Row)) -> Result<Vec<Row>> {
    let tensors = Tensors::on(device)?;
    let samples = Samples {
        tensors: &tensors,
        random: Random(effort.seed),
        large: effort.large.max(1),
        subnormals: device.info().kind == DeviceKind::Cpu,
    };
    let mut run = Run { samples, device, rows: Vec::new(), progress: Box::new(progress) };
    if let Err(lost) = checks::all(&mut run) {
        run.failed("device", String::new(), 0.0, &lost);
    }
    Ok(run.rows)
}

/// A validation under way.
struct Run<'a> {
    samples: Samples<'a>,
    device: &'a Device,
    rows: Vec<Row>,
    progress: Box<dyn FnMut(&Row) + 'a>,
}

impl Run<'_> {
    /// Compares what came with what should have. Only a device that is lost is an error.
    fn compare(&mut self, op: &str, size: String, tolerance: f64, got: Result<Tensor>, want: &Expected) -> Result<()> {
        let got = got.and_then(|got| Ok((numbers(&got)?, got)));
        let (numbers, got) = match got {
            Err(error) => return self.not_done(op, size, tolerance, error),
            Ok(got) => got,
        };
        if got.shape() != want.array.shape {
            let why = format!("a result of shape {:?}, not {:?}", got.shape(), want.array.shape);
            self.row(op, size, (f64::INFINITY, Some(why)), tolerance);
            return Ok(());
        }
        let pairs = numbers.iter().zip(&want.array.data).zip(&want.scale);
        let mut worst = (0.0, None);
        for (at, ((&got, &want), &scale)) in pairs.enumerate() {
            let error = difference(got, want, scale);
            if error > worst.0 {
                let why = || format!("element {at} is {got}, not {want}");
                worst = (error, error.is_infinite().then(why));
            }
        }
        self.row(op, size, worst, tolerance);
        Ok(())
    }

    /// Notes whether a call that must fail did.
    fn refused(&mut self, op: &str, size: String, got: Result<Tensor>) -> Result<()> {
        match got {
            Err(error @ Error::Device(_)) => return self.not_done(op, size, 0.0, error),
            Err(_) => self.row(op, size, (0.0, None), 0.0),
            Ok(_) => self.row(op, size, (1.0, Some("it was not refused".to_owned())), 0.0),
        }
        Ok(())
    }

    /// Runs some checks. What keeps them from being made is a row of its own, unless the device is lost.
    fn attempt(&mut self, what: &str, checks: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        checks(self).or_else(|error| self.not_done(what, "inputs".to_owned(), 0.0, error))
    }

    /// Notes an operation that brought an error instead of a result. If the device is lost nothing else is worth trying.
    fn not_done(&mut self, op: &str, size: String, tolerance: f64, error: Error) -> Result<()> {
        if self.device.health().state == HealthState::Lost {
            return Err(error);
        }
        self.failed(op, size, tolerance, &error);
        // What else this one left on the stream is not the next one's.
        let _ = self.samples.tensors.synchronize();
        Ok(())
    }

    fn failed(&mut self, op: &str, size: String, tolerance: f64, error: &Error) {
        self.row(op, size, (f64::INFINITY, Some(error.to_string())), tolerance);
    }

    fn row(&mut self, op: &str, size: String, (error, why): (f64, Option<String>), tolerance: f64) {
        let (device, ok) = (self.device.info().id.clone(), error <= tolerance);
        let row = Row { op: op.to_owned(), device, size, error, tolerance, ok, why };
        (self.progress)(&row);
        self.rows.push(row);
    }
}

/// A tensor's elements as `f64`.
pub(crate) fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(match tensor.dtype() {
        DType::F32 => tensor.to_vec::<f32>()?.into_iter().map(f64::from).collect(),
        DType::I32 => tensor.to_vec::<i32>()?.into_iter().map(f64::from).collect(),
        DType::Bool => tensor.to_vec::<bool>()?.into_iter().map(|x| f64::from(u8::from(x))).collect(),
        // Both parts, one behind the other, as a reference has them.
        DType::Complex => tensor.to_vec::<Complex32>()?.into_iter().flat_map(|x| [x.re, x.im].map(f64::from)).collect(),
    })
}

/// The error of one result.
pub(crate) fn difference(got: f64, want: f64, scale: f64) -> f64 {
    let smallest = f64::from(f32::MIN_POSITIVE);
    // What an `f32` makes of it.
    let want = if want.abs() > f64::from(f32::MAX) * (1.0 + 1e-7) { want.signum() * f64::INFINITY } else { want };
    if want.is_nan() || got.is_nan() {
        return if want.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    if want == got || (want.abs() < smallest && got.abs() <= smallest) {
        return 0.0;
    }
    if want.is_infinite() || got.is_infinite() {
        return f64::INFINITY;
    }
    (got - want).abs() / scale.max(want.abs()).max(smallest)
}
