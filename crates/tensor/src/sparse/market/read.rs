use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use super::{Field, MarketError, Problem, Symmetry};
use crate::sparse::{Coo, LIMIT};

/// The longest line that is read.
const LINE: u64 = 64 * 1024;

type Result<T> = std::result::Result<T, MarketError>;

/// Reads a file.
pub fn open(path: impl AsRef<Path>) -> Result<Coo> {
    let path = path.as_ref();
    let said = |error: io::Error| io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()));
    let file = File::open(path).map_err(|error| MarketError::File(said(error)))?;
    read(BufReader::with_capacity(1 << 16, file))
}

/// Reads a matrix. Entries stay in the order of the file, each of a symmetric one followed by its mirror image; several
/// at one place are summed when the matrix is converted.
pub fn read(from: impl BufRead) -> Result<Coo> {
    let mut lines = Lines { from, number: 0, text: Vec::new() };
    let header = Header::read(&mut lines)?;
    if header.array { header.elements(&mut lines) } else { header.entries(&mut lines) }
}

/// The lines of a file, counted, each of a bounded length.
struct Lines<R> {
    from: R,
    number: u64,
    text: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    fn problem<T>(&self, problem: Problem) -> Result<T> {
        Err(MarketError::Text { line: self.number, problem })
    }

    /// Reads the next line; false at the end of the file.
    fn next(&mut self) -> Result<bool> {
        self.text.clear();
        let read = self.from.by_ref().take(LINE).read_until(b'\n', &mut self.text);
        let read = read.map_err(|error| MarketError::Io { line: self.number + 1, error })?;
        if read == 0 {
            return Ok(false);
        }
        self.number += 1;
        if read as u64 == LINE && self.text.last() != Some(&b'\n') {
            return self.problem(Problem::TooLong { limit: LINE });
        }
        Ok(true)
    }

