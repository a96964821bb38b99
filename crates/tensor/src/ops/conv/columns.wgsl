{COMMON}
// The columns of four positions, wherever in the batch they are: a column is found, not stored.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    // A thread does four filters by four columns, in registers.
    var id = thread_number(group, groups, local);
    let positions = params.output[0] * params.output[1] * params.output[2];
    let columns = params.batch * positions;
    let across = (columns + 3u) / 4u;
    let column = id % across * 4u;
    id /= across;
    let down = (params.filters + 3u) / 4u;
    let first = id % down * 4u;
    let part = id / down;
    if (part >= params.groups) { return; }
    // Those past the end repeat the last one; their results are not stored.
    let rows = min(vec4<u32>(first) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(params.filters - 1u));
    let at = min(vec4<u32>(column) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(columns - 1u));
    let image = at / vec4<u32>(positions);
    let place = at % vec4<u32>(positions);
    let width = vec4<u32>(params.output[2]);
    let height = vec4<u32>(params.output[1]);
    let from_d = vec4<i32>(place / (width * height) * params.stride[0]) - vec4<i32>(i32(params.padding[0]));
    let from_h = vec4<i32>(place / width % height * params.stride[1]) - vec4<i32>(i32(params.padding[1]));
    let from_w = vec4<i32>(place % width * params.stride[2]) - vec4<i32>(i32(params.padding[2]));
    let plane = params.input[0] * params.input[1] * params.input[2];
    let taps = params.kernel[0] * params.kernel[1] * params.kernel[2];
    let depth = params.channels * taps;
    let base = vec4<i32>((image * params.groups + vec4<u32>(part)) * params.channels * plane + vec4<u32>(params.x));
    let by = (vec4<u32>(part * params.filters) + rows) * depth + vec4<u32>(params.weight);
    var channel = params.start / taps;
    let tap = params.start % taps;
    var kw = tap % params.kernel[2];
    var kh = tap / params.kernel[2] % params.kernel[1];
    var kd = tap / (params.kernel[2] * params.kernel[1]);
    let sizes = vec3<i32>(i32(params.input[0]), i32(params.input[1]), i32(params.input[2]));
    let zero = vec4<i32>(0);
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    for (var k = params.start; k < params.end; k++) {
        let d = from_d + vec4<i32>(i32(kd * params.dilation[0]));
        let h = from_h + vec4<i32>(i32(kh * params.dilation[1]));
        let w = from_w + vec4<i32>(i32(kw * params.dilation[2]));
        let inside = (d >= zero) & (d < vec4<i32>(sizes.x)) & (h >= zero) & (h < vec4<i32>(sizes.y))
            & (w >= zero) & (w < vec4<i32>(sizes.z));
        let there = base + vec4<i32>(i32(channel * plane)) + (d * sizes.y + h) * sizes.z + w;
        let source = select(base, there, inside);
        let seen = select(vec4<f32>(), vec4<f32>(x[source.x], x[source.y], x[source.z], x[source.w]), inside);
        s0 += weight[by.x + k] * seen;
        s1 += weight[by.y + k] * seen;
        s2 += weight[by.z + k] * seen;
        s3 += weight[by.w + k] * seen;
        kw++;
        if (kw == params.kernel[2]) {
            kw = 0u;
            kh++;
            if (kh == params.kernel[1]) {
                kh = 0u;
                kd++;
                if (kd == params.kernel[0]) {
                    kd = 0u;
                    channel++;
                }
            }
        }
    }
    let total = params.groups * params.filters;
    for (var column_of = 0u; column_of < min(4u, columns - column); column_of++) {
        let sums = vec4<f32>(s0[column_of], s1[column_of], s2[column_of], s3[column_of]);
        for (var row = 0u; row < min(4u, params.filters - first); row++) {
            let number = part * params.filters + first + row;
            store((image[column_of] * total + number) * positions + place[column_of], number, sums[row]);
        }
    }
}
