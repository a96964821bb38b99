use bytemuck::Pod;
use millrace_core::CpuKernel;

use super::{CopyParams, PadParams};
use crate::cpu::{PIECE, pieces, source::gather, worth_threads};

/// A transposition is done in tiles: a cache line of the output wide, some lines of the input high. Every line is read
/// and written once.
const TILE: [usize; 2] = [64, 16];

pub(crate) fn copy<T: Pod + Send + Sync>() -> CpuKernel {
    CpuKernel::whole(|launch| {
        let params = launch.params::<CopyParams>();
        let (x, out) = (launch.input::<T>(0), &mut launch.output::<T>(1)[..params.n as usize]);
        let rank = params.rank as usize;
        let (shape, strides) = (&params.shape[..rank], &params.strides[..rank]);
        let parallel = worth_threads(launch.threads(), out.len() as f64 * 0.6);
        // The last two axes exchanged, as `t` leaves them.
        if let ([.., rows, columns], [.., 1, stride]) = (shape, strides)
            && *stride > 1
            && *rows as usize >= TILE[0]
        {
            let (rows, columns, stride) = (*rows as usize, *columns as usize, *stride as usize);
            let outer = (&shape[..rank - 2], &strides[..rank - 2]);
            // A piece is some rows of one matrix.
            let strip = TILE[0] * columns;
            let per_matrix = rows.div_ceil(TILE[0]);
            if rows.is_multiple_of(TILE[0]) || out.len() == rows * columns {
                return pieces(launch.threads(), parallel, out, strip, |piece, out| {
                    let (matrix, row) = (piece / per_matrix, piece % per_matrix * TILE[0]);
                    let base = place(outer.0, outer.1, params.offset as usize, matrix);
                    transpose(&x[base + row..], stride, out, columns);
                });
            }
        }
        pieces(launch.threads(), parallel, out, PIECE, |piece, out| {
            gather(x, shape, strides, params.offset as usize, piece * PIECE, out);
        });
    })
}

/// Where element `n` of a shape is.
fn place(shape: &[u32], strides: &[i32], offset: usize, mut n: usize) -> usize {
    let mut place = offset as isize;
    for (&dim, &stride) in shape.iter().zip(strides).rev() {
        place += (n % dim as usize) as isize * stride as isize;
        n /= dim as usize;
    }
    place as usize
}

/// Rows of `out`, at most a tile of them, are columns of `x`, whose rows are `stride` apart.
fn transpose<T: Pod>(x: &[T], stride: usize, out: &mut [T], columns: usize) {
    let rows = out.len() / columns;
    let mut tile = [[T::zeroed(); TILE[0]]; TILE[1]];
    for start in (0..columns).step_by(TILE[1]) {
        let width = TILE[1].min(columns - start);
        for (column, line) in tile[..width].iter_mut().enumerate() {
            line[..rows].copy_from_slice(&x[(start + column) * stride..][..rows]);
        }
        for (row, out) in out.chunks_exact_mut(columns).enumerate() {
            let out = &mut out[start..start + width];
            out.iter_mut().zip(&tile).for_each(|(out, line)| *out = line[row]);
        }
    }
}

pub(crate) fn pad<T: Pod + Send + Sync>(value: fn([u32; 2]) -> T) -> CpuKernel {
    CpuKernel::whole(move |launch| {
        let params = launch.params::<PadParams>();
        let (x, out) = (launch.input::<T>(0), &mut launch.output::<T>(1)[..params.n as usize]);
        let (around, last) = (value(params.value), params.rank as usize - 1);
        let (columns, before, inside) =
            (params.shape[last] as usize, params.before[last] as usize, params.inside[last] as usize);
        let stride = params.strides[last] as isize;
        let rows_per_piece = (PIECE / columns).max(1);
        let parallel = worth_threads(launch.threads(), out.len() as f64 * 0.6);
        pieces(launch.threads(), parallel, out, rows_per_piece * columns, |piece, out| {
            for (row, out) in out.chunks_exact_mut(columns).enumerate() {
                let Some(place) = row_place(&params, last, piece * rows_per_piece + row) else {
                    out.fill(around);
                    continue;
                };
                out[..before].fill(around);
                out[before + inside..].fill(around);
                for (i, out) in out[before..before + inside].iter_mut().enumerate() {
                    *out = x[(place + i as isize * stride) as usize];
                }
            }
        });
    })
}

/// Where the input of an output row begins; none if all of the row is around it.
fn row_place(params: &PadParams, last: usize, mut row: usize) -> Option<isize> {
    let mut place = params.offset as isize;
    for axis in (0..last).rev() {
        let at = (row % params.shape[axis] as usize).checked_sub(params.before[axis] as usize)?;
        if at >= params.inside[axis] as usize {
            return None;
        }
        place += at as isize * params.strides[axis] as isize;
        row /= params.shape[axis] as usize;
    }
    Some(place)
}
