//! The list of what is checked.

use super::{
    Run, conv, fourier, quant, recurrent,
    reference::{self, Array, Expected},
    sample::{Case, Domain},
    sparse,
};
use crate::{DType, Result, Tensor, ops::create};

type F = f64;

struct Unary {
    name: &'static str,
    dtype: DType,
    range: (f64, f64),
    huge: bool,
    tolerance: f64,
    /// The error is measured against one, not against the result.
    absolute: bool,
    run: fn(&Tensor) -> Result<Tensor>,
    want: fn(F) -> F,
}

macro_rules! unary {
    ($($name:literal $dtype:ident $range:expr, $huge:literal, $tolerance:expr, $absolute:literal, $run:expr, $want:expr;)+) => {
        &[$(Unary {
            name: $name,
            dtype: DType::$dtype,
            range: $range,
            huge: $huge,
            tolerance: $tolerance,
            absolute: $absolute,
            run: $run,
            want: $want,
        },)+]
    };
}

const ANY: (f64, f64) = (-100.0, 100.0);
/// A result that is rounded once or twice.
const ROUNDED: f64 = 3e-7;

const UNARY: &[Unary] = unary! {
    "neg" F32 ANY, true, 0.0, false, Tensor::neg, |x| -x;
    "neg i32" I32 ANY, true, 0.0, false, Tensor::neg, |x| f64::from((x as i32).wrapping_neg());
    "abs" F32 ANY, true, 0.0, false, Tensor::abs, f64::abs;
    "abs i32" I32 ANY, true, 0.0, false, Tensor::abs, |x| f64::from((x as i32).wrapping_abs());
    "exp" F32 (-80.0, 80.0), true, ROUNDED, false, Tensor::exp, f64::exp;
    "log" F32 (1e-3, 100.0), true, ROUNDED, false, Tensor::log, f64::ln;
    "exp2" F32 (-120.0, 120.0), true, ROUNDED, false, Tensor::exp2, f64::exp2;
    "log2" F32 (1e-3, 100.0), true, ROUNDED, false, Tensor::log2, f64::log2;
    "sqrt" F32 (0.0, 1e6), true, ROUNDED, false, Tensor::sqrt, f64::sqrt;
    "recip" F32 ANY, true, ROUNDED, false, Tensor::recip, f64::recip;
    "sin" F32 ANY, false, ROUNDED, true, Tensor::sin, f64::sin;
    "cos" F32 ANY, false, ROUNDED, true, Tensor::cos, f64::cos;
    "tanh" F32 (-10.0, 10.0), true, ROUNDED, false, Tensor::tanh, f64::tanh;
    "sigmoid" F32 (-20.0, 20.0), true, ROUNDED, false, Tensor::sigmoid, |x| 1.0 / (1.0 + (-x).exp());
    "relu" F32 ANY, true, 0.0, false, Tensor::relu, |x| if x < 0.0 { 0.0 } else { x };
    "relu i32" I32 ANY, true, 0.0, false, Tensor::relu, |x| x.max(0.0);
    "gelu" F32 (-5.0, 5.0), true, 1e-5, false, Tensor::gelu, gelu;
    "not" Bool ANY, true, 0.0, false, Tensor::not, |x| 1.0 - x;
    "cast i32" F32 ANY, true, 0.0, false, |x| x.cast(DType::I32), |x| f64::from(x as i32);
    "cast bool" F32 (-1.0, 1.0), true, 0.0, false, |x| x.cast(DType::Bool), |x| truth(x != 0.0);
    "cast f32 of i32" I32 ANY, true, 1e-7, false, |x| x.cast(DType::F32), |x| x;
    "cast bool of i32" I32 ANY, true, 0.0, false, |x| x.cast(DType::Bool), |x| truth(x != 0.0);
    "cast f32 of bool" Bool ANY, true, 0.0, false, |x| x.cast(DType::F32), |x| x;
    "cast i32 of bool" Bool ANY, true, 0.0, false, |x| x.cast(DType::I32), |x| x;
    "add number" F32 ANY, true, ROUNDED, false, |x| x.add(1.5), |x| x + 1.5;
    "contiguous" F32 ANY, true, 0.0, false, Tensor::contiguous, |x| x;
};

