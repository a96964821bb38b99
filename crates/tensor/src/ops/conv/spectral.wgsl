struct Params {
    batch: u32,
    groups: u32,
    channels: u32,
    filters: u32,
    frequencies: u32,
    start: u32,
    end: u32,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> x: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read> weight: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec2<f32>>;

// A thread does one frequency of one filter.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    let n = params.frequencies;
    let all = params.groups * params.filters;
    if (id >= params.batch * all * n) { return; }
    let frequency = id % n;
    let row = id / n % all;
    let image = id / (n * all);
    let first = (image * params.groups + row / params.filters) * params.channels * n + frequency;
    let by = row * params.channels * n + frequency;
    var sum = vec2<f32>();
    for (var channel = params.start; channel < params.end; channel++) {
        let a = x[first + channel * n];
        let w = weight[by + channel * n];
        // With the conjugate, since the kernel is not turned around.
        sum += vec2<f32>(a.x * w.x + a.y * w.y, a.y * w.x - a.x * w.y);
    }
    out[id] = {VALUE};
}
