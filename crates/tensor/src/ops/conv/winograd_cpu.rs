//! Winograd's tiles on the CPU. Tiles that are neighbours in a row are neighbours in every transform, so that transforms
//! are sums of vectors; a row of tiles has one more that does not exist, which is what the last one's right edge is in.

use gemm::{Parallelism, gemm};
use millrace_core::{CpuKernel, Launched};
use pulp::{Simd, WithSimd};

use super::winograd::{ALL, Params, SEEN, TILE};
use crate::{
    cpu::{scratch::Scratch, worth_threads},
    simd::arch,
};

/// Nanoseconds per multiplication of a plain convolution on one thread, roughly.
const COST: f64 = 0.01;
/// Elements of a task's transforms, if there is a choice.
const CACHED: usize = 384 * 1024;
/// Channels of a kernel that are transformed together.
const LANES: usize = 16;

type Lane = [f32; LANES];

#[inline(always)]
fn each(of: impl Fn(usize) -> f32) -> Lane {
    let mut all = [0.0; LANES];
    for (i, to) in all.iter_mut().enumerate() {
        *to = of(i);
    }
    all
}

/// The six points of three numbers.
#[inline(always)]
fn points(g: [&Lane; 3]) -> [Lane; SEEN] {
    let [a, b, c] = g;
    [
        each(|i| a[i] * 0.25),
        each(|i| (a[i] + b[i] + c[i]) * (-1.0 / 6.0)),
        each(|i| (a[i] - b[i] + c[i]) * (-1.0 / 6.0)),
        each(|i| (a[i] + 2.0 * b[i] + 4.0 * c[i]) * (1.0 / 24.0)),
        each(|i| (a[i] - 2.0 * b[i] + 4.0 * c[i]) * (1.0 / 24.0)),
        *c,
    ]
}

/// Some channels of one filter's kernel.
struct Kernels<'a> {
    weight: &'a [f32],
    out: [[f32; LANES]; ALL],
}

impl WithSimd for Kernels<'_> {
    type Output = [[f32; LANES]; ALL];

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) -> Self::Output {
        let mut taps = [[0.0; LANES]; 9];
        for (lane, kernel) in self.weight.chunks_exact(9).enumerate() {
            for (tap, &value) in kernel.iter().enumerate() {
                taps[tap][lane] = value;
            }
        }
        let columns = [0, 1, 2].map(|w| points([&taps[w], &taps[3 + w], &taps[6 + w]]));
        for row in 0..SEEN {
            let along = points([&columns[0][row], &columns[1][row], &columns[2][row]]);
            self.out[row * SEEN..][..SEEN].copy_from_slice(&along);
        }
        self.out
    }
}

/// The output, of which every task writes a part of its own.
struct Target(*mut f32);

// SAFETY: tasks write disjoint parts of memory that is borrowed for the launch.
unsafe impl Sync for Target {}

/// The transforms of all kernels: 36 matrices of filters by channels.
pub(super) fn weights() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Params>();
        let (filters, channels) = (params.filters as usize, params.channels as usize);
        let weight = &launch.input::<f32>(0)[params.x as usize..][..filters * channels * 9];
        let out = &mut launch.output::<f32>(1)[..ALL * filters * channels];
        let threads = launch.threads();
        let parallel = worth_threads(threads, out.len() as f64 * 0.2);
        let target = Target(out.as_mut_ptr());
        let arch = arch();
        let task = |filter: u64| {
            let (target, filter) = (&target, filter as usize);
            let kernels = &weight[filter * channels * 9..][..channels * 9];
            for (block, weight) in kernels.chunks(LANES * 9).enumerate() {
                let all = arch.dispatch(Kernels { weight, out: [[0.0; LANES]; ALL] });
                for (element, lanes) in all.iter().enumerate() {
                    let at = (element * filters + filter) * channels + block * LANES;
                    // SAFETY: these channels of this filter in one of the matrices, which no other task has.
                    let to = unsafe { std::slice::from_raw_parts_mut(target.0.add(at), weight.len() / 9) };
                    to.copy_from_slice(&lanes[..weight.len() / 9]);
                }
            }
        };
        if parallel { threads.for_each(filters as u64, &task) } else { (0..filters as u64).for_each(task) }
    })
}

