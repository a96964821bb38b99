//! One short line that lies in one piece, by the library. It is over sooner than any way to it, so this one is short: few
//! parameters, and a plan and memory that the thread remembers.

use bytemuck::{Pod, Zeroable};
use millrace_core::Launched;
use num_complex::Complex32;

use super::{
    Kind, Step,
    cpu::FEW,
    cpu_plan::{How, Kept, Plan},
};

const KINDS: [Kind; 4] = [Kind::Forward, Kind::Inverse, Kind::Real, Kind::RealInverse];

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Params {
    n: u32,
    scale: f32,
    from: u32,
    /// Its place among all [`KINDS`].
    kind: u32,
}

impl Params {
    /// For a step that is such a line.
    #[inline]
    pub(super) fn of(step: &Step<'_>, way: usize) -> Option<Self> {
        let Step { kind, n, scale, lines, .. } = *step;
        let one = lines.count == 1 && [lines.from_step, lines.to_step] == [1; 2] && step.plane == 0 && n <= FEW;
        let library = matches!(kind, Kind::Real | Kind::RealInverse) || How::is_library(n, way);
        (one && library && !step.from.same_as(step.to)).then_some(Self {
            n: n as u32,
            scale,
            from: lines.from,
            kind: kind as u32,
        })
    }
}

pub(super) fn transform(launch: &mut Launched<'_>, kept: &Kept) {
    let Params { n, scale, from, kind } = launch.params::<Params>();
    let (n, from, kind) = (n as usize, from as usize, KINDS[kind as usize]);
    let key = (kind, n, How::Lines);
    match kind {
        Kind::Forward | Kind::Inverse => {
            let (x, out) = (&launch.input::<Complex32>(0)[from..from + n], &mut launch.output::<Complex32>(1)[..n]);
            kept.with_last(key, |plan, scratch| {
                if let Plan::Complex(plan) = plan {
                    plan.process_immutable_with_scratch(x, out, scratch);
                }
            });
            scaled(bytemuck::cast_slice_mut(out), scale);
        }
        Kind::Real => {
            let (x, out) = (&launch.input::<f32>(0)[from..from + n], &mut launch.output::<Complex32>(1)[..n / 2 + 1]);
            kept.with_last(key, |plan, scratch| plan.real(x, out, scratch));
            scaled(bytemuck::cast_slice_mut(out), scale);
        }
        Kind::RealInverse => {
            let (x, out) = (&launch.input::<Complex32>(0)[from..from + n / 2 + 1], &mut launch.output::<f32>(1)[..n]);
            kept.with_last(key, |plan, scratch| plan.real_inverse(x, out, scratch));
            scaled(out, scale);
        }
    }
}

/// Multiplies a line of the result, if there is anything to multiply it with.
#[inline]
pub(super) fn scaled(row: &mut [f32], scale: f32) {
    if scale != 1.0 {
        row.iter_mut().for_each(|x| *x *= scale);
    }
}
