@group(0) @binding(0) var<storage, read> list: array<u32>;
@group(0) @binding(1) var<storage, read> places: array<u32>;
@group(0) @binding(2) var<storage, read_write> sorted: array<u32>;

// Entries go where their digit's do, those of a run in their order.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    if (id >= params.threads) { return; }
    var next: array<u32, DIGITS>;
    for (var digit = 0u; digit < DIGITS; digit++) {
        next[digit] = places[digit * params.threads + id];
    }
    let last = min((id + 1u) * RUN, params.n);
    for (var i = id * RUN; i < last; i++) {
        let digit = (list[params.key + i] >> params.shift) % DIGITS;
        let to = next[digit];
        next[digit] = to + 1u;
        sorted[to] = list[i];
        sorted[params.n + to] = list[params.n + i];
        sorted[2u * params.n + to] = list[2u * params.n + i];
    }
}
