//! Sparse matrices on every device, against naive loops over dense ones.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::sync::OnceLock;

use millrace::tensor::{
    Error, Tensor, Tensors,
    sparse::{Coo, Csc, Csr, Invalid, LIMIT},
};
use proptest::prelude::*;
use support::fresh_places;

/// The CPU, and the GPU if there is one.
fn places() -> &'static [Tensors] {
    static PLACES: OnceLock<Vec<Tensors>> = OnceLock::new();
    PLACES.get_or_init(fresh_places)
}

fn numbers(seed: u64, n: usize) -> Vec<f32> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// Entries in any order, some of them several times, in shapes that may have no rows or no columns.
fn matrices() -> impl Strategy<Value = Coo> {
    let shapes = (0usize..40, 0usize..40);
    let counts = prop_oneof![Just(0usize), 1usize..30, 100usize..600];
    (shapes, counts, any::<u64>(), 0u32..3).prop_map(|((rows, columns), count, seed, kind)| {
        let mut matrix = Coo::empty(rows, columns).unwrap();
        if rows > 0 && columns > 0 {
            let places = numbers(seed, 3 * count);
            for entry in places.chunks_exact(3) {
                let at = |x: f32, n: usize| (((x + 1.0) / 2.0 * n as f32) as usize).min(n - 1);
                // All over, in a few rows, or nearly all in one.
                let row = match kind {
                    0 => at(entry[0], rows),
                    1 => at(entry[0], rows.div_ceil(8)),
                    _ if entry[0] < 0.8 => rows / 2,
                    _ => at(entry[1], rows),
                };
                matrix.push(row, at(entry[1], columns), entry[2]).unwrap();
            }
        }
        matrix
    })
}

/// The entries of a list added into a dense matrix, in `f64`, and the sums of their magnitudes.
fn dense(matrix: &Coo) -> (Vec<f64>, Vec<f64>) {
    let [rows, columns] = matrix.shape();
    let (mut sums, mut sizes) = (vec![0.0; rows * columns], vec![0.0; rows * columns]);
    for (row, column, value) in matrix.entries() {
        sums[row * columns + column] += f64::from(value);
        sizes[row * columns + column] += f64::from(value).abs();
    }
    (sums, sizes)
}

/// Compares with a dense product `[m, k] x [k, n]`, errors relative to the sum of magnitudes.
fn check_product(got: &[f32], (a, a_sizes): &(Vec<f64>, Vec<f64>), b: &[f32], [m, k, n]: [usize; 3]) {
    assert_eq!(got.len(), m * n);
    for (at, &got) in got.iter().enumerate() {
        let (row, column) = (at / n, at % n);
        let term = |a: &[f64], i: usize, abs: bool| {
            let b = f64::from(b[i * n + column]);
            a[row * k + i] * if abs { b.abs() } else { b }
        };
        let want: f64 = (0..k).map(|i| term(a, i, false)).sum();
        let size: f64 = (0..k).map(|i| term(a_sizes, i, true)).sum();
        assert!((f64::from(got) - want).abs() <= 4e-6 * size, "element {at}: {got}, not {want}");
    }
}

