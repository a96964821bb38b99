//! The largest, or the mean, of every window.

mod cpu;

use bytemuck::{Pod, Zeroable};
use millrace_core::KernelSpec;

use super::{
    Family,
    conv::{AXES, PerAxis, spatial},
    grid, kernel, wgsl,
};
use crate::{DType, Error, Result, Tensor, check::Call, layout::Shape};

/// Elements of a window that one thread of a GPU goes through.
const LONGEST: usize = 16_384;

/// How windows lie: where they begin, and what is around the input.
///
/// ```
/// use millrace::tensor::{Pool, Tensors};
/// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
/// let x = tensors.from_slice(&[1.0f32, 5.0, 2.0, 4.0], &[1, 1, 4])?;
/// assert_eq!(x.max_pool(2, &Pool::new())?.to_vec::<f32>()?, [5.0, 4.0]);
/// assert_eq!(x.max_pool(2, &Pool::new().stride(1))?.to_vec::<f32>()?, [5.0, 5.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Pool {
    stride: Option<PerAxis>,
    padding: PerAxis,
    counted: bool,
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

impl Pool {
    /// Windows one behind the other, nothing around the input.
    pub fn new() -> Self {
        Self { stride: None, padding: 0.into(), counted: true }
    }

    /// How far it is from one window to the next. Without it, as far as a window is long.
    pub fn stride(mut self, stride: impl Into<PerAxis>) -> Self {
        self.stride = Some(stride.into());
        self
    }

    /// Elements before and behind the input, at most half a window: zeros for a mean, and less than anything for the
    /// largest.
    pub fn padding(mut self, padding: impl Into<PerAxis>) -> Self {
        self.padding = padding.into();
        self
    }

    /// Whether a mean counts the zeros around the input. It does if nothing is said.
    ///
    /// ```
    /// use millrace::tensor::{Pool, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let (x, pool) = (tensors.ones(&[1, 1, 3])?, Pool::new().stride(1).padding(1));
    /// assert_eq!(x.avg_pool(2, &pool)?.to_vec::<f32>()?, [0.5, 1.0, 1.0, 0.5]);
    /// assert_eq!(x.avg_pool(2, &pool.count_padding(false))?.to_vec::<f32>()?, [1.0; 4]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn count_padding(mut self, counted: bool) -> Self {
        self.counted = counted;
        self
    }
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    /// Batch times channels.
    planes: u32,
    input: [u32; AXES],
    window: [u32; AXES],
    output: [u32; AXES],
    stride: [u32; AXES],
    padding: [u32; AXES],
    x: u32,
    counted: u32,
}

const MAX: usize = 0;
const MEAN: usize = 1;
pub(crate) const KERNELS: usize = 2;

pub(crate) fn spec(number: usize) -> KernelSpec {
    let (name, code, names) = match number {
        MAX => {
            ("max_pool", cpu::largest(), [("{START}", "from_bits(0xff800000u)"), ("{STEP}", "larger(result, seen)")])
        }
        _ => ("avg_pool", cpu::mean(), [("{START}", "0.0"), ("{STEP}", "result + seen")]),
    };
    let end = if number == MAX { "result" } else { "result / count" };
    let names = [names[0], names[1], ("{END}", end)];
    kernel::<Params>(name.to_owned(), &["x"]).cpu(code).wgsl(wgsl(include_str!("pool.wgsl"), &names))
}

fn words(sizes: [usize; AXES]) -> [u32; AXES] {
    sizes.map(|size| size as u32)
}

