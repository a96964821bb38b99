//! How lines are transformed on the CPU, and the plans for it, which are kept.

use std::{
    cell::RefCell,
    sync::{Arc, Mutex, PoisonError},
};

use millrace_fourier::{ComplexToReal, Fft, FftDirection, RealToComplex};
use num_complex::Complex32;

use super::{
    ACROSS, Kind,
    across::{self, Lanes},
    cpu::{NEIGHBOURS, Params},
    long::{self, Long},
    matrix::{self, Matrix},
    real::Halved,
};
use crate::Simd;

/// Plans that are kept: those used last.
pub(super) const KEPT: usize = 64;
/// Elements of scratch memory that are kept for the next launch.
const SCRATCH: usize = 8 << 20;
/// Lines behind one another are transformed across lanes if they are at least so long, and at most so long, and no power of
/// two, for which the library goes through memory faster;
const SHORT: std::ops::RangeInclusive<usize> = 32..=256;
/// longer ones as matrices, from here on,
const MATRIX: usize = 512;
/// or from here on if they are powers of two,
const MATRIX_OF_TWOS: usize = 1024;
/// or from here on in eight lanes, which the library has, too,
const MATRIX_IN_EIGHT: usize = 12_000;
/// and columns across lanes up to here: all of them are in the second cache.
const COLUMN: usize = 8192;

/// Ways of the tuner.
const WHOLE_LINES: usize = 2;
const FOUR_STEPS: usize = 3;

#[derive(Clone)]
pub(super) enum Plan {
    Complex(Arc<dyn Fft<f32>>),
    Long(Arc<Long>),
    Across(Arc<across::Plan>, Lanes),
    Matrix(Arc<Matrix>),
    Halved(Arc<Halved>),
    /// For odd lengths.
    Real(Arc<dyn RealToComplex<f32>>),
    RealInverse(Arc<dyn ComplexToReal<f32>>),
}

impl Plan {
    fn new((kind, n, how): Key) -> Self {
        let direction = if kind == Kind::Inverse { FftDirection::Inverse } else { FftDirection::Forward };
        let library = || Self::Complex(millrace_fourier::complex(n, direction));
        let halved = |inverse, library: &dyn Fn() -> Self| {
            Halved::new(n, inverse).map_or_else(library, |plan| Self::Halved(Arc::new(plan)))
        };
        match (kind, how) {
            (Kind::Real, _) => halved(false, &|| Self::Real(millrace_fourier::real(n))),
            (Kind::RealInverse, _) => halved(true, &|| Self::RealInverse(millrace_fourier::real_inverse(n))),
            (_, How::Lines) => library(),
            (_, How::Steps(a, b)) => Self::Long(Arc::new(Long::new((a, b), direction))),
            (_, How::Across(lanes)) => {
                across::Plan::new(n).map_or_else(library, |plan| Self::Across(Arc::new(plan), lanes))
            }
            (_, How::Matrix(a, b, lanes)) => {
                Matrix::new((a, b), lanes).map_or_else(library, |plan| Self::Matrix(Arc::new(plan)))
            }
        }
    }

    /// Elements that a transform needs besides its input and output.
    pub(super) fn scratch(&self) -> usize {
        match self {
            Self::Complex(plan) => plan
                .get_inplace_scratch_len()
                .max(plan.get_outofplace_scratch_len())
                .max(plan.get_immutable_scratch_len()),
            Self::Long(_) => 0,
            Self::Across(plan, lanes) => lanes.room(plan.n),
            Self::Matrix(plan) => plan.between() + plan.room(),
            Self::Halved(plan) => plan.scratch(),
            // These destroy their input, which is therefore copied.
            Self::Real(plan) => plan.get_scratch_len() + plan.len().div_ceil(2),
            Self::RealInverse(plan) => plan.get_scratch_len() + plan.complex_len(),
        }
    }

    /// Transforms a line of real numbers.
    pub(super) fn real(&self, x: &[f32], to: &mut [Complex32], scratch: &mut [Complex32]) {
        match self {
            Self::Halved(plan) => plan.forward(x, to, scratch),
            Self::Real(plan) => {
                let (row, scratch) = scratch.split_at_mut(x.len().div_ceil(2));
                let row = &mut bytemuck::cast_slice_mut(row)[..x.len()];
                row.copy_from_slice(x);
                let done = plan.process_with_scratch(row, to, &mut scratch[..plan.get_scratch_len()]);
                assert!(done.is_ok(), "rows have the plan's length");
            }
            _ => {}
        }
    }

    /// The other way round. What real numbers cannot have is left out.
    pub(super) fn real_inverse(&self, x: &[Complex32], to: &mut [f32], scratch: &mut [Complex32]) {
        match self {
            Self::Halved(plan) => plan.inverse(x, to, scratch),
            Self::RealInverse(plan) => {
                let (row, scratch) = scratch.split_at_mut(x.len());
                row.copy_from_slice(x);
                row[0].im = 0.0;
                let done = plan.process_with_scratch(row, to, &mut scratch[..plan.get_scratch_len()]);
                assert!(done.is_ok(), "rows have the plan's length");
            }
            _ => {}
        }
    }
}

/// How complex lines are transformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// One by one, by the library.
    Lines,
    /// Long ones on all threads, by the library, as matrices with so many rows and columns.
    Steps(usize, usize),
    /// Some at a time, one in every lane.
    Across(Lanes),
    /// As matrices whose rows and columns are transformed across lanes.
    Matrix(usize, usize, Lanes),
}

