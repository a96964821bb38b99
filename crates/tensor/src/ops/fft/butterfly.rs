//! Transforms of a few numbers of every line, in registers.

use std::f64::consts::{FRAC_1_SQRT_2, TAU};

use super::vector::Vector;

/// A complex number of every line.
pub(super) type C<V> = (V, V);

#[inline(always)]
fn add<V: Vector>(a: C<V>, b: C<V>) -> C<V> {
    (a.0.add(b.0), a.1.add(b.1))
}

#[inline(always)]
fn sub<V: Vector>(a: C<V>, b: C<V>) -> C<V> {
    (a.0.sub(b.0), a.1.sub(b.1))
}

/// `a + i b`.
#[inline(always)]
fn add_i<V: Vector>(a: C<V>, b: C<V>) -> C<V> {
    (a.0.sub(b.1), a.1.add(b.0))
}

/// `a - i b`.
#[inline(always)]
fn sub_i<V: Vector>(a: C<V>, b: C<V>) -> C<V> {
    (a.0.add(b.1), a.1.sub(b.0))
}

#[inline(always)]
pub(super) fn mul<V: Vector>(a: C<V>, b: C<V>) -> C<V> {
    (a.0.mul_sub(b.0, a.1.mul(b.1)), a.0.mul_add(b.1, a.1.mul(b.0)))
}

/// `a + by b` and `a - by b`; `by` is real.
#[inline(always)]
fn both<V: Vector>(a: C<V>, b: C<V>, by: V) -> (C<V>, C<V>) {
    ((b.0.mul_add(by, a.0), b.1.mul_add(by, a.1)), (b.0.mul_from(by, a.0), b.1.mul_from(by, a.1)))
}

#[inline(always)]
fn four<V: Vector>(x: [C<V>; 4]) -> [C<V>; 4] {
    let (a, b, c, d) = (add(x[0], x[2]), sub(x[0], x[2]), add(x[1], x[3]), sub(x[1], x[3]));
    [add(a, c), sub_i(b, d), sub(a, c), add_i(b, d)]
}

/// `a` turned by an eighth, and by three eighths; `half` is the root of a half.
#[inline(always)]
fn eighth<V: Vector>(a: C<V>, half: V) -> C<V> {
    (a.0.add(a.1).mul(half), a.1.sub(a.0).mul(half))
}

#[inline(always)]
fn three_eighths<V: Vector>(a: C<V>, half: V, minus_half: V) -> C<V> {
    (a.1.sub(a.0).mul(half), a.0.add(a.1).mul(minus_half))
}

/// `x + a c + b d`; `c` and `d` are real.
#[inline(always)]
fn sum_of<V: Vector>(x: C<V>, a: C<V>, c: V, b: C<V>, d: V) -> C<V> {
    (b.0.mul_add(d, a.0.mul_add(c, x.0)), b.1.mul_add(d, a.1.mul_add(c, x.1)))
}

/// # Safety
/// The processor has the instructions of the vector.
#[inline(always)]
unsafe fn splat<V: Vector>(value: f64) -> V {
    // SAFETY: the caller vouches for the processor.
    unsafe { V::splat(value as f32) }
}

