@group(0) @binding(0) var<storage, read> x: array<{TYPE}>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

// Whether `v` at `i` comes before `best` at `at`: more extreme, or as extreme and earlier. NaN is the most extreme.
fn wins(v: {TYPE}, i: u32, best: {TYPE}, at: u32) -> bool {
    if ({NAN_BEST}) { return {NAN_V} && i < at; }
    return {NAN_V} || {BETTER} || (v == best && i < at);
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    if (id >= params.outputs * params.chunks) { return; }
    let base = kept_place(id / params.chunks);
    var at = id % params.chunks;
    var best = x[base + folded_place(at)];
    for (var i = at + params.chunks; i < params.length; i += params.chunks) {
        let v = x[base + folded_place(i)];
        if (wins(v, i, best, at)) {
            best = v;
            at = i;
        }
    }
    out[id] = at;
}
