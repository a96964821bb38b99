//! The padded copy of the input that the direct algorithm reads.

use super::plan::{Plan, Task};

/// Where a row of the copy takes its elements from.
struct Row {
    /// The first element of the copy's row that is inside the input, and the first behind.
    inside: [usize; 2],
    /// Where the first comes from, and how far the others are apart.
    first: usize,
    step: usize,
}

impl Row {
    fn new(len: usize, input: usize, phase: usize, step: usize, padding: usize) -> Self {
        // Element i is at i * step + phase - padding.
        let start = padding.saturating_sub(phase).div_ceil(step).min(len);
        let end = (input + padding).saturating_sub(phase).div_ceil(step).clamp(start, len);
        Self { inside: [start, end], first: (start * step + phase).saturating_sub(padding), step }
    }

    #[inline(always)]
    fn copy(&self, from: &[f32], to: &mut [f32]) {
        let [start, end] = self.inside;
        to[..start].fill(0.0);
        to[end..].fill(0.0);
        let to = &mut to[start..end];
        let Some(from) = from.get(self.first..) else { return };
        match self.step {
            1 => to.copy_from_slice(&from[..to.len()]),
            2 => {
                // The last may have no partner.
                let pairs = to.len().min(from.len() / 2);
                let (whole, rest) = to.split_at_mut(pairs);
                for (to, pair) in whole.iter_mut().zip(from.chunks_exact(2)) {
                    *to = pair[0];
                }
                for to in rest {
                    *to = from[2 * pairs];
                }
            }
            step => {
                for (to, from) in to.iter_mut().zip(from.iter().step_by(step)) {
                    *to = *from;
                }
            }
        }
    }
}

/// Fills a task's copy from the channels of its image and group.
#[inline(always)]
pub(super) fn fill(plan: &Plan, task: &Task<'_>, x: &[f32], copy: &mut [f32]) {
    let (g, [_, rows, columns]) = (&plan.geometry, plan.spans);
    let (plane, [_, height, width]) = (g.plane(), g.input);
    let mut parts = copy.chunks_exact_mut(plan.part());
    // Along an axis, where an element of the copy comes from. None if that is outside.
    let source = |axis: usize, at: usize, phase: usize| {
        let place = ((task.start[axis] + at) * g.stride[axis] + phase).checked_sub(g.padding[axis])?;
        (place < g.input[axis]).then_some(place)
    };
    for channel in x.chunks_exact(plane).take(g.channels) {
        for &phase_d in &plan.phases[0] {
            for &phase_h in &plan.phases[1] {
                for &phase_w in &plan.phases[2] {
                    let Some(part) = parts.next() else { return };
                    let row = Row::new(columns, width, phase_w, g.stride[2], g.padding[2]);
                    for d in 0..task.size[0] + plan.more[0] {
                        let from_d = source(0, d, phase_d);
                        for h in 0..task.size[1] + plan.more[1] {
                            let to = &mut part[(d * rows + h) * columns..][..columns];
                            match (from_d, source(1, h, phase_h)) {
                                (Some(d), Some(h)) => row.copy(&channel[(d * height + h) * width..][..width], to),
                                _ => to.fill(0.0),
                            }
                        }
                    }
                }
            }
        }
    }
}
