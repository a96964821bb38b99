//! The element types.

use std::fmt;

use bytemuck::Pod;
use num_complex::Complex32;

/// What a tensor's elements are. An element takes four bytes, a complex one eight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DType {
    /// 32-bit floating point.
    F32,
    /// 32-bit signed integer; arithmetic wraps.
    I32,
    /// True or false, stored as one or zero in 32 bits.
    Bool,
    /// Two `f32`: the real and the imaginary part. Made and read, viewed, copied, padded and transformed; arithmetic is
    /// that of its parts, see [`Tensor::real`](crate::Tensor::real).
    Complex,
}

impl DType {
    /// As users write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::I32 => "i32",
            Self::Bool => "bool",
            Self::Complex => "complex",
        }
    }

    /// What WGSL stores it as.
    pub(crate) fn wgsl(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::I32 => "i32",
            Self::Bool => "u32",
            Self::Complex => "vec2<f32>",
        }
    }

    /// Bytes of an element.
    #[inline]
    pub fn size(self) -> usize {
        if self == Self::Complex { 8 } else { 4 }
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
    impl Sealed for num_complex::Complex32 {}
}

/// A Rust type that is an element type of tensors: `f32`, `i32`, `bool` or `Complex32`.
pub trait Element: Copy + PartialEq + fmt::Debug + Send + Sync + sealed::Sealed + 'static {
    /// Its element type.
    const DTYPE: DType;
    /// What it is stored as.
    type Word: Pod + Send + Sync;
    /// As it is stored.
    fn to_word(self) -> Self::Word;
    /// From what is stored.
    fn from_word(word: Self::Word) -> Self;
    /// Its bits as they are stored, those of the first four bytes lowest.
    fn to_bits(self) -> u64 {
        let words = [self.to_word()];
        let halves = bytemuck::cast_slice::<_, u32>(&words);
        halves.iter().rev().fold(0, |bits, &half| bits << 32 | u64::from(half))
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
    Complex32, Complex, Complex32, std::convert::identity, std::convert::identity;
}
