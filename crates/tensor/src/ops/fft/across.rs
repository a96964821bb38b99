//! Lines across the lanes of vectors: neighbouring lines are transformed together, every one in its own lane.
//!
//! No number has to change its lane, so all instructions are of full width, whatever the radix. Lines that lie side by side
//! (columns) are split into real and imaginary parts while they are read for the first radix, and paired again while the
//! last one's are written: memory is gone through once. Lines that lie one behind the other are turned in registers.
//!
//! The radices go in Gentleman and Sande's order (decimation in frequency), in place; the last one knows where its
//! frequencies belong. Numbers that fit into the nearest cache are transformed to the end before the next ones.
//! A transform back is one forward of the conjugates, whose conjugates it gives.
//!
//! All that has vectors in it is always inlined into [`Vector::run`], where the compiler may use the instructions. There are
//! no closures with vectors therefore, which it need not inline.

use std::{f64::consts::TAU, ops::Range};

use super::{
    butterfly::{C, butterfly, mul},
    vector::Vector,
};
use crate::Simd;

/// Rows that are transformed to the end before others are begun: they are in the nearest cache.
const NEAR: usize = 256;
/// Floats of a cache line.
const CACHE_LINE: usize = 16;

/// The vectors that are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lanes {
    Avx2,
    Avx512,
}

impl Lanes {
    /// Those of a level, if it is wide enough to be faster than the library.
    pub(super) fn of(level: Simd) -> Option<Self> {
        match level {
            Simd::Avx512 => Some(Self::Avx512),
            Simd::Avx2 => Some(Self::Avx2),
            _ => None,
        }
    }

    /// Lines that are transformed together.
    pub(super) fn count(self) -> usize {
        match self {
            Self::Avx2 => 8,
            Self::Avx512 => 16,
        }
    }

    /// Complex numbers that a transform of length `n` needs.
    pub(super) fn room(self, n: usize) -> usize {
        self.count() * n + CACHE_LINE / 2
    }

    /// Transforms at most as many lines as there are lanes. See [`transform`].
    ///
    /// # Safety
    /// As there; `room` is as long as it has to be.
    pub(super) unsafe fn transform(self, plan: &Plan, work: &Work<'_>, room: &mut [num_complex::Complex32]) {
        assert!(room.len() >= self.room(plan.n), "a transform has its room");
        assert!(work.lanes <= self.count(), "every line has a lane");
        let room = room.as_mut_ptr().cast::<f32>();
        // SAFETY: there is a cache line more than is needed.
        let room = Room(unsafe { room.add(room.align_offset(4 * CACHE_LINE).min(CACHE_LINE)) });
        // SAFETY: the level was found in the processor, and the caller vouches for the rest.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            match self {
                Self::Avx2 => transform::<super::vector::Avx2>(plan, work, room),
                Self::Avx512 => transform::<super::vector::Avx512>(plan, work, room),
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = room;
    }
}

/// Where lines begin, and the floats between a line and the next, and between a number and the next.
#[derive(Clone, Copy)]
pub(super) struct Place<P> {
    pub(super) at: P,
    pub(super) line: isize,
    pub(super) step: isize,
}

/// What is to be done with some lines.
pub(super) struct Work<'a> {
    /// How many.
    pub(super) lanes: usize,
    pub(super) from: Place<*const f32>,
    pub(super) to: Place<*mut f32>,
    /// What frequencies are multiplied with: a number for every frequency of the first line, and one for every frequency
    /// and lane, real parts before imaginary ones.
    pub(super) roots: Option<(&'a [f32], &'a [f32])>,
    pub(super) scale: f32,
    pub(super) inverse: bool,
}

/// One radix.
struct Pass {
    radix: usize,
    /// How many numbers belong together: this radix and all after it.
    length: usize,
    /// The roots for every place in a part of them: those of all frequencies but the first.
    roots: Vec<f32>,
}

