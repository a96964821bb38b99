// Whether an entry is the first of its place in a sorted list.
fn is_head(i: u32) -> bool {
    if (i == 0u) { return true; }
    let columns = params.n + i;
    return list[i] != list[i - 1u] || list[columns] != list[columns - 1u];
}
