struct Params {
    n: u32,
    rank: u32,
    offset: u32,
    value: array<u32, 2>,
    shape: array<u32, 6>,
    before: array<u32, 6>,
    inside: array<u32, 6>,
    strides: array<i32, 6>,
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
    var is_inside = true;
    for (var axis = params.rank; axis > 0u; axis--) {
        let dim = params.shape[axis - 1u];
        // Before the inside it wraps around to a large number.
        let at = rest % dim - params.before[axis - 1u];
        is_inside = is_inside && at < params.inside[axis - 1u];
        place += i32(at) * params.strides[axis - 1u];
        rest /= dim;
    }
    var value = {VALUE};
    if (is_inside) { value = x[place]; }
    out[i] = value;
}
