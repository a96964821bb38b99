//! What both sides of a region say about where things lie.
#![allow(clippy::unwrap_used, reason = "a test")]

use millrace_resident::{Message, layout};
use naga::{Module, TypeInner};

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Inner {
    at: [u32; 3],
    weight: f32,
}

#[derive(Clone, Copy, Message)]
#[repr(C)]
struct Everything {
    wide: u64,
    signed: i64,
    double: f64,
    many: [[f32; 3]; 2],
    inner: [Inner; 2],
    wides: [u64; 2],
    one: Inner,
    small: i32,
    last: u32,
}

fn module(text: &str) -> Module {
    naga::front::wgsl::parse_str(text).unwrap_or_else(|error| panic!("{}", error.emit_to_string(text)))
}

#[test]
fn a_message_lies_in_wgsl_as_it_lies_in_rust() {
    let text = layout::definitions(&[Everything::LAYOUT, <() as Message>::LAYOUT, Inner::LAYOUT]);
    let text = format!("{text}@group(0) @binding(0) var<storage, read_write> messages: array<Everything>;");
    let module = module(&text);
    let (members, span) = module
        .types
        .iter()
        .find_map(|(_, ty)| match &ty.inner {
            TypeInner::Struct { members, span } if ty.name.as_deref() == Some("Everything") => Some((members, *span)),
            _ => None,
        })
        .unwrap();
    assert_eq!(span as usize, size_of::<Everything>());
    let fields = Everything::LAYOUT.fields;
    assert_eq!(members.len(), fields.len());
    for (member, field) in members.iter().zip(fields) {
        assert_eq!((member.name.as_deref(), member.offset as usize), (Some(field.name), field.offset));
    }
}

#[test]
fn the_constants_are_wgsl() {
    let text = layout::wgsl();
    let text = format!(
        "{text}@group(0) @binding(0) var<storage, read_write> region: array<atomic<u32>>;
        @compute @workgroup_size(1) fn main() {{
            if (atomicLoad(&region[CONTROL_MAGIC]) == MAGIC) {{
                atomicStore(&region[CONTROL_STATUS], STATUS_ACTIVE);
            }}
        }}"
    );
    module(&text);
    for row in layout::table() {
        let Some((name, value)) = row.wgsl else { continue };
        assert!(text.contains(&format!("const {name}: u32 = {value}u;")), "{name}");
    }
}

#[test]
fn the_blocks_are_filled_to_the_last_byte() {
    for (block, size) in [("ControlBlock", 128), ("Telemetry", 64), ("slot", layout::HEADER)] {
        let mut at = 0;
        for row in layout::table().iter().filter(|row| row.block == block) {
            assert_eq!(row.offset, at, "{block} {}", row.field);
            at += row.size;
        }
        assert_eq!(at, size, "{block}");
    }
}

#[test]
fn types_are_told_apart_by_names_and_fields() {
    mod other {
        use millrace_resident::Message;
        #[derive(Clone, Copy, Message)]
        #[repr(C)]
        pub(crate) struct Inner {
            pub(crate) at: [u32; 3],
            pub(crate) heft: f32,
        }
    }
    let ids = [Inner::TYPE, other::Inner::TYPE, Everything::TYPE, <() as Message>::TYPE];
    for (n, id) in ids.iter().enumerate() {
        assert!(*id != 0 && !ids[..n].contains(id));
    }
}

/// Writes through the blocks and reads through the words, as a device does.
#[test]
fn the_blocks_and_the_words_are_the_same_memory() {
    use std::sync::atomic::{AtomicU32, Ordering};
    let control = layout::ControlBlock::default();
    control.status.store(7, Ordering::Relaxed);
    control.out_tail.store(9, Ordering::Relaxed);
    let word = |name: &str| {
        let row = layout::table().into_iter().find(|row| row.wgsl.as_ref().is_some_and(|(n, _)| n == name)).unwrap();
        let index = row.wgsl.unwrap().1;
        // SAFETY: the word is inside the block, which is made of atomics.
        unsafe { (*(&raw const control).cast::<AtomicU32>().add(index)).load(Ordering::Relaxed) }
    };
    assert_eq!((word("CONTROL_STATUS"), word("CONTROL_OUT_TAIL"), word("CONTROL_MAGIC")), (7, 9, 0));
}
