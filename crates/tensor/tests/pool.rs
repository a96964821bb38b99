//! Pooling and normalization through the public interface, on the CPU and on a GPU if there is one, against their
//! definitions, in `f64`.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use millrace::tensor::{DType, Error, Pool, Tensor, Tensors};
use support::{noise, places};

fn random(tensors: &Tensors, shape: &[usize], seed: u64) -> Tensor {
    tensors.from_slice(&noise(shape.iter().product(), seed), shape).unwrap()
}

#[derive(Debug, Clone, Copy)]
struct Axis {
    len: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
}

impl Axis {
    fn out(&self) -> usize {
        (self.len + 2 * self.padding - self.kernel) / self.stride + 1
    }
}

fn flat(shape: &[usize], at: &[usize]) -> usize {
    shape.iter().zip(at).fold(0, |flat, (dim, at)| flat * dim + at)
}

fn index_list(shape: &[usize]) -> Vec<Vec<usize>> {
    let n: usize = shape.iter().product();
    let place = |mut n: usize| {
        let mut at: Vec<usize> = shape
            .iter()
            .rev()
            .map(|dim| {
                let c = n % dim;
                n /= dim;
                c
            })
            .collect();
        at.reverse();
        at
    };
    (0..n).map(place).collect()
}

fn copied(x: &Tensor) -> Tensor {
    x.tensors().from_slice(&x.to_vec::<f32>().unwrap(), x.shape()).unwrap()
}

fn refused(what: &str, got: Result<Tensor, Error>, part: &str) {
    let error = got.err().unwrap_or_else(|| panic!("{what} was accepted"));
    assert!(!matches!(error, Error::Device(_)), "{what}: {error}");
    assert!(error.to_string().contains(part), "{what}: {error}");
}

/// Pools by the definition: the largest, or the sum and how many there are.
fn pooled(x: &[f32], shape: &[usize], axes: &[Axis], counted: bool) -> Vec<(f64, f64)> {
    let out: Vec<usize> = shape[..2].iter().copied().chain(axes.iter().map(Axis::out)).collect();
    let windows = index_list(&axes.iter().map(|a| a.kernel).collect::<Vec<_>>());
    let all = windows.len() as f64;
    let window = |at: Vec<usize>| {
        let (mut largest, mut sum, mut count) = (f64::NEG_INFINITY, 0.0, 0.0);
        for tap in &windows {
            let place = |i: usize| {
                (at[2 + i] * axes[i].stride + tap[i]).checked_sub(axes[i].padding).filter(|&p| p < axes[i].len)
            };
            let Some(places) = (0..axes.len()).map(place).collect::<Option<Vec<_>>>() else { continue };
            let x = f64::from(x[flat(shape, &[&at[..2], &places].concat())]);
            (largest, sum, count) = (largest.max(x), sum + x, count + 1.0);
        }
        (largest, sum / if counted { all } else { count })
    };
    index_list(&out).into_iter().map(window).collect()
}

