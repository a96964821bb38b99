//! The element types.

use std::fmt;

use bytemuck::Pod;

/// What a tensor's elements are. Every element takes four bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit floating point.
    F32,
    /// 32-bit signed integer; arithmetic wraps.
    I32,
    /// True or false, stored as one or zero in 32 bits.
    Bool,
}

impl DType {
    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::I32 => "i32",
            Self::Bool => "bool",
        }
    }

    /// What WGSL stores it as.
    pub(crate) fn wgsl(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::I32 => "i32",
            Self::Bool => "u32",
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for i32 {}
    impl Sealed for bool {}
}

/// A Rust type that is an element type of tensors: `f32`, `i32` or `bool`.
pub trait Element: Copy + PartialEq + fmt::Debug + Send + Sync + sealed::Sealed + 'static {
    /// Its element type.
    const DTYPE: DType;
    /// What it is stored as.
    type Word: Pod + Send + Sync;
    /// As it is stored.
    fn to_word(self) -> Self::Word;
    /// From what is stored.
    fn from_word(word: Self::Word) -> Self;
    /// Its 32 bits as they are stored.
    fn to_bits(self) -> u32 {
        bytemuck::cast_slice(&[self.to_word()])[0]
    }
}

macro_rules! elements {
    ($($type:ty, $dtype:ident, $word:ty, $to:expr, $from:expr;)+) => {$(
        impl Element for $type {
            const DTYPE: DType = DType::$dtype;
            type Word = $word;
            #[inline]
            fn to_word(self) -> $word {
                ($to)(self)
            }
            #[inline]
            fn from_word(word: $word) -> Self {
                ($from)(word)
            }
        }
    )+};
}
elements! {
    f32, F32, f32, std::convert::identity, std::convert::identity;
    i32, I32, i32, std::convert::identity, std::convert::identity;
    bool, Bool, u32, u32::from, |word: u32| word != 0;
}
