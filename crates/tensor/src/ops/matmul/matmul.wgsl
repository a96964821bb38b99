struct Params {
    m: u32,
    n: u32,
    k_start: u32,
    k_end: u32,
    a_offset: u32,
    b_offset: u32,
    a_row: i32,
    a_column: i32,
    b_row: i32,
    b_column: i32,
    rank: u32,
    first: u32,
    shape: array<u32, 6>,
    a_strides: array<i32, 6>,
    b_strides: array<i32, 6>,
    slabs: u32,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> a: array<f32>;
@group(0) @binding(1) var<storage, read> b: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

fn store(batch: u32, row: u32, column: u32, sums: vec4<f32>) {
    if (row >= params.m) { return; }
    let at = (batch * params.m + row) * params.n + column;
    for (var i = 0u; i < min(4u, params.n - column); i++) {
        out[at + i] = {VALUE};
    }
}

// A thread does four by four elements of one matrix, in registers.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    let across = (params.n + 3u) / 4u;
    let row = id / across * 4u;
    let column = id % across * 4u;
    if (row >= params.m) { return; }
    let batch = params.first + group.z;
    var rest = batch;
    var a_at = i32(params.a_offset) + i32(params.k_start) * params.a_column;
    var b_at = i32(params.b_offset) + i32(params.k_start) * params.b_row;
    for (var axis = params.rank; axis > 0u; axis--) {
        let dim = params.shape[axis - 1u];
        let at = i32(rest % dim);
        a_at += at * params.a_strides[axis - 1u];
        b_at += at * params.b_strides[axis - 1u];
        rest /= dim;
    }
    // Rows and columns past the end repeat the last one; their results are not stored.
    let rows = min(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.m - 1u));
    let columns = min(vec4<u32>(column) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.n - 1u));
    var from_a = vec4<i32>(rows) * params.a_row + vec4<i32>(a_at);
    var from_b = vec4<i32>(columns) * params.b_column + vec4<i32>(b_at);
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    for (var k = params.k_start; k < params.k_end; k++) {
        let across_b = vec4<f32>(b[from_b.x], b[from_b.y], b[from_b.z], b[from_b.w]);
        s0 += a[from_a.x] * across_b;
        s1 += a[from_a.y] * across_b;
        s2 += a[from_a.z] * across_b;
        s3 += a[from_a.w] * across_b;
        from_a += vec4<i32>(params.a_column);
        from_b += vec4<i32>(params.b_row);
    }
    store(batch, row, column, s0);
    store(batch, row + 1u, column, s1);
    store(batch, row + 2u, column, s2);
    store(batch, row + 3u, column, s3);
}
