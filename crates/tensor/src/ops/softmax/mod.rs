//! Softmax along an axis.

mod cpu;

use bytemuck::{Pod, Zeroable};
use millrace_core::KernelSpec;

use super::{Family, Rows, kernel, together_in_a_group, wgsl};
use crate::{DType, Error, Result, Tensor, check::Call, layout::MAX_RANK};

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    rows: u32,
    length: u32,
    offset: u32,
}

/// A thread, or on a GPU a group, does a row.
const THREAD: usize = 0;
const GROUP: usize = 1;
pub(crate) const KERNELS: usize = 2;

pub(crate) fn spec(number: usize) -> KernelSpec {
    let math = include_str!("../math.wgsl");
    let (name, source) = match number {
        THREAD => ("softmax", format!("{math}{}", include_str!("softmax.wgsl"))),
        _ => {
            let (largest, sum) = (together_in_a_group("largest", "max_(a, b)"), together_in_a_group("sum", "a + b"));
            ("softmax_group", format!("{math}{largest}{sum}{}", include_str!("group.wgsl")))
        }
    };
    kernel::<Params>(name.to_owned(), &["x"]).cpu(cpu::kernel()).wgsl(wgsl(&source, &[]))
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
        let rows = self.elements() / length.max(1);
        let way = if self.tensors().is_bounded() { Rows::of(rows, length) } else { Rows::Thread };
        if way == Rows::Whole {
            let e = self.sub(&self.max_keepdims(&[-1])?)?.exp()?;
            return e.div(&e.sum_keepdims(&[-1])?);
        }
        let x = self.contiguous()?;
        let out = self.tensors().output(DType::F32, self.shaped())?;
        if let (Some(source), Some(target)) = (x.buffer(), out.buffer()) {
            let params = Params { rows: rows as u32, length: length as u32, offset: x.layout().offset as u32 };
            let kernel = self.tensors().kernel(Family::Softmax, if way == Rows::Group { GROUP } else { THREAD })?;
            let launch = kernel.launch().bind(source).bind(target);
            self.tensors().enqueue(launch.params(&params).grid(way.grid(rows)))?;
        }
        self.tensors().watch(|| Call::Softmax, &[self], &out);
        Ok(out)
    }
}