/// How lines of one length are transformed.
pub(super) struct Plan {
    pub(super) n: usize,
    passes: Vec<Pass>,
    /// For the last radix: the first of the frequencies, and where the numbers are that they come from. In the order of
    /// places that are in the nearest cache together, then in that of frequencies.
    parts: Vec<(u32, u32)>,
    /// Where a frequency is in the end.
    places: Vec<u32>,
}

/// The real and the imaginary part of a root of unity.
pub(super) fn root(k: usize, n: usize) -> [f32; 2] {
    let (sin, cos) = (-TAU * (k % n) as f64 / n as f64).sin_cos();
    [cos as f32, sin as f32]
}

/// The radices of a length, or none if it has other factors than two, three and five, or is one.
fn radices(n: usize) -> Option<Vec<usize>> {
    let (mut odd, mut rest) = (Vec::new(), n);
    for radix in [5, 3] {
        while rest > 1 && rest.is_multiple_of(radix) {
            odd.push(radix);
            rest /= radix;
        }
    }
    if n < 2 || !rest.is_power_of_two() {
        return None;
    }
    // Eights, with what is over in the first or last one. Columns are read and written by radices that are powers of two.
    let log = rest.trailing_zeros() as usize;
    let mut found = match (log, log % 3) {
        (0, _) => Vec::new(),
        (1, _) => vec![2],
        (_, 1) => [vec![8; log / 3 - 1], vec![16]].concat(),
        (_, 2) => [vec![4], vec![8; log / 3]].concat(),
        _ => vec![8; log / 3],
    };
    // Sixteen is a last one only.
    let at = usize::from(found.len() > 1);
    found.splice(at..at, odd);
    Some(found)
}

/// Whether lines of a length can be transformed here.
pub(super) fn fits(n: usize) -> bool {
    let mut rest = n.max(1);
    for factor in [2, 3, 5] {
        while rest.is_multiple_of(factor) {
            rest /= factor;
        }
    }
    n > 1 && rest == 1
}

impl Plan {
    /// None if the length does not fit.
    pub(super) fn new(n: usize) -> Option<Self> {
        let mut length = n;
        let mut passes = Vec::new();
        for radix in radices(n)? {
            let part = length / radix;
            let roots = (0..part).flat_map(|j| (1..radix).flat_map(move |p| root(j * p, length))).collect();
            passes.push(Pass { radix, length, roots });
            length = part;
        }
        let (last, others) = passes.split_last()?;
        let near = passes.iter().map(|pass| pass.length).find(|&length| length <= NEAR)?;
        let apart = n / last.radix;
        let place = |k: usize| {
            let (mut rest, mut at) = (k, 0);
            for pass in others {
                at += rest % pass.radix * (pass.length / pass.radix);
                rest /= pass.radix;
            }
            (k as u32, at as u32)
        };
        let mut parts: Vec<_> = (0..apart).map(place).collect();
        let places = (0..n).map(|k| parts[k % apart].1 + (k / apart) as u32).collect();
        parts.sort_by_key(|&(k, at)| (at as usize / near, k));
        Some(Self { n, passes, parts, places })
    }
}

/// Where a radix reads numbers.
trait Source<V: Vector>: Copy {
    /// The numbers of all lines in a row.
    ///
    /// # Safety
    /// There is such a row, and the processor has the instructions.
    unsafe fn get(self, row: usize) -> C<V>;
}

/// Where the last radix writes.
trait Sink<V: Vector>: Copy {
    /// Whether that is the place in the room.
    const IS_ROOM: bool = false;
    /// Frequency `k` of all lines, whose place in the room is `at`.
    ///
    /// # Safety
    /// There is such a frequency.
    unsafe fn put(self, k: usize, at: usize, value: C<V>);
}

/// Rows of a vector of real parts and one of imaginary parts.
#[derive(Clone, Copy)]
struct Room(*mut f32);

impl Room {
    #[inline(always)]
    fn row<V: Vector>(self, row: usize) -> *mut f32 {
        self.0.wrapping_add(row * 2 * V::LANES)
    }
}