#[test]
fn pooling_is_what_its_windows_hold() {
    let axis = |len, kernel, stride, padding| Axis { len, kernel, stride, padding };
    let cases = [
        vec![axis(9, 3, 2, 1)],
        vec![axis(8, 2, 2, 0); 2],
        vec![axis(23, 3, 1, 1), axis(40, 5, 3, 2)],
        vec![axis(7, 7, 7, 0); 2],
        vec![axis(5, 2, 1, 1), axis(6, 3, 2, 0), axis(7, 4, 3, 2)],
        // More than a thread of a GPU goes through at once.
        vec![axis(140, 130, 9, 3), axis(150, 131, 10, 5)],
    ];
    for tensors in places() {
        for axes in &cases {
            let each = |of: fn(&Axis) -> usize| axes.iter().map(of).collect::<Vec<_>>();
            let shape = [&[2, 3][..], &each(|a| a.len)].concat();
            let elements = noise(shape.iter().product(), 5);
            let x = tensors.from_slice(&elements, &shape).unwrap();
            for counted in [true, false] {
                let pool = Pool::new()
                    .stride(&each(|a| a.stride)[..])
                    .padding(&each(|a| a.padding)[..])
                    .count_padding(counted);
                let want = pooled(&elements, &shape, axes, counted);
                let largest = x.max_pool(&each(|a| a.kernel)[..], &pool).unwrap();
                let exact: Vec<f32> = want.iter().map(|want| want.0 as f32).collect();
                assert_eq!(largest.to_vec::<f32>().unwrap(), exact, "{axes:?}");
                let mean = x.avg_pool(&each(|a| a.kernel)[..], &pool).unwrap().to_vec::<f32>().unwrap();
                for (got, want) in mean.iter().zip(&want) {
                    assert!((f64::from(*got) - want.1).abs() < 1e-5, "{axes:?}, {counted}: {got} is not {}", want.1);
                }
            }
        }
        let mut holes = vec![1.0f32; 6];
        holes[1] = f32::NAN;
        holes[4] = f32::NEG_INFINITY;
        let x = tensors.from_slice(&holes, &[1, 1, 6]).unwrap();
        let y = x.max_pool(2, &Pool::new()).unwrap().to_vec::<f32>().unwrap();
        assert!(y[0].is_nan() && y[1..] == [1.0, 1.0], "{y:?}");
        assert_eq!(tensors.zeros(&[0, 2, 4]).unwrap().max_pool(2, &Pool::new()).unwrap().shape(), [0, 2, 2]);
        let turned = random(&tensors, &[4, 3, 6], 1).permute(&[1, 0, 2]).unwrap();
        let want = copied(&turned).avg_pool(3, &Pool::new()).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(turned.avg_pool(3, &Pool::new()).unwrap().to_vec::<f32>().unwrap(), want);
    }
}

#[test]
fn windows_that_do_not_fit_are_errors() {
    for tensors in places() {
        let x = tensors.ones(&[1, 2, 6, 6]).unwrap();
        refused("no window", x.max_pool(0, &Pool::new()), "window [0] has to be at least one");
        refused("no stride", x.avg_pool(2, &Pool::new().stride([1, 0])), "stride [1, 0] has to be at least one");
        refused("much padding", x.max_pool(3, &Pool::new().padding(2)), "more than half a window");
        refused("a large window", x.max_pool([6, 7], &Pool::new()), "larger than the input");
        refused("many numbers", x.max_pool([1, 2, 3], &Pool::new()), "one for each axis");
        refused("few axes", tensors.ones(&[4, 4]).unwrap().max_pool(2, &Pool::new()), "one to three axes");
        refused("integers", x.cast(DType::I32).unwrap().avg_pool(2, &Pool::new()), "takes f32, not i32");
        refused("length zero", tensors.ones(&[1, 2, 0]).unwrap().max_pool(1, &Pool::new()), "length zero");
    }
}

