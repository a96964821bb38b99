//! Convolutions along one, two or three axes, and transposed ones.
//!
//! There are four algorithms, and one place that chooses among them; see `choice.rs`. *Direct* reads the input where it
//! lies, or a padded copy of it, and keeps sums in registers. *Im2col* is a product of matrices, one of which holds what
//! the kernel sees at every position; it is never there as a whole, only tiles of it. *Winograd* and *FFT* multiply
//! transforms.

mod choice;
mod columns;
mod depthwise;
mod direct;
mod fill;
mod plan;
mod shape;
mod spectral;
mod transposed;
mod winograd;
mod winograd_cpu;

use std::fmt;

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, KernelSpec};

use super::{BLOCK, Family, grid, together, wgsl};
use crate::{DType, Error, Result, Tensor, check::Call};
pub(crate) use shape::{AXES, Geometry, SIZES, spatial};

/// How a convolution is computed.
///
/// ```
/// use millrace::tensor::{Algorithm, Conv, Tensors};
/// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
/// let (x, weight) = (tensors.ones(&[1, 4, 9, 9])?, tensors.ones(&[2, 4, 3, 3])?);
/// for algorithm in Conv::new().candidates(&x, &weight)? {
///     let y = x.conv(&weight, None, &Conv::new().algorithm(algorithm))?;
///     assert!(y.to_vec::<f32>()?.iter().all(|y| (y - 36.0).abs() < 1e-4), "{algorithm}");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Algorithm {
    /// Sums of products, as the definition has them.
    Direct,
    /// A product of matrices, with the columns of one made as they are needed.
    Im2col,
    /// Fewer multiplications for tiles of 4 by 4 outputs, with kernels of 3 by 3. It rounds a little more than the others.
    Winograd,
    /// Products of Fourier transforms: for large kernels.
    Fft,
}

impl Algorithm {
    /// All there are.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Im2col, Self::Winograd, Self::Fft];

    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Im2col => "im2col",
            Self::Winograd => "winograd",
            Self::Fft => "fft",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One number for all axes, or one for each: made from a number, an array or a slice.
///
/// ```
/// use millrace::tensor::Conv;
/// assert_eq!(Conv::new().stride(2).padding([1, 0]), Conv::new().padding(&[1, 0][..]).stride([2]));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct PerAxis(Box<[usize]>);

impl From<usize> for PerAxis {
    fn from(all: usize) -> Self {
        Self([all].into())
    }
}

impl<const N: usize> From<[usize; N]> for PerAxis {
    fn from(each: [usize; N]) -> Self {
        Self(each.into())
    }
}

impl<const N: usize> From<&[usize; N]> for PerAxis {
    fn from(each: &[usize; N]) -> Self {
        Self((*each).into())
    }
}

impl From<&[usize]> for PerAxis {
    fn from(each: &[usize]) -> Self {
        Self(each.into())
    }
}

/// What is to be known of a convolution besides its operands: stride, padding, dilation, groups, and the algorithm if it
/// is not to be chosen.
///
/// ```
/// use millrace::tensor::{Conv, Tensors};
/// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
/// let (x, weight) = (tensors.ones(&[8, 3, 32, 32])?, tensors.ones(&[16, 3, 3, 3])?);
/// let y = x.conv(&weight, None, &Conv::new().stride(2).padding(1))?;
/// assert_eq!(y.shape(), [8, 16, 16, 16]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Conv {
    stride: PerAxis,
    padding: PerAxis,
    dilation: PerAxis,
    output_padding: PerAxis,
    groups: usize,
    algorithm: Option<Algorithm>,
}

impl Default for Conv {
    fn default() -> Self {
        Self::new()
    }
}

impl Conv {
    /// Every position, nothing around the input, one group.
    pub fn new() -> Self {
        Self {
            stride: 1.into(),
            padding: 0.into(),
            dilation: 1.into(),
            output_padding: 0.into(),
            groups: 1,
            algorithm: None,
        }
    }

    /// How far the kernel moves from one position to the next.
    pub fn stride(mut self, stride: impl Into<PerAxis>) -> Self {
        self.stride = stride.into();
        self
    }

    /// Zeros before and behind the input.
    pub fn padding(mut self, padding: impl Into<PerAxis>) -> Self {
        self.padding = padding.into();
        self
    }

    /// How far the elements of the kernel are apart in the input.
    pub fn dilation(mut self, dilation: impl Into<PerAxis>) -> Self {
        self.dilation = dilation.into();
        self
    }

    /// Elements that a transposed convolution has more at the end of its result: with a stride, several lengths would
    /// have given the same input.
    pub fn output_padding(mut self, more: impl Into<PerAxis>) -> Self {
        self.output_padding = more.into();
        self
    }

