//! Inputs: the same numbers as a tensor on the device and as an array on the host, through the same views.

use super::reference::Array;
use crate::{DType, Result, Tensor, Tensors};

/// The kinds of inputs that every operation is tried with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    Random,
    Empty,
    One,
    NonContiguous,
    Broadcast,
    Special,
    Large,
}

impl Case {
    pub(crate) const ALL: [Self; 7] =
        [Self::Random, Self::Empty, Self::One, Self::NonContiguous, Self::Broadcast, Self::Special, Self::Large];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Empty => "empty",
            Self::One => "one",
            Self::NonContiguous => "non-contiguous",
            Self::Broadcast => "broadcast",
            Self::Special => "nan and inf",
            Self::Large => "large",
        }
    }
}

/// Steele, Lea and Flood's splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    /// From `low` to `high`.
    pub(crate) fn number(&mut self, (low, high): (f64, f64)) -> f64 {
        low + (high - low) * (self.bits() >> 11) as f64 * 2f64.powi(-53)
    }
}

/// An input on both sides.
pub(crate) struct Sample {
    pub(crate) tensor: Tensor,
    pub(crate) array: Array,
}

/// Makes samples for one device.
pub(crate) struct Samples<'a> {
    pub(crate) tensors: &'a Tensors,
    pub(crate) random: Random,
    /// Elements of a large input.
    pub(crate) large: usize,
    /// Whether the device keeps numbers below the smallest normal one.
    pub(crate) subnormals: bool,
}

/// Where random numbers come from, and whether very large ones are part of the special ones.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Domain {
    pub(crate) range: (f64, f64),
    pub(crate) huge: bool,
}

impl Samples<'_> {
    fn numbers(&mut self, n: usize, dtype: DType, domain: Domain, special: bool) -> Vec<f64> {
        let one = |random: &mut Random| match dtype {
            DType::F32 | DType::Complex => f64::from(random.number(domain.range) as f32),
            DType::I32 => random.number((-1e3, 1e3)).round(),
            DType::Bool => (random.bits() & 1) as f64,
        };
        let mut all: Vec<f64> = (0..n).map(|_| one(&mut self.random)).collect();
        if special {
            let mut list = match dtype {
                DType::F32 => vec![f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, 1.0, -1.0, 0.5, -2.0, 3.0],
                DType::I32 => vec![f64::from(i32::MAX), f64::from(i32::MIN), 0.0, -1.0, 1.0, 46341.0],
                DType::Bool | DType::Complex => vec![],
            };
            if dtype == DType::F32 && domain.huge {
                list.extend([3e38, -3e38, 1e20, -1e-20, 1.2e-38, 100.5].map(|x| f64::from(x as f32)));
            }
            if dtype == DType::F32 && self.subnormals {
                list.extend([1e-40, -1e-45].map(|x| f64::from(x as f32)));
            }
            // Every third is special, the list over and over, so that pairs meet in many ways.
            for (i, x) in all.iter_mut().enumerate().filter(|(i, _)| i % 3 != 1 && !list.is_empty()) {
                *x = list[(i * 7 + i / 5) % list.len()];
            }
        }
        all
    }

    /// The array of a complex sample has the two parts along an axis more.
    fn base(&mut self, shape: &[usize], dtype: DType, domain: Domain, special: bool) -> Result<Sample> {
        if dtype == DType::Complex {
            let mut parts = self.base(&[shape, &[2]].concat(), DType::F32, domain, special)?;
            parts.tensor = parts.tensor.view_as_complex()?;
            return Ok(parts);
        }
        let data = self.numbers(shape.iter().product(), dtype, domain, special);
        let tensor = match dtype {
            DType::F32 | DType::Complex => self.tensors.from_vec(data.iter().map(|&x| x as f32).collect(), shape)?,
            DType::I32 => self.tensors.from_vec(data.iter().map(|&x| x as i32).collect(), shape)?,
            DType::Bool => self.tensors.from_slice(&data.iter().map(|&x| x != 0.0).collect::<Vec<_>>(), shape)?,
        };
        Ok(Sample { tensor, array: Array { shape: shape.to_vec(), data } })
    }

    /// Contiguous, of a given shape.
    pub(crate) fn shaped(&mut self, shape: &[usize], dtype: DType, domain: Domain) -> Result<Sample> {
        self.base(shape, dtype, domain, false)
    }

    /// A transposed, sliced and turned view of a given shape.
    pub(crate) fn tangled(&mut self, shape: &[usize], dtype: DType, domain: Domain, special: bool) -> Result<Sample> {
        // The base has its axes backwards, every one longer than needed.
        let backwards: Vec<usize> = shape.iter().rev().map(|dim| 2 * dim + 1).collect();
        let order: Vec<usize> = (0..shape.len()).rev().collect();
        let mut s = self.base(&backwards, dtype, domain, special)?;
        s.tensor = s.tensor.permute(&order.iter().map(|&axis| axis as isize).collect::<Vec<_>>())?;
        s.array = s.array.permute(&order);
        for (axis, &dim) in shape.iter().enumerate() {
            let (start, end, step) = if axis % 2 == 0 { (1, 1 + 2 * dim, -2) } else { (0, dim, 1) };
            s.tensor = s.tensor.slice_step(axis as isize, start..end, step)?;
            s.array = s.array.slice(axis, start, end, step);
        }
        Ok(s)
    }

    /// A view that repeats elements along its second axis.
    fn repeated(&mut self, dtype: DType, domain: Domain) -> Result<Sample> {
        let mut s = self.base(&[5, 1, 6], dtype, domain, false)?;
        s.tensor = s.tensor.expand(&[2, 5, 4, 6])?;
        s.array = s.array.expand(&[2, 5, 4, 6]);
        Ok(s)
    }

    /// The input of a case, for operations that take any shape.
    pub(crate) fn any(&mut self, case: Case, dtype: DType, domain: Domain) -> Result<Sample> {
        match case {
            Case::Random => self.base(&[7, 33], dtype, domain, false),
            Case::Empty => self.base(&[3, 0, 2], dtype, domain, false),
            Case::One => self.base(&[1], dtype, domain, false),
            Case::NonContiguous => self.tangled(&[5, 4, 9], dtype, domain, false),
            Case::Broadcast => self.repeated(dtype, domain),
            Case::Special => self.base(&[17, 12], dtype, domain, true),
            Case::Large => self.base(&[self.large], dtype, domain, false),
        }
    }

    /// The second input of a case, for operations on pairs.
    pub(crate) fn partner(&mut self, case: Case, dtype: DType, domain: Domain) -> Result<Sample> {
        match case {
            Case::Empty => self.base(&[1, 2], dtype, domain, false),
            Case::Broadcast => self.base(&[4, 1], dtype, domain, false),
            Case::Special => self.tangled(&[17, 12], dtype, domain, true),
            Case::NonContiguous => {
                let mut s = self.tangled(&[9, 4, 5], dtype, domain, false)?;
                (s.tensor, s.array) = (s.tensor.permute(&[2, 1, 0])?, s.array.permute(&[2, 1, 0]));
                Ok(s)
            }
            _ => self.any(case, dtype, domain),
        }
    }
}