impl<V: Vector> Source<V> for Room {
    #[inline(always)]
    unsafe fn get(self, row: usize) -> C<V> {
        let at = self.row::<V>(row);
        // SAFETY: the caller vouches for the row.
        unsafe { (V::load(at), V::load(at.add(V::LANES))) }
    }
}

impl<V: Vector> Sink<V> for Room {
    const IS_ROOM: bool = true;

    #[inline(always)]
    unsafe fn put(self, _: usize, at: usize, value: C<V>) {
        let at = self.row::<V>(at);
        // SAFETY: the caller vouches for the row.
        unsafe {
            value.0.store(at);
            value.1.store(at.add(V::LANES));
        }
    }
}

/// Columns, as they are in memory.
#[derive(Clone, Copy)]
struct Columns<V> {
    at: *const f32,
    step: isize,
    /// What imaginary parts are multiplied with.
    sign: V,
}

impl<V: Vector> Source<V> for Columns<V> {
    #[inline(always)]
    unsafe fn get(self, row: usize) -> C<V> {
        // SAFETY: the caller vouches for the row.
        let (re, im) = unsafe {
            let at = self.at.offset(row as isize * self.step);
            V::split(V::load(at), V::load(at.add(V::LANES)))
        };
        (re, im.mul(self.sign))
    }
}

/// The same to be written.
#[derive(Clone, Copy)]
struct ToColumns<V> {
    at: *mut f32,
    step: isize,
    /// What real and imaginary parts are multiplied with.
    scale: C<V>,
}

impl<V: Vector> Sink<V> for ToColumns<V> {
    #[inline(always)]
    unsafe fn put(self, k: usize, _: usize, value: C<V>) {
        let (low, high) = V::pair(value.0.mul(self.scale.0), value.1.mul(self.scale.1));
        // SAFETY: the caller vouches for the row.
        unsafe {
            let at = self.at.offset(k as isize * self.step);
            low.store(at);
            high.store(at.add(V::LANES));
        }
    }
}

/// The same, multiplied with roots.
#[derive(Clone, Copy)]
struct Rooted<V> {
    to: ToColumns<V>,
    first: *const f32,
    lanes: *const f32,
}

impl<V: Vector> Sink<V> for Rooted<V> {
    #[inline(always)]
    unsafe fn put(self, k: usize, at: usize, value: C<V>) {
        // SAFETY: there are roots for every frequency, and the caller vouches for the row.
        unsafe {
            let (first, lanes) = (self.first.add(2 * k), self.lanes.add(2 * V::LANES * k));
            let first = (V::splat(*first), V::splat(*first.add(1)));
            let root = mul((V::load(lanes), V::load(lanes.add(V::LANES))), first);
            self.to.put(k, at, mul(value, root));
        }
    }
}

/// A radix that is not the last one, for some rows.
///
/// # Safety
/// The source and the room have the rows, and the processor has the instructions.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "registers go by their numbers")]
unsafe fn pass<V: Vector, S: Source<V>, const R: usize>(pass: &Pass, rows: Range<usize>, source: S, room: Room) {
    let part = pass.length / R;
    for start in rows.step_by(pass.length) {
        for (j, roots) in pass.roots.chunks_exact(2 * (R - 1)).enumerate() {
            let at = start + j;
            // SAFETY: the caller vouches for the rows, whose number is a multiple of the length.
            unsafe {
                let mut x = [source.get(at); R];
                for q in 1..R {
                    x[q] = source.get(at + q * part);
                }
                butterfly::<V, R>(&mut x);
                room.put(0, at, x[0]);
                for q in 1..R {
                    let root = (V::splat(roots[2 * q - 2]), V::splat(roots[2 * q - 1]));
                    room.put(0, at + q * part, mul(x[q], root));
                }
            }
        }
    }
}

