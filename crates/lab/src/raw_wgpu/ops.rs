//! Operations as one would write them by hand for just these shapes.

use super::{Call, Raw};
use crate::Result;

/// Elements of a `vec4`.
const WIDE: usize = 4;

/// From how many elements on an array is large.
const LARGE: usize = 1 << 16;

/// Launches that are recorded into one pass and submitted together, and the buffers their results are in.
#[derive(Debug)]
pub struct Operation {
    raw: Raw,
    calls: Vec<Call>,
    outputs: Vec<wgpu::Buffer>,
}

impl Operation {
    /// Runs it and waits.
    pub fn run(&mut self) -> Result<()> {
        self.raw.run(&self.calls)
    }

    /// The results.
    pub fn outputs(&self) -> Result<Vec<Vec<f32>>> {
        self.outputs.iter().map(|buffer| self.raw.floats_of(buffer)).collect()
    }

    /// A launch that does nothing.
    pub fn empty(raw: &Raw) -> Result<Self> {
        let kernel = raw.kernel("@compute @workgroup_size(1) fn main() {}", 0, 0)?;
        let calls = vec![raw.call(&kernel, &[], &[], [1, 1, 1])?];
        Ok(Self { raw: raw.clone(), calls, outputs: Vec::new() })
    }

    /// `max(x, 0)` of several arrays. Those of more than 65,536 elements have a multiple of four.
    pub fn relus(raw: &Raw, inputs: &[Vec<f32>]) -> Result<Self> {
        let small = raw.kernel(super::RELU, 2, 4)?;
        let large = raw.kernel(include_str!("relu4.wgsl"), 2, 4)?;
        let (mut calls, mut outputs) = (Vec::new(), Vec::new());
        for input in inputs {
            let x = raw.floats(input)?;
            let y = raw.buffer(x.size(), wgpu::BufferUsages::empty());
            calls.push(match input.len() {
                n if n > LARGE => raw.call(&large, &[&x, &y], &[(n / WIDE) as u32], groups(n / WIDE, 1024))?,
                n => raw.call(&small, &[&x, &y], &[n as u32], groups(n, 256))?,
            });
            outputs.push(y);
        }
        Ok(Self { raw: raw.clone(), calls, outputs })
    }

    /// `a + b`, of a multiple of four elements.
    pub fn add(raw: &Raw, a: &[f32], b: &[f32]) -> Result<Self> {
        let kernel = raw.kernel(include_str!("add4.wgsl"), 3, 4)?;
        let (a, b, n) = (raw.floats(a)?, raw.floats(b)?, a.len() / WIDE);
        let output = raw.buffer(a.size(), wgpu::BufferUsages::empty());
        let calls = vec![raw.call(&kernel, &[&a, &b, &output], &[n as u32], groups(n, 1024))?];
        Ok(Self { raw: raw.clone(), calls, outputs: vec![output] })
    }

    /// The sum of a multiple of four elements: one launch if they are few, three if they are many.
    pub fn sum(raw: &Raw, x: &[f32]) -> Result<Self> {
        let kernel = raw.kernel(include_str!("sum4.wgsl"), 2, 8)?;
        let n = (x.len() / WIDE) as u32;
        let x = raw.floats(x)?;
        let parts = |threads: u64| raw.buffer(4 * threads, wgpu::BufferUsages::empty());
        let (many, few, output) = (parts(4096), parts(64), parts(1));
        let calls = if n <= 64 {
            vec![raw.call(&kernel, &[&x, &output], &[n, 1], [1, 1, 1])?]
        } else {
            vec![
                raw.call(&kernel, &[&x, &many], &[n, 4096], [16, 1, 1])?,
                raw.call(&kernel, &[&many, &few], &[1024, 64], [1, 1, 1])?,
                raw.call(&kernel, &[&few, &output], &[16, 1], [1, 1, 1])?,
            ]
        };
        Ok(Self { raw: raw.clone(), calls, outputs: vec![output] })
    }

    /// The product of two matrices of `size` rows and columns, a multiple of eight.
    pub fn matmul(raw: &Raw, a: &[f32], b: &[f32], size: usize) -> Result<Self> {
        let kernel = raw.kernel(include_str!("matmul.wgsl"), 3, 12)?;
        let (a, b) = (raw.floats(a)?, raw.floats(b)?);
        let output = raw.buffer(a.size(), wgpu::BufferUsages::empty());
        // A group has eight by eight threads.
        let (n, groups) = (size as u32, size.div_ceil(8 * 8) as u32);
        let calls = vec![raw.call(&kernel, &[&a, &b, &output], &[n, n, n], [groups, groups, 1])?];
        Ok(Self { raw: raw.clone(), calls, outputs: vec![output] })
    }
}

fn groups(count: usize, each: usize) -> [u32; 3] {
    [count.div_ceil(each) as u32, 1, 1]
}
