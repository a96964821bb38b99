//! Entries in any order become lines with rising indices, in linear time.
//!
//! A counting sort puts the entries into their lines, index and value in one word, since it is the cache lines that cost;
//! then every line is sorted where it lies. Short lines are sorted by counting for each entry how many come before it,
//! which is all vector compares where the processor has AVX-512, and by insertion elsewhere; their length is bounded, so
//! that is linear. Long lines go through a radix sort. All of it is stable: entries of one place lie behind one another in
//! the end, in the order they came, and are summed.

use super::compressed::Compressed;

/// The longest line that is short.
const SHORT: usize = 32;
/// Bits of a digit of the radix sort.
const DIGIT: u32 = 8;

/// Entries by line, sorted and without duplicates. `lines` and `indices` are as long as `values`, and in range.
pub(super) fn compress(line_count: usize, across: usize, lines: &[u32], indices: &[u32], values: &[f32]) -> Compressed {
    let mut pointers = vec![0u32; line_count + 1];
    lines.iter().for_each(|&line| pointers[line as usize + 1] += 1);
    sum_up(&mut pointers);
    let key = |i: usize| u64::from(lines[i]) << 32 | u64::from(indices[i]);
    if (1..values.len()).all(|i| key(i - 1) < key(i)) {
        let (indices, values) = (indices.to_vec(), values.to_vec());
        return Compressed { lines: line_count, across, pointers, indices, values };
    }
    let mut next = pointers[..line_count].to_vec();
    let mut packed = vec![0u64; values.len()];
    for ((&line, &index), &value) in lines.iter().zip(indices).zip(values) {
        let at = post_increment(&mut next[line as usize]);
        packed[at] = u64::from(index) << 32 | u64::from(value.to_bits());
    }
    let doubles = sort_lines(&pointers, &mut packed);
    let indices = packed.iter().map(|&entry| index(entry)).collect();
    let values = packed.iter().map(|&entry| value(entry)).collect();
    let mut result = Compressed { lines: line_count, across, pointers, indices, values };
    sum_doubles(&mut result, &doubles);
    result
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

/// Sorts every line; says which lines have an index twice.
fn sort_lines(pointers: &[u32], packed: &mut [u64]) -> Vec<usize> {
    #[cfg(target_arch = "x86_64")]
    if crate::Simd::in_use() >= crate::Simd::Avx512 && std::arch::is_x86_feature_detected!("popcnt") {
        // SAFETY: the processor has these instructions.
        return unsafe { avx512::sort_lines(pointers, packed) };
    }
    each_line(pointers, packed, by_insertion)
}

#[inline(always)]
fn each_line(pointers: &[u32], packed: &mut [u64], short: impl Fn(&mut [u64]) -> bool) -> Vec<usize> {
    let (mut room, mut doubles) = (Vec::new(), Vec::new());
    for (number, ends) in pointers.windows(2).enumerate() {
        let line = &mut packed[ends[0] as usize..ends[1] as usize];
        if if line.len() <= SHORT { short(line) } else { by_digits(line, &mut room) } {
            doubles.push(number);
        }
    }
    doubles
}

/// As all of these: sorts a line, and says whether it has an index twice.
fn by_insertion(line: &mut [u64]) -> bool {
    let mut doubles = false;
    for i in 1..line.len() {
        let (entry, mut at) = (line[i], i);
        while at > 0 && index(line[at - 1]) > index(entry) {
            line[at] = line[at - 1];
            at -= 1;
        }
        doubles |= at > 0 && index(line[at - 1]) == index(entry);
        line[at] = entry;
    }
    doubles
}

/// A radix sort from the least significant digit.
fn by_digits(line: &mut [u64], room: &mut Vec<u64>) -> bool {
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
    line.windows(2).any(|pair| index(pair[0]) == index(pair[1]))
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
mod avx512 {
    use std::arch::x86_64::*;

    use super::{SHORT, each_line, index};

    #[target_feature(enable = "avx512f,popcnt")]
    pub(super) fn sort_lines(pointers: &[u32], packed: &mut [u64]) -> Vec<usize> {
        each_line(pointers, packed, |line| match line.len() {
            0 | 1 => false,
            2..=16 => by_rank::<1>(line),
            _ => by_rank::<2>(line),
        })
    }

    /// The indices of up to sixteen entries.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn indices(entries: &[u64]) -> __m512i {
        let (low, high) = entries.split_at(entries.len().min(8));
        let halves = |words: &[u64]| {
            let mask = ((1u32 << words.len().min(8)) - 1) as u8;
            // SAFETY: the mask has a bit for every word, at most eight; others are not touched.
            let words = unsafe { _mm512_maskz_loadu_epi64(mask, words.as_ptr().cast()) };
            _mm512_cvtepi64_epi32(_mm512_srli_epi64::<32>(words))
        };
        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(halves(low)), halves(high))
    }

    /// Puts every entry where it belongs: behind all that are smaller, and those that are equal and come before it.
    #[inline]
    #[target_feature(enable = "avx512f,popcnt")]
    fn by_rank<const VECTORS: usize>(line: &mut [u64]) -> bool {
        let n = line.len();
        assert!(n <= 16 * VECTORS && n <= SHORT);
        let present = ((1u64 << n) - 1) as u32;
        let mut keys = [_mm512_setzero_si512(); VECTORS];
        for (keys, entries) in keys.iter_mut().zip(line.chunks(16)) {
            *keys = indices(entries);
        }
        let mut old = [0u64; SHORT];
        old[..n].copy_from_slice(line);
        let mut equals = 0;
        for (i, &entry) in old[..n].iter().enumerate() {
            let key = _mm512_set1_epi32(index(entry) as i32);
            let (mut smaller, mut equal) = (0u32, 0u32);
            for (v, &keys) in keys.iter().enumerate() {
                smaller |= u32::from(_mm512_cmplt_epu32_mask(keys, key)) << (16 * v);
                equal |= u32::from(_mm512_cmpeq_epu32_mask(keys, key)) << (16 * v);
            }
            let before = equal & ((1u32 << i) - 1);
            equals |= before;
            line[((smaller & present).count_ones() + before.count_ones()) as usize] = entry;
        }
        equals != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_sort_a_line_is_stable_and_sees_doubles() {
        let mut state = 1u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        for n in (0..=SHORT).chain([33, 100, 1000]) {
            for below in [3, 20, 1 << 24] {
                let pack = |(i, index): (usize, u32)| u64::from(index) << 32 | u64::from((i as f32).to_bits());
                let line: Vec<u64> = (0..n).map(|i| pack((i, random(below) << (below % 8)))).collect();
                let mut want = line.clone();
                want.sort_by_key(|entry| index(*entry));
                let doubles = want.windows(2).any(|pair| index(pair[0]) == index(pair[1]));
                let check = |sort: &dyn Fn(&mut [u64]) -> bool| {
                    let mut line = line.clone();
                    assert_eq!(sort(&mut line), doubles, "{n} below {below}");
                    assert_eq!(line, want);
                };
                check(&by_insertion);
                check(&|line| by_digits(line, &mut Vec::new()));
                // And the best that this processor has.
                check(&|line| !sort_lines(&[0, line.len() as u32], line).is_empty());
            }
        }
    }
}
