// One pass of Stockham's transform: Govindaraju, Lloyd, Dotsenko, Smith, Manferdelli: High performance discrete Fourier
// transforms on graphics processors, 2008. A column is one transform of the pass's radix, `len / radix` apart in its line;
// a group does some of them in its own memory, by the same rule once more with the radix's factors.

struct Params {
    len: u32,
    radix: u32,
    factors: u32,
    before: u32,
    columns: u32,
    at_once: u32,
    lines: u32,
    flags: u32,
    from_n: u32,
    to_n: u32,
    scale: f32,
    base: u32,
    from_step: i32,
    to_step: i32,
    chirp: u32,
    transformed: u32,
    half: u32,
    shape: array<u32, 4>,
    from_strides: array<i32, 4>,
    to_strides: array<i32, 4>,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> tables: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const THREADS: u32 = 128u;
const ROOM: u32 = 1024u;
const LINES_FIRST: u32 = 1u;
const FROM_ACROSS: u32 = 2u;
const TO_ACROSS: u32 = 4u;
const FROM_CONJUGATE: u32 = 8u;
const FROM_CHIRP: u32 = 16u;
const TO_CONVOLVE: u32 = 32u;
const TO_CHIRP: u32 = 64u;
const TO_CONJUGATE: u32 = 128u;

// What is read, and what is written; they change places after every factor.
var<workgroup> work: array<vec2<f32>, 2048>;

fn is(flag: u32) -> bool {
    return (params.flags & flag) != 0u;
}

fn mul(a: vec2<f32>, b: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

fn conjugate(a: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(a.x, -a.y);
}

fn by_minus_i(a: vec2<f32>) -> vec2<f32> {
    return vec2<f32>(a.y, -a.x);
}

fn complex_at(place: i32) -> vec2<f32> {
    return vec2<f32>(x[2 * place], x[2 * place + 1]);
}

// Frequency `i` of an odd number of real ones; the first has no imaginary part.
fn mirrored(base: i32, i: u32) -> vec2<f32> {
    let other = params.from_n - i;
    if (i == 0u) { return vec2<f32>(complex_at(base).x, 0.0); }
    if (i < other) { return complex_at(base + i32(i) * params.from_step); }
    return conjugate(complex_at(base + i32(other) * params.from_step));
}

// Frequency `i` of pairs, twice: of the even ones, and i times that of the odd ones.
fn halved(base: i32, i: u32) -> vec2<f32> {
    var a = complex_at(base + i32(i) * params.from_step);
    var b = conjugate(complex_at(base + i32(params.from_n - i) * params.from_step));
    if (i == 0u) {
        a.y = 0.0;
        b.y = 0.0;
    }
    let odd = mul(a - b, conjugate(tables[params.half + i]));
    return a + b + vec2<f32>(-odd.y, odd.x);
}

fn taken(base: i32, i: u32) -> vec2<f32> {
    {READ}
}

fn put(base: i32, i: u32, v: vec2<f32>) {
    {WRITE}
}

// An element times a root of unity.
fn turned(at: u32, step: u32) -> vec2<f32> {
    return mul(work[at], tables[step]);
}

fn butterfly2(at: u32, apart: u32, step: u32, to: u32, before: u32) {
    let a = work[at];
    let b = turned(at + apart, step);
    work[to] = a + b;
    work[to + before] = a - b;
}

fn butterfly4(at: u32, apart: u32, step: u32, to: u32, before: u32) {
    let v0 = work[at];
    let v1 = turned(at + apart, step);
    let v2 = turned(at + 2u * apart, 2u * step);
    let v3 = turned(at + 3u * apart, 3u * step);
    let a = v0 + v2;
    let b = v0 - v2;
    let c = v1 + v3;
    let d = by_minus_i(v1 - v3);
    work[to] = a + c;
    work[to + before] = b + d;
    work[to + 2u * before] = a - c;
    work[to + 3u * before] = b - d;
}

fn butterfly8(at: u32, apart: u32, step: u32, to: u32, before: u32) {
    let v0 = work[at];
    let v1 = turned(at + apart, step);
    let v2 = turned(at + 2u * apart, 2u * step);
    let v3 = turned(at + 3u * apart, 3u * step);
    let v4 = turned(at + 4u * apart, 4u * step);
    let v5 = turned(at + 5u * apart, 5u * step);
    let v6 = turned(at + 6u * apart, 6u * step);
    let v7 = turned(at + 7u * apart, 7u * step);
    let a0 = v0 + v4;
    let a1 = v0 - v4;
    let a2 = v2 + v6;
    let a3 = by_minus_i(v2 - v6);
    let b0 = v1 + v5;
    let b1 = v1 - v5;
    let b2 = v3 + v7;
    let b3 = by_minus_i(v3 - v7);
    let e0 = a0 + a2;
    let e1 = a1 + a3;
    let e2 = a0 - a2;
    let e3 = a1 - a3;
    let r = 0.70710678118654752;
    let o0 = b0 + b2;
    let o1 = r * mul(b1 + b3, vec2<f32>(1.0, -1.0));
    let o2 = by_minus_i(b0 - b2);
    let o3 = r * mul(b1 - b3, vec2<f32>(-1.0, -1.0));
    work[to] = e0 + o0;
    work[to + before] = e1 + o1;
    work[to + 2u * before] = e2 + o2;
    work[to + 3u * before] = e3 + o3;
    work[to + 4u * before] = e0 - o0;
    work[to + 5u * before] = e1 - o1;
    work[to + 6u * before] = e2 - o2;
    work[to + 7u * before] = e3 - o3;
}

{ODD}

// Where a line begins.
fn from_base(line: u32) -> i32 {
    var rest = line;
    var place = i32(params.base);
    for (var axis = 4u; axis > 0u; axis--) {
        let dim = params.shape[axis - 1u];
        place += i32(rest % dim) * params.from_strides[axis - 1u];
        rest /= dim;
    }
    return place;
}

fn to_base(line: u32) -> i32 {
    var rest = line;
    var place = 0;
    for (var axis = 4u; axis > 0u; axis--) {
        let dim = params.shape[axis - 1u];
        place += i32(rest % dim) * params.to_strides[axis - 1u];
        rest /= dim;
    }
    return place;
}

// A column's line, and its number in that line.
fn place(column: u32) -> vec2<u32> {
    let per_line = params.len / params.radix;
    if (is(LINES_FIRST)) { return vec2<u32>(column % params.lines, column / params.lines); }
    return vec2<u32>(column / per_line, column % per_line);
}

// The number of a column in its group, and of an element in its column.
fn element(e: u32, across: bool) -> vec2<u32> {
    if (across) { return vec2<u32>(e % params.at_once, e / params.at_once); }
    return vec2<u32>(e / params.radix, e % params.radix);
}

@compute @workgroup_size(128)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let first = (group.y * groups.x + group.x) * params.at_once;
    let total = params.at_once * params.radix;
    for (var e = local; e < total; e += THREADS) {
        let at = element(e, is(FROM_ACROSS));
        var v = vec2<f32>();
        if (first + at.x < params.columns) {
            let column = place(first + at.x);
            let i = column.y + at.y * (params.len / params.radix);
            if (i < params.from_n) {
                v = taken(from_base(column.x), i);
                if (is(FROM_CONJUGATE)) { v = conjugate(v); }
                if (is(FROM_CHIRP)) { v = mul(v, tables[params.chirp + i]); }
            }
            if (params.before > 1u) {
                let step = params.len / (params.before * params.radix);
                v = mul(v, tables[(column.y % params.before) * at.y * step]);
            }
        }
        work[at.x * params.radix + at.y] = v;
    }
    workgroupBarrier();
    var source = 0u;
    var before = 1u;
    for (var rest = params.factors; rest != 0u; rest >>= 4u) {
        let factor = rest & 15u;
        let apart = params.radix / factor;
        for (var e = local; e < params.at_once * apart; e += THREADS) {
            let base = e / apart * params.radix;
            let j = e % apart;
            let k = j % before;
            let step = k * (params.len / (before * factor));
            let at = source + base + j;
            let to = ROOM - source + base + (j - k) * factor + k;
            switch factor {
                case 2u: { butterfly2(at, apart, step, to, before); }
                case 3u: { butterfly3(at, apart, step, to, before); }
                case 4u: { butterfly4(at, apart, step, to, before); }
                case 5u: { butterfly5(at, apart, step, to, before); }
                case 7u: { butterfly7(at, apart, step, to, before); }
                default: { butterfly8(at, apart, step, to, before); }
            }
        }
        workgroupBarrier();
        source = ROOM - source;
        before *= factor;
    }
    for (var e = local; e < total; e += THREADS) {
        let at = element(e, is(TO_ACROSS));
        if (first + at.x < params.columns) {
            let column = place(first + at.x);
            let k = column.y % params.before;
            let i = (column.y - k) * params.radix + k + at.y * params.before;
            if (i < params.to_n) {
                var v = work[source + at.x * params.radix + at.y];
                if (is(TO_CONVOLVE)) { v = conjugate(mul(v, tables[params.transformed + i])); }
                if (is(TO_CHIRP)) { v = mul(conjugate(v), tables[params.chirp + i]); }
                if (is(TO_CONJUGATE)) { v = conjugate(v); }
                put(to_base(column.x), i, v * params.scale);
            }
        }
    }
}