    /// Reads up to the next line that says something.
    fn next_data(&mut self) -> Result<bool> {
        while self.next()? {
            let text = self.text.trim_ascii();
            if !text.is_empty() && text[0] != b'%' {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn words(&self) -> impl Iterator<Item = &[u8]> {
        self.text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty())
    }

    /// The line as an error shows it.
    fn shown(&self) -> String {
        shown(self.text.trim_ascii())
    }

    fn number(&self, word: &[u8]) -> Result<u64> {
        match std::str::from_utf8(word).ok().and_then(|word| word.parse().ok()) {
            Some(number) => Ok(number),
            None => self.problem(Problem::Number { word: shown(word) }),
        }
    }

    /// A value; an overflow is an error, unless the file says that it is infinite.
    fn value(&self, word: &[u8], field: Field) -> Result<f32> {
        let text = std::str::from_utf8(word).unwrap_or_default();
        let parsed = match field {
            Field::Integer => text.parse::<i64>().ok().map(|value| value as f32),
            _ => text.parse::<f32>().ok(),
        };
        let says_infinite = || text.bytes().any(|byte| byte.eq_ignore_ascii_case(&b'n'));
        match parsed {
            Some(value) if !value.is_infinite() || says_infinite() => Ok(value),
            _ => self.problem(Problem::Number { word: shown(word) }),
        }
    }
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(&text[..text.len().min(80)]).into_owned()
}

/// What the first lines say.
struct Header {
    array: bool,
    field: Field,
    symmetry: Symmetry,
    rows: usize,
    columns: usize,
    /// Entries of a list.
    entries: u64,
}

impl Header {
    fn read<R: BufRead>(lines: &mut Lines<R>) -> Result<Self> {
        lines.next()?;
        let lower: Vec<String> = lines.words().map(|word| shown(word).to_ascii_lowercase()).collect();
        let lower: Vec<&str> = lower.iter().map(String::as_str).collect();
        let [banner, object, rest @ ..] = &lower[..] else { return lines.problem(Problem::Banner) };
        if (*banner, *object) != ("%%matrixmarket", "matrix") {
            return lines.problem(Problem::Banner);
        }
        let kind =
            |at: usize, known: &'static str| Problem::Kind { word: rest.get(at).copied().unwrap_or("").into(), known };
        let array = match rest.first() {
            Some(&"coordinate") => false,
            Some(&"array") => true,
            _ => return lines.problem(kind(0, "coordinate or array")),
        };
        let field = match rest.get(1) {
            Some(&"real" | &"double") => Field::Real,
            Some(&"integer") => Field::Integer,
            Some(&"pattern") if !array => Field::Pattern,
            _ => return lines.problem(kind(1, "real, integer or, of a list of entries, pattern")),
        };
        let symmetry = match rest.get(2) {
            Some(&"general") => Symmetry::General,
            Some(&"symmetric") => Symmetry::Symmetric,
            Some(&"skew-symmetric") => Symmetry::SkewSymmetric,
            _ => return lines.problem(kind(2, "general, symmetric or skew-symmetric")),
        };
        let expected = if array { "two sizes: rows, columns" } else { "three sizes: rows, columns, entries" };
        if !lines.next_data()? {
            return lines.problem(Problem::Size { text: String::new(), expected });
        }
        let sizes = lines.words().map(|word| lines.number(word)).collect::<Result<Vec<_>>>()?;
        let (rows, columns, entries) = match (&sizes[..], array) {
            (&[rows, columns, entries], false) => (rows, columns, entries),
            (&[rows, columns], true) => (rows, columns, 0),
            _ => return lines.problem(Problem::Size { text: lines.shown(), expected }),
        };
        for (what, count) in [("rows", rows), ("columns", columns), ("entries", entries)] {
            if count > LIMIT as u64 {
                return lines.problem(Problem::TooMany { what, count, limit: LIMIT as u64 });
            }
        }
        let (rows, columns) = (rows as usize, columns as usize);
        if symmetry != Symmetry::General && rows != columns {
            return lines.problem(Problem::NotSquare { rows, columns });
        }
        Ok(Self { array, field, symmetry, rows, columns, entries })
    }

    /// A list of entries. What is allocated follows what was read.
    fn entries<R: BufRead>(&self, lines: &mut Lines<R>) -> Result<Coo> {
        let mut matrix = Coo::empty(self.rows, self.columns)?;
        let pattern = self.field == Field::Pattern;
        let expected = if pattern { "an entry: row, column" } else { "an entry: row, column, value" };
        for found in 0..self.entries {
            if !lines.next_data()? {
                return lines.problem(Problem::Truncated { found, promised: self.entries });
            }
            let mut words = lines.words();
            let (row, column, value, more) = (words.next(), words.next(), words.next(), words.next());
            let (Some(row), Some(column), None, true) = (row, column, more, value.is_none() == pattern) else {
                return lines.problem(Problem::Entry { text: lines.shown(), expected });
            };
            let (row, column) = (lines.number(row)?, lines.number(column)?);
            let value = value.map_or(Ok(1.0), |word| lines.value(word, self.field))?;
            for (what, index, limit) in [("row", row, self.rows), ("column", column, self.columns)] {
                if index == 0 || index > limit as u64 {
                    return lines.problem(Problem::OutOfRange { what, index, limit });
                }
            }
            self.put(lines, &mut matrix, row as usize - 1, column as usize - 1, value)?;
        }
        if lines.next_data()? {
            return lines.problem(Problem::Surplus { promised: self.entries });
        }
        Ok(matrix)
    }

    /// All elements, column after column; of a symmetric matrix those on or below the diagonal.
    fn elements<R: BufRead>(&self, lines: &mut Lines<R>) -> Result<Coo> {
        let mut matrix = Coo::empty(self.rows, self.columns)?;
        let first = |column: usize| match self.symmetry {
            Symmetry::General => 0,
            Symmetry::Symmetric => column,
            Symmetry::SkewSymmetric => column + 1,
        };
        let (rows, below) = (self.rows as u64, self.rows as u64 * self.rows.saturating_sub(1) as u64 / 2);
        let promised = match self.symmetry {
            Symmetry::General => rows * self.columns as u64,
            Symmetry::Symmetric => below + rows,
            Symmetry::SkewSymmetric => below,
        };
        let places = (0..self.columns).flat_map(|column| (first(column)..self.rows).map(move |row| (row, column)));
        for (found, (row, column)) in (0..).zip(places) {
            if !lines.next_data()? {
                return lines.problem(Problem::Truncated { found, promised });
            }
            let mut words = lines.words();
            let (Some(word), None) = (words.next(), words.next()) else {
                return lines.problem(Problem::Entry { text: lines.shown(), expected: "an element: one value" });
            };
            let value = lines.value(word, self.field)?;
            if value != 0.0 {
                self.put(lines, &mut matrix, row, column, value)?;
            }
        }
        if lines.next_data()? {
            return lines.problem(Problem::Surplus { promised });
        }
        Ok(matrix)
    }

    /// Adds an entry, and its mirror image.
    fn put<R: BufRead>(&self, lines: &Lines<R>, to: &mut Coo, row: usize, column: usize, value: f32) -> Result<()> {
        to.push(row, column, value)?;
        let symmetry = self.symmetry;
        let mirrored = match symmetry {
            Symmetry::General => return Ok(()),
            Symmetry::Symmetric if row == column => return Ok(()),
            Symmetry::Symmetric if row > column => value,
            Symmetry::SkewSymmetric if row > column => -value,
            _ => return lines.problem(Problem::WrongSide { row: row + 1, column: column + 1, symmetry }),
        };
        Ok(to.push(column, row, mirrored)?)
    }
}
