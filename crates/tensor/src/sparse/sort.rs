//! Entries in any order become lines with rising indices, in linear time.
//!
//! A counting sort puts the entries into their lines, index and value in one word, since it is the cache lines that cost;
//! then every line is sorted on its way to its place. Short lines are sorted by counting for each entry how many come before it, which is all vector
//! compares where the processor has AVX-512, and by insertion elsewhere; their length is bounded, so that is linear. Long
//! lines go through a radix sort. All of it is stable: entries of one place lie behind one another in the end, in the order
//! they came, and are summed.

use super::compressed::Compressed;

/// The longest line that is short.
const SHORT: usize = 32;
/// Bits of a digit of the radix sort.
const DIGIT: u32 = 8;

/// Entries by line, sorted and without duplicates. `lines` and `indices` are as long as `values`, and in range.
pub(super) fn compress(line_count: usize, across: usize, lines: &[u32], indices: &[u32], values: &[f32]) -> Compressed {
    let pointers = counted(line_count, lines);
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
    let (mut to_indices, mut to_values) = (vec![0u32; values.len()], vec![0f32; values.len()]);
    let doubles = sort_lines(&pointers, &packed, &mut to_indices, &mut to_values);
    let mut result = Compressed { lines: line_count, across, pointers, indices: to_indices, values: to_values };
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

/// Sorts every line; says which lines have an index twice.
fn sort_lines(pointers: &[u32], packed: &[u64], indices: &mut [u32], values: &mut [f32]) -> Vec<usize> {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has these instructions.
        return unsafe { avx512::sort_lines(pointers, packed, indices, values) };
    }
    each_line(pointers, packed, indices, values, by_insertion)
}

#[inline(always)]
fn each_line(
    pointers: &[u32],
    packed: &[u64],
    indices: &mut [u32],
    values: &mut [f32],
    short: impl Fn(&[u64], &mut [u32], &mut [f32]) -> bool,
) -> Vec<usize> {
    let (mut room, mut doubles) = (Vec::new(), Vec::new());
    for (line, ends) in pointers.windows(2).enumerate() {
        let range = ends[0] as usize..ends[1] as usize;
        let (packed, indices, values) = (&packed[range.clone()], &mut indices[range.clone()], &mut values[range]);
        let is_short = packed.len() <= SHORT;
        if if is_short { short(packed, indices, values) } else { by_digits(packed, indices, values, &mut room) } {
            doubles.push(line);
        }
    }
    doubles
}

fn unpack(packed: u64) -> (u32, f32) {
    ((packed >> 32) as u32, f32::from_bits(packed as u32))
}

fn by_insertion(packed: &[u64], indices: &mut [u32], values: &mut [f32]) -> bool {
    let mut doubles = false;
    for (i, (index, value)) in packed.iter().copied().map(unpack).enumerate() {
        let mut at = i;
        while at > 0 && indices[at - 1] > index {
            (indices[at], values[at]) = (indices[at - 1], values[at - 1]);
            at -= 1;
        }
        doubles |= at > 0 && indices[at - 1] == index;
        (indices[at], values[at]) = (index, value);
    }
    doubles
}

/// A radix sort from the least significant digit.
fn by_digits(packed: &[u64], indices: &mut [u32], values: &mut [f32], room: &mut Vec<u64>) -> bool {
    room.clear();
    room.extend_from_slice(packed);
    let mut other = packed.to_vec();
    let highest = (packed.iter().fold(0, |most, &entry| most.max(entry)) >> 32) as u32;
    for shift in (0..u32::BITS - highest.leading_zeros()).step_by(DIGIT as usize) {
        let digit = |entry: u64| (entry >> (32 + shift)) as usize & ((1 << DIGIT) - 1);
        let mut next = [0u32; (1 << DIGIT) + 1];
        room.iter().for_each(|&entry| next[digit(entry) + 1] += 1);
        sum_up(&mut next);
        room.iter().for_each(|&entry| other[post_increment(&mut next[digit(entry)])] = entry);
        std::mem::swap(room, &mut other);
    }
    for ((index, value), &entry) in indices.iter_mut().zip(values).zip(&*room) {
        (*index, *value) = unpack(entry);
    }
    indices.windows(2).any(|pair| pair[0] == pair[1])
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

    use super::{SHORT, each_line, unpack};

    #[target_feature(enable = "avx512f,popcnt")]
    pub(super) fn sort_lines(pointers: &[u32], packed: &[u64], indices: &mut [u32], values: &mut [f32]) -> Vec<usize> {
        each_line(pointers, packed, indices, values, |packed, indices, values| match packed.len() {
            ..=16 => by_rank::<1>(packed, indices, values),
            _ => by_rank::<2>(packed, indices, values),
        })
    }

    /// The upper halves of up to sixteen words.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn upper_halves(words: &[u64]) -> __m512i {
        let (low, high) = words.split_at(words.len().min(8));
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
    fn by_rank<const VECTORS: usize>(packed: &[u64], indices: &mut [u32], values: &mut [f32]) -> bool {
        let n = packed.len();
        assert!(n <= 16 * VECTORS && n <= SHORT && indices.len() == n && values.len() == n);
        let present = ((1u64 << n) - 1) as u32;
        let mut keys = [_mm512_setzero_si512(); VECTORS];
        for (keys, words) in keys.iter_mut().zip(packed.chunks(16)) {
            *keys = upper_halves(words);
        }
        let mut equals = 0;
        for (i, &entry) in packed.iter().enumerate() {
            let (index, value) = unpack(entry);
            let key = _mm512_set1_epi32(index as i32);
            let (mut smaller, mut equal) = (0u32, 0u32);
            for (v, &keys) in keys.iter().enumerate() {
                smaller |= u32::from(_mm512_cmplt_epu32_mask(keys, key)) << (16 * v);
                equal |= u32::from(_mm512_cmpeq_epu32_mask(keys, key)) << (16 * v);
            }
            let before = equal & ((1u32 << i) - 1);
            equals |= before;
            let rank = ((smaller & present).count_ones() + before.count_ones()) as usize;
            (indices[rank], values[rank]) = (index, value);
        }
        equals != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Sort<'a> = &'a dyn Fn(&[u64], &mut [u32], &mut [f32]) -> bool;

    #[test]
    fn every_way_to_sort_a_line_is_stable_and_sees_doubles() {
        let mut state = 1u32;
        let mut random = |below: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % below
        };
        for n in (0..=SHORT).chain([33, 100, 1000]) {
            for below in [3, 20, 1 << 24] {
                let indices: Vec<u32> = (0..n).map(|_| random(below) << (below % 8)).collect();
                let mut want: Vec<(u32, f32)> = indices.iter().copied().zip((0..n).map(|i| i as f32)).collect();
                want.sort_by_key(|entry| entry.0);
                let doubles = want.windows(2).any(|pair| pair[0].0 == pair[1].0);
                let pack = |(i, &index): (usize, &u32)| u64::from(index) << 32 | u64::from((i as f32).to_bits());
                let packed: Vec<u64> = indices.iter().enumerate().map(pack).collect();
                let check = |sort: Sort<'_>| {
                    let (mut indices, mut values) = (vec![0; n], vec![0.0; n]);
                    assert_eq!(sort(&packed, &mut indices, &mut values), doubles, "{n} below {below}");
                    assert_eq!(indices.into_iter().zip(values).collect::<Vec<_>>(), want);
                };
                check(&|packed, indices, values| !sort_lines(&[0, n as u32], packed, indices, values).is_empty());
                check(&by_insertion);
                check(&|packed, indices, values| by_digits(packed, indices, values, &mut Vec::new()));
            }
        }
    }
}
