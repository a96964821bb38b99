//! Products: sums of tiles, and what is left to do with them.

use bytemuck::cast_slice;
use millrace_core::{CpuKernel, Launched};
use pulp::{Simd, WithSimd};

use super::{
    PANEL, in_tasks, line_sum,
    tile::{Level, Multiplier, Sums},
};
use crate::{
    cpu::{Target, worth_threads},
    ops::quant::{Multiplied, channel, channel_of},
    quant::Channel,
    simd::arch,
};

/// Nanoseconds per multiplication and addition on one thread, roughly,
const COST: f64 = 0.004;
/// and per number that is read or written.
const TOUCHED: f64 = 0.1;

pub(in super::super) fn multiply(raw: bool) -> CpuKernel {
    CpuKernel::whole(move |launch| run(launch, raw))
}

/// A launch's arguments.
struct Product<'a> {
    params: Multiplied,
    raw: bool,
    a: &'a [u32],
    b: &'a [u32],
    a_table: &'a [Channel],
    b_table: &'a [Channel],
    b_sums: &'a [i32],
    out: Target<'a, u32>,
}

/// A part of one product: some of its rows, and some of its panels.
struct Part<'a> {
    product: &'a Product<'a>,
    matrix: usize,
    rows: (usize, usize),
    panels: (usize, usize),
}

/// The columns of a panel.
struct Columns {
    panel: usize,
    scales: [f32; PANEL],
    zeros: [i32; PANEL],
    /// The sum of each, less its zero points; not needed without zero points on the left.
    sums: [i32; PANEL],
}

fn run(launch: &mut Launched<'_>, raw: bool) {
    let params = launch.params::<Multiplied>();
    let (m, n, steps) = (params.m as usize, params.n as usize, params.steps as usize);
    let (batch, panels) = (params.batch as usize, n.div_ceil(PANEL));
    let out = &mut launch.output::<u32>(6)[..batch * m * n];
    let product = Product {
        params,
        raw,
        a: &launch.input(0)[..params.groups as usize * m * steps],
        b: &launch.input(1)[..batch * panels * PANEL * steps],
        a_table: cast_slice::<u32, Channel>(launch.input(2)),
        b_table: cast_slice::<u32, Channel>(launch.input(3)),
        b_sums: launch.input(5),
        out: Target::new(out),
    };
    let threads = launch.threads().count();
    let work = (m * n * 4 * steps) as f64 * COST + (4 * (m + n) * steps + m * n) as f64 * TOUCHED;
    let parallel = worth_threads(launch.threads(), work * batch as f64);
    // Products are enough of them, or the side with more to share is cut: into two parts for each thread if they stay large.
    let height = Level::in_use().rows();
    let by_rows = m / height >= panels;
    let units = if by_rows { m.div_ceil(height) } else { panels };
    let parts = match parallel {
        true if batch < 2 * threads => units.min(if units >= 16 * threads { 2 * threads } else { threads }),
        _ => 1,
    };
    in_tasks(launch, parallel, batch * parts, &|task| {
        let (matrix, part) = (task / parts, task % parts);
        let (start, end) = (units * part / parts, units * (part + 1) / parts);
        let (rows, panels) = match by_rows {
            true => ((start * height, (end * height).min(m)), (0, panels)),
            false => ((0, m), (start, end)),
        };
        arch().dispatch(Part { product: &product, matrix, rows, panels });
    });
}

impl WithSimd for Part<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        self.product.part(self.matrix, self.rows, self.panels);
    }
}