    /// Groups of channels that see nothing of each other. As many as there are channels make a depthwise convolution.
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Says which algorithm is used. Without it, one is chosen. One that cannot do a shape is an error there.
    ///
    /// ```
    /// use millrace::tensor::{Algorithm, Conv, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let (x, weight) = (tensors.ones(&[1, 1, 9])?, tensors.ones(&[1, 1, 3])?);
    /// let conv = Conv::new().algorithm(Algorithm::Im2col);
    /// assert_eq!(conv.chosen(&x, &weight)?, Algorithm::Im2col);
    /// let error = conv.algorithm(Algorithm::Winograd).chosen(&x, &weight).unwrap_err();
    /// assert!(error.to_string().starts_with("conv: winograd takes two axes, a kernel of 3 by 3"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn algorithm(mut self, algorithm: Algorithm) -> Self {
        self.algorithm = Some(algorithm);
        self
    }

    /// The algorithm that was asked for.
    pub(crate) fn forced(&self) -> Option<Algorithm> {
        self.algorithm
    }

    /// The algorithms that can do these operands.
    pub fn candidates(&self, x: &Tensor, weight: &Tensor) -> Result<Vec<Algorithm>> {
        Ok(choice::candidates(&Geometry::new("conv", x, weight, self)?))
    }

    /// The algorithm that [`Tensor::conv`] uses for these operands.
    ///
    /// ```
    /// use millrace::tensor::{Conv, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let (x, weight) = (tensors.ones(&[1, 8, 28, 28])?, tensors.ones(&[8, 8, 3, 3])?);
    /// println!("{}", Conv::new().chosen(&x, &weight)?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn chosen(&self, x: &Tensor, weight: &Tensor) -> Result<Algorithm> {
        choice::choose("conv", self, &Geometry::new("conv", x, weight, self)?, x.tensors())
    }
}

/// The algorithms that can do operands of these shapes; none if nothing can.
pub(crate) fn candidates(from: &[usize], to: &[usize], conv: &Conv) -> Vec<Algorithm> {
    Geometry::of("conv", from, to, conv).map_or_else(|_| Vec::new(), |geometry| choice::candidates(&geometry))
}

/// Products that one thread of a GPU adds up in one launch.
const LONGEST: usize = 16_384;

/// What kernels are told.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    batch: u32,
    groups: u32,
    channels: u32,
    filters: u32,
    input: [u32; AXES],
    kernel: [u32; AXES],
    output: [u32; AXES],
    stride: [u32; AXES],
    padding: [u32; AXES],
    dilation: [u32; AXES],
    /// Where operands begin.
    x: u32,
    weight: u32,
    bias: u32,
    has_bias: u32,
    /// The part of every sum that a launch adds up.
    start: u32,
    end: u32,
}

