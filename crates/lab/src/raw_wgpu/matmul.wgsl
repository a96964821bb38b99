// A thread makes eight rows of four columns, in registers. All sizes are multiples of eight.
struct Params { m: u32, k: u32, n: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> c: array<vec4<f32>>;

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let columns = params.n / 4u;
    let row = id.y * 8u;
    if id.x >= columns || row >= params.m {
        return;
    }
    var c0 = vec4(0.0); var c1 = vec4(0.0); var c2 = vec4(0.0); var c3 = vec4(0.0);
    var c4 = vec4(0.0); var c5 = vec4(0.0); var c6 = vec4(0.0); var c7 = vec4(0.0);
    let at = row * params.k;
    for (var k = 0u; k < params.k; k++) {
        let b4 = b[k * columns + id.x];
        c0 += a[at + k] * b4;
        c1 += a[at + params.k + k] * b4;
        c2 += a[at + 2u * params.k + k] * b4;
        c3 += a[at + 3u * params.k + k] * b4;
        c4 += a[at + 4u * params.k + k] * b4;
        c5 += a[at + 5u * params.k + k] * b4;
        c6 += a[at + 6u * params.k + k] * b4;
        c7 += a[at + 7u * params.k + k] * b4;
    }
    let to = row * columns + id.x;
    c[to] = c0;
    c[to + columns] = c1;
    c[to + 2u * columns] = c2;
    c[to + 3u * columns] = c3;
    c[to + 4u * columns] = c4;
    c[to + 5u * columns] = c5;
    c[to + 6u * columns] = c6;
    c[to + 7u * columns] = c7;
}
