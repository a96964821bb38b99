//! Operations with their inputs, in files: safetensors, which other programs can read as well.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use millrace_core::{Device, file};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::{Deserialize, Serialize};

use super::{Call, Difference, Lying, compare};
use crate::{
    DType, Error, Result, Tensors,
    layout::{Layout, MAX_RANK, Shape},
    tune::{Tuner, Tuning},
};

/// The entry of a file's description.
const ENTRY: &str = "millrace";

#[derive(Serialize, Deserialize)]
struct Description {
    version: String,
    device: String,
    call: Call,
    inputs: Vec<Input>,
}

/// Where in its buffer an input is.
#[derive(Serialize, Deserialize)]
struct Input {
    dtype: DType,
    shape: Vec<usize>,
    strides: Vec<isize>,
    offset: usize,
}

/// Writes a file of its own into a folder.
pub(super) fn save(folder: &Path, call: &Call, inputs: &[Lying], device: &str) -> Result<PathBuf, String> {
    let described = inputs.iter().map(|lying| Input {
        dtype: lying.dtype,
        shape: lying.layout.shape.to_vec(),
        strides: lying.layout.strides().to_vec(),
        offset: lying.layout.offset,
    });
    let description = Description {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        device: device.to_owned(),
        call: call.clone(),
        inputs: described.collect(),
    };
    let text = serde_json::to_string(&description).map_err(|error| error.to_string())?;
    let views = inputs.iter().enumerate().map(|(n, lying)| {
        let dtype = if matches!(lying.dtype, DType::F32 | DType::Complex) { Dtype::F32 } else { Dtype::I32 };
        Ok((format!("input.{n}"), TensorView::new(dtype, vec![lying.bytes.len() / 4], &lying.bytes)?))
    });
    let views: Vec<_> =
        views.collect::<Result<_, safetensors::SafeTensorError>>().map_err(|error| error.to_string())?;
    let metadata = HashMap::from([(ENTRY.to_owned(), text)]);
    let bytes = safetensors::serialize(views, Some(metadata)).map_err(|error| error.to_string())?;
    let name = call.name().replace(|c: char| !c.is_ascii_alphanumeric(), "-");
    let path = folder.join(format!("millrace-{name}-{}.safetensors", std::process::id()));
    file::write(&path, |out| out.write_all(&bytes)).map_err(|error| error.to_string())?;
    Ok(path)
}

/// An operation that was saved because its results differed.
///
/// ```
/// use millrace::tensor::check::Replay;
/// let error = Replay::load("not-there.safetensors".as_ref()).unwrap_err();
/// assert!(error.to_string().starts_with("not-there.safetensors: "));
/// ```
pub struct Replay {
    description: Description,
    inputs: Vec<Lying>,
}

fn invalid(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::Device(millrace_core::Error::Invalid(format!("{}: {why}", path.display()).into()))
}

impl Replay {
    /// Reads what a check has saved.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|error| invalid(path, error))?;
        let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|error| invalid(path, error))?;
        let text = metadata.metadata().as_ref().and_then(|entries| entries.get(ENTRY));
        let text = text.ok_or_else(|| invalid(path, "it is not a file of a check"))?;
        let description: Description = serde_json::from_str(text).map_err(|error| invalid(path, error))?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| invalid(path, error))?;
        let mut inputs = Vec::new();
        for (n, input) in description.inputs.iter().enumerate() {
            let found = tensors.tensor(&format!("input.{n}")).map_err(|error| invalid(path, error))?;
            let layout = input
                .layout(found.data().len())
                .ok_or_else(|| invalid(path, format!("input {n} is outside its buffer")))?;
            inputs.push(Lying { bytes: Bytes::copy_from_slice(found.data()), layout, dtype: input.dtype });
        }
        Ok(Self { description, inputs })
    }

    /// The operation.
    pub fn call(&self) -> &Call {
        &self.description.call
    }

    /// The device that it went wrong on.
    pub fn device(&self) -> &str {
        &self.description.device
    }

    /// The shapes of its inputs.
    pub fn shapes(&self) -> Vec<Vec<usize>> {
        self.description.inputs.iter().map(|input| input.shape.clone()).collect()
    }

    /// Does it on a device and on the CPU.
    pub fn run(&self, device: &Device) -> Result<Difference> {
        let never = Tuner::new(device, None, Tuning::Never);
        let (there, cpu) =
            (Tensors::unchecked(device, &never)?, Tensors::unchecked(&device.neighbour("cpu")?, &never)?);
        let inputs = self.inputs.iter().map(|lying| lying.to(&there)).collect::<Result<Vec<_>>>()?;
        let got = self.description.call.run(&there, &inputs)?;
        compare(&cpu, &self.description.call, &self.inputs, &got)
    }
}

impl Input {
    /// Its layout, if all of its elements are inside so many bytes.
    fn layout(&self, bytes: usize) -> Option<Layout> {
        if self.strides.len() != self.shape.len() {
            return None;
        }
        let shape = Shape::new("replay", &self.shape).ok()?;
        let mut layout = Layout { shape, strides: [0; MAX_RANK], offset: self.offset };
        layout.strides[..self.strides.len()].copy_from_slice(&self.strides);
        let (mut low, mut high) = (self.offset as i128, self.offset as i128);
        for (&dim, &stride) in self.shape.iter().zip(&self.strides) {
            let reach = (dim as i128 - 1).max(0) * stride as i128;
            (low, high) = (low + reach.min(0), high + reach.max(0));
        }
        let elements = (bytes / self.dtype.size()) as i128;
        (shape.elements() == 0 || (low >= 0 && high < elements)).then_some(layout)
    }
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replay").field("call", self.call()).field("shapes", &self.shapes()).finish_non_exhaustive()
    }
}
