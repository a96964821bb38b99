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
    let base = u32(kept_place(id / params.chunks)) / 4u;
    let end = base + params.length / 4u;
    var at = base + id % params.chunks;
    var even = x[at];
    at += params.chunks;
    if (at < end) {
        var odd = x[at];
        at += params.chunks;
        for (; at + params.chunks < end; at += 2u * params.chunks) {
            even = fold_four(even, x[at]);
            odd = fold_four(odd, x[at + params.chunks]);
        }
        if (at < end) { even = fold_four(even, x[at]); }
        even = fold_four(even, odd);
    }
    let acc = fold(fold(even.x, even.y), fold(even.z, even.w));
    out[id] = {FINISH};
}
