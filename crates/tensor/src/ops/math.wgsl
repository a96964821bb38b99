// The formulas of math.rs. The language's own functions are allowed errors that are too large, or no infinities.

fn scale(y: f32, n: i32) -> f32 {
    let half = n >> 1u;
    return y * bitcast<f32>(u32(half + 127) << 23u) * bitcast<f32>(u32(n - half + 127) << 23u);
}

fn exp_(x: f32) -> f32 {
    let c = clamp(x, -104.0, 89.0);
    let n = round(c * 1.44269504);
    let r = (c - n * 0.693359375) + n * 2.12194440e-4;
    var q = 1.9875691500e-4;
    q = fma(q, r, 1.3981999507e-3);
    q = fma(q, r, 8.3334519073e-3);
    q = fma(q, r, 4.1665795894e-2);
    q = fma(q, r, 1.6666665459e-1);
    q = fma(q, r, 5.0000001201e-1);
    let y = scale(q * r * r + r + 1.0, i32(n));
    return select(y, x, is_nan(x));
}

fn exp2_(x: f32) -> f32 {
    let c = clamp(x, -151.0, 129.0);
    let n = round(c);
    let r = c - n;
    var p = 1.535336188e-4;
    p = fma(p, r, 1.339887440e-3);
    p = fma(p, r, 9.618437357e-3);
    p = fma(p, r, 5.550332471e-2);
    p = fma(p, r, 2.402264791e-1);
    p = fma(p, r, 6.931472028e-1);
    let y = scale(p * r + 1.0, i32(n));
    return select(y, x, is_nan(x));
}

// k, f, f²/2 and what is to be added to f - f²/2.
fn log_parts(x: f32) -> vec4<f32> {
    let tiny = x < 1.17549435e-38;
    let scaled = select(x, x * 33554432.0, tiny);
    let bits = bitcast<i32>(scaled) + (0x3f800000i - 0x3f3504f3i);
    let k = f32((bits >> 23u) - 127) - select(0.0, 25.0, tiny);
    let f = bitcast<f32>((bits & 0x007fffffi) + 0x3f3504f3i) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let w = z * z;
    let r = fma(0.24279079, w, 0.40000972) * w + fma(0.28498787, w, 0.66666662) * z;
    let half = 0.5 * f * f;
    return vec4<f32>(k, f, half, s * (half + r));
}

fn log_special(x: f32, y: f32) -> f32 {
    let bits = bitcast<u32>(x);
    // From the largest finite number to infinity, then NaN and all negative numbers.
    if (bits == 0x7f800000u) { return x; }
    if ((bits & 0x7fffffffu) == 0u) { return from_bits(0xff800000u); }
    if (bits > 0x7f800000u) { return from_bits(0x7fc00000u); }
    return y;
}

fn log_(x: f32) -> f32 {
    let p = log_parts(x);
    let y = p.x * 9.0580006e-6 + p.w - p.z + p.y;
    return log_special(x, p.x * 6.9313812e-1 + y);
}

fn log2_(x: f32) -> f32 {
    let p = log_parts(x);
    let high = bitcast<f32>(bitcast<u32>(p.y - p.z) & 0xfffff000u);
    let low = p.y - high - p.z + p.w;
    let y = (low + high) * -1.7605285e-4 + low * 1.4428711;
    return log_special(x, high * 1.4428711 + y + p.x);
}

fn tanh_(x: f32) -> f32 {
    let z = x * x;
    let a = abs(x);
    var p = -5.70498872745e-3;
    p = fma(p, z, 2.06390887954e-2);
    p = fma(p, z, -5.37397155531e-2);
    p = fma(p, z, 1.33314422036e-1);
    p = fma(p, z, -3.33332819422e-1);
    if (a < 0.625) { return p * z * x + x; }
    let far = 1.0 - 2.0 / (exp_(2.0 * a) + 1.0);
    return select(select(far, -far, x < 0.0), x, is_nan(x));
}

