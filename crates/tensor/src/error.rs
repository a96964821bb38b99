//! What can be wrong with an operation, with both sides named.

use millrace_core::Class;

use crate::{DType, layout::Shape};

/// The answer of every fallible call.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything a tensor can answer instead of a result.
///
/// ```
/// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
/// let (a, b) = (tensors.zeros(&[2, 3])?, tensors.zeros(&[2, 4])?);
/// let error = a.add(&b).unwrap_err();
/// assert_eq!(error.to_string(), "add: shapes [2, 3] and [2, 4] do not broadcast");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two shapes that do not go together.
    #[error("{op}: shapes {left:?} and {right:?} {why}")]
    Shapes {
        /// The operation.
        op: &'static str,
        /// The first operand's shape.
        left: Box<[usize]>,
        /// The second's, or what was asked for.
        right: Box<[usize]>,
        /// What they do not do.
        why: &'static str,
    },
    /// Two element types that do not go together.
    #[error("{op}: element types {left} and {right} differ; cast one of them")]
    DTypes {
        /// The operation.
        op: &'static str,
        /// The first operand's type.
        left: DType,
        /// The second's.
        right: DType,
    },
    /// An element type that the operation does not take.
    #[error("{op}: takes {takes}, not {given}")]
    DType {
        /// The operation.
        op: &'static str,
        /// What it was given.
        given: DType,
        /// What it takes.
        takes: &'static str,
    },
    /// An axis that the tensor does not have, or one that is named twice.
    #[error("{op}: axis {axis} of shape {shape:?} {why}")]
    Axis {
        /// The operation.
        op: &'static str,
        /// The axis.
        axis: isize,
        /// The tensor's shape.
        shape: Box<[usize]>,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A range that is not inside an axis.
    #[error("{op}: range {start}..{end} is not inside axis {axis} of shape {shape:?}")]
    Range {
        /// The operation.
        op: &'static str,
        /// First index.
        start: usize,
        /// Last index, exclusive.
        end: usize,
        /// The axis.
        axis: usize,
        /// The tensor's shape.
        shape: Box<[usize]>,
    },
    /// As many elements as were given do not make that shape.
    #[error("{op}: {given} elements do not fill shape {shape:?}, which has {expected}")]
    Elements {
        /// The operation.
        op: &'static str,
        /// Elements there are.
        given: usize,
        /// Elements the shape has.
        expected: usize,
        /// The shape.
        shape: Box<[usize]>,
    },
    /// A largest or smallest of nothing.
    #[error("{op}: of no elements, along axes of length zero of shape {shape:?}")]
    Empty {
        /// The operation.
        op: &'static str,
        /// The tensor's shape.
        shape: Box<[usize]>,
    },
    /// More axes than a tensor can have.
    #[error("{op}: {rank} axes are more than {limit}")]
    Rank {
        /// The operation.
        op: &'static str,
        /// How many there would be.
        rank: usize,
        /// How many there can be.
        limit: usize,
    },
    /// More elements than can be counted in 31 bits.
    #[error("{op}: {elements} elements are more than {}", i32::MAX)]
    TooLarge {
        /// The operation.
        op: &'static str,
        /// How many there would be, as far as that can be counted.
        elements: usize,
    },
    /// Operands that live in different places.
    #[error("{op}: the operands were made by different `Tensors`")]
    Strangers {
        /// The operation.
        op: &'static str,
    },
    /// A network without inputs, hidden units or layers.
    #[error("{op}: {input} inputs, {hidden} hidden units and {layers} layers; of each there has to be at least one")]
    Network {
        /// The operation.
        op: &'static str,
        /// Inputs of a step.
        input: usize,
        /// Hidden units.
        hidden: usize,
        /// Layers.
        layers: usize,
    },
    /// A number that an operation cannot be told: a stride of zero, say.
    #[error("{op}: {name} {value} {why}")]
    Setting {
        /// The operation.
        op: &'static str,
        /// What it is called.
        name: &'static str,
        /// What it was.
        value: Box<str>,
        /// What is wrong with it.
        why: &'static str,
    },
    /// An algorithm that was asked for and cannot do it.
    #[error("{op}: {algorithm} {why}")]
    Algorithm {
        /// The operation.
        op: &'static str,
        /// The algorithm.
        algorithm: &'static str,
        /// What it does not do.
        why: &'static str,
    },
    /// Arrays that are no sparse matrix.
    #[error(transparent)]
    Sparse(#[from] crate::sparse::Invalid),
    /// An operation whose results a check found to differ from the CPU's.
    #[error("{0}")]
    Differs(Box<crate::check::Mismatch>),
    /// Scales, zero points or shapes that numbers in eight bits cannot have.
    #[error(transparent)]
    Quant(#[from] crate::quant::Invalid),
    /// What the device answered.
    #[error(transparent)]
    Device(#[from] millrace_core::Error),
}

impl Error {
    /// What to do about it.
    pub fn class(&self) -> Class {
        match self {
            Self::Device(error) => error.class(),
            Self::Differs(_) => Class::Fatal,
            _ => Class::Caller,
        }
    }
}

impl From<Box<millrace_core::Rejected>> for Error {
    fn from(rejected: Box<millrace_core::Rejected>) -> Self {
        Self::Device(rejected.error)
    }
}

impl From<Shape> for Box<[usize]> {
    fn from(shape: Shape) -> Self {
        (*shape).into()
    }
}
