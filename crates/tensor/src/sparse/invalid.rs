//! What can be wrong with a sparse matrix, with the place.

use super::LIMIT;

/// Why arrays do not make a sparse matrix. `line` is a row where rows are stored, and a column where columns are.
///
/// ```
/// use millrace::tensor::{Error, sparse::{Csr, Invalid}};
/// let error = Csr::new(2, 9, vec![0, 2, 3], vec![7, 4, 0], vec![1.0; 3]).unwrap_err();
/// assert_eq!(error, Error::Sparse(Invalid::Unsorted { line: "row", number: 0, entry: 1, before: 7, index: 4 }));
/// assert_eq!(error.to_string(), "row 0 is not sorted: index 4 of entry 1 comes after 7");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// Arrays whose lengths do not go together.
    #[error("there are {given} {what}, not {expected}")]
    Length {
        /// Which array.
        what: &'static str,
        /// Its length.
        given: usize,
        /// The length it has to have.
        expected: usize,
    },
    /// An index that is not inside the matrix.
    #[error("{what} index {index} of entry {entry} is not below {limit}")]
    OutOfRange {
        /// A row's or a column's.
        what: &'static str,
        /// Which entry.
        entry: usize,
        /// Its index.
        index: usize,
        /// How many there are.
        limit: usize,
    },
    /// Pointers that do not start at zero.
    #[error("the first pointer is {first}, not 0")]
    FirstPointer {
        /// What it is.
        first: u32,
    },
    /// Pointers that fall.
    #[error("the pointers of {line} {number} fall from {from} to {to}")]
    Falling {
        /// Row or column.
        line: &'static str,
        /// Which one.
        number: usize,
        /// Where its entries would start,
        from: u32,
        /// and end.
        to: u32,
    },
    /// Pointers that do not end with the entries.
    #[error("the last pointer is {last}, but there are {entries} entries")]
    LastPointer {
        /// What it is.
        last: u32,
        /// How many entries there are.
        entries: usize,
    },
    /// Indices that do not rise within a line.
    #[error("{line} {number} is not sorted: index {index} of entry {entry} comes after {before}")]
    Unsorted {
        /// Row or column.
        line: &'static str,
        /// Which one.
        number: usize,
        /// The entry that is too late.
        entry: usize,
        /// The index before it.
        before: u32,
        /// Its index.
        index: u32,
    },
    /// Two entries at one place.
    #[error("{line} {number} has index {index} twice: entry {entry}")]
    Duplicate {
        /// Row or column.
        line: &'static str,
        /// Which one.
        number: usize,
        /// The second of both.
        entry: usize,
        /// The index.
        index: u32,
    },
    /// More than can be counted.
    #[error("{count} {what} are more than {LIMIT}")]
    TooMany {
        /// Rows, columns or non-zeros.
        what: &'static str,
        /// How many, as far as that can be counted.
        count: usize,
    },
}
