//! Lines on the CPU, some at a time on every thread.
//!
//! Neighbouring lines are transformed across the lanes of vectors, and long ones as matrices, if their length has no large
//! factors. All others are left to `rustfft`, and real ones of odd length to `realfft`; real ones of even length are complex
//! ones of half the length (`real.rs`). Lines along the last axis are transformed from where they lie to where they go;
//! lines along other axes are gathered first, a cache line of neighbours at a time, so that every line of memory is read
//! and written once.

use std::sync::{Arc, OnceLock};

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, CpuKernel, Kernel, KernelSpec, Launched, Spread};
use num_complex::Complex32;

use super::{
    ACROSS, Kind, Lines, Step,
    across::{self, Lanes, Place, Work},
    cpu_plan::{How, Kept, Plan},
    line,
    long::Line,
    strips::{gather, scatter},
};
use crate::{Result, Simd, Tensors, cpu::worth_threads, tune::Op};

/// Elements that are gathered at a time: as much as the second cache holds, so that wide pieces of memory are read,
pub(super) const GATHERED: usize = 32 * 1024;
/// and neighbouring lines that are gathered together at least: a cache line of complex numbers.
pub(super) const NEIGHBOURS: usize = 8;
/// Elements of a thread's turn, if lines are short.
const TURN: usize = 16 * 1024;
/// What the rows of gathered lines are apart beyond their length, so that rows do not compete for places in the cache.
pub(super) const APART: usize = 8;
/// Planes that there are at least, unless they are small: enough for some threads.
const TASKS: usize = 8;
/// Elements of a plane that is transformed along both of its axes at once: it is in the second cache.
const PLANE: usize = 64 * 1024;
/// Nanoseconds per element and doubling of the length on one thread, roughly.
const COST: f64 = 0.25;

/// Ways of the tuner.
const ONE_THREAD: usize = 1;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct Params {
    pub(super) n: u32,
    scale: f32,
    inverse: u32,
    /// The number of the tuner's way.
    pub(super) way: u32,
    /// How many lines are a plane whose columns are transformed, too. Zero if they are not.
    plane: u32,
    pub(super) count: u32,
    from: u32,
    pub(super) from_step: i32,
    pub(super) to_step: i32,
    pub(super) shape: [u32; ACROSS],
    pub(super) from_strides: [i32; ACROSS],
    pub(super) to_strides: [i32; ACROSS],
}

/// The kernels for the CPU and their plans.
#[derive(Default)]
pub(crate) struct Host {
    kept: Arc<Kept>,
    kernels: [OnceLock<Kernel>; 2 * KINDS],
}

const COMPLEX: usize = 0;
const IN_PLACE: usize = 1;
const REAL: usize = 2;
const REAL_INVERSE: usize = 3;
const LINE: usize = 4;
const KINDS: usize = 5;
/// Each again for so few elements that it is brief: what is known to be brief runs on the caller's thread, and that is
/// known of a kernel, not of a launch.
const BRIEF: usize = KINDS;
pub(super) const FEW: usize = 16 * 1024;

impl Host {
    /// How many plans were made so far.
    #[cfg(test)]
    pub(super) fn made(&self) -> usize {
        self.kept.made()
    }

    fn spec(&self, number: usize) -> KernelSpec {
        let kept = self.kept.clone();
        let (number, brief) = (number % BRIEF, if number < BRIEF { "" } else { "_brief" });
        let name = ["fft", "fft_in_place", "rfft", "irfft", "fft_line"][number];
        let spec = KernelSpec::new(format!("{name}{brief}"));
        let spec = match number {
            IN_PLACE => spec.binding::<f32>("x", Access::ReadWrite),
            _ => spec.binding::<f32>("x", Access::Read).binding::<f32>("out", Access::Overwrite),
        };
        let code = CpuKernel::whole(move |launch| match number {
            COMPLEX => complex(launch, &kept, false),
            IN_PLACE => complex(launch, &kept, true),
            REAL => real(launch, &kept),
            REAL_INVERSE => real_inverse(launch, &kept),
            _ => line::transform(launch, &kept),
        });
        let spec = if number == LINE { spec.params::<line::Params>() } else { spec.params::<Params>() };
        spec.cpu(code)
    }

