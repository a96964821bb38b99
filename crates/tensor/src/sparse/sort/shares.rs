//! Threads that sort entries together.
//!
//! Each has a range of lines: it looks at the lines of all entries, takes note of those that are its own, and does everything
//! else with these alone. So nobody waits for anybody, and no two write to the same cache line again and again. Looking costs
//! a small part of what sorting does.

use std::{
    ops::Range,
    sync::{LazyLock, Mutex, Once, OnceLock, PoisonError},
    thread,
};

use millrace_ring::Crew;

use super::{SortLines, doubled, pack, post_increment, sort_lines};
#[cfg(target_arch = "x86_64")]
use crate::Simd;
use crate::cpu::{scratch::Scratch, stream::prefetch_at};

/// Entries for each thread at least: below, starting it takes longer than what it does.
const WORTH: usize = 32 * 1024;
/// The most threads, as each looks at all entries.
const MOST: usize = 8;
/// Entries that are looked at to find ranges of lines with about as many entries each.
const SAMPLE: usize = 256;
/// How many entries ahead the places of entries are asked for, so that they are near when they are written.
const AHEAD: usize = 24;

/// Entries of others that are noted in vain: a vector of them.
const MORE: usize = 8;

/// Packed entries and what else is needed while they are sorted. New memory would cost more than sorting does.
static SCRATCH: Scratch<u64> = Scratch::new();

/// Entries in any order.
#[derive(Clone, Copy)]
pub(super) struct Entries<'a> {
    pub(super) lines: &'a [u32],
    pub(super) indices: &'a [u32],
    pub(super) values: &'a [f32],
}

/// Some lines, and where they end, which is to be found.
struct Share<'a> {
    lines: Range<usize>,
    ends: &'a mut [u32],
    /// Whether there are none behind them.
    last: bool,
}

/// Arrays that threads write disjoint parts of.
struct Target {
    indices: *mut u32,
    values: *mut f32,
}

// SAFETY: every thread writes the entries of its own lines.
unsafe impl Sync for Target {}

/// Threads that help whoever sorts, started when they are first needed: to start one takes a third of what it does. They
/// sleep in between.
fn crew(threads: usize) -> &'static Crew {
    static CREW: LazyLock<Crew> = LazyLock::new(Crew::new);
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        // If one cannot be started, its share is left to the others.
        let start = |n| thread::Builder::new().name(format!("millrace-sort-{n}")).spawn(|| CREW.serve());
        (1..threads).map(start).for_each(drop);
    });
    &CREW
}

impl Entries<'_> {
    /// Whether they are in order, and none is at another's place.
    pub(super) fn are_sorted(&self) -> bool {
        let key = |i: usize| u64::from(self.lines[i]) << 32 | u64::from(self.indices[i]);
        (1..self.values.len()).all(|i| key(i - 1) < key(i))
    }

    /// Indices and values, sorted by line and index, and the lines that have an index twice. Says where each line ends.
    pub(super) fn sort(&self, ends: &mut [u32], across: usize) -> (Vec<u32>, Vec<f32>, Vec<usize>) {
        static THREADS: OnceLock<usize> = OnceLock::new();
        let threads = *THREADS.get_or_init(|| thread::available_parallelism().map_or(1, Into::into).min(MOST));
        let shares = threads.min(self.values.len() / WORTH).max(1);
        self.sort_with((shares > 1).then(|| crew(threads)), shares, ends, across)
    }

    /// The same in so many shares, with threads that help.
    pub(super) fn sort_with(
        &self,
        crew: Option<&Crew>,
        shares: usize,
        ends: &mut [u32],
        across: usize,
    ) -> (Vec<u32>, Vec<f32>, Vec<usize>) {
        let n = self.values.len();
        let (mut indices, mut values) = (Vec::with_capacity(n), Vec::with_capacity(n));
        let (target, sort_lines) =
            (Target { indices: indices.as_mut_ptr(), values: values.as_mut_ptr() }, sort_lines(across));
        let (shares, doubles) = (Mutex::new(self.shares(ends, shares).into_iter()), Mutex::new(Vec::new()));
        let work = || {
            let next = || shares.lock().unwrap_or_else(PoisonError::into_inner).next();
            while let Some(share) = next() {
                // SAFETY: there is room for all entries, and the ways to sort are for this processor and these indices.
                let found = unsafe { share.sort(self, &target, sort_lines) };
                doubles.lock().unwrap_or_else(PoisonError::into_inner).extend(found);
            }
        };
        match crew {
            Some(crew) => crew.run(&work),
            None => work(),
        }
        // SAFETY: the shares have all lines, so every entry was written.
        unsafe {
            indices.set_len(n);
            values.set_len(n);
        }
        let mut doubles = doubles.into_inner().unwrap_or_else(PoisonError::into_inner);
        doubles.sort_unstable();
        (indices, values, doubles)
    }

    /// Ranges of lines with about as many entries each.
    fn shares<'e>(&self, ends: &'e mut [u32], count: usize) -> Vec<Share<'e>> {
        let mut cuts = vec![0];
        if count > 1 {
            let step = (self.lines.len() / SAMPLE).max(1);
            let mut sample: Vec<u32> = self.lines.iter().copied().step_by(step).collect();
            sample.sort_unstable();
            cuts.extend((1..count).map(|i| sample[i * sample.len() / count] as usize));
        }
        let last = ends.len();
        cuts.push(last);
        let mut rest = ends;
        let mut share = |cut: &[usize]| {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(cut[1] - cut[0]);
            rest = others;
            Share { lines: cut[0]..cut[1], ends: own, last: cut[1] == last }
        };
        cuts.windows(2).map(&mut share).collect()
    }
}

