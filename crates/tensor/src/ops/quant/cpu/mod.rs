//! The CPU's side: conversions here, then how factors are brought into the shape that `multiply` needs.

mod multiply;
mod tile;
mod unfold;

use bytemuck::{cast_slice, cast_slice_mut};
use millrace_core::{CpuKernel, Launched};
use pulp::{Simd, WithSimd};

pub(super) use multiply::multiply;
pub(super) use unfold::unfold;

use super::{Arranged, Lines, PANEL, channel, channel_of};
use crate::{
    cpu::{Target, pieces, worth_threads},
    quant::Channel,
    simd::arch,
};

/// Nanoseconds per number that is converted, or rearranged, on one thread.
const COST: f64 = 0.2;
/// Words of a thread's piece.
const PIECE: usize = 16 * 1024;
/// A woven number is one without a sign: 128 more.
const FLIP: u32 = 0x8080_8080;
/// What a number is added to so that its last digit is that of whole numbers: 1.5 times 2 to the 23.
const WHOLE: f32 = 12_582_912.0;

/// From floats.
pub(super) fn quantize() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Lines>();
        let (rows, words, columns) = (params.rows as usize, params.words as usize, params.columns as usize);
        let x = &launch.input::<f32>(0)[params.offset as usize..][..rows * columns];
        let table = cast_slice::<u32, Channel>(launch.input(1));
        let out = &mut launch.output::<u32>(2)[..rows * words];
        let parallel = worth_threads(launch.threads(), x.len() as f64 * COST);
        // Lines without gaps are one line.
        let flat = params.channels == 1 && columns == 4 * words;
        let lines = if flat { 1 } else { PIECE.div_ceil(words) };
        let piece = if flat { PIECE } else { lines * words };
        pieces(launch.threads(), parallel, out, piece, |piece, out| {
            let (first, from) = if flat { (0, piece * PIECE * 4) } else { (piece * lines, piece * lines * columns) };
            let (words, columns) = if flat { (out.len(), 4 * out.len()) } else { (words, columns) };
            let x = &x[from..][..out.len() / words * columns];
            arch().dispatch(Quantize { params, table, first, columns, words, x, out });
        });
    })
}

/// A thread's lines, from floats.
struct Quantize<'a> {
    params: Lines,
    table: &'a [Channel],
    /// The number of the first.
    first: usize,
    columns: usize,
    words: usize,
    x: &'a [f32],
    out: &'a mut [u32],
}

impl WithSimd for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let lines = self.x.chunks_exact(self.columns).zip(self.out.chunks_exact_mut(self.words));
        for (line, (x, out)) in lines.enumerate() {
            let (numbers, rest) = cast_slice_mut::<u32, i8>(out).split_at_mut(self.columns);
            rest.fill(0);
            if self.params.inner == 0 && self.params.channels > 1 {
                quantize_each(x, numbers, self.table);
            } else {
                let of_line = channel_of(self.first + line, self.params.channels, self.params.inner);
                quantize_run(x, numbers, channel(self.table, of_line));
            }
        }
    }
}

#[inline(always)]
fn quantize_run(x: &[f32], out: &mut [i8], channel: Channel) {
    x.iter().zip(out).for_each(|(&x, out)| *out = quantized(x, channel));
}

#[inline(always)]
fn quantize_each(x: &[f32], out: &mut [i8], table: &[Channel]) {
    x.iter().zip(out).zip(table).for_each(|((&x, out), channel)| *out = quantized(x, *channel));
}

/// The nearest number. Clamped first, it is small enough to be rounded by adding: to the even one of two.
#[inline(always)]
fn quantized(x: f32, channel: Channel) -> i8 {
    let zero = channel.zero as f32;
    let (low, high) = (-128.0 - zero, 127.0 - zero);
    let steps = x * channel.inverse;
    let steps = if steps > low { steps } else { low };
    let steps = if steps < high { steps } else { high };
    let steps = if x.is_nan() { 0.0 } else { steps };
    (((steps + WHOLE).to_bits() as i32).wrapping_sub(WHOLE.to_bits() as i32) + channel.zero) as i8
}

/// To floats.
pub(super) fn dequantize() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Lines>();
        let (rows, words, columns) = (params.rows as usize, params.words as usize, params.columns as usize);
        let data = &cast_slice::<u32, i8>(launch.input(0))[..4 * rows * words];
        let table = cast_slice::<u32, Channel>(launch.input(1));
        let out = &mut cast_slice_mut::<u32, f32>(launch.output(2))[..rows * columns];
        let parallel = worth_threads(launch.threads(), out.len() as f64 * COST);
        // Lines without gaps are one line.
        let flat = params.channels == 1 && columns == 4 * words;
        let lines = if flat { 1 } else { (4 * PIECE).div_ceil(columns) };
        let piece = if flat { 4 * PIECE } else { lines * columns };
        pieces(launch.threads(), parallel, out, piece, |piece, out| {
            let (first, from) = if flat { (0, piece * PIECE * 4) } else { (piece * lines, piece * lines * 4 * words) };
            let (line, columns) = if flat { (out.len(), out.len()) } else { (4 * words, columns) };
            let data = &data[from..][..out.len() / columns * line];
            arch().dispatch(Dequantize { params, table, first, columns, line, data, out });
        });
    })
}

