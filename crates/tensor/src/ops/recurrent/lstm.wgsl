@group(0) @binding(6) var<storage, read> cell_before: array<f32>;
@group(0) @binding(7) var<storage, read_write> cell: array<f32>;

fn lstm(b: u32, s0: f32, s1: f32, s2: f32, s3: f32) -> f32 {
    let i = sigmoid_(given(0u, b) + recurrent(0u, s0));
    let f = sigmoid_(given(1u, b) + recurrent(1u, s1));
    let g = tanh_(given(2u, b) + recurrent(2u, s2));
    let o = sigmoid_(given(3u, b) + recurrent(3u, s3));
    let at = state(b) + unit;
    var before = 0.0;
    if (params.step > 0u) {
        before = cell[params.state_to + at];
    } else if (params.has_initial != 0u) {
        before = cell_before[params.cell_from + at];
    }
    let c = f * before + i * g;
    cell[params.state_to + at] = c;
    return o * tanh_(c);
}
