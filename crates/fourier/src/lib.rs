//! Plans of `rustfft` and `realfft` for the number types that we use.
//!
//! These libraries are generic, so every crate that asks them for a plan compiles all of their transforms: two fifths of what
//! there was to compile in `millrace-tensor`, and again in its tests, in what measures, and in what tests that. Here it is done once.
//! This room adds nothing to them, and knows nothing of devices.

#![forbid(unsafe_code)]

use std::sync::Arc;

use realfft::RealFftPlanner;
pub use realfft::{ComplexToReal, RealToComplex};
use rustfft::FftPlanner;
pub use rustfft::{Fft, FftDirection};

/// Transforms complex lines of this length.
///
/// ```
/// use millrace_fourier::{FftDirection, complex};
/// let mut line = vec![1.0f32.into(); 4];
/// complex(4, FftDirection::Forward).process(&mut line);
/// assert_eq!((line[0].re, line[1].re), (4.0, 0.0));
/// ```
#[inline(never)]
pub fn complex(n: usize, direction: FftDirection) -> Arc<dyn Fft<f32>> {
    FftPlanner::new().plan_fft(n, direction)
}

/// [`complex`] in twice the precision.
///
/// ```
/// use millrace_fourier::{FftDirection, complex_f64};
/// let mut line = vec![1.0f64.into(); 4];
/// complex_f64(4, FftDirection::Inverse).process(&mut line);
/// assert_eq!((line[0].re, line[1].re), (4.0, 0.0));
/// ```
#[inline(never)]
pub fn complex_f64(n: usize, direction: FftDirection) -> Arc<dyn Fft<f64>> {
    FftPlanner::new().plan_fft(n, direction)
}

/// Transforms real lines of this length.
///
/// ```
/// let plan = millrace_fourier::real(4);
/// let (mut line, mut transformed) = (vec![1.0; 4], plan.make_output_vec());
/// plan.process(&mut line, &mut transformed).unwrap();
/// assert_eq!((transformed.len(), transformed[0].re), (3, 4.0));
/// ```
#[inline(never)]
pub fn real(n: usize) -> Arc<dyn RealToComplex<f32>> {
    RealFftPlanner::new().plan_fft_forward(n)
}

/// Transforms back to real lines of this length.
///
/// ```
/// let plan = millrace_fourier::real_inverse(4);
/// let (mut transformed, mut line) = (plan.make_input_vec(), plan.make_output_vec());
/// transformed[0].re = 1.0;
/// plan.process(&mut transformed, &mut line).unwrap();
/// assert_eq!(line, [1.0; 4]);
/// ```
#[inline(never)]
pub fn real_inverse(n: usize) -> Arc<dyn ComplexToReal<f32>> {
    RealFftPlanner::new().plan_fft_inverse(n)
}