fn is_sorted_and_unique(pointers: &[u32], indices: &[u32]) -> bool {
    pointers.windows(2).all(|pair| indices[pair[0] as usize..pair[1] as usize].is_sorted_by(|a, b| a < b))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn conversions_keep_the_matrix(matrix in matrices()) {
        let [rows, columns] = matrix.shape();
        let (csr, csc) = (matrix.to_csr(), matrix.to_csc());
        let (sums, sizes) = dense(&matrix);
        for elements in [csr.to_dense().unwrap(), csc.to_dense().unwrap(), matrix.to_dense().unwrap()] {
            for ((&got, &want), &size) in elements.iter().zip(&sums).zip(&sizes) {
                assert!((f64::from(got) - want).abs() <= 1e-5 * size);
            }
        }
        // What came out would be accepted: sorted, without duplicates, in range.
        assert!(is_sorted_and_unique(csr.pointers(), csr.indices()) && is_sorted_and_unique(csc.pointers(), csc.indices()));
        let again = Csr::new(rows, columns, csr.pointers().to_vec(), csr.indices().to_vec(), csr.values().to_vec());
        assert_eq!(again.unwrap(), csr);
        assert_eq!(csc.to_csr(), csr);
        assert_eq!(csr.to_csc(), csc);
        assert_eq!(csr.to_coo().to_csr(), csr);
        assert_eq!(csc.to_coo().to_csr(), csr);
        assert_eq!(Csr::from(csc.clone()), csr);
        assert_eq!(csr.transpose().transpose(), csr);
        assert_eq!(matrix.clone().transpose().to_csr(), csr.transpose());
        assert_eq!(csc.transpose().into_transposed(), csr);
        // Dense and back loses only entries that are zero.
        let back = Csr::from_dense(rows, columns, &csr.to_dense().unwrap()).unwrap();
        assert_eq!(back.to_dense().unwrap(), csr.to_dense().unwrap());
        assert!(back.nnz() <= csr.nnz());
    }

    #[test]
    fn sums_are_those_of_all_entries(a in matrices(), seed in any::<u64>()) {
        let [rows, columns] = a.shape();
        let b = Csr::from_dense(rows, columns, &numbers(seed, rows * columns).iter().map(|x| x.max(0.0)).collect::<Vec<_>>()).unwrap();
        let (a, wrong) = (a.to_csr(), Coo::empty(rows + 1, columns).unwrap().to_csr());
        let sum = a.add(&b).unwrap();
        assert!(is_sorted_and_unique(sum.pointers(), sum.indices()));
        let want: Vec<f32> = a.to_dense().unwrap().iter().zip(b.to_dense().unwrap()).map(|(a, b)| a + b).collect();
        assert_eq!(sum.to_dense().unwrap(), want);
        assert_eq!(a.to_csc().add(&b.to_csc()).unwrap().to_csr(), sum);
        assert!(matches!(a.add(&wrong), Err(Error::Shapes { op: "add", .. })));
    }

    #[test]
    fn products_are_those_of_the_dense_matrix(matrix in matrices(), n in 1usize..40, seed in any::<u64>()) {
        let [rows, columns] = matrix.shape();
        let reference = dense(&matrix);
        let (x, b) = (numbers(seed, columns), numbers(!seed, columns * n));
        for tensors in places() {
            let on_device = tensors.sparse(matrix.clone()).unwrap();
            let vector = tensors.from_slice(&x, &[columns]).unwrap();
            let y = on_device.matvec(&vector).unwrap();
            assert_eq!(y.shape(), [rows]);
            check_product(&y.to_vec::<f32>().unwrap(), &reference, &x, [rows, columns, 1]);
            let dense = tensors.from_slice(&b, &[columns, n]).unwrap();
            let c = on_device.matmul(&dense).unwrap();
            assert_eq!(c.shape(), [rows, n]);
            check_product(&c.to_vec::<f32>().unwrap(), &reference, &b, [rows, columns, n]);
        }
    }

    #[test]
    fn products_of_two_sparse_matrices_are_those_of_the_dense_ones(a in matrices(), n in 0usize..40, seed in any::<u64>()) {
        let columns = a.shape()[1];
        let kept = numbers(seed, columns * n).into_iter().map(|x| if x > 0.3 { x } else { 0.0 }).collect::<Vec<_>>();
        let b = Csr::from_dense(columns, n, &kept).unwrap();
        for tensors in places() {
            let product = tensors.sparse(a.clone()).unwrap().multiply(&tensors.sparse(b.clone()).unwrap()).unwrap();
            assert_eq!(product.shape(), [a.shape()[0], n]);
            // Reading it back checks that it is sorted, without duplicates and in range.
            let got = product.to_csr().unwrap();
            if n > 0 {
                check_product(&got.to_dense().unwrap(), &dense(&a), &kept, [a.shape()[0], columns, n]);
            }
            // And it multiplies like one that came from the host.
            let x = tensors.rand(&[n], 1).unwrap();
            let (direct, again) = (product.matvec(&x).unwrap(), tensors.sparse(got).unwrap().matvec(&x).unwrap());
            assert_eq!(direct.to_vec::<f32>().unwrap(), again.to_vec::<f32>().unwrap());
        }
    }

    #[test]
    fn devices_sum_transpose_and_sort_as_the_host_does(a in matrices(), seed in any::<u64>()) {
        let [rows, columns] = a.shape();
        let kept = numbers(seed, rows * columns).into_iter().map(|x| if x > 0.6 { x } else { 0.0 }).collect::<Vec<_>>();
        let (host, b) = (a.to_csr(), Csr::from_dense(rows, columns, &kept).unwrap());
        for tensors in places() {
            let (left, right) = (tensors.sparse(host.clone()).unwrap(), tensors.sparse(b.clone()).unwrap());
            assert_eq!(left.transpose().unwrap().to_csr().unwrap(), host.transpose());
            assert_eq!(left.add(&right).unwrap().to_csr().unwrap(), host.add(&b).unwrap());
            assert_eq!(right.add(&left).unwrap().to_csr().unwrap(), b.add(&host).unwrap());
            let sorted = tensors.assemble(&a).unwrap().to_csr().unwrap();
            assert_eq!((sorted.pointers(), sorted.indices()), (host.pointers(), host.indices()));
            let (sums, sizes) = dense(&a);
            for (at, &got) in sorted.to_dense().unwrap().iter().enumerate() {
                assert!((f64::from(got) - sums[at]).abs() <= 1e-5 * sizes[at]);
            }
        }
    }
}

