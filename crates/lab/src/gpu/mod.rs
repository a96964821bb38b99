//! The groups of `millrace bench gpu`.

/// Numbers between -1 and 1, always the same for a seed.
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    // xorshift64*
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}
