//! Entries in any order become lines with rising indices, in linear time.
//!
//! A radix sort from the least significant digit: first the digits of the index across, then the line, whose counts are
//! the pointers. Every pass is stable, so entries of one place lie behind one another in the end, in the order they came,
//! and are summed in the last pass.

use super::compressed::Compressed;

/// The most bits of a digit: its counts stay in the nearest cache.
const DIGIT: u32 = 14;

#[derive(Clone, Copy)]
struct Entry {
    line: u32,
    index: u32,
    value: f32,
}

/// Entries by line, sorted and without duplicates. `lines` and `indices` are as long as `values`, and in range.
pub(super) fn compress(line_count: usize, across: usize, lines: &[u32], indices: &[u32], values: &[f32]) -> Compressed {
    let key = |i: usize| u64::from(lines[i]) << 32 | u64::from(indices[i]);
    let mut pointers = counted(line_count, lines);
    if (1..values.len()).all(|i| key(i - 1) < key(i)) {
        let (indices, values) = (indices.to_vec(), values.to_vec());
        return Compressed { lines: line_count, across, pointers, indices, values };
    }
    let sorted = by_index(across, lines, indices, values);
    let mut next = pointers[..line_count].to_vec();
    let (mut out_indices, mut out_values) = (vec![0u32; values.len()], vec![0f32; values.len()]);
    let mut doubles = 0;
    for entry in sorted {
        let line = entry.line as usize;
        let at = next[line] as usize;
        if at > pointers[line] as usize && out_indices[at - 1] == entry.index {
            out_values[at - 1] += entry.value;
            doubles += 1;
        } else {
            (out_indices[at], out_values[at]) = (entry.index, entry.value);
            next[line] += 1;
        }
    }
    if doubles > 0 {
        close_gaps(&mut pointers, &next, &mut out_indices, &mut out_values);
    }
    Compressed { lines: line_count, across, pointers, indices: out_indices, values: out_values }
}

/// How many entries lie before each line.
fn counted(line_count: usize, lines: &[u32]) -> Vec<u32> {
    let mut pointers = vec![0u32; line_count + 1];
    lines.iter().for_each(|&line| pointers[line as usize + 1] += 1);
    sum_up(&mut pointers);
    pointers
}

/// Counts become their sums, each inclusive.
pub(super) fn sum_up(counts: &mut [u32]) {
    let mut sum = 0;
    for count in counts {
        sum += *count;
        *count = sum;
    }
}

/// All entries in the order of their indices.
fn by_index(across: usize, lines: &[u32], indices: &[u32], values: &[f32]) -> Vec<Entry> {
    let bits = (usize::BITS - across.saturating_sub(1).leading_zeros()).max(1);
    let passes = bits.div_ceil(DIGIT);
    let digit = bits.div_ceil(passes);
    let entries = || {
        let zipped = lines.iter().zip(indices).zip(values);
        zipped.map(|((&line, &index), &value)| Entry { line, index, value })
    };
    let mut sorted = vec![Entry { line: 0, index: 0, value: 0.0 }; values.len()];
    scatter(entries(), 0, digit, &mut sorted);
    let mut room = Vec::new();
    for pass in 1..passes {
        room.resize(sorted.len(), Entry { line: 0, index: 0, value: 0.0 });
        scatter(sorted.iter().copied(), pass * digit, digit, &mut room);
        std::mem::swap(&mut sorted, &mut room);
    }
    sorted
}

/// Puts entries into the order of one digit of their indices.
fn scatter(entries: impl Iterator<Item = Entry> + Clone, shift: u32, bits: u32, to: &mut [Entry]) {
    let digit = |entry: &Entry| (entry.index >> shift) as usize & ((1 << bits) - 1);
    let mut next = vec![0u32; (1 << bits) + 1];
    entries.clone().for_each(|entry| next[digit(&entry) + 1] += 1);
    sum_up(&mut next);
    for entry in entries {
        let place = &mut next[digit(&entry)];
        to[*place as usize] = entry;
        *place += 1;
    }
}

/// Moves lines together that have become shorter: line `i` ends at `ends[i]`.
fn close_gaps(pointers: &mut [u32], ends: &[u32], indices: &mut Vec<u32>, values: &mut Vec<f32>) {
    let mut to = 0;
    for (line, &end) in ends.iter().enumerate() {
        let (start, end) = (pointers[line] as usize, end as usize);
        pointers[line] = to as u32;
        indices.copy_within(start..end, to);
        values.copy_within(start..end, to);
        to += end - start;
    }
    pointers[ends.len()] = to as u32;
    indices.truncate(to);
    values.truncate(to);
}
