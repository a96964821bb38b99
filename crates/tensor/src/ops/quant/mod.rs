//! Numbers in eight bits: quantized and back, multiplied with sums of 32 bits, and convolved.
//!
//! A left factor is lines along the common axis, four numbers to a word. A right factor is *woven*: words of four numbers
//! along the common axis, [`PANEL`] columns of them next to one another, then the next four. So the instructions that
//! multiply four pairs and add them up find both where they need them, on CPUs and GPUs alike. A convolution is the product
//! of its weights and the woven patches of its input.
//!
//! Zero points are taken out of the sums afterwards: the sum of `(a - s)(b - t)` is that of `a b`, less `t` times the sum
//! of `a`, less `s` times (the sum of `b` less `t` for each). All of it wraps around at 32 bits, so what fits in the end is
//! right.

mod conv;
mod cpu;
mod watch;

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, Buffer, KernelSpec};

use super::{BLOCK, Family, create, grid, wgsl};
use crate::{
    DType, Error, Quantized, Result, Tensor, Tensors,
    check::{Call, Scales},
    layout::Shape,
    quant::{
        Channel, Invalid, Parameters,
        quantized::{Forms, columns, words},
    },
};
use watch::{Shown, watch};
pub(crate) use watch::{as_eight_bits, as_integers};

/// Columns of a woven right factor that lie next to one another.
pub(crate) const PANEL: usize = 32;

const QUANTIZE: usize = 0;
const DEQUANTIZE: usize = 1;
const WEAVE: usize = 2;
const WEAVE_TURNED: usize = 3;
const TURN: usize = 4;
const REPACK: usize = 5;
const UNFOLD: usize = 6;
const SUMS_OF_LINES: usize = 7;
const SUMS_OF_WOVEN: usize = 8;
const MULTIPLY: usize = 9;
const MULTIPLY_I32: usize = 10;
pub(crate) const KERNELS: usize = 11;

pub(crate) fn spec(number: usize) -> KernelSpec {
    let convert = include_str!("convert.wgsl");
    let arrange = include_str!("arrange.wgsl");
    let multiply = include_str!("multiply.wgsl");
    let read = |spec: KernelSpec, names: &[&'static str]| {
        names.iter().fold(spec.block(BLOCK), |spec, &name| spec.binding::<u32>(name, Access::Read))
    };
    let new = |name: &'static str, inputs: &[&'static str]| {
        read(KernelSpec::new(name), inputs).binding::<u32>("out", Access::Overwrite)
    };
    let converted = |name, from: &str, to: &str, body: &str| {
        let names = [("{FROM}", from), ("{TO}", to), ("{BODY}", body)];
        new(name, &["x", "table"]).params::<Lines>().wgsl(wgsl(convert, &names))
    };
    let arranged = |name, word: &str, place: &str| {
        let names = [("{WORD}", word), ("{PLACE}", place)];
        new(name, &["data"]).params::<Arranged>().wgsl(wgsl(arrange, &names))
    };
    let summed = |name, place: &str| {
        new(name, &["data"]).params::<Arranged>().wgsl(wgsl(include_str!("sums.wgsl"), &[("{PLACE}", place)]))
    };
    let multiplied = |name, element: &str, value: &str| {
        let inputs = ["a", "b", "a_table", "b_table", "a_sums", "b_sums"];
        let names = [("{ELEMENT}", element), ("{VALUE}", value)];
        new(name, &inputs).params::<Multiplied>().wgsl(wgsl(multiply, &names))
    };
    let woven = "((column / PANEL) * params.steps + step) * PANEL + column % PANEL";
    match number {
        QUANTIZE => converted("quantize", "f32", "u32", include_str!("quantize.wgsl")).cpu(cpu::quantize()),
        DEQUANTIZE => converted("dequantize", "u32", "f32", include_str!("dequantize.wgsl")).cpu(cpu::dequantize()),
        WEAVE => arranged("quant_weave", "of_four_lines(step, column)", woven).cpu(cpu::weave(cpu::Weave::Lines)),
        WEAVE_TURNED => {
            arranged("quant_weave_turned", "of_one_line(step, column)", woven).cpu(cpu::weave(cpu::Weave::Turned))
        }
        TURN => arranged("quant_turn", "of_four_lines(step, column)", "column * params.steps + step").cpu(cpu::turn()),
        REPACK => arranged("quant_repack", "of_all(step, column)", "column * params.steps + step").cpu(cpu::repack()),
        UNFOLD => conv::unfold(),
        SUMS_OF_LINES => summed("quant_sums_of_lines", "line * params.steps + step").cpu(cpu::sums(false)),
        SUMS_OF_WOVEN => {
            let place = "((line / PANEL) * params.steps + step) * PANEL + line % PANEL";
            summed("quant_sums_of_woven", place).cpu(cpu::sums(true))
        }
        MULTIPLY => {
            multiplied("quant_multiply", "f32", "f32(total) * left.scale * right.scale").cpu(cpu::multiply(false))
        }
        _ => multiplied("quant_multiply_i32", "i32", "total").cpu(cpu::multiply(true)),
    }
}