fn pool(op: &'static str, number: usize, x: &Tensor, window: &PerAxis, pool: &Pool) -> Result<Tensor> {
    if x.dtype() != DType::F32 {
        return Err(Error::DType { op, given: x.dtype(), takes: "f32" });
    }
    let shape = x.shape();
    if !(3..=5).contains(&shape.len()) {
        let why = "are not what windows lie in: batch, channels and one to three axes";
        return Err(Error::Shapes { op, left: shape.into(), right: [].into(), why });
    }
    if let Some(axis) = (1..shape.len()).find(|&axis| shape[axis] == 0) {
        return Err(Error::Axis { op, axis: axis as isize, shape: shape.into(), why: "has length zero" });
    }
    let axes = shape.len() - 2;
    window.check(op, "window", axes, |n| n > 0, "has to be at least one")?;
    let stride = pool.stride.as_ref().unwrap_or(window);
    stride.check(op, "stride", axes, |n| n > 0, "has to be at least one")?;
    pool.padding.check(op, "padding", axes, |_| true, "")?;
    let (input, window_of) = (spatial(shape, 1), window.spread(axes, 1));
    let (stride, padding) = (stride.spread(axes, 1), pool.padding.spread(axes, 0));
    let mut output = [1; AXES];
    for axis in 0..AXES {
        if padding[axis] > window_of[axis] / 2 {
            return Err(pool.padding.refused(op, "padding", "is more than half a window"));
        }
        let padded = input[axis] + 2 * padding[axis];
        let Some(last) = padded.checked_sub(window_of[axis]) else {
            return Err(window.refused(op, "window", "is larger than the input with its padding"));
        };
        output[axis] = last / stride[axis] + 1;
    }
    let limit = if x.tensors().is_bounded() { LONGEST } else { usize::MAX };
    if window_of.iter().any(|&len| len > limit) {
        return Err(window.refused(op, "window", "is longer than a thread of this device goes through"));
    }
    if window_of.iter().product::<usize>() > limit {
        // A window is a box, so its largest is found along one axis after the other, and its mean too.
        let one = |axis: usize, of: &[usize; AXES], none: usize| {
            let mut alone = vec![none; axes];
            alone[axis] = of[AXES - axes + axis];
            PerAxis::from(&alone[..])
        };
        let mut result = x.clone();
        for axis in 0..axes {
            let along =
                Pool { stride: Some(one(axis, &stride, 1)), padding: one(axis, &padding, 0), counted: pool.counted };
            result = self::pool(op, number, &result, &one(axis, &window_of, 1), &along)?;
        }
        return Ok(result);
    }
    let dims = [&shape[..2], &output[AXES - axes..]].concat();
    let out = x.tensors().output(DType::F32, Shape::new(op, &dims)?)?;
    let x = x.contiguous()?;
    let (Some(from), Some(to)) = (x.buffer(), out.buffer()) else { return Ok(out) };
    let params = Params {
        planes: (dims[0] * dims[1]) as u32,
        input: words(input),
        window: words(window_of),
        output: words(output),
        stride: words(stride),
        padding: words(padding),
        x: x.layout().offset as u32,
        counted: u32::from(pool.counted),
    };
    let launch = x.tensors().kernel(Family::Pool, number)?.launch().bind(from).bind(to);
    x.tensors().enqueue(launch.params(&params).grid(grid(out.elements())))?;
    let call = || Call::Pool { largest: number == MAX, window: window.clone(), pool: pool.clone() };
    x.tensors().watch(call, &[&x], &out);
    Ok(out)
}

impl Tensor {
    /// The largest element of every window, of a batch of channels with one to three axes. A window with something that
    /// is not a number has none.
    ///
    /// ```
    /// use millrace::tensor::{Pool, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.arange(0.0, 1.0, 16)?.reshape(&[1, 1, 4, 4])?;
    /// assert_eq!(x.max_pool(2, &Pool::new())?.to_vec::<f32>()?, [5.0, 7.0, 13.0, 15.0]);
    /// assert_eq!(x.max_pool([3, 2], &Pool::new().stride(1).padding([1, 0]))?.shape(), [1, 1, 4, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_pool(&self, window: impl Into<PerAxis>, pool: &Pool) -> Result<Self> {
        self::pool("max_pool", MAX, self, &window.into(), pool)
    }

    /// The mean of every window.
    ///
    /// ```
    /// use millrace::tensor::{Pool, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.arange(0.0, 1.0, 16)?.reshape(&[1, 1, 4, 4])?;
    /// assert_eq!(x.avg_pool(2, &Pool::new())?.to_vec::<f32>()?, [2.5, 4.5, 10.5, 12.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn avg_pool(&self, window: impl Into<PerAxis>, pool: &Pool) -> Result<Self> {
        self::pool("avg_pool", MEAN, self, &window.into(), pool)
    }
}