fn gelu(x: F) -> F {
    if x == f64::NEG_INFINITY { 0.0 } else { x * reference::normal_share(x) }
}

fn truth(is: bool) -> F {
    f64::from(u8::from(is))
}

struct Binary {
    name: &'static str,
    dtype: DType,
    left: (f64, f64),
    right: (f64, f64),
    tolerance: f64,
    run: fn(&Tensor, &Tensor) -> Result<Tensor>,
    want: fn(F, F) -> F,
}

macro_rules! binary {
    ($($name:literal $dtype:ident $left:expr, $right:expr, $tolerance:expr, $run:ident, $want:expr;)+) => {
        &[$(Binary {
            name: $name,
            dtype: DType::$dtype,
            left: $left,
            right: $right,
            tolerance: $tolerance,
            run: |a, b| a.$run(b),
            want: $want,
        },)+]
    };
}

fn wrap(a: F, b: F, each: fn(i32, i32) -> i32) -> F {
    f64::from(each(a as i32, b as i32))
}

const BINARY: &[Binary] = binary! {
    "add" F32 ANY, ANY, ROUNDED, add, |a, b| f64::from(a as f32 + b as f32);
    "add i32" I32 ANY, ANY, 0.0, add, |a, b| wrap(a, b, i32::wrapping_add);
    "sub" F32 ANY, ANY, ROUNDED, sub, |a, b| f64::from(a as f32 - b as f32);
    "sub i32" I32 ANY, ANY, 0.0, sub, |a, b| wrap(a, b, i32::wrapping_sub);
    "mul" F32 ANY, ANY, ROUNDED, mul, |a, b| a * b;
    "mul i32" I32 ANY, ANY, 0.0, mul, |a, b| wrap(a, b, i32::wrapping_mul);
    "div" F32 ANY, (0.5, 100.0), ROUNDED, div, |a, b| a / b;
    "maximum" F32 ANY, ANY, 0.0, maximum, reference::maximum;
    "maximum i32" I32 ANY, ANY, 0.0, maximum, f64::max;
    "minimum" F32 ANY, ANY, 0.0, minimum, reference::minimum;
    "minimum i32" I32 ANY, ANY, 0.0, minimum, f64::min;
    "pow" F32 (0.01, 10.0), (-5.0, 5.0), 2e-6, pow, f64::powf;
    "rem" F32 ANY, (0.5, 10.0), ROUNDED, rem, reference::remainder;
    "rem i32" I32 ANY, ANY, 0.0, rem, |a, b| if b == 0.0 { 0.0 } else { reference::remainder(a, b) };
    "eq" F32 (0.0, 4.0), (0.0, 4.0), 0.0, eq, |a, b| truth(a == b);
    "eq i32" I32 ANY, ANY, 0.0, eq, |a, b| truth(a == b);
    "eq bool" Bool ANY, ANY, 0.0, eq, |a, b| truth(a == b);
    "ne" F32 (0.0, 4.0), (0.0, 4.0), 0.0, ne, |a, b| truth(a != b);
    "ne i32" I32 ANY, ANY, 0.0, ne, |a, b| truth(a != b);
    "ne bool" Bool ANY, ANY, 0.0, ne, |a, b| truth(a != b);
    "lt" F32 ANY, ANY, 0.0, lt, |a, b| truth(a < b);
    "lt i32" I32 ANY, ANY, 0.0, lt, |a, b| truth(a < b);
    "le" F32 ANY, ANY, 0.0, le, |a, b| truth(a <= b);
    "le i32" I32 ANY, ANY, 0.0, le, |a, b| truth(a <= b);
    "gt" F32 ANY, ANY, 0.0, gt, |a, b| truth(a > b);
    "gt i32" I32 ANY, ANY, 0.0, gt, |a, b| truth(a > b);
    "ge" F32 ANY, ANY, 0.0, ge, |a, b| truth(a >= b);
    "ge i32" I32 ANY, ANY, 0.0, ge, |a, b| truth(a >= b);
    "and" Bool ANY, ANY, 0.0, and, |a, b| a * b;
    "or" Bool ANY, ANY, 0.0, or, f64::max;
    "xor" Bool ANY, ANY, 0.0, xor, |a, b| truth(a != b);
};