#[test]
fn a_large_product_of_two_sparse_matrices_is_the_same_on_any_number_of_threads() {
    let matrix = lopsided(3000);
    let of = |threads: usize| {
        let runtime = millrace::Runtime::new(vec![Box::new(millrace::cpu::CpuThreads(threads))]);
        let tensors = Tensors::on(&runtime.open("cpu").unwrap()).unwrap();
        let (a, b) = (tensors.sparse(matrix.clone()).unwrap(), tensors.sparse(matrix.transpose()).unwrap());
        let before = tensors.device().counts();
        let product = a.multiply(&b).unwrap();
        tensors.synchronize().unwrap();
        assert_eq!((tensors.device().counts() - before).launches, 2, "one counts, one fills in");
        (product.to_csr().unwrap(), tensors)
    };
    let ((one, _), (three, tensors)) = (of(1), of(3));
    assert_eq!(one, three);
    // A times its transpose is symmetric in places, and (A B) x is A (B x).
    assert_eq!(one.transpose().indices(), one.indices());
    let x = tensors.rand(&[3000], 7).unwrap();
    let (a, b) = (tensors.sparse(matrix.clone()).unwrap(), tensors.sparse(matrix.transpose()).unwrap());
    let apart = a.matvec(&b.matvec(&x).unwrap()).unwrap().to_vec::<f32>().unwrap();
    let together = tensors.sparse(one).unwrap().matvec(&x).unwrap().to_vec::<f32>().unwrap();
    for (row, (apart, together)) in apart.iter().zip(&together).enumerate() {
        assert!((apart - together).abs() <= 1e-3 * (1.0 + apart.abs()), "row {row}: {apart} and {together}");
    }
}

#[test]
fn products_of_two_sparse_matrices_that_do_not_go_together_are_refused() {
    let tensors = &places()[0];
    let a = tensors.sparse(Csr::from_dense(2, 3, &[1.0; 6]).unwrap()).unwrap();
    assert!(matches!(a.multiply(&a), Err(Error::Shapes { op: "multiply", .. })));
    let elsewhere = Tensors::on(tensors.device()).unwrap();
    let b = elsewhere.sparse(Csr::from_dense(3, 2, &[1.0; 6]).unwrap()).unwrap();
    assert!(matches!(a.multiply(&b), Err(Error::Strangers { .. })));
    let wide = tensors.sparse(Csr::from_dense(3, 2, &[1.0; 6]).unwrap()).unwrap();
    assert!(matches!(a.add(&wide), Err(Error::Shapes { op: "add", .. })));
    assert!(matches!(wide.add(&b), Err(Error::Strangers { op: "add" })));
}

/// Launches that sum up so many counts on a GPU: one per level of 1024, and one back to each but the last.
fn launches_to_sum_up(n: usize) -> u64 {
    if n <= 1024 { 1 } else { 2 + launches_to_sum_up(n.div_ceil(1024)) }
}

/// Launches that sort so many entries by keys below `limit` on a GPU: for four bits each a count, sums, and a scattering.
fn launches_to_sort(n: usize, limit: usize) -> u64 {
    let digits = u64::from((limit - 1).checked_ilog2().map_or(0, |log| log + 1)).div_ceil(4);
    digits * (2 + launches_to_sum_up(16 * n.div_ceil(32)))
}

