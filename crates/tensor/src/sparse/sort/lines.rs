//! What all ways to sort lines have in common.

use super::{SHORT, by_digits, by_insertion, index, value};

/// Entries that have to be behind a short line, so that vectors may be loaded and stored wherever one begins.
const BEHIND: usize = SHORT;

/// Sorts every line of packed entries into indices and values. It is given where lines end, which rises to the number of
/// entries, those entries, and room for as many indices and values, and writes all of these.
pub(super) type SortLines = unsafe fn(&[u32], &mut [u64], *mut u32, *mut f32);

/// What every [`SortLines`] does: short lines, which have at least one entry, with `short`, except at the end. It is given a line
/// and [`BEHIND`] entries behind it, how long it is without them, and where its indices and values go; behind these it may write
/// as many more as there are entries behind it, since lines that follow write over them.
///
/// # Safety
/// As [`SortLines`] says. `short` writes the indices and values of its line.
#[inline(always)]
pub(super) unsafe fn each_line(
    ends: &[u32],
    packed: &mut [u64],
    indices: *mut u32,
    values: *mut f32,
    short: impl Fn(&mut [u64], usize, *mut u32, *mut f32),
) {
    let mut room = Vec::new();
    let (mut start, all) = (0, packed.len());
    for &end in ends {
        let end = end as usize;
        // SAFETY: there is room for all lines.
        let (indices, values) = unsafe { (indices.add(start), values.add(start)) };
        match end - start {
            0 => {}
            n @ 1..=SHORT if end + BEHIND <= all => short(&mut packed[start..end + BEHIND], n, indices, values),
            n => {
                let line = &mut packed[start..end];
                if n <= SHORT {
                    by_insertion(line)
                } else {
                    by_digits(line, &mut room)
                }
                // SAFETY: as above.
                unsafe { unpack(line, indices, values) };
            }
        }
        start = end;
    }
}

/// The same, with short lines sorted where they lie.
///
/// # Safety
/// As [`SortLines`] says.
#[inline]
pub(super) unsafe fn each_sorted(
    ends: &[u32],
    packed: &mut [u64],
    indices: *mut u32,
    values: *mut f32,
    sort: impl Fn(&mut [u64]),
) {
    let short = |line: &mut [u64], n: usize, indices, values| {
        sort(&mut line[..n]);
        // SAFETY: there is room for the line.
        unsafe { unpack(&line[..n], indices, values) };
    };
    // SAFETY: as the caller vouches.
    unsafe { each_line(ends, packed, indices, values, short) };
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
