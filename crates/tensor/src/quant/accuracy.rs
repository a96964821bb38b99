//! What eight bits lost.

use crate::{DType, Error, Quantized, Result, Tensor};

/// How far numbers are from those that they should be. Computed on the host, in `f64`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Accuracy {
    /// The power of what should be over the power of the error, in decibels; infinite if there is no error.
    pub signal_to_noise_db: f64,
    /// The largest error.
    pub largest: f64,
    /// The mean of the errors' magnitudes.
    pub mean: f64,
    /// The cosine of the angle between both, seen as vectors; one if they are the same.
    pub cosine: f64,
}

impl Accuracy {
    fn between(got: &[f32], want: &[f32]) -> Self {
        let (mut signal, mut power, mut noise, mut dot) = (0.0, 0.0, 0.0, 0.0);
        let (mut largest, mut sum) = (0.0f64, 0.0);
        for (&got, &want) in got.iter().zip(want) {
            let (got, want) = (f64::from(got), f64::from(want));
            let error = got - want;
            (signal, power, noise) = (signal + want * want, power + got * got, noise + error * error);
            (dot, sum) = (dot + got * want, sum + error.abs());
            largest = if error.abs() > largest || error.is_nan() { error.abs() } else { largest };
        }
        let same = noise == 0.0;
        Self {
            signal_to_noise_db: if same { f64::INFINITY } else { 10.0 * (signal / noise).log10() },
            largest,
            mean: if got.is_empty() { 0.0 } else { sum / got.len() as f64 },
            cosine: if same { 1.0 } else { dot / (signal * power).sqrt() },
        }
    }
}

impl Tensor {
    /// How far it is from what it should be.
    ///
    /// ```
    /// # let tensors = millrace::tensor::Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let (got, want) = (tensors.from_slice(&[1.0f32, 2.5], &[2])?, tensors.from_slice(&[1.0f32, 2.0], &[2])?);
    /// let accuracy = got.accuracy_against(&want)?;
    /// assert_eq!((accuracy.largest, accuracy.mean), (0.5, 0.25));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn accuracy_against(&self, want: &Self) -> Result<Accuracy> {
        let op = "accuracy_against";
        for given in [self.dtype(), want.dtype()] {
            if given != DType::F32 {
                return Err(Error::DType { op, given, takes: "f32" });
            }
        }
        if self.shape() != want.shape() {
            return Err(Error::Shapes { op, left: self.shape().into(), right: want.shape().into(), why: "differ" });
        }
        Ok(Accuracy::between(&self.to_vec()?, &want.to_vec()?))
    }
}

impl Quantized {
    /// How far the numbers that it stands for are from what they should be.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, quant::Parameters};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let x = tensors.from_slice(&[0.0f32, 0.5, 1.25], &[3])?;
    /// let q = x.quantize(&Parameters::new(vec![0.5], vec![0], None)?)?;
    /// assert_eq!(q.accuracy_against(&x)?.largest, 0.25);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn accuracy_against(&self, want: &Tensor) -> Result<Accuracy> {
        self.dequantize()?.accuracy_against(want)
    }
}
