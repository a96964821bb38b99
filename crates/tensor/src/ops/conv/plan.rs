//! How the direct algorithm cuts its work up, and where it finds what a kernel's elements are multiplied with.
//!
//! A task is a box of output positions of one image and one group, whole rows of it. What its kernel sees lies in a copy
//! of the input with zeros around, one part for each remainder that a kernel's element can have when it is divided by the
//! stride. There, going from one output position to the next is going one element further, for every element of the
//! kernel; so positions are vectors, and an element of the kernel is a distance. Between rows there are positions that do
//! not exist; they are computed and not stored.

use super::{AXES, Geometry};

/// Elements of a task's copy, at most, if there is a choice: it stays in the second cache.
const COPIED: usize = 192 * 1024;
/// What an element of the copy costs, in multiplications of vectors.
const COPYING: f64 = 0.1;

/// Some lanes of a vector that are neighbours in the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Segment {
    pub(super) from: u32,
    pub(super) to: u32,
    /// Where the vector's first lane would be in the output, seen from where the task begins.
    pub(super) out: isize,
}

/// Some vectors of positions that are computed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Block {
    /// The first position.
    pub(super) at: usize,
    /// Where the segments of every vector end in the list, and where the first begin.
    pub(super) first: usize,
    pub(super) ends: [usize; MOST],
}

/// Vectors of a block, at most.
pub(super) const MOST: usize = 8;

/// The blocks of a task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Blocks {
    pub(super) list: Vec<Block>,
    pub(super) segments: Vec<Segment>,
}

/// What the processor's vectors are like, and how many of them are sums at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) lanes: usize,
    pub(super) rows: usize,
    pub(super) vectors: usize,
}

/// A launch's plan.
pub(super) struct Plan {
    pub(super) geometry: Geometry,
    /// Whether the input is read where it lies.
    pub(super) in_place: bool,
    /// Slices and rows of a task, and how many tasks that makes for one image and one group.
    tile: [usize; 2],
    tiles: [usize; 2],
    /// Sizes of one part of the copy.
    pub(super) spans: [usize; AXES],
    /// Elements that a part has more than there are positions, along every axis.
    pub(super) more: [usize; AXES],
    /// The remainders, for every axis.
    pub(super) phases: [Vec<usize>; AXES],
    /// The distance of every element of a kernel.
    pub(super) offsets: Vec<u32>,
    /// The largest of them.
    pub(super) furthest: usize,
    /// Blocks of tasks that are whole, or the last along an axis, or along both.
    blocks: [[Blocks; 2]; 2],
}

/// One task.
pub(super) struct Task<'a> {
    pub(super) image: usize,
    pub(super) group: usize,
    /// The first slice and row, and how many there are.
    pub(super) start: [usize; 2],
    pub(super) size: [usize; 2],
    pub(super) blocks: &'a Blocks,
}

