// Every thread adds up what is `threads` apart, in two sums, and leaves one number. Launched again over these numbers
// with fewer threads it leaves fewer, and with one thread the sum.
struct Params { n: u32, threads: u32 }
var<immediate> params: Params;
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(256)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.threads {
        var even = vec4(0.0);
        var odd = vec4(0.0);
        var i = id.x;
        for (; i + params.threads < params.n; i += 2u * params.threads) {
            even += x[i];
            odd += x[i + params.threads];
        }
        if i < params.n {
            even += x[i];
        }
        let sum = even + odd;
        y[id.x] = sum.x + sum.y + sum.z + sum.w;
    }
}
