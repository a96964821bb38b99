//! Operations as one would write them by hand for just these shapes.

use super::{Call, Raw};
use crate::Result;

/// A launch that does nothing.
#[derive(Debug)]
pub struct Empty {
    raw: Raw,
    calls: [Call; 1],
}

impl Empty {
    /// Makes the kernel.
    pub fn new(raw: &Raw) -> Result<Self> {
        let kernel = raw.kernel("@compute @workgroup_size(1) fn main() {}", 0, 0)?;
        let calls = [raw.call(&kernel, &[], &[], [1, 1, 1])?];
        Ok(Self { raw: raw.clone(), calls })
    }

    /// Launches it and waits.
    pub fn run(&mut self) -> Result<()> {
        self.raw.run(&self.calls)
    }
}

/// `max(x, 0)` of several arrays in one pass and one submission.
#[derive(Debug)]
pub struct Relus {
    raw: Raw,
    calls: Vec<Call>,
    outputs: Vec<wgpu::Buffer>,
}

/// Elements of one thread, of the kernel for large arrays.
const WIDE: usize = 4;

/// From how many elements on an array is large.
const LARGE: usize = 1 << 16;

impl Relus {
    /// Puts the inputs on the GPU. Those of more than 65,536 elements have a multiple of four.
    pub fn new(raw: &Raw, inputs: &[Vec<f32>]) -> Result<Self> {
        let (small, large) = (raw.kernel(include_str!("relu.wgsl"), 2, 4)?, raw.kernel(include_str!("relu4.wgsl"), 2, 4)?);
        let (mut calls, mut outputs) = (Vec::new(), Vec::new());
        for input in inputs {
            let x = raw.floats(input)?;
            let y = raw.buffer(x.size(), wgpu::BufferUsages::empty());
            calls.push(match input.len() {
                n if n > LARGE => raw.call(&large, &[&x, &y], &[(n / WIDE) as u32], groups(n / WIDE, 64))?,
                n => raw.call(&small, &[&x, &y], &[n as u32], groups(n, 256))?,
            });
            outputs.push(y);
        }
        Ok(Self { raw: raw.clone(), calls, outputs })
    }

    /// Runs them all and waits.
    pub fn run(&mut self) -> Result<()> {
        self.raw.run(&self.calls)
    }

    /// The results.
    pub fn outputs(&self) -> Result<Vec<Vec<f32>>> {
        self.outputs.iter().map(|buffer| self.raw.floats_of(buffer)).collect()
    }
}

/// `a + b`.
#[derive(Debug)]
pub struct Binary {
    raw: Raw,
    calls: [Call; 1],
    output: wgpu::Buffer,
}

impl Binary {
    /// Puts the inputs, whose length is a multiple of four, on the GPU.
    pub fn new(raw: &Raw, a: &[f32], b: &[f32]) -> Result<Self> {
        let kernel = raw.kernel(include_str!("add4.wgsl"), 3, 4)?;
        let (a, b, n) = (raw.floats(a)?, raw.floats(b)?, a.len() / WIDE);
        let output = raw.buffer(a.size(), wgpu::BufferUsages::empty());
        let calls = [raw.call(&kernel, &[&a, &b, &output], &[n as u32], groups(n, 64))?];
        Ok(Self { raw: raw.clone(), calls, output })
    }

    /// Adds them and waits.
    pub fn run(&mut self) -> Result<()> {
        self.raw.run(&self.calls)
    }

    /// The result.
    pub fn output(&self) -> Result<Vec<f32>> {
        self.raw.floats_of(&self.output)
    }
}

/// The sum of an array, in three launches of a pass.
#[derive(Debug)]
pub struct Sum {
    raw: Raw,
    calls: [Call; 3],
    output: wgpu::Buffer,
}

impl Sum {
    /// Puts the input, whose length is a multiple of four, on the GPU.
    pub fn new(raw: &Raw, x: &[f32]) -> Result<Self> {
        let kernel = raw.kernel(include_str!("sum4.wgsl"), 2, 8)?;
        let n = x.len() / WIDE;
        let x = raw.floats(x)?;
        let parts = |threads: u64| raw.buffer(4 * threads, wgpu::BufferUsages::empty());
        let (many, few, output) = (parts(4096), parts(64), parts(1));
        let calls = [
            raw.call(&kernel, &[&x, &many], &[n as u32, 4096], [64, 1, 1])?,
            raw.call(&kernel, &[&many, &few], &[1024, 64], [1, 1, 1])?,
            raw.call(&kernel, &[&few, &output], &[16, 1], [1, 1, 1])?,
        ];
        Ok(Self { raw: raw.clone(), calls, output })
    }

    /// Adds it up and waits.
    pub fn run(&mut self) -> Result<()> {
        self.raw.run(&self.calls)
    }

    /// The result.
    pub fn output(&self) -> Result<f32> {
        Ok(self.raw.floats_of(&self.output)?[0])
    }
}

/// The product of two square matrices.
#[derive(Debug)]
pub struct Matmul {
    raw: Raw,
    calls: [Call; 1],
    output: wgpu::Buffer,
}

impl Matmul {
    /// Puts two matrices of `size` rows and columns, a multiple of eight, on the GPU.
    pub fn new(raw: &Raw, a: &[f32], b: &[f32], size: usize) -> Result<Self> {
        let kernel = raw.kernel(include_str!("matmul.wgsl"), 3, 12)?;
        let (a, b) = (raw.floats(a)?, raw.floats(b)?);
        let output = raw.buffer(a.size(), wgpu::BufferUsages::empty());
        let n = size as u32;
        let groups = [n.div_ceil(4 * 8), n.div_ceil(8 * 8), 1];
        let calls = [raw.call(&kernel, &[&a, &b, &output], &[n, n, n], groups)?];
        Ok(Self { raw: raw.clone(), calls, output })
    }

    /// Multiplies them and waits.
    pub fn run(&mut self) -> Result<()> {
        self.raw.run(&self.calls)
    }

    /// The result.
    pub fn output(&self) -> Result<Vec<f32>> {
        self.raw.floats_of(&self.output)
    }
}

fn groups(threads: usize, each: usize) -> [u32; 3] {
    [threads.div_ceil(each) as u32, 1, 1]
}
