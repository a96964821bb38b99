//! How a length is transformed on a GPU, and the tables for it, which are made in `f64` and uploaded once.
//!
//! A length whose prime factors are 2, 3, 5 and 7 is a product of at most a few radices, each small enough for a group's
//! memory; a pass does all transforms of one radix, which is itself a product of the factors that one thread does.
//! Everything else goes through Bluestein's chirp: a convolution of a length that has such factors.

use std::{
    f64::consts::PI,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use millrace_core::Buffer;
use millrace_fourier::FftDirection;
use num_complex::{Complex32, Complex64};

use super::Kind;
use crate::{Result, Tensors};

/// Elements that fit into a group's memory, twice.
pub(super) const ROOM: usize = 1024;
/// The largest radix of several passes: four neighbouring columns fit, so that memory is read in whole pieces.
const RADIX: usize = 256;
/// Plans that are kept: those used last.
const KEPT: usize = 32;

/// All transforms of one radix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) radix: usize,
    /// Its factors, four bits each, the first one lowest.
    pub(super) factors: u32,
}

/// A length, and how it is transformed.
pub(super) struct Plan {
    /// The length of the passes.
    pub(super) len: usize,
    pub(super) passes: Vec<Pass>,
    /// Roots of unity of that length, then the chirp, its transform, and the roots for real numbers, as far as needed.
    pub(super) tables: Buffer,
    pub(super) chirp: Option<Chirp>,
    /// Where the roots for real numbers of an even length begin.
    pub(super) half: usize,
}

/// Where Bluestein's tables begin.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chirp {
    pub(super) at: usize,
    pub(super) transformed: usize,
}

/// The factors that a thread does at once, or none if there are others.
fn factors(mut n: usize) -> Option<Vec<u32>> {
    let mut found = Vec::new();
    for factor in [8, 7, 5, 4, 3, 2] {
        while n.is_multiple_of(factor) {
            found.push(factor as u32);
            n /= factor;
        }
    }
    (n == 1).then_some(found)
}

/// As few radices as possible, of about the same size.
fn radices(n: usize) -> Vec<usize> {
    if n <= ROOM {
        return vec![n];
    }
    fn split(n: usize, count: usize) -> Option<Vec<usize>> {
        if count == 1 {
            return (n <= RADIX).then(|| vec![n]);
        }
        let even = (n as f64).powf(1.0 / count as f64).floor() as usize;
        (even.max(2)..=RADIX).filter(|&radix| n.is_multiple_of(radix)).find_map(|radix| {
            let mut rest = split(n / radix, count - 1)?;
            rest.insert(0, radix);
            Some(rest)
        })
    }
    // There is an end: one factor each is always possible.
    (2..).find_map(|count| split(n, count)).unwrap_or_default()
}

/// The shortest length that the chirp's convolution fits into.
fn padded(n: usize) -> usize {
    let enough = 2 * n - 1;
    [1, 3, 5, 9, 15].into_iter().map(|odd| odd * enough.div_ceil(odd).next_power_of_two()).min().unwrap_or(enough)
}

fn root(k: usize, of: usize) -> Complex64 {
    Complex64::from_polar(1.0, -2.0 * PI * k as f64 / of as f64)
}

/// `e^(-πi k² / n)`; the square is reduced while it is still exact.
fn chirp(k: usize, n: usize) -> Complex64 {
    let square = (k as u128 * k as u128 % (2 * n as u128)) as usize;
    root(square, 2 * n)
}