struct Reduce {
    name: &'static str,
    dtype: DType,
    range: (f64, f64),
    tolerance: f64,
    run: fn(&Tensor, &[isize]) -> Result<Tensor>,
    want: fn(&[F]) -> (F, F),
    /// Whether there is a result of no elements.
    of_nothing: bool,
}

macro_rules! reduce {
    ($($name:literal $dtype:ident $range:expr, $tolerance:expr, $run:expr, $want:expr, $of_nothing:literal;)+) => {
        &[$(Reduce {
            name: $name,
            dtype: DType::$dtype,
            range: $range,
            tolerance: $tolerance,
            run: $run,
            want: $want,
            of_nothing: $of_nothing,
        },)+]
    };
}

fn sum(x: &[F]) -> (F, F) {
    (x.iter().sum(), x.iter().map(|x| x.abs()).sum())
}

fn same(x: F) -> (F, F) {
    (x, x.abs())
}

/// Every factor rounds the product once, in whatever order.
fn product(x: &[F]) -> (F, F) {
    let product: F = x.iter().product();
    (product, product.abs() * (x.len() as f64 / 500.0).max(1.0))
}

fn wrapping(x: &[F], start: i32, each: fn(i32, i32) -> i32) -> (F, F) {
    same(f64::from(x.iter().fold(start, |acc, &x| each(acc, x as i32))))
}

fn mean(x: &[F]) -> (F, F) {
    let ((sum, scale), n) = (sum(x), x.len() as f64);
    (sum / n, scale / n)
}

fn largest(x: &[F]) -> (F, F) {
    same(x.iter().copied().fold(f64::NEG_INFINITY, reference::maximum))
}

fn smallest(x: &[F]) -> (F, F) {
    same(x.iter().copied().fold(f64::INFINITY, reference::minimum))
}

const REDUCE: &[Reduce] = reduce! {
    "sum" F32 ANY, 1e-6, Tensor::sum, sum, true;
    "sum i32" I32 ANY, 0.0, Tensor::sum, |x| wrapping(x, 0, i32::wrapping_add), true;
    "sum bool" Bool ANY, 0.0, Tensor::sum, sum, true;
    "mean" F32 ANY, 1e-6, Tensor::mean, mean, true;
    "mean i32" I32 ANY, 1e-6, Tensor::mean, mean, true;
    "prod" F32 (0.9, 1.1), 3e-5, Tensor::prod, product, true;
    "prod i32" I32 ANY, 0.0, Tensor::prod, |x| wrapping(x, 1, i32::wrapping_mul), true;
    "max" F32 ANY, 0.0, Tensor::max, largest, false;
    "max i32" I32 ANY, 0.0, Tensor::max, largest, false;
    "max bool" Bool ANY, 0.0, Tensor::max, largest, false;
    "min" F32 ANY, 0.0, Tensor::min, smallest, false;
    "min i32" I32 ANY, 0.0, Tensor::min, smallest, false;
};

struct Arg {
    name: &'static str,
    dtype: DType,
    run: fn(&Tensor, isize) -> Result<Tensor>,
    want: fn(&[F]) -> (F, F),
}

const ARG: &[Arg] = &[
    Arg { name: "argmax", dtype: DType::F32, run: Tensor::argmax, want: reference::argmax },
    Arg { name: "argmax i32", dtype: DType::I32, run: Tensor::argmax, want: reference::argmax },
    Arg { name: "argmin", dtype: DType::F32, run: Tensor::argmin, want: reference::argmin },
    Arg { name: "argmin bool", dtype: DType::Bool, run: Tensor::argmin, want: reference::argmin },
];

fn size(case: &str, shapes: &[&[usize]]) -> String {
    let shapes: Vec<_> =
        shapes.iter().map(|shape| shape.iter().map(ToString::to_string).collect::<Vec<_>>().join("x")).collect();
    format!("{case} {}", shapes.join(", ")).trim_end().to_owned()
}

const PLAIN: Domain = Domain { range: ANY, huge: false };

