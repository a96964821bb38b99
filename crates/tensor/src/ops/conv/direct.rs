//! The direct algorithm on the CPU: sums of some filters at some vectors of positions stay in registers while the kernel's
//! elements go by. `plan.rs` says how positions become vectors. Groups of one filter are the same with more vectors; and
//! most depthwise convolutions are in `depthwise.rs`.

#![allow(clippy::needless_range_loop, reason = "registers go by their numbers")]

use millrace_core::{CpuKernel, Launched};
use pulp::{MemMask, Simd, WithSimd};

use super::{
    Params, depthwise,
    fill::fill,
    plan::{Block, Plan, Shape, Task},
};
use crate::{
    cpu::{PIECE, Target, pieces, scratch::Scratch, worth_threads},
    simd::arch,
};

/// Nanoseconds per multiplication on one thread, roughly,
const COST: f64 = 0.02;
/// and per element of the output.
const TOUCHED: f64 = 0.15;
/// Bytes of weights from which on they are gone through once for all positions, and not once for every block.
const HEAVY: usize = 1 << 20;

pub(crate) fn kernel() -> CpuKernel {
    let scratch = Scratch::default();
    CpuKernel::whole(move |launch| run(launch, &scratch))
}

/// How many sums fit into the registers.
struct Registers {
    one_filter: bool,
}

impl WithSimd for Registers {
    type Output = Shape;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Shape {
        let (rows, vectors) = match (self.one_filter, S::REGISTER_COUNT) {
            (true, _) => (1, ALONE),
            (false, 32..) => (8, TOGETHER),
            (false, _) => (6, FEW_TOGETHER),
        };
        Shape { lanes: S::F32_LANES, rows, vectors }
    }
}

/// Vectors of one filter alone,
const ALONE: usize = 8;
/// of each of several,
const TOGETHER: usize = 3;
/// and of each of several where there are sixteen registers: six times two sums, two vectors, a weight, and one is left.
const FEW_TOGETHER: usize = 2;

fn run(launch: &mut Launched<'_>, scratch: &Scratch) {
    let params = launch.params::<Params>();
    let g = params.geometry();
    let x = &launch.input::<f32>(0)[params.x as usize..][..g.batch * g.groups * g.channels * g.plane()];
    let weight = &launch.input::<f32>(1)[params.weight as usize..][..g.groups * g.filters * g.depth()];
    let bias = (params.has_bias != 0).then(|| &launch.input::<f32>(2)[params.bias as usize..][..g.groups * g.filters]);
    let out = &mut launch.output::<f32>(3)[..g.batch * g.groups * g.filters * g.positions()];
    let threads = launch.threads();
    let work = out.len() as f64 * (g.depth() as f64 * COST + TOUCHED);
    let parallel = worth_threads(threads, work);
    let arch = arch();
    if depthwise::applies(&g) {
        let zeros = vec![0.0; g.input[2]];
        let per_piece =
            (PIECE / g.positions()).clamp(1, (g.batch * g.groups * g.filters).div_ceil(4 * threads.count()));
        return pieces(threads, parallel, out, per_piece * g.positions(), |piece, out| {
            let mut rows = Vec::new();
            for (n, out) in out.chunks_exact_mut(g.positions()).enumerate() {
                let plane = piece * per_piece + n;
                let filter = plane % (g.groups * g.filters);
                let x = &x[plane / g.filters * g.plane()..][..g.plane()];
                let weight = &weight[filter * g.depth()..][..g.depth()];
                let bias = bias.map_or(0.0, |bias| bias[filter]);
                arch.dispatch(depthwise::Plane { geometry: &g, x, weight, bias, zeros: &zeros, rows: &mut rows, out });
            }
        });
    }
    let shape = arch.dispatch(Registers { one_filter: g.filters == 1 });
    let plan = Plan::new(g, shape, if parallel { threads.count() } else { 1 });
    let target = Target::new(out);
    // What the last block of the last channel may read beyond the copy.
    let slack = shape.lanes * shape.vectors;
    let copied = if plan.in_place { 0 } else { g.channels * plan.channel() };
    let task = |number: u64| {
        let task = plan.task(number as usize);
        let place = task.image * g.groups + task.group;
        let x = &x[place * g.channels * g.plane()..][..g.channels * g.plane()];
        let weight = &weight[task.group * g.filters * g.depth()..][..g.filters * g.depth()];
        let bias = bias.map(|bias| &bias[task.group * g.filters..][..g.filters]);
        let first = place * g.filters * g.positions() + (task.start[0] * g.output[1] + task.start[1]) * g.output[2];
        // SAFETY: the place of the task's first position, inside of the output.
        let out = unsafe { target.start().add(first) };
        let piece = |copy: &mut [f32]| arch.dispatch(Piece { plan: &plan, task, shape, x, weight, bias, copy, out });
        if plan.in_place { piece(&mut []) } else { scratch.with(copied + slack, piece) }
    };
    let tasks = plan.tasks() as u64;
    if parallel { threads.for_each(tasks, &task) } else { (0..tasks).for_each(task) }
}

