//! Entries in any order become lines with rising indices, in linear time.
//!
//! A counting sort puts the entries into their lines, index and value in one word, since it is the cache lines that cost;
//! then every line is sorted. In short lines it is counted for each entry how many come before it, which takes no branch that
//! a processor could guess wrong, eight entries at a time where it has AVX2. Where it has that or AVX-512, up to sixteen entries
//! are sorted in registers by a network of exchanges (Batcher's bitonic one). Their length is bounded, so all of that is
//! linear. Where indices are too large for the keys that this takes, short lines are sorted by insertion. Long lines go
//! through a radix sort. All of it is stable: entries of one place lie behind one another in the end, in the order they came,
//! and are summed. Many entries are shared by threads, each of which has lines of its own; see `shares.rs`.

use super::compressed::Compressed;
use lines::SortLines;
use shares::Entries;

/// The longest line that is short.
const SHORT: usize = 32;
/// Bits of a digit of the radix sort.
const DIGIT: u32 = 8;
/// Entries that are looked at together for an index that is there twice.
const STRETCH: usize = 128;

/// Entries by line, sorted and without duplicates. `lines` and `indices` are as long as `values`, and in range.
pub(super) fn compress(line_count: usize, across: usize, lines: &[u32], indices: &[u32], values: &[f32]) -> Compressed {
    let entries = Entries { lines, indices, values };
    let mut pointers = vec![0u32; line_count + 1];
    if entries.are_sorted() {
        lines.iter().for_each(|&line| pointers[line as usize + 1] += 1);
        sum_up(&mut pointers);
        let (indices, values) = (indices.to_vec(), values.to_vec());
        return Compressed { lines: line_count, across, pointers, indices, values };
    }
    let (indices, values, doubles) = entries.sort(&mut pointers[1..], across);
    let mut result = Compressed { lines: line_count, across, pointers, indices, values };
    sum_doubles(&mut result, &doubles);
    result
}

/// Lines that have an index twice, which then are neighbours. They end where `ends` says.
fn doubled(ends: &[u32], indices: &[u32]) -> Vec<usize> {
    let mut doubles = Vec::new();
    let mut look_at = |from: usize, pairs: std::slice::Windows<'_, u32>| {
        for at in pairs.enumerate().filter(|(_, pair)| pair[0] == pair[1]).map(|(i, _)| (from + i) as u32) {
            let line = ends.partition_point(|&end| end <= at);
            if at + 1 < ends[line] && doubles.last() != Some(&line) {
                doubles.push(line);
            }
        }
    };
    // Few have any, so stretches without are passed over at once.
    for from in (0..indices.len()).step_by(STRETCH) {
        let pairs = indices[from..indices.len().min(from + STRETCH + 1)].windows(2);
        if pairs.clone().fold(false, |any, pair| any | (pair[0] == pair[1])) {
            look_at(from, pairs);
        }
    }
    doubles
}

/// The best way to sort lines whose indices are below `across`.
fn sort_lines(across: usize) -> SortLines {
    #[cfg(target_arch = "x86_64")]
    if let Some(sort_lines) = in_vectors(across) {
        return sort_lines;
    }
    if across <= RANKED { ranked } else { inserted }
}

/// Lines whose indices are below [`RANKED`].
///
/// # Safety
/// As [`SortLines`] says.
unsafe fn ranked(ends: &[u32], packed: &mut [u64], indices: *mut u32, values: *mut f32) {
    let sort = |line: &mut [u64]| match line.len() {
        ..=8 => by_rank::<8>(line),
        9..=16 => by_rank::<16>(line),
        _ => by_rank::<SHORT>(line),
    };
    // SAFETY: as the caller vouches.
    unsafe { lines::each_sorted(ends, packed, indices, values, sort) };
}

/// Lines of any indices.
///
/// # Safety
/// As [`SortLines`] says.
unsafe fn inserted(ends: &[u32], packed: &mut [u64], indices: *mut u32, values: *mut f32) {
    // SAFETY: as the caller vouches.
    unsafe { lines::each_sorted(ends, packed, indices, values, by_insertion) };
}

