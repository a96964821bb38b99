struct Params {
    batch: u32,
    channels: u32,
    filters: u32,
    input: array<u32, 2>,
    output: array<u32, 2>,
    padding: array<u32, 2>,
    tiles: array<u32, 2>,
    x: u32,
    bias: u32,
    has_bias: u32,
}
var<immediate> params: Params;
