@group(0) @binding(0) var<storage, read> x: array<{TYPE}>;
@group(0) @binding(1) var<storage, read> winners: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

fn wins(v: {TYPE}, i: u32, best: {TYPE}, at: u32) -> bool {
    if ({NAN_BEST}) { return {NAN_V} && i < at; }
    return {NAN_V} || {BETTER} || (v == best && i < at);
}

// Of the winners of an earlier launch, `partials` for each output, the winner.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    if (id >= params.outputs * params.chunks) { return; }
    let output = id / params.chunks;
    let base = kept_place(output);
    let first = id % params.chunks;
    var at = winners[output * params.partials + first];
    var best = x[base + folded_place(at)];
    for (var j = first + params.chunks; j < params.partials; j += params.chunks) {
        let i = winners[output * params.partials + j];
        let v = x[base + folded_place(i)];
        if (wins(v, i, best, at)) {
            best = v;
            at = i;
        }
    }
    out[id] = at;
}
