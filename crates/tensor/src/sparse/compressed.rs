//! Entries line after line: rows in [`Csr`], columns in [`Csc`]. Both are the same arrays, looked at from two sides.

use std::ops::Range;

use super::{
    Coo, Invalid, LIMIT, count,
    merge::{self, Lines},
    sides,
    sort::sum_up,
};
use crate::{Error, Result};

/// Lines whose indices rise.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Compressed {
    /// How many lines there are,
    pub(super) lines: usize,
    /// and how long they are.
    pub(super) across: usize,
    /// Line `i` has the entries from `pointers[i]` to `pointers[i + 1]`.
    pub(super) pointers: Vec<u32>,
    pub(super) indices: Vec<u32>,
    pub(super) values: Vec<f32>,
}

/// Finds the first index that is too large.
pub(super) fn check_indices(what: &'static str, indices: &[u32], limit: usize) -> Result<()> {
    // One pass without branches; where it is wrong, a second one for the place.
    if (indices.iter().fold(0, |most, &index| most.max(index)) as usize) < limit {
        return Ok(());
    }
    match indices.iter().position(|&index| index as usize >= limit) {
        Some(entry) => Err(Invalid::OutOfRange { what, entry, index: indices[entry] as usize, limit }.into()),
        None => Ok(()),
    }
}

/// How many elements the matrix has with its zeros.
pub(super) fn dense_len([rows, columns]: [usize; 2]) -> Result<usize> {
    match rows.checked_mul(columns) {
        Some(n) if n <= LIMIT => Ok(n),
        n => Err(Error::TooLarge { op: "to_dense", elements: n.unwrap_or(usize::MAX) }),
    }
}

impl Compressed {
    /// Everything that must be true, with the lines' and the indices' names.
    fn check(&self, line: &'static str, index: &'static str) -> Result<()> {
        count("non-zeros", self.values.len())?;
        let lengths =
            [("pointers", self.pointers.len(), self.lines + 1), ("indices", self.indices.len(), self.values.len())];
        if let Some((what, given, expected)) = lengths.into_iter().find(|(_, given, expected)| given != expected) {
            return Err(Invalid::Length { what, given, expected }.into());
        }
        if self.pointers[0] != 0 {
            return Err(Invalid::FirstPointer { first: self.pointers[0] }.into());
        }
        if let Some(number) = self.pointers.windows(2).position(|pair| pair[0] > pair[1]) {
            let (from, to) = (self.pointers[number], self.pointers[number + 1]);
            return Err(Invalid::Falling { line, number, from, to }.into());
        }
        let last = self.pointers[self.lines];
        if last as usize != self.values.len() {
            return Err(Invalid::LastPointer { last, entries: self.values.len() }.into());
        }
        check_indices(index, &self.indices, self.across)?;
        for number in 0..self.lines {
            let range = self.range(number);
            let indices = &self.indices[range.clone()];
            let Some(at) = indices.windows(2).position(|pair| pair[0] >= pair[1]) else { continue };
            let (before, index, entry) = (indices[at], indices[at + 1], range.start + at + 1);
            return Err(match before == index {
                true => Invalid::Duplicate { line, number, entry, index },
                false => Invalid::Unsorted { line, number, entry, before, index },
            }
            .into());
        }
        Ok(())
    }

    pub(super) fn range(&self, line: usize) -> Range<usize> {
        self.pointers[line] as usize..self.pointers[line + 1] as usize
    }

    pub(super) fn line(&self, line: usize) -> (&[u32], &[f32]) {
        let range = self.range(line);
        (&self.indices[range.clone()], &self.values[range])
    }

    /// The line of every entry.
    fn line_numbers(&self) -> Vec<u32> {
        let mut lines = Vec::with_capacity(self.values.len());
        (0..self.lines).for_each(|line| lines.resize(self.pointers[line + 1] as usize, line as u32));
        lines
    }

    fn lines(&self) -> Lines<'_> {
        Lines { pointers: &self.pointers, indices: &self.indices, values: &self.values }
    }

    /// The same entries, stored by what was across.
    pub(super) fn turned(&self) -> Self {
        let (mut pointers, entries) = (vec![0; self.across + 1], self.values.len());
        let (mut indices, mut values) = (vec![0; entries], vec![0.0; entries]);
        merge::turn(&self.lines(), &mut pointers, &mut indices, &mut values);
        Self { lines: self.across, across: self.lines, pointers, indices, values }
    }

    /// Lines of both merged; entries of one place are summed.
    pub(super) fn plus(&self, other: &Self) -> Result<Self> {
        let most = self.values.len() + other.values.len();
        let mut pointers = vec![0; self.lines + 1];
        let (mut indices, mut values) = (vec![0; most], vec![0.0; most]);
        let targets = (&mut pointers[1..], &mut indices, &mut values);
        let entries = merge::add(&self.lines(), &other.lines(), 0..self.lines, targets.0, targets.1, targets.2);
        count("non-zeros", entries)?;
        sum_up(&mut pointers);
        indices.truncate(entries);
        values.truncate(entries);
        Ok(Self { lines: self.lines, across: self.across, pointers, indices, values })
    }
}

/// What belongs to columns first.
fn exchanged<T>([a, b]: [T; 2]) -> [T; 2] {
    [b, a]
}

