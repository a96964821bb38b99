//! Matrix Market files: what is read, what is written, and what is refused.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::io::{BufRead, Read};

use millrace::tensor::sparse::{
    Coo, Csr, LIMIT,
    market::{self, Field, Kind, MarketError, Problem, Symmetry},
};
use proptest::prelude::*;

fn read(text: &str) -> Csr {
    market::read(text.as_bytes()).unwrap().to_csr()
}

/// The line of the first problem, and the problem.
fn problem(text: &str) -> (u64, Problem) {
    match market::read(text.as_bytes()) {
        Err(MarketError::Text { line, problem }) => (line, problem),
        other => panic!("{text:?} gave {other:?}"),
    }
}

const GENERAL: &str = "%%MatrixMarket matrix coordinate real general\n";

#[test]
fn every_kind_is_read() {
    let general = read(&format!("{GENERAL}% a comment\n\n  2 3 3 \n2 3 1e-2\n\n% another\n1 1 -4\n1 1 1.5\n"));
    assert_eq!(general.to_dense().unwrap(), [-2.5, 0.0, 0.0, 0.0, 0.0, 0.01]);
    let integer = read("%%matrixmarket MATRIX Coordinate Integer Symmetric\n3 3 3\n1 1 7\n3 1 -2\n3 2 5\n");
    assert_eq!(integer.to_dense().unwrap(), [7.0, 0.0, -2.0, 0.0, 0.0, 5.0, -2.0, 5.0, 0.0]);
    let skew = read("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 1 3\n");
    assert_eq!(skew.to_dense().unwrap(), [0.0, -3.0, 3.0, 0.0]);
    let pattern = read("%%MatrixMarket matrix coordinate pattern general\r\n2 2 2\r\n1 2\r\n2 1\r\n");
    assert_eq!(pattern.to_dense().unwrap(), [0.0, 1.0, 1.0, 0.0]);
    let pattern = read("%%MatrixMarket matrix coordinate pattern symmetric\n3 3 3\n1 1\n3 1\n3 2\n");
    assert_eq!(pattern.to_dense().unwrap(), [1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0]);
    let kind = Kind { field: Field::Pattern, symmetry: Symmetry::Symmetric };
    let text = "%%MatrixMarket matrix coordinate pattern symmetric\n3 3 3\n1 1\n3 1\n3 2\n";
    assert_eq!(written(&pattern, kind), text);
    let array = read("%%MatrixMarket matrix array real general\n2 3\n1\n2\n0\n4\n5\n6\n");
    assert_eq!((array.to_dense().unwrap(), array.nnz()), (vec![1.0, 0.0, 5.0, 2.0, 4.0, 6.0], 5));
    let array = read("%%MatrixMarket matrix array integer symmetric\n2 2\n1\n2\n3\n");
    assert_eq!(array.to_dense().unwrap(), [1.0, 2.0, 2.0, 3.0]);
    let array = read("%%MatrixMarket matrix array real skew-symmetric\n3 3\n1\n2\n3\n");
    assert_eq!(array.to_dense().unwrap(), [0.0, -1.0, -2.0, 1.0, 0.0, -3.0, 2.0, 3.0, 0.0]);
    let empty = read(&format!("{GENERAL}0 5 0\n"));
    assert_eq!((empty.shape(), empty.nnz()), ([0, 5], 0));
    let special = read(&format!("{GENERAL}1 3 3\n1 1 inf\n1 2 -Infinity\n1 3 nan"));
    assert!(
        special.values()[0] == f32::INFINITY
            && special.values()[1] == f32::NEG_INFINITY
            && special.values()[2].is_nan()
    );
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let entry = "an entry: row, column, value";
    let with = |rest: &str| problem(&format!("{GENERAL}{rest}"));
    assert_eq!(problem(""), (0, Problem::Banner));
    assert_eq!(problem("1 1 1\n1 1 1\n"), (1, Problem::Banner));
    assert!(matches!(problem("%%MatrixMarket matrix coordinate complex general\n1 1 0\n"), (1, Problem::Kind { .. })));
    assert!(matches!(problem("%%MatrixMarket matrix coordinate real hermitian\n1 1 0\n"), (1, Problem::Kind { .. })));
    assert!(matches!(problem("%%MatrixMarket matrix array pattern general\n1 1\n"), (1, Problem::Kind { .. })));
    assert!(matches!(problem("%%MatrixMarket matrix coordinate"), (1, Problem::Kind { .. })));
    assert!(matches!(problem("%%MatrixMarket vector coordinate real general\n"), (1, Problem::Banner)));
    assert!(matches!(with("%\n"), (2, Problem::Size { .. })), "no sizes");
    assert!(matches!(with("2 2\n"), (2, Problem::Size { .. })));
    assert!(matches!(with("2 2 1 1\n"), (2, Problem::Size { .. })));
    assert_eq!(with("2 x 1\n"), (2, Problem::Number { word: "x".into() }));
    assert_eq!(with("-2 2 1\n"), (2, Problem::Number { word: "-2".into() }));
    assert_eq!(with("2 2 2\n%\n1 1 1\n"), (4, Problem::Truncated { found: 1, promised: 2 }));
    assert_eq!(with("2 2 1\n1 1 1\n\n2 2 1\n"), (5, Problem::Surplus { promised: 1 }));
    assert_eq!(with("2 2 1\n3 1 1\n"), (3, Problem::OutOfRange { what: "row", index: 3, limit: 2 }));
    assert_eq!(with("2 2 1\n1 0 1\n"), (3, Problem::OutOfRange { what: "column", index: 0, limit: 2 }));
    assert_eq!(with("2 2 1\n1 99999999999999999999 1\n"), (3, Problem::Number { word: "99999999999999999999".into() }));
    assert_eq!(with("2 2 1\n1 1 one\n"), (3, Problem::Number { word: "one".into() }));
    assert_eq!(with("2 2 1\n1 1 1e39\n"), (3, Problem::Number { word: "1e39".into() }), "beyond f32");
    assert_eq!(with("2 2 1\n1 1\n"), (3, Problem::Entry { text: "1 1".into(), expected: entry }));
    assert_eq!(with("2 2 1\n1 1 1 0\n"), (3, Problem::Entry { text: "1 1 1 0".into(), expected: entry }));
    let half = problem("%%MatrixMarket matrix coordinate integer general\n1 1 1\n1 1 0.5\n");
    assert_eq!(half, (3, Problem::Number { word: "0.5".into() }));
    let values = problem("%%MatrixMarket matrix coordinate pattern general\n1 1 1\n1 1 1\n");
    assert!(matches!(values, (3, Problem::Entry { .. })));
    let symmetric = |rest: &str| problem(&format!("%%MatrixMarket matrix coordinate real symmetric\n{rest}"));
    assert_eq!(symmetric("2 3 0\n"), (2, Problem::NotSquare { rows: 2, columns: 3 }));
    assert!(matches!(symmetric("2 2 1\n1 2 1\n"), (3, Problem::WrongSide { row: 1, column: 2, .. })));
    let skew = problem("%%MatrixMarket matrix coordinate real skew-symmetric\n2 2 1\n2 2 1\n");
    assert!(matches!(skew, (3, Problem::WrongSide { .. })), "the diagonal of a skew-symmetric matrix is zero");
    let array = problem("%%MatrixMarket matrix array real general\n2 2\n1\n2\n3\n");
    assert_eq!(array, (5, Problem::Truncated { found: 3, promised: 4 }));
    let array = problem("%%MatrixMarket matrix array real symmetric\n2 2\n1\n2\n3\n4\n");
    assert_eq!(array, (6, Problem::Surplus { promised: 3 }));
    let long = format!("{GENERAL}%{}\n1 1 0\n", "x".repeat(1 << 17));
    assert!(matches!(problem(&long), (2, Problem::TooLong { .. })));
}

