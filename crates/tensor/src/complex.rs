//! Complex numbers and their parts: two element types for the same bytes.

use crate::{
    DType, Error, Result, Tensor,
    layout::{Layout, Shape},
};

impl Tensor {
    /// The parts of complex numbers as an axis more, of length two: the same bytes seen as `f32`.
    ///
    /// ```
    /// use millrace::tensor::{Complex32, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[Complex32::new(1.0, 2.0), Complex32::new(3.0, 4.0)], &[2])?;
    /// let parts = x.view_as_real()?;
    /// assert_eq!(parts.shape(), [2, 2]);
    /// assert_eq!(parts.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
    /// assert!(parts.shares_buffer_with(&x));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn view_as_real(&self) -> Result<Self> {
        let op = "view_as_real";
        let shape = Shape::new(op, &[self.shape(), &[2]].concat())?;
        let mut halves = self.halves(op)?;
        (halves.shape, halves.strides[self.rank()]) = (shape, 1);
        Ok(self.view(halves).reinterpret(DType::F32))
    }

    /// Complex numbers whose parts lie along the last axis, which has length two: the same bytes if the parts lie behind
    /// one another, a copy if they do not.
    ///
    /// ```
    /// use millrace::tensor::{Complex32, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let parts = tensors.from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])?;
    /// let x = parts.view_as_complex()?;
    /// assert_eq!(x.to_vec::<Complex32>()?, [Complex32::new(1.0, 2.0), Complex32::new(3.0, 4.0)]);
    /// let y = parts.t()?.view_as_complex()?; // the first row has the real parts
    /// assert_eq!(y.to_vec::<Complex32>()?, [Complex32::new(1.0, 3.0), Complex32::new(2.0, 4.0)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn view_as_complex(&self) -> Result<Self> {
        let op = "view_as_complex";
        if self.dtype() != DType::F32 {
            return Err(Error::DType { op, given: self.dtype(), takes: "f32" });
        }
        let last = match self.shape() {
            [others @ .., 2] => others.len(),
            shape => {
                return Err(Error::Axis { op, axis: -1, shape: shape.into(), why: "has not the two parts" });
            }
        };
        let halves = |n: isize| n % 2 == 0;
        let (layout, strides) = (self.layout(), self.strides());
        let whole = strides[last] == 1 && strides[..last].iter().all(|&stride| halves(stride));
        if !whole || !halves(layout.offset as isize) {
            return super::ops::copy::copy(self)?.view_as_complex();
        }
        let mut view = layout.without(1 << last);
        view.strides.iter_mut().for_each(|stride| *stride /= 2);
        view.offset /= 2;
        Ok(self.view(view).reinterpret(DType::Complex))
    }

    /// The real parts, without copying.
    ///
    /// ```
    /// use millrace::tensor::{Complex32, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[Complex32::new(3.0, 4.0)], &[1])?;
    /// let power = x.real()?.mul(&x.real()?)?.add(&x.imag()?.mul(&x.imag()?)?)?;
    /// assert_eq!(power.sqrt()?.item::<f32>()?, 5.0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn real(&self) -> Result<Self> {
        Ok(self.view(self.halves("real")?).reinterpret(DType::F32))
    }

    /// The imaginary parts, without copying.
    pub fn imag(&self) -> Result<Self> {
        let mut halves = self.halves("imag")?;
        halves.offset += 1;
        Ok(self.view(halves).reinterpret(DType::F32))
    }

    /// The layout of the real parts, in elements of half the size.
    fn halves(&self, op: &'static str) -> Result<Layout> {
        if self.dtype() != DType::Complex {
            return Err(Error::DType { op, given: self.dtype(), takes: "complex" });
        }
        // Whatever a view reaches has to be counted in 31 bits, now in halves.
        if let Some(bytes) = self.buffer().map(|buffer| buffer.len()).filter(|bytes| bytes / 4 > i32::MAX as usize) {
            return Err(Error::TooLarge { op, elements: bytes / 4 });
        }
        let mut halves = *self.layout();
        halves.strides.iter_mut().for_each(|stride| *stride *= 2);
        halves.offset *= 2;
        Ok(halves)
    }
}
