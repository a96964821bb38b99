//! Fourier transforms next to `rustfft` and `realfft` alone, and short ones next to what any operation takes.

use std::{f64::consts::TAU, fmt, hint::black_box, sync::Arc};

use millrace::tensor::{Complex32, Norm, Tensor};
use millrace_fourier::{Fft, FftDirection};

use super::{Effort, context};
use crate::{
    Error, Result,
    gpu::{Context, numbers},
    measure::{Metric, Side, batch_timed, warm_up},
};

/// What is transformed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Case {
    /// One line of complex numbers.
    Line(usize),
    /// One line of real numbers.
    Real(usize),
    /// So many lines of complex numbers.
    Batch(usize, usize),
    /// A square along both axes.
    Square(usize),
    /// A cube along all three.
    Cube(usize),
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(n) => write!(f, "1d-{n}"),
            Self::Real(n) => write!(f, "real-{n}"),
            Self::Batch(lines, n) => write!(f, "batch-{lines}x{n}"),
            Self::Square(n) => write!(f, "2d-{n}"),
            Self::Cube(n) => write!(f, "3d-{n}"),
        }
    }
}

fn cases(small: bool) -> Vec<Case> {
    if small {
        return vec![
            Case::Line(64),
            Case::Line(4096),
            Case::Real(4096),
            Case::Batch(64, 64),
            Case::Square(64),
            Case::Cube(16),
        ];
    }
    let mut cases: Vec<_> = (6..=20).step_by(2).map(|log| Case::Line(1 << log)).collect();
    cases.extend([Case::Line(1000), Case::Line(10_007)]);
    cases.extend([10, 16, 20].map(|log| Case::Real(1 << log)));
    cases.extend([Case::Batch(16_384, 64), Case::Batch(1024, 1024), Case::Batch(16, 65_536)]);
    cases.extend([Case::Square(1024), Case::Cube(128)]);
    cases
}

impl Case {
    /// The length of every axis; the last `axes` of them are transformed.
    fn shape(self) -> (Vec<usize>, usize) {
        match self {
            Self::Line(n) | Self::Real(n) => (vec![n], 1),
            Self::Batch(lines, n) => (vec![lines, n], 1),
            Self::Square(n) => (vec![n; 2], 2),
            Self::Cube(n) => (vec![n; 3], 3),
        }
    }

    fn elements(self) -> usize {
        self.shape().0.iter().product()
    }

    fn complex(self) -> Vec<Complex32> {
        numbers(2 * self.elements(), 1).chunks_exact(2).map(|part| Complex32::new(part[0], part[1])).collect()
    }

    fn real(self) -> Vec<f32> {
        numbers(self.elements(), 1)
    }

    fn is_real(self) -> bool {
        matches!(self, Self::Real(_))
    }

    /// Times that are measured together: small ones, since reading the clock takes as long.
    fn at_once(self) -> usize {
        (100_000 / self.elements()).clamp(1, 100)
    }

    /// Whether `y` has the frequencies that it should have, by looking at a few of them.
    fn check(self, y: &[Complex32]) -> Result<()> {
        let (shape, axes) = self.shape();
        let x = if self.is_real() { self.real().into_iter().map(Complex32::from).collect() } else { self.complex() };
        let transformed = &shape[shape.len() - axes..];
        let n: usize = transformed.iter().product();
        let expected = if self.is_real() { n / 2 + 1 } else { x.len() };
        if y.len() != expected {
            return Err(Error::Wrong(format!("{self} has {} frequencies, not {expected}", y.len())));
        }
        // Coordinates of a place among the axes that are transformed.
        let place = |mut at: usize| {
            let coordinates = transformed.iter().rev().map(move |&dim| {
                let c = at % dim;
                at /= dim;
                (c, dim)
            });
            coordinates.collect::<Vec<_>>()
        };
        for k in [0, 1, n / 3, n / 2] {
            let frequency = place(k);
            let (mut re, mut im, mut norm) = (0.0, 0.0, 0.0);
            for (i, x) in x[x.len() - n..].iter().enumerate() {
                let turns: f64 =
                    place(i).iter().zip(&frequency).map(|((i, dim), (k, _))| (i * k % dim) as f64 / *dim as f64).sum();
                let ((s, c), a, b) = ((-TAU * turns).sin_cos(), f64::from(x.re), f64::from(x.im));
                (re, im, norm) = (re + a * c - b * s, im + a * s + b * c, norm + a * a + b * b);
            }
            let got = y[if self.is_real() { k } else { y.len() - n + k }];
            let error = (f64::from(got.re) - re).hypot(f64::from(got.im) - im) / norm.sqrt();
            if error > 1e-5 {
                return Err(Error::Wrong(format!("frequency {k} of {self} is {got}, not {re}+{im}i")));
            }
        }
        Ok(())
    }
}

/// Elements of lines that are short: the library is done with them in a time that operations of any kind take.
const SHORT: usize = 2048;

