//! Fourier transforms along one axis or several, of complex and of real numbers, of any length.
//!
//! Conventions are NumPy's: the forward transform has the minus in the exponent, a [`Norm`] says which direction is
//! divided by the length, and the real forms have the first `n / 2 + 1` of the `n` frequencies, as the others are their
//! mirror images. On the CPU lines are transformed on all threads, neighbours in the lanes of vectors (`across.rs`) where
//! that is faster than one by one with `rustfft`; see `cpu.rs`. Real lines of even length are complex ones of half the
//! length (`real.rs`), those of odd length are left to `realfft`. On other devices the kernels are ours; see `gpu.rs`.

#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no vectors for other processors"))]
mod across;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no vectors for other processors"))]
mod butterfly;
mod cpu;
mod cpu_plan;
mod gpu;
mod line;
mod long;
mod matrix;
mod plan;
mod real;
mod strips;
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "no vectors for other processors"))]
mod vector;

use millrace_core::Buffer;

use super::copy;
use crate::{
    DType, Error, Result, Tensor,
    check::Call,
    layout::{Layout, Shape, merge},
};
pub(crate) use gpu::{KERNELS, spec};

/// Which direction is divided by the length of the transform: NumPy's `norm`.
///
/// ```
/// use millrace::tensor::{Complex32, Norm, Tensors};
/// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
/// let ones = tensors.full(&[4], Complex32::ONE)?;
/// let first = |norm| ones.fft(-1, norm)?.slice(0, ..1)?.real()?.item::<f32>();
/// assert_eq!((first(Norm::Backward)?, first(Norm::Ortho)?, first(Norm::Forward)?), (4.0, 2.0, 1.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Norm {
    /// The inverse is divided by the length.
    #[default]
    Backward,
    /// Both directions are divided by the square root of the length.
    Ortho,
    /// The forward transform is divided by the length.
    Forward,
}

impl Norm {
    /// What results are multiplied with.
    #[inline]
    fn scale(self, n: usize, inverse: bool) -> f32 {
        let n = n as f64;
        match (self, inverse) {
            (Self::Backward, false) | (Self::Forward, true) => 1.0,
            (Self::Ortho, _) => (1.0 / n.sqrt()) as f32,
            (Self::Backward, true) | (Self::Forward, false) => (1.0 / n) as f32,
        }
    }
}

/// What a place for tensors keeps for transforms: plans, and the kernels of the CPU.
#[derive(Default)]
pub(crate) struct Plans {
    host: cpu::Host,
    tables: plan::Plans,
}

/// Axes that lines lie along, after those that lie behind one another were merged.
const ACROSS: usize = 4;

/// Where the lines of a transform begin in input and output, and how far apart their elements are. In elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lines {
    /// How many there are.
    count: usize,
    shape: [u32; ACROSS],
    from_strides: [i32; ACROSS],
    to_strides: [i32; ACROSS],
    from: u32,
    from_step: i32,
    to_step: i32,
}

impl Lines {
    /// The lines along `axis`. None if the others cannot be merged into few enough.
    fn new(from: &Layout, to: &Layout, axis: usize) -> Option<Self> {
        let mut lines = Self {
            count: 1,
            shape: [1; ACROSS],
            from_strides: [0; ACROSS],
            to_strides: [0; ACROSS],
            from: from.offset as u32,
            from_step: from.strides[axis] as i32,
            to_step: to.strides[axis] as i32,
        };
        if from.shape.len() == 1 {
            return Some(lines);
        }
        let (across, across_to) = (from.without(1 << axis), to.without(1 << axis));
        let (rank, dims, strides) = merge(&across.shape, [&across.strides, &across_to.strides]);
        if rank > ACROSS {
            return None;
        }
        lines.count = across.shape.elements();
        for i in 0..rank {
            let at = ACROSS - rank + i;
            lines.shape[at] = dims[i] as u32;
            (lines.from_strides[at], lines.to_strides[at]) = (strides[0][i] as i32, strides[1][i] as i32);
        }
        Some(lines)
    }
}

/// What a transform makes of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Complex to complex.
    Forward,
    /// The way back.
    Inverse,
    /// Real to complex, forward.
    Real,
    /// Complex to real, inverse.
    RealInverse,
}

impl Kind {
    fn takes(self) -> DType {
        if self == Self::Real { DType::F32 } else { DType::Complex }
    }

    fn gives(self) -> DType {
        if self == Self::RealInverse { DType::F32 } else { DType::Complex }
    }
}

/// One transform along one axis.
struct Step<'a> {
    kind: Kind,
    /// Its length, counted in real numbers if there are any.
    n: usize,
    scale: f32,
    from: &'a Buffer,
    to: &'a Buffer,
    lines: Lines,
    /// How many lines are a plane whose columns are transformed, too, after them. Zero if they are not.
    plane: usize,
}