/// Lines of numbers, and which of them have which scale.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Lines {
    rows: u32,
    columns: u32,
    /// Words of a line.
    words: u32,
    /// Where the floats begin.
    offset: u32,
    channels: u32,
    /// Lines that a channel goes on for; zero if every column is one.
    inner: u32,
}

impl Lines {
    fn new(shape: &Shape, parameters: &Parameters, offset: usize) -> Self {
        let columns = columns(shape);
        let (channels, inner) = channels(shape, parameters);
        Self {
            rows: (shape.elements() / columns) as u32,
            columns: columns as u32,
            words: words(columns) as u32,
            offset: offset as u32,
            channels,
            inner,
        }
    }
}

/// How many channels there are, and how many lines each goes on for.
fn channels(shape: &Shape, parameters: &Parameters) -> (u32, u32) {
    match parameters.axis() {
        Some(axis) if axis as usize + 1 == shape.len() => (parameters.scales().len() as u32, 0),
        Some(axis) => {
            let inner: usize = shape[axis as usize + 1..shape.len() - 1].iter().product();
            (parameters.scales().len() as u32, inner as u32)
        }
        None => (1, 1),
    }
}

/// What is rearranged or summed.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Arranged {
    /// Numbers along the common axis.
    depth: u32,
    /// Columns of a right factor, or lines.
    n: u32,
    /// Words along the common axis.
    steps: u32,
    /// Numbers of a line of what is read,
    columns: u32,
    /// and its words.
    words: u32,
}

/// A product, or a batch of them.
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Multiplied {
    m: u32,
    n: u32,
    depth: u32,
    steps: u32,
    batch: u32,
    /// Left factors, which the batch goes through again and again.
    groups: u32,
    a_channels: u32,
    /// Lines of all left factors that a channel goes on for.
    a_inner: u32,
    b_channels: u32,
    /// Whether a factor has zero points.
    a_zeros: u32,
    b_zeros: u32,
}

impl Tensor {
    /// The nearest numbers in eight bits; of two that are equally near the even one (before the zero point is added). What
    /// is too large or too small becomes 127 or -128, and NaN what stands for zero.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, quant::Parameters};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[0.5f32, 1.5, -2.5, 1000.0, f32::NEG_INFINITY, f32::NAN], &[6])?;
    /// let q = x.quantize(&Parameters::new(vec![1.0], vec![3], None)?)?;
    /// assert_eq!(q.to_vec()?, [3, 5, 1, 127, -128, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn quantize(&self, parameters: &Parameters) -> Result<Quantized> {
        let (op, tensors) = ("quantize", self.tensors());
        if self.dtype() != DType::F32 {
            return Err(Error::DType { op, given: self.dtype(), takes: "f32" });
        }
        let shape = self.shaped();
        let parameters = parameters.of_shape(op, &shape)?;
        let x = self.contiguous()?;
        let Some(from) = x.buffer() else { return Ok(Quantized::of(tensors, shape, parameters, None)) };
        let params = Lines::new(&shape, &parameters, x.layout().offset);
        let all = params.rows as usize * params.words as usize;
        let table = parameters.table(tensors)?;
        let out = tensors.device().allocate(4 * all)?;
        let launch = tensors.kernel(Family::Quant, QUANTIZE)?.launch().bind(from).bind(&table).bind(&out);
        tensors.enqueue(launch.params(&params).grid(grid(all)))?;
        let quantized = Quantized::of(tensors, shape, parameters, Some(out));
        let call = || Call::Quantize { scales: Scales::of(quantized.parameters()) };
        watch(tensors, call, &[Shown::Numbers(&x)], &Shown::EightBits(&quantized));
        Ok(quantized)
    }
}

