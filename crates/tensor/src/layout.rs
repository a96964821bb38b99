//! Where an element of a tensor is: shapes, strides, and the views that only change those.

use std::{fmt, ops::Deref};

use crate::{Error, Result};

/// The most axes a tensor can have.
pub const MAX_RANK: usize = 8;
/// The most axes that elementwise kernels walk, after axes that lie behind one another were merged.
pub(crate) const WALKED: usize = 6;

/// The length of every axis, outermost first. Reads as a slice.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; MAX_RANK],
    rank: u8,
}

impl Shape {
    pub(crate) const SCALAR: Self = Self { dims: [0; MAX_RANK], rank: 0 };

    /// Checks that it has at most [`MAX_RANK`] axes and that its elements can be counted.
    pub(crate) fn new(op: &'static str, dims: &[usize]) -> Result<Self> {
        if dims.len() > MAX_RANK {
            return Err(Error::Rank { op, rank: dims.len(), limit: MAX_RANK });
        }
        // Axes of length zero must not hide that the others are too long.
        let elements = dims.iter().filter(|&&d| d != 0).try_fold(1usize, |n, &d| n.checked_mul(d));
        match elements {
            Some(n) if n <= i32::MAX as usize => Ok(dims.iter().copied().collect()),
            _ => Err(Error::TooLarge { op, elements: elements.unwrap_or(usize::MAX) }),
        }
    }

    #[inline]
    pub(crate) fn elements(&self) -> usize {
        self.iter().product()
    }

    pub(crate) fn push(&mut self, dim: usize) {
        self.dims[self.rank as usize] = dim;
        self.rank += 1;
    }

    pub(crate) fn set(&mut self, axis: usize, dim: usize) {
        self.dims[..self.rank as usize][axis] = dim;
    }

    /// The axis that a user names, counted from the end if negative.
    pub(crate) fn axis(&self, op: &'static str, axis: isize) -> Result<usize> {
        let rank = self.rank as isize;
        if (-rank..rank).contains(&axis) {
            Ok(axis.rem_euclid(rank) as usize)
        } else {
            Err(Error::Axis { op, axis, shape: (*self).into(), why: "does not exist" })
        }
    }

    /// The axes that a user names, as bits.
    pub(crate) fn axes(&self, op: &'static str, axes: &[isize]) -> Result<u32> {
        axes.iter().try_fold(0, |seen, &axis| {
            let bit = 1 << self.axis(op, axis)?;
            if seen & bit != 0 {
                return Err(Error::Axis { op, axis, shape: (*self).into(), why: "is named twice" });
            }
            Ok(seen | bit)
        })
    }

    /// The shape that both stretch to: aligned at the last axis, where one is as long as the other or has length one.
    pub(crate) fn broadcast(op: &'static str, a: &Self, b: &Self) -> Result<Self> {
        if a == b {
            return Ok(*a);
        }
        let fails = || Error::Shapes { op, left: (*a).into(), right: (*b).into(), why: "do not broadcast" };
        let rank = a.len().max(b.len());
        let at = |s: &Self, i: usize| (i + s.len()).checked_sub(rank).map_or(1, |i| s[i]);
        let mut out = Self::SCALAR;
        for i in 0..rank {
            match (at(a, i), at(b, i)) {
                (x, y) if x == y || y == 1 => out.push(x),
                (1, y) => out.push(y),
                _ => return Err(fails()),
            }
        }
        Self::new(op, &out)
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(dims: I) -> Self {
        let mut shape = Self::SCALAR;
        dims.into_iter().for_each(|dim| shape.push(dim));
        shape
    }
}

impl Deref for Shape {
    type Target = [usize];

    #[inline]
    fn deref(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Steps from one element to the next along every axis, in elements.
pub(crate) type Strides = [isize; MAX_RANK];

/// A shape, and where in the buffer its elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) shape: Shape,
    pub(crate) strides: Strides,
    pub(crate) offset: usize,
}

impl Layout {
    #[inline]
    pub(crate) fn contiguous(shape: Shape) -> Self {
        Self { shape, strides: packed(&shape), offset: 0 }
    }