fn sigmoid_(x: f32) -> f32 {
    let z = exp_(-abs(x));
    let y = select(1.0, z, x < 0.0) / (1.0 + z);
    return select(y, x, is_nan(x));
}

fn sin_quadrant(x: f32, ahead: i32) -> f32 {
    if (is_nan(x) || is_inf(x)) { return from_bits(0x7fc00000u); }
    let n = round(x * 0.63661977);
    let quadrant = i32(n) + ahead;
    // Parts of few bits, so that their products with n are exact.
    let r = (((x - n * 1.5703125) - n * 4.8351287841796875e-4) - n * 3.13855707645e-7) - n * 6.07709438e-11;
    let z = r * r;
    var s = -1.9515295891e-4;
    s = fma(s, z, 8.3321608736e-3);
    s = fma(s, z, -1.6666654611e-1);
    var c = 2.443315711809948e-5;
    c = fma(c, z, -1.388731625493765e-3);
    c = fma(c, z, 4.166664568298827e-2);
    let y = select(c * z * z - 0.5 * z + 1.0, s * z * r + r, (quadrant & 1i) == 0i);
    return select(y, -y, (quadrant & 2i) != 0i);
}

fn gelu_(x: f32) -> f32 {
    if (bitcast<u32>(x) == 0xff800000u) { return 0.0; }
    let u = abs(x) * 0.70710678;
    let z = u * u;
    var erfc = 0.0;
    if (u < 1.0) {
        var t = 7.853861353153693e-5;
        t = fma(t, z, -8.010193625184903e-4);
        t = fma(t, z, 5.188327685732524e-3);
        t = fma(t, z, -2.685381193529856e-2);
        t = fma(t, z, 1.128358514861418e-1);
        t = fma(t, z, -3.761262582423300e-1);
        t = fma(t, z, 1.128379165726710);
        erfc = 1.0 - u * t;
    } else {
        let q = 1.0 / u;
        let w = q * q;
        var p = 0.0;
        if (u < 2.0) {
            p = 2.326819970068386e-2;
            p = fma(p, w, -1.387039388740657e-1);
            p = fma(p, w, 3.687424674597105e-1);
            p = fma(p, w, -5.824733027278666e-1);
            p = fma(p, w, 6.210004621745983e-1);
            p = fma(p, w, -4.944515323274145e-1);
            p = fma(p, w, 3.404879937665872e-1);
            p = fma(p, w, -2.741127028184656e-1);
            p = fma(p, w, 5.638259427386472e-1);
        } else {
            p = -1.047766399936249e+1;
            p = fma(p, w, 1.297719955372516e+1);
            p = fma(p, w, -7.495518717768503);
            p = fma(p, w, 2.921019019210786);
            p = fma(p, w, -1.015265279202700);
            p = fma(p, w, 4.218463358204948e-1);
            p = fma(p, w, -2.820767439740514e-1);
            p = fma(p, w, 5.641895067754075e-1);
        }
        erfc = exp_(-z) * q * p;
    }
    let y = x * 0.5 * select(2.0 - erfc, erfc, x < 0.0);
    return select(y, x, is_nan(x));
}

fn max_(a: f32, b: f32) -> f32 {
    return select(select(b, a, a > b || is_nan(a)), b, is_nan(b));
}

fn min_(a: f32, b: f32) -> f32 {
    return select(select(b, a, a < b || is_nan(a)), b, is_nan(b));
}