impl Quantized {
    /// What its numbers stand for.
    pub fn dequantize(&self) -> Result<Tensor> {
        let (tensors, shape) = (self.tensors(), self.shaped());
        let out = tensors.output(DType::F32, shape)?;
        let (Some(lines), Some(target)) = (lines(self)?, out.buffer()) else { return Ok(out) };
        let params = Lines::new(&shape, self.parameters(), 0);
        let table = self.parameters().table(tensors)?;
        let launch = tensors.kernel(Family::Quant, DEQUANTIZE)?.launch().bind(&lines).bind(&table).bind(target);
        tensors.enqueue(launch.params(&params).grid(grid(params.rows as usize * params.words as usize)))?;
        let call = || Call::Dequantize { scales: Scales::of(self.parameters()) };
        watch(tensors, call, &[Shown::EightBits(self)], &Shown::Numbers(&out));
        Ok(out)
    }

    /// The product with a matrix, in `f32`. Axes before the last one are rows.
    ///
    /// Sums are exact, in 32 bits, and multiplied by the scales in the end; the result is the same on every device, bit by
    /// bit. Scales may differ from row to row of the left factor and from column to column of the right one.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, quant::Parameters};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let a = tensors.quantized(&[1, 2, 3, 4, 5, 6], &[2, 3], &Parameters::new(vec![0.5], vec![1], None)?)?;
    /// let of_b = Parameters::new(vec![1.0, 10.0], vec![0, 0], Some(1))?;
    /// let b = tensors.quantized(&[1, 1, 1, 0, 1, 0], &[3, 2], &of_b)?;
    /// assert_eq!(a.matmul(&b)?.to_vec::<f32>()?, [1.5, 0.0, 6.0, 15.0]);
    /// assert_eq!(a.matmul_i32(&b)?.to_vec::<i32>()?, [3, 0, 12, 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn matmul(&self, other: &Self) -> Result<Tensor> {
        self.product("matmul", other, MULTIPLY)
    }

    /// The sums that [`Self::matmul`] multiplies by the scales, zero points taken out.
    pub fn matmul_i32(&self, other: &Self) -> Result<Tensor> {
        self.product("matmul_i32", other, MULTIPLY_I32)
    }

    fn product(&self, op: &'static str, other: &Self, kernel: usize) -> Result<Tensor> {
        let tensors = self.tensors();
        if !tensors.is(other.tensors()) {
            return Err(Error::Strangers { op });
        }
        let (Some((&depth, rows)), &[depth_of_other, n]) = (self.shape().split_last(), other.shape()) else {
            return Err(mismatch(op, self, other));
        };
        if depth != depth_of_other {
            return Err(mismatch(op, self, other));
        }
        uniform(op, self, self.rank() - 1)?;
        uniform(op, other, 0)?;
        check_depth(op, depth, self, other)?;
        let mut shape: Shape = rows.iter().copied().collect();
        shape.push(n);
        let shape = Shape::new(op, &shape)?;
        let (Some(a), Some(b)) = (lines(self)?, woven(other)?) else {
            return create::full(tensors, shape, element(kernel), 0);
        };
        let sides = Sides { left: self.parameters(), right: other.parameters() };
        let (a_channels, a_inner) = channels(&self.shaped(), self.parameters());
        let params = Multiplied {
            m: (self.elements() / depth) as u32,
            n: n as u32,
            depth: depth as u32,
            steps: words(depth) as u32,
            batch: 1,
            groups: 1,
            a_channels,
            a_inner,
            ..sides.params()
        };
        let a_sums = match sides.needs_row_sums(tensors) {
            true => Some(row_sums(self, &a, params.m, params.depth)?),
            false => None,
        };
        let b_sums = match sides.needs_column_sums() {
            true => Some(column_sums(other, &b, &params)?),
            false => None,
        };
        let factors = Factors { a: &a, b: &b, a_sums, b_sums };
        let out = multiply(tensors, kernel, &params, &sides, &factors, shape)?;
        let scales = || (Scales::of(self.parameters()), Scales::of(other.parameters()));
        let call = || Call::EightBitMatmul { scales: scales(), sums: kernel == MULTIPLY_I32 };
        watch(tensors, call, &[Shown::EightBits(self), Shown::EightBits(other)], &Shown::Numbers(&out));
        Ok(out)
    }
}

