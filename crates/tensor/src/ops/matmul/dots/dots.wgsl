struct Params {
    outputs: u32,
    m: u32,
    n: u32,
    k: u32,
    chunks: u32,
    across: u32,
    swapped: u32,
    a_offset: u32,
    b_offset: u32,
    a_row: i32,
    a_column: i32,
    b_row: i32,
    b_column: i32,
    rank: u32,
    shape: array<u32, 6>,
    a_strides: array<i32, 6>,
    b_strides: array<i32, 6>,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

// Every thread adds up one chunk of one element: products that are `chunks` apart. Neighbours read neighbours, along the
// common axis or across it.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    if (id >= params.outputs * params.chunks) { return; }
    var output = id / params.chunks;
    var chunk = id % params.chunks;
    if (params.across == 1u) {
        output = id % params.outputs;
        chunk = id / params.outputs;
    }
    let row = i32(output / params.n % params.m);
    let column = i32(output % params.n);
    var from_a = i32(params.a_offset) + row * params.a_row + i32(chunk) * params.a_column;
    var from_b = i32(params.b_offset) + column * params.b_column + i32(chunk) * params.b_row;
    var rest = output / (params.m * params.n);
    for (var axis = params.rank; axis > 0u; axis--) {
        let dim = params.shape[axis - 1u];
        let at = i32(rest % dim);
        from_a += at * params.a_strides[axis - 1u];
        from_b += at * params.b_strides[axis - 1u];
        rest /= dim;
    }
    let step_a = i32(params.chunks) * params.a_column;
    let step_b = i32(params.chunks) * params.b_row;
    // Two sums that do not wait for each other.
    var even = 0.0;
    var odd = 0.0;
    var left = (params.k - chunk + params.chunks - 1u) / params.chunks;
    for (; left >= 2u; left -= 2u) {
        even += a[from_a] * b[from_b];
        odd += a[from_a + step_a] * b[from_b + step_b];
        from_a += 2i * step_a;
        from_b += 2i * step_b;
    }
    if (left == 1u) { even += a[from_a] * b[from_b]; }
    out[id] = even + odd;
}
