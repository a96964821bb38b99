//! Operations on every element of one tensor.

mod cpu;

use millrace_core::{CpuKernel, KernelSpec};

use super::{ELEMENTWISE, Family, Form, Walk, geometry, kernel, walk, wgsl};
use crate::{DType, Error, Result, Tensor, check::Call};

/// One operation for one element type.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) from: DType,
    pub(crate) to: DType,
    /// What it does with `x`, in WGSL.
    expression: &'static str,
    cpu: fn() -> CpuKernel,
}

pub(crate) use cpu::TABLE;
use cpu::Unary;

/// Each entry has a kernel of each form.
pub(crate) const KERNELS: usize = Form::ALL.len() * TABLE.len();

pub(crate) fn spec(number: usize) -> KernelSpec {
    let (entry, form) = Form::kernel(number);
    let entry = &TABLE[entry];
    let name = format!("{}_{}{}", entry.name, entry.from, form.suffix());
    let template = if form == Form::Any { include_str!("unary.wgsl") } else { include_str!("packed.wgsl") };
    let source = format!("{ELEMENTWISE}{}{template}", include_str!("../math.wgsl"));
    let load = if form == Form::Packed { "x[params.offsets[0] / 4u + i]" } else { "x[i]" };
    let types = [("{IN}", entry.from.wgsl()), ("{OUT}", entry.to.wgsl())];
    let wide = form.block().to_string();
    let places = [("{LOAD}", load), ("{WIDE}", &wide), ("{GROUP}", form.group())];
    let names = [types[0], types[1], places[0], places[1], places[2], ("{EXPR}", entry.expression)];
    let spec = kernel::<Walk>(name, &["x"]).block(form.block());
    spec.cpu((entry.cpu)()).wgsl(wgsl(&source, &names))
}

/// Runs the entry for the tensor's element type.
#[inline]
fn unary(x: &Tensor, op: &'static str, takes: &'static str, entries: [Option<Unary>; 3]) -> Result<Tensor> {
    let Some(entry) = entries.get(x.dtype() as usize).copied().flatten() else {
        return Err(Error::DType { op, given: x.dtype(), takes });
    };
    run(x, entry as usize)
}

/// Runs an entry, by its number.
#[inline]
pub(crate) fn run(x: &Tensor, entry: usize) -> Result<Tensor> {
    let out = x.tensors().output(TABLE[entry].to, x.shaped())?;
    let Some(target) = out.buffer() else { return Ok(out) };
    let launch = |walk: Walk, x: &Tensor| -> Result<()> {
        let Some(source) = x.buffer() else { return Ok(()) };
        let (form, spread) = geometry(x.tensors(), entry, &walk, 1);
        let kernel = x.tensors().kernel(Family::Unary, form.number(entry))?;
        let launch = kernel.launch().bind(source).bind(target).params(&walk).spread(spread);
        x.tensors().enqueue(launch.grid(form.grid(&walk)))
    };
    match Walk::new([x.layout()]) {
        Some(walk) => launch(walk, x)?,
        None => {
            let (walk, [x]) = walk(TABLE[entry].name, [x], &x.shaped())?;
            launch(walk, &x)?;
        }
    }
    x.tensors().watch(|| Call::unary(entry), &[x], &out);
    Ok(out)
}

macro_rules! methods {
    ($($(#[$doc:meta])+ $name:ident, $takes:literal, $f32:expr, $i32:expr, $bool:expr;)+) => {
        impl Tensor {$(
            $(#[$doc])+
            pub fn $name(&self) -> Result<Self> {
                unary(self, stringify!($name), $takes, [$f32, $i32, $bool])
            }
        )+}
    };
}
methods! {
    /// The negative. `i32` wraps.
    neg, "f32 or i32", Some(Unary::Neg), Some(Unary::NegI32), None;
    /// The absolute value. `i32` wraps.
    abs, "f32 or i32", Some(Unary::Abs), Some(Unary::AbsI32), None;
    /// e to the power of every element, within one ULP on the CPU.
    exp, "f32", Some(Unary::Exp), None, None;
    /// The natural logarithm, within one ULP on the CPU.
    log, "f32", Some(Unary::Log), None, None;
    /// Two to the power of every element, within one ULP on the CPU.
    exp2, "f32", Some(Unary::Exp2), None, None;
    /// The logarithm to base two, within one ULP on the CPU.
    log2, "f32", Some(Unary::Log2), None, None;
    /// The square root.
    sqrt, "f32", Some(Unary::Sqrt), None, None;
    /// One divided by every element.
    recip, "f32", Some(Unary::Recip), None, None;
    /// The sine, within two ULP on the CPU, or within 1e-8 where that is more: next to its zeros.
    sin, "f32", Some(Unary::Sin), None, None;
    /// The cosine, as exact as the sine.
    cos, "f32", Some(Unary::Cos), None, None;
    /// The hyperbolic tangent, within two ULP on the CPU.
    tanh, "f32", Some(Unary::Tanh), None, None;
    /// 1 / (1 + e⁻ˣ), within two ULP on the CPU.
    sigmoid, "f32", Some(Unary::Sigmoid), None, None;
    /// The larger of every element and zero; NaN stays NaN.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// assert_eq!(tensors.from_slice(&[-1.0f32, 2.0], &[2])?.relu()?.to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    relu, "f32 or i32", Some(Unary::Relu), Some(Unary::ReluI32), None;
    /// `x` times the share of a normal distribution below `x` (the exact form, not the tanh one), within 16 ULP on the
    /// CPU.
    gelu, "f32", Some(Unary::Gelu), None, None;
    /// True where it is false.
    not, "bool", None, None, Some(Unary::NotBool);
}

impl Tensor {
    /// The same values as another element type. Numbers lose their fraction when they become `i32`, and stop at its
    /// ends (NaN becomes zero); everything but zero becomes true.
    ///
    /// ```
    /// use millrace::tensor::DType;
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[-1.7f32, 0.0, 3e9], &[3])?;
    /// assert_eq!(x.cast(DType::I32)?.to_vec::<i32>()?, [-1, 0, i32::MAX]);
    /// assert_eq!(x.cast(DType::Bool)?.to_vec::<bool>()?, [true, false, true]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn cast(&self, to: DType) -> Result<Self> {
        if self.dtype() == to {
            return Ok(self.clone());
        }
        let entries = match to {
            DType::F32 => [None, Some(Unary::I32ToF32), Some(Unary::BoolToF32)],
            DType::I32 => [Some(Unary::F32ToI32), None, Some(Unary::BoolToI32)],
            DType::Bool => [Some(Unary::F32ToBool), Some(Unary::I32ToBool), None],
            DType::Complex => {
                return Err(Error::DType {
                    op: "cast to complex",
                    given: self.dtype(),
                    takes: "the parts, as `complex`",
                });
            }
        };
        unary(self, "cast", "f32, i32 or bool", entries)
    }
}