impl How {
    /// Whether one line of this length that lies in one piece is [`How::Lines`], which is known sooner than anything else.
    #[inline]
    pub(super) fn is_library(n: usize, way: usize) -> bool {
        let longest = if Lanes::of(Simd::in_use()) == Some(Lanes::Avx512) { MATRIX } else { MATRIX_IN_EIGHT };
        n < longest && way == 0
    }

    /// For the lines of a launch.
    pub(super) fn of(params: &Params, threads: usize, lanes: Option<Lanes>) -> Self {
        let (n, count, along) = (params.n as usize, params.count as usize, params.shape[ACROSS - 1] as usize);
        let steps = |sides: Option<(usize, usize)>| sides.map_or(Self::Lines, |(a, b)| Self::Steps(a, b));
        let behind = params.from_step == 1 && params.to_step == 1;
        let aside = |step: i32, line: i32| step == 1 || line == 1;
        let (from_line, to_line) = (params.from_strides[ACROSS - 1], params.to_strides[ACROSS - 1]);
        let matrix = |lanes: Lanes| matrix::sides(n, lanes).map(|(a, b)| Self::Matrix(a, b, lanes));
        match (params.way as usize, lanes) {
            (WHOLE_LINES, _) => return Self::Lines,
            (FOUR_STEPS, Some(lanes)) => return matrix(lanes).unwrap_or_else(|| steps(long::any_sides(n))),
            (FOUR_STEPS, None) => return steps(long::any_sides(n)),
            (_, Some(lanes)) if across::fits(n) => {
                let columns = n <= COLUMN
                    && 2 * along >= lanes.count()
                    && aside(params.from_step, from_line)
                    && aside(params.to_step, to_line);
                // At powers of two it is at its best.
                let faster = lanes == Lanes::Avx512 || (n >= MATRIX_IN_EIGHT && !n.is_power_of_two());
                let alone = long::sides(n, count, threads).is_some();
                let long = n >= if n.is_power_of_two() { MATRIX_OF_TWOS } else { MATRIX };
                if behind && long && (faster || alone) {
                    if let Some(how) = matrix(lanes) {
                        return how;
                    }
                } else if (!behind && columns)
                    || (behind && !n.is_power_of_two() && SHORT.contains(&n) && along >= lanes.count())
                {
                    return Self::Across(lanes);
                }
            }
            _ => {}
        }
        steps(long::sides(n, count, threads))
    }
}

/// What a plan is for: its kind, its length, and how it goes about it.
pub(super) type Key = (Kind, usize, How);

/// What launches share: the plans that were made, the last used one last, and memory that is used again.
#[derive(Default)]
pub(super) struct Kept {
    plans: Mutex<(Vec<(Key, Plan)>, usize)>,
    scratch: Mutex<Vec<Vec<Complex32>>>,
}

impl Kept {
    /// How many plans were made so far.
    #[cfg(test)]
    pub(super) fn made(&self) -> usize {
        self.plans.lock().unwrap().1
    }

    pub(super) fn plan(&self, key: Key) -> Plan {
        let mut guard = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let (plans, made) = &mut *guard;
        if let Some(at) = plans.iter().rposition(|(known, _)| *known == key) {
            let last = plans.len() - 1;
            plans[at..=last].rotate_left(1);
            return plans[last].1.clone();
        }
        if plans.len() == KEPT {
            plans.remove(0);
        }
        *made += 1;
        let plan = Plan::new(key);
        plans.push((key, plan.clone()));
        plan
    }

    /// Calls `work` with the plan for a short line and the memory that it needs. Each thread remembers both until it needs others:
    /// no other thread has to be asked then.
    #[inline]
    pub(super) fn with_last(&self, key: Key, work: impl FnOnce(&Plan, &mut [Complex32])) {
        struct Last {
            key: Key,
            plan: Plan,
            room: Vec<Complex32>,
        }
        thread_local!(static LAST: RefCell<Option<Last>> = const { RefCell::new(None) });
        LAST.with_borrow_mut(|last| {
            let last = match last {
                Some(last) if last.key == key => last,
                _ => {
                    let plan = self.plan(key);
                    let room = vec![Complex32::ZERO; plan.scratch() + NEIGHBOURS];
                    last.insert(Last { key, plan, room })
                }
            };
            let start = aligned(&last.room);
            work(&last.plan, &mut last.room[start..]);
        });
    }

    /// Calls `work` with so many elements that nobody else has, aligned to cache lines. What is in them is anybody's guess.
    pub(super) fn with_scratch(&self, elements: usize, work: impl FnOnce(&mut [Complex32])) {
        if elements == 0 {
            return work(&mut []);
        }
        let spare = self.scratch.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut scratch = spare.unwrap_or_default();
        if scratch.len() < elements + NEIGHBOURS {
            scratch.resize(elements + NEIGHBOURS, Complex32::ZERO);
        }
        let start = aligned(&scratch);
        work(&mut scratch[start..start + elements]);
        if scratch.len() <= SCRATCH {
            self.scratch.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
        }
    }
}

/// Where its first whole cache line begins.
#[inline]
fn aligned(scratch: &[Complex32]) -> usize {
    scratch.as_ptr().align_offset(size_of::<[Complex32; NEIGHBOURS]>()).min(NEIGHBOURS)
}
