struct Params {
    depth: u32,
    n: u32,
    steps: u32,
    // Numbers of a line of what is read, and its words.
    columns: u32,
    words: u32,
}
var<immediate> params: Params;

const PANEL: u32 = 32u;

@group(0) @binding(0) var<storage, read> data: array<u32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

fn number(line: u32, at: u32) -> u32 {
    return data[line * params.words + at / 4u] >> (at % 4u * 8u) & 0xffu;
}

// Four numbers along the common axis, one of each of four lines.
fn of_four_lines(step: u32, column: u32) -> u32 {
    var word = 0u;
    for (var i = 0u; i < min(4u, params.depth - 4u * step); i++) {
        word |= number(4u * step + i, column) << (8u * i);
    }
    return word;
}

// Four numbers of one line, which is along the common axis.
fn of_one_line(step: u32, column: u32) -> u32 {
    return data[column * params.words + step];
}

// Four numbers of a line of `depth` that comes from several shorter ones.
fn of_all(step: u32, column: u32) -> u32 {
    var word = 0u;
    for (var i = 0u; i < min(4u, params.depth - 4u * step); i++) {
        let at = column * params.depth + 4u * step + i;
        word |= number(at / params.columns, at % params.columns) << (8u * i);
    }
    return word;
}

@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    // A thread does one word; neighbours do neighbouring columns.
    let id = thread_number(group, groups, local);
    let lanes = (params.n + PANEL - 1u) / PANEL * PANEL;
    let step = id / lanes;
    let column = id % lanes;
    if (step >= params.steps || column >= params.n) { return; }
    out[{PLACE}] = {WORD};
}