/// Our transforms, and those of the libraries, each on whatever it has: ours on all threads, theirs on one.
pub(super) fn sides(effort: &Effort) -> Vec<Side> {
    let all: Arc<[Case]> = cases(effort.small).into();
    let short = all.iter().copied().filter(|case| case.elements() <= SHORT).collect();
    let on_device = |name, cases: Arc<[Case]>, one: fn(&Effort, &Context, Case) -> Result<Metric>| {
        let effort = effort.clone();
        Side::new(name, move || {
            let context = context(millrace::cpu::CpuInfo::get().cores)?;
            let metrics = cases.iter().map(|case| one(&effort, &context, *case)).collect();
            context.finish()?;
            metrics
        })
    };
    let (mine, any) = (on_device("millrace", all.clone(), ours), on_device("operation", short, operation));
    let effort = effort.clone();
    vec![mine, Side::new("rustfft", move || all.iter().map(|case| theirs(&effort, *case)).collect()), any]
}

/// Our side on any device, with the small cases.
pub(super) fn on(effort: &Effort, context: &Context) -> Result<()> {
    cases(true).into_iter().try_for_each(|case| ours(effort, context, case).map(drop))
}

fn timed(effort: &Effort, case: Case, mut run: impl FnMut() -> Result<()>) -> Result<Metric> {
    warm_up(effort.turn / 4, &mut run)?;
    let times = batch_timed(effort.turn, case.at_once(), run)?;
    Ok(Metric::lower(case.to_string(), "us", times.into_iter().map(|ns| ns / 1e3).collect()))
}

fn ours(effort: &Effort, context: &Context, case: Case) -> Result<Metric> {
    let (tensors, (shape, axes)) = (context.tensors(), case.shape());
    let named: Vec<isize> = (0..axes as isize).map(|axis| axis - axes as isize).collect();
    let x = if case.is_real() {
        tensors.from_slice(&case.real(), &shape)?
    } else {
        tensors.from_slice(&case.complex(), &shape)?
    };
    let mut y: Option<Tensor> = None;
    let metric = timed(effort, case, || {
        y = None; // back to the pool
        y = Some(if case.is_real() { x.rfftn(&named, Norm::Backward)? } else { x.fftn(&named, Norm::Backward)? });
        Ok(tensors.synchronize()?)
    })?;
    case.check(&y.map(|y| y.to_vec::<Complex32>()).transpose()?.unwrap_or_default())?;
    Ok(metric)
}

/// What an operation takes that does next to nothing with each of the same numbers.
fn operation(effort: &Effort, context: &Context, case: Case) -> Result<Metric> {
    let tensors = context.tensors();
    let n = if case.is_real() { case.elements() } else { 2 * case.elements() };
    let x = tensors.from_slice(&numbers(n, 1), &[n])?;
    let mut y: Option<Tensor> = None;
    timed(effort, case, || {
        y = None; // back to the pool
        y = Some(x.relu()?);
        Ok(tensors.synchronize()?)
    })
}

fn theirs(effort: &Effort, case: Case) -> Result<Metric> {
    let (shape, axes) = case.shape();
    let n = shape.last().copied().unwrap_or(1);
    if case.is_real() {
        let plan = millrace_fourier::real(n);
        let (mut x, mut y, mut scratch) = (plan.make_input_vec(), plan.make_output_vec(), plan.make_scratch_vec());
        let numbers = case.real();
        let metric = timed(effort, case, || {
            // It uses its input up, and ours does not.
            x.copy_from_slice(&numbers);
            let done = plan.process_with_scratch(&mut x, black_box(&mut y), &mut scratch);
            done.map_err(|error| Error::Wrong(error.to_string()))
        })?;
        case.check(&y)?;
        return Ok(metric);
    }
    let plan = millrace_fourier::complex(n, FftDirection::Forward);
    let x = case.complex();
    let (mut y, mut other) = (vec![Complex32::ZERO; x.len()], vec![Complex32::ZERO; x.len()]);
    let longest = plan.get_immutable_scratch_len().max(plan.get_inplace_scratch_len());
    let mut scratch = vec![Complex32::ZERO; longest];
    let metric = timed(effort, case, || {
        along_all(&*plan, axes, &x, black_box(&mut y), &mut other, &mut scratch);
        Ok(())
    })?;
    case.check(&y)?;
    Ok(metric)
}

/// Lines, then turned so that the axis before becomes the last, as often as there are axes, all of the same length.
fn along_all(
    plan: &dyn Fft<f32>,
    axes: usize,
    x: &[Complex32],
    y: &mut Vec<Complex32>,
    other: &mut Vec<Complex32>,
    scratch: &mut [Complex32],
) {
    let n = plan.len();
    plan.process_immutable_with_scratch(x, y, scratch);
    if axes == 1 {
        return;
    }
    for axis in 0..axes {
        transpose::transpose(y, other, n, x.len() / n);
        std::mem::swap(y, other);
        if axis + 1 < axes {
            plan.process_with_scratch(y, scratch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_transform_every_case() {
        let mut effort = Effort::quick();
        effort.turn = std::time::Duration::from_micros(50);
        let context = context(2).unwrap();
        for case in cases(true) {
            theirs(&effort, case).unwrap();
            ours(&effort, &context, case).unwrap();
            operation(&effort, &context, case).unwrap();
            let nothing = vec![Complex32::ZERO; if case.is_real() { case.elements() / 2 + 1 } else { case.elements() }];
            assert!(case.check(&nothing).is_err(), "{case}");
        }
    }
}
