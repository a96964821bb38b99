//! The same work with each library.

use std::{hint::black_box, time::Duration};

use candle_core as candle;
use millrace::{Runtime, cpu::CpuThreads};
use millrace_lab::{
    Error, Result,
    gpu::{Context, numbers},
    measure::{Metric, Side, batch_timed, warm_up},
};
use ndarray::{Array1, Array2};

use crate::openblas;

/// Time of a turn, for each case.
const TURN: Duration = Duration::from_millis(60);

fn failed(error: impl std::fmt::Display) -> Error {
    Error::Wrong(error.to_string())
}

fn context(threads: usize) -> Result<Context> {
    Context::of(Runtime::new(vec![Box::new(CpuThreads(threads))]).open("cpu")?)
}

/// Nanoseconds of a run, with so many runs in a sample that the clock does not matter.
fn timed(mut run: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let start = std::time::Instant::now();
    run()?;
    run()?;
    let once = start.elapsed() / 2;
    warm_up(TURN / 4, &mut run)?;
    batch_timed(TURN, (20_000 / once.as_nanos().max(1)).clamp(1, 100) as usize, run)
}

type Shape = [usize; 3];

fn squares(sizes: &[usize]) -> Vec<Shape> {
    sizes.iter().map(|&n| [n, n, n]).collect()
}

fn case([m, k, n]: Shape) -> String {
    if m == k && k == n { n.to_string() } else { format!("{m}x{k}x{n}") }
}

/// Checks some elements of a product, and makes a row of its times.
fn product(shape: Shape, mut run: impl FnMut() -> Result<Vec<f32>>, time: impl FnOnce() -> Result<Vec<f64>>) -> Result<Metric> {
    let [m, k, n] = shape;
    let (a, b, c) = (numbers(m * k, 1), numbers(k * n, 2), run()?);
    for at in (0..m * n).step_by((m * n / 64) | 1) {
        let term = |i: usize| f64::from(a[at / n * k + i]) * f64::from(b[i * n + at % n]);
        let expected: f64 = (0..k).map(term).sum();
        if (f64::from(c[at]) - expected).abs() > 1e-6 * k as f64 + 1e-6 {
            return Err(failed(format!("element {at} of {shape:?} is {}, not {expected}", c[at])));
        }
    }
    let flops = 2.0 * (m * k * n) as f64;
    Ok(Metric::higher(case(shape), "GFLOP/s", time()?.into_iter().map(|ns| flops / ns).collect()))
}

pub(crate) fn matmul(threads: usize) -> Vec<Side> {
    products(threads, squares(&[256, 512, 1024, 2048]))
}

pub(crate) fn matmul_small(threads: usize) -> Vec<Side> {
    let mut shapes = squares(&[16, 32, 64, 128]);
    shapes.extend([[1, 1024, 1024], [1024, 1, 1024]]);
    let mut sides = products(threads, shapes);
    sides.retain(|side| side.name != "openblas"); // a library without tensors, into a result that is there already
    sides
}

fn products(threads: usize, shapes: Vec<Shape>) -> Vec<Side> {
    let mut sides = vec![
        side("millrace", &shapes, move |shape @ [m, k, n]| {
            let context = context(threads)?;
            let tensors = context.tensors();
            let a = tensors.from_slice(&numbers(m * k, 1), &[m, k])?;
            let b = tensors.from_slice(&numbers(k * n, 2), &[k, n])?;
            let run = || {
                black_box(a.matmul(&b)?);
                Ok(tensors.synchronize()?)
            };
            let metric = product(shape, || Ok(a.matmul(&b)?.to_vec::<f32>()?), || timed(run))?;
            context.finish()?;
            Ok(metric)
        }),
        side("candle", &shapes, |shape @ [m, k, n]| {
            let tensor = |data, shape: (usize, usize)| {
                candle::Tensor::from_vec(data, shape, &candle::Device::Cpu).map_err(failed)
            };
            let (a, b) = (tensor(numbers(m * k, 1), (m, k))?, tensor(numbers(k * n, 2), (k, n))?);
            let multiply = || a.matmul(&b).map_err(failed);
            let values = || multiply()?.flatten_all().and_then(|c| c.to_vec1()).map_err(failed);
            product(shape, values, || timed(|| multiply().map(|c| drop(black_box(c)))))
        }),
        side("ndarray", &shapes, |shape @ [m, k, n]| {
            let a = Array2::from_shape_vec((m, k), numbers(m * k, 1)).map_err(failed)?;
            let b = Array2::from_shape_vec((k, n), numbers(k * n, 2)).map_err(failed)?;
            product(shape, || Ok(a.dot(&b).iter().copied().collect()), || {
                timed(|| {
                    black_box(a.dot(&b));
                    Ok(())
                })
            })
        }),
    ];
    if openblas::is_there() {
        sides.push(side("openblas", &shapes, |shape @ [m, k, n]| {
            let (a, b, mut c) = (numbers(m * k, 1), numbers(k * n, 2), vec![0.0; m * n]);
            let gone = || failed("OpenBLAS is not there");
            let once = || {
                let mut c = vec![0.0; m * n];
                openblas::product(shape, &a, &b, &mut c).ok_or_else(gone)?;
                Ok(c)
            };
            product(shape, once, || timed(|| openblas::product(shape, &a, &b, black_box(&mut c)).ok_or_else(gone)))
        }));
    } else {
        eprintln!("OpenBLAS is not installed and is left out");
    }
    sides
}