/// How lines are sorted with the vectors that there are, if indices are small enough for them.
#[cfg(target_arch = "x86_64")]
fn in_vectors(across: usize) -> Option<SortLines> {
    use crate::Simd;
    match Simd::in_use() {
        Simd::Avx512 if std::arch::is_x86_feature_detected!("popcnt") && across <= avx512::ACROSS => {
            Some(avx512::sort_lines)
        }
        level if level >= Simd::Avx2 && across <= avx2::ACROSS => Some(avx2::sort_lines),
        _ => None,
    }
}

fn pack(index: u32, value: f32) -> u64 {
    u64::from(index) << 32 | u64::from(value.to_bits())
}

/// The next place, which is then taken. Before anything else is stored, or it would be loaded twice.
#[inline(always)]
pub(super) fn post_increment(next: &mut u32) -> usize {
    let at = *next;
    *next = at + 1;
    at as usize
}

/// Counts become their sums, each inclusive.
pub(super) fn sum_up(counts: &mut [u32]) {
    let mut sum = 0;
    for count in counts {
        sum += *count;
        *count = sum;
    }
}

fn index(entry: u64) -> u32 {
    (entry >> 32) as u32
}

fn value(entry: u64) -> f32 {
    f32::from_bits(entry as u32)
}

/// Indices below this leave room in a signed word for an entry's place in a short line.
const RANKED: usize = 1 << (31 - SHORT.ilog2());

/// As all of these: sorts a line. This one counts how many entries come before each, of `WIDTH` at most.
fn by_rank<const WIDTH: usize>(line: &mut [u64]) {
    let (mut keys, mut entries, mut ranks) = ([i32::MAX; WIDTH], [0; WIDTH], [0; WIDTH]);
    for (i, &entry) in line.iter().enumerate() {
        keys[i] = (index(entry) as i32) * SHORT as i32 + i as i32;
        entries[i] = entry;
    }
    for key in &keys[..line.len()] {
        for (rank, other) in ranks.iter_mut().zip(&keys) {
            *rank += i32::from(key < other);
        }
    }
    for (&rank, &entry) in ranks.iter().zip(&entries[..line.len()]) {
        line[rank as usize] = entry;
    }
}

/// By insertion.
fn by_insertion(line: &mut [u64]) {
    for i in 1..line.len() {
        let (entry, mut at) = (line[i], i);
        while at > 0 && index(line[at - 1]) > index(entry) {
            line[at] = line[at - 1];
            at -= 1;
        }
        line[at] = entry;
    }
}

/// A radix sort from the least significant digit.
fn by_digits(line: &mut [u64], room: &mut Vec<u64>) {
    let highest = index(line.iter().fold(0, |most, &entry| most.max(entry)));
    for shift in (0..u32::BITS - highest.leading_zeros()).step_by(DIGIT as usize) {
        let digit = |entry: u64| (index(entry) >> shift) as usize & ((1 << DIGIT) - 1);
        let mut next = [0u32; (1 << DIGIT) + 1];
        line.iter().for_each(|&entry| next[digit(entry) + 1] += 1);
        sum_up(&mut next);
        room.clear();
        room.extend_from_slice(line);
        room.iter().for_each(|&entry| line[post_increment(&mut next[digit(entry)])] = entry);
    }
}

