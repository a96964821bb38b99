//! Lines on a GPU: Stockham's passes, and what is done to elements on the way in and out of them.

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, Buffer, KernelSpec};

use super::{
    super::{Family, folded, grid, wgsl},
    ACROSS, Kind, Lines, Step,
    plan::{Plan, ROOM},
};
use crate::{DType, Result, Tensor, Tensors, layout::Shape};

/// Threads of a group.
const THREADS: u32 = 128;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    /// The length of the transform, this pass's radix, its factors, and the product of the radices before it.
    len: u32,
    radix: u32,
    factors: u32,
    before: u32,
    /// Transforms of that radix, how many a group does, and lines.
    columns: u32,
    at_once: u32,
    lines: u32,
    /// See the constants below.
    flags: u32,
    /// Elements that lines of input and output have.
    from_n: u32,
    to_n: u32,
    scale: f32,
    from: u32,
    from_step: i32,
    to_step: i32,
    /// Where tables begin.
    chirp: u32,
    transformed: u32,
    half: u32,
    shape: [u32; ACROSS],
    from_strides: [i32; ACROSS],
    to_strides: [i32; ACROSS],
}

/// Neighbouring columns are those of neighbouring lines, not of one line.
const LINES_FIRST: u32 = 1;
/// Threads that are neighbours read, or write, columns that are neighbours.
const FROM_ACROSS: u32 = 2;
const TO_ACROSS: u32 = 4;
/// What is done to elements.
const FROM_CONJUGATE: u32 = 8;
const FROM_CHIRP: u32 = 16;
const TO_CONVOLVE: u32 = 32;
const TO_CHIRP: u32 = 64;
const TO_CONJUGATE: u32 = 128;

/// How elements are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    Complex,
    Real,
    /// Two real numbers are one element.
    Pairs,
    /// Frequencies of an odd number of real ones: those that are missing are conjugates.
    Mirrored,
    /// Frequencies of an even number of real ones, as pairs have them.
    Halved,
}

/// How they are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Complex,
    Real,
    Pairs,
}

/// The ways that passes begin and end.
const WAYS: [(From, To); 9] = [
    (From::Complex, To::Complex),
    (From::Real, To::Complex),
    (From::Pairs, To::Complex),
    (From::Mirrored, To::Complex),
    (From::Halved, To::Complex),
    (From::Complex, To::Real),
    (From::Complex, To::Pairs),
    (From::Mirrored, To::Real),
    (From::Halved, To::Pairs),
];
const SEPARATE: usize = WAYS.len();
pub(crate) const KERNELS: usize = WAYS.len() + 1;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct SeparateParams {
    /// Elements of the output.
    n: u32,
    /// What was transformed in pairs has this length,
    half: u32,
    /// and elements are this far apart.
    step: u32,
    table: u32,
    scale: f32,
}

pub(crate) fn spec(number: usize) -> KernelSpec {
    let bound = |spec: KernelSpec| {
        let spec = spec.binding::<f32>("x", Access::Read).binding::<f32>("tables", Access::Read);
        spec.binding::<f32>("out", Access::Overwrite)
    };
    let Some((from, to)) = WAYS.get(number) else {
        let source = wgsl(include_str!("separate.wgsl"), &[]);
        return bound(KernelSpec::new("fft_separate").params::<SeparateParams>().block(super::super::BLOCK))
            .wgsl(source);
    };
    let read = match from {
        From::Complex => "return complex_at(base + i32(i) * params.from_step);",
        From::Real => "return vec2<f32>(x[base + i32(i) * params.from_step], 0.0);",
        From::Pairs => {
            "let at = base + 2 * i32(i) * params.from_step; return vec2<f32>(x[at], x[at + params.from_step]);"
        }
        From::Mirrored => "return mirrored(base, i);",
        From::Halved => "return halved(base, i);",
    };
    let write = match to {
        To::Complex => "let at = 2 * (base + i32(i) * params.to_step); out[at] = v.x; out[at + 1] = v.y;",
        To::Real => "out[base + i32(i) * params.to_step] = v.x;",
        To::Pairs => "let at = base + 2 * i32(i) * params.to_step; out[at] = v.x; out[at + params.to_step] = v.y;",
    };
    let odd: String = [3, 5, 7].into_iter().map(odd_butterfly).collect();
    let names = [("{READ}", read), ("{WRITE}", write), ("{ODD}", &odd)];
    let name = format!("fft_pass_{from:?}_{to:?}").to_lowercase();
    bound(KernelSpec::new(name).params::<Params>().block(THREADS)).wgsl(wgsl(include_str!("fft.wgsl"), &names))
}

