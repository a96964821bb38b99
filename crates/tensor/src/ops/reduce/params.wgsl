struct Params {
    outputs: u32,
    length: u32,
    chunks: u32,
    kept: u32,
    folded: u32,
    offset: u32,
    divisor: u32,
    partials: u32,
    shape: array<u32, 8>,
    strides: array<i32, 8>,
}
var<immediate> params: Params;

// Where the axes first..last put element `n` of them.
fn place_along(n: u32, first: u32, last: u32) -> i32 {
    if (last == first + 1u) { return i32(n) * params.strides[first]; }
    var rest = n;
    var place = 0i;
    for (var axis = last; axis > first; axis--) {
        let dim = params.shape[axis - 1u];
        place += i32(rest % dim) * params.strides[axis - 1u];
        rest /= dim;
    }
    return place;
}

fn kept_place(output: u32) -> i32 {
    return i32(params.offset) + place_along(output, 0u, params.kept);
}

fn folded_place(n: u32) -> i32 {
    return place_along(n, params.kept, params.kept + params.folded);
}

