use millrace_fourier::{FftDirection, complex, complex_f64};
use num_complex::{Complex32, Complex64};

use super::{super::vector::Vector, *};

pub(in super::super) fn levels() -> Vec<Lanes> {
    Simd::all().into_iter().filter_map(Lanes::of).collect()
}

pub(in super::super) fn noise(n: usize) -> Vec<Complex32> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| Complex32::new(next(), next())).collect()
}

/// The transform in `f64`: the sum that it is if that does not take long.
pub(in super::super) fn wanted(line: &[Complex32], inverse: bool) -> Vec<Complex64> {
    let n = line.len();
    let mut line: Vec<_> = line.iter().map(|x| Complex64::new(x.re.into(), x.im.into())).collect();
    if n > 500 {
        let direction = if inverse { FftDirection::Inverse } else { FftDirection::Forward };
        complex_f64(n, direction).process(&mut line);
        return line;
    }
    let sign = if inverse { TAU } else { -TAU };
    let roots: Vec<_> = (0..n).map(|k| Complex64::cis(sign * k as f64 / n as f64)).collect();
    (0..n).map(|k| line.iter().enumerate().map(|(i, x)| x * roots[i * k % n]).sum()).collect()
}

/// The root of the mean square error, relative to the numbers'.
pub(in super::super) fn error(got: &[Complex32], want: &[Complex64]) -> f64 {
    assert_eq!(got.len(), want.len());
    let wrong = got.iter().zip(want).map(|(g, w)| (Complex64::new(g.re.into(), g.im.into()) - w).norm_sqr());
    (wrong.sum::<f64>() / want.iter().map(|w| w.norm_sqr()).sum::<f64>()).sqrt()
}

/// Lines `line` elements apart, whose elements are `step` apart.
#[derive(Debug, Clone, Copy)]
struct Lie {
    line: usize,
    step: usize,
}

/// Transforms as many lines as there are to be, from one kind of place to another.
fn lines(lanes: Lanes, plan: &Plan, count: usize, (from, to): (Lie, Lie), inverse: bool, reference: &[Vec<Complex64>]) {
    let n = plan.n;
    let len = |lie: Lie| (count - 1) * lie.line + (n - 1) * lie.step + 1;
    let mut x = vec![Complex32::ZERO; len(from)];
    let numbers = noise(lanes.count() * n);
    for (line, i) in (0..count).flat_map(|line| (0..n).map(move |i| (line, i))) {
        x[line * from.line + i * from.step] = numbers[line * n + i];
    }
    let untouched = Complex32::new(77.0, -77.0);
    let mut y = vec![untouched; len(to)];
    let mut room = vec![Complex32::new(f32::NAN, 0.0); lanes.room(n)];
    let place = |lie: Lie| (2 * lie.line as isize, 2 * lie.step as isize);
    let work = Work {
        lanes: count,
        from: Place { at: x.as_ptr().cast(), line: place(from).0, step: place(from).1 },
        to: Place { at: y.as_mut_ptr().cast(), line: place(to).0, step: place(to).1 },
        roots: None,
        scale: 0.5,
        inverse,
    };
    // SAFETY: both are as long as lines and steps make them.
    unsafe { lanes.transform(plan, &work, &mut room) };
    for line in 0..count {
        let got: Vec<_> = (0..n).map(|i| y[line * to.line + i * to.step] * 2.0).collect();
        let error = error(&got, &reference[line]);
        assert!(error < 2.5e-7, "{lanes:?}: {count} lines of {n}, {from:?} to {to:?}, inverse {inverse}: {error}");
    }
    let mut theirs = vec![false; y.len()];
    (0..count).for_each(|line| (0..n).for_each(|i| theirs[line * to.line + i * to.step] = true));
    assert!(y.iter().zip(&theirs).all(|(y, theirs)| *theirs || *y == untouched), "nothing else is written");
}

