const WIDE: u32 = {WIDE}u;

@group(0) @binding(0) var<storage, read> x: array<vec4<{IN}>>;
@group(0) @binding(1) var<storage, read_write> out: array<vec4<{OUT}>>;

fn apply(x: {IN}) -> {OUT} {
    return {EXPR};
}

fn four(i: u32) {
    let v = {LOAD};
    out[i] = vec4<{OUT}>(apply(v.x), apply(v.y), apply(v.z), apply(v.w));
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