impl Params {
    fn new(geometry: &Geometry, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Self {
        let words = |sizes: [usize; AXES]| sizes.map(|size| size as u32);
        Self {
            batch: geometry.batch as u32,
            groups: geometry.groups as u32,
            channels: geometry.channels as u32,
            filters: geometry.filters as u32,
            input: words(geometry.input),
            kernel: words(geometry.kernel),
            output: words(geometry.output),
            stride: words(geometry.stride),
            padding: words(geometry.padding),
            dilation: words(geometry.dilation),
            x: x.layout().offset as u32,
            weight: weight.layout().offset as u32,
            bias: bias.map_or(0, |bias| bias.layout().offset as u32),
            has_bias: u32::from(bias.is_some()),
            start: 0,
            end: geometry.depth() as u32,
        }
    }

    /// As the host counts.
    fn geometry(&self) -> Geometry {
        let sizes = |words: [u32; AXES]| words.map(|word| word as usize);
        Geometry {
            batch: self.batch as usize,
            groups: self.groups as usize,
            channels: self.channels as usize,
            filters: self.filters as usize,
            axes: AXES,
            input: sizes(self.input),
            kernel: sizes(self.kernel),
            output: sizes(self.output),
            stride: sizes(self.stride),
            padding: sizes(self.padding),
            dilation: sizes(self.dilation),
        }
    }
}

const DIRECT: usize = 0;
const COLUMNS: usize = 1;
/// The same two, adding to what is there.
const FURTHER: usize = 2;
/// Then those of the others.
const WINOGRAD: usize = 4;
const SPECTRAL: usize = WINOGRAD + winograd::KERNELS;
const FOLD: usize = SPECTRAL + spectral::KERNELS;
pub(crate) const KERNELS: usize = FOLD + transposed::KERNELS;

pub(crate) fn spec(number: usize) -> KernelSpec {
    match number {
        FOLD.. => return transposed::spec(number - FOLD),
        SPECTRAL.. => return spectral::spec(number - SPECTRAL),
        WINOGRAD.. => return winograd::spec(number - WINOGRAD),
        _ => {}
    }
    let further = number >= FURTHER;
    let (name, source) = match number % FURTHER {
        DIRECT => ("conv_direct", include_str!("direct.wgsl")),
        _ => ("conv_im2col", include_str!("columns.wgsl")),
    };
    let source = source.replace("{COMMON}", include_str!("params.wgsl"));
    let (name, access, value) = match further {
        false => (name.to_owned(), Access::Overwrite, "sum + bias_of(number)"),
        true => (format!("{name}_further"), Access::ReadWrite, "out[at] + sum"),
    };
    let spec = KernelSpec::new(name)
        .params::<Params>()
        .block(BLOCK)
        .binding::<f32>("x", Access::Read)
        .binding::<f32>("weight", Access::Read)
        .binding::<f32>("bias", Access::Read)
        .binding::<f32>("out", access)
        .wgsl(wgsl(&source, &[("{VALUE}", value)]));
    match number {
        DIRECT => spec.cpu(direct::kernel()),
        COLUMNS => spec.cpu(columns::kernel()),
        _ => spec,
    }
}

/// Direct and im2col: one launch, or several where what a thread may do is bounded.
fn launch(algorithm: usize, geometry: &Geometry, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let tensors = x.tensors();
    let out = tensors.output(DType::F32, geometry.shape("conv")?)?;
    let (Some(from), Some(by), Some(to)) = (x.buffer(), weight.buffer(), out.buffer()) else { return Ok(out) };
    // Without a bias something has to be bound in its place; it is not read.
    let on = bias.and_then(Tensor::buffer).unwrap_or(by);
    let mut params = Params::new(geometry, x, weight, bias);
    let threads = match algorithm {
        // Four neighbours of a row,
        DIRECT => out.elements() / geometry.output[2] * geometry.output[2].div_ceil(4),
        // or four positions of four filters.
        _ => (geometry.batch * geometry.positions()).div_ceil(4) * geometry.filters.div_ceil(4) * geometry.groups,
    };
    let depth = geometry.depth();
    let longest = if tensors.is_bounded() { LONGEST } else { depth };
    for start in (0..depth).step_by(longest) {
        (params.start, params.end) = (start as u32, depth.min(start + longest) as u32);
        let number = if start == 0 { algorithm } else { algorithm + FURTHER };
        let launch = tensors.kernel(Family::Conv, number)?.launch().bind(from).bind(by).bind(on).bind(to);
        tensors.enqueue(launch.params(&params).grid(grid(threads)))?;
    }
    Ok(out)
}

/// Checks a bias: one number for every channel of the result.
fn check_bias(op: &'static str, x: &Tensor, bias: &Tensor, channels: usize) -> Result<()> {
    if bias.dtype() != DType::F32 {
        return Err(Error::DType { op, given: bias.dtype(), takes: "f32" });
    }
    together(op, x, bias)?;
    if bias.shape() != [channels] {
        let (left, right) = ([channels].into(), bias.shape().into());
        return Err(Error::Shapes {
            op,
            left,
            right,
            why: "differ; the first is what a bias has, one for each channel",
        });
    }
    Ok(())
}

impl Tensor {
    /// A convolution, as neural networks call it (the kernel is not turned around). `self` is batch, channels and one to
    /// three axes; `weight` is filters, channels of a group and as many axes; `bias` has a number for each filter.
    ///
    /// ```
    /// use millrace::tensor::{Conv, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[1, 1, 4])?;
    /// let (weight, bias) = (tensors.from_slice(&[1.0f32, -1.0], &[1, 1, 2])?, tensors.scalar(0.5f32)?.reshape(&[1])?);
    /// let y = x.conv(&weight, Some(&bias), &Conv::new())?;
    /// assert_eq!(y.to_vec::<f32>()?, [-0.5, -0.5, -0.5]);
    /// // Around the last two axes, and every second position.
    /// let picture = tensors.ones(&[8, 3, 224, 224])?;
    /// let y = picture.conv(&tensors.ones(&[16, 3, 7, 7])?, None, &Conv::new().stride(2).padding(3))?;
    /// assert_eq!(y.shape(), [8, 16, 112, 112]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn conv(&self, weight: &Self, bias: Option<&Self>, conv: &Conv) -> Result<Self> {
        let op = "conv";
        let geometry = Geometry::new(op, self, weight, conv)?;
        if let Some(bias) = bias {
            check_bias(op, self, bias, geometry.groups * geometry.filters)?;
        }
        let shape = geometry.shape(op)?;
        let algorithm = choice::choose(op, conv, &geometry, self.tensors())?;
        if shape.elements() == 0 {
            return self.tensors().output(DType::F32, shape);
        }
        let (x, weight, bias) = (self.contiguous()?, weight.contiguous()?, bias.map(Self::contiguous).transpose()?);
        let out = match algorithm {
            Algorithm::Direct => launch(DIRECT, &geometry, &x, &weight, bias.as_ref()),
            Algorithm::Im2col => launch(COLUMNS, &geometry, &x, &weight, bias.as_ref()),
            Algorithm::Winograd => winograd::run(WINOGRAD, &geometry, &x, &weight, bias.as_ref()),
            Algorithm::Fft => spectral::run(SPECTRAL, &geometry, &x, &weight, bias.as_ref()),
        }?;
        let inputs = [Some(&x), Some(&weight), bias.as_ref()];
        self.tensors().watch_some(|| Call::Conv { conv: conv.clone() }, &inputs, &out);
        Ok(out)
    }
}
