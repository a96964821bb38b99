//! Every unary operation: its code for the CPU, and beside it what it is in WGSL.

use super::Entry;
use crate::{
    cpu::map::{self, Map},
    dtype::Element,
    math,
};

macro_rules! unary {
    ($($variant:ident $name:literal $from:ty => $to:ty, $cost:literal, $x:ident => $cpu:expr, $wgsl:literal
        $(, repair $repair:path)?;)+) => {
        /// One operation for one element type.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(crate) enum Unary {
            $($variant,)+
        }

        pub(crate) const TABLE: &[Entry] = &[$(Entry {
            name: $name,
            from: <$from>::DTYPE,
            to: <$to>::DTYPE,
            expression: $wgsl,
            cpu: map::kernel::<$variant, 1>,
        },)+];

        $(
            enum $variant {}
            impl Map<1> for $variant {
                type In = <$from as Element>::Word;
                type Out = <$to as Element>::Word;
                const COST: f64 = $cost;
                #[inline(always)]
                fn apply([$x]: [Self::In; 1]) -> Self::Out {
                    $cpu
                }
                $(#[inline(always)]
                fn repair([x]: [&[Self::In]; 1], out: &mut [Self::Out]) {
                    $repair(x, out);
                })?
            }
        )+
    };
}
unary! {
    Neg "neg" f32 => f32, 0.3, x => -x, "-x";
    NegI32 "neg" i32 => i32, 0.3, x => x.wrapping_neg(), "-x";
    Abs "abs" f32 => f32, 0.3, x => x.abs(), "abs(x)";
    AbsI32 "abs" i32 => i32, 0.3, x => x.wrapping_abs(), "abs(x)";
    Exp "exp" f32 => f32, 0.5, x => math::exp_near(x), "exp_(x)", repair far_exp;
    Log "log" f32 => f32, 0.7, x => math::log(x), "log_(x)";
    Exp2 "exp2" f32 => f32, 0.5, x => math::exp2(x), "exp2_(x)";
    Log2 "log2" f32 => f32, 0.7, x => math::log2(x), "log2_(x)";
    Sqrt "sqrt" f32 => f32, 0.4, x => x.sqrt(), "sqrt(x)";
    Recip "recip" f32 => f32, 0.4, x => x.recip(), "1.0 / x";
    Sin "sin" f32 => f32, 0.7, x => math::sin(x), "sin_quadrant(x, 0)", repair far_sin;
    Cos "cos" f32 => f32, 0.7, x => math::cos(x), "sin_quadrant(x, 1)", repair far_cos;
    Tanh "tanh" f32 => f32, 0.8, x => math::tanh(x), "tanh_(x)";
    Sigmoid "sigmoid" f32 => f32, 0.8, x => math::sigmoid_near(x), "sigmoid_(x)", repair far_sigmoid;
    Relu "relu" f32 => f32, 0.3, x => if x < 0.0 { 0.0 } else { x }, "select(x, 0.0, is_negative(x))";
    ReluI32 "relu" i32 => i32, 0.3, x => x.max(0), "max(x, 0i)";
    Gelu "gelu" f32 => f32, 1.5, x => math::gelu(x), "gelu_(x)";
    NotBool "not" bool => bool, 0.3, x => u32::from(x == 0), "select(0u, 1u, x == 0u)";
    F32ToI32 "to_i32" f32 => i32, 0.3, x => x as i32, "to_i32(x)";
    F32ToBool "to_bool" f32 => bool, 0.3, x => u32::from(x != 0.0), "select(0u, 1u, x != 0.0 || is_nan(x))";
    I32ToF32 "to_f32" i32 => f32, 0.3, x => x as f32, "f32(x)";
    I32ToBool "to_bool" i32 => bool, 0.3, x => u32::from(x != 0), "select(0u, 1u, x != 0i)";
    BoolToF32 "to_f32" bool => f32, 0.3, x => x as f32, "f32(x)";
    BoolToI32 "to_i32" bool => i32, 0.3, x => x as i32, "i32(x)";
}

/// Whether a number is beyond what the vector code can take.
#[inline(always)]
fn any_beyond(x: &[f32], most: f32) -> bool {
    x.iter().fold(false, |far, x| far | (x.abs() > most))
}

/// Blocks with a number beyond [`math::NEAR`], all over again.
#[inline(always)]
fn beyond(x: &[f32], out: &mut [f32], any: impl Fn(f32) -> f32) {
    if any_beyond(x, math::NEAR) {
        out.iter_mut().zip(x).for_each(|(out, x)| *out = any(*x));
    }
}

#[inline(always)]
fn far_exp(x: &[f32], out: &mut [f32]) {
    beyond(x, out, math::exp);
}

#[inline(always)]
fn far_sigmoid(x: &[f32], out: &mut [f32]) {
    beyond(x, out, math::sigmoid);
}

/// Angles of more turns than the vector code can take, one by one.
#[inline(always)]
fn far(x: &[f32], out: &mut [f32], exact: fn(f64) -> f64) {
    if any_beyond(x, math::TURNS) {
        for (x, out) in x.iter().zip(out).filter(|(x, _)| x.abs() > math::TURNS) {
            *out = exact(f64::from(*x)) as f32;
        }
    }
}

#[inline(always)]
fn far_sin(x: &[f32], out: &mut [f32]) {
    far(x, out, f64::sin);
}

#[inline(always)]
fn far_cos(x: &[f32], out: &mut [f32]) {
    far(x, out, f64::cos);
}
