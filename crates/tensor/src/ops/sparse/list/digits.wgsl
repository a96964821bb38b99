@group(0) @binding(0) var<storage, read> list: array<u32>;
@group(0) @binding(1) var<storage, read_write> counts: array<u32>;

// How often each digit occurs in a thread's run. Counts of one digit lie behind one another, so that their sums are where
// entries go.
@compute @workgroup_size(64)
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let id = thread_number(group, groups, local);
    if (id >= params.threads) { return; }
    var own: array<u32, DIGITS>;
    for (var digit = 0u; digit < DIGITS; digit++) {
        own[digit] = 0u;
    }
    let last = min((id + 1u) * RUN, params.n);
    for (var i = id * RUN; i < last; i++) {
        own[(list[params.key + i] >> params.shift) % DIGITS]++;
    }
    for (var digit = 0u; digit < DIGITS; digit++) {
        counts[digit * params.threads + id] = own[digit];
    }
}
