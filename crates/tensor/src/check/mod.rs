//! Every operation of a program on the CPU as well, and the first one that differs.
//!
//! A place for tensors that is checked ([`Tensors::checked`], or any on another device than the CPU with the environment
//! variable `MILLRACE_CHECK`) reads the inputs of each operation back, does it on the CPU, and compares. That is slow: it
//! is for finding out where results go wrong. The first difference is kept ([`Check::first`]), its inputs are saved in a
//! file, and the next wait for results brings it as an error.

mod call;
mod replay;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use millrace_core::Device;
use serde::Serialize;

use call::Tolerance;
pub use call::{Call, Scales};
pub use replay::Replay;

use crate::{DType, Result, Tensor, Tensors, tensors::Words, validate};
use bytes::Bytes;

/// The environment variable that has every operation checked; a folder, or anything else for the system's one for
/// temporary files.
const ASKED: &str = "MILLRACE_CHECK";

/// The first operation whose results differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Mismatch {
    /// The operation.
    pub op: String,
    /// The device that does not agree with the CPU.
    pub device: String,
    /// How many operations had agreed before.
    pub before: u64,
    /// The shapes of the inputs.
    pub shapes: Vec<Vec<usize>>,
    /// The first element that differs, counted in the result's order,
    pub at: usize,
    /// what the device has there,
    pub got: f64,
    /// and what the CPU.
    pub want: f64,
    /// The largest error of all elements,
    pub error: f64,
    /// and what it may be.
    pub tolerance: f64,
    /// Where the inputs are, for `millrace replay`.
    pub saved: Option<PathBuf>,
    /// Why they are not.
    pub not_saved: Option<String>,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { op, device, shapes, at, got, want, error, tolerance, .. } = self;
        write!(f, "{op} of {shapes:?} on {device} differs from the CPU: element {at} is {got}, not {want} ")?;
        write!(f, "(error {error:.1e}, allowed {tolerance:.1e})")?;
        match (&self.saved, &self.not_saved) {
            (Some(path), _) => write!(f, "; `millrace replay {}` does it again", path.display()),
            (None, Some(why)) => write!(f, "; its inputs were not saved: {why}"),
            (None, None) => Ok(()),
        }
    }
}

/// What watches a place for tensors.
///
/// ```
/// use millrace::tensor::Tensors;
/// let tensors = Tensors::checked(&millrace::runtime().open("cpu")?, None)?;
/// let x = tensors.rand(&[4, 4], 1)?;
/// x.matmul(&x)?.relu()?.sum_all()?.item::<f32>()?;
/// let check = tensors.check().ok_or("not checked")?;
/// assert_eq!((check.compared(), check.first()), (4, None)); // rand, matmul, relu, sum
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Check {
    /// Where the reference is computed.
    cpu: Tensors,
    folder: PathBuf,
    compared: AtomicU64,
    found: Mutex<Found>,
}

#[derive(Default)]
struct Found {
    first: Option<Mismatch>,
    /// Whether somebody has been told.
    told: bool,
}

/// A tensor's elements as they lie, for another place: its buffer's bytes, and where in it the elements are.
struct Lying {
    bytes: Bytes,
    layout: crate::layout::Layout,
    dtype: DType,
}

impl Lying {
    /// Reads a tensor's whole buffer, so that no operation is needed to bring its elements in order.
    fn read(tensor: &Tensor) -> Result<Self> {
        let bytes = match tensor.buffer() {
            None => Bytes::new(),
            Some(buffer) => {
                let view = tensor.tensors().stream().run(buffer.read(..))?;
                Bytes::copy_from_slice(&view)
            }
        };
        Ok(Self { bytes, layout: *tensor.layout(), dtype: tensor.dtype() })
    }

    /// The same in another place.
    fn to(&self, tensors: &Tensors) -> Result<Tensor> {
        let buffer = match self.bytes.len() {
            0 => None,
            n => {
                let buffer = tensors.device().allocate(n)?;
                tensors.enqueue(buffer.write(0, self.bytes.clone()))?;
                Some(buffer)
            }
        };
        Ok(Tensor::new(tensors.clone(), buffer, self.layout, self.dtype))
    }

    /// The magnitudes of all numbers.
    fn magnitudes(&self) -> Self {
        let bytes = match self.dtype {
            DType::F32 | DType::Complex => {
                let words = self.bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_ne_bytes(bytes).abs());
                Bytes::from_owner(Words(words.collect::<Vec<_>>()))
            }
            DType::I32 | DType::Bool => self.bytes.clone(), // indices, and what is added exactly
        };
        Self { bytes, layout: self.layout, dtype: self.dtype }
    }
}

/// How far a result is from what the CPU has.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Difference {
    /// The largest error.
    pub error: f64,
    /// What it may be.
    pub tolerance: f64,
    /// The first element that is too far away, with what the device and what the CPU has there.
    pub at: Option<(usize, f64, f64)>,
}