pub(super) fn all(run: &mut Run<'_>) -> Result<()> {
    run.attempt("created tensors", created)?;
    run.attempt("views", views)?;
    for case in Case::ALL {
        UNARY.iter().try_for_each(|op| run.attempt(op.name, |run| unary(run, op, case)))?;
        BINARY.iter().try_for_each(|op| run.attempt(op.name, |run| binary(run, op, case)))?;
        run.attempt("select", |run| select(run, case))?;
        REDUCE.iter().try_for_each(|op| run.attempt(op.name, |run| reduce(run, op, case)))?;
        ARG.iter().try_for_each(|op| run.attempt(op.name, |run| arg(run, op, case)))?;
        run.attempt("softmax", |run| softmax(run, case))?;
        run.attempt("matmul", |run| matmul(run, case))?;
        run.attempt("sparse matrices", |run| sparse::products(run, case))?;
        run.attempt("quantize", |run| quant::conversions(run, case))?;
    }
    run.attempt("products with vectors", vectors)?;
    run.attempt("int8 products", quant::products)?;
    run.attempt("Fourier transforms", fourier::all)?;
    run.attempt("recurrent networks", recurrent::all)?;
    run.attempt("convolutions", conv::all)
}

fn unary(run: &mut Run<'_>, op: &Unary, case: Case) -> Result<()> {
    let s = run.samples.any(case, op.dtype, Domain { range: op.range, huge: op.huge })?;
    let array = s.array.map(op.want);
    let want = if op.absolute { Expected { scale: vec![1.0; array.data.len()], array } } else { array.into() };
    run.compare(op.name, size(case.name(), &[&s.array.shape]), op.tolerance, (op.run)(&s.tensor), &want)
}

fn binary(run: &mut Run<'_>, op: &Binary, case: Case) -> Result<()> {
    // Powers of huge numbers say nothing but infinity.
    let domain = |range| Domain { range, huge: true };
    let (a, b) =
        (run.samples.any(case, op.dtype, domain(op.left))?, run.samples.partner(case, op.dtype, domain(op.right))?);
    let want = a.array.zip(&b.array, op.want).into();
    let size = size(case.name(), &[&a.array.shape, &b.array.shape]);
    run.compare(op.name, size, op.tolerance, (op.run)(&a.tensor, &b.tensor), &want)
}

fn select(run: &mut Run<'_>, case: Case) -> Result<()> {
    let c = run.samples.any(case, DType::Bool, PLAIN)?;
    let (a, b) = (run.samples.partner(case, DType::F32, PLAIN)?, run.samples.any(case, DType::F32, PLAIN)?);
    let want = c.array.select(&a.array, &b.array).into();
    let size = size(case.name(), &[&c.array.shape, &a.array.shape, &b.array.shape]);
    run.compare("select", size, 0.0, c.tensor.select(&a.tensor, &b.tensor), &want)
}

/// The axes that reductions of a case go over.
fn axes_of(rank: usize) -> Vec<Vec<usize>> {
    let all: Vec<usize> = (0..rank).collect();
    match rank {
        1 => vec![all],
        2 => vec![vec![0], vec![1], all],
        _ => vec![vec![0], vec![rank - 1], vec![0, rank - 1], vec![1], all],
    }
}

fn reduce(run: &mut Run<'_>, op: &Reduce, case: Case) -> Result<()> {
    // A product of many numbers is only a number if they are near one.
    let near_one = op.name == "prod" && case == Case::Large;
    let range = if near_one { (0.9999, 1.0001) } else { op.range };
    let s = run.samples.any(case, op.dtype, Domain { range, huge: false })?;
    for axes in axes_of(s.array.shape.len()) {
        let named: Vec<isize> = axes.iter().map(|&axis| axis as isize).collect();
        let size = format!("{} over {axes:?}", size(case.name(), &[&s.array.shape]));
        let got = (op.run)(&s.tensor, &named);
        let want = s.array.reduce(&axes, op.want);
        if s.array.data.is_empty() && !want.array.data.is_empty() && !op.of_nothing {
            run.refused(op.name, size, got)?;
        } else {
            run.compare(op.name, size, op.tolerance, got, &want)?;
        }
    }
    Ok(())
}

fn arg(run: &mut Run<'_>, op: &Arg, case: Case) -> Result<()> {
    let s = run.samples.any(case, op.dtype, PLAIN)?;
    for axis in 0..s.array.shape.len() {
        let size = format!("{} over [{axis}]", size(case.name(), &[&s.array.shape]));
        let got = (op.run)(&s.tensor, axis as isize);
        let want = s.array.reduce(&[axis], op.want);
        if s.array.data.is_empty() && !want.array.data.is_empty() {
            run.refused(op.name, size, got)?;
        } else {
            run.compare(op.name, size, 0.0, got, &want)?;
        }
    }
    Ok(())
}