#[test]
fn a_header_that_lies_about_its_size_costs_nothing() {
    // The largest matrix there can be, with as many entries: 24 GiB if it were believed.
    let lie = format!("{GENERAL}{LIMIT} {LIMIT} {LIMIT}\n1 1 1\n");
    assert_eq!(problem(&lie), (3, Problem::Truncated { found: 1, promised: LIMIT as u64 }));
    let array = format!("%%MatrixMarket matrix array real general\n{LIMIT} {LIMIT}\n1\n");
    assert!(matches!(problem(&array), (3, Problem::Truncated { found: 1, .. })));
    let beyond = format!("{GENERAL}{} 1 0\n", LIMIT + 1);
    assert!(matches!(problem(&beyond), (2, Problem::TooMany { what: "rows", .. })));
    let beyond = format!("{GENERAL}1 1 {}\n", u64::MAX);
    assert!(matches!(problem(&beyond), (2, Problem::TooMany { what: "entries", .. })));
}

#[test]
fn a_file_without_an_end_of_line_is_not_read_into_memory() {
    struct Endless(u64);
    impl Read for Endless {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            to.fill(b'7');
            self.0 += to.len() as u64;
            assert!(self.0 < 1 << 24, "far more was read than any line is long");
            Ok(to.len())
        }
    }
    let file = std::io::BufReader::new(GENERAL.as_bytes().chain(Endless(0)));
    assert!(matches!(market::read(file), Err(MarketError::Text { line: 2, problem: Problem::TooLong { .. } })));
}

