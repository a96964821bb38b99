//! Lines of two matrices of one shape become one: those of a sum, or in another order.

use std::ops::Range;

use super::sort::{post_increment, sum_up};

/// A matrix's arrays: those of a matrix on the host, or of one on the CPU device.
#[derive(Clone, Copy)]
pub(crate) struct Lines<'a> {
    pub(crate) pointers: &'a [u32],
    pub(crate) indices: &'a [u32],
    pub(crate) values: &'a [f32],
}

impl<'a> Lines<'a> {
    fn line(&self, line: usize) -> (&'a [u32], &'a [f32]) {
        let range = self.pointers[line] as usize..self.pointers[line + 1] as usize;
        (&self.indices[range.clone()], &self.values[range])
    }

    /// Entries of some lines.
    pub(crate) fn entries(&self, lines: &Range<usize>) -> usize {
        self.pointers[lines.end] as usize - self.pointers[lines.start] as usize
    }
}

/// Merges some lines of both, entries of one place summed. The targets have room for the entries of both; how many came is
/// written for each line and comes back for all.
pub(crate) fn add(
    a: &Lines<'_>,
    b: &Lines<'_>,
    lines: Range<usize>,
    counts: &mut [u32],
    indices: &mut [u32],
    values: &mut [f32],
) -> usize {
    let mut at = 0;
    for (line, count) in lines.zip(counts) {
        let written = add_line(a.line(line), b.line(line), &mut indices[at..], &mut values[at..]);
        *count = written as u32;
        at += written;
    }
    at
}

/// One line. Which of both comes next is not to be guessed, so there are no branches on that.
#[inline]
fn add_line((a, av): (&[u32], &[f32]), (b, bv): (&[u32], &[f32]), indices: &mut [u32], values: &mut [f32]) -> usize {
    // Matrices that are added have often the same places.
    if a == b {
        indices[..a.len()].copy_from_slice(a);
        let values = values[..a.len()].iter_mut();
        values.zip(av).zip(bv).for_each(|((to, x), y)| *to = x + y);
        return a.len();
    }
    let (mut i, mut j, mut at) = (0, 0, 0);
    while i < a.len() && j < b.len() {
        let (left, right, x, y) = (a[i], b[j], av[i], bv[j]);
        indices[at] = left.min(right);
        let only = |condition: bool, value: f32| value.to_bits() & 0u32.wrapping_sub(u32::from(condition));
        let either = only(left < right, x) | only(right < left, y);
        values[at] = f32::from_bits(either | only(left == right, x + y));
        (i, j, at) = (i + usize::from(left <= right), j + usize::from(right <= left), at + 1);
    }
    for (rest, rest_values) in [(&a[i..], &av[i..]), (&b[j..], &bv[j..])] {
        for (&index, &value) in rest.iter().zip(rest_values) {
            (indices[at], values[at]) = (index, value);
            at += 1;
        }
    }
    at
}

/// The same entries, stored by what was across. A counting sort: lines come in order, so they stay in order. There is a
/// pointer more than what is across.
pub(crate) fn turn(from: &Lines<'_>, pointers: &mut [u32], indices: &mut [u32], values: &mut [f32]) {
    pointers.fill(0);
    from.indices.iter().for_each(|&index| pointers[index as usize + 1] += 1);
    sum_up(pointers);
    let mut next = pointers[..pointers.len() - 1].to_vec();
    for number in 0..from.pointers.len() - 1 {
        let (across, of_line) = from.line(number);
        for (&index, &value) in across.iter().zip(of_line) {
            let at = post_increment(&mut next[index as usize]);
            (indices[at], values[at]) = (number as u32, value);
        }
    }
}
