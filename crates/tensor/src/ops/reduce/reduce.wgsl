@group(0) @binding(0) var<storage, read> x: array<{TYPE}>;
@group(0) @binding(1) var<storage, read_write> out: array<{TYPE}>;

// Every thread folds one chunk of one output: elements that are `chunks` apart, so that neighbours read neighbours.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    if (id >= params.outputs * params.chunks) { return; }
    let base = kept_place(id / params.chunks);
    let first = id % params.chunks;
    if (params.folded == 1u) {
        let stride = params.strides[params.kept];
        let step = i32(params.chunks) * stride;
        var at = base + i32(first) * stride;
        var acc = x[at];
        var left = (params.length - first - 1u) / params.chunks;
        for (; left >= 8u; left -= 8u) {
            {EIGHT}
        }
        for (; left > 0u; left--) {
            at += step;
            let v = x[at];
            acc = {STEP};
        }
        out[id] = {FINISH};
        return;
    }
    var acc = x[base + folded_place(first)];
    for (var j = first + params.chunks; j < params.length; j += params.chunks) {
        let v = x[base + folded_place(j)];
        acc = {STEP};
    }
    out[id] = {FINISH};
}
