struct Params {
    rows: u32,
    entries: u32,
    // Rows of the dense factor, and its columns.
    depth: u32,
    n: u32,
    // Ends of rows and entries of one piece, together.
    items: u32,
    pieces: u32,
    offset: u32,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> pointers: array<u32>;
@group(0) @binding(1) var<storage, read> indices: array<u32>;
@group(0) @binding(2) var<storage, read> values: array<f32>;
@group(0) @binding(3) var<storage, read> x: array<f32>;
@group(0) @binding(4) var<storage, read_write> starts: array<u32>;
@group(0) @binding(5) var<storage, read_write> carries: array<f32>;
@group(0) @binding(6) var<storage, read_write> out: array<f32>;

// How many of the first `diagonal` items are ends of rows.
fn row_at(diagonal: u32) -> u32 {
    var low = diagonal - min(diagonal, params.entries);
    var high = min(diagonal, params.rows);
    while (low < high) {
        let middle = (low + high) / 2u;
        if (pointers[middle + 1u] <= diagonal - middle - 1u) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

// A thread does one piece of the merged list of entries and ends of rows, for one column of the dense factor. Pieces are
// equally long however the entries are spread over the rows. What is left of the last row goes to the carries.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    if (id >= params.pieces * params.n) { return; }
    let piece = id / params.n;
    let column = id % params.n;
    let start = piece * params.items;
    let steps = min(params.items, params.rows + params.entries - start);
    var row = row_at(start);
    var entry = start - row;
    var end = pointers[min(row + 1u, params.rows)];
    var sum = 0.0;
    let base = params.offset + column;
    for (var step = 0u; step < steps; step++) {
        if (entry < end || row >= params.rows) {
            sum += values[entry] * x[base + indices[entry] * params.n];
            entry++;
        } else {
            out[row * params.n + column] = sum;
            sum = 0.0;
            row++;
            end = pointers[min(row + 1u, params.rows)];
        }
    }
    if (column == 0u) {
        starts[piece + 1u] = row;
        if (piece == 0u) { starts[0] = 0u; }
    }
    carries[id] = sum;
}