/// Everything else.
pub(super) fn tiles() -> CpuKernel {
    let scratch = Scratch::default();
    CpuKernel::whole(move |launch| run(launch, &scratch))
}

fn run(launch: &mut Launched<'_>, scratch: &Scratch) {
    let params = launch.params::<Params>();
    let (filters, channels) = (params.filters as usize, params.channels as usize);
    let plane = params.input.iter().product::<u32>() as usize;
    let positions = params.output.iter().product::<u32>() as usize;
    let batch = params.batch as usize;
    let x = &launch.input::<f32>(0)[params.x as usize..][..batch * channels * plane];
    let kernels = &launch.input::<f32>(1)[..ALL * filters * channels];
    let bias = (params.has_bias != 0).then(|| &launch.input::<f32>(2)[params.bias as usize..][..filters]);
    let out = &mut launch.output::<f32>(3)[..batch * filters * positions];
    let threads = launch.threads();
    let parallel = worth_threads(threads, (out.len() * channels * 9) as f64 * COST);
    let (down, across) = (params.tiles[0] as usize, params.tiles[1] as usize);
    // One more than there are.
    let pitch = across + 1;
    let most = (CACHED / (ALL * (filters + channels) * pitch)).max(1);
    let parts = if parallel { threads.count().div_ceil(batch) } else { 1 };
    let rows = down.div_ceil(parts).min(most);
    let tasks = down.div_ceil(rows);
    let rows = down.div_ceil(tasks);
    let tasks = down.div_ceil(rows);
    let target = Target(out.as_mut_ptr());
    let arch = arch();
    let room = ALL * (filters + channels) * rows * pitch + ROOM * pitch * TILE;
    let task = |number: u64| {
        let target = &target; // all of it, not the pointer alone
        let (image, start) = (number as usize / tasks, number as usize % tasks * rows);
        let rows = rows.min(down - start);
        let count = rows * pitch;
        let x = &x[image * channels * plane..][..channels * plane];
        scratch.with(room, |scratch| {
            let (inputs, rest) = scratch.split_at_mut(ALL * channels * count);
            let (products, rest) = rest.split_at_mut(ALL * filters * count);
            arch.dispatch(Inputs { params: &params, x, start, rows, room: rest, inputs });
            for element in 0..ALL {
                let (a, b) = (&kernels[element * filters * channels..], &inputs[element * channels * count..]);
                let c = &mut products[element * filters * count..][..filters * count];
                assert!(a.len() >= filters * channels && b.len() >= channels * count, "both factors are whole");
                // SAFETY: three matrices, row by row, that are inside of their slices.
                unsafe {
                    #[rustfmt::skip]
                    gemm(
                        filters, count, channels,
                        c.as_mut_ptr(), 1, count as isize, false,
                        a.as_ptr(), 1, channels as isize,
                        b.as_ptr(), 1, count as isize,
                        0.0, 1.0, false, false, false, Parallelism::None,
                    );
                }
            }
            for filter in 0..filters {
                let height = params.output[0] as usize;
                let first = start * TILE;
                let lines = (rows * TILE).min(height - first);
                let width = params.output[1] as usize;
                let at = (image * filters + filter) * positions + first * width;
                // SAFETY: the rows of this filter that the task's tiles are; no other task has them.
                let out = unsafe { std::slice::from_raw_parts_mut(target.0.add(at), lines * width) };
                let bias = bias.map_or(0.0, |bias| bias[filter]);
                arch.dispatch(Outputs { products, filter, filters, rows, pitch, bias, room: rest, width, out });
            }
        });
    };
    let all = (batch * tasks) as u64;
    if parallel { threads.for_each(all, &task) } else { (0..all).for_each(task) }
}