impl Plan {
    /// For complex transforms of length `n`, or for real ones. Of real numbers of an even length pairs are transformed
    /// as if they were complex.
    fn new(tensors: &Tensors, n: usize, real: bool) -> Result<Self> {
        let halved = real && n.is_multiple_of(2);
        let inner = if halved { n / 2 } else { n };
        let direct = factors(inner).is_some();
        let len = if direct { inner } else { padded(inner) };
        let mut tables: Vec<Complex64> = (0..len).map(|k| root(k, len)).collect();
        let mut places = None;
        if !direct {
            let (at, transformed) = (len, len + inner);
            let chirp: Vec<_> = (0..inner).map(|k| chirp(k, inner)).collect();
            let mut hat = vec![Complex64::ZERO; len];
            for (k, value) in chirp.iter().enumerate() {
                hat[k] = value.conj();
                hat[(len - k) % len] = value.conj();
            }
            millrace_fourier::complex_f64(len, FftDirection::Forward).process(&mut hat);
            tables.extend(chirp.into_iter().chain(hat));
            places = Some(Chirp { at, transformed });
        }
        let half = tables.len();
        if halved {
            tables.extend((0..=inner).map(|k| root(k, n)));
        }
        let bytes: Vec<u8> = tables
            .iter()
            .flat_map(|x| bytemuck::bytes_of(&Complex32::new(x.re as f32, x.im as f32)).to_vec())
            .collect();
        let tables = tensors.device().allocate(bytes.len())?;
        tensors.enqueue(tables.write(0, Bytes::from(bytes)))?;
        let pass = |radix: usize| {
            let factors = factors(radix).unwrap_or_default();
            Pass { radix, factors: factors.iter().rev().fold(0, |all, factor| all << 4 | factor) }
        };
        Ok(Self { len, passes: radices(len).into_iter().map(pass).collect(), tables, chirp: places, half })
    }
}

/// A plan's length, and whether it is for real numbers.
type Key = (usize, bool);

/// The plans that were made, the last used one last.
#[derive(Default)]
pub(super) struct Plans(Mutex<Vec<(Key, Arc<Plan>)>>);

impl Plans {
    pub(super) fn get(&self, tensors: &Tensors, kind: Kind, n: usize) -> Result<Arc<Plan>> {
        let key = (n, matches!(kind, Kind::Real | Kind::RealInverse));
        let mut plans = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = plans.iter().rposition(|(known, _)| *known == key) {
            plans[at..].rotate_left(1);
        } else {
            let plan = Arc::new(Plan::new(tensors, key.0, key.1)?);
            if plans.len() == KEPT {
                plans.remove(0);
            }
            plans.push((key, plan));
        }
        Ok(plans[plans.len() - 1].1.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn radices_make_the_length_in_as_few_passes_as_fit() {
        for (n, passes) in [(1, 1), (2, 1), (1024, 1), (1000, 1), (2048, 2), (65_536, 2), (1 << 20, 3), (1 << 24, 3)] {
            let radices = radices(n);
            assert_eq!(radices.iter().product::<usize>(), n);
            assert_eq!(radices.len(), passes, "{n}: {radices:?}");
        }
        for n in 1..20_000 {
            if factors(n).is_some() {
                let all = radices(n);
                assert_eq!(all.iter().product::<usize>(), n);
                assert!(all.len() == 1 && n <= ROOM || all.iter().all(|&radix| radix <= RADIX), "{n}: {all:?}");
            }
        }
    }

    #[test]
    fn factors_are_small_or_the_length_is_bluestein_s() {
        assert!(factors(1).unwrap().is_empty());
        assert_eq!(factors(840).unwrap(), [8, 7, 5, 3]);
        assert_eq!(factors(1024).unwrap(), [8, 8, 8, 2]);
        assert_eq!(factors(11), None);
        for n in 2..5000 {
            let len = padded(n);
            assert!(len >= 2 * n - 1 && len < 4 * n && factors(len).is_some(), "{n}: {len}");
        }
    }

    #[test]
    fn the_chirp_is_exact_for_squares_that_overflow() {
        let n = 5_000_011;
        let exact = chirp(4_999_999, n);
        // 4999999² = n² - 24 n + 144, and n² mod 2n is n as n is odd: half a turn.
        let expected = root(n + 144, 2 * n);
        assert!((exact - expected).norm() < 1e-12);
    }
}
