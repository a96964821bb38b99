fn old(b: u32) -> f32 {
    if (params.step > 0u) { return output[before(b) + unit]; }
    if (params.has_initial != 0u) { return hidden_before[before(b) + unit]; }
    return 0.0;
}

fn gru(b: u32, s0: f32, s1: f32, s2: f32) -> f32 {
    let r = sigmoid_(given(0u, b) + recurrent(0u, s0));
    let z = sigmoid_(given(1u, b) + recurrent(1u, s1));
    let n = tanh_(given(2u, b) + r * recurrent(2u, s2));
    return n + z * (old(b) - n);
}
