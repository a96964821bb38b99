struct Params {
    hidden: u32,
    batch: u32,
    steps: u32,
    directions: u32,
    along: u32,
    across: u32,
    recurrent: u32,
    biases: u32,
    direction: u32,
    has_bias: u32,
    has_initial: u32,
    hidden_from: u32,
    cell_from: u32,
    state_to: u32,
    step: u32,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> input: array<f32>;
@group(0) @binding(1) var<storage, read> turned: array<f32>;
@group(0) @binding(2) var<storage, read> weights: array<f32>;
@group(0) @binding(3) var<storage, read> hidden_before: array<f32>;
@group(0) @binding(4) var<storage, read_write> output: array<f32>;
@group(0) @binding(5) var<storage, read_write> hidden: array<f32>;

const GATES: u32 = {GATES};

// What this thread does: a unit of a direction.
var<private> unit: u32;
var<private> direction: u32;

// The time of a step, which runs backwards for the second direction.
fn time(step: u32) -> u32 {
    return select(params.steps - 1u - step, step, direction == 0u);
}

// The row of this step of a sequence.
fn row(b: u32) -> u32 {
    return time(params.step) * params.along + b * params.across;
}

// Where a sequence's state of this direction begins.
fn state(b: u32) -> u32 {
    return (direction * params.batch + b) * params.hidden;
}

fn bias(which: u32, gate: u32) -> f32 {
    if (params.has_bias == 0u) { return 0.0; }
    let at = params.biases + direction * params.direction;
    return weights[at + (which * GATES + gate) * params.hidden + unit];
}

// The input's part of a gate.
fn given(gate: u32, b: u32) -> f32 {
    let rows = params.steps * params.batch;
    return input[((direction * rows + row(b)) * GATES + gate) * params.hidden + unit] + bias(0u, gate);
}

// The state's part.
fn recurrent(gate: u32, sum: f32) -> f32 {
    return sum + bias(1u, gate);
}

fn relu(x: f32) -> f32 {
    return select(max(x, 0.0), x, is_nan(x));
}

{CELL}

// Where a sequence's state before this step begins, in the output of the step before or in the initial state.
fn before(b: u32) -> u32 {
    if (params.step == 0u) { return params.hidden_from + state(b); }
    return ((time(params.step - 1u) * params.along + b * params.across) * params.directions + direction) * params.hidden;
}

// A thread does one unit of four sequences.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    let fours = (params.batch + 3u) / 4u;
    unit = id % params.hidden;
    let first = id / params.hidden % fours * 4u;
    direction = id / params.hidden / fours;
    if (direction >= params.directions) { return; }
    // Sequences past the last repeat it; their results are not stored.
    let last = params.batch - 1u;
    let start = vec4<u32>(
        before(first), before(min(first + 1u, last)), before(min(first + 2u, last)), before(min(first + 3u, last)));
    {SUMS}
    var at = direction * params.hidden * GATES * params.hidden + unit;
    if (params.step > 0u) {
        for (var k = 0u; k < params.hidden; k++) {
            let h = vec4<f32>(output[start.x + k], output[start.y + k], output[start.z + k], output[start.w + k]);
            {PRODUCTS}
            at += GATES * params.hidden;
        }
    } else if (params.has_initial != 0u) {
        for (var k = 0u; k < params.hidden; k++) {
            let h = vec4<f32>(
                hidden_before[start.x + k], hidden_before[start.y + k], hidden_before[start.z + k], hidden_before[start.w + k]);
            {PRODUCTS}
            at += GATES * params.hidden;
        }
    }
    for (var i = 0u; i < min(4u, params.batch - first); i++) {
        let b = first + i;
        let y = {VALUE};
        output[(row(b) * params.directions + direction) * params.hidden + unit] = y;
        if (params.step + 1u == params.steps) {
            hidden[params.state_to + state(b) + unit] = y;
        }
    }
}