fn every_way(n: usize) {
    for lanes in levels() {
        let plan = Plan::new(n).unwrap();
        let width = lanes.count();
        let numbers = noise(width * n);
        for inverse in [false, true] {
            let reference: Vec<_> = numbers.chunks(n).map(|line| wanted(line, inverse)).collect();
            for count in [width, 3] {
                let (rows, columns) = (Lie { line: n + 1, step: 1 }, Lie { line: 1, step: count + 2 });
                let neither = Lie { line: 2, step: 2 * count + 1 };
                for places in [(rows, rows), (columns, columns), (rows, columns), (columns, rows), (neither, neither)] {
                    lines(lanes, &plan, count, places, inverse, &reference);
                }
            }
        }
    }
}

#[test]
fn every_length_of_small_factors_is_the_sum_that_a_transform_is() {
    (2..=320).filter(|&n| fits(n)).for_each(every_way);
}

#[test]
fn lengths_beyond_the_nearest_cache_are_transformed_in_parts() {
    [512, 640, 729, 1000, 1024, 1200, 2048, 4096].into_iter().for_each(every_way);
}

#[test]
fn lengths_with_other_factors_do_not_fit() {
    for n in 0..2000 {
        assert_eq!(Plan::new(n).is_some(), fits(n), "{n}");
        let mut rest = n;
        [2, 3, 5].into_iter().for_each(|factor| {
            while rest > 1 && rest % factor == 0 {
                rest /= factor;
            }
        });
        assert_eq!(fits(n), n > 1 && rest == 1, "{n}");
    }
}

#[test]
fn errors_are_those_of_the_library() {
    for (lanes, n) in levels().into_iter().flat_map(|lanes| [(lanes, 128), (lanes, 1024), (lanes, 4096)]) {
        let (plan, x) = (Plan::new(n).unwrap(), noise(lanes.count() * n));
        let want: Vec<_> = x.chunks(n).flat_map(|line| wanted(line, false)).collect();
        let mut library = x.clone();
        complex(n, FftDirection::Forward).process(&mut library);
        let (mut ours, mut room) = (x, vec![Complex32::ZERO; lanes.room(n)]);
        let (at, line) = (ours.as_mut_ptr().cast(), 2 * n as isize);
        let (from, to) = (Place { at: at as *const f32, line, step: 2 }, Place { at, line, step: 2 });
        let work = Work { lanes: lanes.count(), from, to, roots: None, scale: 1.0, inverse: false };
        // SAFETY: there are as many lines, where they are read from and written to.
        unsafe { lanes.transform(&plan, &work, &mut room) };
        let (ours, library) = (error(&ours, &want), error(&library, &want));
        assert!(ours < 1.3 * library, "{lanes:?}, {n}: {ours} and {library}");
    }
}

/// What turns lines to lanes turns them back.
fn there_and_back<V: Vector>() {
    let pitch = V::LANES + 3;
    let from: Vec<f32> = (0..V::LANES * pitch).map(|i| i as f32).collect();
    let (mut between, mut to) = (vec![0.0; V::LANES * V::LANES], vec![-1.0; V::LANES * pitch]);
    // SAFETY: as many lines of as many numbers as there are lanes; levels were asked for.
    unsafe {
        V::lines_to_lanes(from.as_ptr(), pitch as isize, between.as_mut_ptr());
        let places: Vec<u32> = (0..V::LANES as u32 / 2).collect();
        V::lanes_to_lines(between.as_ptr(), &places, to.as_mut_ptr(), pitch as isize);
    }
    for (line, i) in (0..V::LANES).flat_map(|line| (0..V::LANES).map(move |i| (line, i))) {
        assert_eq!(between[i * V::LANES + line], from[line * pitch + i]);
        assert_eq!(to[line * pitch + i], from[line * pitch + i]);
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn lines_are_turned_to_lanes_and_back() {
    use super::super::vector::{Avx2, Avx512};
    for lanes in levels() {
        match lanes {
            Lanes::Avx2 => there_and_back::<Avx2>(),
            Lanes::Avx512 => there_and_back::<Avx512>(),
        }
    }
}
