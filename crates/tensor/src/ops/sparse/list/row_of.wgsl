// The row that an entry is in.
fn row_of(entry: u32) -> u32 {
    var low = 0u;
    var high = params.rows;
    while (low < high) {
        let middle = (low + high) / 2u;
        if (pointers[middle + 1u] <= entry) { low = middle + 1u; } else { high = middle; }
    }
    return low;
}