fn element(kernel: usize) -> DType {
    if kernel == MULTIPLY { DType::F32 } else { DType::I32 }
}

fn mismatch(op: &'static str, a: &Quantized, b: &Quantized) -> Error {
    let why = "do not multiply: the right one has to be a matrix with as many rows as the left one columns";
    Error::Shapes { op, left: a.shape().into(), right: b.shape().into(), why }
}

/// Checks that scales are the same along the axis that is summed over.
fn uniform(op: &'static str, x: &Quantized, axis: usize) -> Result<()> {
    if x.parameters().axis() == Some(axis as isize) {
        return Err(Invalid::Axis { op, axis, shape: x.shape().into() }.into());
    }
    Ok(())
}

/// Checks that sums of so many products fit into 32 bits.
fn check_depth(op: &'static str, depth: usize, a: &Quantized, b: &Quantized) -> Result<()> {
    let limit = i32::MAX as usize / (a.parameters().reach() * b.parameters().reach());
    if depth > limit { Err(Invalid::Depth { op, depth, limit }.into()) } else { Ok(()) }
}

/// What both factors stand for.
struct Sides<'a> {
    left: &'a Parameters,
    right: &'a Parameters,
}

impl Sides<'_> {
    fn params(&self) -> Multiplied {
        Multiplied {
            b_channels: self.right.scales().len() as u32,
            a_zeros: u32::from(!self.left.is_symmetric()),
            b_zeros: u32::from(!self.right.is_symmetric()),
            ..Multiplied::zeroed()
        }
    }

    /// The CPU adds rows up while it multiplies: it needs their sums anyway, since it multiplies without signs.
    fn needs_row_sums(&self, tensors: &Tensors) -> bool {
        tensors.is_bounded() && !self.right.is_symmetric()
    }

    fn needs_column_sums(&self) -> bool {
        !self.left.is_symmetric()
    }
}

/// Factors on the device, and their sums where those are needed.
struct Factors<'a> {
    a: &'a Buffer,
    b: &'a Buffer,
    a_sums: Option<Buffer>,
    b_sums: Option<Buffer>,
}

fn multiply(
    tensors: &Tensors,
    kernel: usize,
    params: &Multiplied,
    sides: &Sides<'_>,
    factors: &Factors<'_>,
    shape: Shape,
) -> Result<Tensor> {
    let out = tensors.output(element(kernel), shape)?;
    let Some(target) = out.buffer() else { return Ok(out) };
    let (a_table, b_table) = (sides.left.table(tensors)?, sides.right.table(tensors)?);
    let launch = tensors.kernel(Family::Quant, kernel)?.launch().bind(factors.a).bind(factors.b);
    // A kernel has all of its bindings, also those that it does not look at.
    let launch = launch.bind(&a_table).bind(&b_table);
    let launch = launch.bind(factors.a_sums.as_ref().unwrap_or(factors.a));
    let launch = launch.bind(factors.b_sums.as_ref().unwrap_or(factors.b)).bind(target);
    let tiles = params.m.div_ceil(4) as usize * params.n.div_ceil(4) as usize * params.batch as usize;
    tensors.enqueue(launch.params(params).grid(grid(tiles)))?;
    Ok(out)
}

/// Its lines along its last axis, on the device.
pub(crate) fn lines(x: &Quantized) -> Result<Option<Buffer>> {
    let Some(forms) = x.forms() else { return Ok(None) };
    if !x.is_turned() {
        return Ok(Some(forms.lines.clone()));
    }
    let [n, depth] = matrix(x);
    Forms::kept(&forms.turned, || arrange(x.tensors(), TURN, &forms.lines, depth, n, n)).map(Some)
}

/// Rows and columns of a matrix.
fn matrix(x: &Quantized) -> [usize; 2] {
    match *x.shape() {
        [rows, columns] => [rows, columns],
        _ => [1, x.elements()],
    }
}

