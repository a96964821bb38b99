@group(0) @binding(0) var<storage, read> condition: array<u32>;
@group(0) @binding(1) var<storage, read> left: array<u32>;
@group(0) @binding(2) var<storage, read> right: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = thread_number(group, groups, local);
    if (i >= params.n) { return; }
    var rest = i;
    var c = i32(params.offsets[0]);
    var a = i32(params.offsets[1]);
    var b = i32(params.offsets[2]);
    for (var axis = params.rank; axis > 0u; axis--) {
        let dim = params.shape[axis - 1u];
        let at = i32(rest % dim);
        c += at * params.strides[0][axis - 1u];
        a += at * params.strides[1][axis - 1u];
        b += at * params.strides[2][axis - 1u];
        rest /= dim;
    }
    out[i] = select(right[b], left[a], condition[c] != 0u);
}
