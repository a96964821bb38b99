struct Params {
    batch: u32,
    groups: u32,
    channels: u32,
    filters: u32,
    input: array<u32, 3>,
    kernel: array<u32, 3>,
    output: array<u32, 3>,
    stride: array<u32, 3>,
    padding: array<u32, 3>,
    dilation: array<u32, 3>,
    x: u32,
    weight: u32,
    bias: u32,
    has_bias: u32,
    start: u32,
    end: u32,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

fn bias_of(number: u32) -> f32 {
    if (params.has_bias == 0u) { return 0.0; }
    return bias[params.bias + number];
}

fn store(at: u32, number: u32, sum: f32) {
    out[at] = {VALUE};
}
