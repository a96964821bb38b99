//! The CPU's side: conversions here, then how factors are brought into the shape that `multiply` needs.

mod multiply;
mod tile;
mod unfold;

use bytemuck::{cast_slice, cast_slice_mut};
use millrace_core::{CpuKernel, Launched};

pub(super) use multiply::multiply;
pub(super) use unfold::unfold;

use super::{Arranged, Lines, PANEL, channel, channel_of};
use crate::{
    cpu::{pieces, worth_threads},
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
        let x = &launch.input::<f32>(0)[params.offset as usize..];
        let table = cast_slice::<u32, Channel>(launch.input(1));
        let (rows, words, columns) = (params.rows as usize, params.words as usize, params.columns as usize);
        let out = &mut launch.output::<u32>(2)[..rows * words];
        let x = &x[..rows * columns];
        let parallel = worth_threads(launch.threads(), x.len() as f64 * COST);
        if params.channels == 1 && columns == 4 * words {
            let only = channel(table, 0);
            return pieces(launch.threads(), parallel, out, PIECE, |piece, out| {
                let x = &x[piece * PIECE * 4..][..out.len() * 4];
                arch().dispatch(|| quantize_run(x, cast_slice_mut(out), only));
            });
        }
        let lines = PIECE.div_ceil(words);
        pieces(launch.threads(), parallel, out, lines * words, |piece, out| {
            arch().dispatch(
                #[inline(always)]
                || {
                    for (line, out) in out.chunks_exact_mut(words).enumerate() {
                        let row = piece * lines + line;
                        let x = &x[row * columns..][..columns];
                        let (numbers, rest) = cast_slice_mut::<u32, i8>(out).split_at_mut(columns);
                        rest.fill(0);
                        if params.inner == 0 && params.channels > 1 {
                            quantize_each(x, numbers, table);
                        } else {
                            let of_line = channel_of(row, params.channels, params.inner);
                            quantize_run(x, numbers, channel(table, of_line));
                        }
                    }
                },
            );
        });
    })
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
        let data = cast_slice::<u32, i8>(launch.input(0));
        let table = cast_slice::<u32, Channel>(launch.input(1));
        let (rows, words, columns) = (params.rows as usize, params.words as usize, params.columns as usize);
        let out = &mut cast_slice_mut::<u32, f32>(launch.output(2))[..rows * columns];
        let parallel = worth_threads(launch.threads(), out.len() as f64 * COST);
        if params.channels == 1 && columns == 4 * words {
            let only = channel(table, 0);
            return pieces(launch.threads(), parallel, out, 4 * PIECE, |piece, out| {
                let data = &data[piece * PIECE * 4..][..out.len()];
                arch().dispatch(|| dequantize_run(data, out, only));
            });
        }
        let lines = (4 * PIECE).div_ceil(columns);
        pieces(launch.threads(), parallel, out, lines * columns, |piece, out| {
            arch().dispatch(
                #[inline(always)]
                || {
                    for (line, out) in out.chunks_exact_mut(columns).enumerate() {
                        let row = piece * lines + line;
                        let data = &data[row * 4 * words..][..columns];
                        if params.inner == 0 && params.channels > 1 {
                            let each = data.iter().zip(out).zip(table);
                            each.for_each(|((&q, out), channel)| *out = dequantized(q, *channel));
                        } else {
                            let of_line = channel_of(row, params.channels, params.inner);
                            dequantize_run(data, out, channel(table, of_line));
                        }
                    }
                },
            );
        });
    })
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

/// An output that tasks write disjoint parts of.
#[derive(Clone, Copy)]
struct Target(*mut u32);

// SAFETY: tasks write disjoint parts of memory that is borrowed for the launch.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

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
struct Weaver {
    target: Target,
    len: usize,
    steps: usize,
    n: usize,
}

impl Weaver {
    /// For factors of so many columns, one after the other in `out`.
    fn new(out: &mut [u32], steps: usize, n: usize) -> Self {
        Self { target: Target(out.as_mut_ptr()), len: out.len(), steps, n }
    }

    /// Weaves a step of a factor, of lines that are as long as it has columns, or empty for zeros.
    ///
    /// # Safety
    /// The memory is still borrowed, and nobody else weaves this step of this factor at the same time.
    unsafe fn weave(&self, factor: usize, step: usize, lines: [&[u8]; 4]) {
        let zeros = [0; PANEL];
        for (panel, start) in (0..self.n).step_by(PANEL).enumerate() {
            let end = (start + PANEL).min(self.n);
            let mut last = [[0; PANEL]; 4];
            let at = ((factor * self.n.div_ceil(PANEL) + panel) * self.steps + step) * PANEL;
            assert!(step < self.steps && at + PANEL <= self.len, "a step is inside its factor");
            let rows: [&[u8; PANEL]; 4] = {
                let mut lasts = last.iter_mut();
                lines.map(|line| match line.get(start..end).map(|part| (part, <&[u8; PANEL]>::try_from(part))) {
                    Some((_, Ok(row))) => row,
                    Some((part, Err(_))) => match lasts.next() {
                        Some(row) => {
                            row[..part.len()].copy_from_slice(part);
                            &*row
                        }
                        None => &zeros,
                    },
                    None => &zeros,
                })
            };
            // SAFETY: just found to be inside, and nobody else's, as the caller says.
            let out = unsafe { std::slice::from_raw_parts_mut(self.target.0.add(at), PANEL) };
            arch().dispatch(
                #[inline(always)]
                || {
                    for (j, out) in out.iter_mut().enumerate() {
                        let four = [rows[0][j], rows[1][j], rows[2][j], rows[3][j]];
                        *out = u32::from_le_bytes(four) ^ FLIP;
                    }
                },
            );
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
            arch().dispatch(
                #[inline(always)]
                || {
                    if !woven {
                        return out.iter_mut().zip(data.chunks_exact(steps)).for_each(|(sum, line)| *sum = line_sum(line));
                    }
                    for (out, panel) in out.chunks_exact_mut(PANEL).zip(data.chunks_exact(PANEL * steps)) {
                        out.fill(0);
                        for row in panel.chunks_exact(PANEL) {
                            out.iter_mut().zip(row).for_each(|(sum, &word)| *sum += word_sum(word ^ FLIP));
                        }
                    }
                },
            );
        });
    })
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
