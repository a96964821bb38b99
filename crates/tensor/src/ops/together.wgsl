var<workgroup> all_{NAME}: array<f32, 64>;
var<workgroup> some_{NAME}: array<f32, 8>;

// What all threads of a group bring, folded: eight threads fold eight each, and then everybody these. To be called once, by
// all of them.
fn together_{NAME}(own: f32, local: u32) -> f32 {
    all_{NAME}[local] = own;
    workgroupBarrier();
    if (local < 8u) {
        var a = all_{NAME}[local];
        for (var i = 1u; i < 8u; i++) {
            let b = all_{NAME}[local + 8u * i];
            a = {FOLD};
        }
        some_{NAME}[local] = a;
    }
    workgroupBarrier();
    var a = some_{NAME}[0];
    for (var i = 1u; i < 8u; i++) {
        let b = some_{NAME}[i];
        a = {FOLD};
    }
    return a;
}
