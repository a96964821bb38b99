struct Params {
    n: u32,
    rank: u32,
    offset: u32,
    shape: array<u32, 8>,
    strides: array<i32, 8>,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> x: array<{WORD}>;
@group(0) @binding(1) var<storage, read_write> out: array<{WORD}>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = thread_number(group, groups, local);
    if (i >= params.n) { return; }
    var rest = i;
    var place = i32(params.offset);
    for (var axis = params.rank; axis > 0u; axis--) {
        let dim = params.shape[axis - 1u];
        place += i32(rest % dim) * params.strides[axis - 1u];
        rest /= dim;
    }
    out[i] = x[place];
}
