@group(0) @binding(0) var<storage, read> list: array<u32>;
// Places before each entry's.
@group(0) @binding(1) var<storage, read> places: array<u32>;
@group(0) @binding(2) var<storage, read_write> runs: array<u32>;
@group(0) @binding(3) var<storage, read_write> indices: array<u32>;

// Where the entries of each place begin, and its column.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = thread_number(group, groups, local);
    if (i >= params.n) { return; }
    if (i == 0u) { runs[params.entries] = params.n; }
    if (is_head(i)) {
        let place = places[i];
        runs[place] = i;
        indices[place] = list[params.n + i];
    }
}