fn side(
    name: &str,
    shapes: &[Shape],
    measure: impl Fn(Shape) -> Result<Metric> + Send + Sync + 'static,
) -> Side {
    let shapes = shapes.to_vec();
    Side::new(name, move || shapes.iter().map(|&shape| measure(shape)).collect())
}

/// Elements of the large arrays.
const LARGE: usize = 16 << 20;

/// relu, add and sum over large arrays, in milliseconds.
pub(crate) fn elementwise(threads: usize) -> Vec<Side> {
    let ms = |case: &'static str, times: Vec<f64>| {
        Metric::lower(case, "ms", times.into_iter().map(|ns| ns / 1e6).collect())
    };
    vec![
        Side::new("millrace", move || {
            let context = context(threads)?;
            let tensors = context.tensors();
            let x = tensors.from_slice(&numbers(LARGE, 1), &[LARGE])?;
            let y = tensors.from_slice(&numbers(LARGE, 2), &[LARGE])?;
            let wait = || Ok(tensors.synchronize()?);
            let relu = timed(|| {
                let _z = black_box(x.relu()?);
                wait()
            })?;
            let add = timed(|| {
                let _z = black_box(x.add(&y)?);
                wait()
            })?;
            let sum = timed(|| {
                black_box(x.sum(&[0])?.item::<f32>()?);
                Ok(())
            })?;
            context.finish()?;
            Ok(vec![ms("relu", relu), ms("add", add), ms("sum", sum)])
        }),
        Side::new("candle", move || {
            let tensor = |seed| candle::Tensor::from_vec(numbers(LARGE, seed), LARGE, &candle::Device::Cpu);
            let (x, y) = (tensor(1).map_err(failed)?, tensor(2).map_err(failed)?);
            let relu = timed(|| x.relu().map(|z| drop(black_box(z))).map_err(failed))?;
            let add = timed(|| x.add(&y).map(|z| drop(black_box(z))).map_err(failed))?;
            let sum = timed(|| {
                let sum = x.sum_all().and_then(|sum| sum.to_scalar::<f32>()).map_err(failed)?;
                black_box(sum);
                Ok(())
            })?;
            Ok(vec![ms("relu", relu), ms("add", add), ms("sum", sum)])
        }),
        Side::new("ndarray", move || {
            let (x, y) = (Array1::from(numbers(LARGE, 1)), Array1::from(numbers(LARGE, 2)));
            let relu = timed(|| {
                // With all threads, which plain `mapv` would not use.
                black_box(ndarray::Zip::from(&x).par_map_collect(|x| x.max(0.0)));
                Ok(())
            })?;
            let add = timed(|| {
                black_box(ndarray::Zip::from(&x).and(&y).par_map_collect(|x, y| x + y));
                Ok(())
            })?;
            let sum = timed(|| {
                black_box(black_box(&x).sum());
                Ok(())
            })?;
            Ok(vec![ms("relu", relu), ms("add", add), ms("sum", sum)])
        }),
    ]
}

/// relu of 256 floats until the result is there, in nanoseconds.
pub(crate) fn small_op(threads: usize) -> Vec<Side> {
    let ns = |times| Ok(vec![Metric::lower("relu-256", "ns", times)]);
    vec![
        Side::new("millrace", move || {
            let context = context(threads)?;
            let x = context.tensors().from_slice(&numbers(256, 1), &[256])?;
            let times = timed(|| {
                let _y = black_box(x.relu()?);
                Ok(context.tensors().synchronize()?)
            })?;
            context.finish()?;
            ns(times)
        }),
        Side::new("candle", move || {
            let x = candle::Tensor::from_vec(numbers(256, 1), 256, &candle::Device::Cpu).map_err(failed)?;
            ns(timed(|| x.relu().map(|y| drop(black_box(y))).map_err(failed))?)
        }),
        Side::new("ndarray", move || {
            let x = Array1::from(numbers(256, 1));
            ns(timed(|| {
                black_box(black_box(&x).mapv(|x| x.max(0.0)));
                Ok(())
            })?)
        }),
    ]
}