#[test]
fn an_error_of_the_file_itself_keeps_its_line() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("the disk is gone"))
        }
    }
    let text = format!("{GENERAL}2 2 2\n1 1 1\n");
    let file = std::io::BufReader::new(text.as_bytes().chain(Broken));
    let error = market::read(file).unwrap_err();
    assert_eq!(error.to_string(), "line 4: the disk is gone");
    let _: &dyn BufRead = &text.as_bytes();
    let missing = market::open("/no/such/file.mtx").unwrap_err();
    assert!(matches!(missing, MarketError::File(_)));
    let said = missing.to_string();
    assert!(said.contains("/no/such/file.mtx") && !said.contains("line"), "{said}");
}

fn written(matrix: &Csr, kind: Kind) -> String {
    let mut text = Vec::new();
    market::write(&mut text, matrix, kind).unwrap();
    String::from_utf8(text).unwrap()
}

#[test]
fn what_is_written_is_what_the_format_says() {
    let matrix = Csr::from_dense(2, 2, &[0.0, 1.0, 1.0, 2.0]).unwrap();
    assert_eq!(written(&matrix, Kind::default()), format!("{GENERAL}2 2 3\n1 2 1.0\n2 1 1.0\n2 2 2.0\n"));
    let kind = Kind { field: Field::Integer, symmetry: Symmetry::Symmetric };
    assert_eq!(written(&matrix, kind), "%%MatrixMarket matrix coordinate integer symmetric\n2 2 2\n2 1 1\n2 2 2\n");
    let ones = Csr::from_dense(1, 2, &[0.0, 1.0]).unwrap();
    let kind = Kind { field: Field::Pattern, ..Kind::default() };
    assert_eq!(written(&ones, kind), "%%MatrixMarket matrix coordinate pattern general\n1 2 1\n1 2\n");
}

#[test]
fn a_matrix_is_not_written_as_what_it_is_not() {
    let refused = |elements: &[f32; 4], field: Field, symmetry: Symmetry| {
        let matrix = Csr::from_dense(2, 2, elements).unwrap();
        let mut text = Vec::new();
        let refused =
            matches!(market::write(&mut text, &matrix, Kind { field, symmetry }), Err(MarketError::Unfit { .. }));
        assert!(!refused || text.is_empty());
        refused
    };
    assert!(refused(&[0.5, 0.0, 0.0, 0.0], Field::Integer, Symmetry::General));
    assert!(refused(&[2.0, 0.0, 0.0, 0.0], Field::Pattern, Symmetry::General));
    assert!(refused(&[0.0, 1.0, 2.0, 0.0], Field::Real, Symmetry::Symmetric));
    assert!(refused(&[0.0, 1.0, 0.0, 0.0], Field::Real, Symmetry::Symmetric));
    assert!(refused(&[1.0, 1.0, -1.0, 0.0], Field::Real, Symmetry::SkewSymmetric));
    assert!(!refused(&[0.0, 1.0, -1.0, 0.0], Field::Real, Symmetry::SkewSymmetric));
    let wide = Csr::from_dense(1, 2, &[1.0, 1.0]).unwrap();
    let kind = Kind { symmetry: Symmetry::Symmetric, ..Kind::default() };
    assert!(market::write(Vec::new(), &wide, kind).is_err());
    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    assert!(matches!(market::write(Full, &wide, Kind::default()), Err(MarketError::Io { line: 1, .. })));
}

