@group(0) @binding(0) var<storage, read> left: array<{IN}>;
@group(0) @binding(1) var<storage, read> right: array<{IN}>;
@group(0) @binding(2) var<storage, read_write> out: array<{OUT}>;

fn apply(a: {IN}, b: {IN}) -> {OUT} {
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
    var a = i32(params.offsets[0]);
    var b = i32(params.offsets[1]);
    for (var axis = params.rank; axis > 0u; axis--) {
        let dim = params.shape[axis - 1u];
        let at = i32(rest % dim);
        a += at * params.strides[0][axis - 1u];
        b += at * params.strides[1][axis - 1u];
        rest /= dim;
    }
    let scalar = bitcast<{IN}>(params.value);
    out[i] = apply(select(left[a], scalar, params.scalar == 1u), select(right[b], scalar, params.scalar == 2u));
}
