//! Messages: plain structs that lie in a slot as they lie in the program, and that both sides read in place.

use crate::{
    Error, Result,
    layout::{MessageLayout, type_id},
};

/// A struct whose bytes are the message. Derive it:
///
/// ```
/// use millrace_resident::Message;
///
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Impulse {
///     at: [u32; 3],
///     strength: f32,
/// }
///
/// assert_eq!(Impulse::LAYOUT.size, 16);
/// assert_eq!(Impulse::LAYOUT.wgsl, "\
/// struct Impulse {
///     at: array<u32, 3>,
///     strength: f32,
/// }
/// ");
/// let impulse = Impulse { at: [1, 2, 3], strength: 0.5 };
/// assert_eq!(Impulse::from_bytes(impulse.as_bytes())?.at, [1, 2, 3]);
/// assert!(Impulse::from_bytes(&impulse.as_bytes()[..12]).is_err());
/// # Ok::<(), millrace_resident::Error>(())
/// ```
///
/// Fields are `u32`, `i32`, `f32`, the 64-bit numbers (two words for a device), arrays and other messages. What would
/// differ between host and device does not compile. Padding:
///
/// ```compile_fail
/// # use millrace_resident::Message;
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Gap { a: u32, b: u64 }
/// ```
///
/// Another representation, or none:
///
/// ```compile_fail
/// # use millrace_resident::Message;
/// #[derive(Clone, Copy, Message)]
/// struct Anyhow { a: u32 }
/// ```
/// ```compile_fail
/// # use millrace_resident::Message;
/// #[derive(Clone, Copy, Message)]
/// #[repr(C, packed)]
/// struct Packed { a: u32 }
/// ```
///
/// Generics, references, numbers that WGSL does not have, structs that are no messages, enums, tuples:
///
/// ```compile_fail
/// # use millrace_resident::Message;
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Any<T: Copy> { a: T }
/// ```
/// ```compile_fail
/// # use millrace_resident::Message;
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Borrowed { a: &'static u32 }
/// ```
/// ```compile_fail
/// # use millrace_resident::Message;
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Byte { a: u8, b: [u8; 3] }
/// ```
/// ```compile_fail
/// # use millrace_resident::Message;
/// #[derive(Clone, Copy)]
/// #[repr(C)]
/// struct Plain { a: u32 }
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Outer { a: Plain }
/// ```
/// ```compile_fail
/// # use millrace_resident::Message;
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// enum Choice { A, B }
/// ```
/// ```compile_fail
/// # use millrace_resident::Message;
/// #[derive(Clone, Copy, Message)]
/// #[repr(C)]
/// struct Pair(u32, u32);
/// ```
///
/// # Safety
/// `LAYOUT` describes the type as it is; every bit pattern is a value of it; it has no padding; its alignment is at most
/// eight.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a message",
    label = "this is no message",
    note = "a field is u32, i32, f32, u64, i64, f64, an array, or a struct with `#[derive(Message)]` and `#[repr(C)]`"
)]
pub unsafe trait Message: Copy + Send + Sync + 'static {
    /// What it looks like, on both sides.
    const LAYOUT: &'static MessageLayout;

    /// Tells types apart; made from the name and the fields.
    const TYPE: u32 = Self::LAYOUT.id;

    /// The struct in WGSL, without those nested in it: [`MessageLayout::definitions`] has them all.
    const WGSL: &'static str = Self::LAYOUT.wgsl;

    /// The message as bytes.
    #[inline(always)]
    fn as_bytes(&self) -> &[u8] {
        // SAFETY: a message has no padding, so all its bytes are initialized.
        unsafe { std::slice::from_raw_parts((&raw const *self).cast(), size_of::<Self>()) }
    }

    /// The message that these bytes are, in place: their number and alignment are checked.
    #[inline(always)]
    fn from_bytes(bytes: &[u8]) -> Result<&Self> {
        if bytes.len() != size_of::<Self>() {
            return Err(Error::WrongLength { expected: size_of::<Self>(), found: bytes.len() });
        }
        if !(bytes.as_ptr() as usize).is_multiple_of(align_of::<Self>()) {
            return Err(Error::Misaligned { align: align_of::<Self>() });
        }
        // SAFETY: they are as many as they should be and aligned, and every bit pattern is a message.
        Ok(unsafe { &*bytes.as_ptr().cast::<Self>() })
    }

    /// The message that these bytes are, wherever they lie.
    fn read_from(bytes: &[u8]) -> Result<Self> {
        if bytes.len() != size_of::<Self>() {
            return Err(Error::WrongLength { expected: size_of::<Self>(), found: bytes.len() });
        }
        // SAFETY: they are as many as they should be, and every bit pattern is a message.
        Ok(unsafe { bytes.as_ptr().cast::<Self>().read_unaligned() })
    }
}

// SAFETY: it has no bytes.
unsafe impl Message for () {
    const LAYOUT: &'static MessageLayout = &MessageLayout {
        name: "Nothing",
        id: type_id("Nothing", &[]),
        size: 0,
        fields: &[],
        wgsl: "struct Nothing {\n    nothing: u32,\n}\n",
    };
}