/// A transform of `R` numbers of every line, forward. `R` is 2, 3, 4, 5, 8 or 16.
///
/// # Safety
/// The processor has the instructions of the vector.
#[inline(always)]
pub(super) unsafe fn butterfly<V: Vector, const R: usize>(x: &mut [C<V>; R]) {
    let x = &mut x[..];
    match R {
        2 => (x[0], x[1]) = (add(x[0], x[1]), sub(x[0], x[1])),
        3 => {
            let (sum, difference) = (add(x[1], x[2]), sub(x[1], x[2]));
            // SAFETY: the caller vouches for the processor.
            let (half, high): (V, V) = unsafe { (splat(0.5), splat((TAU / 3.0).sin())) };
            let middle = (sum.0.mul_from(half, x[0].0), sum.1.mul_from(half, x[0].1));
            // Minus `i` times the difference, but for the sign of the imaginary part.
            let (plus, minus) = both(middle, (difference.1, difference.0), high);
            x[0] = add(x[0], sum);
            (x[1], x[2]) = ((plus.0, minus.1), (minus.0, plus.1));
        }
        4 => x.copy_from_slice(&four([x[0], x[1], x[2], x[3]])),
        5 => {
            let (once, twice) = (TAU / 5.0, 2.0 * TAU / 5.0);
            // SAFETY: as above.
            let [c1, c2, s1, s2]: [V; 4] =
                unsafe { [splat(once.cos()), splat(twice.cos()), splat(once.sin()), splat(twice.sin())] };
            let (a, b) = (add(x[1], x[4]), add(x[2], x[3]));
            let (d, e) = (sub(x[1], x[4]), sub(x[2], x[3]));
            let (even1, even2) = (sum_of(x[0], a, c1, b, c2), sum_of(x[0], a, c2, b, c1));
            let odd1 = (e.0.mul_add(s2, d.0.mul(s1)), e.1.mul_add(s2, d.1.mul(s1)));
            let odd2 = (e.0.mul_from(s1, d.0.mul(s2)), e.1.mul_from(s1, d.1.mul(s2)));
            x[0] = add(add(x[0], a), b);
            (x[1], x[4]) = (sub_i(even1, odd1), add_i(even1, odd1));
            (x[2], x[3]) = (sub_i(even2, odd2), add_i(even2, odd2));
        }
        8 => {
            let even = four([x[0], x[2], x[4], x[6]]);
            let odd = four([x[1], x[3], x[5], x[7]]);
            // SAFETY: as above.
            let half: V = unsafe { splat(FRAC_1_SQRT_2) };
            (x[0], x[4]) = (add(even[0], odd[0]), sub(even[0], odd[0]));
            (x[1], x[5]) = both(even[1], (odd[1].0.add(odd[1].1), odd[1].1.sub(odd[1].0)), half);
            (x[2], x[6]) = (sub_i(even[2], odd[2]), add_i(even[2], odd[2]));
            // But for the sign of the imaginary part.
            let (plus, minus) = both(even[3], (odd[3].1.sub(odd[3].0), odd[3].0.add(odd[3].1)), half);
            (x[3], x[7]) = ((plus.0, minus.1), (minus.0, plus.1));
        }
        16 => {
            let (cos, sin) = ((TAU / 16.0).cos(), (TAU / 16.0).sin());
            // SAFETY: as above.
            let [c, s, minus_c, minus_s]: [V; 4] = unsafe { [splat(cos), splat(sin), splat(-cos), splat(-sin)] };
            // SAFETY: as above.
            let (half, minus_half): (V, V) = unsafe { (splat(FRAC_1_SQRT_2), splat(-FRAC_1_SQRT_2)) };
            let a = four([x[0], x[4], x[8], x[12]]);
            let b = four([x[1], x[5], x[9], x[13]]);
            let b = [b[0], mul(b[1], (c, minus_s)), eighth(b[2], half), mul(b[3], (s, minus_c))];
            let d = four([x[2], x[6], x[10], x[14]]);
            let d = [d[0], eighth(d[1], half), (d[2].1, d[2].0), three_eighths(d[3], half, minus_half)];
            let e = four([x[3], x[7], x[11], x[15]]);
            let e = [e[0], mul(e[1], (s, minus_c)), three_eighths(e[2], half, minus_half), mul(e[3], (minus_c, s))];
            for p in 0..4 {
                let (sum, difference) = if p == 2 {
                    // Minus `i` times, but for the sign of the imaginary part.
                    ((a[2].0.add(d[2].0), a[2].1.sub(d[2].1)), (a[2].0.sub(d[2].0), a[2].1.add(d[2].1)))
                } else {
                    (add(a[p], d[p]), sub(a[p], d[p]))
                };
                let (odd, turned) = (add(b[p], e[p]), sub(b[p], e[p]));
                (x[p], x[p + 8]) = (add(sum, odd), sub(sum, odd));
                (x[p + 4], x[p + 12]) = (sub_i(difference, turned), add_i(difference, turned));
            }
        }
        _ => {}
    }
}