fn softmax(run: &mut Run<'_>, case: Case) -> Result<()> {
    let domain = Domain { range: (-10.0, 10.0), huge: false };
    let all = match case {
        // Some long rows, as the naive way is quadratic: of a GPU's groups, and for all of it together.
        Case::Large => vec![
            run.samples.shaped(&[5, 700], DType::F32, domain)?,
            run.samples.shaped(&[2, 5000], DType::F32, domain)?,
        ],
        _ => vec![run.samples.any(case, DType::F32, domain)?],
    };
    for s in all {
        for axis in [0, s.array.shape.len() - 1] {
            let size = format!("{} over [{axis}]", size(case.name(), &[&s.array.shape]));
            run.compare("softmax", size, 5e-6, s.tensor.softmax(axis as isize), &s.array.softmax(axis).into())?;
        }
    }
    Ok(())
}

fn matmul(run: &mut Run<'_>, case: Case) -> Result<()> {
    let domain = Domain { range: (-1.0, 1.0), huge: false };
    let samples = &mut run.samples;
    let mut plain = |a: &[usize], b: &[usize]| -> Result<_> {
        Ok((samples.shaped(a, DType::F32, domain)?, samples.shaped(b, DType::F32, domain)?))
    };
    let pairs = match case {
        Case::Random => vec![
            plain(&[13, 21], &[21, 17])?,
            plain(&[1, 64], &[64, 33])?,
            plain(&[33, 64], &[64, 1])?,
            plain(&[20, 1], &[1, 30])?,
            plain(&[3, 10, 7], &[3, 7, 5])?,
        ],
        Case::Empty => vec![plain(&[0, 3], &[3, 2])?, plain(&[2, 0], &[0, 3])?, plain(&[0, 2, 3], &[3, 4])?],
        Case::One => vec![plain(&[1, 1], &[1, 1])?],
        Case::NonContiguous => vec![
            (
                samples.tangled(&[9, 14], DType::F32, domain, false)?,
                samples.tangled(&[14, 6], DType::F32, domain, false)?,
            ),
            (
                samples.tangled(&[2, 5, 8], DType::F32, domain, false)?,
                samples.tangled(&[2, 8, 3], DType::F32, domain, false)?,
            ),
        ],
        Case::Broadcast => vec![plain(&[4, 1, 5, 6], &[3, 6, 2])?, plain(&[5, 6], &[2, 2, 6, 3])?],
        Case::Special => {
            vec![(samples.tangled(&[5, 6], DType::F32, domain, true)?, samples.shaped(&[6, 4], DType::F32, domain)?)]
        }
        // The last two are what a GPU multiplies eight by eight, one of them longer than it adds up elsewhere in one go.
        Case::Large => vec![
            plain(&[120, 150], &[150, 130])?,
            plain(&[3, 10_000], &[10_000, 5])?,
            plain(&[64, 128], &[128, 72])?,
            plain(&[16, 4104], &[4104, 24])?,
        ],
    };
    for (a, b) in pairs {
        let size = size(case.name(), &[&a.array.shape, &b.array.shape]);
        run.compare("matmul", size, 3e-6, a.tensor.matmul(&b.tensor), &a.array.matmul(&b.array))?;
    }
    Ok(())
}

/// Products with vectors, short and long, of matrices that lie either way.
fn vectors(run: &mut Run<'_>) -> Result<()> {
    let domain = Domain { range: (-1.0, 1.0), huge: false };
    for k in [1, 7, 300, 70_001] {
        let shaped = |run: &mut Run<'_>, shape: &[usize]| run.samples.shaped(shape, DType::F32, domain);
        let (x, y) = (shaped(run, &[1, k])?, shaped(run, &[k, 1])?);
        let (wide, high) = (shaped(run, &[6, k])?, shaped(run, &[k, 5])?);
        let apart = run.samples.tangled(&[k, 3], DType::F32, domain, false)?;
        let (left, right) = (x.tensor.squeeze(0)?, y.tensor.squeeze(1)?);
        let checks = [
            ("dot", left.matmul(&right), x.array.matmul(&y.array), &[][..]),
            ("matrix by vector", wide.tensor.matmul(&right), wide.array.matmul(&y.array), &[6]),
            ("vector by matrix", left.matmul(&high.tensor), x.array.matmul(&high.array), &[5]),
            ("matrix by vector", high.tensor.t()?.matmul(&right), high.array.permute(&[1, 0]).matmul(&y.array), &[5]),
            ("vector by matrix", left.matmul(&wide.tensor.t()?), x.array.matmul(&wide.array.permute(&[1, 0])), &[6]),
            ("vector by matrix", left.matmul(&apart.tensor), x.array.matmul(&apart.array), &[3]),
        ];
        for (name, got, mut want, shape) in checks {
            want.array = want.array.reshape(shape);
            run.compare(name, size("to", &[shape]) + &format!(", {k} products each"), 3e-6, got, &want)?;
        }
    }
    Ok(())
}

