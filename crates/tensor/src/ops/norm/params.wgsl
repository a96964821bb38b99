struct Params {
    n: u32,
    channels: u32,
    length: u32,
    epsilon: f32,
    x: u32,
    mean: u32,
    variance: u32,
    weight: u32,
    bias: u32,
    has_weight: u32,
    has_bias: u32,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read> bias: array<f32>;

fn weight_of(at: u32) -> f32 {
    if (params.has_weight == 0u) { return 1.0; }
    return weight[params.weight + at];
}

fn bias_of(at: u32) -> f32 {
    if (params.has_bias == 0u) { return 0.0; }
    return bias[params.bias + at];
}
