//! Bytes are an archive, which can be read, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use millrace_resident::{Archive, Message};

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Wide {
    a: u64,
    b: [f32; 2],
}

fuzz_target!(|bytes: &[u8]| {
    assert_eq!(Wide::read_from(bytes).is_ok(), bytes.len() == 16);
    let _ = Wide::from_bytes(bytes);
    if let Ok(list) = Archive::<Vec<String>>::from_bytes(bytes) {
        std::hint::black_box(list.iter().map(|text| text.chars().count()).sum::<usize>());
    }
    if let Ok(pair) = Archive::<(Vec<f32>, Option<Vec<Vec<u16>>>)>::from_bytes(bytes) {
        std::hint::black_box(pair.0.iter().map(|x| x.to_native()).sum::<f32>());
        std::hint::black_box(pair.1.as_ref().map(|lists| lists.iter().map(|list| list.len()).sum::<usize>()));
    }
});
