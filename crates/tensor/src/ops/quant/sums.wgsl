struct Params {
    depth: u32,
    n: u32,
    steps: u32,
    columns: u32,
    words: u32,
}
var<immediate> params: Params;

const PANEL: u32 = 32u;

@group(0) @binding(0) var<storage, read> data: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<i32>;

// A thread adds up one line.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let line = thread_number(group, groups, local);
    if (line >= params.n) { return; }
    var sum = 0;
    for (var step = 0u; step < params.steps; step++) {
        sum += dot4I8Packed(data[{PLACE}], 0x01010101u);
    }
    out[line] = sum;
}
