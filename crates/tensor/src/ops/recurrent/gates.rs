//! What the gates of a step do with their sums, for a row of hidden units. Loops without branches, for vectors.
//!
//! Sigmoid and tanh are made as fractions, so that a product of two of them takes one division: a division takes as
//! long as half of an exponential. Of a sigmoid the upper part is one.

use crate::math::{self, sigmoid_divisor_of_any as sigmoid_by, tanh_fraction as tanh};

#[inline(always)]
pub(super) fn vanilla_tanh(sums: &[f32], new: &mut [f32]) {
    new.iter_mut().zip(sums).for_each(|(new, sum)| *new = math::tanh(*sum));
}

#[inline(always)]
pub(super) fn vanilla_relu(sums: &[f32], new: &mut [f32]) {
    new.iter_mut().zip(sums).for_each(|(new, &sum)| *new = if sum < 0.0 { 0.0 } else { sum });
}

/// `[r, z, n]` of which `n` is the input's part alone; the state's is `apart`.
#[inline(always)]
pub(super) fn gru(sums: [&[f32]; 3], apart: &[f32], old: &[f32], new: &mut [f32]) {
    let n = new.len();
    let ([r, z, given], apart, old) = (sums, &apart[..n], &old[..n]);
    let (r, z, given) = (&r[..n], &z[..n], &given[..n]);
    for i in 0..n {
        let (reset, update) = (1.0 / sigmoid_by(r[i]), 1.0 / sigmoid_by(z[i]));
        let (top, bottom) = tanh(reset.mul_add(apart[i], given[i]));
        let candidate = top / bottom;
        new[i] = update.mul_add(old[i] - candidate, candidate);
    }
}

/// `[i, f, g, o]`.
#[inline(always)]
pub(super) fn lstm(sums: [&[f32]; 4], cells: &mut [f32], new: &mut [f32]) {
    let n = new.len();
    let ([i, f, g, o], cells) = (sums, &mut cells[..n]);
    let (i, f, g, o) = (&i[..n], &f[..n], &g[..n], &o[..n]);
    for at in 0..n {
        let (write, write_by) = tanh(g[at]);
        let cell = cells[at] / sigmoid_by(f[at]) + write / (sigmoid_by(i[at]) * write_by);
        cells[at] = cell;
        let (read, read_by) = tanh(cell);
        new[at] = read / (sigmoid_by(o[at]) * read_by);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_what_they_stand_for() {
        let samples = (0..20_000).map(|i| (i - 10_000) as f32 / 500.0);
        for x in samples.chain([0.0, 1e-30, -1e-8, 80.0, -90.0, 1e30, -1e30, f32::INFINITY, f32::NEG_INFINITY]) {
            for ((top, bottom), most, want) in [
                ((1.0, sigmoid_by(x)), f32::MAX / 2.0, 1.0 / (1.0 + (-f64::from(x)).exp())),
                (tanh(x), 2.0, f64::from(x).tanh()),
            ] {
                assert!((1.0..=most).contains(&bottom), "{x}: {bottom}");
                let got = f64::from(top / bottom);
                assert!((got - want).abs() <= 4e-7 * want.abs() + 1e-38, "{x}: {got} is not {want}");
            }
        }
        assert!(sigmoid_by(f32::NAN).is_nan());
        assert!(tanh(f32::NAN).0.is_nan());
    }
}