/// A thread's lines, to floats.
struct Dequantize<'a> {
    params: Lines,
    table: &'a [Channel],
    /// The number of the first.
    first: usize,
    columns: usize,
    /// Numbers of a line, with its gap.
    line: usize,
    data: &'a [i8],
    out: &'a mut [f32],
}

impl WithSimd for Dequantize<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let lines = self.data.chunks_exact(self.line).zip(self.out.chunks_exact_mut(self.columns));
        for (line, (data, out)) in lines.enumerate() {
            if self.params.inner == 0 && self.params.channels > 1 {
                let each = data.iter().zip(out).zip(self.table);
                each.for_each(|((&q, out), channel)| *out = dequantized(q, *channel));
            } else {
                let of_line = channel_of(self.first + line, self.params.channels, self.params.inner);
                dequantize_run(&data[..self.columns], out, channel(self.table, of_line));
            }
        }
    }
}

#[inline(always)]
fn dequantize_run(data: &[i8], out: &mut [f32], channel: Channel) {
    data.iter().zip(out).for_each(|(&q, out)| *out = dequantized(q, channel));
}

#[inline(always)]
fn dequantized(q: i8, channel: Channel) -> f32 {
    (i32::from(q) - channel.zero) as f32 * channel.scale
}

/// What a right factor is woven from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Weave {
    /// Its lines.
    Lines,
    /// Lines of it with its axes exchanged.
    Turned,
}

/// Brings a right factor into panels.
pub(super) fn weave(from: Weave) -> CpuKernel {
    CpuKernel::whole(move |launch| {
        let params = launch.params::<Arranged>();
        let data = launch.input::<u32>(0);
        let (steps, n, words) = (params.steps as usize, params.n as usize, params.words as usize);
        let out = &mut launch.output::<u32>(1)[..n.next_multiple_of(PANEL) * steps];
        let parallel = worth_threads(launch.threads(), 4.0 * out.len() as f64 * COST);
        if from == Weave::Turned {
            return pieces(launch.threads(), parallel, out, PANEL * steps, |panel, out| {
                let lines: [&[u32]; PANEL] = std::array::from_fn(|j| {
                    let line = panel * PANEL + j;
                    if line < n { &data[line * words..][..steps] } else { &[][..] }
                });
                for (step, row) in out.chunks_exact_mut(PANEL).enumerate() {
                    let each = row.iter_mut().zip(&lines);
                    each.for_each(|(to, line)| *to = line.get(step).map_or(0, |word| word ^ FLIP));
                }
            });
        }
        let bytes = cast_slice::<u32, u8>(data);
        let weaver = Weaver::new(out, steps, n);
        let task = |step: u64| {
            let line = |i: usize| {
                let line = 4 * step as usize + i;
                if line < params.depth as usize { &bytes[line * 4 * words..][..n] } else { &[][..] }
            };
            let lines = [line(0), line(1), line(2), line(3)];
            // SAFETY: every step is one task's.
            unsafe { weaver.weave(0, step as usize, lines) };
        };
        if parallel { launch.threads().for_each(steps as u64, &task) } else { (0..steps as u64).for_each(task) }
    })
}

/// Puts four lines together, word by word, into panels.
struct Weaver<'a> {
    target: Target<'a, u32>,
    steps: usize,
    n: usize,
}

impl<'a> Weaver<'a> {
    /// For factors of so many columns, one after the other in `out`.
    fn new(out: &'a mut [u32], steps: usize, n: usize) -> Self {
        Self { target: Target::new(out), steps, n }
    }

    /// Weaves a step of a factor, of lines that are as long as it has columns, or empty for zeros.
    ///
    /// # Safety
    /// Nobody else weaves this step of this factor at the same time.
    unsafe fn weave(&self, factor: usize, step: usize, lines: [&[u8]; 4]) {
        arch().dispatch(Step { weaver: self, factor, step, lines });
    }
}

/// One step of a factor.
struct Step<'a> {
    weaver: &'a Weaver<'a>,
    factor: usize,
    step: usize,
    lines: [&'a [u8]; 4],
}

