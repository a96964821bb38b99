struct Params {
    rows: u32,
    columns: u32,
    words: u32,
    offset: u32,
    channels: u32,
    // Lines that a channel goes on for; zero if every column is one.
    inner: u32,
}
var<immediate> params: Params;

struct Channel {
    scale: f32,
    inverse: f32,
    zero: i32,
    unused: u32,
}

@group(0) @binding(0) var<storage, read> x: array<{FROM}>;
@group(0) @binding(1) var<storage, read> table: array<Channel>;
@group(0) @binding(2) var<storage, read_write> out: array<{TO}>;

fn channel_of(row: u32, column: u32) -> Channel {
    if (params.channels == 1u) { return table[0]; }
    if (params.inner == 0u) { return table[column]; }
    return table[row / params.inner % params.channels];
}

fn quantized(value: f32, channel: Channel) -> u32 {
    var steps = 0.0;
    if (!is_nan(value)) {
        let zero = f32(channel.zero);
        steps = round(clamp(value * channel.inverse, -128.0 - zero, 127.0 - zero));
    }
    return u32(i32(steps) + channel.zero) & 0xffu;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    // A thread does one word of four numbers.
    let id = thread_number(group, groups, local);
    let row = id / params.words;
    if (row >= params.rows) { return; }
    let first = id % params.words * 4u;
    let last = min(first + 4u, params.columns);
    let start = row * params.columns;
    {BODY}
}