impl Share<'_> {
    /// Sorts the entries of its lines to their places; says which lines have an index twice.
    ///
    /// # Safety
    /// The target has room for all entries; `sort_lines` is for this processor and these indices.
    unsafe fn sort(mut self, all: &Entries<'_>, target: &Target, sort_lines: SortLines) -> Vec<usize> {
        let below = |limit: usize| match limit {
            0 => 0,
            limit => all.lines.iter().map(|&line| u32::from(line < limit as u32)).sum::<u32>() as usize,
        };
        let before = below(self.lines.start);
        let n = if self.last { all.lines.len() } else { below(self.lines.end) } - before;
        let (all_own, lines) = (n == all.lines.len(), self.ends.len().div_ceil(2));
        let noted = if all_own { 0 } else { (n + MORE).div_ceil(2) };
        SCRATCH.with(n + 2 * noted + lines, |room| {
            let (packed, room) = room.split_at_mut(n);
            let (numbers, room) = room.split_at_mut(noted);
            let (own, next) = room.split_at_mut(noted);
            let [numbers, own, next] = [numbers, own, next].map(bytemuck::cast_slice_mut::<u64, u32>);
            // SAFETY: numbers and lines are those of entries that are there and in these lines, `n` of them.
            unsafe {
                if all_own {
                    self.scatter(all, all.lines, |i| i, packed, next);
                } else {
                    note(all.lines, &self.lines, numbers, own);
                    self.scatter(all, &own[..n], |i| *numbers.get_unchecked(i) as usize, packed, next);
                }
            }
            // SAFETY: the scatter has said where lines end and written all entries; other shares have other places.
            let found = unsafe {
                let (indices, values) = (target.indices.add(before), target.values.add(before));
                sort_lines(self.ends, packed, indices, values);
                doubled(self.ends, std::slice::from_raw_parts(indices, n))
            };
            self.ends.iter_mut().for_each(|end| *end += before as u32);
            found.into_iter().map(|line| self.lines.start + line).collect()
        })
    }

    /// Puts entries, each of which is the one of all that `of` says, into their lines, and finds out where these end.
    ///
    /// # Safety
    /// The entries are there and in these lines, and there is a place for each and a `next` for each line.
    #[inline(always)]
    unsafe fn scatter(
        &mut self,
        all: &Entries<'_>,
        lines: &[u32],
        of: impl Fn(usize) -> usize,
        packed: &mut [u64],
        next: &mut [u32],
    ) {
        let (n, first) = (lines.len(), self.lines.start);
        // SAFETY: the line is one of these.
        lines.iter().for_each(|&line| unsafe { *self.ends.get_unchecked_mut(line as usize - first) += 1 });
        let mut sum = 0;
        for (end, next) in self.ends.iter_mut().zip(&mut *next) {
            *next = sum;
            sum += *end;
            *end = sum;
        }
        for i in 0..n {
            // SAFETY: as above; a line has as many places as entries, and one behind the last of them is asked for at most.
            unsafe {
                let ahead = *lines.get_unchecked((i + AHEAD).min(n - 1)) as usize - first;
                prefetch_at(packed.as_ptr().wrapping_add(*next.get_unchecked(ahead) as usize));
                let (line, entry) = (*lines.get_unchecked(i) as usize - first, of(i));
                let entry = pack(*all.indices.get_unchecked(entry), *all.values.get_unchecked(entry));
                *packed.get_unchecked_mut(post_increment(next.get_unchecked_mut(line))) = entry;
            }
        }
    }
}

/// Notes the numbers and lines of entries whose lines are in a range.
///
/// # Safety
/// There is room for all of them and [`MORE`].
unsafe fn note(lines: &[u32], range: &Range<usize>, numbers: &mut [u32], own: &mut [u32]) {
    let (first, count, mut at) = (range.start as u32, range.len() as u32, 0);
    let mut done = 0;
    #[cfg(target_arch = "x86_64")]
    if Simd::in_use() >= Simd::Avx2 {
        // SAFETY: the processor has it; there is room.
        (done, at) = unsafe { super::avx2::note(lines, first, count, numbers, own) };
    }
    for (number, &line) in lines.iter().enumerate().skip(done) {
        // SAFETY: there is room for one more than are noted.
        unsafe {
            *numbers.get_unchecked_mut(at) = number as u32;
            *own.get_unchecked_mut(at) = line;
        }
        at += usize::from(line.wrapping_sub(first) < count);
    }
}