macro_rules! compressed {
    ($(#[$doc:meta])+ $name:ident, $line:literal, $index:literal, $shape:ident, $pick:path;) => {
        $(#[$doc])+
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name(pub(super) Compressed);

        impl $name {
            #[doc = concat!("A matrix of these arrays. Pointers are one more than ", $line, "s, start at zero, never fall and end with the")]
            #[doc = concat!("number of entries; ", $index, " indices rise within every ", $line, ". [`Coo`] takes what is not sorted.")]
            pub fn new(
                rows: usize,
                columns: usize,
                pointers: Vec<u32>,
                indices: Vec<u32>,
                values: Vec<f32>,
            ) -> Result<Self> {
                sides(rows, columns)?;
                let [lines, across] = $pick([rows, columns]);
                let parts = Compressed { lines, across, pointers, indices, values };
                parts.check($line, $index)?;
                Ok(Self(parts))
            }

            pub(super) fn of(parts: Compressed) -> Self {
                Self(parts)
            }

            /// Rows and columns.
            pub fn shape(&self) -> [usize; 2] {
                $pick([self.0.lines, self.0.across])
            }

            /// How many entries are stored; some of them may be zero.
            pub fn nnz(&self) -> usize {
                self.0.values.len()
            }

            #[doc = concat!("Where the entries of every ", $line, " start, and where the last one's end.")]
            pub fn pointers(&self) -> &[u32] {
                &self.0.pointers
            }

            #[doc = concat!("The ", $index, " of every entry, ", $line, " after ", $line, ", rising within each.")]
            pub fn indices(&self) -> &[u32] {
                &self.0.indices
            }

            #[doc = concat!("The value of every entry, ", $line, " after ", $line, ".")]
            pub fn values(&self) -> &[f32] {
                &self.0.values
            }

            #[doc = concat!("The ", $index, "s and values of one ", $line, "; nothing if there is no such ", $line, ".")]
            pub fn $shape(&self, number: usize) -> (&[u32], &[f32]) {
                if number < self.0.lines { self.0.line(number) } else { (&[], &[]) }
            }

            /// Row, column and value of every entry, in the order they are stored.
            pub fn entries(&self) -> impl Iterator<Item = (usize, usize, f32)> + '_ {
                (0..self.0.lines).flat_map(move |number| {
                    let (indices, values) = self.0.line(number);
                    indices.iter().zip(values).map(move |(&index, &value)| {
                        let [row, column] = $pick([number, index as usize]);
                        (row, column, value)
                    })
                })
            }

            /// A list of the same entries, in order.
            pub fn to_coo(&self) -> Coo {
                let [rows, columns] = $pick([self.0.line_numbers(), self.0.indices.clone()]);
                Coo::of(self.shape(), rows, columns, self.0.values.clone())
            }

            /// All elements, row after row.
            pub fn to_dense(&self) -> Result<Vec<f32>> {
                let columns = self.shape()[1];
                let mut dense = vec![0.0; dense_len(self.shape())?];
                self.entries().for_each(|(row, column, value)| dense[row * columns + column] = value);
                Ok(dense)
            }

            /// Both added up. Entries that cancel stay, as zeros.
            pub fn add(&self, other: &Self) -> Result<Self> {
                if self.shape() != other.shape() {
                    let (left, right) = (self.shape().into(), other.shape().into());
                    return Err(Error::Shapes { op: "add", left, right, why: "differ, and sparse matrices do not broadcast" });
                }
                Ok(Self(self.0.plus(&other.0)?))
            }
        }

        impl From<Coo> for $name {
            fn from(entries: Coo) -> Self {
                let [rows, columns] = entries.shape();
                let [lines, across] = $pick([rows, columns]);
                let [by_line, by_index] = $pick([entries.row_indices(), entries.column_indices()]);
                Self(super::sort::compress(lines, across, by_line, by_index, entries.values()))
            }
        }
    };
}
compressed! {
    /// A sparse matrix row after row (compressed sparse rows): what devices work with.
    ///
    /// ```
    /// use millrace::tensor::sparse::Csr;
    /// let matrix = Csr::new(2, 3, vec![0, 2, 3], vec![0, 2, 1], vec![1.0, 2.0, 3.0])?;
    /// assert_eq!(matrix.row(0), (&[0, 2][..], &[1.0, 2.0][..]));
    /// assert_eq!(matrix.add(&matrix)?.to_dense()?, [2.0, 0.0, 4.0, 0.0, 6.0, 0.0]);
    /// assert_eq!(matrix.to_csc().to_csr(), matrix);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Csr, "row", "column", row, std::convert::identity;
}
compressed! {
    /// A sparse matrix column after column (compressed sparse columns).
    ///
    /// ```
    /// use millrace::tensor::sparse::Csc;
    /// let matrix = Csc::new(2, 3, vec![0, 1, 2, 3], vec![0, 1, 0], vec![1.0, 3.0, 2.0])?;
    /// assert_eq!(matrix.column(1), (&[1][..], &[3.0][..]));
    /// assert_eq!(matrix.to_csr().to_dense()?, [1.0, 0.0, 2.0, 0.0, 3.0, 0.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Csc, "column", "row", column, exchanged;
}
