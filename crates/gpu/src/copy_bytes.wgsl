// Copies bytes between any two places: every thread writes one word of the target.

struct Params {
    to_byte: u32,
    from_byte: u32,
    len: u32,
    // Threads in a row of the grid.
    width: u32,
}

@group(0) @binding(0) var<storage, read_write> target_words: array<u32>;
@group(0) @binding(1) var<storage, read> source_words: array<u32>;
var<immediate> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let word = params.to_byte / 4u + id.y * params.width + id.x;
    if word * 4u >= params.to_byte + params.len {
        return;
    }
    var value = target_words[word];
    for (var b = 0u; b < 4u; b++) {
        let at = word * 4u + b;
        if at >= params.to_byte && at < params.to_byte + params.len {
            let source = at - params.to_byte + params.from_byte;
            let byte = (source_words[source / 4u] >> (source % 4u * 8u)) & 0xffu;
            value = (value & ~(0xffu << (b * 8u))) | (byte << (b * 8u));
        }
    }
    target_words[word] = value;
}
