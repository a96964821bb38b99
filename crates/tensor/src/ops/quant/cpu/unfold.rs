//! Patches of an input, woven into the right factor of a product.

use std::ops::Range;

use bytemuck::cast_slice;
use millrace_core::CpuKernel;

use super::{COST, PANEL, Weaver, in_tasks};
use crate::{cpu::worth_threads, ops::quant::conv::Unfolded};

pub(in super::super) fn unfold() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Unfolded>();
        let data = cast_slice::<u32, u8>(launch.input(0));
        let (steps, n) = (params.steps as usize, params.n as usize);
        let factors = (params.batch * params.groups) as usize;
        let out = &mut launch.output::<u32>(1)[..factors * n.next_multiple_of(PANEL) * steps];
        let parallel = worth_threads(launch.threads(), 4.0 * out.len() as f64 * COST);
        let weaver = Weaver::new(out, steps, n);
        // Several steps to a task share the room for their lines.
        let at_once = (factors * steps).div_ceil(8 * launch.threads().count()).max(1);
        in_tasks(launch, parallel, (factors * steps).div_ceil(at_once), &|task| {
            let mut room = vec![0u8; 4 * n];
            for number in task * at_once..((task + 1) * at_once).min(factors * steps) {
                let (factor, step) = (number / steps, number % steps);
                let mut lines = [&[][..]; 4];
                for (i, (line, room)) in lines.iter_mut().zip(room.chunks_exact_mut(n)).enumerate() {
                    let k = 4 * step + i;
                    if k < params.depth as usize {
                        one_line(&params, data, factor, k, room);
                        *line = room;
                    }
                }
                // SAFETY: the output is borrowed until all tasks are done, and every step of a factor is one task's.
                unsafe { weaver.weave(factor, step, lines) };
            }
        });
    })
}

/// Number `k` of all patches.
fn one_line(params: &Unfolded, data: &[u8], factor: usize, k: usize, line: &mut [u8]) {
    let at = |list: [u32; 3], axis: usize| list[axis] as usize;
    let kernel = params.kernel.map(|n| n as usize);
    let channel = factor * params.channels as usize + k / (kernel[0] * kernel[1] * kernel[2]);
    let place = [k / (kernel[1] * kernel[2]) % kernel[0], k / kernel[2] % kernel[1], k % kernel[2]];
    // Where the first patch has it, and how far others are, may be in the padding.
    let first: [isize; 3] = std::array::from_fn(|axis| {
        (place[axis] * at(params.dilation, axis)) as isize - at(params.padding, axis) as isize
    });
    let inside: [Range<usize>; 3] = std::array::from_fn(|axis| {
        inside(first[axis], at(params.stride, axis), at(params.output, axis), at(params.input, axis))
    });
    let position = |axis: usize, patch: usize| (first[axis] + (patch * at(params.stride, axis)) as isize) as usize;
    let (zero, stride) = (params.zero as u8, at(params.stride, 2));
    let [_, height, width] = params.output.map(|n| n as usize);
    let bytes = 4 * params.words as usize;
    for (row, line) in line.chunks_exact_mut(width).enumerate() {
        let (z, y) = (row / height, row % height);
        let xs = inside[2].clone();
        if !inside[0].contains(&z) || !inside[1].contains(&y) || xs.is_empty() {
            line.fill(zero);
            continue;
        }
        let from = (channel * at(params.input, 0) + position(0, z)) * at(params.input, 1) + position(1, y);
        let from = &data[from * bytes..][position(2, xs.start)..bytes];
        line[..xs.start].fill(zero);
        line[xs.end..].fill(zero);
        let line = &mut line[xs];
        match stride {
            1 => line.copy_from_slice(&from[..line.len()]),
            2 => line.iter_mut().zip(from.chunks(2)).for_each(|(to, pair)| *to = pair[0]),
            _ => line.iter_mut().zip(from.iter().step_by(stride)).for_each(|(to, from)| *to = *from),
        }
    }
}

/// The patches for which a place is inside the input, along one axis.
fn inside(first: isize, stride: usize, patches: usize, input: usize) -> Range<usize> {
    let before = (-first).max(0) as usize;
    let start = before.div_ceil(stride);
    let end = match input as isize - first {
        left if left > 0 => (left as usize).div_ceil(stride).min(patches),
        _ => 0,
    };
    start.min(end)..end
}

#[cfg(test)]
mod tests {
    use super::inside;

    #[test]
    fn places_are_inside_from_the_first_to_the_last_patch() {
        for (first, stride, patches, input) in [(-3, 2, 6, 5), (0, 1, 4, 4), (4, 3, 2, 5), (-9, 2, 3, 2), (7, 1, 3, 5)]
        {
            let is = |patch: usize| (0..input as isize).contains(&(first + (patch * stride) as isize));
            let want: Vec<usize> = (0..patches).filter(|patch| is(*patch)).collect();
            assert_eq!(inside(first, stride, patches, input).collect::<Vec<_>>(), want);
        }
    }
}