/// Rows of pixels that a task needs besides its transforms.
const ROOM: usize = 16;

/// Transforms the inputs of some rows of tiles.
struct Inputs<'a> {
    params: &'a Params,
    x: &'a [f32],
    start: usize,
    rows: usize,
    room: &'a mut [f32],
    inputs: &'a mut [f32],
}

/// The transform of six numbers, for every place in a row.
#[inline(always)]
fn seen(d: [&[f32]; SEEN], mut to: [&mut [f32]; SEEN]) {
    let n = to[0].len();
    let d = d.map(|d| &d[..n]);
    let [t0, t1, t2, t3, t4, t5] = &mut to;
    let (t0, t1, t2) = (&mut t0[..n], &mut t1[..n], &mut t2[..n]);
    let (t3, t4, t5) = (&mut t3[..n], &mut t4[..n], &mut t5[..n]);
    for i in 0..n {
        let [d0, d1, d2, d3, d4, d5] = [d[0][i], d[1][i], d[2][i], d[3][i], d[4][i], d[5][i]];
        let (even, odd) = (d4 - 4.0 * d2, d3 - 4.0 * d1);
        let (twice, once) = (d4 - d2, 2.0 * (d3 - d1));
        t0[i] = 4.0 * d0 - 5.0 * d2 + d4;
        t1[i] = even + odd;
        t2[i] = even - odd;
        t3[i] = twice + once;
        t4[i] = twice - once;
        t5[i] = 4.0 * d1 - 5.0 * d3 + d5;
    }
}

impl WithSimd for Inputs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let params = self.params;
        let [height, width] = params.input.map(|len| len as usize);
        let [top, left] = params.padding.map(|len| len as usize);
        let pitch = params.tiles[1] as usize + 1;
        let (columns, count) = (pitch * TILE, self.rows * pitch);
        let channels = params.channels as usize;
        // Six rows of pixels, their transforms down, and one of those apart into every fourth pixel.
        let (pixels, rest) = self.room.split_at_mut(SEEN * columns);
        let (down, rest) = rest.split_at_mut(SEEN * columns);
        let apart = &mut rest[..columns];
        let end = (left + width).min(columns);
        for (channel, x) in self.x.chunks_exact(height * width).enumerate() {
            for row in 0..self.rows {
                for (i, to) in pixels.chunks_exact_mut(columns).enumerate() {
                    match ((self.start + row) * TILE + i).checked_sub(top).filter(|&h| h < height) {
                        Some(h) => {
                            to[..left.min(columns)].fill(0.0);
                            if left < end {
                                to[left..end].copy_from_slice(&x[h * width..][..end - left]);
                            }
                            to[end.max(left.min(columns))..].fill(0.0);
                        }
                        None => to.fill(0.0),
                    }
                }
                seen(sixth(pixels, columns), sixth_mut(down, columns));
                for (r, line) in down.chunks_exact(columns).enumerate() {
                    let (a, rest) = apart.split_at_mut(pitch);
                    let (b, rest) = rest.split_at_mut(pitch);
                    let (c, d) = rest.split_at_mut(pitch);
                    for (i, four) in line.chunks_exact(TILE).enumerate() {
                        (a[i], b[i], c[i], d[i]) = (four[0], four[1], four[2], four[3]);
                    }
                    // The tile that does not exist has no neighbour: it is left as it is, which is any finite number.
                    let n = pitch - 1;
                    let to = |s: usize| ((r * SEEN + s) * channels + channel) * count + row * pitch;
                    let mut rest = &mut *self.inputs;
                    let mut gone = 0;
                    let mut parts: [&mut [f32]; SEEN] = [(); SEEN].map(|()| &mut [][..]);
                    for (s, part) in parts.iter_mut().enumerate() {
                        let (_, later) = rest.split_at_mut(to(s) - gone);
                        let (now, later) = later.split_at_mut(pitch);
                        now[n] = 0.0;
                        *part = &mut now[..n];
                        (rest, gone) = (later, to(s) + pitch);
                    }
                    seen([a, b, c, d, &a[1..], &b[1..]], parts);
                }
            }
        }
    }
}

