//! Winograd's tiles on the CPU. Tiles that are neighbours in a row are neighbours in every transform, so that transforms
//! are sums of vectors; a row of tiles has one more that does not exist, which is what the last one's right edge is in.

#![allow(clippy::needless_range_loop, reason = "registers go by their numbers")]

use gemm::{Parallelism, gemm};
use millrace_core::{CpuKernel, Launched};
use pulp::{Simd, WithSimd};

use super::winograd::{ALL, Params, SEEN, TILE};
use crate::{
    cpu::{Target, scratch::Scratch, worth_threads},
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

/// The transforms of all kernels: 36 matrices of filters by channels.
pub(super) fn weights() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Params>();
        let (filters, channels) = (params.filters as usize, params.channels as usize);
        let weight = &launch.input::<f32>(0)[params.x as usize..][..filters * channels * 9];
        let out = &mut launch.output::<f32>(1)[..ALL * filters * channels];
        let threads = launch.threads();
        let parallel = worth_threads(threads, out.len() as f64 * 0.2);
        let target = Target::new(out);
        let arch = arch();
        let task = |filter: u64| {
            let filter = filter as usize;
            let kernels = &weight[filter * channels * 9..][..channels * 9];
            for (block, weight) in kernels.chunks(LANES * 9).enumerate() {
                let all = arch.dispatch(Kernels { weight, out: [[0.0; LANES]; ALL] });
                for (element, lanes) in all.iter().enumerate() {
                    let at = (element * filters + filter) * channels + block * LANES;
                    // SAFETY: these channels of this filter in one of the matrices, which no other task has.
                    let to = unsafe { target.part(at, weight.len() / 9) };
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
    let target = Target::new(out);
    let arch = arch();
    // And what transforms need on the way, in and out.
    let line = padded(rows * pitch);
    let pixels = SEEN * padded(pitch * TILE) + SEEN * (rows * pitch * TILE + LANES) + TILE * line + 2 * LANES;
    let room = ALL * (filters + channels) * line + pixels.max(TILE * TILE * line);
    let task = |number: u64| {
        let (image, start) = (number as usize / tasks, number as usize % tasks * rows);
        let rows = rows.min(down - start);
        let (count, line) = (rows * pitch, padded(rows * pitch));
        let x = &x[image * channels * plane..][..channels * plane];
        scratch.with(room, |scratch| {
            let (inputs, rest) = scratch.split_at_mut(ALL * channels * line);
            let (products, rest) = rest.split_at_mut(ALL * filters * line);
            arch.dispatch(Inputs { params: &params, x, start, rows, room: rest, inputs });
            for element in 0..ALL {
                let (a, b) = (&kernels[element * filters * channels..], &inputs[element * channels * line..]);
                let c = &mut products[element * filters * line..][..filters * line];
                assert!(a.len() >= filters * channels && b.len() >= channels * line, "both factors are whole");
                // SAFETY: three matrices, row by row, that are inside of their slices: `count` of the `line` elements of
                // a row are columns.
                unsafe {
                    #[rustfmt::skip]
                    gemm(
                        filters, count, channels,
                        c.as_mut_ptr(), 1, line as isize, false,
                        a.as_ptr(), 1, channels as isize,
                        b.as_ptr(), 1, line as isize,
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
                let out = unsafe { target.part(at, lines * width) };
                let bias = bias.map_or(0.0, |bias| bias[filter]);
                arch.dispatch(Outputs { products, filter, filters, rows, pitch, bias, room: rest, width, out });
            }
        });
    };
    let all = (batch * tasks) as u64;
    if parallel { threads.for_each(all, &task) } else { (0..all).for_each(task) }
}

/// Transforms the inputs of some rows of tiles.
struct Inputs<'a> {
    params: &'a Params,
    x: &'a [f32],
    start: usize,
    rows: usize,
    room: &'a mut [f32],
    inputs: &'a mut [f32],
}

/// The transform of six vectors.
#[inline(always)]
fn points_of<S: Simd>(simd: S, d: [S::f32s; SEEN]) -> [S::f32s; SEEN] {
    let [d0, d1, d2, d3, d4, d5] = d;
    let (four, five) = (simd.splat_f32s(-4.0), simd.splat_f32s(-5.0));
    let (even, odd) = (simd.mul_add_f32s(four, d2, d4), simd.mul_add_f32s(four, d1, d3));
    let (twice, once) = (simd.sub_f32s(d4, d2), simd.sub_f32s(d3, d1));
    let once = simd.add_f32s(once, once);
    let first = simd.sub_f32s(simd.mul_add_f32s(five, d2, d4), simd.mul_f32s(four, d0));
    let last = simd.sub_f32s(simd.mul_add_f32s(five, d3, d5), simd.mul_f32s(four, d1));
    [
        first,
        simd.add_f32s(even, odd),
        simd.sub_f32s(even, odd),
        simd.add_f32s(twice, once),
        simd.sub_f32s(twice, once),
        last,
    ]
}

/// The transform of six numbers, for every place in a row: whole vectors, the last of which may reach into what lies
/// behind the row.
#[inline(always)]
fn seen<S: Simd>(simd: S, d: [&[f32]; SEEN], to: [&mut [f32]; SEEN]) {
    let n = to[0].len();
    let [d0, d1, d2, d3, d4, d5] = d.map(|d| S::as_simd_f32s(&d[..n]).0);
    let [t0, t1, t2, t3, t4, t5] = to.map(|to| S::as_mut_simd_f32s(&mut to[..n]).0);
    let vectors = t0.len();
    let (d0, d1, d2) = (&d0[..vectors], &d1[..vectors], &d2[..vectors]);
    let (d3, d4, d5) = (&d3[..vectors], &d4[..vectors], &d5[..vectors]);
    let (t1, t2, t3) = (&mut t1[..vectors], &mut t2[..vectors], &mut t3[..vectors]);
    let (t4, t5) = (&mut t4[..vectors], &mut t5[..vectors]);
    for i in 0..vectors {
        let [p0, p1, p2, p3, p4, p5] = points_of(simd, [d0[i], d1[i], d2[i], d3[i], d4[i], d5[i]]);
        t0[i] = p0;
        t1[i] = p1;
        t2[i] = p2;
        t3[i] = p3;
        t4[i] = p4;
        t5[i] = p5;
    }
}

impl WithSimd for Inputs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let params = self.params;
        let [height, width] = params.input.map(|len| len as usize);
        let [top, left] = params.padding.map(|len| len as usize);
        let pitch = params.tiles[1] as usize + 1;
        let (columns, count) = (padded(pitch * TILE), padded(self.rows * pitch));
        let (pixel_count, channels) = (pitch * TILE, params.channels as usize);
        // Six rows of pixels; the transforms down of all rows of tiles; and one of those, every fourth pixel together.
        let (pixels, rest) = self.room.split_at_mut(SEEN * columns);
        let (down, rest) = rest.split_at_mut(SEEN * (self.rows * pixel_count + LANES));
        let (a, rest) = rest.split_at_mut(count + LANES);
        let (b, rest) = rest.split_at_mut(count + LANES);
        let (c, rest) = rest.split_at_mut(count);
        let d = &mut rest[..count];
        let (start, end) = (left.min(pixel_count), (left + width).min(pixel_count));
        for (channel, x) in self.x.chunks_exact(height * width).enumerate() {
            for row in 0..self.rows {
                for (i, to) in pixels.chunks_exact_mut(columns).enumerate() {
                    match ((self.start + row) * TILE + i).checked_sub(top) {
                        Some(h) if h < height => {
                            to[..start].fill(0.0);
                            to[start..end].copy_from_slice(&x[h * width..][..end - start]);
                            to[end..].fill(0.0);
                        }
                        _ => to.fill(0.0),
                    }
                }
                let mut parts: [&mut [f32]; SEEN] = [&mut [], &mut [], &mut [], &mut [], &mut [], &mut []];
                // What is written behind a row of pixels is written again with the next row, or lies behind the last.
                for (part, line) in parts.iter_mut().zip(down.chunks_exact_mut(self.rows * pixel_count + LANES)) {
                    *part = &mut line[row * pixel_count..][..columns];
                }
                seen(simd, sixth(pixels, columns), parts);
            }
            for (r, line) in down.chunks_exact(self.rows * pixel_count + LANES).enumerate() {
                apart(&line[..self.rows * pixel_count], a, b, c, d);
                // Tiles that do not exist are made of whatever comes next.
                let mut parts: [&mut [f32]; SEEN] = [&mut [], &mut [], &mut [], &mut [], &mut [], &mut []];
                let planes = self.inputs[r * SEEN * channels * count..].chunks_exact_mut(channels * count);
                for (part, plane) in parts.iter_mut().zip(planes) {
                    *part = &mut plane[channel * count..][..count];
                }
                seen(simd, [a, b, c, d, &a[1..], &b[1..]], parts);
            }
        }
    }
}

/// Rows are a multiple of this long, so that there are whole vectors.
fn padded(len: usize) -> usize {
    len.next_multiple_of(LANES)
}

/// Every fourth pixel.
#[inline(always)]
fn apart(line: &[f32], a: &mut [f32], b: &mut [f32], c: &mut [f32], d: &mut [f32]) {
    let n = line.len() / TILE;
    let (a, b, c, d, line) = (&mut a[..n], &mut b[..n], &mut c[..n], &mut d[..n], &line[..n * TILE]);
    for i in 0..n {
        a[i] = line[4 * i];
        b[i] = line[4 * i + 1];
        c[i] = line[4 * i + 2];
        d[i] = line[4 * i + 3];
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
fn four<S: Simd>(simd: S, m: [S::f32s; SEEN]) -> [S::f32s; TILE] {
    let [m0, m1, m2, m3, m4, m5] = m;
    let (sum, difference) = (simd.add_f32s(m1, m2), simd.sub_f32s(m1, m2));
    let (far, apart) = (simd.add_f32s(m3, m4), simd.sub_f32s(m3, m4));
    [
        simd.add_f32s(m0, simd.add_f32s(sum, far)),
        simd.mul_add_f32s(simd.splat_f32s(2.0), apart, difference),
        simd.mul_add_f32s(simd.splat_f32s(4.0), far, sum),
        simd.add_f32s(simd.mul_add_f32s(simd.splat_f32s(8.0), apart, difference), m5),
    ]
}

impl WithSimd for Outputs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (pitch, count) = (self.pitch, padded(self.rows * self.pitch));
        let vectors = count / S::F32_LANES;
        let bias = simd.splat_f32s(self.bias);
        // Of every tile: sixteen outputs, those of one place together.
        let lines = &mut self.room[..TILE * TILE * count];
        let products = |element: usize| {
            let at = (element * self.filters + self.filter) * count;
            S::as_simd_f32s(&self.products[at..at + count]).0
        };
        for i in 0..vectors {
            let mut across = [[bias; TILE]; SEEN];
            for (r, across) in across.iter_mut().enumerate() {
                let m = |s: usize| products(r * SEEN + s)[i];
                *across = four(simd, [m(0), m(1), m(2), m(3), m(4), m(5)]);
            }
            for j in 0..TILE {
                let m = |r: usize| across[r][j];
                let down = four(simd, [m(0), m(1), m(2), m(3), m(4), m(5)]);
                for (row, &value) in down.iter().enumerate() {
                    let line = &mut lines[(row * TILE + j) * count..][..count];
                    S::as_mut_simd_f32s(line).0[i] = simd.add_f32s(value, bias);
                }
            }
        }
        for (h, to) in self.out.chunks_exact_mut(self.width).enumerate() {
            let of = |j: usize| &lines[(h % TILE * TILE + j) * count + h / TILE * pitch..][..pitch];
            together(to, [of(0), of(1), of(2), of(3)]);
        }
    }
}

/// Four pixels of every tile side by side.
#[inline(always)]
fn together(to: &mut [f32], [a, b, c, d]: [&[f32]; TILE]) {
    let whole = to.len() / TILE;
    let (fours, rest) = to.split_at_mut(whole * TILE);
    let (p, q, r, s) = (&a[..whole], &b[..whole], &c[..whole], &d[..whole]);
    for i in 0..whole {
        fours[4 * i] = p[i];
        fours[4 * i + 1] = q[i];
        fours[4 * i + 2] = r[i];
        fours[4 * i + 3] = s[i];
    }
    for (j, to) in rest.iter_mut().enumerate() {
        *to = [a, b, c, d][j][whole];
    }
}
