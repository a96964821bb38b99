// Sets bytes to one value: every thread writes one word.

struct Params {
    to_byte: u32,
    len: u32,
    // The byte, four times.
    value: u32,
    // Threads in a row of the grid.
    width: u32,
}

@group(0) @binding(0) var<storage, read_write> target_words: array<u32>;
var<immediate> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let word = params.to_byte / 4u + id.y * params.width + id.x;
    if word * 4u >= params.to_byte + params.len {
        return;
    }
    var mask = 0u;
    for (var b = 0u; b < 4u; b++) {
        let at = word * 4u + b;
        if at >= params.to_byte && at < params.to_byte + params.len {
            mask |= 0xffu << (b * 8u);
        }
    }
    target_words[word] = (target_words[word] & ~mask) | (params.value & mask);
}