#[test]
fn what_two_sparse_matrices_cost_is_what_the_algorithms_say() {
    // One row has half of all entries: as many products of one row as the device has threads, and more.
    let (a, b) = (lopsided(700), lopsided(700).transpose());
    let [rows, columns] = a.shape();
    let (entries, lengths) = (a.nnz(), b.pointers());
    let products: usize = a.indices().iter().map(|&k| (lengths[k as usize + 1] - lengths[k as usize]) as usize).sum();
    let mut results = Vec::new();
    for tensors in fresh_places() {
        let (left, right) = (tensors.sparse(a.clone()).unwrap(), tensors.sparse(b.clone()).unwrap());
        tensors.synchronize().unwrap();
        let counted = |run: &dyn Fn() -> millrace::tensor::SparseMatrix| {
            let before = tensors.device().counts();
            let result = run();
            tensors.synchronize().unwrap();
            let counts = tensors.device().counts() - before;
            assert_eq!((counts.writes, counts.copies), (0, 0));
            (result.to_csr().unwrap(), counts.launches, counts.reads)
        };
        let (product, sum) = (counted(&|| left.multiply(&right).unwrap()), counted(&|| left.add(&left).unwrap()));
        let turned = counted(&|| left.transpose().unwrap());
        let launches = (product.1, sum.1, turned.1);
        let reads = (product.2, sum.2, turned.2);
        if tensors.device().info().kind == millrace::DeviceKind::Cpu {
            assert_eq!((launches, reads), ((2, 1, 1), (1, 1, 0)));
        } else {
            // What is counted, summed up and filled in; two launches add up what belongs together.
            let compress = |n: usize| 1 + launches_to_sum_up(n) + 2 + 2;
            let sorts = launches_to_sort(products, rows) + launches_to_sort(products, rows);
            let product = 1 + launches_to_sum_up(entries) + 1 + sorts + compress(products);
            let turned = 1 + launches_to_sort(entries, columns) + 2;
            assert_eq!((launches, reads), ((product, 2 + compress(2 * entries), turned), (2, 1, 0)));
        }
        assert_eq!(sum.0, a.add(&a).unwrap());
        assert_eq!(turned.0, b);
        results.push(product.0);
    }
    // Devices add in another order where a place has very many products.
    for other in &results[1..] {
        assert_eq!((other.pointers(), other.indices()), (results[0].pointers(), results[0].indices()));
        for (x, y) in other.values().iter().zip(results[0].values()) {
            assert!((x - y).abs() <= 1e-3 * (1.0 + y.abs()), "{x} and {y}");
        }
    }
}

#[test]
fn a_product_of_more_than_fits_at_once_is_done_in_pieces() {
    // Seven million products in rows with many and with none: a list of all would be larger than a piece.
    let rows = 1200;
    let dense = (0..rows * 100).map(|at| if at / 100 % 5 == 3 || at % 7 == 6 { 0.0 } else { (at % 11) as f32 - 5.0 });
    let left = Csr::from_dense(rows, 100, &dense.collect::<Vec<_>>()).unwrap();
    let right = Csr::from_dense(100, 90, &(0..9000).map(|at| 1.0 + (at % 3) as f32).collect::<Vec<_>>()).unwrap();
    let mut results = Vec::new();
    for tensors in fresh_places() {
        let (a, b) = (tensors.sparse(left.clone()).unwrap(), tensors.sparse(right.clone()).unwrap());
        let before = tensors.device().counts();
        results.push(a.multiply(&b).unwrap().to_csr().unwrap());
        let copies = (tensors.device().counts() - before).copies;
        let pieces = if tensors.device().info().kind == millrace::DeviceKind::Cpu { 0 } else { 2 };
        assert_eq!(copies, 2 * pieces, "columns and values of each are put behind one another");
    }
    // Sums of small integers are exact.
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    assert_eq!(results[0].nnz(), rows * 4 / 5 * 90);
}

