//! What is done, and what must come out.

use crate::{Error, Result};

/// Numbers between -1 and 1, always the same for a seed.
///
/// ```
/// let numbers = millrace_lab::gpu::numbers(1000, 7);
/// assert!(numbers.iter().all(|n| (-1.0..1.0).contains(n)));
/// assert_eq!(numbers, millrace_lab::gpu::numbers(1000, 7));
/// ```
pub fn numbers(count: usize, seed: u64) -> Vec<f32> {
    // xorshift64*
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// Something to do on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Task {
    /// A launch that does nothing.
    Empty,
    /// `max(x, 0)` of several arrays, one operation each, waited for together.
    Relus {
        /// How many.
        count: usize,
        /// Elements of each.
        len: usize,
    },
    /// `a + b` of so many elements.
    Add(usize),
    /// The sum of so many elements.
    Sum(usize),
    /// The product of two square matrices with so many rows.
    Matmul(usize),
    /// So many bytes to the device. It is over when their last word came back from there.
    Upload(usize),
    /// So many bytes from the device. It is over when a byte of every page was read.
    Download(usize),
}

/// A task that is ready to run.
pub trait Job {
    /// Does it once and waits for the device.
    fn run(&mut self) -> Result<()>;
    /// Whether the last run brought what it should.
    fn check(&mut self) -> Result<()>;
}

impl Task {
    /// The numbers it works on.
    pub fn inputs(&self) -> Vec<Vec<f32>> {
        match *self {
            Self::Relus { count, len } => (0..count).map(|n| numbers(len, n as u64 + 1)).collect(),
            Self::Add(len) => vec![numbers(len, 1), numbers(len, 2)],
            Self::Sum(len) => vec![numbers(len, 1)],
            Self::Matmul(size) => vec![numbers(size * size, 1), numbers(size * size, 2)],
            Self::Empty | Self::Upload(_) | Self::Download(_) => Vec::new(),
        }
    }

    /// Whether these are the right results.
    pub fn check(&self, outputs: &[Vec<f32>]) -> Result<()> {
        let inputs = self.inputs();
        let wrong = |at: usize, got: f32, expected: f64| {
            Err(Error::Wrong(format!("{self:?}: element {at} is {got}, not {expected}")))
        };
        let near = |got: f32, expected: f64, by: f64| (f64::from(got) - expected).abs() <= by;
        match *self {
            Self::Relus { .. } | Self::Add(_) => {
                let expected: Vec<Vec<f32>> = match self {
                    Self::Add(_) => vec![inputs[0].iter().zip(&inputs[1]).map(|(a, b)| a + b).collect()],
                    _ => inputs.iter().map(|x| x.iter().map(|x| x.max(0.0)).collect()).collect(),
                };
                same(outputs.len(), expected.len())?;
                for (got, expected) in outputs.iter().zip(&expected) {
                    same(got.len(), expected.len())?;
                    if let Some(at) = got.iter().zip(expected).position(|(got, expected)| got != expected) {
                        return wrong(at, got[at], expected[at].into());
                    }
                }
                Ok(())
            }
            Self::Sum(len) => {
                let expected: f64 = inputs[0].iter().map(|x| f64::from(*x)).sum();
                let got = single(outputs)?;
                if near(got, expected, len as f64 * 1e-7 + 1e-5) { Ok(()) } else { wrong(0, got, expected) }
            }
            Self::Matmul(size) => {
                let got = outputs.first().map_or(&[][..], |output| output);
                same(got.len(), size * size)?;
                // Some of each row and column: all would take longer than the measurement.
                for at in (0..size * size).step_by((size * size / 256) | 1) {
                    let (row, column) = (at / size, at % size);
                    let product =
                        |k: usize| f64::from(inputs[0][row * size + k]) * f64::from(inputs[1][k * size + column]);
                    let expected = (0..size).map(product).sum();
                    if !near(got[at], expected, size as f64 * 1e-6) {
                        return wrong(at, got[at], expected);
                    }
                }
                Ok(())
            }
            Self::Empty | Self::Upload(_) | Self::Download(_) => Ok(()),
        }
    }
}

fn single(outputs: &[Vec<f32>]) -> Result<f32> {
    match outputs {
        [output] if output.len() == 1 => Ok(output[0]),
        other => Err(Error::Wrong(format!("{} results instead of one number", other.len()))),
    }
}

fn same(got: usize, expected: usize) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::Wrong(format!("{got} results instead of {expected}"))) }
}

/// Two payloads of the same size that take turns, so that bytes of an earlier upload are not taken for those of this one.
#[derive(Debug)]
pub(super) struct Payloads {
    both: [bytes::Bytes; 2],
    turn: usize,
}

impl Payloads {
    pub(super) fn new(bytes: usize) -> Self {
        let payload = |seed: u8| {
            let bytes: Vec<u8> = (0..bytes).map(|n| (n as u8).wrapping_mul(31).wrapping_add(seed)).collect();
            bytes::Bytes::from(bytes)
        };
        Self { both: [payload(1), payload(2)], turn: 0 }
    }

    /// The next payload, and its last word.
    pub(super) fn next(&mut self) -> (bytes::Bytes, u32) {
        self.turn ^= 1;
        let payload = self.both[self.turn].clone();
        let last = bytemuck::pod_read_unaligned(&payload[payload.len() - 4..]);
        (payload, last)
    }
}

/// Whether the word that came back is the one that was sent.
pub(super) fn arrived(got: u32, sent: u32) -> Result<()> {
    if got == sent { Ok(()) } else { Err(Error::Wrong(format!("{sent:#x} was uploaded and {got:#x} is there"))) }
}

/// Whether what was read is what is there.
pub(super) fn brought(got: u64, expected: u64) -> Result<()> {
    if got == expected { Ok(()) } else { Err(Error::Wrong(format!("bytes add up to {got}, not {expected}"))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_result_is_noticed() {
        let task = Task::Relus { count: 2, len: 8 };
        let right: Vec<Vec<f32>> = task.inputs().iter().map(|x| x.iter().map(|x| x.max(0.0)).collect()).collect();
        task.check(&right).unwrap();
        let mut wrong = right.clone();
        wrong[1][7] += 1.0;
        assert!(task.check(&wrong).unwrap_err().to_string().contains("element 7"));
        assert!(task.check(&right[..1]).is_err(), "one result is missing");

        let sum: f64 = Task::Sum(1000).inputs()[0].iter().map(|x| f64::from(*x)).sum();
        Task::Sum(1000).check(&[vec![sum as f32]]).unwrap();
        assert!(Task::Sum(1000).check(&[vec![sum as f32 + 0.1]]).is_err());
        assert!(Task::Matmul(16).check(&[vec![0.0; 256]]).is_err());
        assert!(arrived(1, 2).is_err() && brought(1, 2).is_err());
    }

    #[test]
    fn payloads_take_turns_and_differ_in_their_last_word() {
        let mut payloads = Payloads::new(64);
        let (first, second, third) = (payloads.next(), payloads.next(), payloads.next());
        assert_ne!(first.1, second.1);
        assert_eq!(first, third);
    }
}
