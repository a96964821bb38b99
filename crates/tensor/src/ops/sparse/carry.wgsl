struct Params {
    rows: u32,
    entries: u32,
    depth: u32,
    n: u32,
    items: u32,
    pieces: u32,
    offset: u32,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> starts: array<u32>;
@group(0) @binding(1) var<storage, read> carries: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

// The first and the last row that each thread has met, and what is to be added there.
var<workgroup> edge_rows: array<u32, 128>;
var<workgroup> edge_sums: array<f32, 128>;

fn add(row: u32, column: u32, sum: f32) {
    if (row < params.rows) {
        out[row * params.n + column] += sum;
    }
}

// A group adds the carries of one column. Each thread sums runs of one row in its share of the pieces; rows that end inside
// are its own, those at its edges may go on at its neighbours and are added by one thread in the end.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let column = group.y * groups.x + group.x;
    let here = column < params.n;
    let share = (params.pieces + BLOCK - 1u) / BLOCK;
    let first = min(local * share, params.pieces);
    let last = min(first + share, params.pieces);
    edge_rows[2u * local] = params.rows;
    edge_rows[2u * local + 1u] = params.rows;
    if (here && first < last) {
        var row = starts[first + 1u];
        var sum = carries[first * params.n + column];
        var at_edge = true;
        for (var piece = first + 1u; piece < last; piece++) {
            let next = starts[piece + 1u];
            let carry = carries[piece * params.n + column];
            if (next == row) {
                sum += carry;
                continue;
            }
            if (at_edge) {
                edge_rows[2u * local] = row;
                edge_sums[2u * local] = sum;
                at_edge = false;
            } else {
                add(row, column, sum);
            }
            row = next;
            sum = carry;
        }
        edge_rows[2u * local + 1u] = row;
        edge_sums[2u * local + 1u] = sum;
    }
    workgroupBarrier();
    if (local == 0u && here) {
        for (var edge = 0u; edge < 2u * BLOCK; edge++) {
            add(edge_rows[edge], column, edge_sums[edge]);
        }
    }
}
