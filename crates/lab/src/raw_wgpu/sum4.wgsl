// Every thread adds up what is `threads` apart, and leaves one number. Launched again over these, with one thread, it
// leaves the sum.
struct Params { n: u32, threads: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.threads {
        var sum = vec4(0.0);
        for (var i = id.x; i < params.n; i += params.threads) {
            sum += x[i];
        }
        y[id.x] = sum.x + sum.y + sum.z + sum.w;
    }
}
