@group(0) @binding(0) var<storage, read> a_indices: array<u32>;
@group(0) @binding(1) var<storage, read> b_pointers: array<u32>;
@group(0) @binding(2) var<storage, read_write> lengths: array<u32>;

// How many products an entry of the left factor is in.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = thread_number(group, groups, local);
    if (i >= params.n) { return; }
    let k = a_indices[i];
    lengths[i] = b_pointers[k + 1u] - b_pointers[k];
}
