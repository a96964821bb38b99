let cell = message.cell % 256u;
if message.kind == 1u {
    let even = (*state).steps % 2u == 0u;
    for (var i = 0u; i < 256u; i += 1u) {
        let left = (i + 255u) % 256u;
        let right = (i + 1u) % 256u;
        if even {
            let here = (*state).a[i];
            (*state).b[i] = 0.999 * (2.0 * here - (*state).b[i] + 0.25 * ((*state).a[left] - 2.0 * here + (*state).a[right]));
        } else {
            let here = (*state).b[i];
            (*state).a[i] = 0.999 * (2.0 * here - (*state).a[i] + 0.25 * ((*state).b[left] - 2.0 * here + (*state).b[right]));
        }
    }
    (*state).steps += 1u;
}
if (*state).steps % 2u == 0u {
    if message.kind == 0u {
        (*state).a[cell] += message.amount;
    }
    return Cell((*state).a[cell]);
}
if message.kind == 0u {
    (*state).b[cell] += message.amount;
}
return Cell((*state).b[cell]);