/// Transforms planes along the last two axes at once where that is faster, with the scale of both.
fn planes(x: &Tensor, kind: Kind, scale: f32) -> Result<Option<Tensor>> {
    let (tensors, shape) = (x.tensors(), x.shaped());
    let rank = shape.len();
    if tensors.is_bounded() || rank < 2 {
        return Ok(None);
    }
    let (plane, n) = (shape[rank - 2], shape[rank - 1]);
    let to = Layout::contiguous(shape);
    let host = &tensors.fft().host;
    let Some(lines) = Lines::new(x.layout(), &to, rank - 1).filter(|lines| host.takes_planes(tensors, plane, n, lines))
    else {
        return Ok(None);
    };
    let out = tensors.output(kind.gives(), shape)?;
    if let (Some(from), Some(to)) = (x.buffer(), out.buffer()) {
        host.launch(tensors, &Step { kind, n, scale, from, to, lines, plane })?;
    }
    Ok(Some(out))
}

/// Transforms lines of length `n` along `axis` of `x`.
fn along(op: &'static str, x: &Tensor, axis: usize, kind: Kind, n: usize, scale: f32) -> Result<Tensor> {
    let mut shape = x.shaped();
    match kind {
        Kind::Real => shape.set(axis, n / 2 + 1),
        Kind::RealInverse => {
            shape.set(axis, n);
            shape = Shape::new(op, &shape)?;
        }
        Kind::Forward | Kind::Inverse => {}
    }
    // A tensor is as large as some cache lines, and a short transform is over before one is moved: so it is made in the end.
    let (tensors, layout) = (x.tensors(), Layout::contiguous(shape));
    let room = tensors.room(kind.gives(), &shape)?;
    if let (Some(from), Some(to)) = (x.buffer(), &room) {
        let Some(lines) = Lines::new(x.layout(), &layout, axis) else {
            drop(room); // before the copy takes its place
            return along(op, &copy::copy(x)?, axis, kind, n, scale);
        };
        let step = Step { kind, n, scale, from, to, lines, plane: 0 };
        if tensors.is_bounded() {
            gpu::launch(x, &shape, axis, &step)?;
        } else {
            tensors.fft().host.launch(tensors, &step)?;
        }
    }
    Ok(Tensor::new(tensors.clone(), room, layout, kind.gives()))
}

/// The same of complex numbers that nobody else has: where they lie if that can be, so that there is less memory to go through.
fn along_own(op: &'static str, x: Tensor, axis: usize, kind: Kind, scale: f32) -> Result<Tensor> {
    let (n, tensors) = (x.shape()[axis], x.tensors());
    if !tensors.is_bounded()
        && let (Some(buffer), Some(lines)) = (x.buffer(), Lines::new(x.layout(), x.layout(), axis))
    {
        tensors.fft().host.launch(tensors, &Step { kind, n, scale, from: buffer, to: buffer, lines, plane: 0 })?;
        return Ok(x);
    }
    along(op, &x, axis, kind, n, scale)
}

/// Checks the element type.
#[inline]
fn check(op: &'static str, x: &Tensor, kind: Kind) -> Result<()> {
    if x.dtype() == kind.takes() {
        return Ok(());
    }
    let takes = match kind {
        Kind::Forward | Kind::Inverse => "complex (`rfft` takes f32)",
        Kind::Real => "f32 (`fft` takes complex)",
        Kind::RealInverse => "complex",
    };
    Err(Error::DType { op, given: x.dtype(), takes })
}

/// Checks an axis: its number.
#[inline]
fn checked_axis(op: &'static str, x: &Tensor, axis: isize) -> Result<usize> {
    let shape = &x.layout().shape;
    let at = shape.axis(op, axis)?;
    if shape[at] == 0 {
        return Err(Error::Axis { op, axis, shape: (*shape).into(), why: "has length zero" });
    }
    Ok(at)
}

/// Checks the element type and the axes, which are transformed in the order they are named.
fn checked(op: &'static str, x: &Tensor, kind: Kind, axes: &[isize]) -> Result<Shape> {
    check(op, x, kind)?;
    x.layout().shape.axes(op, axes)?;
    axes.iter().map(|&axis| checked_axis(op, x, axis)).collect()
}

