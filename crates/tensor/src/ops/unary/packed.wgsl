@group(0) @binding(0) var<storage, read> x: array<vec4<{IN}>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<{OUT}>>;

fn apply(x: {IN}) -> {OUT} {
    return {EXPR};
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = thread_number(group, groups, local);
    if (i >= params.n / 4u) { return; }
    let v = x[params.offsets[0] / 4u + i];
    out[i] = vec4<{OUT}>(apply(v.x), apply(v.y), apply(v.z), apply(v.w));
}