fn pow_(x: f32, y: f32) -> f32 {
    let finite_y = !is_nan(y) && !is_inf(y);
    let whole = finite_y && trunc(y) == y;
    let odd = whole && abs(y) < 16777216.0 && trunc(y * 0.5) * 2.0 != y;
    if (x == 1.0 || y == 0.0) { return 1.0; }
    if (is_nan(x) || is_nan(y)) { return from_bits(0x7fc00000u); }
    if (x == -1.0 && is_inf(y)) { return 1.0; }
    let negative = (bitcast<u32>(x) >> 31u) == 1u;
    if (negative && x != 0.0 && !is_inf(x) && finite_y && !whole) { return from_bits(0x7fc00000u); }
    let a = abs(x);
    var value = 0.0;
    if (a == 0.0 || is_inf(a) || is_inf(y)) {
        // Zero or infinity: which one is the sign of the exponent times that of the logarithm.
        let grows = ((a > 1.0) == (y > 0.0));
        value = from_bits(select(0u, 0x7f800000u, grows));
    } else {
        // log2 in two parts, so that a large exponent does not enlarge its error.
        let p = log_parts(a);
        let high = bitcast<f32>(bitcast<u32>(p.y - p.z) & 0xfffff000u);
        let low = p.y - high - p.z + p.w;
        let fine = (low + high) * -1.7605285e-4 + low * 1.4428711;
        let coarse = high * 1.4428711;
        let sum = p.x + coarse;
        let first = bitcast<f32>(bitcast<u32>(sum + fine) & 0xfffff000u);
        let second = ((p.x - first) + coarse) + fine;
        let y1 = bitcast<f32>(bitcast<u32>(y) & 0xfffff000u);
        let y2 = y - y1;
        let t1 = y1 * first;
        let t2 = y1 * second + y2 * (first + second);
        let n = round(clamp(t1 + t2, -200.0, 200.0));
        let far = abs(t1) > 1000.0;
        let r = clamp(select((t1 - n) + t2, 0.0, far), -1.0, 1.0);
        value = scale(exp2_(r), i32(n));
    }
    return select(value, -value, negative && odd);
}

// The remainder with the divisor's sign: exact, one bit of the quotient at a time.
fn rem_(x: f32, y: f32) -> f32 {
    let ux = bitcast<u32>(x) & 0x7fffffffu;
    let uy = bitcast<u32>(y) & 0x7fffffffu;
    let sign_x = bitcast<u32>(x) & 0x80000000u;
    let sign_y = bitcast<u32>(y) & 0x80000000u;
    if (uy == 0u || ux >= 0x7f800000u || uy > 0x7f800000u) { return from_bits(0x7fc00000u); }
    var r = ux;
    if (ux >= uy) {
        var ex = i32(ux >> 23u);
        let ey_ = i32(uy >> 23u);
        var mx = ux & 0x7fffffu;
        var my = uy & 0x7fffffu;
        if (ex == 0) { ex = 1; } else { mx |= 0x800000u; }
        var ey = ey_;
        if (ey == 0) { ey = 1; } else { my |= 0x800000u; }
        for (; ex > ey; ex--) {
            if (mx >= my) { mx -= my; }
            mx <<= 1u;
        }
        if (mx >= my) { mx -= my; }
        if (mx == 0u) {
            r = 0u;
        } else {
            let shift = min(countLeadingZeros(mx) - 8u, u32(ey - 1));
            mx <<= shift;
            let e = u32(ey) - shift;
            r = select(mx, (mx & 0x7fffffu) | (e << 23u), mx >= 0x800000u);
        }
    }
    if (r == 0u) { return from_bits(sign_y); }
    let signed = from_bits(r | sign_x);
    return select(signed, signed + y, sign_x != sign_y);
}

// Without its fraction, up to the ends of the range; NaN is zero.
fn to_i32(x: f32) -> i32 {
    if (is_nan(x)) { return 0i; }
    if (x >= 2147483648.0) { return 2147483647i; }
    if (x < -2147483648.0) { return -2147483647i - 1i; }
    return i32(x);
}

fn unordered(a: f32, b: f32) -> bool {
    return is_nan(a) || is_nan(b);
}

// The divisor's sign; by zero it is zero.
fn rem_i32(a: i32, b: i32) -> i32 {
    if (b == 0i || b == -1i) { return 0i; }
    let r = a % b;
    return select(r, r + b, r != 0i && (r < 0i) != (b < 0i));
}

