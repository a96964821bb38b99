//! Elementary functions without branches, so that loops over them become vector code.
//!
//! Each is checked against `f64` over dense samples, extremes and subnormals included; the bounds are in the tests
//! below. `ops/math.wgsl` has such formulas for GPUs.

/// Added to a small number, it leaves the nearest integer in the lowest bits.
const TO_INT: f32 = 12_582_912.0; // 1.5 * 2^23

/// Two to the power of a small integer.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits(((n + 127) << 23) as u32)
}

/// `y * 2^n`, rounded once. In two steps, because `2^n` alone may be out of range.
#[inline(always)]
fn scale(y: f32, n: i32) -> f32 {
    let half = n >> 1;
    y * power_of_two(half) * power_of_two(n - half)
}

#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    // Not `f32::clamp`, which may panic. NaN stays.
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// A polynomial, its highest coefficient first.
macro_rules! poly {
    ($type:ty, $x:expr; $first:expr $(, $next:expr)*) => {{
        let y: $type = $first;
        $(let y = y.mul_add($x, $next);)*
        y
    }};
}

/// `x` as `n` times ln 2 and a rest of at most half of it: `n`, as a number that has [`TO_INT`] added, and the rest.
#[inline(always)]
fn by_ln_2(x: f32) -> (f32, f32) {
    let shifted = x.mul_add(std::f32::consts::LOG2_E, TO_INT);
    let n = shifted - TO_INT;
    (shifted, n.mul_add(-1.428_606_8e-6, n.mul_add(-6.931_457_5e-1, x)))
}

/// Two to the power of such an `n`.
#[inline(always)]
fn power_of(n: f32) -> f32 {
    f32::from_bits((n.to_bits() << 23).wrapping_add(1.0f32.to_bits()))
}

/// e to the power of at most half of ln 2, on either side, less the first terms: one, and `r` (N. Juffa's polynomial,
/// found with Remez' algorithm).
#[inline(always)]
fn exp_rest(r: f32) -> f32 {
    poly!(f32, r; 1.378_059_4e-3, 8.373_124_5e-3, 4.166_953_6e-2, 1.666_647_2e-1, 4.999_998_5e-1)
}

/// Reduction to half of ln 2 around zero, then a polynomial.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    let (n, r) = by_ln_2(clamp(x, -104.0, 89.0));
    let y = poly!(f32, r; exp_rest(r), 1.0, 1.0);
    scale(y, (n.to_bits() as i32).wrapping_sub(TO_INT.to_bits() as i32))
}

/// Up to here, and down to its negative, [`exp_near`] is [`exp`].
pub(crate) const NEAR: f32 = 87.0;

/// The same where neither the result nor its power of two can be out of range. NaN stays.
#[inline(always)]
pub(crate) fn exp_near(x: f32) -> f32 {
    let (n, r) = by_ln_2(x);
    poly!(f32, r; exp_rest(r), 1.0, 1.0) * power_of(n)
}

/// Reduction to one half around zero, then a polynomial (Cephes).
#[inline(always)]
pub(crate) fn exp2(x: f32) -> f32 {
    let x = clamp(x, -151.0, 129.0);
    let shifted = x + TO_INT;
    let r = x - (shifted - TO_INT);
    let p = poly!(f32, r; 1.535_336_2e-4, 1.339_887_5e-3, 9.618_437e-3, 5.550_332_6e-2, 2.402_264_9e-1, 6.931_472e-1);
    scale(p.mul_add(r, 1.0), (shifted.to_bits() as i32).wrapping_sub(TO_INT.to_bits() as i32))
}

/// A positive number as `2^k * (1 + f)` with `f` between √½ - 1 and √2 - 1, and log(1 + f) in parts (FreeBSD's msun):
/// `k`, `f`, `f²/2` and what is to be added to `f - f²/2`.
#[inline(always)]
fn log_parts(x: f32) -> (f32, f32, f32, f32) {
    let tiny = x < f32::MIN_POSITIVE;
    let scaled = if tiny { x * 33_554_432.0 } else { x }; // 2^25
    let bits = (scaled.to_bits() as i32).wrapping_add(0x3f80_0000 - 0x3f35_04f3);
    let k = ((bits >> 23) - 127) as f32 - if tiny { 25.0 } else { 0.0 };
    let f = f32::from_bits(((bits & 0x007f_ffff) + 0x3f35_04f3) as u32) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let r = poly!(f32, w; 0.242_790_79, 0.400_009_72) * w + poly!(f32, w; 0.284_987_87, 0.666_666_6) * z;
    let half = 0.5 * f * f;
    (k, f, half, s * (half + r))
}