#[test]
fn a_product_that_is_too_large_for_the_device_is_an_error_and_nothing_else() {
    // 16 million products of one row, of which a software driver cannot bind the list.
    let (row, column) =
        (Csr::from_dense(1, 4000, &[1.0; 4000]).unwrap(), Csr::from_dense(4000, 4000, &[1.0; 16_000_000]));
    let right = column.unwrap();
    for tensors in fresh_places() {
        let (a, b) = (tensors.sparse(row.clone()).unwrap(), tensors.sparse(right.clone()).unwrap());
        match a.multiply(&b) {
            Ok(product) => assert!(product.to_csr().unwrap().values().iter().all(|&value| value == 4000.0)),
            Err(error) => assert!(matches!(error, Error::Device(millrace::Error::BindingSize { .. })), "{error}"),
        }
        let one = tensors.sparse(Csr::from_dense(1, 1, &[2.0]).unwrap()).unwrap();
        assert_eq!(one.multiply(&one).unwrap().to_csr().unwrap().values(), [4.0], "and goes on");
    }
}

/// `rows` rows of which one has half of all entries, some none, and the others a few.
fn lopsided(rows: usize) -> Csr {
    let (mut pointers, mut indices) = (vec![0u32], Vec::new());
    for row in 0..rows {
        let count = match row {
            _ if row == rows / 3 => 4 * rows,
            _ if row % 7 == 0 => 0,
            _ => row % 9,
        };
        // Some rows are runs, some are not.
        let step = 1 + row as u32 % 3;
        indices.extend((0..count as u32).map(|i| (row as u32 % 5) + i * step));
        pointers.push(indices.len() as u32);
    }
    let values = numbers(5, indices.len());
    Csr::new(rows, 12 * rows + 10, pointers, indices, values).unwrap()
}

fn naive(matrix: &Csr, x: &[f32], n: usize) -> (Vec<f64>, Vec<f64>) {
    let rows = matrix.shape()[0];
    let (mut out, mut sizes) = (vec![0.0; rows * n], vec![0.0; rows * n]);
    for (row, column, value) in matrix.entries() {
        for j in 0..n {
            let term = f64::from(value) * f64::from(x[column * n + j]);
            out[row * n + j] += term;
            sizes[row * n + j] += term.abs();
        }
    }
    (out, sizes)
}

