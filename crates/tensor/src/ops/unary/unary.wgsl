@group(0) @binding(0) var<storage, read> x: array<{IN}>;
@group(0) @binding(1) var<storage, read_write> out: array<{OUT}>;

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
    if (i >= params.n) { return; }
    var rest = i;
    var place = i32(params.offsets[0]);
    for (var axis = params.rank; axis > 0u; axis--) {
        let dim = params.shape[axis - 1u];
        place += i32(rest % dim) * params.strides[0][axis - 1u];
        rest /= dim;
    }
    out[i] = apply(x[place]);
}
