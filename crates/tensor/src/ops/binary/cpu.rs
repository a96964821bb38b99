//! Every binary operation: its code for the CPU, and beside it what it is in WGSL.

use super::Entry;
use crate::{
    cpu::map::{self, Map},
    dtype::Element,
    math,
};

macro_rules! binary {
    ($($variant:ident $name:literal $from:ty => $to:ty, $cost:literal, $a:ident $b:ident => $cpu:expr, $wgsl:literal;)+) => {
        /// One operation for one element type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Binary {
            $($variant,)+
        }

        pub(crate) const TABLE: &[Entry] = &[$(Entry {
            name: $name,
            from: <$from>::DTYPE,
            to: <$to>::DTYPE,
            expression: $wgsl,
            cpu: map::kernel::<$variant, 2>,
        },)+];

        $(
            enum $variant {}
            impl Map<2> for $variant {
                type In = <$from as Element>::Word;
                type Out = <$to as Element>::Word;
                const COST: f64 = $cost;
                #[inline(always)]
                fn apply([$a, $b]: [Self::In; 2]) -> Self::Out {
                    $cpu
                }
            }
        )+
    };
}
binary! {
    Add "add" f32 => f32, 0.4, a b => a + b, "a + b";
    AddI32 "add" i32 => i32, 0.4, a b => a.wrapping_add(b), "a + b";
    Sub "sub" f32 => f32, 0.4, a b => a - b, "a - b";
    SubI32 "sub" i32 => i32, 0.4, a b => a.wrapping_sub(b), "a - b";
    Mul "mul" f32 => f32, 0.4, a b => a * b, "a * b";
    MulI32 "mul" i32 => i32, 0.4, a b => a.wrapping_mul(b), "a * b";
    Div "div" f32 => f32, 0.5, a b => a / b, "a / b";
    Max "max" f32 => f32, 0.4, a b => math::max(a, b), "max_(a, b)";
    MaxI32 "max" i32 => i32, 0.4, a b => a.max(b), "max(a, b)";
    Min "min" f32 => f32, 0.4, a b => math::min(a, b), "min_(a, b)";
    MinI32 "min" i32 => i32, 0.4, a b => a.min(b), "min(a, b)";
    Pow "pow" f32 => f32, 3.0, a b => math::pow(a, b), "pow_(a, b)";
    Rem "rem" f32 => f32, 8.0, a b => math::rem(a, b), "rem_(a, b)";
    RemI32 "rem" i32 => i32, 3.0, a b => math::rem_i32(a, b), "rem_i32(a, b)";
    Eq "eq" f32 => bool, 0.4, a b => u32::from(a == b), "select(0u, 1u, a == b && !unordered(a, b))";
    EqI32 "eq" i32 => bool, 0.4, a b => u32::from(a == b), "select(0u, 1u, a == b)";
    EqBool "eq" bool => bool, 0.4, a b => u32::from(a == b), "select(0u, 1u, a == b)";
    Ne "ne" f32 => bool, 0.4, a b => u32::from(a != b), "select(0u, 1u, a != b || unordered(a, b))";
    NeI32 "ne" i32 => bool, 0.4, a b => u32::from(a != b), "select(0u, 1u, a != b)";
    NeBool "ne" bool => bool, 0.4, a b => u32::from(a != b), "select(0u, 1u, a != b)";
    Lt "lt" f32 => bool, 0.4, a b => u32::from(a < b), "select(0u, 1u, a < b && !unordered(a, b))";
    LtI32 "lt" i32 => bool, 0.4, a b => u32::from(a < b), "select(0u, 1u, a < b)";
    Le "le" f32 => bool, 0.4, a b => u32::from(a <= b), "select(0u, 1u, a <= b && !unordered(a, b))";
    LeI32 "le" i32 => bool, 0.4, a b => u32::from(a <= b), "select(0u, 1u, a <= b)";
    Gt "gt" f32 => bool, 0.4, a b => u32::from(a > b), "select(0u, 1u, a > b && !unordered(a, b))";
    GtI32 "gt" i32 => bool, 0.4, a b => u32::from(a > b), "select(0u, 1u, a > b)";
    Ge "ge" f32 => bool, 0.4, a b => u32::from(a >= b), "select(0u, 1u, a >= b && !unordered(a, b))";
    GeI32 "ge" i32 => bool, 0.4, a b => u32::from(a >= b), "select(0u, 1u, a >= b)";
    AndBool "and" bool => bool, 0.4, a b => a & b, "a & b";
    OrBool "or" bool => bool, 0.4, a b => a | b, "a | b";
    XorBool "xor" bool => bool, 0.4, a b => a ^ b, "a ^ b";
}
