
@group(0) @binding(0) var<storage, read> products: array<f32>;
@group(0) @binding(1) var<storage, read> bias: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

fn four(m: array<f32, 6>) -> vec4<f32> {
    let sum = m[1] + m[2];
    let difference = m[1] - m[2];
    let far = m[3] + m[4];
    let apart = m[3] - m[4];
    return vec4<f32>(m[0] + sum + far, difference + 2.0 * apart, sum + 4.0 * far, difference + 8.0 * apart + m[5]);
}

// A thread does a tile of one filter.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    let per_image = params.tiles[0] * params.tiles[1];
    let columns = params.batch * per_image;
    let all = params.filters * columns;
    if (id >= all) { return; }
    let column = id % columns;
    let row = id / columns;
    let tile = column % per_image;
    var start = 0.0;
    if (params.has_bias != 0u) { start = bias[params.bias + row]; }
    var across: array<vec4<f32>, 6>;
    for (var i = 0u; i < 6u; i++) {
        let at = i * 6u * all + id;
        across[i] = four(array<f32, 6>(
            products[at],
            products[at + all],
            products[at + 2u * all],
            products[at + 3u * all],
            products[at + 4u * all],
            products[at + 5u * all],
        ));
    }
    let h = tile / params.tiles[1] * 4u;
    let w = tile % params.tiles[1] * 4u;
    let base = (column / per_image * params.filters + row) * params.output[0] * params.output[1];
    for (var j = 0u; j < min(4u, params.output[1] - w); j++) {
        let down = four(array<f32, 6>(
            across[0][j], across[1][j], across[2][j], across[3][j], across[4][j], across[5][j],
        ));
        for (var i = 0u; i < min(4u, params.output[0] - h); i++) {
            out[base + (h + i) * params.output[1] + w + j] = down[i] + start;
        }
    }
}
