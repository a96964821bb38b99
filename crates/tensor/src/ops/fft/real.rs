//! Lines of real numbers of even length: neighbours are taken for a complex number, so that half as many complex ones are
//! transformed, and the frequencies of even and odd places, which are mixed then, are told apart. (Cooley, Lewis and Welch,
//! "The fast Fourier transform algorithm: programming considerations", 1970.)

use std::{f64::consts::TAU, sync::Arc};

use millrace_fourier::{Fft, FftDirection};
use num_complex::{Complex32, Complex64};
use pulp::{Simd, WithSimd};

use crate::simd::arch;

/// Frequencies that are told apart at a time, with as many mirror images: a register of the widest.
const WIDTH: usize = 8;

/// A plan for lines of one length in one direction.
pub(super) struct Halved {
    half: Arc<dyn Fft<f32>>,
    /// What sums of a frequency and its mirror image are multiplied with,
    sums: f32,
    /// and differences: for frequencies up to the middle.
    differences: Vec<Complex32>,
}

impl Halved {
    /// Forward, or the way back. None if the length is odd.
    pub(super) fn new(n: usize, inverse: bool) -> Option<Self> {
        if !n.is_multiple_of(2) {
            return None;
        }
        let half = n / 2;
        let root = |k: usize| Complex64::from_polar(1.0, -TAU * k as f64 / n as f64) * Complex64::new(0.0, -0.5);
        let forward = (0..half.div_ceil(2)).map(root);
        let (sums, differences): (_, Vec<Complex64>) =
            if inverse { (1.0, forward.map(|root| root.conj() * 2.0).collect()) } else { (0.5, forward.collect()) };
        let differences = differences.into_iter().map(|x| Complex32::new(x.re as f32, x.im as f32)).collect();
        let direction = if inverse { FftDirection::Inverse } else { FftDirection::Forward };
        Some(Self { half: millrace_fourier::complex(half, direction), sums, differences })
    }

    /// Elements that a transform needs besides its input and output.
    pub(super) fn scratch(&self) -> usize {
        self.half.get_inplace_scratch_len().max(self.half.get_immutable_scratch_len())
    }

    /// Real numbers become frequencies, one more than half of them.
    pub(super) fn forward(&self, x: &[f32], to: &mut [Complex32], scratch: &mut [Complex32]) {
        let half = x.len() / 2;
        let (low, last) = to.split_at_mut(half);
        self.half.process_immutable_with_scratch(bytemuck::cast_slice(x), low, scratch);
        let first = low[0];
        (low[0], last[0]) = ((first.re + first.im).into(), (first.re - first.im).into());
        self.separate(low);
    }

    /// Frequencies become real numbers. What real numbers cannot have is left out.
    pub(super) fn inverse(&self, x: &[Complex32], to: &mut [f32], scratch: &mut [Complex32]) {
        let pairs: &mut [Complex32] = bytemuck::cast_slice_mut(to);
        let (low, last) = x.split_at(pairs.len());
        pairs.copy_from_slice(low);
        pairs[0] = Complex32::new(low[0].re + last[0].re, low[0].re - last[0].re);
        self.separate(pairs);
        self.half.process_with_scratch(pairs, scratch);
    }

    /// Tells apart what the first half of all frequencies is made of, or mixes it again; but for the very first one.
    fn separate(&self, x: &mut [Complex32]) {
        if x.len().is_multiple_of(2) {
            let middle = &mut x[self.differences.len()];
            *middle = middle.conj() * (2.0 * self.sums);
        }
        arch().dispatch(Separate { plan: self, x });
    }

    /// A frequency and its mirror image.
    #[inline(always)]
    fn pair(&self, a: Complex32, b: Complex32, difference: Complex32) -> (Complex32, Complex32) {
        let (re, im) = (self.sums * (a.re + b.re), self.sums * (a.im - b.im));
        let (x, y) = (a.re - b.re, a.im + b.im);
        let (x, y) = (x * difference.re - y * difference.im, x * difference.im + y * difference.re);
        (Complex32::new(re + x, im + y), Complex32::new(re - x, y - im))
    }
}

struct Separate<'a> {
    plan: &'a Halved,
    x: &'a mut [Complex32],
}

impl WithSimd for Separate<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { plan, x } = self;
        let differences = &plan.differences[1..];
        let count = differences.len();
        let (low, high) = x[1..].split_at_mut(count);
        let high_start = high.len() - count;
        let (lows, low_rest) = low.as_chunks_mut::<WIDTH>();
        let (high_rest, highs) = high[high_start..].as_rchunks_mut::<WIDTH>();
        let (several, rest) = differences.as_chunks::<WIDTH>();
        for ((low, high), differences) in lows.iter_mut().zip(highs.iter_mut().rev()).zip(several) {
            // Taken out and put back as wholes, so that both become registers that are turned round.
            let (mut a, mut b) = ([Complex32::ZERO; WIDTH], [Complex32::ZERO; WIDTH]);
            for i in 0..WIDTH {
                (a[i], b[WIDTH - 1 - i]) = plan.pair(low[i], high[WIDTH - 1 - i], differences[i]);
            }
            (*low, *high) = (a, b);
        }
        for ((low, high), difference) in low_rest.iter_mut().zip(high_rest.iter_mut().rev()).zip(rest) {
            (*low, *high) = plan.pair(*low, *high, *difference);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::across::tests::noise, *};

    #[test]
    fn even_lines_have_the_frequencies_of_complex_ones() {
        for n in (2..80).chain([128, 510, 512, 1000, 1022]).filter(|n: &usize| n.is_multiple_of(2)) {
            let x: Vec<f32> = noise(n).iter().map(|x| x.re).collect();
            let mut wanted: Vec<Complex64> = x.iter().map(|&x| f64::from(x).into()).collect();
            millrace_fourier::complex_f64(n, FftDirection::Forward).process(&mut wanted);
            let mut got = vec![Complex32::ZERO; n / 2 + 1];
            let there = Halved::new(n, false).unwrap();
            there.forward(&x, &mut got, &mut vec![Complex32::ZERO; there.scratch()]);
            let size = wanted.iter().map(|x| x.norm()).fold(0.0, f64::max);
            for (k, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                let error = (Complex64::new(got.re.into(), got.im.into()) - wanted).norm() / size;
                assert!(error < 1e-6, "frequency {k} of {n}: {got}, not {wanted}");
            }
            // What is no frequency of real numbers does not count.
            (got[0].im, got[n / 2].im) = (7.0, -7.0);
            let mut again = vec![0.0; n];
            let back = Halved::new(n, true).unwrap();
            back.inverse(&got, &mut again, &mut vec![Complex32::ZERO; back.scratch()]);
            for (again, x) in again.iter().zip(&x) {
                assert!((again / n as f32 - x).abs() < 1e-6, "{n}: {again} / {n}, not {x}");
            }
        }
        assert!(Halved::new(7, false).is_none());
    }
}