/// Complex transforms along all axes, the last one first.
fn complex(op: &'static str, x: &Tensor, axes: &[isize], norm: Norm, kind: Kind) -> Result<Tensor> {
    let scale = |axis: usize| norm.scale(x.shape()[axis], kind == Kind::Inverse);
    if let [axis] = *axes {
        check(op, x, kind)?;
        let axis = checked_axis(op, x, axis)?;
        // As it comes: a tensor is as large as some cache lines, and a short transform is over before it is moved.
        let y = along(op, x, axis, kind, x.shape()[axis], scale(axis));
        y.iter().for_each(|y| watch(x, kind, &[axis], 0, norm, y));
        return y;
    }
    let axes = checked(op, x, kind, axes)?;
    let (mut y, mut rest) = match &axes[..] {
        [others @ .., a, b] if [a + 2, b + 1] == [x.shape().len(); 2] => {
            match planes(x, kind, scale(*a) * scale(*b))? {
                Some(y) => (y, others),
                None => (along(op, x, *b, kind, x.shape()[*b], scale(*b))?, &axes[..axes.len() - 1]),
            }
        }
        [others @ .., last] => (along(op, x, *last, kind, x.shape()[*last], scale(*last))?, others),
        [] => (x.clone(), &[][..]),
    };
    while let [others @ .., axis] = rest {
        (y, rest) = (along_own(op, y, *axis, kind, scale(*axis))?, others);
    }
    watch(x, kind, &axes, 0, norm, &y);
    Ok(y)
}

/// Real to complex along the last of the axes, then complex along the others.
fn real(op: &'static str, x: &Tensor, axes: &[isize], norm: Norm) -> Result<Tensor> {
    let axes = checked(op, x, Kind::Real, axes)?;
    let Some((&last, others)) = axes.split_last() else { return Err(nowhere(op, x)) };
    let n = x.shape()[last];
    let mut y = along(op, x, last, Kind::Real, n, norm.scale(n, false))?;
    for &axis in others.iter().rev() {
        let scale = norm.scale(y.shape()[axis], false);
        y = along_own(op, y, axis, Kind::Forward, scale)?;
    }
    watch(x, Kind::Real, &axes, 0, norm, &y);
    Ok(y)
}

/// The other way round. The last axis has `n` real numbers then.
fn real_inverse(op: &'static str, x: &Tensor, axes: &[isize], n: usize, norm: Norm) -> Result<Tensor> {
    let axes = checked(op, x, Kind::RealInverse, axes)?;
    let Some((&last, others)) = axes.split_last() else { return Err(nowhere(op, x)) };
    if n == 0 {
        return Err(Error::Axis { op, axis: last as isize, shape: x.shape().into(), why: "would have length zero" });
    }
    if x.shape()[last] != n / 2 + 1 {
        let mut expected = x.shaped();
        expected.set(last, n / 2 + 1);
        let why = "differ; the second is what the given length has";
        return Err(Error::Shapes { op, left: x.shape().into(), right: expected.into(), why });
    }
    let scale = |n: usize| norm.scale(n, true);
    let mut between: Option<Tensor> = None;
    for &axis in others {
        let length = x.shape()[axis];
        between = Some(match between {
            Some(y) => along_own(op, y, axis, Kind::Inverse, scale(length))?,
            None => along(op, x, axis, Kind::Inverse, length, scale(length))?,
        });
    }
    let y = along(op, between.as_ref().unwrap_or(x), last, Kind::RealInverse, n, scale(n))?;
    watch(x, Kind::RealInverse, &axes, n, norm, &y);
    Ok(y)
}

fn watch(x: &Tensor, kind: Kind, axes: &[usize], n: usize, norm: Norm, out: &Tensor) {
    let axes = || axes.iter().map(|&axis| axis as isize).collect();
    x.tensors().watch(|| Call::Fft { kind, axes: axes(), n, norm }, &[x], out);
}

/// Any of them. `n` is the length of a real result.
pub(crate) fn run(x: &Tensor, kind: Kind, axes: &[isize], n: usize, norm: Norm) -> Result<Tensor> {
    match kind {
        Kind::Forward | Kind::Inverse => complex("fft", x, axes, norm, kind),
        Kind::Real => real("rfft", x, axes, norm),
        Kind::RealInverse => real_inverse("irfft", x, axes, n, norm),
    }
}

fn nowhere(op: &'static str, x: &Tensor) -> Error {
    Error::Shapes { op, left: x.shape().into(), right: [].into(), why: "have no axis to transform" }
}