/// The last radix, for some rows.
///
/// # Safety
/// The room and the sink have the rows, and the processor has the instructions.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "registers go by their numbers")]
unsafe fn last<V: Vector, T: Sink<V>, const R: usize>(plan: &Plan, rows: Range<usize>, room: Room, sink: T) {
    let apart = plan.n / R;
    for &(k, at) in &plan.parts[rows.start / R..rows.end / R] {
        let (k, at) = (k as usize, at as usize);
        // SAFETY: the plan's places are inside of the rows that the caller vouches for.
        unsafe {
            let mut x = [room.get(at); R];
            for q in 1..R {
                x[q] = room.get(at + q);
            }
            butterfly::<V, R>(&mut x);
            for q in 0..R {
                sink.put(k + q * apart, at + q, x[q]);
            }
        }
    }
}

/// Calls a function for one of some radices, compiled for the vector; says whether it was one of them.
macro_rules! for_radix {
    ($radix:expr, [$($known:literal)*], $r:ident => $call:expr) => {
        match $radix {
            $($known => {
                const $r: usize = $known;
                // SAFETY: the caller of this function vouches for what the called one asks for.
                unsafe { V::run(#[inline(always)] || $call) };
                true
            })*
            _ => false,
        }
    };
}

/// Transforms lines, which may be the same in memory.
///
/// # Safety
/// All numbers of all lines can be read and written by this call alone (input may be read by others), the room has
/// a row for every number, there are roots for all of them if there are any, and the processor has the instructions.
unsafe fn transform<V: Vector>(plan: &Plan, work: &Work<'_>, room: Room) {
    let sign = if work.inverse { -1.0 } else { 1.0 };
    let (whole, n) = (work.lanes == V::LANES, plan.n);
    let mut begun = 0;
    if whole && work.from.line == 2 && plan.passes.len() > 1 {
        let opening = &plan.passes[0];
        // SAFETY: the caller vouches for the processor.
        let source = Columns { at: work.from.at, step: work.from.step, sign: unsafe { V::splat(sign) } };
        let all = 0..n;
        begun =
            usize::from(for_radix!(opening.radix, [4 8], R => pass::<V, Columns<V>, R>(opening, all, source, room)));
    }
    // SAFETY: as the caller vouches.
    unsafe {
        if begun == 0 {
            V::run(
                #[inline(always)]
                || fetch::<V>(n, work, room, sign),
            );
        }
        if !(whole && work.to.line == 2) {
            finish::<V, Room>(plan, begun, 0..n, room, room);
            V::run(
                #[inline(always)]
                || give::<V>(plan, work, room, sign),
            );
            return;
        }
        let scale = (V::splat(work.scale), V::splat(sign * work.scale));
        let to = ToColumns { at: work.to.at, step: work.to.step, scale };
        match work.roots {
            Some((first, lanes)) => {
                assert!(first.len() >= 2 * n && lanes.len() >= 2 * V::LANES * n, "frequencies have roots");
                finish(plan, begun, 0..n, room, Rooted { to, first: first.as_ptr(), lanes: lanes.as_ptr() });
            }
            None => finish::<V, ToColumns<V>>(plan, begun, 0..n, room, to),
        }
    }
}

/// All radices but those that were done, for some rows.
///
/// # Safety
/// As above.
unsafe fn finish<V: Vector, T: Sink<V>>(plan: &Plan, done: usize, rows: Range<usize>, room: Room, sink: T) {
    let [first, .., closing] = &plan.passes[done..] else {
        // Only the last radix is left.
        // SAFETY: as the caller vouches.
        return unsafe { close::<V, T>(plan, plan.passes[done].radix, rows, room, sink) };
    };
    let go = |middle: &Pass, rows: Range<usize>| {
        for_radix!(middle.radix, [2 3 4 5 8], R => pass::<V, Room, R>(middle, rows.clone(), room, room));
    };
    if rows.len() <= NEAR {
        plan.passes[done..plan.passes.len() - 1].iter().for_each(|middle| go(middle, rows.clone()));
        // SAFETY: as the caller vouches.
        return unsafe { close::<V, T>(plan, closing.radix, rows, room, sink) };
    }
    let mut done = done;
    if rows.len() == first.length {
        go(first, rows.clone());
        done += 1;
    }
    let part = plan.passes[done].length;
    for start in rows.step_by(part) {
        // SAFETY: as the caller vouches.
        unsafe { finish::<V, T>(plan, done, start..start + part, room, sink) };
    }
}

/// The last radix; if it is one that no columns are written by, they are written after it.
///
/// # Safety
/// As above.
unsafe fn close<V: Vector, T: Sink<V>>(plan: &Plan, radix: usize, rows: Range<usize>, room: Room, sink: T) {
    if for_radix!(radix, [8 16], R => last::<V, T, R>(plan, rows.clone(), room, sink)) {
        return;
    }
    for_radix!(radix, [2 3 4 5], R => last::<V, Room, R>(plan, rows.clone(), room, room));
    if T::IS_ROOM {
        return;
    }
    let parts = &plan.parts[rows.start / radix..rows.end / radix];
    let apart = plan.n / radix;
    // SAFETY: as the caller vouches.
    unsafe {
        V::run(
            #[inline(always)]
            || {
                for &(k, at) in parts {
                    for q in 0..radix {
                        let at = at as usize + q;
                        sink.put(k as usize + q * apart, at, room.get(at));
                    }
                }
            },
        );
    }
}

/// Fills the room with lines, however they lie.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn fetch<V: Vector>(n: usize, work: &Work<'_>, room: Room, sign: f32) {
    let Place { at, line, step } = work.from;
    let whole = work.lanes == V::LANES;
    // SAFETY: as the caller vouches.
    unsafe {
        let mut done = 0;
        if whole && line == 2 {
            let source = Columns { at, step, sign: V::splat(sign) };
            for row in 0..n {
                room.put(row, row, source.get(row));
            }
            return;
        }
        if whole && step == 2 {
            while done + V::LANES / 2 <= n {
                V::lines_to_lanes(at.add(2 * done), line, room.row::<V>(done));
                done += V::LANES / 2;
            }
        }
        for row in done..n {
            for lane in 0..work.lanes {
                let (at, to) = (at.offset(row as isize * step + lane as isize * line), room.row::<V>(row).add(lane));
                (*to, *to.add(V::LANES)) = (*at, *at.add(1));
            }
        }
        if sign != 1.0 {
            for row in 0..n {
                let (re, im): C<V> = room.get(row);
                room.put(row, row, (re, im.mul(V::splat(sign))));
            }
        }
    }
}

/// The other way round: writes the room's lines, however they are to lie.
///
/// # Safety
/// As above.
#[inline(always)]
unsafe fn give<V: Vector>(plan: &Plan, work: &Work<'_>, room: Room, sign: f32) {
    let Place { at, line, step } = work.to;
    // SAFETY: as the caller vouches; the plan's places are rows.
    unsafe {
        if work.scale != 1.0 || sign != 1.0 {
            let (re, im) = (V::splat(work.scale), V::splat(sign * work.scale));
            for row in 0..plan.n {
                let value: C<V> = room.get(row);
                room.put(row, row, (value.0.mul(re), value.1.mul(im)));
            }
        }
        let mut done = 0;
        if work.lanes == V::LANES && step == 2 {
            for places in plan.places.chunks_exact(V::LANES / 2) {
                V::lanes_to_lines(room.0, places, at.add(2 * done), line);
                done += V::LANES / 2;
            }
        }
        for (row, &place) in plan.places.iter().enumerate().skip(done) {
            for lane in 0..work.lanes {
                let from = room.row::<V>(place as usize).add(lane);
                let at = at.offset(row as isize * step + lane as isize * line);
                (*at, *at.add(1)) = (*from, *from.add(V::LANES));
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
