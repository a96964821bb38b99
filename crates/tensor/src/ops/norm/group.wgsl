
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

// A group does a row: its mean, then its variance, then the row, each thread elements that are a group apart.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = group.y * groups.x + group.x;
    if (row >= params.channels) { return; }
    let to = row * params.length;
    let base = params.x + to;
    var own = 0.0;
    for (var i = local; i < params.length; i += BLOCK) { own += x[base + i]; }
    let mean = together_sum(own, local) / f32(params.length);
    own = 0.0;
    for (var i = local; i < params.length; i += BLOCK) {
        let apart = x[base + i] - mean;
        own += apart * apart;
    }
    let deviation = sqrt(together_squares(own, local) / f32(params.length) + params.epsilon);
    for (var i = local; i < params.length; i += BLOCK) {
        out[to + i] = (x[base + i] - mean) / deviation * weight_of(i) + bias_of(i);
    }
}