fn views(run: &mut Run<'_>) -> Result<()> {
    let s = run.samples.shaped(&[4, 6, 5], DType::F32, PLAIN)?;
    let (t, a) = (&s.tensor, &s.array);
    let empty = run.samples.shaped(&[2, 0], DType::I32, PLAIN)?;
    let turned = t.permute(&[2, 0, 1])?;
    let checks: [(&str, Result<Tensor>, Array); 12] = [
        ("reshape", t.reshape(&[8, 15]), a.reshape(&[8, 15])),
        ("reshape view", turned.reshape(&[20, 6]), a.permute(&[2, 0, 1]).reshape(&[20, 6])),
        ("reshape copy", turned.reshape(&[5, 24]), a.permute(&[2, 0, 1]).reshape(&[5, 24])),
        ("permute", t.permute(&[1, -1, 0]), a.permute(&[1, 2, 0])),
        ("transpose", t.t(), a.permute(&[0, 2, 1])),
        ("slice", t.slice(1, 2..5), a.slice(1, 2, 5, 1)),
        ("slice step", t.slice_step(2, 1.., 2), a.slice(2, 1, 5, 2)),
        ("flip", t.flip(1), a.slice(1, 0, 6, -1)),
        ("expand", t.slice(1, 3..4)?.expand(&[2, 4, 7, 5]), a.slice(1, 3, 4, 1).expand(&[2, 4, 7, 5])),
        ("pad", t.pad(&[(1, 0), (0, 0), (2, 3)], 9.0), a.pad(&[(1, 0), (0, 0), (2, 3)], 9.0)),
        (
            "pad view",
            turned.flip(0)?.pad(&[(0, 2), (1, 1), (0, 0)], -1.0),
            a.permute(&[2, 0, 1]).slice(0, 0, 5, -1).pad(&[(0, 2), (1, 1), (0, 0)], -1.0),
        ),
        ("pad empty", empty.tensor.pad(&[(0, 1), (1, 1)], 3), empty.array.pad(&[(0, 1), (1, 1)], 3.0)),
    ];
    for (name, got, want) in checks {
        let shape = want.shape.clone();
        run.compare(name, size("to", &[&shape]), 0.0, got, &want.into())?;
    }
    Ok(())
}

fn created(run: &mut Run<'_>) -> Result<()> {
    let (tensors, large) = (run.samples.tensors.clone(), run.samples.large);
    let seed = 0x1234_5678_9abc_def0;
    let index = |n: usize, each: &dyn Fn(usize) -> f64| Array::from_fn(&[n], |at| each(at[0]));
    let checks: [(&str, Result<Tensor>, Array); 5] = [
        ("full", tensors.full(&[3, 5], 2.5f32), Array::from_fn(&[3, 5], |_| 2.5)),
        ("zeros", tensors.zeros(&[large]), index(large, &|_| 0.0)),
        ("arange", tensors.arange(-3.0, 0.25, 1000), index(1000, &|i| -3.0 + i as f64 * 0.25)),
        ("arange i32", tensors.arange(5, -3, 1000), index(1000, &|i| 5.0 - 3.0 * i as f64)),
        ("rand", tensors.rand(&[large], seed), index(large, &|i| create::uniform(seed, i as u32))),
    ];
    for (name, got, want) in checks {
        let shape = want.shape.clone();
        run.compare(name, size("of", &[&shape]), 0.0, got, &want.into())?;
    }
    Ok(())
}
