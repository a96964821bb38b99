// Lets pressure into a cell, at rest.

struct Params {
    cell: u32,
    amount: f32,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read_write> now: array<f32>;
@group(0) @binding(1) var<storage, read_write> before: array<f32>;

@compute @workgroup_size(1)
fn main() {
    now[params.cell] += params.amount;
    before[params.cell] += params.amount;
}
