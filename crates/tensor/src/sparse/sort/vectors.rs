//! What sorting in vectors has in common, whichever they are.

use std::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};

use super::{SHORT, by_digits, index, pack, post_increment, value};

/// How many entries ahead the places of entries are asked for, so that they are near when they are written.
const AHEAD: usize = 24;
/// Entries behind the last one, so that vectors may be loaded wherever a line begins.
const BEHIND: usize = SHORT;

/// Sorts every line of packed entries into indices and values. It is given pointers that rise to the number of entries, those
/// entries and [`BEHIND`] more that are nothing, and room for one more index and value than there are entries, and writes all
/// of these but the last.
pub(super) type SortLines = unsafe fn(&[u32], &mut [u64], *mut u32, *mut f32);

/// A vector to be filled in: `fill` writes all elements, and may write one more.
///
/// # Safety
/// `fill` has to write every element.
unsafe fn filled<T: Copy, R>(n: usize, fill: impl FnOnce(*mut T) -> R) -> (Vec<T>, R) {
    let mut room = Vec::with_capacity(n + 1);
    let result = fill(room.as_mut_ptr());
    // SAFETY: there is room for as many, and all of them were written.
    unsafe { room.set_len(n) };
    (room, result)
}

/// As [`super::sorted`].
///
/// # Safety
/// A line has as many places between its pointers as it has entries, and pointers begin with zero; the processor can do
/// `sort_lines`.
pub(super) unsafe fn sorted(
    pointers: &[u32],
    lines: &[u32],
    indices: &[u32],
    values: &[f32],
    sort_lines: SortLines,
) -> (Vec<u32>, Vec<f32>) {
    let n = values.len();
    let (lines, indices) = (&lines[..n], &indices[..n]);
    let mut next = pointers.to_vec();
    // SAFETY: a line's places are written one after the other, as many as it has; together they are all places there are.
    let (mut packed, ()) = unsafe {
        filled(n + BEHIND, |packed: *mut u64| {
            packed.add(n).write_bytes(0, BEHIND);
            for i in 0..n {
                let ahead = lines[(i + AHEAD).min(n - 1)] as usize;
                _mm_prefetch::<_MM_HINT_ET0>(packed.wrapping_add(next[ahead] as usize).cast());
                packed.add(post_increment(&mut next[lines[i] as usize])).write(pack(indices[i], values[i]));
            }
        })
    };
    drop(next);
    // SAFETY: lines are all that there is between the first pointer and the last, and all entries of a line are written.
    let (indices, (values, ())) = unsafe {
        filled(n, |indices: *mut u32| filled(n, |values: *mut f32| sort_lines(pointers, &mut packed, indices, values)))
    };
    (indices, values)
}

/// What every [`SortLines`] does: short lines, which have at least one entry, with `short`, which is told where the line's indices
/// and values go.
///
/// # Safety
/// As [`SortLines`] says, of `short` for a line and what is behind it.
#[inline(always)]
pub(super) unsafe fn each_line(
    pointers: &[u32],
    packed: &mut [u64],
    indices: *mut u32,
    values: *mut f32,
    short: impl Fn(&mut [u64], *mut u32, *mut f32),
) {
    let mut room = Vec::new();
    for ends in pointers.windows(2) {
        let (start, end) = (ends[0] as usize, ends[1] as usize);
        let line = &mut packed[start..end];
        // SAFETY: there is room for all lines.
        let (indices, values) = unsafe { (indices.add(start), values.add(start)) };
        match line.len() {
            0 => {}
            1..=SHORT => short(line, indices, values),
            _ => {
                by_digits(line, &mut room);
                // SAFETY: as above.
                unsafe { unpack(line, indices, values) };
            }
        }
    }
}

/// Writes the indices and values of sorted entries.
///
/// # Safety
/// There is room for as many.
#[inline]
pub(super) unsafe fn unpack(line: &[u64], indices: *mut u32, values: *mut f32) {
    for (i, &entry) in line.iter().enumerate() {
        // SAFETY: there is room.
        unsafe {
            indices.add(i).write(index(entry));
            values.add(i).write(value(entry));
        }
    }
}
