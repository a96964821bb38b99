use bytemuck::Pod;
use millrace_core::CpuKernel;

use super::Params;
use crate::cpu::{PIECE, pieces, worth_threads};

/// O'Neill's output function on a linear step.
pub(crate) fn pcg(v: u32) -> u32 {
    let state = v.wrapping_mul(747_796_405).wrapping_add(2_891_336_453);
    let word = ((state >> ((state >> 28) + 4)) ^ state).wrapping_mul(277_803_737);
    (word >> 22) ^ word
}

/// Fills the output with what `element` says for every number.
pub(crate) fn kernel<T: Pod + Send>(element: impl Fn(&Params, u32) -> T + Send + Sync + 'static) -> CpuKernel {
    CpuKernel::whole(move |launch| {
        let params = launch.params::<Params>();
        let out = &mut launch.output::<T>(0)[..params.n as usize];
        let parallel = worth_threads(launch.threads(), out.len() as f64 * 0.5);
        pieces(launch.threads(), parallel, out, PIECE, |piece, out| {
            let start = (piece * PIECE) as u32;
            out.iter_mut().zip(start..).for_each(|(out, i)| *out = element(&params, i));
        });
    })
}