#[test]
fn a_heavy_row_that_many_pieces_share_is_added_up() {
    // Large enough for many pieces on each device, with rows and entries at their edges.
    for (rows, n) in [(20_000, 1), (3000, 3), (1500, 65)] {
        let matrix = lopsided(rows);
        let x = numbers(9, matrix.shape()[1] * n);
        let (want, sizes) = naive(&matrix, &x, n);
        for tensors in places() {
            let on_device = tensors.sparse(matrix.clone()).unwrap();
            let x = tensors.from_slice(&x, &[matrix.shape()[1], n]).unwrap();
            let got = on_device.matmul(&x).unwrap().to_vec::<f32>().unwrap();
            for (at, ((&got, &want), &size)) in got.iter().zip(&want).zip(&sizes).enumerate() {
                assert!((f64::from(got) - want).abs() <= 2e-5 * size, "{rows} rows, element {at}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn a_product_is_two_launches_at_most_on_every_device() {
    let matrix = lopsided(20_000);
    for tensors in fresh_places() {
        let on_device = tensors.sparse(matrix.clone()).unwrap();
        let x = tensors.ones(&[matrix.shape()[1]]).unwrap();
        let wide = tensors.ones(&[matrix.shape()[1], 5]).unwrap();
        tensors.synchronize().unwrap();
        for operation in [&|| on_device.matvec(&x).unwrap() as Tensor, &|| on_device.matmul(&wide).unwrap()]
            as [&dyn Fn() -> Tensor; 2]
        {
            let before = tensors.device().counts();
            let y = operation();
            tensors.synchronize().unwrap();
            let counts = tensors.device().counts() - before;
            assert_eq!((counts.launches, counts.writes, counts.reads, counts.copies), (2, 0, 0, 0), "{y:?}");
        }
        // What fits into one piece needs no second launch.
        let small = tensors.sparse(Csr::from_dense(2, 2, &[1.0, 0.0, 2.0, 3.0]).unwrap()).unwrap();
        let before = tensors.device().counts();
        let y = small.matvec(&tensors.from_slice(&[1.0f32, 1.0], &[2]).unwrap()).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [1.0, 5.0]);
        assert_eq!((tensors.device().counts() - before).launches, 1);
    }
}

#[test]
fn results_do_not_depend_on_how_many_threads_there_are() {
    let matrix = lopsided(50_000);
    let of = |threads: usize| {
        let runtime = millrace::Runtime::new(vec![Box::new(millrace::cpu::CpuThreads(threads))]);
        let tensors = Tensors::on(&runtime.open("cpu").unwrap()).unwrap();
        let x = tensors.rand(&[matrix.shape()[1]], 3).unwrap();
        tensors.sparse(matrix.clone()).unwrap().matvec(&x).unwrap().to_vec::<f32>().unwrap()
    };
    let one = of(1);
    assert_eq!(of(2), one);
    assert_eq!(of(5), one);
}

#[test]
fn views_are_taken_and_wrong_operands_are_refused() {
    for tensors in places() {
        let matrix = tensors.sparse(Csr::from_dense(2, 3, &[1.0, 0.0, 2.0, 0.0, 3.0, 0.0]).unwrap()).unwrap();
        let x = tensors.arange(0.0, 1.0, 12).unwrap().reshape(&[4, 3]).unwrap();
        let y = matrix.matmul(&x.slice(0, 1..3).unwrap().t().unwrap()).unwrap();
        assert_eq!(y.to_vec::<f32>().unwrap(), [13.0, 22.0, 12.0, 21.0]);
        let row = x.slice(0, 2..3).unwrap().reshape(&[3]).unwrap();
        assert_eq!(matrix.matvec(&row).unwrap().to_vec::<f32>().unwrap(), [22.0, 21.0]);
        assert_eq!(matrix.matmul(&row).unwrap().shape(), [2]);
        let error = matrix.matvec(&x).unwrap_err();
        assert!(error.to_string().starts_with("matvec: shapes [2, 3] and [4, 3] do not multiply"), "{error}");
        assert!(matches!(matrix.matmul(&x), Err(Error::Shapes { .. })));
        assert!(matches!(matrix.matmul(&tensors.zeros(&[3, 2, 2]).unwrap()), Err(Error::Shapes { .. })));
        let whole = tensors.arange(0, 1, 3).unwrap();
        assert!(matches!(matrix.matvec(&whole), Err(Error::DType { .. })));
        let elsewhere = Tensors::on(tensors.device()).unwrap().zeros(&[3]).unwrap();
        assert!(matches!(matrix.matvec(&elsewhere), Err(Error::Strangers { .. })));
        assert_eq!(matrix.to_csr().unwrap().to_dense().unwrap(), [1.0, 0.0, 2.0, 0.0, 3.0, 0.0]);
    }
}

#[test]
fn matrices_without_entries_rows_or_columns_give_zeros() {
    for tensors in places() {
        for (rows, columns, n) in [(0, 0, 2), (3, 0, 2), (0, 3, 2), (3, 4, 2), (3, 4, 0)] {
            let matrix = tensors.sparse(Coo::empty(rows, columns).unwrap()).unwrap();
            assert_eq!((matrix.nnz(), matrix.shape()), (0, [rows, columns]));
            let product = matrix.matmul(&tensors.ones(&[columns, n]).unwrap()).unwrap();
            assert_eq!((product.shape(), product.to_vec::<f32>().unwrap()), (&[rows, n][..], vec![0.0; rows * n]));
            assert_eq!(matrix.to_csr().unwrap().pointers(), vec![0; rows + 1]);
        }
    }
}

#[test]
fn nan_and_infinities_come_through_and_only_where_there_are_entries() {
    let matrix = Csr::new(3, 3, vec![0, 1, 2, 4], vec![0, 1, 0, 2], vec![2.0, f32::NAN, 1.0, 1.0]).unwrap();
    for tensors in places() {
        let x = tensors.from_slice(&[f32::INFINITY, 1.0, f32::NEG_INFINITY], &[3]).unwrap();
        let y = tensors.sparse(matrix.clone()).unwrap().matvec(&x).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(y[0], f32::INFINITY, "what is not stored is not multiplied");
        assert!(y[1].is_nan() && y[2].is_nan());
    }
}

#[test]
fn arrays_that_are_no_matrix_are_refused_with_the_place() {
    let csr = |pointers: &[u32], indices: &[u32], values: usize| {
        Csr::new(2, 3, pointers.to_vec(), indices.to_vec(), vec![1.0; values]).unwrap_err()
    };
    let sparse = |invalid: Invalid| Error::Sparse(invalid);
    assert_eq!(csr(&[0, 1], &[0], 1), sparse(Invalid::Length { what: "pointers", given: 2, expected: 3 }));
    assert_eq!(csr(&[0, 1, 2], &[0], 2), sparse(Invalid::Length { what: "indices", given: 1, expected: 2 }));
    assert_eq!(csr(&[1, 1, 2], &[0, 0], 2), sparse(Invalid::FirstPointer { first: 1 }));
    assert_eq!(csr(&[0, 2, 1], &[0], 1), sparse(Invalid::Falling { line: "row", number: 1, from: 2, to: 1 }));
    assert_eq!(csr(&[0, 1, 3], &[0, 0], 2), sparse(Invalid::LastPointer { last: 3, entries: 2 }));
    assert_eq!(
        csr(&[0, u32::MAX, 2], &[0, 1], 2),
        sparse(Invalid::Falling { line: "row", number: 1, from: u32::MAX, to: 2 })
    );
    assert_eq!(
        csr(&[0, 1, 2], &[0, 3], 2),
        sparse(Invalid::OutOfRange { what: "column", entry: 1, index: 3, limit: 3 })
    );
    assert_eq!(
        csr(&[0, 1, 3], &[0, 2, 1], 3),
        sparse(Invalid::Unsorted { line: "row", number: 1, entry: 2, before: 2, index: 1 })
    );
    assert_eq!(csr(&[0, 2, 2], &[1, 1], 2), sparse(Invalid::Duplicate { line: "row", number: 0, entry: 1, index: 1 }));
    let csc = Csc::new(3, 2, vec![0, 2, 2], vec![2, 1], vec![1.0; 2]).unwrap_err();
    assert_eq!(csc.to_string(), "column 0 is not sorted: index 1 of entry 1 comes after 2");
    let coo = |rows: Vec<u32>, columns: Vec<u32>| Coo::new(2, 3, rows, columns, vec![1.0]).unwrap_err().to_string();
    assert_eq!(coo(vec![2], vec![0]), "row index 2 of entry 0 is not below 2");
    assert_eq!(coo(vec![1], vec![u32::MAX]), "column index 4294967295 of entry 0 is not below 3");
    assert_eq!(coo(vec![1, 1], vec![0]), "there are 2 row indices, not 1");
    assert!(Coo::new(0, 0, vec![0], vec![0], vec![1.0]).is_err(), "no index is inside of nothing");
    for (rows, columns, what) in [(LIMIT + 1, 1, "rows"), (1, usize::MAX, "columns")] {
        let count = rows.max(columns);
        assert_eq!(Coo::empty(rows, columns).unwrap_err(), sparse(Invalid::TooMany { what, count }));
        assert!(Csr::new(rows, columns, Vec::new(), Vec::new(), Vec::new()).is_err());
        assert!(Csc::new(rows, columns, Vec::new(), Vec::new(), Vec::new()).is_err());
    }
    assert_eq!(
        Coo::empty(1, 1).unwrap().push(0, 1, 1.0).unwrap_err().to_string(),
        "column index 1 of entry 0 is not below 1"
    );
    let error = Csr::from_dense(2, 2, &[1.0]).unwrap_err();
    assert_eq!(error, sparse(Invalid::Length { what: "elements", given: 1, expected: 4 }));
    let wide = Coo::empty(LIMIT, LIMIT).unwrap();
    assert!(matches!(wide.to_dense(), Err(Error::TooLarge { .. })));
}

#[test]
fn many_columns_cost_nothing() {
    // Linear in the entries: a count for each of two thousand million columns would show.
    let matrix = Coo::new(2, LIMIT, vec![1, 0, 1], vec![5, LIMIT as u32 - 1, 4], vec![1.0, 2.0, 3.0]).unwrap();
    assert_eq!(matrix.to_csr().indices(), [LIMIT as u32 - 1, 4, 5]);
    assert_eq!(matrix.to_csr().values(), [2.0, 3.0, 1.0]);
}

#[test]
fn entries_of_one_place_are_summed_in_the_order_they_came() {
    // In another order the small one would be lost.
    let matrix = Coo::new(1, 2, vec![0, 0, 0, 0], vec![1, 1, 0, 1], vec![1e30, -1e30, 7.0, 1.0]).unwrap();
    assert_eq!(matrix.to_csr().values(), [7.0, 1.0]);
    assert_eq!(matrix.to_csc().values(), [7.0, 1.0]);
}