/// What a logarithm is where `y` is not: of zero, of negative numbers, of infinity.
#[inline(always)]
fn log_special(x: f32, y: f32) -> f32 {
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x >= 0.0 { y } else { f32::NAN }
}

#[inline(always)]
pub(crate) fn log(x: f32) -> f32 {
    let (k, f, half, rest) = log_parts(x);
    let y = k.mul_add(9.058_001e-6, rest) - half + f;
    log_special(x, k.mul_add(6.931_381e-1, y))
}

#[inline(always)]
pub(crate) fn log2(x: f32) -> f32 {
    let (k, f, half, rest) = log_parts(x);
    // The first part has twelve bits, so that its product with the first part of log2(e) is exact.
    let high = f32::from_bits((f - half).to_bits() & 0xffff_f000);
    let low = f - high - half + rest;
    let y = (low + high).mul_add(-1.760_528_5e-4, low * 1.442_871_1);
    log_special(x, high.mul_add(1.442_871_1, y) + k)
}

#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    let (top, bottom) = tanh_fraction(x);
    top / bottom
}

/// e to the power of `x` as a power of two, and what that has to be multiplied with, less one.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, f32) {
    let (n, r) = by_ln_2(x);
    (power_of(n), (exp_rest(r) * r).mul_add(r, r))
}

/// `1 - z` and `1 + z` with `z = e^(-2|x|)`. One and the power of two in `z` are taken together, so that nothing is lost near zero.
#[inline(always)]
pub(crate) fn tanh_fraction(x: f32) -> (f32, f32) {
    let a = -2.0 * x.abs();
    // NaN stays.
    let (power, q) = exp_parts(if a < -20.0 { -20.0 } else { a });
    (power.mul_add(-q, 1.0 - power).copysign(x), power.mul_add(q, 1.0 + power))
}

#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    // Beyond, one is nothing next to the other term of the divisor, or the other way round.
    let far = if x < 0.0 { exp(x) } else { 1.0 };
    if x.abs() > NEAR { far } else { sigmoid_near(x) }
}

/// The same up to [`NEAR`].
#[inline(always)]
pub(crate) fn sigmoid_near(x: f32) -> f32 {
    1.0 / sigmoid_divisor(x)
}

/// `1 + e^(-x)` up to [`NEAR`]. Of one and the power of two the larger is added last, so that what is rounded before is small.
#[inline(always)]
fn sigmoid_divisor(x: f32) -> f32 {
    let (power, q) = exp_parts(-x);
    // Each for itself, which is one instruction.
    let small = if power < 1.0 { power } else { 1.0 };
    let large = if power > 1.0 { power } else { 1.0 };
    large + power.mul_add(q, small)
}

/// The divisor that one has to be divided by for the sigmoid of any number, to within the smallest there are: at most half of the
/// largest.
#[inline(always)]
pub(crate) fn sigmoid_divisor_of_any(x: f32) -> f32 {
    sigmoid_divisor(clamp(x, -88.0, 88.0))
}

/// Beyond this, [`sin`] and [`cos`] lose digits.
pub(crate) const TURNS: f32 = 8192.0;

/// Reduction to a quarter turn, then the polynomial of the quadrant (Cephes).
#[inline(always)]
fn sin_quadrant(x: f32, quadrant: i32) -> f32 {
    let shifted = x.mul_add(std::f32::consts::FRAC_2_PI, TO_INT);
    let n = shifted - TO_INT;
    let quadrant = (shifted.to_bits() as i32).wrapping_add(quadrant);
    let r = n.mul_add(-7.549_79e-8, n.mul_add(-4.837_513e-4, n.mul_add(-1.570_312_5, x)));
    let z = r * r;
    let sin = (poly!(f32, z; -1.951_529_6e-4, 8.332_161e-3, -1.666_665_5e-1) * z).mul_add(r, r);
    let cos = poly!(f32, z; 2.443_315_7e-5, -1.388_731_6e-3, 4.166_664_6e-2, -0.5, 1.0);
    let y = if quadrant & 1 == 0 { sin } else { cos };
    f32::from_bits(y.to_bits() ^ ((quadrant as u32 & 2) << 30))
}

