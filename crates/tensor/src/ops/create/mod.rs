//! Tensors that are made on the device from a few numbers.

mod cpu;

use bytemuck::{Pod, Zeroable};
use millrace_core::{CpuKernel, KernelSpec};

use super::{Family, grid, kernel, wgsl};
use crate::{DType, Error, Result, Tensor, Tensors, check::Call, layout::Shape};

/// What a kernel makes its elements of.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    n: u32,
    a: u32,
    b: u32,
}

/// A way to make elements: its name, what is stored, element `i` in WGSL, and the same for the CPU.
struct Entry {
    name: &'static str,
    stored: &'static str,
    expression: &'static str,
    cpu: fn() -> CpuKernel,
}

enum Create {
    Full,
    ArangeF32,
    ArangeI32,
    Rand,
    FullComplex,
}

const TABLE: [Entry; 5] = [
    Entry { name: "full", stored: "u32", expression: "params.a", cpu: || cpu::kernel(|params, _| params.a) },
    Entry {
        name: "arange_f32",
        stored: "f32",
        expression: "bitcast<f32>(params.a) + f32(i) * bitcast<f32>(params.b)",
        cpu: || cpu::kernel(|params, i| (f32::from_bits(params.a) + i as f32 * f32::from_bits(params.b)).to_bits()),
    },
    Entry {
        name: "arange_i32",
        stored: "u32",
        expression: "params.a + i * params.b",
        cpu: || cpu::kernel(|params, i| params.a.wrapping_add(i.wrapping_mul(params.b))),
    },
    Entry {
        name: "rand",
        stored: "f32",
        expression: "f32(pcg(pcg(i ^ params.a) ^ params.b) >> 8u) * 5.9604645e-8",
        cpu: || {
            cpu::kernel(|params, i| {
                ((cpu::pcg(cpu::pcg(i ^ params.a) ^ params.b) >> 8) as f32 * 2f32.powi(-24)).to_bits()
            })
        },
    },
    Entry {
        name: "full_complex",
        stored: "vec2<u32>",
        expression: "vec2<u32>(params.a, params.b)",
        cpu: || cpu::kernel(|params, _| [params.a, params.b]),
    },
];

pub(crate) const KERNELS: usize = TABLE.len();

pub(crate) fn spec(number: usize) -> KernelSpec {
    let entry = &TABLE[number];
    let names = [("{OUT}", entry.stored), ("{EXPR}", entry.expression)];
    let source = wgsl(include_str!("create.wgsl"), &names);
    kernel::<Params>(entry.name.to_owned(), &[]).cpu((entry.cpu)()).wgsl(source)
}

/// A tensor that a kernel makes, by its number.
pub(crate) fn create(tensors: &Tensors, kernel: usize, shape: Shape, dtype: DType, a: u32, b: u32) -> Result<Tensor> {
    let out = tensors.output(dtype, shape)?;
    if let Some(target) = out.buffer() {
        let n = shape.elements();
        let launch = tensors.kernel(Family::Create, kernel)?.launch().bind(target);
        tensors.enqueue(launch.params(&Params { n: n as u32, a, b }).grid(grid(n)))?;
    }
    let call = || Call::Create { kernel, shape: shape.to_vec(), dtype, values: [a, b] };
    tensors.watch(call, &[], &out);
    Ok(out)
}

pub(crate) fn full(tensors: &Tensors, shape: Shape, dtype: DType, bits: u64) -> Result<Tensor> {
    let how = if dtype == DType::Complex { Create::FullComplex } else { Create::Full };
    create(tensors, how as usize, shape, dtype, bits as u32, (bits >> 32) as u32)
}

pub(crate) fn arange(tensors: &Tensors, dtype: DType, start: u64, step: u64, shape: Shape) -> Result<Tensor> {
    let how = match dtype {
        DType::F32 => Create::ArangeF32,
        DType::I32 => Create::ArangeI32,
        DType::Bool | DType::Complex => return Err(Error::DType { op: "arange", given: dtype, takes: "f32 or i32" }),
    };
    create(tensors, how as usize, shape, dtype, start as u32, step as u32)
}

pub(crate) fn rand(tensors: &Tensors, shape: Shape, seed: u64) -> Result<Tensor> {
    let (a, b) = stirred(seed);
    create(tensors, Create::Rand as usize, shape, DType::F32, a, b)
}

/// Seeds that differ in one bit must not give numbers that look alike.
fn stirred(seed: u64) -> (u32, u32) {
    let (low, high) = (cpu::pcg(seed as u32), cpu::pcg((seed >> 32) as u32 ^ 0x9e37_79b9));
    (low ^ high, low.rotate_left(16).wrapping_add(high))
}

/// Number `i` of [`rand`], for whoever wants to check it.
pub(crate) fn uniform(seed: u64, i: u32) -> f64 {
    let (a, b) = stirred(seed);
    f64::from(cpu::pcg(cpu::pcg(i ^ a) ^ b) >> 8) * 2f64.powi(-24)
}
