//! A tensor: its buffer, its layout, the views of it, and its elements for the host.

use std::{
    fmt,
    ops::{Bound, RangeBounds},
};

use millrace_core::Buffer;

use crate::{
    DType, Element, Error, Result, Tensors,
    layout::{Layout, MAX_RANK, Shape},
    ops::copy,
};

/// An array of numbers on a device. A clone, like every view, shares the elements; they never change.
///
/// Operations return a new tensor at once, while the device works; the elements are waited for in [`Tensor::to_vec`].
///
/// ```
/// use millrace::tensor::Tensors;
/// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
/// let x = tensors.arange(0.0, 1.0, 12)?.reshape(&[3, 4])?;
/// let corner = x.slice(0, 1..)?.slice(1, ..2)?.t()?; // still the same buffer
/// assert_eq!(corner.to_vec::<f32>()?, [4.0, 8.0, 5.0, 9.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    tensors: Tensors,
    /// None if there are no elements.
    buffer: Option<Buffer>,
    layout: Layout,
    dtype: DType,
}

impl Tensor {
    #[inline]
    pub(crate) fn new(tensors: Tensors, buffer: Option<Buffer>, layout: Layout, dtype: DType) -> Self {
        Self { tensors, buffer, layout, dtype }
    }

    /// The length of every axis.
    #[inline]
    pub fn shape(&self) -> &[usize] {
        &self.layout.shape
    }

    /// The element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// How many axes it has.
    pub fn rank(&self) -> usize {
        self.layout.shape.len()
    }

    /// How many elements it has.
    #[inline]
    pub fn elements(&self) -> usize {
        self.layout.shape.elements()
    }

    /// Steps in the buffer from one element to the next along every axis.
    pub fn strides(&self) -> &[isize] {
        self.layout.strides()
    }

    /// Whether its elements lie in order without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// The place it lives in.
    #[inline]
    pub fn tensors(&self) -> &Tensors {
        &self.tensors
    }

    /// Whether both are views of one buffer.
    pub fn shares_buffer_with(&self, other: &Self) -> bool {
        matches!((&self.buffer, &other.buffer), (Some(a), Some(b)) if a.same_as(b))
    }

    #[inline]
    pub(crate) fn buffer(&self) -> Option<&Buffer> {
        self.buffer.as_ref()
    }

    #[inline]
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    pub(crate) fn shaped(&self) -> Shape {
        self.layout.shape
    }

    pub(crate) fn view(&self, layout: Layout) -> Self {
        let buffer = if layout.shape.elements() == 0 { None } else { self.buffer.clone() };
        Self::new(self.tensors.clone(), buffer, layout, self.dtype)
    }

