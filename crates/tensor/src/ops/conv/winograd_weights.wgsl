
@group(0) @binding(0) var<storage, read> weight: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

fn points(g: vec3<f32>) -> array<f32, 6> {
    let even = g.x + g.z;
    let far = g.x + 4.0 * g.z;
    return array<f32, 6>(
        g.x / 4.0,
        (even + g.y) / -6.0,
        (even - g.y) / -6.0,
        (far + 2.0 * g.y) / 24.0,
        (far - 2.0 * g.y) / 24.0,
        g.z,
    );
}

// A thread does a kernel of one channel.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    let all = params.filters * params.channels;
    if (id >= all) { return; }
    let at = params.x + id * 9u;
    var a = points(vec3<f32>(weight[at], weight[at + 3u], weight[at + 6u]));
    var b = points(vec3<f32>(weight[at + 1u], weight[at + 4u], weight[at + 7u]));
    var c = points(vec3<f32>(weight[at + 2u], weight[at + 5u], weight[at + 8u]));
    for (var row = 0u; row < 6u; row++) {
        var along = points(vec3<f32>(a[row], b[row], c[row]));
        for (var i = 0u; i < 6u; i++) {
            out[(row * 6u + i) * all + id] = along[i];
        }
    }
}
