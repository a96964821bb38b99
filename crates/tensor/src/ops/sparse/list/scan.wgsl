@group(0) @binding(0) var<storage, read_write> data: array<u32>;
@group(0) @binding(1) var<storage, read_write> sums: array<u32>;

var<workgroup> totals: array<u32, 64>;

// Counts of a tile become the sums of those before them, and the tile's sum goes to a list of its own. A thread does
// sixteen; the threads' sums are added up in steps of one, two, four, ... (Hillis and Steele).
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let tile = group.y * groups.x + group.x;
    let first = tile * TILE + local * (TILE / BLOCK);
    let last = min(first + TILE / BLOCK, params.n);
    var sum = 0u;
    for (var i = first; i < last; i++) {
        sum = plus(sum, data[i]);
    }
    totals[local] = sum;
    workgroupBarrier();
    for (var step = 1u; step < BLOCK; step *= 2u) {
        var before = 0u;
        if (local >= step) {
            before = totals[local - step];
        }
        workgroupBarrier();
        totals[local] = plus(totals[local], before);
        workgroupBarrier();
    }
    if (local == BLOCK - 1u && tile * TILE < params.n) {
        sums[tile] = totals[local];
    }
    var before = 0u;
    if (local > 0u) {
        before = totals[local - 1u];
    }
    for (var i = first; i < last; i++) {
        let count = data[i];
        data[i] = before;
        before = plus(before, count);
    }
}
