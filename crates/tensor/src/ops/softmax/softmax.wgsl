struct Params {
    rows: u32,
    length: u32,
    offset: u32,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

// A thread does a row.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = thread_number(group, groups, local);
    if (row >= params.rows) { return; }
    let to = row * params.length;
    let base = params.offset + to;
    var largest = x[base];
    for (var i = 1u; i < params.length; i++) { largest = max_(largest, x[base + i]); }
    // Infinity less itself is not a number, and then neither is the row.
    let broken = is_nan(largest) || is_inf(largest);
    var sum = 0.0;
    for (var i = 0u; i < params.length; i++) {
        let e = exp_(x[base + i] - largest);
        out[to + i] = e;
        sum += e;
    }
    for (var i = 0u; i < params.length; i++) {
        var y = out[to + i] / sum;
        if (broken) { y = from_bits(0x7fc00000u); }
        out[to + i] = y;
    }
}
