// Sixteen elements a thread, in four fours that are a group apart; their number is a multiple of four.
struct Params { n: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = group.x * 1024u + local;
    if i + 768u < params.n {
        y[i] = max(x[i], vec4(0.0));
        y[i + 256u] = max(x[i + 256u], vec4(0.0));
        y[i + 512u] = max(x[i + 512u], vec4(0.0));
        y[i + 768u] = max(x[i + 768u], vec4(0.0));
    } else {
        for (var j = i; j < params.n; j += 256u) {
            y[j] = max(x[j], vec4(0.0));
        }
    }
}
