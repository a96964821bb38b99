
@group(0) @binding(3) var<storage, read> mean: array<f32>;
@group(0) @binding(4) var<storage, read> variance: array<f32>;
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    if (id >= params.n) { return; }
    let channel = id / params.length % params.channels;
    let deviation = sqrt(variance[params.variance + channel] + params.epsilon);
    let apart = x[params.x + id] - mean[params.mean + channel];
    out[id] = apart / deviation * weight_of(channel) + bias_of(channel);
}