/// A task with everything it needs.
struct Piece<'a> {
    plan: &'a Plan,
    task: Task<'a>,
    shape: Shape,
    /// The channels, weights and biases of its group.
    x: &'a [f32],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    copy: &'a mut [f32],
    out: *mut f32,
}

impl WithSimd for Piece<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let (plan, g) = (self.plan, &self.plan.geometry);
        if !plan.in_place {
            fill(plan, &self.task, self.x, self.copy);
        }
        if self.shape.vectors == ALONE {
            for block in &self.task.blocks.list {
                self.tile::<S, 1, ALONE>(simd, block, 0);
            }
        } else if size_of_val(self.weight) < HEAVY {
            for block in &self.task.blocks.list {
                let mut filter = 0;
                while filter < g.filters {
                    filter += self.tiles(simd, block, filter);
                }
            }
        } else {
            let mut filter = 0;
            while filter < g.filters {
                let mut done = 0;
                for block in &self.task.blocks.list {
                    done = self.tiles(simd, block, filter);
                }
                filter += done;
            }
        }
    }
}

impl Piece<'_> {
    /// As many filters as fit, from `filter` on. Says how many.
    #[inline(always)]
    fn tiles<S: Simd>(&mut self, simd: S, block: &Block, filter: usize) -> usize {
        match (self.plan.geometry.filters - filter, S::REGISTER_COUNT) {
            (8.., 32..) => self.tile::<S, 8, TOGETHER>(simd, block, filter),
            (4.., 32..) => self.tile::<S, 4, TOGETHER>(simd, block, filter),
            (2.., 32..) => self.tile::<S, 2, TOGETHER>(simd, block, filter),
            (_, 32..) => self.tile::<S, 1, TOGETHER>(simd, block, filter),
            (6.., _) => self.tile::<S, 6, FEW_TOGETHER>(simd, block, filter),
            (4.., _) => self.tile::<S, 4, FEW_TOGETHER>(simd, block, filter),
            (2.., _) => self.tile::<S, 2, FEW_TOGETHER>(simd, block, filter),
            _ => self.tile::<S, 1, FEW_TOGETHER>(simd, block, filter),
        }
    }

    /// One block of `ROWS` filters.
    #[inline(always)]
    fn tile<S: Simd, const ROWS: usize, const VECTORS: usize>(
        &mut self,
        simd: S,
        block: &Block,
        filter: usize,
    ) -> usize {
        let (plan, g) = (self.plan, &self.plan.geometry);
        let (depth, positions) = (g.depth(), g.positions());
        assert!(filter + ROWS <= g.filters && self.weight.len() == g.filters * depth && plan.offsets.len() == depth);
        let (source, first) = if plan.in_place {
            (self.x, (self.task.start[0] * plan.spans[1] + self.task.start[1]) * plan.spans[2])
        } else {
            (&*self.copy, 0)
        };
        let at = first + block.at;
        assert!(at + plan.furthest + VECTORS * S::F32_LANES <= source.len(), "a block is inside of what it reads");
        let mut sums = [[simd.splat_f32s(0.0); VECTORS]; ROWS];
        if let Some(bias) = self.bias {
            for row in 0..ROWS {
                sums[row] = [simd.splat_f32s(bias[filter + row]); VECTORS];
            }
        }
        // SAFETY: `at` is inside of the source.
        let from = unsafe { source.as_ptr().add(at) };
        // SAFETY: the filter exists.
        let weight = unsafe { self.weight.as_ptr().add(filter * depth) };
        for (k, &offset) in plan.offsets.iter().enumerate() {
            let mut seen = [simd.splat_f32s(0.0); VECTORS];
            for vector in 0..VECTORS {
                // SAFETY: distances are at most `furthest`, and the assertion says that a block from there is inside.
                seen[vector] =
                    unsafe { from.add(offset as usize + vector * S::F32_LANES).cast::<S::f32s>().read_unaligned() };
            }
            for row in 0..ROWS {
                // SAFETY: row and k are inside of the filters from `filter` on.
                let by = simd.splat_f32s(unsafe { *weight.add(row * depth + k) });
                for vector in 0..VECTORS {
                    sums[row][vector] = simd.mul_add_f32s(by, seen[vector], sums[row][vector]);
                }
            }
        }
        let mut start = block.first;
        for vector in 0..VECTORS {
            let end = block.ends[vector];
            for segment in &self.task.blocks.segments[start..end] {
                let mask = MemMask::new(simd.mask_between_m32s(segment.from, segment.to).mask());
                for row in 0..ROWS {
                    let to = self.out.wrapping_add((filter + row) * positions).wrapping_offset(segment.out);
                    // SAFETY: lanes of a segment are positions of this task, and the rows are filters that exist.
                    unsafe { simd.mask_store_ptr_f32s(mask, to, sums[row][vector]) };
                }
            }
            start = end;
        }
        ROWS
    }
}