    /// Whether planes of so many lines of length `n` are transformed along both of their axes at once, which goes through
    /// memory only once.
    pub(super) fn takes_planes(&self, tensors: &Tensors, plane: usize, n: usize, lines: &Lines) -> bool {
        let Some(lanes) = Lanes::of(Simd::in_use()) else { return false };
        let along = ACROSS - 1;
        let behind = lines.shape[along] as usize == lines.count
            && [lines.from_step, lines.to_step] == [1; 2]
            && [lines.from_strides[along], lines.to_strides[along]] == [n as i32; 2];
        behind
            && plane >= lanes.count()
            && n >= lanes.count()
            && plane * n <= PLANE
            && (plane * n <= TURN || lines.count >= TASKS * plane)
            && [plane, n].into_iter().all(across::fits)
            && tensors.way(Op::Fft, 0, &[n, lines.count]) == 0
    }

    fn kernel(&self, tensors: &Tensors, number: usize) -> Result<&Kernel> {
        match self.kernels[number].get() {
            Some(kernel) => Ok(kernel),
            None => {
                let kernel = tensors.device().kernel(&self.spec(number))?;
                Ok(self.kernels[number].get_or_init(|| kernel))
            }
        }
    }

    pub(super) fn launch(&self, tensors: &Tensors, step: &Step<'_>) -> Result<()> {
        let way = tensors.way(Op::Fft, 0, &[step.n, step.lines.count]);
        if let Some(params) = line::Params::of(step, way) {
            let launch = self.kernel(tensors, LINE + BRIEF)?.launch().bind(step.from).bind(step.to);
            return tensors.enqueue(launch.params(&params).grid(1));
        }
        let in_place = step.from.same_as(step.to);
        let number = match step.kind {
            Kind::Forward | Kind::Inverse if in_place => IN_PLACE,
            Kind::Forward | Kind::Inverse => COMPLEX,
            Kind::Real => REAL,
            Kind::RealInverse => REAL_INVERSE,
        };
        let number = if step.n * step.lines.count <= FEW { number + BRIEF } else { number };
        let Lines { count, shape, from_strides, to_strides, from, from_step, to_step } = step.lines;
        let params = Params {
            n: step.n as u32,
            scale: step.scale,
            inverse: u32::from(step.kind == Kind::Inverse),
            way: way as u32,
            plane: step.plane as u32,
            count: count as u32,
            from,
            from_step,
            to_step,
            shape,
            from_strides,
            to_strides,
        };
        let launch = self.kernel(tensors, number)?.launch().bind(step.from);
        let launch = if in_place { launch } else { launch.bind(step.to) };
        let spread = if way == ONE_THREAD { Spread::One } else { Spread::Usual };
        tensors.enqueue(launch.params(&params).grid(1).spread(spread))
    }
}

/// Memory that all threads read, or that they write to disjoint places of.
pub(super) struct Shared<T>(pub(super) *mut T);

// SAFETY: tasks write disjoint lines of memory that is borrowed for the launch.
unsafe impl<T: Sync + Send> Sync for Shared<T> {}

/// Lines that are neighbours: where they begin, and what is between them.
struct Block {
    lines: usize,
    from: isize,
    from_line: isize,
    to: isize,
    to_line: isize,
}

impl Block {
    /// One of the lines.
    fn of(&self, line: usize) -> Self {
        let line = line as isize;
        Self { lines: 1, from: self.from + line * self.from_line, to: self.to + line * self.to_line, ..*self }
    }
}

impl Params {
    /// Lines per block, and blocks.
    fn blocks(&self, from_n: usize, to_n: usize, lanes: usize) -> (usize, usize) {
        let along = self.shape[ACROSS - 1] as usize;
        let longest = from_n.max(to_n);
        let width = if self.from_step == 1 && self.to_step == 1 {
            (TURN / longest).clamp(1, along)
        } else {
            (GATHERED / longest).clamp(NEIGHBOURS, 512).min(along)
        };
        let width = width.next_multiple_of(lanes);
        (width, self.count as usize / along * along.div_ceil(width))
    }