#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    sin_quadrant(x, 0)
}

#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    sin_quadrant(x, 1)
}

/// `x` times the share of a normal distribution below `x`, the exact form (polynomials of Cephes' erf and erfc).
#[inline(always)]
pub(crate) fn gelu(x: f32) -> f32 {
    let u = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let z = u * u;
    let erf = u
        * poly!(f32, z; 7.853_861_4e-5, -8.010_193_6e-4, 5.188_327_7e-3, -2.685_381_2e-2, 1.128_358_5e-1, -3.761_262_6e-1,
            std::f32::consts::FRAC_2_SQRT_PI);
    let q = 1.0 / u;
    let w = q * q;
    let middle = poly!(f32, w; 2.326_82e-2, -1.387_039_4e-1, 3.687_424_7e-1, -5.824_733e-1, 6.210_004_6e-1, -4.944_515_3e-1,
        3.404_88e-1, -2.741_127e-1, 5.638_259_4e-1);
    let outer = poly!(f32, w; -1.047_766_4e1, 1.297_72e1, -7.495_518_7, 2.921_019, -1.015_265_3, 4.218_463_4e-1,
        -2.820_767_4e-1, 5.641_895e-1);
    // With what rounding takes from x²/2, which is about to be exponentiated. Beyond 20 nothing is left.
    let a = if x.abs() > 20.0 { 20.0 } else { x.abs() };
    let half = 0.5 * (a * a);
    let rest = (0.5 * a).mul_add(a, -half);
    let tail = exp(-half) * (1.0 - rest) * q * if u < 2.0 { middle } else { outer };
    let erfc = if u < 1.0 { 1.0 - erf } else { tail };
    let share = 0.5 * if x < 0.0 { erfc } else { 2.0 - erfc };
    // Minus infinity times nothing is nothing here.
    if x == f32::NEG_INFINITY { 0.0 } else { x * share }
}

/// As `f32::powf`, computed in `f64`: then two polynomials are enough for any exponent.
#[inline(always)]
pub(crate) fn pow(x: f32, y: f32) -> f32 {
    const TO_INT: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    let a = f64::from(x.abs());
    // log2: 2^k * (1 + f)
    let bits = a.to_bits().wrapping_add(0x3ff0_0000_0000_0000 - 0x3fe6_a09e_667f_3bcd);
    let k = f64::from_bits(0x4330_0000_0000_0000 | bits >> 52) - (4_503_599_627_370_496.0 + 1023.0);
    let f = f64::from_bits((bits & 0x000f_ffff_ffff_ffff) + 0x3fe6_a09e_667f_3bcd) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let p = poly!(f64, z; 1.0 / 15.0, 1.0 / 13.0, 1.0 / 11.0, 1.0 / 9.0, 1.0 / 7.0, 1.0 / 5.0, 1.0 / 3.0, 1.0);
    let log2 = (2.0 * std::f64::consts::LOG2_E * s).mul_add(p, k);
    let log2 = if a == 0.0 { f64::NEG_INFINITY } else { log2 };
    let log2 = if a == f64::INFINITY { a } else { log2 };
    // exp2
    let t = f64::from(y) * log2;
    let t = if t < -300.0 { -300.0 } else { t };
    let t = if t > 300.0 { 300.0 } else { t };
    let shifted = t + TO_INT;
    let r = (t - (shifted - TO_INT)) * std::f64::consts::LN_2;
    let e = poly!(f64, r; 1.0 / 3_628_800.0, 1.0 / 362_880.0, 1.0 / 40_320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0,
        1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0);
    let power = f64::from_bits((shifted.to_bits().wrapping_sub(TO_INT.to_bits()).wrapping_add(1023)) << 52);
    let value = (e * power) as f32;
    // Signs and exceptions.
    let whole = y.trunc() == y;
    let odd = whole && (y * 0.5).trunc() != y * 0.5 && y.abs() < 16_777_216.0;
    let value = if x.is_sign_negative() && odd { -value } else { value };
    let finite = x > f32::NEG_INFINITY && y.abs() < f32::INFINITY;
    let value = if x < 0.0 && finite && !whole { f32::NAN } else { value };
    let value = if x == 1.0 || y == 0.0 || (x == -1.0 && y.abs() == f32::INFINITY) { 1.0 } else { value };
    let nan = (x.is_nan() && y != 0.0) || (y.is_nan() && x != 1.0);
    if nan { f32::NAN } else { value }
}

