//! The operations once more, as naive as possible, in `f64` on the host. Nothing here is shared with the rest.

/// Numbers in order, and the length of every axis.
#[derive(Debug, Clone)]
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) data: Vec<f64>,
}

/// What an operation should give: the numbers, and for each the magnitude that its error is measured against.
pub(crate) struct Expected {
    pub(crate) array: Array,
    pub(crate) scale: Vec<f64>,
}

impl From<Array> for Expected {
    fn from(array: Array) -> Self {
        let scale = array.data.iter().map(|x| x.abs()).collect();
        Self { array, scale }
    }
}

impl Array {
    /// Asks `element` for every element by its coordinates.
    pub(crate) fn from_fn(shape: &[usize], mut element: impl FnMut(&[usize]) -> f64) -> Self {
        let n: usize = shape.iter().product();
        let mut data = Vec::with_capacity(n);
        let mut at = vec![0; shape.len()];
        for _ in 0..n {
            data.push(element(&at));
            for axis in (0..shape.len()).rev() {
                at[axis] += 1;
                if at[axis] < shape[axis] {
                    break;
                }
                at[axis] = 0;
            }
        }
        Self { shape: shape.to_vec(), data }
    }

    pub(crate) fn at(&self, at: &[usize]) -> f64 {
        let place = at.iter().zip(&self.shape).fold(0, |place, (&at, &dim)| place * dim + at);
        self.data[place]
    }

    /// With coordinates of another shape: missing axes are left out, those of length one stay at zero.
    fn stretched(&self, at: &[usize]) -> f64 {
        let at = &at[at.len() - self.shape.len()..];
        let along = at.iter().zip(&self.shape).map(|(&at, &dim)| (if dim == 1 { 0 } else { at }, dim));
        self.data[along.fold(0, |place, (at, dim)| place * dim + at)]
    }

    pub(crate) fn reshape(&self, shape: &[usize]) -> Self {
        Self { shape: shape.to_vec(), data: self.data.clone() }
    }

    pub(crate) fn permute(&self, order: &[usize]) -> Self {
        let shape: Vec<_> = order.iter().map(|&axis| self.shape[axis]).collect();
        Self::from_fn(&shape, |at| {
            let mut from = vec![0; at.len()];
            order.iter().zip(at).for_each(|(&axis, &at)| from[axis] = at);
            self.at(&from)
        })
    }

    /// Every `step`-th index of `start..end` along an axis; from the end if negative.
    pub(crate) fn slice(&self, axis: usize, start: usize, end: usize, step: isize) -> Self {
        let mut chosen: Vec<usize> = (start..end).collect();
        if step < 0 {
            chosen.reverse();
        }
        let chosen: Vec<usize> = chosen.into_iter().step_by(step.unsigned_abs()).collect();
        let mut shape = self.shape.clone();
        shape[axis] = chosen.len();
        Self::from_fn(&shape, |at| {
            let mut at = at.to_vec();
            at[axis] = chosen[at[axis]];
            self.at(&at)
        })
    }

    pub(crate) fn expand(&self, shape: &[usize]) -> Self {
        Self::from_fn(shape, |at| self.stretched(at))
    }

    pub(crate) fn pad(&self, around: &[(usize, usize)], value: f64) -> Self {
        let shape: Vec<_> = self.shape.iter().zip(around).map(|(dim, (a, b))| dim + a + b).collect();
        Self::from_fn(&shape, |at| {
            let inside: Option<Vec<usize>> = (0..at.len())
                .map(|axis| at[axis].checked_sub(around[axis].0).filter(|&at| at < self.shape[axis]))
                .collect();
            inside.map_or(value, |at| self.at(&at))
        })
    }

    pub(crate) fn map(&self, each: impl Fn(f64) -> f64) -> Self {
        Self { shape: self.shape.clone(), data: self.data.iter().map(|&x| each(x)).collect() }
    }

    /// The shape that all of them stretch to.
    pub(crate) fn common(arrays: &[&Self]) -> Vec<usize> {
        let rank = arrays.iter().map(|a| a.shape.len()).max().unwrap_or(0);
        let dim = |axis: usize| {
            let of = |a: &&Self| (axis + a.shape.len()).checked_sub(rank).map(|axis| a.shape[axis]);
            let dims: Vec<_> = arrays.iter().filter_map(of).collect();
            dims.iter().copied().find(|&dim| dim != 1).unwrap_or(1)
        };
        (0..rank).map(dim).collect()
    }

