struct Params {
    planes: u32,
    input: array<u32, 3>,
    window: array<u32, 3>,
    output: array<u32, 3>,
    stride: array<u32, 3>,
    padding: array<u32, 3>,
    x: u32,
    counted: u32,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

fn larger(a: f32, b: f32) -> f32 {
    if (is_nan(a)) { return a; }
    if (is_nan(b) || b > a) { return b; }
    return a;
}

// A thread does a window, in one loop.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    let positions = params.output[0] * params.output[1] * params.output[2];
    if (id >= params.planes * positions) { return; }
    let w = id % params.output[2];
    let h = id / params.output[2] % params.output[1];
    let d = id / (params.output[2] * params.output[1]) % params.output[0];
    let plane = params.x + id / positions * params.input[0] * params.input[1] * params.input[2];
    // What is inside of the input, along every axis.
    let at = vec3<u32>(d * params.stride[0], h * params.stride[1], w * params.stride[2]);
    let padding = vec3<u32>(params.padding[0], params.padding[1], params.padding[2]);
    let window = vec3<u32>(params.window[0], params.window[1], params.window[2]);
    let input = vec3<u32>(params.input[0], params.input[1], params.input[2]);
    let start = max(at, padding) - padding;
    let end = min(at + window, input + padding) - padding;
    let size = end - start;
    let total = size.x * size.y * size.z;
    var count = f32(total);
    if (params.counted != 0u) { count = f32(window.x * window.y * window.z); }
    var result = {START};
    var place = start;
    for (var i = 0u; i < total; i++) {
        let seen = x[plane + (place.x * input.y + place.y) * input.z + place.z];
        result = {STEP};
        place.z++;
        if (place.z == end.z) {
            place.z = start.z;
            place.y++;
            if (place.y == end.y) {
                place.y = start.y;
                place.x++;
            }
        }
    }
    out[id] = {END};
}