    fn block(&self, width: usize, number: usize) -> Block {
        let along = self.shape[ACROSS - 1] as usize;
        let per_row = along.div_ceil(width);
        let (mut outer, first) = (number / per_row, number % per_row * width);
        let (from_line, to_line) = (self.from_strides[ACROSS - 1] as isize, self.to_strides[ACROSS - 1] as isize);
        let mut block = Block {
            lines: width.min(along - first),
            from: self.from as isize + first as isize * from_line,
            from_line,
            to: first as isize * to_line,
            to_line,
        };
        for axis in (0..ACROSS - 1).rev() {
            let dim = self.shape[axis] as usize;
            let at = (outer % dim) as isize;
            block.from += at * self.from_strides[axis] as isize;
            block.to += at * self.to_strides[axis] as isize;
            outer /= dim;
        }
        block
    }

    /// Panics unless every line is inside: strides were made for these buffers, so none should be outside.
    fn check(&self, from_n: usize, from_len: usize, to_n: usize, to_len: usize) {
        let inside = |start: u32, n: usize, step: i32, strides: &[i32; ACROSS], len: usize| {
            let (mut low, mut high) = (start as isize, start as isize);
            let axes = self.shape.iter().zip(strides).map(|(&dim, &stride)| (dim as usize, stride));
            for (dim, stride) in axes.chain([(n, step)]) {
                let reach = (dim as isize - 1) * stride as isize;
                (low, high) = (low + reach.min(0), high + reach.max(0));
            }
            low >= 0 && (high as usize) < len
        };
        assert!(
            inside(self.from, from_n, self.from_step, &self.from_strides, from_len),
            "input lines are in the buffer"
        );
        assert!(inside(0, to_n, self.to_step, &self.to_strides, to_len), "output lines are in the buffer");
    }

    /// Calls `each` for every block, on several threads if that is worth it.
    fn for_each(&self, launch: &Launched<'_>, width: usize, blocks: usize, each: impl Fn(&Block) + Sync) {
        let n = f64::from(self.n);
        let work = f64::from(self.count) * n * (n.log2() + 2.0) * COST;
        let task = |number: u64| each(&self.block(width, number as usize));
        if worth_threads(launch.threads(), work) {
            launch.threads().for_each(blocks as u64, &task);
        } else {
            (0..blocks as u64).for_each(task);
        }
    }
}