    pub(crate) fn strides(&self) -> &[isize] {
        &self.strides[..self.shape.len()]
    }

    /// Whether the elements lie in order without gaps. Strides along axes of length one say nothing.
    #[inline]
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut expected = 1;
        for (&dim, &stride) in self.shape.iter().zip(self.strides()).rev() {
            if dim != 1 && stride != expected {
                return self.shape.elements() == 0;
            }
            expected *= dim as isize;
        }
        true
    }

    /// The same elements seen with a longer shape, repeated along new axes and those of length one.
    pub(crate) fn expand(&self, op: &'static str, to: &Shape) -> Result<Self> {
        if self.shape == *to {
            return Ok(*self);
        }
        let fails = || Error::Shapes { op, left: self.shape.into(), right: (*to).into(), why: "do not broadcast" };
        let new = to.len().checked_sub(self.shape.len()).ok_or_else(fails)?;
        let mut strides = [0; MAX_RANK];
        for (i, (&from, &stride)) in self.shape.iter().zip(self.strides()).enumerate() {
            strides[new + i] = match to[new + i] {
                dim if dim == from => stride,
                _ if from == 1 => 0,
                _ => return Err(fails()),
            };
        }
        Ok(Self { shape: *to, strides, offset: self.offset })
    }

    /// The same elements in the same order with another shape, if strides can say that.
    pub(crate) fn reshape(&self, to: &Shape) -> Option<Self> {
        if self.is_contiguous() {
            return Some(Self { offset: self.offset, ..Self::contiguous(*to) });
        }
        // Groups of old axes that lie behind one another become groups of new axes of the same size.
        let (rank, old, [steps]) = merge(&self.shape, [&self.strides]);
        let mut strides = [0; MAX_RANK];
        let mut axis = to.len();
        for group in (0..rank).rev() {
            let (mut left, mut step) = (old[group], steps[group]);
            while left > 1 {
                axis = axis.checked_sub(1)?;
                if !left.is_multiple_of(to[axis]) {
                    return None;
                }
                strides[axis] = step;
                step *= to[axis] as isize;
                left /= to[axis];
            }
        }
        // What is left has length one.
        Some(Self { shape: *to, strides, offset: self.offset })
    }

    pub(crate) fn permute(&self, order: &[usize]) -> Self {
        let mut strides = [0; MAX_RANK];
        order.iter().enumerate().for_each(|(to, &from)| strides[to] = self.strides[from]);
        Self { shape: order.iter().map(|&from| self.shape[from]).collect(), strides, offset: self.offset }
    }

    /// Every `step`-th of `len` elements along `axis`, from `start` on; backwards if `step` is negative.
    pub(crate) fn take(&self, axis: usize, start: usize, len: usize, step: isize) -> Self {
        let mut view = *self;
        if len > 0 {
            view.offset = (view.offset as isize + start as isize * self.strides[axis]) as usize;
        }
        view.shape.set(axis, len);
        view.strides[axis] *= step;
        view
    }

