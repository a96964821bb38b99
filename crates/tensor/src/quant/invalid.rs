//! What can be wrong with numbers in eight bits.

/// Why a tensor cannot be quantized, or quantized tensors cannot be multiplied.
///
/// ```
/// use millrace::tensor::{Error, quant::{Invalid, Parameters}};
/// let error = Parameters::new(vec![0.5, 0.0], vec![0, 0], Some(0)).unwrap_err();
/// assert_eq!(error, Error::Quant(Invalid::Scale { index: 1, scale: 0.0 }));
/// assert_eq!(error.to_string(), "scale 1 is 0, not a positive number whose inverse is one, too");
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Invalid {
    /// A scale that is zero, negative, infinite, NaN, or too small or too large to be divided by.
    #[error("scale {index} is {scale}, not a positive number whose inverse is one, too")]
    Scale {
        /// Which one.
        index: usize,
        /// What it is.
        scale: f32,
    },
    /// A zero point that eight bits do not hold.
    #[error("zero point {index} is {zero_point}, not within -128..=127")]
    ZeroPoint {
        /// Which one.
        index: usize,
        /// What it is.
        zero_point: i32,
    },
    /// Arrays whose lengths do not go together.
    #[error("there are {given} {what}, not {expected}")]
    Length {
        /// Which array.
        what: &'static str,
        /// Its length.
        given: usize,
        /// The length it has to have.
        expected: usize,
    },
    /// A share of elements to keep that is none.
    #[error("percentile {percentile} is not above 0 and at most 100")]
    Percentile {
        /// What was asked for.
        percentile: f64,
    },
    /// Numbers to calibrate with that are infinite or NaN.
    #[error("channel {channel} goes from {low} to {high}, and only finite numbers can be calibrated with")]
    Range {
        /// Which channel.
        channel: usize,
        /// The smallest number.
        low: f32,
        /// The largest.
        high: f32,
    },
    /// Tensors of one calibration whose channels are not equally many.
    #[error("channels were {before}, and are {now} now")]
    Channels {
        /// How many there were at first.
        before: usize,
        /// How many there are.
        now: usize,
    },
    /// A calibration that has seen no number.
    #[error("nothing was seen to calibrate with")]
    Nothing,
    /// Scales that differ along an axis where they must not.
    #[error("{op}: scales along axis {axis} of shape {shape:?} are not the same for a whole sum")]
    Axis {
        /// The operation.
        op: &'static str,
        /// The axis.
        axis: usize,
        /// The operand's shape.
        shape: Box<[usize]>,
    },
    /// Sums that may be larger than 32 bits hold.
    #[error("{op}: sums of {depth} products may not fit into 32 bits; with these zero points at most {limit} do")]
    Depth {
        /// The operation.
        op: &'static str,
        /// Products of a sum.
        depth: usize,
        /// As many as fit for certain.
        limit: usize,
    },
}