fn complex(launch: &mut Launched<'_>, kept: &Kept, in_place: bool) {
    let params = launch.params::<Params>();
    let n = params.n as usize;
    let kind = if params.inverse == 1 { Kind::Inverse } else { Kind::Forward };
    let inverse = kind == Kind::Inverse;
    let (from, to, lens) = if in_place {
        let all = launch.output::<Complex32>(0);
        let base = all.as_mut_ptr();
        (base.cast_const(), base, [all.len(); 2])
    } else {
        let (x, out) = (launch.input::<Complex32>(0), launch.output::<Complex32>(1));
        (x.as_ptr(), out.as_mut_ptr(), [x.len(), out.len()])
    };
    params.check(n, lens[0], n, lens[1]);
    let (from, to) = (Shared(from.cast_mut()), Shared(to));
    if let (1.., Some(lanes)) = (params.plane, Lanes::of(Simd::in_use())) {
        return planes(launch, kept, &params, lanes, (&from, &to));
    }
    let how = How::of(&params, launch.threads().count(), Lanes::of(Simd::in_use()));
    let plan = kept.plan((kind, n, how));
    let (from_step, to_step) = (params.from_step as isize, params.to_step as isize);
    let needed = plan.scratch();
    let plan = match plan {
        Plan::Complex(plan) => plan,
        Plan::Long(plan) => {
            // One line after the other, each on all threads.
            kept.with_scratch(n, |room| {
                for number in 0..params.count as usize {
                    let block = params.block(1, number);
                    let (source, target) =
                        (Line { at: block.from, step: from_step }, Line { at: block.to, step: to_step });
                    // SAFETY: `check` has found every line inside its buffer; the input's are written by nobody else, and
                    // lines of the output are written by this call alone.
                    unsafe {
                        plan.transform(launch.threads(), kept, (&from, source), (&to, target), room, params.scale)
                    };
                }
            });
            return;
        }
        Plan::Across(plan, lanes) => {
            let (width, blocks) = params.blocks(n, n, lanes.count());
            return params.for_each(launch, width, blocks, |block| {
                let (from, to) = (&from, &to); // all of it, not the pointers alone
                // SAFETY: `check` has found every line inside its buffer. The input's lines are written by nobody else,
                // and an output line is this task's alone.
                kept.with_scratch(needed, |room| unsafe {
                    lines_across(&plan, lanes, &params, (from, to), block, room)
                });
            });
        }
        Plan::Matrix(plan) => {
            let line = |block: &Block| {
                ((&from, Line { at: block.from, step: from_step }), (&to, Line { at: block.to, step: to_step }))
            };
            let alone = (params.count as usize) < launch.threads().count() && plan.worth_threads(launch.threads());
            if alone {
                for number in 0..params.count as usize {
                    let (source, target) = line(&params.block(1, number));
                    // SAFETY: as above, one line after the other.
                    unsafe { plan.transform_on(launch.threads(), kept, source, target, (inverse, params.scale)) };
                }
                return;
            }
            let (width, blocks) = params.blocks(n, n, 1);
            return params.for_each(launch, width, blocks, |block| {
                kept.with_scratch(needed, |room| {
                    for number in 0..block.lines {
                        let (source, target) = line(&block.of(number));
                        // SAFETY: as above.
                        unsafe { plan.transform(source, target, (inverse, params.scale), room) };
                    }
                });
            });
        }
        Plan::Halved(_) | Plan::Real(_) | Plan::RealInverse(_) => return,
    };
    let (width, blocks) = params.blocks(n, n, 1);
    let pitch = n + APART;
    // Lines that are transformed from or to where they lie need no row.
    let rows = if from_step == 1 && to_step == 1 { 0 } else { width * pitch };
    params.for_each(launch, width, blocks, |block| {
        let (from, to) = (&from, &to); // all of it, not the pointers alone
        kept.with_scratch(rows + needed, |scratch| {
            let (rows, scratch) = scratch.split_at_mut(rows);
            // Lines that lie one behind the other on both sides are one stretch: short ones are over before a call is.
            let behind = from_step == 1 && to_step == 1 && [block.from_line, block.to_line] == [n as isize; 2];
            let (len, stretches) = if behind { (block.lines * n, 1) } else { (n, block.lines) };
            // SAFETY: `check` has found every line inside its buffer. A line of the input that is read in place is
            // written by nobody, and an output line is this task's alone.
            let line_of = |line: usize| unsafe {
                let start = from.0.offset(block.from + line as isize * block.from_line);
                std::slice::from_raw_parts(start.cast_const(), len)
            };
            // SAFETY: as above.
            let line_to = |line: usize| unsafe {
                std::slice::from_raw_parts_mut(to.0.offset(block.to + line as isize * block.to_line), len)
            };
            if from_step != 1 {
                // SAFETY: as above.
                unsafe {
                    let start = from.0.offset(block.from).cast_const();
                    gather(start, block.from_line, from_step, block.lines, n, rows, pitch);
                }
            }
            for line in 0..stretches {
                let mut row = rows.get_mut(line * pitch..line * pitch + n);
                match (&mut row, from_step == 1, to_step == 1) {
                    (_, true, true) if in_place => plan.process_with_scratch(line_to(line), scratch),
                    (_, true, true) => plan.process_immutable_with_scratch(line_of(line), line_to(line), scratch),
                    (Some(row), true, false) => plan.process_immutable_with_scratch(line_of(line), row, scratch),
                    (Some(row), false, true) => plan.process_outofplace_with_scratch(row, line_to(line), scratch),
                    (Some(row), false, false) => plan.process_with_scratch(row, scratch),
                    (None, ..) => {}
                }
                let done = if to_step == 1 { Some(line_to(line)) } else { row };
                line::scaled(bytemuck::cast_slice_mut(done.unwrap_or_default()), params.scale);
            }
            if to_step != 1 {
                // SAFETY: as above.
                unsafe {
                    scatter(rows, pitch, to.0.offset(block.to), block.to_line, to_step, block.lines, n);
                }
            }
        });
    });
}

