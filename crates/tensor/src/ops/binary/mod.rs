//! Operations on pairs of elements of two tensors, or of a tensor and a number.

mod cpu;

use millrace_core::{CpuKernel, KernelSpec};

use super::{ELEMENTWISE, Family, Form, Walk, geometry, kernel, together, unary, walk, wgsl};
use crate::{DType, Element, Error, Result, Tensor, check::Call, layout::Shape};

/// One operation for one element type.
pub(crate) struct Entry {
    pub(crate) name: &'static str,
    pub(crate) from: DType,
    pub(crate) to: DType,
    /// What it does with `a` and `b`, in WGSL.
    expression: &'static str,
    cpu: fn() -> CpuKernel,
}

use cpu::Binary;
pub(crate) use cpu::TABLE;

/// Each entry has a kernel of each form.
pub(crate) const KERNELS: usize = Form::ALL.len() * TABLE.len();

/// How a packed kernel gets at its operands. Where the second is a number, the first is bound twice.
const LEFT: &str = "left[params.offsets[0] / 4u + i]";
const RIGHT: &str =
    "select(right[params.offsets[1] / 4u + i], vec4<{IN}>(bitcast<{IN}>(params.value)), params.scalar == 2u)";

pub(crate) fn spec(number: usize) -> KernelSpec {
    let (entry, form) = Form::kernel(number);
    let entry = &TABLE[entry];
    let name = format!("{}_{}{}", entry.name, entry.from, form.suffix());
    let template = if form == Form::Any { include_str!("binary.wgsl") } else { include_str!("packed.wgsl") };
    let source = format!("{ELEMENTWISE}{}{template}", include_str!("../math.wgsl"));
    let (left, right) = if form == Form::Packed { (LEFT, RIGHT) } else { ("left[i]", "right[i]") };
    let wide = form.block().to_string();
    let places = [("{LEFT}", left), ("{RIGHT}", right), ("{WIDE}", &wide), ("{GROUP}", form.group())];
    let types = [("{IN}", entry.from.wgsl()), ("{OUT}", entry.to.wgsl())];
    let names = [places[0], places[1], places[2], places[3], types[0], types[1], ("{EXPR}", entry.expression)];
    let spec = kernel::<Walk>(name, &["left", "right"]).block(form.block());
    spec.cpu((entry.cpu)()).wgsl(wgsl(&source, &names))
}

/// The second operand: a tensor, or a number that is the same for all elements and costs no memory. Whole numbers go
/// with `f32` tensors too.
///
/// ```
/// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
/// let x = tensors.from_slice(&[1.0f32, 2.0], &[2])?;
/// assert_eq!(x.mul(3)?.add(0.5)?.add(&x)?.to_vec::<f32>()?, [4.5, 8.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a>(Kind<'a>);

#[derive(Debug, Clone, Copy)]
enum Kind<'a> {
    Tensor(&'a Tensor),
    Number(DType, u32),
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    #[inline]
    fn from(tensor: &'a Tensor) -> Self {
        Self(Kind::Tensor(tensor))
    }
}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl From<$number> for Operand<'_> {
            #[inline]
            fn from(number: $number) -> Self {
                Self(Kind::Number(<$number>::DTYPE, number.to_bits() as u32))
            }
        }
    )+};
}
// Of all integers and of all floats only one, so that literals need no suffix.
impl From<f32> for Operand<'_> {
    #[inline]
    fn from(number: f32) -> Self {
        Self(Kind::Number(DType::F32, number.to_bits()))
    }
}
numbers!(i32, bool);

/// Runs the entry for the first tensor's element type.
#[inline]
fn binary(
    a: &Tensor,
    b: Operand<'_>,
    op: &'static str,
    takes: &'static str,
    entries: [Option<Binary>; 3],
) -> Result<Tensor> {
    let Some(entry) = entries.get(a.dtype() as usize).copied().flatten() else {
        return Err(Error::DType { op, given: a.dtype(), takes });
    };
    match b.0 {
        Kind::Number(dtype, bits) => {
            let value = match (a.dtype(), dtype) {
                (left, right) if left == right => bits,
                (DType::F32, DType::I32) => (bits as i32 as f32).to_bits(),
                (left, right) => return Err(Error::DTypes { op, left, right }),
            };
            run_number(a, value, entry as usize)
        }
        Kind::Tensor(b) => {
            if a.dtype() != b.dtype() {
                return Err(Error::DTypes { op, left: a.dtype(), right: b.dtype() });
            }
            together(op, a, b)?;
            run(a, b, entry as usize)
        }
    }
}

/// Runs an entry, by its number, on a tensor of its type and the bits of a number.
#[inline]
pub(crate) fn run_number(a: &Tensor, bits: u32, entry: usize) -> Result<Tensor> {
    let (mut walk, [source]) = walk(TABLE[entry].name, [a], &a.shaped())?;
    (walk.scalar, walk.value) = (2, bits);
    let out = launch(entry, walk, &source, &source, a.shaped())?;
    a.tensors().watch(|| Call::binary(entry, Some(bits)), &[a], &out);
    Ok(out)
}