    /// Without the axes of the given bits, which have length one or are not of interest.
    pub(crate) fn without(&self, axes: u32) -> Self {
        let keep: Shape = (0..self.shape.len()).filter(|i| axes & 1 << i == 0).collect();
        self.permute(&keep)
    }
}

/// Strides of elements that lie in order without gaps.
#[inline]
pub(crate) fn packed(shape: &Shape) -> Strides {
    let mut strides = [0; MAX_RANK];
    let mut step = 1;
    for (i, &dim) in shape.iter().enumerate().rev() {
        strides[i] = step;
        step *= dim as isize;
    }
    strides
}

/// Merges neighbouring axes that every operand walks as if they were one, and leaves out those of length one. Says how
/// many are left, their lengths and strides. At least one is left.
pub(crate) fn merge<const N: usize>(
    shape: &Shape,
    operands: [&Strides; N],
) -> (usize, [usize; MAX_RANK], [Strides; N]) {
    let (mut dims, mut strides, mut rank) = ([1; MAX_RANK], [[0; MAX_RANK]; N], 0);
    for (axis, &dim) in shape.iter().enumerate().filter(|(_, dim)| **dim != 1) {
        let step = |operand: usize| operands[operand][axis];
        let behind = rank > 0 && (0..N).all(|n| strides[n][rank - 1] == step(n) * dim as isize);
        if !behind {
            rank += 1;
            dims[rank - 1] = 1;
        }
        dims[rank - 1] *= dim;
        (0..N).for_each(|n| strides[n][rank - 1] = step(n));
    }
    if rank == 0 {
        // One element, or none at all.
        (dims[0], rank) = (shape.elements(), 1);
        strides = [[1; MAX_RANK]; N];
    }
    (rank, dims, strides)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new("test", dims).unwrap()
    }

    #[test]
    fn broadcasting_aligns_at_the_last_axis() {
        let broadcast = |a: &[usize], b: &[usize]| Shape::broadcast("test", &shape(a), &shape(b)).map(|s| s.to_vec());
        assert_eq!(broadcast(&[2, 3], &[3]).unwrap(), [2, 3]);
        assert_eq!(broadcast(&[4, 1, 3], &[5, 1]).unwrap(), [4, 5, 3]);
        assert_eq!(broadcast(&[1], &[0]).unwrap(), [0]);
        assert_eq!(broadcast(&[], &[2, 2]).unwrap(), [2, 2]);
        assert!(broadcast(&[2], &[3]).is_err());
        assert!(broadcast(&[0], &[3]).is_err());
    }

    #[test]
    fn axes_that_lie_behind_one_another_are_merged() {
        let layout = Layout::contiguous(shape(&[2, 1, 3, 4]));
        let (rank, dims, strides) = merge(&layout.shape, [&layout.strides]);
        assert_eq!((rank, dims[0], strides[0][0]), (1, 24, 1));
        let turned = layout.permute(&[3, 0, 1, 2]);
        let (rank, dims, strides) = merge(&turned.shape, [&turned.strides]);
        assert_eq!((rank, &dims[..2], &strides[0][..2]), (2, &[4, 6][..], &[1, 4][..]));
    }

    #[test]
    fn a_view_is_reshaped_without_a_copy_exactly_if_strides_can_say_it() {
        let turned = Layout::contiguous(shape(&[2, 3, 4])).permute(&[2, 0, 1]);
        let reshaped = turned.reshape(&shape(&[2, 2, 6])).unwrap();
        assert_eq!(reshaped.strides(), [2, 1, 4]);
        assert_eq!(turned.reshape(&shape(&[8, 3])), None);
        assert_eq!(turned.reshape(&shape(&[1, 4, 1, 3, 2])).unwrap().strides()[1], 1);
        let repeated = Layout::contiguous(shape(&[3, 1])).expand("test", &shape(&[3, 4])).unwrap();
        assert_eq!(repeated.reshape(&shape(&[3, 2, 2])).unwrap().strides(), [1, 0, 0]);
        assert_eq!(repeated.reshape(&shape(&[12])), None);
    }

    #[test]
    fn a_shape_says_what_is_too_much() {
        assert!(matches!(Shape::new("test", &[1; 9]), Err(Error::Rank { rank: 9, .. })));
        assert!(matches!(Shape::new("test", &[1 << 20, 1 << 20]), Err(Error::TooLarge { .. })));
        assert!(matches!(Shape::new("test", &[0, 1 << 40, 1 << 40]), Err(Error::TooLarge { .. })));
        assert_eq!(shape(&[3, 0, 5]).elements(), 0);
    }
}
