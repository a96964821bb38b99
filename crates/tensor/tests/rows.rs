//! Rows that are reduced and then gone through again, softmax and layer norm: of all lengths and numbers, and what they cost
//! in launches.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use millrace::{
    DeviceKind,
    tensor::{Result, Tensor},
};
use support::{fresh_places, noise, places};

/// The softmax of a row.
fn softmax(x: &[f32]) -> Vec<f64> {
    let largest = x.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(f64::from(b)));
    let e: Vec<f64> = x.iter().map(|&x| (f64::from(x) - largest).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.into_iter().map(|e| e / sum).collect()
}

/// A row less its mean, divided by its deviation, times a weight, and a bias.
fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f64> {
    let (n, all) = (x.len() as f64, || x.iter().map(|&x| f64::from(x)));
    let mean = all().sum::<f64>() / n;
    let deviation = (all().map(|x| (x - mean).powi(2)).sum::<f64>() / n + 1e-5).sqrt();
    let scaled = all().map(|x| (x - mean) / deviation).zip(weight.iter().zip(bias));
    scaled.map(|(x, (&weight, &bias))| x * f64::from(weight) + f64::from(bias)).collect()
}

#[test]
fn rows_of_any_length_and_number_are_what_their_definitions_say() {
    for tensors in places() {
        for (rows, length) in
            [(3, 256), (5, 257), (2, 320), (33_000, 258), (1, 2048), (9000, 300), (2, 2049), (64, 2049), (70, 5000)]
        {
            let x: Vec<f32> = noise(rows * length + 3, 1).into_iter().map(|x| 4.0 * x + 1.0).collect();
            // Not from the first element of its memory on.
            let t =
                tensors.from_slice(&x, &[x.len()]).unwrap().slice(0, 3..).unwrap().reshape(&[rows, length]).unwrap();
            let (weight, bias) = (noise(length, 2), noise(length, 3));
            let [w, b] = [&weight, &bias].map(|x| tensors.from_slice(x, &[length]).unwrap());
            let on = &tensors.device().info().id;
            let (soft, norm) = (t.softmax(-1).unwrap(), t.layer_norm(1, Some(&w), Some(&b), 1e-5).unwrap());
            let (soft, norm) = (soft.to_vec::<f32>().unwrap(), norm.to_vec::<f32>().unwrap());
            // The first ones, some in the middle, and the last ones.
            for row in [0, 1, rows / 2, rows / 2 + 1, rows - 1].into_iter().filter(|row| *row < rows) {
                let (of, x) = (row * length..(row + 1) * length, &x[3 + row * length..][..length]);
                for (got, want) in soft[of.clone()].iter().zip(softmax(x)) {
                    assert!((f64::from(*got) - want).abs() < 1e-5 * want, "softmax, {row} of {rows}x{length} on {on}");
                }
                for (got, want) in norm[of].iter().zip(layer_norm(x, &weight, &bias)) {
                    assert!((f64::from(*got) - want).abs() < 1e-5, "layer norm, {row} of {rows}x{length} on {on}");
                }
            }
        }
    }
}

#[test]
fn what_is_not_a_number_stays_in_its_row() {
    for tensors in places() {
        for length in [200, 300, 3000] {
            for (special, at) in [(f32::NAN, 0), (f32::NAN, length - 1), (f32::INFINITY, length / 2)] {
                let mut x = noise(3 * length, 1);
                x[length + at] = special;
                let t = tensors.from_slice(&x, &[3, length]).unwrap();
                for y in [t.softmax(-1).unwrap(), t.layer_norm(1, None, None, 1e-5).unwrap()] {
                    let y = y.to_vec::<f32>().unwrap();
                    let (on, nans) = (&tensors.device().info().id, |row: usize| {
                        y[row * length..(row + 1) * length].iter().filter(|y| y.is_nan()).count()
                    });
                    assert_eq!([nans(0), nans(2)], [0, 0], "{special} at {at} of {length} on {on}");
                    assert!(nans(1) > 0, "{special} at {at} of {length} on {on}");
                }
            }
            // Minus infinity is nothing, unless there is nothing else.
            let mut x = noise(2 * length, 1);
            x[length - 1] = f32::NEG_INFINITY;
            x[length..].fill(f32::NEG_INFINITY);
            let y = tensors.from_slice(&x, &[2, length]).unwrap().softmax(-1).unwrap().to_vec::<f32>().unwrap();
            assert!(y[length - 1] == 0.0 && y[..length].iter().all(|y| y.is_finite()));
            assert!(y[length..].iter().all(|y| y.is_nan()));
        }
    }
}

#[test]
fn rows_take_one_launch_unless_they_are_few_and_very_long() {
    type Op = fn(&Tensor) -> Result<Tensor>;
    let ops: [(&str, Op); 2] = [("softmax", |x| x.softmax(-1)), ("layer norm", |x| x.layer_norm(1, None, None, 1e-5))];
    for tensors in fresh_places() {
        let device = tensors.device().clone();
        for (rows, length, one) in [(4, 2048, true), (9000, 300, true), (64, 3000, true), (2, 3000, false)] {
            let x = tensors.rand(&[rows, length], 1).unwrap();
            for (name, op) in ops {
                drop(op(&x).unwrap().to_vec::<f32>().unwrap());
                let before = device.counts().launches;
                drop(op(&x).unwrap().to_vec::<f32>().unwrap());
                let launches = device.counts().launches - before;
                let one = one || device.info().kind == DeviceKind::Cpu;
                assert_eq!(launches == 1, one, "{name} of {rows}x{length} on {}: {launches}", device.info().id);
            }
        }
    }
}