impl Plan {
    pub(super) fn new(geometry: Geometry, shape: Shape, threads: usize) -> Self {
        let more: [usize; AXES] =
            std::array::from_fn(|axis| (geometry.kernel[axis] - 1) * geometry.dilation[axis] / geometry.stride[axis]);
        let phases: [Vec<usize>; AXES] = std::array::from_fn(|axis| {
            let remainder = |k: usize| k * geometry.dilation[axis] % geometry.stride[axis];
            let mut all: Vec<usize> = (0..geometry.kernel[axis]).map(remainder).collect();
            all.sort_unstable();
            all.dedup();
            all
        });
        let tile = best_tile(&geometry, shape, threads, more, phases.iter().map(Vec::len).product());
        let tiles = [geometry.output[0].div_ceil(tile[0]), geometry.output[1].div_ceil(tile[1])];
        let in_place = geometry.stride == [1; AXES] && geometry.padding == [0; AXES];
        let mut plan = Self {
            geometry,
            in_place,
            tile,
            tiles,
            spans: if in_place { geometry.input } else { spans(&geometry, tile, more) },
            more,
            phases,
            offsets: Vec::new(),
            furthest: 0,
            blocks: Default::default(),
        };
        let block = shape.lanes * shape.vectors;
        let smallest = [plan.size(0, tiles[0] - 1), plan.size(1, tiles[1] - 1)];
        if in_place && plan.positions(smallest) < block {
            // A vector would reach past the end.
            plan.in_place = false;
            plan.spans = spans(&geometry, tile, more);
        }
        plan.offsets = plan.distances();
        plan.furthest = plan.offsets.iter().max().map_or(0, |&last| last as usize);
        for (last_slice, last_row) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let size = |axis: usize, last: usize| if last == 1 { smallest[axis] } else { tile[axis] };
            plan.blocks[last_slice][last_row] = plan.cut([size(0, last_slice), size(1, last_row)], shape);
        }
        plan
    }

    /// How many tasks there are.
    pub(super) fn tasks(&self) -> usize {
        self.geometry.batch * self.geometry.groups * self.tiles[0] * self.tiles[1]
    }

    pub(super) fn task(&self, number: usize) -> Task<'_> {
        let (rest, row) = (number / self.tiles[1], number % self.tiles[1]);
        let (rest, slice) = (rest / self.tiles[0], rest % self.tiles[0]);
        let is_last = |axis: usize, tile: usize| usize::from(tile + 1 == self.tiles[axis]);
        Task {
            image: rest / self.geometry.groups,
            group: rest % self.geometry.groups,
            start: [slice * self.tile[0], row * self.tile[1]],
            size: [self.size(0, slice), self.size(1, row)],
            blocks: &self.blocks[is_last(0, slice)][is_last(1, row)],
        }
    }

    fn size(&self, axis: usize, tile: usize) -> usize {
        self.tile[axis].min(self.geometry.output[axis] - tile * self.tile[axis])
    }

    /// Elements of one part of the copy.
    pub(super) fn part(&self) -> usize {
        self.spans.iter().product()
    }

    /// Elements of a channel of the copy.
    pub(super) fn channel(&self) -> usize {
        self.part() * self.phases.iter().map(Vec::len).product::<usize>()
    }

    /// From the first position of a task to behind its last, those that do not exist included.
    pub(super) fn positions(&self, size: [usize; 2]) -> usize {
        ((size[0] - 1) * self.spans[1] + size[1] - 1) * self.spans[2] + self.geometry.output[2]
    }

    fn distances(&self) -> Vec<u32> {
        let (g, [_, rows, columns]) = (&self.geometry, self.spans);
        let at = |axis: usize, k: usize| {
            let distance = k * g.dilation[axis];
            if self.in_place {
                return (0, distance);
            }
            let phase = self.phases[axis].iter().position(|&phase| phase == distance % g.stride[axis]);
            (phase.unwrap_or(0), distance / g.stride[axis])
        };
        let channel = if self.in_place { g.plane() } else { self.channel() };
        let mut all = Vec::with_capacity(g.depth());
        for c in 0..g.channels {
            for d in 0..g.kernel[0] {
                for h in 0..g.kernel[1] {
                    for w in 0..g.kernel[2] {
                        let [d, h, w] = [at(0, d), at(1, h), at(2, w)];
                        let part = (d.0 * self.phases[1].len() + h.0) * self.phases[2].len() + w.0;
                        let inside = (d.1 * rows + h.1) * columns + w.1;
                        all.push((c * channel + part * self.part() + inside) as u32);
                    }
                }
            }
        }
        all
    }

    /// The blocks of a task of a given size.
    fn cut(&self, size: [usize; 2], shape: Shape) -> Blocks {
        let (mut blocks, total) = (Blocks::default(), self.positions(size));
        let ([_, rows, columns], [_, height, width]) = (self.spans, self.geometry.output);
        let block = shape.lanes * shape.vectors;
        for start in (0..total).step_by(block) {
            // Where nothing lies behind the input, the last block begins earlier and computes some positions again.
            let start = if self.in_place { start.min(total - block) } else { start };
            let (first, mut ends) = (blocks.segments.len(), [0; MOST]);
            for (vector, end) in ends.iter_mut().enumerate() {
                let begin = start + vector * shape.lanes;
                let limit = if vector < shape.vectors { total.min(begin + shape.lanes) } else { begin };
                let mut at = begin;
                while at < limit {
                    let (row, w) = (at / columns, at % columns);
                    let (d, h) = (row / rows, row % rows);
                    if h < size[1] && w < width {
                        let run = (width - w).min(limit - at);
                        let out = ((d * height + h) * width + w) as isize - (at - begin) as isize;
                        let from = (at - begin) as u32;
                        blocks.segments.push(Segment { from, to: from + run as u32, out });
                        at += run;
                    } else {
                        at += columns - w;
                    }
                }
                *end = blocks.segments.len();
            }
            if blocks.segments.len() > first {
                blocks.list.push(Block { at: start, first, ends });
            }
        }
        blocks
    }
}

fn spans(geometry: &Geometry, tile: [usize; 2], more: [usize; AXES]) -> [usize; AXES] {
    [tile[0] + more[0], tile[1] + more[1], geometry.output[2] + more[2]]
}

/// The slices and rows of a task with which all tasks are likely to be done first.
fn best_tile(geometry: &Geometry, shape: Shape, threads: usize, more: [usize; AXES], phases: usize) -> [usize; 2] {
    let [depth, height, width] = geometry.output;
    let images = geometry.batch * geometry.groups;
    let whole = (1..=depth.min(64)).map(|parts| [depth.div_ceil(parts), height]);
    let sliced = (2..=height.min(64)).map(|parts| [1, height.div_ceil(parts)]);
    let cost = |tile: [usize; 2]| {
        let [d, h, w] = spans(geometry, tile, more);
        let positions = ((tile[0] - 1) * h + tile[1] - 1) * w + width;
        let vectors = positions.div_ceil(shape.lanes * shape.vectors) * shape.vectors;
        let rows = geometry.filters.next_multiple_of(shape.rows.min(geometry.filters.next_power_of_two()));
        let copied = geometry.channels * phases * d * h * w;
        let one = (vectors * rows * geometry.depth()) as f64 + copied as f64 * COPYING;
        let tasks = images * depth.div_ceil(tile[0]) * height.div_ceil(tile[1]);
        let turns = tasks.div_ceil(threads) as f64 * one;
        // Beyond the cache everything takes longer.
        if copied > COPIED { turns * (copied as f64 / COPIED as f64).min(4.0) } else { turns }
    };
    let all = whole.chain(sliced);
    all.min_by(|a, b| cost(*a).total_cmp(&cost(*b))).unwrap_or([depth, height])
}