#[test]
fn files_are_saved_and_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.mtx");
    let matrix = Csr::from_dense(2, 3, &[0.1, 0.0, f32::MIN_POSITIVE, 0.0, -1.0 / 3.0, f32::MAX]).unwrap();
    market::save(&path, &matrix, Kind::default()).unwrap();
    let again = market::open(&path).unwrap().to_csr();
    assert_eq!(again, matrix);
}

#[test]
fn a_file_is_replaced_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept.mtx");
    let matrix = Csr::from_dense(2, 2, &[1.0, 2.0, 3.0, 4.0]).unwrap();
    market::save(&path, &matrix, Kind::default()).unwrap();
    let before = std::fs::read(&path).unwrap();
    let symmetric = Kind { symmetry: Symmetry::Symmetric, ..Kind::default() };
    assert!(matches!(market::save(&path, &matrix, symmetric), Err(MarketError::Unfit { .. })));
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert!(market::save(folder.path().join("other.mtx"), &matrix, symmetric).is_err());
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing else is there");

    let nowhere = folder.path().join("no such folder/new.mtx");
    let error = market::save(&nowhere, &matrix, Kind::default()).unwrap_err();
    let said = error.to_string();
    assert!(matches!(error, MarketError::File(_)), "{said}");
    assert!(said.contains("new.mtx") && !said.contains("line"), "{said}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error_with_the_path() {
    let matrix = Csr::from_dense(1, 1, &[1.0]).unwrap();
    let error = market::save("/dev/full", &matrix, Kind::default()).unwrap_err();
    let MarketError::File(said) = &error else { panic!("{error}") };
    assert_eq!(said.kind(), std::io::ErrorKind::StorageFull);
    assert!(said.to_string().contains("/dev/full"), "{said}");
}

proptest! {
    #[test]
    fn what_was_written_is_read_again(
        entries in proptest::collection::vec((0usize..30, 0usize..30, any::<f32>()), 0..200),
        symmetry in prop_oneof![Just(Symmetry::General), Just(Symmetry::Symmetric), Just(Symmetry::SkewSymmetric)],
        whole in any::<bool>(),
    ) {
        let mut seen = std::collections::HashSet::new();
        let mut matrix = Coo::empty(30, 30).unwrap();
        for (row, column, value) in entries {
            let value = if whole { (value % 1e6).trunc() } else { value };
            let value = if value.is_finite() { value } else { 1.0 };
            let skips = symmetry == Symmetry::SkewSymmetric && row == column;
            if skips || !seen.insert((row, column)) || !seen.insert((column, row)) && row != column {
                continue;
            }
            matrix.push(row, column, value).unwrap();
            match symmetry {
                _ if row == column => {}
                Symmetry::General => {}
                Symmetry::Symmetric => matrix.push(column, row, value).unwrap(),
                Symmetry::SkewSymmetric => matrix.push(column, row, -value).unwrap(),
            }
        }
        let matrix = matrix.to_csr();
        let kind = Kind { field: if whole { Field::Integer } else { Field::Real }, symmetry };
        let again = market::read(written(&matrix, kind).as_bytes()).unwrap().to_csr();
        prop_assert_eq!(again, matrix);
    }

    #[test]
    fn no_text_makes_the_reader_panic(head in 0usize..4, rest in "[0-9a-z .%\n-]{0,200}") {
        let heads = ["", GENERAL, "%%MatrixMarket matrix array real symmetric\n", "%%MatrixMarket matrix coordinate pattern general\n3 3 2\n"];
        let _ = market::read(format!("{}{rest}", heads[head]).as_bytes());
    }
}
