// A thread makes eight rows of eight columns in registers, four steps of `k` at a time. All sizes are multiples of
// eight.
struct Params { m: u32, k: u32, n: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> c: array<vec4<f32>>;

@compute @workgroup_size(8, 8)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let columns = params.n / 4u;
    let row = id.y * 8u;
    let column = id.x * 2u;
    if column >= columns || row >= params.m {
        return;
    }
    let steps = params.k / 4u;
    let at = row * steps;
    var l0 = vec4(0.0); var r0 = vec4(0.0);
    var l1 = vec4(0.0); var r1 = vec4(0.0);
    var l2 = vec4(0.0); var r2 = vec4(0.0);
    var l3 = vec4(0.0); var r3 = vec4(0.0);
    var l4 = vec4(0.0); var r4 = vec4(0.0);
    var l5 = vec4(0.0); var r5 = vec4(0.0);
    var l6 = vec4(0.0); var r6 = vec4(0.0);
    var l7 = vec4(0.0); var r7 = vec4(0.0);
    for (var k = 0u; k < steps; k++) {
        let a0 = a[at + 0u * steps + k];
        let a1 = a[at + 1u * steps + k];
        let a2 = a[at + 2u * steps + k];
        let a3 = a[at + 3u * steps + k];
        let a4 = a[at + 4u * steps + k];
        let a5 = a[at + 5u * steps + k];
        let a6 = a[at + 6u * steps + k];
        let a7 = a[at + 7u * steps + k];
        var at_b = 4u * k * columns + column;
        var left = b[at_b];
        var right = b[at_b + 1u];
        l0 += a0.x * left; r0 += a0.x * right;
        l1 += a1.x * left; r1 += a1.x * right;
        l2 += a2.x * left; r2 += a2.x * right;
        l3 += a3.x * left; r3 += a3.x * right;
        l4 += a4.x * left; r4 += a4.x * right;
        l5 += a5.x * left; r5 += a5.x * right;
        l6 += a6.x * left; r6 += a6.x * right;
        l7 += a7.x * left; r7 += a7.x * right;
        at_b += columns;
        left = b[at_b];
        right = b[at_b + 1u];
        l0 += a0.y * left; r0 += a0.y * right;
        l1 += a1.y * left; r1 += a1.y * right;
        l2 += a2.y * left; r2 += a2.y * right;
        l3 += a3.y * left; r3 += a3.y * right;
        l4 += a4.y * left; r4 += a4.y * right;
        l5 += a5.y * left; r5 += a5.y * right;
        l6 += a6.y * left; r6 += a6.y * right;
        l7 += a7.y * left; r7 += a7.y * right;
        at_b += columns;
        left = b[at_b];
        right = b[at_b + 1u];
        l0 += a0.z * left; r0 += a0.z * right;
        l1 += a1.z * left; r1 += a1.z * right;
        l2 += a2.z * left; r2 += a2.z * right;
        l3 += a3.z * left; r3 += a3.z * right;
        l4 += a4.z * left; r4 += a4.z * right;
        l5 += a5.z * left; r5 += a5.z * right;
        l6 += a6.z * left; r6 += a6.z * right;
        l7 += a7.z * left; r7 += a7.z * right;
        at_b += columns;
        left = b[at_b];
        right = b[at_b + 1u];
        l0 += a0.w * left; r0 += a0.w * right;
        l1 += a1.w * left; r1 += a1.w * right;
        l2 += a2.w * left; r2 += a2.w * right;
        l3 += a3.w * left; r3 += a3.w * right;
        l4 += a4.w * left; r4 += a4.w * right;
        l5 += a5.w * left; r5 += a5.w * right;
        l6 += a6.w * left; r6 += a6.w * right;
        l7 += a7.w * left; r7 += a7.w * right;
    }
    let to = row * columns + column;
    c[to + 0u * columns] = l0; c[to + 0u * columns + 1u] = r0;
    c[to + 1u * columns] = l1; c[to + 1u * columns + 1u] = r1;
    c[to + 2u * columns] = l2; c[to + 2u * columns + 1u] = r2;
    c[to + 3u * columns] = l3; c[to + 3u * columns + 1u] = r3;
    c[to + 4u * columns] = l4; c[to + 4u * columns + 1u] = r4;
    c[to + 5u * columns] = l5; c[to + 5u * columns + 1u] = r5;
    c[to + 6u * columns] = l6; c[to + 6u * columns + 1u] = r6;
    c[to + 7u * columns] = l7; c[to + 7u * columns + 1u] = r7;
}
