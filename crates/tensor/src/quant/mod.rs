//! Numbers in eight bits: what they stand for, and how that is found out.
//!
//! A number `q` from -128 to 127 stands for `(q - zero point) x scale`. [`Parameters`] are the scales and zero points, one
//! for a whole tensor or one for every channel; [`Calibration`] finds them from numbers that were seen; a
//! [`Quantized`](crate::Quantized) is a tensor of such numbers. [`Accuracy`] says what was lost.
//!
//! ```
//! use millrace::tensor::{Tensors, quant::{Calibration, Parameters, Scheme}};
//! let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
//! let x = tensors.rand(&[32, 64], 1)?;
//! let w = tensors.rand(&[64, 16], 2)?.sub(0.5)?;
//! let of_x = Parameters::calibrate(&x, Scheme::affine(), Calibration::MinMax)?;
//! let of_w = Parameters::calibrate(&w, Scheme::symmetric().per_channel(1), Calibration::MinMax)?;
//! let y = x.quantize(&of_x)?.matmul(&w.quantize(&of_w)?)?;
//! let accuracy = y.accuracy_against(&x.matmul(&w)?)?;
//! assert!(accuracy.signal_to_noise_db > 30.0, "{accuracy:?}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod accuracy;
mod calibrate;
mod histogram;
mod invalid;
mod parameters;
pub(crate) mod quantized;

pub use accuracy::Accuracy;
pub use calibrate::{Calibration, Calibrator};
pub use invalid::Invalid;
pub(crate) use parameters::Channel;
pub use parameters::{Parameters, Scheme};
