struct Params {
    n: u32,
    rank: u32,
    scalar: u32,
    value: u32,
    shape: array<u32, 6>,
    offsets: array<u32, 3>,
    strides: array<array<i32, 6>, 3>,
}
var<immediate> params: Params;

