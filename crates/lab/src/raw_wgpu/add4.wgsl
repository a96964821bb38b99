// Sixteen elements a thread, in four fours that are a group apart; their number is a multiple of four.
struct Params { n: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> a: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read> b: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> c: array<vec4<f32>>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let i = group.x * 1024u + local;
    if i + 768u < params.n {
        c[i] = a[i] + b[i];
        c[i + 256u] = a[i + 256u] + b[i + 256u];
        c[i + 512u] = a[i + 512u] + b[i + 512u];
        c[i + 768u] = a[i + 768u] + b[i + 768u];
    } else {
        for (var j = i; j < params.n; j += 256u) {
            c[j] = a[j] + b[j];
        }
    }
}
