struct Params {
    m: u32,
    n: u32,
    depth: u32,
    steps: u32,
    batch: u32,
    groups: u32,
    a_channels: u32,
    a_inner: u32,
    b_channels: u32,
    a_zeros: u32,
    b_zeros: u32,
}
var<immediate> params: Params;

const PANEL: u32 = 32u;

struct Channel {
    scale: f32,
    inverse: f32,
    zero: i32,
    unused: u32,
}

@group(0) @binding(0) var<storage, read> a: array<u32>;
@group(0) @binding(1) var<storage, read> b: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> a_table: array<Channel>;
@group(0) @binding(3) var<storage, read> b_table: array<Channel>;
@group(0) @binding(4) var<storage, read> a_sums: array<i32>;
@group(0) @binding(5) var<storage, read> b_sums: array<i32>;
@group(0) @binding(6) var<storage, read_write> out: array<{ELEMENT}>;

fn store(matrix: u32, row: u32, column: u32, sums: vec4<i32>) {
    if (row >= params.m) { return; }
    let line = matrix % params.groups * params.m + row;
    var at = 0u;
    if (params.a_channels > 1u) { at = line / params.a_inner % params.a_channels; }
    let left = a_table[at];
    let lanes = (params.n + PANEL - 1u) / PANEL * PANEL;
    for (var i = 0u; i < min(4u, params.n - column); i++) {
        let right = b_table[min(column + i, params.b_channels - 1u)];
        var total = sums[i];
        if (params.b_zeros != 0u) {
            total -= a_sums[line] * right.zero;
        }
        if (params.a_zeros != 0u) {
            total -= left.zero * (b_sums[matrix * lanes + column + i] - i32(params.depth) * right.zero);
        }
        out[(matrix * params.m + row) * params.n + column + i] = {VALUE};
    }
}

fn dots(left: u32, right: vec4<u32>) -> vec4<i32> {
    return vec4<i32>(
        dot4I8Packed(left, right.x),
        dot4I8Packed(left, right.y),
        dot4I8Packed(left, right.z),
        dot4I8Packed(left, right.w),
    );
}

// A thread does four by four sums of one product, in registers, four steps of the common axis to a word.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    let across = (params.n + 3u) / 4u;
    let down = (params.m + 3u) / 4u;
    let matrix = id / (across * down);
    if (matrix >= params.batch) { return; }
    let row = id / across % down * 4u;
    let column = id % across * 4u;
    // Rows past the end repeat the last one; their results are not stored.
    let rows = min(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.m - 1u));
    var from_a = (rows + vec4<u32>(matrix % params.groups * params.m)) * params.steps;
    let panels = (params.n + PANEL - 1u) / PANEL;
    var from_b = (matrix * panels + column / PANEL) * params.steps * 8u + column % PANEL / 4u;
    var s0 = vec4<i32>();
    var s1 = vec4<i32>();
    var s2 = vec4<i32>();
    var s3 = vec4<i32>();
    for (var step = 0u; step < params.steps; step++) {
        let right = b[from_b];
        s0 += dots(a[from_a.x], right);
        s1 += dots(a[from_a.y], right);
        s2 += dots(a[from_a.z], right);
        s3 += dots(a[from_a.w], right);
        from_a += vec4<u32>(1u);
        from_b += 8u;
    }
    store(matrix, row, column, s0);
    store(matrix, row + 1u, column, s1);
    store(matrix, row + 2u, column, s2);
    store(matrix, row + 3u, column, s3);
}
