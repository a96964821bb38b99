// One step for a column of cells. Fields have a margin of one cell, which is solid and without pressure.

struct Params {
    nx: u32,
    ny: u32,
    nz: u32,
    pitch: u32,
    plane: u32,
    lead: u32,
    courant_squared: f32,
    absorption: f32,
    sources: u32,
    cells: array<u32, 8>,
    gains: array<f32, 8>,
}
var<immediate> params: Params;

@group(0) @binding(0) var<storage, read> now: array<f32>;
@group(0) @binding(1) var<storage, read_write> before: array<f32>;
// A byte for every cell: three bits for its open neighbours, three for its faces on the room's walls, the last says
// that it is solid.
@group(0) @binding(2) var<storage, read> kinds: array<u32>;

@compute @workgroup_size(32, 4, 1)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if (id.x >= params.nx || id.y >= params.ny) { return; }
    let start = id.z * {DEPTH}u;
    let end = min(start + {DEPTH}u, params.nz);
    var at = (start + 1u) * params.plane + (id.y + 1u) * params.pitch + id.x + params.lead;
    var below = now[at - params.plane];
    var here = now[at];
    // Behind an absorbing wall is what is before it.
    let mirrors = params.absorption > 0.0;
    let left = select(at - 1u, at + 1u, mirrors && id.x == 0u) - at;
    let right = select(at + 1u, at - 1u, mirrors && id.x + 1u == params.nx) - at;
    let front = select(at - params.pitch, at + params.pitch, mirrors && id.y == 0u) - at;
    let back = select(at + params.pitch, at - params.pitch, mirrors && id.y + 1u == params.ny) - at;
    for (var z = start; z < end; z++) {
        let above = now[at + params.plane];
        let kind = (kinds[at / 4u] >> (at % 4u * 8u)) & 0xffu;
        if (kind < 128u) {
            let along_x = now[at + left] + now[at + right];
            let along_y = now[at + front] + now[at + back];
            let along_z = select(below, above, mirrors && z == 0u) + select(above, below, mirrors && z + 1u == params.nz);
            let sum = along_x + along_y + along_z;
            let laplacian = sum - f32(kind & 7u) * here;
            let old = before[at];
            var new_pressure = 2.0 * here - old + params.courant_squared * laplacian;
            let walls = kind >> 3u;
            if (walls != 0u) {
                let w = params.absorption * f32(walls);
                new_pressure = (new_pressure + w * old) / (1.0 + w);
            }
            for (var n = 0u; n < params.sources; n++) {
                if (params.cells[n] == at) { new_pressure += params.gains[n]; }
            }
            before[at] = new_pressure;
        }
        below = here;
        here = above;
        at += params.plane;
    }
}
