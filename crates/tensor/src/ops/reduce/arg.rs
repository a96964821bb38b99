//! Where the largest or smallest element is.

use millrace_core::{CpuKernel, KernelSpec};

use super::{Family, Params, cpu, grid, kernel, left, wgsl};
use crate::{DType, Error, Result, Tensor, check::Call};

struct Entry {
    name: &'static str,
    dtype: DType,
    /// When `v` is more extreme than `best`, in WGSL.
    better: &'static str,
    cpu: fn() -> CpuKernel,
    merge: fn() -> CpuKernel,
}

const TABLE: [Entry; 4] = [
    Entry {
        name: "argmax",
        dtype: DType::F32,
        better: "v > best",
        cpu: cpu::arg::<cpu::Max>,
        merge: cpu::merge::<cpu::Max>,
    },
    Entry {
        name: "argmax",
        dtype: DType::I32,
        better: "v > best",
        cpu: cpu::arg::<cpu::MaxI32>,
        merge: cpu::merge::<cpu::MaxI32>,
    },
    Entry {
        name: "argmin",
        dtype: DType::F32,
        better: "v < best",
        cpu: cpu::arg::<cpu::Min>,
        merge: cpu::merge::<cpu::Min>,
    },
    Entry {
        name: "argmin",
        dtype: DType::I32,
        better: "v < best",
        cpu: cpu::arg::<cpu::MinI32>,
        merge: cpu::merge::<cpu::MinI32>,
    },
];

/// Each has a kernel that finds winners, and one that finds the winner of winners.
pub(super) const KERNELS: usize = 2 * TABLE.len();

pub(super) fn spec(number: usize, head: &str) -> KernelSpec {
    let (entry, merges) = (&TABLE[number / 2], number % 2 == 1);
    let nan = |name: &str| if entry.dtype == DType::F32 { format!("is_nan({name})") } else { "false".to_owned() };
    let names = [
        ("{TYPE}", entry.dtype.wgsl()),
        ("{BETTER}", entry.better),
        ("{NAN_V}", &nan("v")),
        ("{NAN_BEST}", &nan("best")),
    ];
    let name = format!("{}_{}{}", entry.name, entry.dtype, if merges { "_merge" } else { "" });
    let (template, inputs, code) = if merges {
        (include_str!("merge.wgsl"), &["x", "winners"][..], (entry.merge)())
    } else {
        (include_str!("arg.wgsl"), &["x"][..], (entry.cpu)())
    };
    kernel::<Params>(name, inputs).cpu(code).wgsl(wgsl(&format!("{head}{template}"), &names))
}

fn arg(x: &Tensor, op: &'static str, entry: usize, axes: u32, keepdims: bool) -> Result<Tensor> {
    let entry = match x.dtype() {
        DType::F32 => entry,
        DType::I32 => entry + 1,
        DType::Bool => return arg(&x.clone().reinterpret(DType::I32), op, entry, axes, keepdims),
        given @ DType::Complex => return Err(Error::DType { op, given, takes: super::NUMBERS }),
    };
    let (tensors, shape) = (x.tensors(), left(&x.shaped(), axes, keepdims));
    let Some(source) = x.buffer() else {
        return match shape.elements() {
            0 => tensors.output(DType::I32, shape),
            _ => Err(Error::Empty { op, shape: x.shaped().into() }),
        };
    };
    let mut params = Params::new(x.layout(), axes);
    let mut winners: Option<Tensor> = None;
    loop {
        let candidates = if winners.is_some() { params.partials } else { params.length };
        params.split(candidates as usize, tensors.is_bounded(), 0);
        let last = params.chunks == 1;
        let results = (params.outputs * params.chunks) as usize;
        let out = tensors.output(DType::I32, if last { shape } else { [results].into_iter().collect() })?;
        let Some(target) = out.buffer() else { return Ok(out) };
        let number = super::ARG + 2 * entry + usize::from(winners.is_some());
        let launch = tensors.kernel(Family::Reduce, number)?.launch().bind(source);
        let launch = winners.iter().filter_map(Tensor::buffer).fold(launch, |launch, buffer| launch.bind(buffer));
        tensors.enqueue(launch.bind(target).params(&params).grid(grid(results)))?;
        if last {
            tensors.watch(|| Call::Arg { name: op.to_owned(), axes, keepdims }, &[x], &out);
            return Ok(out);
        }
        params.partials = params.chunks;
        winners = Some(out);
    }
}

/// Runs one of them, by its name.
pub(crate) fn arg_by_name(x: &Tensor, name: &str, axes: u32, keepdims: bool) -> Result<Tensor> {
    match TABLE.iter().position(|entry| entry.name == name) {
        Some(entry) => arg(x, TABLE[entry].name, entry, axes, keepdims),
        None => Err(millrace_core::Error::Invalid(format!("there is no operation {name}").into()).into()),
    }
}

macro_rules! methods {
    ($($what:literal, $name:ident, $keep:ident, $all:ident, $entry:literal;)+) => {
        impl Tensor {$(
            #[doc = concat!("Where along an axis the ", $what, " element is, as `i32`: the first of several, or the first NaN.")]
            ///
            /// ```
            /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
            /// let x = tensors.from_slice(&[3, 1, 1, 3], &[4])?;
            #[doc = concat!("let at = x.", stringify!($name), "(0)?.item::<i32>()?;")]
            #[doc = concat!("assert_eq!(at, ", $entry, " / 2); // the first of two")]
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// ```
            pub fn $name(&self, axis: isize) -> Result<Self> {
                arg(self, stringify!($name), $entry, self.folded(stringify!($name), &[axis])?, false)
            }

            #[doc = concat!("[`Tensor::", stringify!($name), "`], with an axis of length one in the place of the one that is gone.")]
            pub fn $keep(&self, axis: isize) -> Result<Self> {
                arg(self, stringify!($name), $entry, self.folded(stringify!($name), &[axis])?, true)
            }

            #[doc = concat!("Where among all elements in order the ", $what, " one is.")]
            pub fn $all(&self) -> Result<Self> {
                arg(self, stringify!($name), $entry, self.all_axes(), false)
            }
        )+}
    };
}
methods! {
    "largest", argmax, argmax_keepdims, argmax_all, 0;
    "smallest", argmin, argmin_keepdims, argmin_all, 2;
}
