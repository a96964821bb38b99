struct Params {
    m: u32,
    n: u32,
    k_start: u32,
    k_end: u32,
    a_offset: u32,
    b_offset: u32,
    // What else the parameters hold is not needed here.
    rest: array<u32, 25>,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;

// Two row-major matrices whose sizes are multiples of eight: a thread does eight by eight elements in registers,
// four steps of the common axis at a time. Threads go down strips of the result that are eight of them wide, so that a
// group is a square, and the columns of the right factor that it needs are still near from the group before.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    let columns = params.n / 4u;
    let down = params.m / 8u;
    let strip = id / (8u * down);
    if (8u * strip >= columns / 2u) { return; }
    let wide = min(8u, columns / 2u - 8u * strip);
    let place = id - strip * 8u * down;
    let row = place / wide * 8u;
    if (row >= params.m) { return; }
    let column = (8u * strip + place % wide) * 2u;
    let steps = params.k_end / 4u;
    let from_a = params.a_offset / 4u + row * steps;
    let from_b = params.b_offset / 4u + column;
    {SUMS}
    for (var k = 0u; k < steps; k++) {
        {LOADS}
        var at = from_b + 4u * k * columns;
        var left = b[at];
        var right = b[at + 1u];
        {PRODUCTS}
    }
    let to = row * columns + column;
    {STORES}
}
