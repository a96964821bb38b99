const BLOCK: u32 = 64u;

// The number of a thread in a grid that may have to be folded into rows.
fn thread_number(group: vec3<u32>, groups: vec3<u32>, local: u32) -> u32 {
    return (group.y * groups.x + group.x) * BLOCK + local;
}

// Comparisons may be compiled as if there were no NaN; bits may not.
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u;
}

fn is_inf(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) == 0x7f800000u;
}

// Below zero; neither -0 nor NaN is.
fn is_negative(x: f32) -> bool {
    return bitcast<u32>(x) - 0x80000001u < 0x7f800000u;
}

fn from_bits(bits: u32) -> f32 {
    return bitcast<f32>(bits);
}

