use millrace_core::CpuKernel;
use pulp::{Simd, WithSimd};

use super::Params;
use crate::{
    cpu::{PIECE, pieces, worth_threads},
    ops::reduce::cpu::{Sum, fold},
    simd::arch,
};

/// The part of an operand that is there.
fn part(all: &[f32], there: u32, start: u32, len: usize) -> Option<&[f32]> {
    (there != 0).then(|| &all[start as usize..][..len])
}

pub(crate) fn batch() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Params>();
        let (channels, length) = (params.channels as usize, params.length as usize);
        let x = &launch.input::<f32>(0)[params.x as usize..][..params.n as usize];
        let weight = part(launch.input(1), params.has_weight, params.weight, channels);
        let bias = part(launch.input(2), params.has_bias, params.bias, channels);
        let mean = &launch.input::<f32>(3)[params.mean as usize..][..channels];
        let variance = &launch.input::<f32>(4)[params.variance as usize..][..channels];
        let out = &mut launch.output::<f32>(5)[..x.len()];
        let parallel = worth_threads(launch.threads(), out.len() as f64 * 0.3);
        let (arch, per_piece) = (arch(), (PIECE / length).max(1) * length);
        pieces(launch.threads(), parallel, out, per_piece, |piece, out| {
            let start = piece * per_piece;
            for (plane, out) in out.chunks_exact_mut(length).enumerate() {
                let at = start + plane * length;
                let channel = at / length % channels;
                let deviation = (variance[channel] + params.epsilon).sqrt();
                let (mean, bias) = (mean[channel], bias.map_or(0.0, |bias| bias[channel]));
                let scale = weight.map_or(1.0, |weight| weight[channel]) / deviation;
                arch.dispatch(|| {
                    let x = &x[at..at + length];
                    out.iter_mut().zip(x).for_each(|(out, x)| *out = (x - mean) * scale + bias);
                });
            }
        });
    })
}

pub(crate) fn layer() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Params>();
        let length = params.length as usize;
        let x = &launch.input::<f32>(0)[params.x as usize..][..params.n as usize];
        let weight = part(launch.input(1), params.has_weight, params.weight, length);
        let bias = part(launch.input(2), params.has_bias, params.bias, length);
        let out = &mut launch.output::<f32>(3)[..x.len()];
        let parallel = worth_threads(launch.threads(), out.len() as f64 * 0.6);
        let (arch, per_piece) = (arch(), (PIECE / length).max(1) * length);
        pieces(launch.threads(), parallel, out, per_piece, |piece, out| {
            let x = &x[piece * per_piece..][..out.len()];
            arch.dispatch(Rows { x, weight, bias, out, length, epsilon: params.epsilon });
        });
    })
}

struct Rows<'a> {
    x: &'a [f32],
    weight: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    out: &'a mut [f32],
    length: usize,
    epsilon: f32,
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let n = self.length as f64;
        for (x, out) in self.x.chunks_exact(self.length).zip(self.out.chunks_exact_mut(self.length)) {
            // First the mean, then the variance around it: one pass for both would lose it to a large mean.
            let mean = (fold::<Sum>(x, 0.0) / n) as f32;
            for (out, &x) in out.iter_mut().zip(x) {
                *out = (x - mean) * (x - mean);
            }
            let scale = 1.0 / ((fold::<Sum>(out, 0.0) / n) as f32 + self.epsilon).sqrt();
            for (out, &x) in out.iter_mut().zip(x) {
                *out = (x - mean) * scale;
            }
            if let Some(weight) = self.weight {
                out.iter_mut().zip(weight).for_each(|(out, weight)| *out *= weight);
            }
            if let Some(bias) = self.bias {
                out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
            }
        }
    }
}