/// Planes that lie one behind the other: lines, then columns where they lie.
fn planes(
    launch: &Launched<'_>,
    kept: &Kept,
    params: &Params,
    lanes: Lanes,
    (from, to): (&Shared<Complex32>, &Shared<Complex32>),
) {
    let (n, plane) = (params.n as usize, params.plane as usize);
    let kind = if params.inverse == 1 { Kind::Inverse } else { Kind::Forward };
    let rows = kept.plan((kind, n, if n.is_power_of_two() { How::Lines } else { How::Across(lanes) }));
    let Plan::Across(columns, _) = kept.plan((kind, plane, How::Across(lanes))) else { return };
    // The scale is that of both axes.
    let rows_params = Params { scale: 1.0, ..*params };
    let columns_params = Params { from_step: n as i32, to_step: n as i32, ..*params };
    params.for_each(launch, plane, params.count as usize / plane, |block| {
        let beside = Block { lines: n, from: block.to, from_line: 1, to: block.to, to_line: 1 };
        kept.with_scratch(lanes.room(plane).max(rows.scratch()), |room| {
            // SAFETY: the lines were found inside, one behind the other, and a plane's are this task's alone. Its columns
            // are its lines.
            unsafe {
                match &rows {
                    Plan::Across(rows, _) => lines_across(rows, lanes, &rows_params, (from, to), block, room),
                    Plan::Complex(rows) => {
                        let x = std::slice::from_raw_parts(from.0.offset(block.from).cast_const(), plane * n);
                        let y = std::slice::from_raw_parts_mut(to.0.offset(block.to), plane * n);
                        rows.process_immutable_with_scratch(x, y, room);
                    }
                    _ => {}
                }
                lines_across(&columns, lanes, &columns_params, (to, to), &beside, room);
            }
        });
    });
}

/// Lines of a block, as many at a time as there are lanes.
///
/// # Safety
/// The lines are inside the buffers; nobody else writes the input's, nor reads or writes the output's.
unsafe fn lines_across(
    plan: &across::Plan,
    lanes: Lanes,
    params: &Params,
    (from, to): (&Shared<Complex32>, &Shared<Complex32>),
    block: &Block,
    room: &mut [Complex32],
) {
    for first in (0..block.lines).step_by(lanes.count()) {
        let some = block.of(first);
        // SAFETY: where lines are that the caller vouches for.
        let (from, to) = unsafe { (from.0.offset(some.from).cast_const().cast(), to.0.offset(some.to).cast()) };
        let work = Work {
            lanes: lanes.count().min(block.lines - first),
            from: Place { at: from, line: 2 * block.from_line, step: 2 * params.from_step as isize },
            to: Place { at: to, line: 2 * block.to_line, step: 2 * params.to_step as isize },
            roots: None,
            scale: params.scale,
            inverse: params.inverse == 1,
        };
        // SAFETY: as the caller vouches.
        unsafe { lanes.transform(plan, &work, room) };
    }
}

