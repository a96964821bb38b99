struct Params {
    batch: u32,
    groups: u32,
    channels: u32,
    depth: u32,
    steps: u32,
    n: u32,
    words: u32,
    zero: i32,
    input: array<u32, 3>,
    kernel: array<u32, 3>,
    stride: array<u32, 3>,
    padding: array<u32, 3>,
    dilation: array<u32, 3>,
    output: array<u32, 3>,
}
var<immediate> params: Params;

const PANEL: u32 = 32u;

@group(0) @binding(0) var<storage, read> data: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

// A number of the input, or what padding is: below zero wraps around and is past the end.
fn number(channel: u32, at: vec3<u32>) -> u32 {
    if (at.x >= params.input[0] || at.y >= params.input[1] || at.z >= params.input[2]) {
        return u32(params.zero) & 0xffu;
    }
    let line = (channel * params.input[0] + at.x) * params.input[1] + at.y;
    return data[line * params.words + at.z / 4u] >> (at.z % 4u * 8u) & 0xffu;
}

// A thread does one word: four numbers of one patch.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    let panels = (params.n + PANEL - 1u) / PANEL;
    let panel = id / (PANEL * params.steps);
    let patch_number = panel % panels * PANEL + id % PANEL;
    let matrix = panel / panels;
    if (matrix >= params.batch * params.groups || patch_number >= params.n) { return; }
    let step = id / PANEL % params.steps;
    let corner = vec3<u32>(
        patch_number / (params.output[1] * params.output[2]) * params.stride[0] - params.padding[0],
        patch_number / params.output[2] % params.output[1] * params.stride[1] - params.padding[1],
        patch_number % params.output[2] * params.stride[2] - params.padding[2],
    );
    var word = 0u;
    for (var i = 0u; i < min(4u, params.depth - 4u * step); i++) {
        let k = 4u * step + i;
        let at = corner + vec3<u32>(
            k / (params.kernel[1] * params.kernel[2]) % params.kernel[0] * params.dilation[0],
            k / params.kernel[2] % params.kernel[1] * params.dilation[1],
            k % params.kernel[2] * params.dilation[2],
        );
        let channel = k / (params.kernel[0] * params.kernel[1] * params.kernel[2]);
        word |= number(matrix * params.channels + channel, at) << (8u * i);
    }
    out[id] = word;
}