/// A butterfly of an odd prime: sums and differences of opposite elements, each used twice.
fn odd_butterfly(p: usize) -> String {
    let half = p / 2;
    let angle = |k: usize| 2.0 * std::f64::consts::PI * (k % p) as f64 / p as f64;
    let mut code = format!("fn butterfly{p}(at: u32, apart: u32, step: u32, to: u32, before: u32) {{\n");
    code += "let v0 = work[at];\n";
    for k in 1..p {
        code += &format!("let v{k} = turned(at + {k}u * apart, {k}u * step);\n");
    }
    for k in 1..=half {
        code += &format!("let s{k} = v{k} + v{0}; let d{k} = v{k} - v{0};\n", p - k);
    }
    let sums: String = (1..=half).map(|k| format!(" + s{k}")).collect();
    code += &format!("work[to] = v0{sums};\n");
    for j in 1..=half {
        let terms = |name: char, of: fn(f64) -> f64| -> String {
            (1..=half).map(|k| format!(" + {name}{k} * ({:?})", of(angle(j * k)) as f32)).collect()
        };
        code += &format!(
            "let a{j} = v0{}; let b{j} = by_minus_i(vec2<f32>(){});\n",
            terms('s', f64::cos),
            terms('d', f64::sin)
        );
        code += &format!("work[to + {j}u * before] = a{j} + b{j}; work[to + {}u * before] = a{j} - b{j};\n", p - j);
    }
    code + "}\n"
}

/// A place that a pass reads or writes: a tensor's, or memory in between.
struct Place {
    buffer: Buffer,
    step: i32,
    strides: [i32; ACROSS],
    offset: u32,
    /// Elements of a line.
    n: usize,
}

/// Transforms all lines along an axis of `x`.
pub(super) fn launch(x: &Tensor, out: &Shape, axis: usize, step: &Step<'_>) -> Result<()> {
    let tensors = x.tensors();
    let plan = tensors.fft().tables.get(tensors, step.kind, step.n)?;
    let (n, even) = (step.n, step.n.is_multiple_of(2));
    match step.kind {
        Kind::Forward | Kind::Inverse => passes(tensors, &plan, step, (From::Complex, To::Complex), [n, n]),
        Kind::Real if !even => passes(tensors, &plan, step, (From::Real, To::Complex), [n, n / 2 + 1]),
        Kind::RealInverse if !even => passes(tensors, &plan, step, (From::Mirrored, To::Real), [n, n]),
        Kind::RealInverse => passes(tensors, &plan, step, (From::Halved, To::Pairs), [n / 2, n / 2]),
        Kind::Real => {
            // Pairs as complex numbers, all lines behind one another as in the output; then the frequencies of the even
            // and the odd ones are separated.
            let (half, inner) = (n / 2, out[axis + 1..].iter().product::<usize>());
            let mut shape = *out;
            shape.set(axis, half);
            let pairs = tensors.output(DType::Complex, shape)?;
            let (Some(buffer), Some(lines)) = (pairs.buffer(), Lines::new(x.layout(), pairs.layout(), axis)) else {
                return Ok(());
            };
            let first = Step { to: buffer, lines, scale: 1.0, ..*step };
            passes(tensors, &plan, &first, (From::Pairs, To::Complex), [half, half])?;
            let params = SeparateParams {
                n: out.elements() as u32,
                half: half as u32,
                step: inner as u32,
                table: plan.half as u32,
                scale: step.scale,
            };
            let launch = tensors.kernel(Family::Fft, SEPARATE)?.launch().bind(buffer).bind(&plan.tables).bind(step.to);
            tensors.enqueue(launch.params(&params).grid(grid(out.elements())))
        }
    }
}

