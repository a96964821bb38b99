//! Tensors: numeric operations with the same results on every device.
//!
//! [`Tensors`] makes them on a device, [`Tensor`] offers the operations. An operation checks shapes and element types,
//! takes an output buffer from the device's pool and hands a launch to the stream; nobody waits until
//! [`Tensor::to_vec`] asks for elements. Views (reshape, permute, slice, expand) share the buffer and copy nothing.
//!
//! This room knows operations and no hardware: a family of operations is a folder of [`ops`](self) with its shapes and
//! checks, its code for the CPU and its WGSL. It validates everything that a user can get wrong; what it hands to
//! `millrace-core` is checked there once more. Its `unsafe` code is the vector code of [`cpu`](self), the call of the
//! matrix multiplication, the products of eight bits, and what threads share: the lines of Fourier transforms, the tiles of
//! convolutions and the states of recurrent networks.
//!
//! ```
//! use millrace::tensor::Tensors;
//! let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
//! let a = tensors.from_slice(&[1.0, -2.0, 3.0, -4.0f32], &[2, 2])?;
//! let b = a.relu()?.add(&tensors.ones(&[2])?)?.matmul(&a.t()?)?;
//! assert_eq!(b.shape(), [2, 2]);
//! assert_eq!(b.to_vec::<f32>()?, [0.0, 2.0, 2.0, 8.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod check;
mod complex;
mod cpu;
mod dtype;
mod error;
mod layout;
mod math;
mod ops;
pub mod quant;
mod simd;
pub mod sparse;
mod tensor;
mod tensors;
pub mod tune;
pub mod validate;

pub use dtype::{DType, Element};
pub use error::{Error, Result};
pub use layout::{MAX_RANK, Shape};
pub use num_complex::Complex32;
pub use ops::{
    binary::Operand,
    conv::{Algorithm, Conv, PerAxis},
    fft::Norm,
    pool::Pool,
    recurrent::{Nonlinearity, Recurrent, RecurrentOutput, RecurrentState},
};
pub use quant::quantized::Quantized;
pub use simd::Simd;
pub use sparse::matrix::SparseMatrix;
pub use tensor::Tensor;
pub use tensors::Tensors;
