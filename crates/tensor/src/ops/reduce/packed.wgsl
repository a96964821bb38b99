@group(0) @binding(0) var<storage, read> x: array<vec4<{TYPE}>>;
@group(0) @binding(1) var<storage, read_write> out: array<{TYPE}>;

fn fold(acc: {TYPE}, v: {TYPE}) -> {TYPE} {
    return {STEP};
}

fn fold_four(a: vec4<{TYPE}>, v: vec4<{TYPE}>) -> vec4<{TYPE}> {
    return vec4<{TYPE}>(fold(a.x, v.x), fold(a.y, v.y), fold(a.z, v.z), fold(a.w, v.w));
}

// As reduce.wgsl, with vectors of four elements that lie behind one another, and two results that do not wait for each
// other.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    if (id >= params.outputs * params.chunks) { return; }
    // The threads of a group share a stretch of the vectors, so that they stay near each other.
    let lanes = min(params.chunks, BLOCK);
    let stretches = params.chunks / lanes;
    let stretch = id % params.chunks / lanes;
    let each = params.length / 4u / stretches;
    let more = params.length / 4u % stretches;
    let base = u32(kept_place(id / params.chunks)) / 4u + stretch * each + min(stretch, more);
    let end = base + each + select(0u, 1u, stretch < more);
    var at = base + id % lanes;
    var even = x[at];
    at += lanes;
    if (at < end) {
        var odd = x[at];
        at += lanes;
        for (; at + lanes < end; at += 2u * lanes) {
            even = fold_four(even, x[at]);
            odd = fold_four(odd, x[at + lanes]);
        }
        if (at < end) { even = fold_four(even, x[at]); }
        even = fold_four(even, odd);
    }
    let acc = fold(fold(even.x, even.y), fold(even.z, even.w));
    out[id] = {FINISH};
}
