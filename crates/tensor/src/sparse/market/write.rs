use std::{
    io::{self, Write},
    path::Path,
};

use super::{Field, Kind, MarketError, Symmetry};
use crate::sparse::Csr;

/// Writes a file. It is there whole or not at all: what was there before stays if the matrix is not of the kind it is to
/// be, or the disk is full.
pub fn save(path: impl AsRef<Path>, matrix: &Csr, kind: Kind) -> Result<(), MarketError> {
    check(matrix, kind)?;
    let content = |to: &mut dyn Write| lines(to, matrix, kind).map_err(|(_, error)| error);
    millrace_core::file::write(path.as_ref(), content).map_err(MarketError::File)
}

/// Writes a matrix, row after row, with as many digits as it takes to read the same values again. A matrix that is not of
/// the kind it is to be is an error, and nothing is written.
pub fn write(mut to: impl Write, matrix: &Csr, kind: Kind) -> Result<(), MarketError> {
    check(matrix, kind)?;
    lines(&mut to, matrix, kind).map_err(|(line, error)| MarketError::Io { line, error })
}

/// Writes a matrix that is of its kind. An error comes with its line.
fn lines(to: &mut dyn Write, matrix: &Csr, kind: Kind) -> Result<(), (u64, io::Error)> {
    let [rows, columns] = matrix.shape();
    let entries = || matrix.entries().filter(|&(row, column, _)| is_written(row, column, kind.symmetry));
    let mut line = 1;
    let mut put = |text: std::fmt::Arguments<'_>| {
        let written = to.write_fmt(text).map_err(|error| (line, error));
        line += 1;
        written
    };
    put(format_args!("%%MatrixMarket matrix coordinate {} {}\n", kind.field, kind.symmetry))?;
    put(format_args!("{rows} {columns} {}\n", entries().count()))?;
    for (row, column, value) in entries() {
        let (row, column) = (row + 1, column + 1);
        match kind.field {
            Field::Real => put(format_args!("{row} {column} {value:?}\n"))?,
            Field::Integer => put(format_args!("{row} {column} {}\n", value as i64))?,
            Field::Pattern => put(format_args!("{row} {column}\n"))?,
        }
    }
    to.flush().map_err(|error| (line, error))
}

fn is_written(row: usize, column: usize, symmetry: Symmetry) -> bool {
    match symmetry {
        Symmetry::General => true,
        Symmetry::Symmetric => row >= column,
        Symmetry::SkewSymmetric => row > column,
    }
}

/// Whether nothing is lost when it is written as that kind.
fn check(matrix: &Csr, kind: Kind) -> Result<(), MarketError> {
    let unfit = |(row, column, _): (usize, usize, f32)| {
        let kind = format!("{} {}", kind.field, kind.symmetry);
        MarketError::Unfit { row, column, kind }
    };
    // Up to 2⁵³, far beyond what an `f32` counts in steps of one, an `i64` holds every one of them.
    let whole = |value: f32| value == value.trunc() && value.abs() <= 2f32.powi(53);
    let is_value = |value: f32| match kind.field {
        Field::Real => true,
        Field::Integer => whole(value),
        Field::Pattern => value == 1.0,
    };
    if let Some(entry) = matrix.entries().find(|entry| !is_value(entry.2)) {
        return Err(unfit(entry));
    }
    let sign = match kind.symmetry {
        Symmetry::General => return Ok(()),
        Symmetry::Symmetric => 1.0,
        Symmetry::SkewSymmetric => -1.0,
    };
    let mirrored = matrix.transpose();
    if matrix.shape() != mirrored.shape() {
        return Err(unfit((matrix.shape()[0], matrix.shape()[1], 0.0)));
    }
    // Both are sorted: where they differ first, one has an entry that the other has not.
    let same = |a: (usize, usize, f32), b: (usize, usize, f32)| (a.0, a.1) == (b.0, b.1) && a.2 == sign * b.2;
    let mut others = mirrored.entries();
    for entry in matrix.entries() {
        match others.next() {
            Some(other) if same(entry, other) => {}
            _ => return Err(unfit(entry)),
        }
    }
    Ok(())
}
