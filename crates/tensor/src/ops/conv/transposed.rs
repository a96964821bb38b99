//! Transposed convolutions: a product of matrices gives every input's contribution to every output that its kernel
//! touches, and a second launch adds them up where they belong (col2im).

use millrace_core::{Access, CpuKernel, KernelSpec};

use super::{Algorithm, Conv, Geometry, LONGEST, Params, check_bias};
use crate::{
    DType, Error, Result, Tensor,
    check::Call,
    cpu::{pieces, worth_threads},
    ops::{BLOCK, Family, grid, wgsl},
};

pub(super) const KERNELS: usize = 2;
const FIRST: usize = 0;
const FURTHER: usize = 1;

pub(super) fn spec(number: usize) -> KernelSpec {
    let (name, access, value) = match number {
        FIRST => ("conv_fold", Access::Overwrite, "sum + bias_of(number)"),
        _ => ("conv_fold_further", Access::ReadWrite, "out[at] + sum"),
    };
    let spec = KernelSpec::new(name)
        .params::<Params>()
        .block(BLOCK)
        .binding::<f32>("columns", Access::Read)
        .binding::<f32>("weight", Access::Read)
        .binding::<f32>("bias", Access::Read)
        .binding::<f32>("out", access)
        .wgsl(wgsl(&include_str!("fold.wgsl").replace("{COMMON}", include_str!("params.wgsl")), &[("{VALUE}", value)]));
    if number == FIRST { spec.cpu(fold()) } else { spec }
}

/// Adds contributions up, plane by plane.
fn fold() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Params>();
        let g = params.geometry();
        let (taps, positions, plane) = (g.taps(), g.positions(), g.plane());
        let planes = g.batch * g.groups * g.channels;
        let columns = &launch.input::<f32>(0)[params.x as usize..][..planes * taps * positions];
        let all = g.groups * g.channels;
        let bias = (params.has_bias != 0).then(|| &launch.input::<f32>(2)[params.bias as usize..][..all]);
        let out = &mut launch.output::<f32>(3)[..planes * plane];
        let parallel = worth_threads(launch.threads(), columns.len() as f64 * 0.5);
        pieces(launch.threads(), parallel, out, plane, |number, out| {
            out.fill(bias.map_or(0.0, |bias| bias[number % all]));
            let columns = &columns[number * taps * positions..][..taps * positions];
            for (tap, column) in columns.chunks_exact(positions).enumerate() {
                add(&g, tap, column, out);
            }
        });
    })
}

/// Adds the contributions of one element of a kernel.
fn add(g: &Geometry, tap: usize, column: &[f32], out: &mut [f32]) {
    let [_, height, width] = g.input;
    let at = [tap / (g.kernel[1] * g.kernel[2]), tap / g.kernel[2] % g.kernel[1], tap % g.kernel[2]];
    let place = |axis: usize, position: usize| {
        let place = (position * g.stride[axis] + at[axis] * g.dilation[axis]).checked_sub(g.padding[axis])?;
        (place < g.input[axis]).then_some(place)
    };
    for (line, from) in column.chunks_exact(g.output[2]).enumerate() {
        let (Some(d), Some(h)) = (place(0, line / g.output[1]), place(1, line % g.output[1])) else { continue };
        let row = &mut out[(d * height + h) * width..][..width];
        for (w, &x) in from.iter().enumerate() {
            if let Some(w) = place(2, w) {
                row[w] += x;
            }
        }
    }
}

/// `first` is the family's number of the first kernel here.
fn run(first: usize, g: &Geometry, x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (op, tensors) = ("conv_transpose", x.tensors());
    let out = tensors.output(DType::F32, g.transposed_shape(op)?)?;
    let Some(to) = out.buffer() else { return Ok(out) };
    let rows = g.channels * g.taps();
    let weight = weight.reshape(&[g.groups, g.filters, rows])?.t()?;
    let x = x.reshape(&[g.batch, g.groups, g.filters, g.positions()])?;
    let columns = weight.matmul(&x)?;
    let Some(from) = columns.buffer() else { return Ok(out) };
    let on = bias.and_then(Tensor::buffer).unwrap_or(from);
    let mut params = Params::new(g, &columns, &columns, bias);
    let taps = g.taps();
    let longest = if tensors.is_bounded() { LONGEST } else { taps };
    for start in (0..taps).step_by(longest) {
        (params.start, params.end) = (start as u32, taps.min(start + longest) as u32);
        let kernel = tensors.kernel(Family::Conv, first + if start == 0 { FIRST } else { FURTHER })?;
        let launch = kernel.launch().bind(from).bind(from).bind(on).bind(to);
        tensors.enqueue(launch.params(&params).grid(grid(out.elements())))?;
    }
    Ok(out)
}

impl Tensor {
    /// The transpose of a convolution, sometimes called a deconvolution: what a convolution with the same weights would
    /// have spread from. `self` is batch, channels and one to three axes; `weight` is those channels, channels of a group
    /// of the result, and as many axes. It is done as a product of matrices, whatever the size.
    ///
    /// ```
    /// use millrace::tensor::{Conv, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let (x, weight) = (tensors.from_slice(&[1.0f32, 2.0], &[1, 1, 2])?, tensors.ones(&[1, 1, 3])?);
    /// let y = x.conv_transpose(&weight, None, &Conv::new().stride(2))?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 1.0, 3.0, 2.0, 2.0]);
    /// let y = x.conv_transpose(&weight, None, &Conv::new().stride(2).padding(1).output_padding(1))?;
    /// assert_eq!(y.to_vec::<f32>()?, [1.0, 3.0, 2.0, 2.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn conv_transpose(&self, weight: &Self, bias: Option<&Self>, conv: &Conv) -> Result<Self> {
        let op = "conv_transpose";
        let g = Geometry::transposed(op, self, weight, conv)?;
        if let Some(bias) = bias {
            check_bias(op, self, bias, g.groups * g.channels)?;
        }
        if let Some(algorithm) = conv.algorithm.filter(|&algorithm| algorithm != Algorithm::Im2col) {
            let why = "does no transposed convolutions; they are products of matrices, as im2col is";
            return Err(Error::Algorithm { op, algorithm: algorithm.name(), why });
        }
        let (weight, bias) = (weight.contiguous()?, bias.map(Self::contiguous).transpose()?);
        let x = self.contiguous()?;
        let out = run(super::FOLD, &g, &x, &weight, bias.as_ref())?;
        let inputs = [Some(&x), Some(&weight), bias.as_ref()];
        self.tensors().watch_some(|| Call::ConvTranspose { conv: conv.clone() }, &inputs, &out);
        Ok(out)
    }
}
