@group(0) @binding(0) var<storage, read> list: array<u32>;
// Places before each entry's, where several can have the same.
@group(0) @binding(1) var<storage, read> places: array<u32>;
@group(0) @binding(2) var<storage, read_write> pointers: array<u32>;

// Where each row begins: the first entry of a sorted list whose row is not before it.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = thread_number(group, groups, local);
    if (row > params.rows) { return; }
    var low = 0u;
    var high = params.n;
    while (low < high) {
        let middle = (low + high) / 2u;
        if (list[middle] < row) { low = middle + 1u; } else { high = middle; }
    }
    if (low == params.n) {
        pointers[row] = params.entries;
    } else {
        pointers[row] = {PLACE};
    }
}