/// Sums entries of one place in these lines, and moves what comes behind them up.
fn sum_doubles(matrix: &mut Compressed, doubles: &[usize]) {
    let Compressed { lines, pointers, indices, values, .. } = matrix;
    let Some(&first) = doubles.first() else { return };
    // Entries before this are where they belong.
    let mut to = pointers[first] as usize;
    for (&line, next) in doubles.iter().zip(doubles.iter().skip(1).copied().chain([*lines])) {
        let (start, end) = (pointers[line] as usize, pointers[line + 1] as usize);
        let first = to;
        for from in start..end {
            if to > first && indices[to - 1] == indices[from] {
                values[to - 1] += values[from];
            } else {
                (indices[to], values[to]) = (indices[from], values[from]);
                to += 1;
            }
        }
        // All lines up to the next that has doubles, at once.
        let (gone, behind) = ((end - to) as u32, pointers[next] as usize);
        pointers[line] = first as u32; // those from `next` on are still the old ones
        indices.copy_within(end..behind, to);
        values.copy_within(end..behind, to);
        pointers[line + 1..next].iter_mut().for_each(|pointer| *pointer -= gone);
        to += behind - end;
    }
    pointers[*lines] = to as u32;
    indices.truncate(to);
    values.truncate(to);
}

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod lines;
mod shares;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_sort_a_line_is_stable_and_doubles_are_seen() {
        let mut state = 1u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        // The last one is too many for registers.
        for (below, shift) in [(3, 0), (20, 3), (1 << 24, 0), (1 << 24, 4), (1 << 24, 7)] {
            let across = (below as usize) << shift;
            let (mut pointers, mut lines, mut indices) = (vec![0], Vec::new(), Vec::new());
            for n in (0..=SHORT as u32 + 2).chain([100, 1000]) {
                // The last index there can be is in every second line.
                indices
                    .extend((0..n).map(|i| if i == n / 2 && n % 2 == 0 { below - 1 } else { random(below) } << shift));
                lines.resize(indices.len(), pointers.len() as u32 - 1);
                pointers.push(indices.len() as u32);
            }
            let values: Vec<f32> = (0..indices.len()).map(|i| i as f32).collect();
            let (mut wanted, mut wanted_doubles) = (Vec::new(), Vec::new());
            for (number, ends) in pointers.windows(2).enumerate() {
                let range = ends[0] as usize..ends[1] as usize;
                let mut line: Vec<_> =
                    indices[range.clone()].iter().copied().zip(values[range].iter().copied()).collect();
                line.sort_by_key(|entry| entry.0);
                if line.windows(2).any(|pair| pair[0].0 == pair[1].0) {
                    wanted_doubles.push(number);
                }
                let packed: Vec<u64> = line.iter().map(|&(index, value)| pack(index, value)).collect();
                let by_rank = |line: &mut [u64]| match line.len() {
                    0..=8 => by_rank::<8>(line),
                    9..=16 => by_rank::<16>(line),
                    _ => by_rank::<SHORT>(line),
                };
                // Where it cannot be, another one is looked at twice.
                let ranked = across <= RANKED && line.len() <= SHORT;
                let first: &dyn Fn(&mut [u64]) = if ranked { &by_rank } else { &by_insertion };
                for sort in [first, &by_insertion, &|line| by_digits(line, &mut Vec::new())] {
                    let mut own: Vec<u64> = (0..line.len())
                        .map(|i| pack(indices[ends[0] as usize + i], values[ends[0] as usize + i]))
                        .collect();
                    sort(&mut own);
                    assert_eq!(own, packed);
                }
                wanted.extend(line);
            }
            // Entries of all lines mixed, those of each in their order; and the best that this processor has.
            let mut order: Vec<usize> = (0..indices.len()).collect();
            order.sort_by_key(|&i| (i as u32 - pointers[lines[i] as usize], lines[i]));
            let pick = |from: &[u32]| order.iter().map(|&i| from[i]).collect::<Vec<_>>();
            let mixed: Vec<f32> = order.iter().map(|&i| values[i]).collect();
            let (lines, indices) = (pick(&lines), pick(&indices));
            let entries = Entries { lines: &lines, indices: &indices, values: &mixed };
            let crew = millrace_ring::Crew::new();
            std::thread::scope(|scope| {
                scope.spawn(|| crew.serve());
                for shares in [1, 2, 5] {
                    let mut ends = vec![0; pointers.len() - 1];
                    let (got, got_values, doubles) = entries.sort_with(Some(&crew), shares, &mut ends, across);
                    let got: Vec<_> = got.into_iter().zip(got_values).collect();
                    assert_eq!((&got, &doubles), (&wanted, &wanted_doubles), "below {across}, {shares} shares");
                    assert_eq!(ends, pointers[1..]);
                }
                crew.dismiss();
            });
        }
    }
}
