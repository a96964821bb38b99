struct Params {
    rows: u32,
    length: u32,
    offset: u32,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

// A group does a row of at least as many elements as it has threads: each does elements that are a group apart.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = group.y * groups.x + group.x;
    if (row >= params.rows) { return; }
    let to = row * params.length;
    let base = params.offset + to;
    var own = x[base + local];
    for (var i = local + BLOCK; i < params.length; i += BLOCK) { own = max_(own, x[base + i]); }
    let largest = together_largest(own, local);
    // Infinity less itself is not a number, and then neither is the row.
    let broken = is_nan(largest) || is_inf(largest);
    own = 0.0;
    for (var i = local; i < params.length; i += BLOCK) {
        let e = exp_(x[base + i] - largest);
        out[to + i] = e;
        own += e;
    }
    let sum = together_sum(own, local);
    for (var i = local; i < params.length; i += BLOCK) {
        var y = out[to + i] / sum;
        if (broken) { y = from_bits(0x7fc00000u); }
        out[to + i] = y;
    }
}
