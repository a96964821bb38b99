//! Elements of one tensor or another, as a third says.

mod cpu;

use millrace_core::KernelSpec;

use super::{ELEMENTWISE, Family, Form, Walk, kernel, together, walk, wgsl};
use crate::{DType, Error, Result, Tensor, check::Call, cpu::map, layout::Shape};

pub(crate) const KERNELS: usize = 1;

pub(crate) fn spec(_: usize) -> KernelSpec {
    let source = format!("{ELEMENTWISE}{}", include_str!("select.wgsl"));
    let spec = kernel::<Walk>("select".to_owned(), &["condition", "left", "right"]);
    spec.cpu(map::kernel::<cpu::Select, 3>()).wgsl(wgsl(&source, &[]))
}

impl Tensor {
    /// Where this (a `bool` tensor) is true the elements of `yes`, elsewhere those of `no`; shapes broadcast. NumPy's
    /// `where`.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[-1.0f32, 2.0, -3.0], &[3])?;
    /// let y = x.lt(0.0)?.select(&tensors.scalar(0.0f32)?, &x)?;
    /// assert_eq!(y.to_vec::<f32>()?, [0.0, 2.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn select(&self, yes: &Self, no: &Self) -> Result<Self> {
        let op = "select";
        if self.dtype() != DType::Bool {
            return Err(Error::DType { op, given: self.dtype(), takes: "bool" });
        }
        if yes.dtype() != no.dtype() {
            return Err(Error::DTypes { op, left: yes.dtype(), right: no.dtype() });
        }
        if yes.dtype() == DType::Complex {
            return Err(Error::DType { op, given: DType::Complex, takes: "f32, i32 or bool" });
        }
        together(op, self, yes)?;
        together(op, self, no)?;
        let shape = Shape::broadcast(op, &yes.shaped(), &no.shaped())?;
        let shape = Shape::broadcast(op, &self.shaped(), &shape)?;
        let (walk, operands) = walk(op, [self, yes, no], &shape)?;
        let out = self.tensors().output(yes.dtype(), shape)?;
        if let Some(target) = out.buffer() {
            let launch = self.tensors().kernel(Family::Select, 0)?.launch();
            let launch = operands.iter().filter_map(Tensor::buffer).fold(launch, |launch, buffer| launch.bind(buffer));
            self.tensors().enqueue(launch.bind(target).params(&walk).grid(Form::Any.grid(&walk)))?;
        }
        self.tensors().watch(|| Call::Select, &[self, yes, no], &out);
        Ok(out)
    }
}
