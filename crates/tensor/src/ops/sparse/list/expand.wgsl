@group(0) @binding(0) var<storage, read> pointers: array<u32>;
@group(0) @binding(1) var<storage, read> a_indices: array<u32>;
@group(0) @binding(2) var<storage, read> a_values: array<f32>;
@group(0) @binding(3) var<storage, read> b_pointers: array<u32>;
@group(0) @binding(4) var<storage, read> b_indices: array<u32>;
@group(0) @binding(5) var<storage, read> b_values: array<f32>;
// Products of the entries before each.
@group(0) @binding(6) var<storage, read> starts: array<u32>;
@group(0) @binding(7) var<storage, read_write> list: array<u32>;

// A thread makes one product, whichever row that is in, and looks for its factors.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let place = thread_number(group, groups, local);
    if (place >= params.n) { return; }
    let id = params.first + place;
    // The last entry that starts at or before this; those without products start where the next does.
    var low = 0u;
    var high = params.entries;
    while (low < high) {
        let middle = (low + high) / 2u;
        if (starts[middle] <= id) { low = middle + 1u; } else { high = middle; }
    }
    let entry = max(low, 1u) - 1u;
    let at = b_pointers[a_indices[entry]] + id - starts[entry];
    list[place] = row_of(entry);
    list[params.n + place] = b_indices[at];
    list[2u * params.n + place] = bitcast<u32>(a_values[entry] * b_values[at]);
}
