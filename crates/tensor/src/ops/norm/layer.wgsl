
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

// A thread does a row: its mean, then its variance, then the row.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = thread_number(group, groups, local);
    if (row >= params.channels) { return; }
    let to = row * params.length;
    let base = params.x + to;
    var sum = 0.0;
    for (var i = 0u; i < params.length; i++) { sum += x[base + i]; }
    let mean = sum / f32(params.length);
    var squares = 0.0;
    for (var i = 0u; i < params.length; i++) {
        let apart = x[base + i] - mean;
        squares += apart * apart;
    }
    let deviation = sqrt(squares / f32(params.length) + params.epsilon);
    for (var i = 0u; i < params.length; i++) {
        out[to + i] = (x[base + i] - mean) / deviation * weight_of(i) + bias_of(i);
    }
}