    pub(crate) fn zip(&self, other: &Self, each: impl Fn(f64, f64) -> f64) -> Self {
        let shape = Self::common(&[self, other]);
        Self::from_fn(&shape, |at| each(self.stretched(at), other.stretched(at)))
    }

    pub(crate) fn select(&self, yes: &Self, no: &Self) -> Self {
        let shape = Self::common(&[self, yes, no]);
        Self::from_fn(&shape, |at| if self.stretched(at) != 0.0 { yes.stretched(at) } else { no.stretched(at) })
    }

    /// Gives all elements that go into one output to `each`, which answers with the result and its scale.
    pub(crate) fn reduce(&self, axes: &[usize], each: impl Fn(&[f64]) -> (f64, f64)) -> Expected {
        let kept: Vec<usize> = (0..self.shape.len()).filter(|axis| !axes.contains(axis)).collect();
        let shape: Vec<usize> = kept.iter().map(|&axis| self.shape[axis]).collect();
        let mut groups: Vec<Vec<f64>> = vec![Vec::new(); shape.iter().product()];
        Self::from_fn(&self.shape, |at| {
            let output = kept.iter().fold(0, |place, &axis| place * self.shape[axis] + at[axis]);
            groups[output].push(self.at(at));
            0.0
        });
        let (data, scale) = groups.iter().map(|group| each(group)).unzip();
        Expected { array: Self { shape, data }, scale }
    }

    pub(crate) fn softmax(&self, axis: usize) -> Self {
        Self::from_fn(&self.shape, |at| {
            let along = |i: usize| {
                let mut at = at.to_vec();
                at[axis] = i;
                self.at(&at)
            };
            let all: Vec<f64> = (0..self.shape[axis]).map(along).collect();
            let largest = all.iter().copied().fold(f64::NEG_INFINITY, maximum);
            (self.at(at) - largest).exp() / all.iter().map(|x| (x - largest).exp()).sum::<f64>()
        })
    }

    /// Of at least two axes each.
    pub(crate) fn matmul(&self, other: &Self) -> Expected {
        let (a, b) = (self.shape.len() - 2, other.shape.len() - 2);
        let (m, k, n) = (self.shape[a], self.shape[a + 1], other.shape[b + 1]);
        let batch_of = |array: &Self, rank: usize| Self { shape: array.shape[..rank].to_vec(), data: Vec::new() };
        let mut shape = Self::common(&[&batch_of(self, a), &batch_of(other, b)]);
        let batch = shape.len();
        shape.extend([m, n]);
        let sum = |each: &dyn Fn(f64, f64) -> f64| {
            Self::from_fn(&shape, |at| {
                let (mut left, mut right) = (at.to_vec(), at.to_vec());
                let product = |k: usize| {
                    (left[batch + 1], right[batch]) = (k, k);
                    each(self.stretched(&left), other.stretched(&right))
                };
                (0..k).map(product).sum()
            })
        };
        Expected { array: sum(&|a, b| a * b), scale: sum(&|a, b| (a * b).abs()).data }
    }
}

pub(crate) fn maximum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) }
}

pub(crate) fn minimum(a: f64, b: f64) -> f64 {
    -maximum(-a, -b)
}

/// The first of the most extreme, or the first NaN.
pub(crate) fn argmax(all: &[f64]) -> (f64, f64) {
    let first_nan = all.iter().position(|x| x.is_nan());
    let largest = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let at = first_nan.or_else(|| all.iter().position(|&x| x == largest)).unwrap_or(0);
    (at as f64, 1.0)
}

pub(crate) fn argmin(all: &[f64]) -> (f64, f64) {
    argmax(&all.iter().map(|x| -x).collect::<Vec<_>>())
}

/// Python's remainder, by repeated halving of the quotient's bits: exact for what an `f32` holds.
pub(crate) fn remainder(a: f64, b: f64) -> f64 {
    let r = a % b;
    if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
}

/// The share of a normal distribution below `x`.
pub(crate) fn normal_share(x: f64) -> f64 {
    let u = x.abs() / std::f64::consts::SQRT_2;
    let upper = if u < 3.0 {
        // erf as a series
        let (mut term, mut sum) = (u, u);
        for n in 1..200 {
            term *= -u * u / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        1.0 - 2.0 / std::f64::consts::PI.sqrt() * sum
    } else {
        // erfc as a continued fraction, from the inside out
        let fraction = (1..200).rev().fold(u, |below, n| u + f64::from(n) / 2.0 / below);
        (-u * u).exp() / std::f64::consts::PI.sqrt() / fraction
    };
    if x < 0.0 { upper / 2.0 } else { 1.0 - upper / 2.0 }
}
