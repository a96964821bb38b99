//! Matrix Market files: the text format that collections of sparse matrices use.
//!
//! Read and written: `coordinate` (a list of entries) of `real`, `integer` or `pattern` (no values: each is one), `general`,
//! `symmetric` or `skew-symmetric`. `array` (all elements, column after column) is read. The format is Boisvert, Pozo and
//! Remington's, "The Matrix Market Exchange Formats", NIST, 1996.
//!
//! A file is read line by line, and memory grows with the entries that were seen, not with what the header promises.
//! What is wrong is reported with the number of its line.
//!
//! ```
//! use millrace::tensor::sparse::market;
//! let text = "%%MatrixMarket matrix coordinate real symmetric
//! % a comment
//! 2 2 2
//! 1 1 4.0
//! 2 1 -1.5
//! ";
//! let matrix = market::read(text.as_bytes())?.to_csr();
//! assert_eq!(matrix.to_dense()?, [4.0, -1.5, -1.5, 0.0]);
//!
//! let mut file = Vec::new();
//! market::write(&mut file, &matrix, market::Kind::default())?;
//! assert_eq!(market::read(&*file)?.to_csr(), matrix);
//!
//! let error = market::read(&text.as_bytes()[..text.len() - 9]).unwrap_err();
//! assert_eq!(error.to_string(), "line 4: the file ends after 1 of 2 entries");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod read;
mod write;

use std::{fmt, io};

pub use read::{open, read};
pub use write::{save, write};

/// What values a file has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Field {
    /// Decimal numbers.
    #[default]
    Real,
    /// Whole numbers. Those that an `f32` does not hold are rounded.
    Integer,
    /// None: each is one.
    Pattern,
}

/// What a file says about the other side of the diagonal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Symmetry {
    /// Nothing: all entries are there.
    #[default]
    General,
    /// It is the same, and only what is on or below the diagonal is there.
    Symmetric,
    /// It is the negative, and only what is below the diagonal is there.
    SkewSymmetric,
}

/// How a matrix is written: as decimal numbers, all entries, unless something else is said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Kind {
    /// What the values are.
    pub field: Field,
    /// What is left out.
    pub symmetry: Symmetry,
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Real => "real",
            Self::Integer => "integer",
            Self::Pattern => "pattern",
        })
    }
}

impl fmt::Display for Symmetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::General => "general",
            Self::Symmetric => "symmetric",
            Self::SkewSymmetric => "skew-symmetric",
        })
    }
}

/// Why a file is not read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MarketError {
    /// A file that cannot be opened or written. What is said names the path.
    #[error(transparent)]
    File(io::Error),
    /// What is read from or written to, while it is.
    #[error("line {line}: {error}")]
    Io {
        /// The line that was to be read or written.
        line: u64,
        /// What the system says.
        error: io::Error,
    },
    /// What is in the file.
    #[error("line {line}: {problem}")]
    Text {
        /// The line.
        line: u64,
        /// What is wrong with it.
        problem: Problem,
    },
    /// A matrix that is not of the kind it was to be written as.
    #[error("the entry at row {row}, column {column} is not that of a matrix of kind {kind}")]
    Unfit {
        /// The entry's row, from zero,
        row: usize,
        /// and column.
        column: usize,
        /// What it was to be.
        kind: String,
    },
    /// A matrix with more entries than can be counted.
    #[error(transparent)]
    Matrix(#[from] crate::Error),
}

/// What can be wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The first line does not begin as it has to.
    #[error("not a Matrix Market file: it has to begin with `%%MatrixMarket matrix`")]
    Banner,
    /// A kind of matrix that is not read.
    #[error("{word:?} is not {known}")]
    Kind {
        /// What the file says.
        word: String,
        /// What it could say.
        known: &'static str,
    },
    /// The line with the sizes.
    #[error("{text:?} are not {expected}")]
    Size {
        /// The line.
        text: String,
        /// What it has to be.
        expected: &'static str,
    },
    /// A size beyond what a sparse matrix can have.
    #[error("{count} {what} are more than {limit}")]
    TooMany {
        /// Rows, columns or entries.
        what: &'static str,
        /// How many the file says there are.
        count: u64,
        /// How many there can be.
        limit: u64,
    },
    /// Symmetric, but not square.
    #[error("a symmetric matrix has as many rows as columns, not {rows} and {columns}")]
    NotSquare {
        /// Rows.
        rows: usize,
        /// Columns.
        columns: usize,
    },
    /// The wrong number of words.
    #[error("{text:?} is not {expected}")]
    Entry {
        /// The line.
        text: String,
        /// What it has to be.
        expected: &'static str,
    },
    /// A word that is no number, or none that an `f32` can hold.
    #[error("{word:?} is not a number that can be read here")]
    Number {
        /// The word.
        word: String,
    },
    /// An index that is not in the matrix; they count from one.
    #[error("{what} {index} is not between 1 and {limit}")]
    OutOfRange {
        /// Row or column.
        what: &'static str,
        /// The index.
        index: u64,
        /// The last one.
        limit: usize,
    },
    /// An entry where a symmetric file has none.
    #[error("row {row}, column {column} is not below the diagonal, as a {symmetry} file's entries are")]
    WrongSide {
        /// The row, from one,
        row: usize,
        /// and the column.
        column: usize,
        /// The file's kind.
        symmetry: Symmetry,
    },
    /// Fewer entries than promised.
    #[error("the file ends after {found} of {promised} entries")]
    Truncated {
        /// Entries there are.
        found: u64,
        /// Entries the file says there are.
        promised: u64,
    },
    /// More entries than promised.
    #[error("there are more entries than the {promised} that were promised")]
    Surplus {
        /// Entries the file says there are.
        promised: u64,
    },
    /// A line that does not end.
    #[error("longer than {limit} bytes")]
    TooLong {
        /// How long lines can be.
        limit: u64,
    },
}
