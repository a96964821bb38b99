//! An operand's elements in order, whatever its strides.

use bytemuck::Pod;

use crate::{layout::WALKED, ops::Walk};

/// An operand of a walk.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a, T> {
    /// Its elements lie in order.
    Packed(&'a [T]),
    /// It is the same everywhere.
    Constant(T),
    /// Its elements are found by their strides.
    Strided { elements: &'a [T], rank: usize, shape: [u32; WALKED], strides: [i32; WALKED], offset: usize },
}

impl<'a, T: Pod> Source<'a, T> {
    /// Operand `n` of a walk over `elements`.
    pub(crate) fn of(walk: &Walk, n: usize, elements: &'a [T]) -> Self {
        let (offset, strides) = (walk.offsets[n] as usize, walk.strides[n]);
        if walk.scalar == n as u32 + 1 {
            return Self::Constant(bytemuck::cast(walk.value));
        }
        match (walk.rank, strides[0]) {
            (1, 1) => Self::Packed(&elements[offset..offset + walk.n as usize]),
            (1, 0) => Self::Constant(elements[offset]),
            (rank, _) => Self::Strided { elements, rank: rank as usize, shape: walk.shape, strides, offset },
        }
    }

    /// The elements from `start` on, as many as `room` holds: in place, or gathered into `room`.
    #[inline]
    pub(crate) fn block<'b>(&self, start: usize, room: &'b mut [T]) -> &'b [T]
    where
        'a: 'b,
    {
        match *self {
            Self::Packed(elements) => &elements[start..start + room.len()],
            Self::Constant(value) => {
                room.fill(value);
                room
            }
            Self::Strided { elements, rank, ref shape, ref strides, offset } => {
                gather(elements, &shape[..rank], &strides[..rank], offset, start, room);
                room
            }
        }
    }
}

/// Copies the elements from number `start` on, in the order of `shape`, into `room`.
pub(crate) fn gather<T: Copy>(
    elements: &[T],
    shape: &[u32],
    strides: &[i32],
    offset: usize,
    start: usize,
    room: &mut [T],
) {
    let (Some((&inner, outer)), Some((&step, steps))) = (shape.split_last(), strides.split_last()) else { return };
    let (inner, step) = (inner as usize, step as isize);
    // The coordinates of the row that `start` is in, and where in the row it is.
    let (mut row, mut column) = (start / inner, start % inner);
    let mut at = [0u32; 8];
    let mut place = offset as isize;
    for axis in (0..outer.len()).rev() {
        at[axis] = (row % outer[axis] as usize) as u32;
        row /= outer[axis] as usize;
        place += at[axis] as isize * steps[axis] as isize;
    }
    let mut rest = room;
    while !rest.is_empty() {
        let (now, later) = rest.split_at_mut((inner - column).min(rest.len()));
        let first = place + column as isize * step;
        match step {
            1 => now.copy_from_slice(&elements[first as usize..first as usize + now.len()]),
            0 => now.fill(elements[first as usize]),
            _ => now.iter_mut().enumerate().for_each(|(i, to)| *to = elements[(first + i as isize * step) as usize]),
        }
        (rest, column) = (later, 0);
        for axis in (0..outer.len()).rev() {
            at[axis] += 1;
            place += steps[axis] as isize;
            if at[axis] < outer[axis] {
                break;
            }
            place -= outer[axis] as isize * steps[axis] as isize;
            at[axis] = 0;
        }
    }
}