/// One pass behind the other; with a chirp there and back again.
fn passes(tensors: &Tensors, plan: &Plan, step: &Step<'_>, way: (From, To), [from_n, to_n]: [usize; 2]) -> Result<()> {
    let Lines { count, shape, from_strides, to_strides, from, from_step, to_step } = step.lines;
    let inverse = matches!(step.kind, Kind::Inverse | Kind::RealInverse);
    let rounds = if plan.chirp.is_some() { 2 } else { 1 };
    let total = rounds * plan.passes.len();
    // Lines that are neighbours stay neighbours in between.
    let lines_first = from_step != 1 && count > 1;
    let packed: [i32; ACROSS] = std::array::from_fn(|axis| {
        shape[axis + 1..].iter().product::<u32>() as i32 * if lines_first { 1 } else { plan.len as i32 }
    });
    let between = if lines_first { count as i32 } else { 1 };
    let mut source =
        Place { buffer: step.from.clone(), step: from_step, strides: from_strides, offset: from, n: from_n };
    let mut before = 1;
    for number in 0..total {
        let pass = plan.passes[number % plan.passes.len()];
        let (first, last) = (number == 0, number + 1 == total);
        let round_begins = number % plan.passes.len() == 0;
        let round_ends = (number + 1) % plan.passes.len() == 0;
        if round_begins {
            before = 1;
        }
        let target = if last {
            Place { buffer: step.to.clone(), step: to_step, strides: to_strides, offset: 0, n: to_n }
        } else {
            let buffer = tensors.device().allocate(count * plan.len * 8)?;
            Place { buffer, step: between, strides: packed, offset: 0, n: plan.len }
        };
        let columns = count * (plan.len / pass.radix);
        let at_once = (ROOM / pass.radix).min(columns);
        let flag = |flag: u32, set: bool| if set { flag } else { 0 };
        let chirped = plan.chirp.is_some();
        let whole = pass.radix == plan.len;
        let flags = flag(LINES_FIRST, lines_first)
            | flag(FROM_ACROSS, lines_first || !whole)
            | flag(TO_ACROSS, lines_first || before > 1)
            | flag(FROM_CONJUGATE, first && inverse)
            | flag(FROM_CHIRP, first && chirped)
            | flag(TO_CONVOLVE, chirped && round_ends && !last)
            | flag(TO_CHIRP, chirped && last)
            | flag(TO_CONJUGATE, last && inverse);
        let scale = if last { step.scale / if chirped { plan.len as f32 } else { 1.0 } } else { 1.0 };
        let params = Params {
            len: plan.len as u32,
            radix: pass.radix as u32,
            factors: pass.factors,
            before: before as u32,
            columns: columns as u32,
            at_once: at_once as u32,
            lines: count as u32,
            flags,
            from_n: source.n as u32,
            to_n: target.n as u32,
            scale,
            from: source.offset,
            from_step: source.step,
            to_step: target.step,
            chirp: plan.chirp.map_or(0, |chirp| chirp.at as u32),
            transformed: plan.chirp.map_or(0, |chirp| chirp.transformed as u32),
            half: plan.half as u32,
            shape,
            from_strides: source.strides,
            to_strides: target.strides,
        };
        let way = (if first { way.0 } else { From::Complex }, if last { way.1 } else { To::Complex });
        let kernel = WAYS.iter().position(|known| *known == way).unwrap_or(0);
        let launch = tensors.kernel(Family::Fft, kernel)?.launch();
        let launch = launch.bind(&source.buffer).bind(&plan.tables).bind(&target.buffer);
        tensors.enqueue(launch.params(&params).grid(folded(columns.div_ceil(at_once))))?;
        before *= pass.radix;
        source = target;
    }
    Ok(())
}
