// The two fields lie one behind the other. After an even number of steps the first is now.
let cell = message.cell % 256u;
if message.kind == 1u {
    let now = select(256u, 0u, (*state).steps % 2u == 0u);
    let before = 256u - now;
    let first = bitcast<f32>(load(now));
    var left = bitcast<f32>(load(now + 255u));
    var here = first;
    for (var i = 0u; i < 256u; i += 4u) {
        let a = bitcast<f32>(load(now + i + 1u));
        let b = bitcast<f32>(load(now + i + 2u));
        let c = bitcast<f32>(load(now + i + 3u));
        let next = bitcast<f32>(load(now + (i + 4u) % 256u));
        let to = before + i;
        store(to, bitcast<u32>(0.999 * (2.0 * here - bitcast<f32>(load(to)) + 0.25 * (left - 2.0 * here + a))));
        store(to + 1u, bitcast<u32>(0.999 * (2.0 * a - bitcast<f32>(load(to + 1u)) + 0.25 * (here - 2.0 * a + b))));
        store(to + 2u, bitcast<u32>(0.999 * (2.0 * b - bitcast<f32>(load(to + 2u)) + 0.25 * (a - 2.0 * b + c))));
        store(to + 3u, bitcast<u32>(0.999 * (2.0 * c - bitcast<f32>(load(to + 3u)) + 0.25 * (b - 2.0 * c + next))));
        left = c;
        here = next;
    }
    (*state).steps += 1u;
}
let at = select(256u, 0u, (*state).steps % 2u == 0u) + cell;
var value = bitcast<f32>(load(at));
if message.kind == 0u {
    value += message.amount;
    store(at, bitcast<u32>(value));
}
return Cell(value);
