
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

fn transformed(d: array<f32, 6>) -> array<f32, 6> {
    let even = d[4] - 4.0 * d[2];
    let odd = d[3] - 4.0 * d[1];
    let twice = d[4] - d[2];
    let once = 2.0 * (d[3] - d[1]);
    return array<f32, 6>(
        4.0 * d[0] - 5.0 * d[2] + d[4],
        even + odd,
        even - odd,
        twice + once,
        twice - once,
        4.0 * d[1] - 5.0 * d[3] + d[5],
    );
}

fn seen(base: u32, h: i32, w: i32) -> f32 {
    if (h < 0 || w < 0 || h >= i32(params.input[0]) || w >= i32(params.input[1])) { return 0.0; }
    return x[base + u32(h) * params.input[1] + u32(w)];
}

// A thread does a tile of one channel.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    let per_image = params.tiles[0] * params.tiles[1];
    let columns = params.batch * per_image;
    if (id >= params.channels * columns) { return; }
    let column = id % columns;
    let channel = id / columns;
    let tile = column % per_image;
    let base = params.x + (column / per_image * params.channels + channel) * params.input[0] * params.input[1];
    let h = i32(tile / params.tiles[1] * 4u) - i32(params.padding[0]);
    let w = i32(tile % params.tiles[1] * 4u) - i32(params.padding[1]);
    var down: array<array<f32, 6>, 6>;
    for (var i = 0; i < 6; i++) {
        down[i] = transformed(array<f32, 6>(
            seen(base, h, w + i),
            seen(base, h + 1, w + i),
            seen(base, h + 2, w + i),
            seen(base, h + 3, w + i),
            seen(base, h + 4, w + i),
            seen(base, h + 5, w + i),
        ));
    }
    let all = params.channels * columns;
    for (var row = 0u; row < 6u; row++) {
        var along = transformed(array<f32, 6>(
            down[0][row], down[1][row], down[2][row], down[3][row], down[4][row], down[5][row],
        ));
        for (var i = 0u; i < 6u; i++) {
            out[(row * 6u + i) * all + id] = along[i];
        }
    }
}