/// Runs an entry, by its number, on tensors of its type.
#[inline]
pub(crate) fn run(a: &Tensor, b: &Tensor, entry: usize) -> Result<Tensor> {
    let out = stretched(a, b, entry)?;
    a.tensors().watch(|| Call::binary(entry, None), &[a, b], &out);
    Ok(out)
}

#[inline]
fn stretched(a: &Tensor, b: &Tensor, entry: usize) -> Result<Tensor> {
    if a.shape() == b.shape()
        && let Some(walk) = Walk::new([a.layout(), b.layout()])
    {
        return launch(entry, walk, a, b, a.shaped());
    }
    let op = TABLE[entry].name;
    let shape = Shape::broadcast(op, &a.shaped(), &b.shaped())?;
    let (walk, [a, b]) = walk(op, [a, b], &shape)?;
    launch(entry, walk, &a, &b, shape)
}

#[inline]
fn launch(entry: usize, walk: Walk, a: &Tensor, b: &Tensor, shape: Shape) -> Result<Tensor> {
    let tensors = a.tensors();
    let out = tensors.output(TABLE[entry].to, shape)?;
    if let (Some(target), Some(left), Some(right)) = (out.buffer(), a.buffer(), b.buffer()) {
        let (form, spread) = geometry(tensors, unary::TABLE.len() + entry, &walk, 2);
        let kernel = tensors.kernel(Family::Binary, form.number(entry))?;
        let launch = kernel.launch().bind(left).bind(right).bind(target).params(&walk).spread(spread);
        tensors.enqueue(launch.grid(form.grid(&walk)))?;
    }
    Ok(out)
}

macro_rules! methods {
    ($($(#[$doc:meta])+ $name:ident, $takes:literal, $f32:expr, $i32:expr, $bool:expr;)+) => {
        impl Tensor {$(
            $(#[$doc])+
            pub fn $name<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Self> {
                binary(self, other.into(), stringify!($name), $takes, [$f32, $i32, $bool])
            }
        )+}
    };
}
methods! {
    /// The sum of both; shapes broadcast.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let (column, row) = (tensors.arange(0, 10, 2)?.reshape(&[2, 1])?, tensors.arange(1, 1, 3)?);
    /// assert_eq!(column.add(&row)?.to_vec::<i32>()?, [1, 2, 3, 11, 12, 13]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    add, "f32 or i32", Some(Binary::Add), Some(Binary::AddI32), None;
    /// The first less the second.
    sub, "f32 or i32", Some(Binary::Sub), Some(Binary::SubI32), None;
    /// The product of both.
    mul, "f32 or i32", Some(Binary::Mul), Some(Binary::MulI32), None;
    /// The first divided by the second.
    div, "f32", Some(Binary::Div), None, None;
    /// The larger of both; NaN if either is.
    maximum, "f32 or i32", Some(Binary::Max), Some(Binary::MaxI32), None;
    /// The smaller of both; NaN if either is.
    minimum, "f32 or i32", Some(Binary::Min), Some(Binary::MinI32), None;
    /// The first to the power of the second, as `f32::powf`: a negative number to a whole power is fine. Within one ULP on
    /// the CPU. A GPU has no `f64` for it: there the error is up to two millionths of the result.
    pow, "f32", Some(Binary::Pow), None, None;
    /// What is left of the first after division by the second. It has the second's sign, as `%` in Python and NumPy;
    /// an integer divided by zero leaves zero.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// assert_eq!(tensors.from_slice(&[7, -7], &[2])?.rem(3)?.to_vec::<i32>()?, [1, 2]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    rem, "f32 or i32", Some(Binary::Rem), Some(Binary::RemI32), None;
    /// Where both are equal. NaN is equal to nothing.
    eq, "f32, i32 or bool", Some(Binary::Eq), Some(Binary::EqI32), Some(Binary::EqBool);
    /// Where both differ.
    ne, "f32, i32 or bool", Some(Binary::Ne), Some(Binary::NeI32), Some(Binary::NeBool);
    /// Where the first is smaller.
    lt, "f32 or i32", Some(Binary::Lt), Some(Binary::LtI32), None;
    /// Where the first is smaller or equal.
    le, "f32 or i32", Some(Binary::Le), Some(Binary::LeI32), None;
    /// Where the first is larger.
    gt, "f32 or i32", Some(Binary::Gt), Some(Binary::GtI32), None;
    /// Where the first is larger or equal.
    ge, "f32 or i32", Some(Binary::Ge), Some(Binary::GeI32), None;
    /// Where both are true.
    and, "bool", None, None, Some(Binary::AndBool);
    /// Where at least one is true.
    or, "bool", None, None, Some(Binary::OrBool);
    /// Where exactly one is true.
    xor, "bool", None, None, Some(Binary::XorBool);
}

macro_rules! operators {
    ($($operator:ident $method:ident;)+) => {$(
        impl<'a, O: Into<Operand<'a>>> std::ops::$operator<O> for &Tensor {
            type Output = Result<Tensor>;
            fn $method(self, other: O) -> Result<Tensor> {
                Tensor::$method(self, other)
            }
        }
    )+};
}
operators! {
    Add add;
    Sub sub;
    Mul mul;
    Div div;
    Rem rem;
}

impl std::ops::Neg for &Tensor {
    type Output = Result<Tensor>;
    fn neg(self) -> Result<Tensor> {
        Tensor::neg(self)
    }
}
