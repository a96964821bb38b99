//! What the machine's memory allows: plain copies and plain reads, on all threads.

use std::hint::black_box;

use rayon::prelude::*;

use super::Effort;
use crate::{
    Result,
    gpu::numbers,
    measure::{Metric, Side, each_timed, warm_up},
};

/// Elements that a thread takes at a time.
const PIECE: usize = 1 << 18;

/// Copies an array to another. Bytes read and bytes written both count.
pub(super) fn copy(effort: &Effort, elements: usize) -> Side {
    let effort = effort.clone();
    Side::new("copy", move || {
        let (from, mut to) = (numbers(elements, 1), vec![0.0; elements]);
        rate(&effort, 8 * elements, || {
            let pieces = to.par_chunks_mut(PIECE).zip(from.par_chunks(PIECE));
            pieces.for_each(|(to, from)| to.copy_from_slice(from));
            black_box(&mut to);
        })
    })
}

/// Reads an array, and adds its words up, since something has to be done with them.
pub(super) fn read(effort: &Effort, elements: usize) -> Side {
    let effort = effort.clone();
    Side::new("read", move || {
        let from = numbers(elements, 1);
        rate(&effort, 4 * elements, || {
            let piece = |piece: &[f32]| {
                let words: &[u64] = bytemuck::cast_slice(piece);
                words.iter().fold(0u64, |sum, word| sum.wrapping_add(*word))
            };
            black_box(from.par_chunks(PIECE).map(piece).reduce(|| 0, u64::wrapping_add));
        })
    })
}

fn rate(effort: &Effort, bytes: usize, mut work: impl FnMut()) -> Result<Vec<Metric>> {
    let mut work = || {
        work();
        Ok(())
    };
    warm_up(effort.turn / 4, &mut work)?;
    let times = each_timed(effort.turn, work)?;
    Ok(vec![Metric::higher("", "GB/s", times.into_iter().map(|ns| bytes as f64 / ns).collect())])
}