/// The remainder with the divisor's sign, as Python and NumPy have it.
#[inline(always)]
pub(crate) fn rem(x: f32, y: f32) -> f32 {
    let r = x % y;
    if r == 0.0 {
        0.0f32.copysign(y)
    } else if (r < 0.0) != (y < 0.0) {
        r + y
    } else {
        r
    }
}

/// The same for integers; by zero it is zero, as in NumPy.
#[inline(always)]
pub(crate) fn rem_i32(x: i32, y: i32) -> i32 {
    if y == 0 {
        return 0;
    }
    let r = x.wrapping_rem(y);
    if r != 0 && (r < 0) != (y < 0) { r + y } else { r }
}

/// The larger one, or NaN if either is.
#[inline(always)]
pub(crate) fn max(a: f32, b: f32) -> f32 {
    or_nan(if a > b { a } else { b }, a)
}

/// The smaller one, or NaN if either is.
#[inline(always)]
pub(crate) fn min(a: f32, b: f32) -> f32 {
    or_nan(if a < b { a } else { b }, a)
}

/// `x`, or NaN if `a` is. The comparison's own bits make it NaN: choosing between the two would let a compiler turn a loop that
/// folds into memory into one that stores on a condition, which takes some processors tens of cycles.
#[inline(always)]
fn or_nan(x: f32, a: f32) -> f32 {
    f32::from_bits(x.to_bits() | 0u32.wrapping_sub(u32::from(a.is_nan())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance in units of the last place of the true result.
    fn ulps(got: f32, want: f64) -> f64 {
        let near = want as f32;
        if near.is_nan() || got.is_nan() {
            return if near.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
        }
        if near.is_infinite() || got.is_infinite() {
            return if near == got { 0.0 } else { f64::INFINITY };
        }
        let ulp = (f64::from(f32::from_bits(near.abs().to_bits() + 1)) - f64::from(near.abs())).max(2f64.powi(-149));
        (f64::from(got) - want).abs() / ulp
    }

    /// Every 4099th float of a range, both signs, and the special ones.
    fn samples(largest: f32) -> impl Iterator<Item = f32> {
        let positive = (0..=largest.to_bits()).step_by(4099).map(f32::from_bits);
        let special = [0.0, f32::MIN_POSITIVE, 1e-45, 1.0, 0.625, largest, f32::MAX, f32::INFINITY, f32::NAN];
        positive.chain(special).flat_map(|x| [x, -x])
    }

    #[track_caller]
    fn assert_within(bound: f64, largest: f32, ours: fn(f32) -> f32, truth: fn(f64) -> f64) {
        let (mut worst, mut at) = (0.0, 0.0);
        for x in samples(largest) {
            let error = ulps(ours(x), truth(f64::from(x)));
            if error > worst {
                (worst, at) = (error, x);
            }
        }
        assert!(worst <= bound, "{worst:.2} ULP at {at:e}: {} is not {}", ours(at), truth(f64::from(at)));
    }

    #[test]
    fn exponentials_are_within_one_ulp() {
        assert_within(1.0, f32::MAX, exp, f64::exp);
        assert_within(1.0, f32::MAX, exp2, f64::exp2);
        assert_within(1.0, f32::MAX, |x| if x.abs() > NEAR { exp(x) } else { exp_near(x) }, f64::exp);
    }

    #[test]
    fn tanh_and_sigmoid_are_within_two_ulp() {
        assert_eq!([tanh(-0.0), tanh(0.0)].map(f32::to_bits), [-0.0f32, 0.0].map(f32::to_bits));
        assert_within(2.0, f32::MAX, tanh, f64::tanh);
        let near = |x: f32| if x.abs() > NEAR { sigmoid(x) } else { sigmoid_near(x) };
        for sigmoid in [sigmoid, near] {
            assert_within(2.0, f32::MAX, sigmoid, |x| 1.0 / (1.0 + (-x).exp()));
        }
    }

    #[test]
    fn logarithms_are_within_two_ulp() {
        assert_within(2.0, f32::MAX, log, f64::ln);
        assert_within(2.0, f32::MAX, log2, f64::log2);
    }

    #[test]
    fn sine_and_cosine_are_within_two_ulp_or_a_hundred_millionth() {
        let worst = |ours: fn(f32) -> f32, truth: fn(f64) -> f64| {
            let of = |x: f32| {
                let (got, want) = (ours(x), truth(f64::from(x)));
                let far = (f64::from(got) - want).abs();
                if far < 1e-8 { 0.0 } else { ulps(got, want) }
            };
            samples(TURNS).filter(|x| x.is_nan() || x.abs() <= TURNS).map(of).fold(0.0, f64::max)
        };
        assert!(worst(sin, f64::sin) <= 2.0, "{}", worst(sin, f64::sin));
        assert!(worst(cos, f64::cos) <= 2.0, "{}", worst(cos, f64::cos));
    }

    #[test]
    fn powers_agree_with_the_standard_library_also_in_every_special_case() {
        let special = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            2.0,
            -2.0,
            0.5,
            -0.5,
            3.0,
            -3.0,
            1e30,
            -1e30,
            1e-30,
            16_777_215.0,
            16_777_216.0,
            1e10,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::MIN_POSITIVE,
            1e-45,
            f32::MAX,
            1.0000001,
            0.9999999,
        ];
        let dense = (0..200u32).map(|i| f32::from_bits(i.wrapping_mul(0x9e37_79b9)));
        let values: Vec<f32> = special.into_iter().chain(dense).collect();
        for &x in &values {
            for &y in &values {
                let (got, want) = (pow(x, y), f64::from(x).powf(f64::from(y)));
                assert!(ulps(got, want) <= 1.0, "{x:e} ^ {y:e}: {got:e} is not {want:e}");
                assert_eq!(
                    got.is_sign_negative() && !got.is_nan(),
                    want.is_sign_negative() && !want.is_nan(),
                    "{x} {y}"
                );
            }
        }
    }

    #[test]
    fn gelu_is_within_ten_millionths() {
        // Φ by Simpson's rule.
        let share = |x: f64| {
            let density = |t: f64| (-0.5 * t * t).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let (n, low) = (20_000, x.min(0.0) - 12.0);
            let h = (x - low) / f64::from(n);
            let inner: f64 = (1..n).map(|i| density(low + f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 }).sum();
            (density(low) + density(x) + inner) * h / 3.0
        };
        for i in -500..=500 {
            let x = i as f32 / 50.0;
            let (got, want) = (f64::from(gelu(x)), f64::from(x) * share(f64::from(x)));
            assert!((got - want).abs() <= 1e-5 * want.abs() + 1e-30, "{x}: {got:e} is not {want:e}");
        }
        assert!(gelu(f32::NAN).is_nan());
        assert_eq!((gelu(f32::INFINITY), gelu(f32::NEG_INFINITY), gelu(0.0)), (f32::INFINITY, 0.0, 0.0));
    }

    #[test]
    fn remainders_have_the_divisors_sign() {
        assert_eq!([rem(7.5, 2.0), rem(-7.5, 2.0), rem(7.5, -2.0), rem(-7.5, -2.0)], [1.5, 0.5, -0.5, -1.5]);
        assert_eq!(
            [rem_i32(7, 3), rem_i32(-7, 3), rem_i32(7, -3), rem_i32(7, 0), rem_i32(i32::MIN, -1)],
            [1, 2, -2, 0, 0]
        );
        assert!(rem(1.0, 0.0).is_nan() && rem(f32::INFINITY, 2.0).is_nan());
        assert_eq!((rem(3.0, f32::INFINITY), rem(-3.0, f32::INFINITY)), (3.0, f32::INFINITY));
    }

    #[test]
    fn the_larger_and_the_smaller_of_nan_is_nan() {
        for (a, b) in [(f32::NAN, 1.0), (1.0, f32::NAN)] {
            assert!(max(a, b).is_nan() && min(a, b).is_nan());
        }
        assert_eq!((max(-1.0, 2.0), min(-1.0, 2.0)), (2.0, -1.0));
    }
}
