// One command for a wave on a closed line of cells: a thread for every cell.

struct Params {
    kind: u32,
    cell: u32,
    amount: f32,
    rest: u32,
}
var<immediate> params: Params;

struct Field {
    a: array<f32, 256>,
    b: array<f32, 256>,
    steps: u32,
}
@group(0) @binding(0) var<storage, read_write> field: Field;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) i: u32) {
    let even = field.steps % 2u == 0u;
    let left = (i + 255u) % 256u;
    let right = (i + 1u) % 256u;
    if params.kind == 1u {
        if even {
            let here = field.a[i];
            field.b[i] = 0.999 * (2.0 * here - field.b[i] + 0.25 * (field.a[left] - 2.0 * here + field.a[right]));
        } else {
            let here = field.b[i];
            field.a[i] = 0.999 * (2.0 * here - field.a[i] + 0.25 * (field.b[left] - 2.0 * here + field.b[right]));
        }
    } else if params.kind == 0u && i == params.cell % 256u {
        if even {
            field.a[i] += params.amount;
        } else {
            field.b[i] += params.amount;
        }
    }
    // Everybody has looked at the number of steps.
    storageBarrier();
    if i == 0u && params.kind == 1u {
        field.steps += 1u;
    }
}
