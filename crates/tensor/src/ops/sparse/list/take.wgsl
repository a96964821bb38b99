@group(0) @binding(0) var<storage, read> list: array<u32>;
@group(0) @binding(1) var<storage, read_write> indices: array<u32>;
@group(0) @binding(2) var<storage, read_write> values: array<u32>;

// Columns and values of a list that has each place once.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = thread_number(group, groups, local);
    if (i >= params.n) { return; }
    indices[i] = list[params.n + i];
    values[i] = list[2u * params.n + i];
}
