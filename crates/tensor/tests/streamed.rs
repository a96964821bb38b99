//! Results that are too large for the caches, against a plain loop.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use millrace::tensor::Tensors;
use support::noise;

#[test]
fn results_past_the_caches_are_what_a_plain_loop_gives() {
    let tensors = Tensors::on(&millrace::runtime().open("cpu").unwrap()).unwrap();
    // Eight mebibytes and a little: neither whole blocks nor whole lines.
    let n = (2 << 20) + 3;
    let a: Vec<f32> = noise(n, 1).into_iter().map(|x| 60.0 * x).collect();
    let b: Vec<f32> = noise(n + 1, 2);
    let (x, y) = (tensors.from_slice(&a, &[n]).unwrap(), tensors.from_slice(&b, &[n + 1]).unwrap());

    let sum = x.add(&y.slice(0, 1..).unwrap()).unwrap().to_vec::<f32>().unwrap();
    assert!((0..n).all(|i| sum[i] == a[i] + b[i + 1]), "two that lie in order");
    let turned = x.sub(&y.slice(0, ..n).unwrap().flip(0).unwrap()).unwrap().to_vec::<f32>().unwrap();
    assert!((0..n).all(|i| turned[i] == a[i] - b[n - 1 - i]), "one that lies backwards");
    let number = x.mul(0.3f32).unwrap().to_vec::<f32>().unwrap();
    assert!((0..n).all(|i| number[i] == a[i] * 0.3), "a number");
    let spread = tensors.from_slice(&[2.5f32], &[1]).unwrap().expand(&[n]).unwrap();
    let spread = x.div(&spread).unwrap().to_vec::<f32>().unwrap();
    assert!((0..n).all(|i| spread[i] == a[i] / 2.5), "one element everywhere");
    let less = x.lt(&y.slice(0, ..n).unwrap()).unwrap().to_vec::<bool>().unwrap();
    assert!((0..n).all(|i| less[i] == (a[i] < b[i])), "a result of another type");

    // Some are far enough for the other way: at the ends, and on both sides of blocks' and pieces' ends.
    let mut far = a;
    for at in [0, 1, 15, 16, 63, 64, 255, 256, 1023, 65_535, 65_536, n / 2, n - 4, n - 3, n - 1] {
        far[at] = if at % 2 == 0 { 88.0 } else { -100.0 };
    }
    let x = tensors.from_slice(&far, &[n]).unwrap();
    let near = |got: f32, want: f64| (f64::from(got) - want).abs() <= 3e-7 * want.abs().max(1e-37);
    let exp = x.exp().unwrap().to_vec::<f32>().unwrap();
    let wrong = (0..n).find(|&i| !near(exp[i], f64::from(far[i]).exp()));
    assert_eq!(wrong, None, "exp of {:?} is {:?}", wrong.map(|i| far[i]), wrong.map(|i| exp[i]));
    far.iter_mut().filter(|x| x.abs() > 80.0).for_each(|x| *x *= 1e6);
    let sin = tensors.from_slice(&far, &[n]).unwrap().sin().unwrap().to_vec::<f32>().unwrap();
    let wrong = (0..n).find(|&i| (f64::from(sin[i]) - f64::from(far[i]).sin()).abs() > 2e-7);
    assert_eq!(wrong, None, "sin of {:?} is {:?}", wrong.map(|i| far[i]), wrong.map(|i| sin[i]));
}
