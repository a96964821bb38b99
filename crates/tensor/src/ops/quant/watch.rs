//! Numbers in eight bits for whoever compares operations with the CPU's: as tensors of integers.

use crate::{
    Quantized, Result, Tensor, Tensors,
    check::{Call, Scales},
};

/// An operand or a result.
pub(super) enum Shown<'a> {
    Numbers(&'a Tensor),
    EightBits(&'a Quantized),
}

impl Shown<'_> {
    fn tensor(&self) -> Result<Tensor> {
        match self {
            Self::Numbers(tensor) => Ok((*tensor).clone()),
            Self::EightBits(quantized) => as_integers(quantized, quantized.tensors()),
        }
    }
}

/// The numbers as integers, in some place.
pub(crate) fn as_integers(quantized: &Quantized, tensors: &Tensors) -> Result<Tensor> {
    let numbers: Vec<i32> = quantized.to_vec()?.into_iter().map(i32::from).collect();
    tensors.from_slice(&numbers, quantized.shape())
}

/// Integers as numbers in eight bits.
pub(crate) fn as_eight_bits(integers: &Tensor, scales: &Scales) -> Result<Quantized> {
    let numbers: Vec<i8> = integers.to_vec::<i32>()?.into_iter().map(|n| n as i8).collect();
    integers.tensors().quantized(&numbers, integers.shape(), &scales.parameters()?)
}

/// Shows an operation, if somebody looks.
pub(super) fn watch(tensors: &Tensors, call: impl FnOnce() -> Call, inputs: &[Shown<'_>], out: &Shown<'_>) {
    if tensors.check().is_none_or(|check| check.first().is_some()) {
        return;
    }
    let show = || -> Result<()> {
        let inputs = inputs.iter().map(Shown::tensor).collect::<Result<Vec<_>>>()?;
        tensors.watch(call, &inputs.iter().collect::<Vec<_>>(), &out.tensor()?);
        Ok(())
    };
    if let Err(error) = show() {
        tracing::debug!(%error, "numbers in eight bits could not be checked");
    }
}
