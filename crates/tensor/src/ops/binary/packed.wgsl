const WIDE: u32 = {WIDE}u;

@group(0) @binding(0) var<storage, read> left: array<vec4<{IN}>>;
@group(0) @binding(1) var<storage, read> right: array<vec4<{IN}>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<{OUT}>>;

fn apply(a: {IN}, b: {IN}) -> {OUT} {
    return {EXPR};
}

fn four(i: u32) {
    let a = {LEFT};
    let b = {RIGHT};
    out[i] = vec4<{OUT}>(apply(a.x, b.x), apply(a.y, b.y), apply(a.z, b.z), apply(a.w, b.w));
}

@compute @workgroup_size({WIDE})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    // Four fours that are a group apart.
    let i = {GROUP} * 4u * WIDE + local;
    let n = params.n / 4u;
    if (i + 3u * WIDE < n) {
        four(i);
        four(i + WIDE);
        four(i + 2u * WIDE);
        four(i + 3u * WIDE);
    } else {
        for (var j = i; j < n; j += WIDE) { four(j); }
    }
}
