struct Params {
    n: u32,
    a: u32,
    b: u32,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read_write> out: array<{OUT}>;

// Permuted congruential generator (O'Neill's output function on a linear step), twice.
fn pcg(v: u32) -> u32 {
    let state = v * 747796405u + 2891336453u;
    let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
    return (word >> 22u) ^ word;
}

fn value(i: u32) -> {OUT} {
    return {EXPR};
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = thread_number(group, groups, local);
    if (i < params.n) { out[i] = value(i); }
}
