//! A tensor of numbers in eight bits.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use millrace_core::Buffer;

use super::Parameters;
use crate::{Error, Result, Tensors, layout::Shape, ops::quant as ops, tensors::Words};

/// A tensor of numbers in eight bits on a device, four to a word along the last axis, and what they stand for. A clone
/// shares the numbers; they never change.
///
/// [`Tensor::quantize`](crate::Tensor::quantize) makes one, and [`Tensors::quantized`] makes one of numbers that are there
/// already. As a right factor it is rearranged once for the instructions that multiply, and stays so: weights are best
/// kept quantized.
///
/// ```
/// use millrace::tensor::{Tensors, quant::Parameters};
/// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
/// let x = tensors.from_slice(&[-1.0f32, 0.26, 0.74, 100.0], &[2, 2])?;
/// let q = x.quantize(&Parameters::new(vec![0.5], vec![10], None)?)?;
/// assert_eq!(q.to_vec()?, [8, 11, 11, 127]);
/// assert_eq!(q.dequantize()?.to_vec::<f32>()?, [-1.0, 0.5, 0.5, 58.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Quantized {
    tensors: Tensors,
    shape: Shape,
    /// With an axis that is counted from the start.
    parameters: Parameters,
    /// None if there are no elements.
    forms: Option<Arc<Forms>>,
    /// Whether it is the matrix that is stored with its axes exchanged.
    turned: bool,
}

/// The ways in which the numbers lie in memory: as they came, and, made when first needed, as factors.
pub(crate) struct Forms {
    /// Lines along the last axis, each padded with zeros to whole words.
    pub(crate) lines: Buffer,
    /// The same of the matrix with its axes exchanged.
    pub(crate) turned: OnceLock<Buffer>,
    /// Lines along all axes but the first, as the weights of convolutions.
    pub(crate) by_first: OnceLock<Buffer>,
    /// The sums over those.
    pub(crate) by_first_sums: OnceLock<Buffer>,
    /// As a right factor: itself, and with its axes exchanged.
    pub(crate) woven: [OnceLock<Buffer>; 2],
    /// Sums over rows of a left factor: itself, and with its axes exchanged.
    pub(crate) row_sums: [OnceLock<Buffer>; 2],
    /// Sums over columns of a right factor.
    pub(crate) column_sums: [OnceLock<Buffer>; 2],
}

impl Forms {
    /// What is there, or what `make` makes of it.
    pub(crate) fn kept(place: &OnceLock<Buffer>, make: impl FnOnce() -> Result<Buffer>) -> Result<Buffer> {
        if let Some(buffer) = place.get() {
            return Ok(buffer.clone());
        }
        let made = make()?;
        Ok(place.get_or_init(|| made).clone())
    }
}

/// Words of a line of so many numbers.
pub(crate) fn words(columns: usize) -> usize {
    columns.div_ceil(4)
}

impl Tensors {
    /// A tensor of numbers that are quantized already.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, quant::Parameters};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let q = tensors.quantized(&[1, -2, 3], &[3], &Parameters::new(vec![0.5], vec![0], None)?)?;
    /// assert_eq!(q.dequantize()?.to_vec::<f32>()?, [0.5, -1.0, 1.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn quantized(&self, elements: &[i8], shape: &[usize], parameters: &Parameters) -> Result<Quantized> {
        let op = "quantized";
        let shape = Shape::new(op, shape)?;
        if shape.elements() != elements.len() {
            let (given, expected) = (elements.len(), shape.elements());
            return Err(Error::Elements { op, given, expected, shape: shape.into() });
        }
        let parameters = parameters.of_shape(op, &shape)?;
        if elements.is_empty() {
            return Ok(Quantized::of(self, shape, parameters, None));
        }
        let columns = columns(&shape);
        let mut bytes = Vec::with_capacity(4 * words(columns) * (elements.len() / columns));
        for line in elements.chunks_exact(columns) {
            bytes.extend_from_slice(bytemuck::cast_slice::<i8, u8>(line));
            bytes.resize(bytes.len().next_multiple_of(4), 0);
        }
        let buffer = self.device().allocate(bytes.len())?;
        self.enqueue(buffer.write(0, Bytes::from_owner(Words(bytes))))?;
        Ok(Quantized::of(self, shape, parameters, Some(buffer)))
    }
}

/// The length of a line.
pub(crate) fn columns(shape: &Shape) -> usize {
    shape.last().copied().unwrap_or(1)
}

impl Quantized {
    /// A tensor of numbers that the device is about to have.
    pub(crate) fn of(tensors: &Tensors, shape: Shape, parameters: Parameters, lines: Option<Buffer>) -> Self {
        let forms = lines.map(|lines| {
            Arc::new(Forms {
                lines,
                turned: OnceLock::new(),
                by_first: OnceLock::new(),
                by_first_sums: OnceLock::new(),
                woven: Default::default(),
                row_sums: Default::default(),
                column_sums: Default::default(),
            })
        });
        Self { tensors: tensors.clone(), shape, parameters, forms, turned: false }
    }

    /// The length of every axis.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// How many axes it has.
    pub fn rank(&self) -> usize {
        self.shape.len()
    }

    /// How many numbers it has.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// What the numbers stand for.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The place it lives in.
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// The matrix with its axes exchanged, without a copy: for weights that are stored one output after the other.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, quant::Parameters};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let q = tensors.quantized(&[1, 2, 3, 4, 5, 6], &[2, 3], &Parameters::new(vec![1.0], vec![0], None)?)?;
    /// assert_eq!(q.t()?.shape(), [3, 2]);
    /// assert_eq!(q.t()?.to_vec()?, [1, 4, 2, 5, 3, 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn t(&self) -> Result<Self> {
        let &[rows, columns] = self.shape() else {
            return Err(Error::Rank { op: "t", rank: self.rank(), limit: 2 });
        };
        let shape = Shape::new("t", &[columns, rows])?;
        Ok(Self { shape, parameters: self.parameters.turned(), turned: !self.turned, ..self.clone() })
    }

    /// The numbers in order. Waits for what they come from, and brings the first error on the stream that nobody saw.
    pub fn to_vec(&self) -> Result<Vec<i8>> {
        let Some(lines) = ops::lines(self)? else {
            self.tensors.synchronize()?;
            return Ok(Vec::new());
        };
        let columns = columns(&self.shape);
        let length = 4 * words(columns);
        let view = self.tensors.stream().run(lines.read(0..length * (self.elements() / columns)));
        self.tensors.synchronize()?;
        let view = view?;
        let bytes = view.to::<i8>();
        Ok(bytes.chunks_exact(length).flat_map(|line| line[..columns].iter().copied()).collect())
    }

    pub(crate) fn forms(&self) -> Option<&Forms> {
        self.forms.as_deref()
    }

    pub(crate) fn is_turned(&self) -> bool {
        self.turned
    }

    pub(crate) fn shaped(&self) -> Shape {
        self.shape
    }
}

impl fmt::Debug for Quantized {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Quantized");
        debug.field("shape", &self.shape).field("parameters", &self.parameters).finish_non_exhaustive()
    }
}
