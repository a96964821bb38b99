use millrace_core::CpuKernel;
use pulp::{Simd, WithSimd};

use super::Params;
use crate::{
    cpu::{PIECE, pieces, worth_threads},
    math,
    ops::reduce::cpu::{Max, Sum, fold},
    simd::arch,
};

pub(crate) fn kernel() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Params>();
        let (rows, length) = (params.rows as usize, params.length as usize);
        let x = &launch.input::<f32>(0)[params.offset as usize..][..rows * length];
        let out = &mut launch.output::<f32>(1)[..rows * length];
        let (arch, per_piece) = (arch(), (PIECE / length).max(1) * length);
        let parallel = worth_threads(launch.threads(), out.len() as f64);
        pieces(launch.threads(), parallel, out, per_piece, |piece, out| {
            let x = &x[piece * per_piece..][..out.len()];
            arch.dispatch(Rows { x, out, length });
        });
    })
}

struct Rows<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
    length: usize,
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (x, out) in self.x.chunks_exact(self.length).zip(self.out.chunks_exact_mut(self.length)) {
            let largest = fold::<Max>(x, f32::NEG_INFINITY);
            for (out, &x) in out.iter_mut().zip(x) {
                *out = math::exp(x - largest);
            }
            let sum = fold::<Sum>(out, 0.0) as f32;
            for out in out {
                *out /= sum;
            }
        }
    }
}
