// A list of `n` entries is one array: all rows, then all columns, then all values.
struct Params {
    n: u32,
    // Rows of a matrix,
    rows: u32,
    // and entries of a matrix, or of the first of two.
    entries: u32,
    // Where the keys begin, and from which bit on they count.
    key: u32,
    shift: u32,
    // Threads that share a list.
    threads: u32,
    // The first of the products that are made.
    first: u32,
}
var<immediate> params: Params;

const TILE: u32 = 1024u;
const RUN: u32 = 32u;
const DIGITS: u32 = 16u;

// Sums that are too large stay too large.
fn plus(a: u32, b: u32) -> u32 {
    let sum = a + b;
    return select(sum, 0xffffffffu, sum < a);
}
