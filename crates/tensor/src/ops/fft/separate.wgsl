struct Params {
    n: u32,
    half: u32,
    step: u32,
    table: u32,
    scale: f32,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> x: array<vec2<f32>>;
@group(0) @binding(1) var<storage, read> tables: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec2<f32>>;

// What was transformed in pairs is the transform of the even ones and i times that of the odd ones. Both are those of
// real numbers, so an element and the conjugate of its mirror image tell them apart.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let n = thread_number(group, groups, local);
    if (n >= params.n) { return; }
    let inner = n % params.step;
    let line = n / params.step / (params.half + 1u);
    let k = n / params.step % (params.half + 1u);
    let base = line * params.half * params.step + inner;
    let a = x[base + (k % params.half) * params.step];
    let mirror = x[base + ((params.half - k) % params.half) * params.step];
    let b = vec2<f32>(mirror.x, -mirror.y);
    let even = 0.5 * (a + b);
    let d = 0.5 * (a - b);
    let odd = vec2<f32>(d.y, -d.x);
    let w = tables[params.table + k];
    out[n] = params.scale * (even + vec2<f32>(odd.x * w.x - odd.y * w.y, odd.x * w.y + odd.y * w.x));
}
