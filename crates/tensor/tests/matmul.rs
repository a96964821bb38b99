//! Products with vectors, and what they cost in launches.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use millrace::{
    DeviceKind, DeviceOptions,
    tensor::{Error, Tensor, Tensors},
};
use support::{fresh_places, noise, places};

/// Products of rows and columns of row-major matrices, in `f64`, and the sums of their magnitudes.
fn product(a: &[f32], b: &[f32], (m, k, n): (usize, usize, usize)) -> Vec<(f64, f64)> {
    let one = |i: usize, j: usize| {
        let terms = (0..k).map(|p| f64::from(a[i * k + p]) * f64::from(b[p * n + j]));
        terms.fold((0.0, 0.0), |(sum, scale), term| (sum + term, scale + term.abs()))
    };
    (0..m * n).map(|at| one(at / n, at % n)).collect()
}

fn close(what: &str, got: &Tensor, want: &[(f64, f64)]) {
    let got = got.to_vec::<f32>().unwrap();
    assert_eq!(got.len(), want.len(), "{what}");
    for (at, (&got, &(want, scale))) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= 3e-6 * scale.max(1e-30), "{what}: {got} for {want} at {at}");
    }
}

fn put(tensors: &Tensors, x: &[f32], shape: &[usize]) -> Tensor {
    tensors.from_slice(x, shape).unwrap()
}

#[test]
fn products_with_vectors_have_the_shapes_and_the_elements_of_numpys() {
    for tensors in places() {
        let device = tensors.device().info().id.clone();
        // Short and long; few and many results, more than a thread's slab and than are few for a GPU.
        for (n, k) in [(1, 1), (3, 1), (2, 64), (5, 300), (1100, 70), (300, 2000), (3, 200_003), (17_000, 260)] {
            let (x, m) = (noise(k, 1), noise(n * k, 2));
            let (x_of, rows, columns) =
                (put(&tensors, &x, &[k]), put(&tensors, &m, &[n, k]), put(&tensors, &m, &[k, n]));
            let what = |name: &str| format!("{name}, {n} of {k} on {device}");
            let by_rows = product(&m, &x, (n, k, 1));
            let by_columns = product(&x, &m, (1, k, n));
            // A vector on either side of either matrix, which lies in either way.
            let all = [
                ("matrix by vector", rows.matmul(&x_of), &by_rows),
                ("vector by matrix on its side", x_of.matmul(&rows.t().unwrap()), &by_rows),
                ("vector by matrix", x_of.matmul(&columns), &by_columns),
                ("matrix on its side by vector", columns.t().unwrap().matmul(&x_of), &by_columns),
            ];
            for (name, got, want) in all {
                let got = got.unwrap();
                assert_eq!(got.shape(), [n], "{}", what(name));
                close(&what(name), &got, want);
            }
            let backwards = x_of.flip(0).unwrap();
            let turned: Vec<f32> = x.iter().rev().copied().collect();
            let dot = x_of.matmul(&backwards).unwrap();
            assert!(dot.shape().is_empty());
            close(&what("dot"), &dot, &product(&x, &turned, (1, k, 1)));
        }
    }
}

#[test]
fn stacks_of_products_with_vectors_broadcast() {
    for tensors in places() {
        let (b, n, k) = (3, 6, 700);
        let (x, m) = (noise(2 * k, 1), noise(b * n * k, 2));
        let (vectors, matrices) = (put(&tensors, &x, &[2, 1, 1, k]), put(&tensors, &m, &[b, k, n]));
        let got = vectors.matmul(&matrices).unwrap();
        assert_eq!(got.shape(), [2, b, 1, n]);
        let one = |at: usize| product(&x[at / b * k..][..k], &m[at % b * n * k..][..n * k], (1, k, n));
        close("stacks", &got, &(0..2 * b).flat_map(one).collect::<Vec<_>>());
        // One column, with something between its elements and between those of the rows.
        let wide = put(&tensors, &m, &[b, n, k]).slice_step(2, .., 2).unwrap();
        let column = put(&tensors, &x, &[k, 2]).slice(1, 1..2).unwrap().slice(0, ..k / 2).unwrap();
        let got = wide.matmul(&column).unwrap();
        assert_eq!(got.shape(), [b, n, 1]);
        let rows: Vec<f32> = m.iter().step_by(2).copied().collect();
        let x: Vec<f32> = x[1..k].iter().step_by(2).copied().collect();
        close("columns", &got, &product(&rows, &x, (b * n, k / 2, 1)));
    }
}

#[test]
fn long_products_are_shared_out_in_a_few_launches() {
    for tensors in fresh_places() {
        let device = tensors.device().clone();
        let gpu = device.info().kind != DeviceKind::Cpu;
        let rand = |shape: &[usize]| tensors.rand(shape, 1).unwrap();
        let long = rand(&[1 << 20]);
        // Products, and sums of a thousand parts and of fewer.
        let cases: [(&str, Tensor, Tensor, u64); 5] = [
            ("dot", long.clone(), long.clone(), 2),
            ("matrix by vector", rand(&[3, 1 << 18]), rand(&[1 << 18]), 2),
            ("vector by matrix", rand(&[1 << 18]), rand(&[1 << 18, 3]), 3),
            ("few rows and columns", rand(&[3, 1 << 14]), rand(&[1 << 14, 2]), 2),
            ("short ones", rand(&[256]), rand(&[256]), 1),
        ];
        for (name, a, b, launches) in cases {
            drop(a.matmul(&b).unwrap().to_vec::<f32>().unwrap());
            let before = device.counts().launches;
            drop(a.matmul(&b).unwrap().to_vec::<f32>().unwrap());
            let on = &device.info().id;
            assert_eq!(device.counts().launches - before, if gpu { launches } else { 1 }, "{name} on {on}");
        }
    }
}

#[test]
fn memory_that_runs_out_is_not_said_to_be_a_mistake_in_the_shapes() {
    let runtime = millrace::runtime();
    for id in ["cpu", "gpu"] {
        let Ok(device) = runtime.open_with(id, DeviceOptions::default().budget(1 << 20)) else { continue };
        let tensors = Tensors::on(&device).unwrap();
        let row = tensors.zeros(&[4]).unwrap();
        let wide = tensors.zeros(&[4, 1]).unwrap().expand(&[4, 1 << 19]).unwrap();
        let products = [
            ("vector by matrix", row.matmul(&wide)),
            ("matrix by vector", wide.t().unwrap().matmul(&row)),
            ("matrices", wide.t().unwrap().matmul(&wide.slice(1, ..4).unwrap())),
        ];
        for (name, product) in products {
            let error = product.unwrap_err();
            let told = matches!(error, Error::Device(millrace::Error::OutOfMemory { .. }));
            assert!(told, "{name} on {id}: {error}");
        }
        // Vectors that are not as long as each other are named as they were given.
        let error = row.matmul(&tensors.zeros(&[5]).unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("matmul: shapes [4] and [5] do not multiply"), "{error}");
        let error = row.matmul(&tensors.zeros(&[2, 3, 2]).unwrap()).unwrap_err().to_string();
        assert!(error.starts_with("matmul: shapes [4] and [2, 3, 2] do not multiply"), "{error}");
    }
}
