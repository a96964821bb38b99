//! Numbers in eight bits: products next to our own in `f32`, and conversions next to a plain copy.

use std::{hint::black_box, sync::Arc};

use millrace::tensor::{
    Tensor,
    quant::{Calibration, Parameters, Scheme},
};

use super::{Effort, context, products::Product};
use crate::{
    Error, Result,
    gpu::{Context, numbers},
    measure::{Metric, Side, batch_timed, each_timed, warm_up},
};

/// Elements of a tensor that is converted.
fn elements(small: bool) -> usize {
    if small { 1 << 16 } else { 1 << 20 }
}

/// The same products in eight bits and in `f32`, and conversions of one tensor, on all threads.
pub(super) fn sides(effort: &Effort) -> Vec<Side> {
    let sizes: &[usize] = if effort.small { &[64, 256] } else { &[256, 512, 1024] };
    let products: Arc<[Product]> = sizes.iter().map(|&n| Product::square(n)).collect();
    let side = |name: &'static str, multiply: fn(&Effort, &Context, &Product) -> Result<Metric>, converts: bool| {
        let (effort, products) = (effort.clone(), products.clone());
        Side::new(name, move || {
            let context = context(millrace::cpu::CpuInfo::get().cores)?;
            let mut metrics: Vec<Metric> =
                products.iter().map(|product| multiply(&effort, &context, product)).collect::<Result<_>>()?;
            if converts {
                metrics.extend(conversions(&effort, &context)?);
            }
            context.finish()?;
            Ok(metrics)
        })
    };
    vec![
        side("millrace", eight_bits, true),
        side("f32", super::our_product, false),
        super::limits::copy(effort, elements(effort.small)),
    ]
}

/// Our side on any device, with small sizes.
pub(super) fn on(effort: &Effort, context: &Context) -> Result<()> {
    [64, 256].into_iter().try_for_each(|n| eight_bits(effort, context, &Product::square(n)).map(drop))?;
    conversions(effort, context).map(drop)
}

/// A product of activations with zero points and weights with a scale per column, as inference has it. The weights stay as
/// they are from one product to the next, and the activations are quantized already.
fn eight_bits(effort: &Effort, context: &Context, product: &Product) -> Result<Metric> {
    let (a, b, _) = product.operands();
    let a = context.tensors().from_slice(&a, &[product.m, product.k])?;
    let b = context.tensors().from_slice(&b, &[product.k, product.n])?;
    let quantize = |x: &Tensor, scheme: Scheme| -> Result<_> {
        Ok(x.quantize(&Parameters::calibrate(x, scheme, Calibration::MinMax)?)?)
    };
    let (left, right) = (quantize(&a, Scheme::affine())?, quantize(&b, Scheme::symmetric().per_channel(1))?);
    let mut c = None;
    let mut run = || {
        c = None; // back to the pool
        c = Some(left.matmul(&right)?);
        Ok(context.tensors().synchronize()?)
    };
    warm_up(effort.turn / 4, &mut run)?;
    let times = batch_timed(effort.turn, 1, run)?;
    let c = c.ok_or_else(|| Error::Wrong(format!("{product} was not multiplied")))?;
    let accuracy = c.accuracy_against(&a.matmul(&b)?)?;
    if accuracy.signal_to_noise_db < 30.0 {
        return Err(Error::Wrong(format!("{product} in eight bits: {accuracy:?}")));
    }
    Ok(Metric::higher(product.to_string(), "GOP/s", times.into_iter().map(|ns| product.flops() / ns).collect()))
}

/// From `f32` and back. Bytes read and bytes written both count, as in a copy.
fn conversions(effort: &Effort, context: &Context) -> Result<Vec<Metric>> {
    let (tensors, n) = (context.tensors(), elements(effort.small));
    let x = tensors.from_slice(&numbers(n, 1), &[n])?;
    let parameters = Parameters::calibrate(&x, Scheme::affine(), Calibration::MinMax)?;
    let rate = |times: Vec<f64>| times.into_iter().map(|ns| 5.0 * n as f64 / ns).collect();
    let mut q = x.quantize(&parameters)?;
    let mut quantize = || {
        q = black_box(x.quantize(&parameters)?);
        Ok(tensors.synchronize()?)
    };
    warm_up(effort.turn / 4, &mut quantize)?;
    let there = Metric::higher("quantize", "GB/s", rate(each_timed(effort.turn, quantize)?));
    let mut y = None;
    let mut dequantize = || {
        y = None; // back to the pool
        y = Some(black_box(q.dequantize()?));
        Ok(tensors.synchronize()?)
    };
    warm_up(effort.turn / 4, &mut dequantize)?;
    let back = Metric::higher("dequantize", "GB/s", rate(each_timed(effort.turn, dequantize)?));
    let (got, step) = (y.map(|y| y.accuracy_against(&x)).transpose()?, f64::from(parameters.scales()[0]));
    match got {
        Some(accuracy) if accuracy.largest <= 0.51 * step => Ok(vec![there, back]),
        other => Err(Error::Wrong(format!("{other:?} with steps of {step}"))),
    }
}