#[inline(always)]
fn sixth(all: &[f32], len: usize) -> [&[f32]; SEEN] {
    let mut parts = [&all[..len]; SEEN];
    for (i, part) in parts.iter_mut().enumerate() {
        *part = &all[i * len..][..len];
    }
    parts
}

#[inline(always)]
fn sixth_mut(all: &mut [f32], len: usize) -> [&mut [f32]; SEEN] {
    let mut parts: [&mut [f32]; SEEN] = [(); SEEN].map(|()| &mut [][..]);
    for (part, piece) in parts.iter_mut().zip(all.chunks_exact_mut(len)) {
        *part = piece;
    }
    parts
}

/// Transforms the products of one filter back.
struct Outputs<'a> {
    products: &'a [f32],
    filter: usize,
    filters: usize,
    rows: usize,
    pitch: usize,
    bias: f32,
    room: &'a mut [f32],
    width: usize,
    out: &'a mut [f32],
}

/// Four outputs of six products.
#[inline(always)]
fn four(m: [f32; SEEN]) -> [f32; TILE] {
    let [m0, m1, m2, m3, m4, m5] = m;
    let (sum, difference, far, apart) = (m1 + m2, m1 - m2, m3 + m4, m3 - m4);
    [m0 + sum + far, difference + 2.0 * apart, sum + 4.0 * far, difference + 8.0 * apart + m5]
}

impl WithSimd for Outputs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let (pitch, count) = (self.pitch, self.rows * self.pitch);
        let n = pitch - 1;
        let mut lines = self.out.chunks_exact_mut(self.width);
        // Of every tile of a row: six times four, and one line of pixels.
        let (half, line) = self.room.split_at_mut(SEEN * TILE * pitch);
        for row in 0..self.rows {
            for r in 0..SEEN {
                let product = |s: usize| {
                    let at = ((r * SEEN + s) * self.filters + self.filter) * count + row * pitch;
                    &self.products[at..at + n]
                };
                let m = [product(0), product(1), product(2), product(3), product(4), product(5)];
                let (a, rest) = half[r * TILE * pitch..][..TILE * pitch].split_at_mut(pitch);
                let (b, rest) = rest.split_at_mut(pitch);
                let (c, d) = rest.split_at_mut(pitch);
                let (a, b, c, d) = (&mut a[..n], &mut b[..n], &mut c[..n], &mut d[..n]);
                for i in 0..n {
                    [a[i], b[i], c[i], d[i]] = four([m[0][i], m[1][i], m[2][i], m[3][i], m[4][i], m[5][i]]);
                }
            }
            let at = |r: usize, j: usize| &half[(r * TILE + j) * pitch..][..n];
            for i in 0..TILE {
                let Some(to) = lines.next() else { return };
                for j in 0..TILE {
                    let m = [at(0, j), at(1, j), at(2, j), at(3, j), at(4, j), at(5, j)];
                    let line = &mut line[j * pitch..][..n];
                    for (q, line) in line.iter_mut().enumerate() {
                        *line = four([m[0][q], m[1][q], m[2][q], m[3][q], m[4][q], m[5][q]])[i] + self.bias;
                    }
                }
                let (a, b, c, d) = (&line[..n], &line[pitch..][..n], &line[2 * pitch..][..n], &line[3 * pitch..][..n]);
                let whole = to.len() / TILE;
                let (fours, rest) = to.split_at_mut(whole * TILE);
                for (q, to) in fours.chunks_exact_mut(TILE).enumerate() {
                    (to[0], to[1], to[2], to[3]) = (a[q], b[q], c[q], d[q]);
                }
                for (j, to) in rest.iter_mut().enumerate() {
                    *to = [a, b, c, d][j][whole];
                }
            }
        }
    }
}
