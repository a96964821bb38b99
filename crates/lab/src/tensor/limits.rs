//! What the machine's memory allows, plain copies and plain reads, and what the standard library's functions do: all on all
//! threads.

use std::hint::black_box;

use memmap2::MmapMut;
use rayon::prelude::*;

use super::Effort;
use crate::{
    Error, Result,
    gpu::numbers,
    measure::{Metric, Side, each_timed, warm_up},
};

/// Memory on large pages where the system has them, as the buffers of the CPU device are: a limit that is measured on
/// slower memory would be none.
struct Pages(MmapMut);

impl Pages {
    fn new(elements: usize) -> Result<Self> {
        let failed = |error: std::io::Error| Error::System(error.to_string());
        let mut pages = MmapMut::map_anon(4 * elements).map_err(failed)?;
        #[cfg(target_os = "linux")]
        let _ = pages.advise(memmap2::Advice::HugePage); // a system without them has no faster memory either
        pages.copy_from_slice(bytemuck::cast_slice(&numbers(elements, 1)));
        Ok(Self(pages))
    }
}

/// One piece for each thread: large ones are copied past the caches.
fn piece(bytes: usize) -> usize {
    bytes.div_ceil(rayon::current_num_threads()).next_multiple_of(4096)
}

/// Copies an array to another. Bytes read and bytes written both count.
pub(super) fn copy(effort: &Effort, elements: usize) -> Side {
    let effort = effort.clone();
    Side::new("copy", move || {
        let (from, mut to) = (Pages::new(elements)?, Pages::new(elements)?);
        let piece = piece(from.0.len());
        rate(&effort, 8 * elements, || {
            let pieces = to.0.par_chunks_mut(piece).zip(from.0.par_chunks(piece));
            pieces.for_each(|(to, from)| to.copy_from_slice(from));
            black_box(&mut to.0);
        })
    })
}

/// Reads an array, and adds its words up, since something has to be done with them.
pub(super) fn read(effort: &Effort, elements: usize) -> Side {
    let effort = effort.clone();
    Side::new("read", move || {
        let from = Pages::new(elements)?;
        let piece = piece(from.0.len());
        rate(&effort, 4 * elements, || {
            black_box(from.0.par_chunks(piece).map(words).reduce(|| 0, u64::wrapping_add));
        })
    })
}

/// The standard library's functions, one number at a time.
pub(super) fn functions(effort: &Effort, elements: usize) -> Side {
    let effort = effort.clone();
    Side::new("std", move || {
        let functions =
            [("exp", f32::exp as fn(f32) -> f32), ("tanh", f32::tanh), ("sigmoid", |x| 1.0 / (1.0 + (-x).exp()))];
        let (from, mut to) = (numbers(elements, 1), vec![0f32; elements]);
        let piece = elements.div_ceil(rayon::current_num_threads());
        let mut metrics = Vec::new();
        for (name, function) in functions {
            let mut timed = rate(&effort, 8 * elements, || {
                let pieces = to.par_chunks_mut(piece).zip(from.par_chunks(piece));
                pieces.for_each(|(to, from)| to.iter_mut().zip(from).for_each(|(to, from)| *to = function(*from)));
                black_box(&mut to);
            })?;
            timed.iter_mut().for_each(|metric| metric.case = name.into());
            metrics.append(&mut timed);
        }
        Ok(metrics)
    })
}

/// The sum of words, in many sums so that no addition waits for another.
fn words(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 32];
    let lines = bytemuck::cast_slice::<u8, u64>(bytes).chunks_exact(32);
    let rest = lines.remainder().iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
    for line in lines {
        for (sum, word) in sums.iter_mut().zip(line) {
            *sum = sum.wrapping_add(*word);
        }
    }
    sums.into_iter().fold(rest, u64::wrapping_add)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read() {
        let bytes: Vec<u64> = (0..1003).collect();
        assert_eq!(words(bytemuck::cast_slice(&bytes)), 1002 * 1003 / 2);
    }
}