/// The same for transforms from or to real numbers.
fn through_rows<A: Pod + Sync + Send, B: Pod + Sync + Send>(
    launch: &mut Launched<'_>,
    kept: &Kept,
    kind: Kind,
    lengths: impl Fn(usize) -> [usize; 2],
    transform: impl Fn(&Plan, &[A], &mut [B], &mut [Complex32]) + Sync,
) {
    let params = launch.params::<Params>();
    let (x, out) = (launch.input::<A>(0), launch.output::<B>(1));
    let [from_n, to_n] = lengths(params.n as usize);
    let per = |size: usize, elements: usize| (elements * size).div_ceil(size_of::<Complex32>());
    let plan = kept.plan((kind, params.n as usize, How::Lines));
    let needed = plan.scratch();
    params.check(from_n, x.len(), to_n, out.len());
    let (from, to) = (Shared(x.as_ptr().cast_mut()), Shared(out.as_mut_ptr()));
    let (from_step, to_step) = (params.from_step as isize, params.to_step as isize);
    let (width, blocks) = params.blocks(from_n, to_n, 1);
    // Rows of either kind, in complex numbers, for lines that do not lie in one piece.
    let (from_pitch, to_pitch) = (from_n + APART, to_n + APART);
    let from_rows = if from_step == 1 { 0 } else { per(size_of::<A>(), width * from_pitch) };
    let to_rows = if to_step == 1 { 0 } else { per(size_of::<B>(), width * to_pitch) };
    params.for_each(launch, width, blocks, |block| {
        let (from, to) = (&from, &to); // all of it, not the pointers alone
        kept.with_scratch(from_rows + to_rows + needed, |scratch| {
            let (from_rows, scratch) = scratch.split_at_mut(from_rows);
            let (to_rows, scratch) = scratch.split_at_mut(to_rows);
            let from_rows = bytemuck::cast_slice_mut::<_, A>(from_rows);
            let to_rows = bytemuck::cast_slice_mut::<_, B>(to_rows);
            if from_step != 1 {
                // SAFETY: `check` has found every line inside its buffer; input lines are only read.
                unsafe {
                    let start = from.0.offset(block.from).cast_const();
                    gather(start, block.from_line, from_step, block.lines, from_n, from_rows, from_pitch);
                }
            }
            for line in 0..block.lines {
                let row = if from_step == 1 {
                    // SAFETY: as above.
                    unsafe {
                        let start = from.0.offset(block.from + line as isize * block.from_line);
                        std::slice::from_raw_parts(start.cast_const(), from_n)
                    }
                } else {
                    &from_rows[line * from_pitch..][..from_n]
                };
                let to_row = if to_step == 1 {
                    // SAFETY: as above, and an output line is this task's alone.
                    unsafe {
                        std::slice::from_raw_parts_mut(to.0.offset(block.to + line as isize * block.to_line), to_n)
                    }
                } else {
                    &mut to_rows[line * to_pitch..][..to_n]
                };
                transform(&plan, row, to_row, scratch);
                line::scaled(bytemuck::cast_slice_mut(to_row), params.scale);
            }
            if to_step != 1 {
                // SAFETY: as above.
                unsafe {
                    scatter(to_rows, to_pitch, to.0.offset(block.to), block.to_line, to_step, block.lines, to_n);
                }
            }
        });
    });
}

fn real(launch: &mut Launched<'_>, kept: &Kept) {
    through_rows(launch, kept, Kind::Real, |n| [n, n / 2 + 1], Plan::real);
}

fn real_inverse(launch: &mut Launched<'_>, kept: &Kept) {
    through_rows(launch, kept, Kind::RealInverse, |n| [n / 2 + 1, n], Plan::real_inverse);
}

#[cfg(test)]
mod tests {
    use super::{super::cpu_plan::KEPT, *};
    use crate::{Norm, Tensors};

    #[test]
    fn plans_are_made_once_and_the_least_used_ones_go() {
        let tensors = Tensors::on(&millrace::runtime().open("cpu").unwrap()).unwrap();
        let made = || tensors.fft().host.made();
        let transform = |n: usize| {
            let x = tensors.full(&[3, n], Complex32::ONE).unwrap();
            x.fft(1, Norm::Backward).unwrap();
            tensors.synchronize().unwrap();
        };
        transform(14);
        transform(14);
        assert_eq!(made(), 1);
        let x = tensors.full(&[14, 14], Complex32::ONE).unwrap();
        x.fftn(&[0, 1], Norm::Ortho).unwrap();
        tensors.synchronize().unwrap();
        assert_eq!(made(), 1, "in place and with another norm it is the same plan");
        x.ifft(0, Norm::Backward).unwrap();
        tensors.synchronize().unwrap();
        assert_eq!(made(), 2, "the other direction is another plan");
        (0..KEPT).for_each(|n| transform(n + 100));
        let before = made();
        transform(100 + KEPT - 1);
        assert_eq!(made(), before);
        transform(14);
        assert_eq!(made(), before + 1, "it was forgotten meanwhile");
    }
}