    /// The same bits read as another element type.
    pub(crate) fn reinterpret(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// The elements in order. Waits for the operations they come from, and brings the first error on the stream that
    /// nobody saw.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let t = tensors.from_slice(&[1, 2, 3], &[3])?;
    /// assert_eq!(t.to_vec::<i32>()?, [1, 2, 3]);
    /// assert!(t.to_vec::<f32>().is_err(), "another element type");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            return Err(Error::DTypes { op: "to_vec", left: self.dtype, right: T::DTYPE });
        }
        let packed = self.contiguous()?;
        let Some(buffer) = packed.buffer() else {
            self.tensors.synchronize()?;
            return Ok(Vec::new());
        };
        let size = self.dtype.size();
        let start = packed.layout.offset * size;
        let view = self.tensors.stream().run(buffer.read(start..start + packed.elements() * size));
        // An operation that failed left an error there, and nothing worth reading here.
        self.tensors.synchronize()?;
        Ok(view?.to::<T::Word>().iter().map(|&word| T::from_word(word)).collect())
    }

    /// The only element.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// assert_eq!(tensors.ones(&[2, 3])?.sum_all()?.item::<f32>()?, 6.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn item<T: Element>(&self) -> Result<T> {
        match self.to_vec()?[..] {
            [item] => Ok(item),
            ref all => Err(Error::Elements { op: "item", given: all.len(), expected: 1, shape: Shape::SCALAR.into() }),
        }
    }

    /// The same elements in order without gaps: itself if they are so already, a copy if not.
    pub fn contiguous(&self) -> Result<Self> {
        if self.is_contiguous() { Ok(self.clone()) } else { copy::copy(self) }
    }

    /// The same elements with another shape of as many. Copies only if strides cannot say it.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.zeros(&[4, 6])?;
    /// assert_eq!(x.reshape(&[2, 2, 6])?.shape(), [2, 2, 6]);
    /// assert_eq!(x.reshape(&[5, 5]).unwrap_err().to_string(), "reshape: 24 elements do not fill shape [5, 5], which has 25");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
        let to = Shape::new("reshape", shape)?;
        if to.elements() != self.elements() {
            let (given, expected) = (self.elements(), to.elements());
            return Err(Error::Elements { op: "reshape", given, expected, shape: to.into() });
        }
        match self.layout.reshape(&to) {
            Some(layout) => Ok(self.view(layout)),
            None => copy::copy(self)?.reshape(shape),
        }
    }

    /// All elements along one axis. Copies only if strides cannot say it.
    pub fn flatten(&self) -> Result<Self> {
        self.reshape(&[self.elements()])
    }

    /// The axes in another order: the first is the one that `order` names first.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// assert_eq!(tensors.zeros(&[2, 3, 4])?.permute(&[2, 0, 1])?.shape(), [4, 2, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn permute(&self, order: &[isize]) -> Result<Self> {
        let shape = self.shaped();
        shape.axes("permute", order)?;
        if order.len() != shape.len() {
            return Err(Error::Rank { op: "permute", rank: order.len(), limit: shape.len() });
        }
        let mut axes = [0; MAX_RANK];
        for (axis, &named) in axes.iter_mut().zip(order) {
            *axis = shape.axis("permute", named)?;
        }
        Ok(self.view(self.layout.permute(&axes[..order.len()])))
    }

    /// The last two axes exchanged.
    pub fn t(&self) -> Result<Self> {
        self.transpose(-2, -1)
    }

    /// Two axes exchanged.
    pub fn transpose(&self, a: isize, b: isize) -> Result<Self> {
        let (a, b) = (self.layout.shape.axis("transpose", a)?, self.layout.shape.axis("transpose", b)?);
        let mut order = std::array::from_fn::<_, MAX_RANK, _>(|axis| axis);
        order.swap(a, b);
        Ok(self.view(self.layout.permute(&order[..self.rank()])))
    }

    /// A part of one axis.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.arange(0, 1, 5)?;
    /// assert_eq!(x.slice(0, 1..4)?.to_vec::<i32>()?, [1, 2, 3]);
    /// assert_eq!(x.slice(0, 3..9).unwrap_err().to_string(), "slice: range 3..9 is not inside axis 0 of shape [5]");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slice(&self, axis: isize, range: impl RangeBounds<usize>) -> Result<Self> {
        self.slice_step(axis, range, 1)
    }

    /// Every `step`-th element of a part of one axis; from its end if `step` is negative.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.arange(0, 1, 6)?;
    /// assert_eq!(x.slice_step(0, .., 2)?.to_vec::<i32>()?, [0, 2, 4]);
    /// assert_eq!(x.slice_step(0, 1..5, -1)?.to_vec::<i32>()?, [4, 3, 2, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn slice_step(&self, axis: isize, range: impl RangeBounds<usize>, step: isize) -> Result<Self> {
        let (op, shape) = ("slice", self.shaped());
        let at = shape.axis(op, axis)?;
        let start = match range.start_bound() {
            Bound::Included(&start) => start,
            Bound::Excluded(&start) => start.saturating_add(1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&end) => end.saturating_add(1),
            Bound::Excluded(&end) => end,
            Bound::Unbounded => shape[at],
        };
        if start > end || end > shape[at] {
            return Err(Error::Range { op, start, end, axis: at, shape: shape.into() });
        }
        if step == 0 {
            return Err(Error::Axis { op, axis, shape: shape.into(), why: "cannot be walked in steps of zero" });
        }
        let len = (end - start).div_ceil(step.unsigned_abs());
        let first = if step > 0 { start } else { end.saturating_sub(1) };
        Ok(self.view(self.layout.take(at, first, len, step)))
    }

    /// One axis backwards.
    pub fn flip(&self, axis: isize) -> Result<Self> {
        self.slice_step(axis, .., -1)
    }

    /// Repeated along new axes and along those of length one, without copying.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let row = tensors.from_slice(&[1, 2], &[2])?;
    /// assert_eq!(row.expand(&[3, 2])?.to_vec::<i32>()?, [1, 2, 1, 2, 1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn expand(&self, shape: &[usize]) -> Result<Self> {
        Ok(self.view(self.layout.expand("expand", &Shape::new("expand", shape)?)?))
    }

    /// With a new axis of length one before `axis`, which may be one past the last.
    pub fn unsqueeze(&self, axis: isize) -> Result<Self> {
        let mut dims = self.shape().to_vec();
        let at = if axis < 0 { axis + dims.len() as isize + 1 } else { axis };
        if !(0..=dims.len() as isize).contains(&at) {
            return Err(Error::Axis { op: "unsqueeze", axis, shape: self.shaped().into(), why: "does not exist" });
        }
        dims.insert(at as usize, 1);
        self.reshape(&dims)
    }

    /// Without an axis of length one.
    pub fn squeeze(&self, axis: isize) -> Result<Self> {
        let at = self.layout.shape.axis("squeeze", axis)?;
        if self.layout.shape[at] != 1 {
            return Err(Error::Axis { op: "squeeze", axis, shape: self.shaped().into(), why: "is not of length one" });
        }
        Ok(self.view(self.layout.without(1 << at)))
    }

    /// With `value` around it: for every axis, how many elements before and behind.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[1, 2], &[1, 2])?;
    /// assert_eq!(x.pad(&[(1, 0), (0, 1)], 9)?.to_vec::<i32>()?, [9, 9, 9, 1, 2, 9]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn pad<T: Element>(&self, around: &[(usize, usize)], value: T) -> Result<Self> {
        if T::DTYPE != self.dtype {
            return Err(Error::DTypes { op: "pad", left: self.dtype, right: T::DTYPE });
        }
        copy::pad(self, around, value.to_bits())
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tensor").field("shape", &self.layout.shape).field("dtype", &self.dtype).finish_non_exhaustive()
    }
}