/// It as a right factor.
fn woven(x: &Quantized) -> Result<Option<Buffer>> {
    let Some(forms) = x.forms() else { return Ok(None) };
    let [depth, n] = matrix(x);
    let (kernel, line) = if x.is_turned() { (WEAVE_TURNED, depth) } else { (WEAVE, n) };
    let place = &forms.woven[usize::from(x.is_turned())];
    Forms::kept(place, || arrange(x.tensors(), kernel, &forms.lines, depth, n, line)).map(Some)
}

/// Rearranges lines of `line` numbers.
fn arrange(tensors: &Tensors, kernel: usize, from: &Buffer, depth: usize, n: usize, line: usize) -> Result<Buffer> {
    let lanes = if kernel == WEAVE || kernel == WEAVE_TURNED { n.next_multiple_of(PANEL) } else { n };
    let params = Arranged {
        depth: depth as u32,
        n: n as u32,
        steps: words(depth) as u32,
        columns: line as u32,
        words: words(line) as u32,
    };
    let all = lanes * words(depth);
    let out = tensors.device().allocate(4 * all)?;
    let launch = tensors.kernel(Family::Quant, kernel)?.launch().bind(from).bind(&out);
    tensors.enqueue(launch.params(&params).grid(grid(n.next_multiple_of(PANEL) * words(depth))))?;
    Ok(out)
}

/// Its lines along all axes but the first.
fn by_first(x: &Quantized) -> Result<Option<Buffer>> {
    let Some(forms) = x.forms() else { return Ok(None) };
    let (rows, line) = (x.shape()[0], columns(&x.shaped()));
    let depth = x.elements() / rows;
    if line % 4 == 0 || depth == line {
        return lines(x);
    }
    Forms::kept(&forms.by_first, || arrange(x.tensors(), REPACK, &forms.lines, depth, rows, line)).map(Some)
}

fn row_sums(x: &Quantized, lines: &Buffer, rows: u32, depth: u32) -> Result<Buffer> {
    let make = || sums(x.tensors(), SUMS_OF_LINES, lines, rows as usize, depth as usize);
    match x.forms() {
        Some(forms) => Forms::kept(&forms.row_sums[usize::from(x.is_turned())], make),
        None => make(),
    }
}

/// The sums over its lines along all axes but the first.
fn by_first_sums(x: &Quantized, lines: &Buffer, rows: u32, depth: u32) -> Result<Buffer> {
    let make = || sums(x.tensors(), SUMS_OF_LINES, lines, rows as usize, depth as usize);
    match x.forms() {
        Some(forms) => Forms::kept(&forms.by_first_sums, make),
        None => make(),
    }
}

fn column_sums(x: &Quantized, woven: &Buffer, params: &Multiplied) -> Result<Buffer> {
    let make = || sums_of_woven(x.tensors(), woven, params);
    match x.forms() {
        Some(forms) => Forms::kept(&forms.column_sums[usize::from(x.is_turned())], make),
        None => make(),
    }
}

/// The sums over the columns of a batch of woven factors.
fn sums_of_woven(tensors: &Tensors, woven: &Buffer, params: &Multiplied) -> Result<Buffer> {
    let lanes = (params.n as usize).next_multiple_of(PANEL) * params.batch as usize;
    sums(tensors, SUMS_OF_WOVEN, woven, lanes, params.depth as usize)
}

fn sums(tensors: &Tensors, kernel: usize, data: &Buffer, n: usize, depth: usize) -> Result<Buffer> {
    let params = Arranged { depth: depth as u32, n: n as u32, steps: words(depth) as u32, columns: 0, words: 0 };
    let out = tensors.device().allocate(4 * n)?;
    let launch = tensors.kernel(Family::Quant, kernel)?.launch().bind(data).bind(&out);
    tensors.enqueue(launch.params(&params).grid(grid(n)))?;
    Ok(out)
}

/// The channel of a line.
#[inline(always)]
fn channel_of(line: usize, channels: u32, inner: u32) -> usize {
    if channels <= 1 { 0 } else { line / inner.max(1) as usize % channels as usize }
}

/// What a kernel finds of a channel; the first if there is no such.
#[inline(always)]
fn channel(table: &[Channel], at: usize) -> Channel {
    table.get(at).or(table.first()).copied().unwrap_or(Channel { scale: 1.0, inverse: 1.0, zero: 0, unused: 0 })
}
