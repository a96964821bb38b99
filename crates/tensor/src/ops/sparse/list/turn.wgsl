@group(0) @binding(0) var<storage, read> pointers: array<u32>;
@group(0) @binding(1) var<storage, read> indices: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<u32>;
@group(0) @binding(3) var<storage, read_write> list: array<u32>;

// Entries of a matrix, rows and columns exchanged.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = thread_number(group, groups, local);
    if (i >= params.n) { return; }
    list[i] = indices[i];
    list[params.n + i] = row_of(i);
    list[2u * params.n + i] = values[i];
}