impl Tensor {
    /// The Fourier transform of complex numbers along an axis. All other axes are batches.
    ///
    /// ```
    /// use millrace::tensor::{Complex32, Norm, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[Complex32::ONE, Complex32::ZERO, -Complex32::ONE, Complex32::ZERO], &[4])?;
    /// let y = x.fft(-1, Norm::Backward)?;
    /// assert_eq!(y.to_vec::<Complex32>()?, [0.0, 2.0, 0.0, 2.0].map(Complex32::from));
    /// assert_eq!(y.ifft(-1, Norm::Backward)?.to_vec::<Complex32>()?, x.to_vec::<Complex32>()?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fft(&self, axis: isize, norm: Norm) -> Result<Self> {
        complex("fft", self, &[axis], norm, Kind::Forward)
    }

    /// The inverse of [`Tensor::fft`].
    pub fn ifft(&self, axis: isize, norm: Norm) -> Result<Self> {
        complex("ifft", self, &[axis], norm, Kind::Inverse)
    }

    /// The Fourier transform of real numbers along an axis: the first `n / 2 + 1` frequencies of `n`, since the others
    /// are their conjugates.
    ///
    /// ```
    /// use millrace::tensor::{Complex32, Norm, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let y = tensors.from_slice(&[1.0f32, 2.0, 3.0, 2.0], &[4])?.rfft(-1, Norm::Backward)?;
    /// assert_eq!(y.to_vec::<Complex32>()?, [8.0, -2.0, 0.0].map(Complex32::from));
    /// assert_eq!(y.irfft(-1, 4, Norm::Backward)?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rfft(&self, axis: isize, norm: Norm) -> Result<Self> {
        real("rfft", self, &[axis], norm)
    }

    /// The inverse of [`Tensor::rfft`]: `n` real numbers of `n / 2 + 1` frequencies. Whether `n` is even or odd cannot
    /// be seen from them, so it has to be said. Imaginary parts that real numbers cannot have are ignored.
    ///
    /// ```
    /// use millrace::tensor::{Norm, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let y = tensors.ones(&[5])?.rfft(-1, Norm::Backward)?;
    /// assert_eq!(y.irfft(-1, 5, Norm::Backward)?.shape(), [5]);
    /// let error = y.irfft(-1, 6, Norm::Backward).unwrap_err().to_string();
    /// assert_eq!(error, "irfft: shapes [3] and [4] differ; the second is what the given length has");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn irfft(&self, axis: isize, n: usize, norm: Norm) -> Result<Self> {
        real_inverse("irfft", self, &[axis], n, norm)
    }

    /// [`Tensor::fft`] along several axes.
    ///
    /// ```
    /// use millrace::tensor::{Complex32, Norm, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.full(&[3, 4, 5], Complex32::ONE)?;
    /// let y = x.fftn(&[0, 2], Norm::Backward)?;
    /// assert_eq!(y.slice(0, ..1)?.slice(2, ..1)?.to_vec::<Complex32>()?, [Complex32::from(15.0); 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fftn(&self, axes: &[isize], norm: Norm) -> Result<Self> {
        complex("fftn", self, axes, norm, Kind::Forward)
    }

    /// The inverse of [`Tensor::fftn`].
    pub fn ifftn(&self, axes: &[isize], norm: Norm) -> Result<Self> {
        complex("ifftn", self, axes, norm, Kind::Inverse)
    }

    /// [`Tensor::rfft`] along the last of the axes, and [`Tensor::fft`] along the others.
    pub fn rfftn(&self, axes: &[isize], norm: Norm) -> Result<Self> {
        real("rfftn", self, axes, norm)
    }

    /// The inverse of [`Tensor::rfftn`], with `n` real numbers along the last of the axes.
    ///
    /// ```
    /// use millrace::tensor::{Norm, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let y = tensors.ones(&[4, 6])?.rfftn(&[0, 1], Norm::Ortho)?;
    /// assert_eq!(y.shape(), [4, 4]);
    /// assert_eq!(y.irfftn(&[0, 1], 6, Norm::Ortho)?.shape(), [4, 6]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn irfftn(&self, axes: &[isize], n: usize, norm: Norm) -> Result<Self> {
        real_inverse("irfftn", self, axes, n, norm)
    }

    /// [`Tensor::fftn`] along the last two axes.
    pub fn fft2(&self, norm: Norm) -> Result<Self> {
        complex("fft2", self, &[-2, -1], norm, Kind::Forward)
    }

    /// The inverse of [`Tensor::fft2`].
    pub fn ifft2(&self, norm: Norm) -> Result<Self> {
        complex("ifft2", self, &[-2, -1], norm, Kind::Inverse)
    }

    /// [`Tensor::rfftn`] along the last two axes.
    pub fn rfft2(&self, norm: Norm) -> Result<Self> {
        real("rfft2", self, &[-2, -1], norm)
    }

    /// The inverse of [`Tensor::rfft2`], with `n` real numbers along the last axis.
    pub fn irfft2(&self, n: usize, norm: Norm) -> Result<Self> {
        real_inverse("irfft2", self, &[-2, -1], n, norm)
    }
}
