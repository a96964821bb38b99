{COMMON}
// A thread does four neighbours of a row of one number. It goes through the kernel once: channel by channel, and in there
// as the weights lie.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    var id = thread_number(group, groups, local);
    let width = params.output[2];
    let across = (width + 3u) / 4u;
    let column = id % across * 4u;
    id /= across;
    let row = id % params.output[1];
    let slice = id / params.output[1] % params.output[0];
    id /= params.output[1] * params.output[0];
    let all = params.groups * params.filters;
    if (id >= params.batch * all) { return; }
    let number = id % all;
    let channels = (id / all * params.groups + number / params.filters) * params.channels;
    let plane = params.input[0] * params.input[1] * params.input[2];
    let taps = params.kernel[0] * params.kernel[1] * params.kernel[2];
    // The kernel's element that is next.
    var channel = params.start / taps;
    let tap = params.start % taps;
    var kw = tap % params.kernel[2];
    var kh = tap / params.kernel[2] % params.kernel[1];
    var kd = tap / (params.kernel[2] * params.kernel[1]);
    let from_d = i32(slice * params.stride[0]) - i32(params.padding[0]);
    let from_h = i32(row * params.stride[1]) - i32(params.padding[1]);
    let from_w = vec4<i32>(i32(column * params.stride[2]) - i32(params.padding[2]))
        + vec4<i32>(0, 1, 2, 3) * i32(params.stride[2]);
    let by = params.weight + number * params.channels * taps;
    var sums = vec4<f32>();
    for (var k = params.start; k < params.end; k++) {
        let d = from_d + i32(kd * params.dilation[0]);
        let h = from_h + i32(kh * params.dilation[1]);
        let w = from_w + vec4<i32>(i32(kw * params.dilation[2]));
        if (d >= 0 && d < i32(params.input[0]) && h >= 0 && h < i32(params.input[1])) {
            let base = i32(params.x + (channels + channel) * plane)
                + (d * i32(params.input[1]) + h) * i32(params.input[2]);
            let last = vec4<i32>(i32(params.input[2]) - 1);
            let inside = (w >= vec4<i32>(0)) & (w <= last);
            let at = vec4<i32>(base) + clamp(w, vec4<i32>(0), last);
            let seen = vec4<f32>(x[at.x], x[at.y], x[at.z], x[at.w]);
            sums += weight[by + k] * select(vec4<f32>(), seen, inside);
        }
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
    let to = ((id * params.output[0] + slice) * params.output[1] + row) * width + column;
    store(to, number, sums.x);
    if (column + 1u < width) { store(to + 1u, number, sums.y); }
    if (column + 2u < width) { store(to + 2u, number, sums.z); }
    if (column + 3u < width) { store(to + 3u, number, sums.w); }
}