impl WithSimd for Step<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { weaver: &Weaver { ref target, steps, n }, factor, step, lines } = self;
        assert!(step < steps, "a step is inside its factor");
        for (panel, start) in (0..n).step_by(PANEL).enumerate() {
            let at = ((factor * n.div_ceil(PANEL) + panel) * steps + step) * PANEL;
            // SAFETY: nobody else's, as the caller of `weave` says.
            let out = unsafe { target.part(at, PANEL) };
            let mut rows = [[0u8; PANEL]; 4];
            for i in 0..4 {
                let line = lines[i];
                if start + PANEL <= line.len() {
                    rows[i].copy_from_slice(&line[start..start + PANEL]);
                } else if start < line.len() {
                    rows[i][..line.len() - start].copy_from_slice(&line[start..]);
                }
            }
            for j in 0..PANEL {
                let word = |i: usize| u32::from(rows[i][j]) << (8 * i);
                out[j] = (word(0) | word(1) | word(2) | word(3)) ^ FLIP;
            }
        }
    }
}

/// Exchanges the axes of a matrix.
pub(super) fn turn() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Arranged>();
        let data = cast_slice::<u32, u8>(launch.input(0));
        let (steps, depth, line) = (params.steps as usize, params.depth as usize, 4 * params.words as usize);
        let out = &mut launch.output::<u32>(1)[..params.n as usize * steps];
        let parallel = worth_threads(launch.threads(), 4.0 * out.len() as f64 * COST);
        let lines = PIECE.div_ceil(steps);
        pieces(launch.threads(), parallel, out, lines * steps, |piece, out| {
            for (row, out) in out.chunks_exact_mut(steps).enumerate() {
                let column = piece * lines + row;
                let (numbers, rest) = cast_slice_mut::<u32, u8>(out).split_at_mut(depth);
                rest.fill(0);
                numbers.iter_mut().enumerate().for_each(|(k, number)| *number = data[k * line + column]);
            }
        });
    })
}

/// Puts lines together to longer ones.
pub(super) fn repack() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<Arranged>();
        let data = cast_slice::<u32, u8>(launch.input(0));
        let (depth, columns, line) = (params.depth as usize, params.columns as usize, 4 * params.words as usize);
        let steps = params.steps as usize;
        let out = &mut launch.output::<u32>(1)[..params.n as usize * steps];
        for (row, out) in out.chunks_exact_mut(steps).enumerate() {
            let (numbers, rest) = cast_slice_mut::<u32, u8>(out).split_at_mut(depth);
            rest.fill(0);
            let parts = data[row * (depth / columns) * line..].chunks_exact(line);
            numbers.chunks_exact_mut(columns).zip(parts).for_each(|(to, part)| to.copy_from_slice(&part[..columns]));
        }
    })
}

/// Sums over lines, or over the columns of woven factors.
pub(super) fn sums(woven: bool) -> CpuKernel {
    CpuKernel::whole(move |launch| {
        let params = launch.params::<Arranged>();
        let data = launch.input::<u32>(0);
        let steps = params.steps as usize;
        let out = &mut launch.output::<i32>(1)[..params.n as usize];
        let parallel = worth_threads(launch.threads(), (out.len() * steps) as f64 * COST);
        pieces(launch.threads(), parallel, out, 8 * PANEL, |piece, out| {
            let data = &data[piece * 8 * PANEL * steps..][..out.len() * steps];
            arch().dispatch(Summed { woven, steps, data, out });
        });
    })
}

/// A thread's sums.
struct Summed<'a> {
    woven: bool,
    steps: usize,
    data: &'a [u32],
    out: &'a mut [i32],
}

impl WithSimd for Summed<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { woven, steps, data, out } = self;
        if !woven {
            return out.iter_mut().zip(data.chunks_exact(steps)).for_each(|(sum, line)| *sum = line_sum(line));
        }
        for (out, panel) in out.chunks_exact_mut(PANEL).zip(data.chunks_exact(PANEL * steps)) {
            let mut sums = [0i32; PANEL];
            for row in panel.chunks_exact(PANEL) {
                for j in 0..PANEL {
                    sums[j] += word_sum(row[j] ^ FLIP);
                }
            }
            out.copy_from_slice(&sums);
        }
    }
}

#[inline(always)]
fn word_sum(word: u32) -> i32 {
    let word = word as i32;
    (word << 24 >> 24) + (word << 16 >> 24) + (word << 8 >> 24) + (word >> 24)
}

/// The sum of the numbers of a line.
#[inline(always)]
fn line_sum(line: &[u32]) -> i32 {
    line.iter().fold(0i32, |sum, &word| sum.wrapping_add(word_sum(word)))
}

/// A launch's threads, in tasks.
fn in_tasks(launch: &Launched<'_>, parallel: bool, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
    let tasks = tasks as u64;
    match parallel {
        true => launch.threads().for_each(tasks, &|n| task(n as usize)),
        false => (0..tasks).for_each(|n| task(n as usize)),
    }
}