#[test]
fn normalization_is_what_its_definition_says() {
    let close = |what: &str, got: &Tensor, want: &dyn Fn(usize) -> f64| {
        for (i, got) in got.to_vec::<f32>().unwrap().into_iter().enumerate() {
            assert!((f64::from(got) - want(i)).abs() < 2e-5, "{what}, {i}: {got} is not {}", want(i));
        }
    };
    for tensors in places() {
        let (elements, shape) = (noise(3 * 5 * 28, 1), [3, 5, 4, 7]);
        let x = tensors.from_slice(&elements, &shape).unwrap();
        let [mean, weight, bias] = [2, 3, 4].map(|seed| noise(5, seed));
        let variance: Vec<f32> = noise(5, 5).iter().map(|x| x.abs()).collect();
        let tensor = |elements: &[f32]| tensors.from_slice(elements, &[elements.len()]).unwrap();
        let y = x.batch_norm(&tensor(&mean), &tensor(&variance), Some(&tensor(&weight)), Some(&tensor(&bias)), 1e-3);
        close("batch_norm", &y.unwrap(), &|i| {
            let c = i / 28 % 5;
            let [x, mean, variance] = [elements[i], mean[c], variance[c]].map(f64::from);
            (x - mean) / (variance + f64::from(1e-3f32)).sqrt() * f64::from(weight[c]) + f64::from(bias[c])
        });
        let y = x.permute(&[0, 2, 1, 3]).unwrap().permute(&[0, 2, 1, 3]).unwrap();
        let y = y.batch_norm(&tensor(&mean), &tensor(&variance), None, None, 1e-3).unwrap();
        close("batch_norm without", &y, &|i| {
            let [x, mean, variance] = [elements[i], mean[i / 28 % 5], variance[i / 28 % 5]].map(f64::from);
            (x - mean) / (variance + f64::from(1e-3f32)).sqrt()
        });
        // Rows of one, some and many elements, far from zero.
        for (rows, length) in [(4, 1), (6, 7), (3, 28), (2, 5000)] {
            let elements: Vec<f32> = noise(rows * length, 7).iter().map(|x| x + 50.0).collect();
            let (weight, bias) = (noise(length, 8), noise(length, 9));
            let x = tensors.from_slice(&elements, &[rows, length]).unwrap();
            let y = x.layer_norm(1, Some(&tensor(&weight)), Some(&tensor(&bias)), 1e-2).unwrap();
            close(&format!("layer_norm {rows} by {length}"), &y, &|i| {
                let row = &elements[i / length * length..][..length];
                let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / length as f64;
                let variance = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / length as f64;
                let y = (f64::from(elements[i]) - mean) / (variance + f64::from(1e-2f32)).sqrt();
                y * f64::from(weight[i % length]) + f64::from(bias[i % length])
            });
        }
        let two = tensors.from_slice(&noise(60, 1), &[5, 3, 4]).unwrap();
        let flat = two.reshape(&[5, 12]).unwrap().layer_norm(1, None, None, 1e-5).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(two.layer_norm(2, None, None, 1e-5).unwrap().to_vec::<f32>().unwrap(), flat);
        assert_eq!(tensors.zeros(&[0, 4]).unwrap().layer_norm(1, None, None, 1e-5).unwrap().shape(), [0, 4]);
    }
}

#[test]
fn what_cannot_be_normalized_is_an_error() {
    for tensors in places() {
        let (x, five, six) =
            (tensors.ones(&[2, 5, 3]).unwrap(), tensors.ones(&[5]).unwrap(), tensors.ones(&[6]).unwrap());
        refused("means", x.batch_norm(&six, &five, None, None, 1e-5), "[5] and [6] differ");
        refused("variances", x.batch_norm(&five, &six, None, None, 1e-5), "[5] and [6] differ");
        refused("weights", x.batch_norm(&five, &five, Some(&six), None, 1e-5), "[5] and [6] differ");
        refused("a bias", x.batch_norm(&five, &five, None, Some(&six), 1e-5), "[5] and [6] differ");
        refused("one axis", five.batch_norm(&five, &five, None, None, 1e-5), "does not exist");
        refused("integers", x.cast(DType::I32).unwrap().batch_norm(&five, &five, None, None, 1e-5), "takes f32");
        for epsilon in [-1.0, f32::NAN, f32::INFINITY] {
            refused("epsilon", x.batch_norm(&five, &five, None, None, epsilon), "finite and not negative");
            refused("epsilon", x.layer_norm(1, None, None, epsilon), "finite and not negative");
        }
        refused("no axes", x.layer_norm(0, None, None, 1e-5), "axes 0 has to be at least one");
        refused("many axes", x.layer_norm(4, None, None, 1e-5), "axes 4");
        refused("weights", x.layer_norm(1, Some(&five), None, 1e-5), "[3] and [5] differ");
        refused("integers", x.cast(DType::I32).unwrap().layer_norm(1, None, None, 1e-5), "takes f32");
    }
}
