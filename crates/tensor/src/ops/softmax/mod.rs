//! Softmax along an axis.

mod cpu;

use bytemuck::{Pod, Zeroable};
use millrace_core::KernelSpec;

use super::{Family, grid, kernel, wgsl};
use crate::{DType, Error, Result, Tensor, check::Call, layout::MAX_RANK};

/// The longest row that one thread of a GPU does.
const LONGEST: usize = 2048;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    rows: u32,
    length: u32,
    offset: u32,
}

pub(crate) const KERNELS: usize = 1;

pub(crate) fn spec(_: usize) -> KernelSpec {
    let source = format!("{}{}", include_str!("../math.wgsl"), include_str!("softmax.wgsl"));
    kernel::<Params>("softmax".to_owned(), &["x"]).cpu(cpu::kernel()).wgsl(wgsl(&source, &[]))
}

impl Tensor {
    /// e to the power of every element, divided by the sum of those along the axis; computed so that nothing overflows.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[1000.0f32, 1000.0, -1000.0], &[1, 3])?;
    /// assert_eq!(x.softmax(-1)?.to_vec::<f32>()?, [0.5, 0.5, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn softmax(&self, axis: isize) -> Result<Self> {
        let op = "softmax";
        if self.dtype() != DType::F32 {
            return Err(Error::DType { op, given: self.dtype(), takes: "f32" });
        }
        let (axis, last) = (self.layout().shape.axis(op, axis)?, self.rank() - 1);
        if axis != last {
            // The axis goes to the end and back; the result is a view.
            let mut order = std::array::from_fn::<_, MAX_RANK, _>(|axis| axis);
            order.swap(axis, last);
            let order = &order[..=last];
            let turned = self.view(self.layout().permute(order)).softmax(-1)?;
            return Ok(turned.view(turned.layout().permute(order)));
        }
        let length = self.shape()[last];
        if self.tensors().is_bounded() && length > LONGEST {
            let e = self.sub(&self.max_keepdims(&[-1])?)?.exp()?;
            return e.div(&e.sum_keepdims(&[-1])?);
        }
        let x = self.contiguous()?;
        let out = self.tensors().output(DType::F32, self.shaped())?;
        if let (Some(source), Some(target)) = (x.buffer(), out.buffer()) {
            let rows = x.elements() / length;
            let params = Params { rows: rows as u32, length: length as u32, offset: x.layout().offset as u32 };
            let launch = self.tensors().kernel(Family::Softmax, 0)?.launch().bind(source).bind(target);
            self.tensors().enqueue(launch.params(&params).grid(grid(rows)))?;
        }
        self.tensors().watch(|| Call::Softmax, &[self], &out);
        Ok(out)
    }
}
