{COMMON}
// A thread does one element of the result: what every element of the kernel has put there.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    let plane = params.input[0] * params.input[1] * params.input[2];
    let all = params.groups * params.channels;
    if (id >= params.batch * all * plane) { return; }
    let channel = id / plane % all;
    let place = id % plane;
    let w = i32(place % params.input[2] + params.padding[2]);
    let h = i32(place / params.input[2] % params.input[1] + params.padding[1]);
    let d = i32(place / (params.input[2] * params.input[1]) + params.padding[0]);
    let positions = params.output[0] * params.output[1] * params.output[2];
    let taps = params.kernel[0] * params.kernel[1] * params.kernel[2];
    let base = params.x + id / plane * taps * positions;
    var kw = params.start % params.kernel[2];
    var kh = params.start / params.kernel[2] % params.kernel[1];
    var kd = params.start / (params.kernel[2] * params.kernel[1]);
    let stride = vec3<i32>(i32(params.stride[0]), i32(params.stride[1]), i32(params.stride[2]));
    let size = vec3<i32>(i32(params.output[0]), i32(params.output[1]), i32(params.output[2]));
    var sum = 0.0;
    for (var tap = params.start; tap < params.end; tap++) {
        let far = vec3<i32>(
            d - i32(kd * params.dilation[0]),
            h - i32(kh * params.dilation[1]),
            w - i32(kw * params.dilation[2]),
        );
        let at = max(far, vec3<i32>(0)) / stride;
        if (all_true(far >= vec3<i32>(0)) && all_true(at * stride == far) && all_true(at < size)) {
            let position = (u32(at.x) * params.output[1] + u32(at.y)) * params.output[2] + u32(at.z);
            sum += x[base + tap * positions + position];
        }
        kw++;
        if (kw == params.kernel[2]) {
            kw = 0u;
            kh++;
            if (kh == params.kernel[1]) {
                kh = 0u;
                kd++;
            }
        }
    }
    store(id, channel, sum);
}

fn all_true(each: vec3<bool>) -> bool {
    return each.x && each.y && each.z;
}
