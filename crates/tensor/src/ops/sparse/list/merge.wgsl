@group(0) @binding(0) var<storage, read> pointers: array<u32>;
@group(0) @binding(1) var<storage, read> indices: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;
@group(0) @binding(3) var<storage, read> other_pointers: array<u32>;
@group(0) @binding(4) var<storage, read> other_indices: array<u32>;
@group(0) @binding(5) var<storage, read_write> list: array<u32>;

// Every entry of one matrix looks for its place among those of both: behind all of the other that come before it. At the
// same place, an entry of the first matrix (`shift` is 0) comes before one of the second (`shift` is 1).
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = thread_number(group, groups, local);
    if (i >= params.entries) { return; }
    let row = row_of(i);
    let column = indices[i];
    var low = other_pointers[row];
    var high = other_pointers[row + 1u];
    while (low < high) {
        let middle = (low + high) / 2u;
        if (other_indices[middle] < column + params.shift) { low = middle + 1u; } else { high = middle; }
    }
    let to = i + low;
    list[to] = row;
    list[params.n + to] = column;
    list[2u * params.n + to] = values[i];
}