impl Product<'_> {
    #[inline(always)]
    fn part(&self, matrix: usize, (top, bottom): (usize, usize), (left, right): (usize, usize)) {
        let (m, steps, all) =
            (self.params.m as usize, self.params.steps as usize, (self.params.n as usize).div_ceil(PANEL));
        let level = Level::in_use().suited(bottom - top, steps);
        let (multiplier, height, deepest) = (Multiplier::new(level), level.rows(), level.depth());
        let lines = &self.a[(matrix % self.params.groups as usize * m + top) * steps..][..(bottom - top) * steps];
        let sums: Vec<i32> = lines.chunks_exact(steps).map(line_sum).collect();
        let mut room = Sums::default();
        for start in (0..steps).step_by(deepest) {
            let depth = deepest.min(steps - start);
            for panel in left..right {
                let b = &self.b[((matrix * all + panel) * steps + start) * PANEL..][..depth * PANEL];
                let columns = self.columns(matrix, panel);
                for row in (top..bottom).step_by(height) {
                    let rows = height.min(bottom - row);
                    if start == 0 {
                        room.clear(rows);
                    } else {
                        self.load(matrix, row, rows, panel, &mut room);
                    }
                    multiplier.add(&lines[(row - top) * steps + start..], steps, rows, b, &mut room);
                    if start + depth < steps {
                        self.store(matrix, row, rows, panel, &room);
                    } else {
                        self.finish(matrix, row, &sums[row - top..][..rows], &columns, &room);
                    }
                }
            }
        }
    }

    /// The part of a row of the output that is in a panel.
    #[inline(always)]
    #[allow(clippy::mut_from_ref, reason = "of memory that is not behind the reference")]
    fn row(&self, matrix: usize, row: usize, panel: usize) -> &mut [u32] {
        let (m, n) = (self.params.m as usize, self.params.n as usize);
        assert!(matrix < self.params.batch as usize && row < m && panel * PANEL < n, "a tile is inside the output");
        let start = (matrix * m + row) * n + panel * PANEL;
        // SAFETY: inside the output, as was just asserted; a row of a panel is one part's, which has it once at a time.
        unsafe { self.out.part(start, PANEL.min(n - panel * PANEL)) }
    }

    /// Sums so far, from the output.
    #[inline(always)]
    fn load(&self, matrix: usize, row: usize, rows: usize, panel: usize, sums: &mut Sums) {
        for i in 0..rows {
            let from = self.row(matrix, row + i, panel);
            sums.0[i].iter_mut().zip(from).for_each(|(sum, word)| *sum = *word as i32);
        }
    }

    /// Sums so far, to the output.
    #[inline(always)]
    fn store(&self, matrix: usize, row: usize, rows: usize, panel: usize, sums: &Sums) {
        for i in 0..rows {
            let to = self.row(matrix, row + i, panel);
            to.iter_mut().zip(&sums.0[i]).for_each(|(word, sum)| *word = *sum as u32);
        }
    }

    /// What the columns of a panel stand for.
    #[inline(always)]
    fn columns(&self, matrix: usize, panel: usize) -> Columns {
        let (params, start) = (&self.params, panel * PANEL);
        let lanes = (params.n as usize).next_multiple_of(PANEL);
        let mut columns = Columns { panel, scales: [0.0; PANEL], zeros: [0; PANEL], sums: [0; PANEL] };
        for j in 0..PANEL.min(params.n as usize - start) {
            let right = channel(self.b_table, if params.b_channels == 1 { 0 } else { start + j });
            (columns.scales[j], columns.zeros[j]) = (right.scale, right.zero);
            if params.a_zeros != 0 {
                let sum = self.b_sums[matrix * lanes + start + j];
                columns.sums[j] = sum.wrapping_sub((params.depth as i32).wrapping_mul(right.zero));
            }
        }
        columns
    }

    /// Takes zero points out of the sums, multiplies by the scales, and writes the output.
    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "five arrays of one length")]
    fn finish(&self, matrix: usize, row: usize, row_sums: &[i32], columns: &Columns, sums: &Sums) {
        let params = &self.params;
        let first = matrix % params.groups as usize * params.m as usize + row;
        for (i, &row_sum) in row_sums.iter().enumerate() {
            let left = channel(self.a_table, channel_of(first + i, params.a_channels, params.a_inner));
            let mut words = [0u32; PANEL];
            for j in 0..PANEL {
                let total = sums.0[i][j]
                    // What was multiplied is 128 more than the number that it is.
                    .wrapping_sub(row_sum.wrapping_mul(128 + columns.zeros[j]))
                    .wrapping_sub(left.zero.wrapping_mul(columns.sums[j]));
                let scaled = total as f32 * left.scale * columns.scales[j];
                words[j] = if self.raw { total as u32 } else { scaled.to_bits() };
            }
            let to = self.row(matrix, row + i, columns.panel);
            match <&mut [u32; PANEL]>::try_from(&mut *to) {
                Ok(whole) => *whole = words,
                Err(_) => to.copy_from_slice(&words[..to.len()]),
            }
        }
    }
}