/// Does a call on the CPU and compares.
fn compare(cpu: &Tensors, call: &Call, inputs: &[Lying], got: &Tensor) -> Result<Difference> {
    let at_cpu = |lying: &Lying| lying.to(cpu);
    let want = call.run(cpu, &inputs.iter().map(at_cpu).collect::<Result<Vec<_>>>()?)?;
    let (got, want) = (in_order(got)?, in_order(&want)?);
    let (tolerance, scales) = match call.tolerance() {
        Tolerance::Result(tolerance) => (tolerance, None),
        Tolerance::Largest(tolerance) => {
            let largest = want.iter().filter(|x| x.is_finite()).fold(0.0, |max: f64, x| max.max(x.abs()));
            (tolerance, Some(vec![largest; want.len()]))
        }
        Tolerance::Terms(tolerance) => {
            let terms: Vec<_> = inputs.iter().map(|lying| at_cpu(&lying.magnitudes())).collect::<Result<_>>()?;
            (tolerance, Some(in_order(&call.run(cpu, &terms)?)?))
        }
    };
    if got.len() != want.len() {
        let at = Some((got.len().min(want.len()), f64::NAN, f64::NAN));
        return Ok(Difference { error: f64::INFINITY, tolerance, at });
    }
    let scale = |n: usize| scales.as_ref().map_or(0.0, |scales| scales[n].abs());
    let errors: Vec<_> = (0..got.len()).map(|n| validate::difference(got[n], want[n], scale(n))).collect();
    let at = errors.iter().position(|error| *error > tolerance || error.is_nan()).map(|n| (n, got[n], want[n]));
    Ok(Difference { error: errors.into_iter().fold(0.0, f64::max), tolerance, at })
}

/// The numbers of a result. Where its elements are not in order, the CPU brings them there, which is not under suspicion.
fn in_order(tensor: &Tensor) -> Result<Vec<f64>> {
    if tensor.is_contiguous() || tensor.tensors().check().is_none() {
        return validate::numbers(tensor);
    }
    let cpu = tensor.tensors().check().map(|check| &check.cpu);
    cpu.map_or_else(|| Ok(Vec::new()), |cpu| validate::numbers(&Lying::read(tensor)?.to(cpu)?))
}

impl Check {
    pub(crate) fn new(device: &Device, folder: Option<&Path>) -> Result<Self> {
        let never = crate::tune::Tuner::new(device, None, crate::tune::Tuning::Never);
        let cpu = Tensors::unchecked(&device.neighbour("cpu")?, &never)?;
        let folder = folder.map_or_else(std::env::temp_dir, Path::to_owned);
        Ok(Self { cpu, folder, compared: AtomicU64::new(0), found: Mutex::default() })
    }

    /// One for a device, if the environment asks for it and there is something to compare with.
    pub(crate) fn from_environment(device: &Device) -> Option<Self> {
        let asked = std::env::var_os(ASKED).filter(|asked| !asked.is_empty() && asked != "0")?;
        if device.info().kind == millrace_core::DeviceKind::Cpu {
            return None;
        }
        let folder = Some(PathBuf::from(asked)).filter(|folder| folder.is_dir());
        match Self::new(device, folder.as_deref()) {
            Ok(check) => Some(check),
            Err(error) => {
                tracing::warn!("{ASKED} is set, but nothing is checked: {error}");
                None
            }
        }
    }

    /// How many operations were compared.
    pub fn compared(&self) -> u64 {
        self.compared.load(Ordering::Relaxed)
    }

    /// The first operation that differed.
    pub fn first(&self) -> Option<Mismatch> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).first.clone()
    }

    /// The first difference, for whoever asks first.
    pub(crate) fn untold(&self) -> Option<Mismatch> {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let untold = found.first.clone().filter(|_| !found.told);
        found.told |= untold.is_some();
        untold
    }

    /// Looks at an operation that was just enqueued. What the device cannot answer comes up where results are waited for.
    pub(crate) fn watch(&self, call: &Call, inputs: &[&Tensor], out: &Tensor) {
        if self.first().is_some() {
            return; // what comes after it follows from it
        }
        let looked = || -> Result<Option<Mismatch>> {
            let lying = inputs.iter().map(|input| Lying::read(input)).collect::<Result<Vec<_>>>()?;
            let found = compare(&self.cpu, call, &lying, out)?;
            let before = self.compared.fetch_add(1, Ordering::Relaxed);
            let Some((at, got, want)) = found.at else { return Ok(None) };
            let (saved, not_saved) = match replay::save(&self.folder, call, &lying, &out.tensors().device().info().id) {
                Ok(path) => (Some(path), None),
                Err(error) => (None, Some(error)),
            };
            Ok(Some(Mismatch {
                op: call.name(),
                device: out.tensors().device().info().id.clone(),
                before,
                shapes: inputs.iter().map(|input| input.shape().to_vec()).collect(),
                at,
                got,
                want,
                error: found.error,
                tolerance: found.tolerance,
                saved,
                not_saved,
            }))
        };
        match looked() {
            Ok(None) => {}
            Ok(Some(mismatch)) => {
                tracing::error!("{mismatch}");
                self.found.lock().unwrap_or_else(PoisonError::into_inner).first.get_or_insert(mismatch);
            }
            Err(error) => tracing::debug!(op = call.name(), %error, "could not be checked"),
        }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("compared", &self.compared())
            .field("first", &self.first())
            .finish_non_exhaustive()
    }
}
