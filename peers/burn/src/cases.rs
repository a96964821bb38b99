//! What is measured: products, convolutions and recurrent networks, each done by our tensors and by burn's with the same
//! numbers.

use burn::tensor::{Device, Tensor, TensorData, module::conv2d, ops::ConvOptions};
use millrace::tensor::{Conv, Recurrent, Tensors};

use crate::{
    networks,
    side::{Result, Side},
};

/// One thing that every side does.
#[derive(Debug, Clone, Copy)]
pub enum Case {
    /// A product of an m×k and a k×n matrix.
    Product { m: usize, k: usize, n: usize },
    /// A convolution of squares, without a bias.
    Convolution(Convolution),
    /// A recurrent network over a batch of sequences.
    Network(Network),
}

#[derive(Debug, Clone, Copy)]
pub struct Convolution {
    batch: usize,
    channels: usize,
    filters: usize,
    groups: usize,
    len: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
}

#[derive(Debug, Clone, Copy)]
pub struct Network {
    pub lstm: bool,
    /// Two layers in both directions instead of one forwards.
    pub stacked: bool,
    pub batch: usize,
    pub steps: usize,
    pub input: usize,
    pub hidden: usize,
}

/// All cases; the same as in the groups `matmul_small`, `matmul_all_threads`, `conv` and `rnn` of `millrace bench tensor`.
pub fn all() -> Vec<Case> {
    let square = |n| Case::Product { m: n, k: n, n };
    let mut cases: Vec<_> = [16, 32, 64, 128].into_iter().map(square).collect();
    cases.extend([Case::Product { m: 1, k: 1024, n: 1024 }, Case::Product { m: 1024, k: 1, n: 1024 }]);
    cases.extend([256, 512, 1024].map(square));
    for [channels, filters, groups, len, kernel, stride, padding] in
        [[64, 64, 1, 28, 3, 1, 1], [3, 64, 1, 224, 7, 2, 3], [128, 128, 128, 56, 3, 1, 1], [256, 256, 1, 28, 1, 1, 0]]
    {
        let with = |batch| Convolution { batch, channels, filters, groups, len, kernel, stride, padding };
        cases.extend([1, 8].map(|batch| Case::Convolution(with(batch))));
    }
    for (lstm, stacked) in [(true, false), (true, true), (false, false), (false, true)] {
        let with = |batch| Network { lstm, stacked, batch, steps: 64, input: 128, hidden: 256 };
        cases.extend([4, 32].map(|batch| Case::Network(with(batch))));
    }
    cases
}

impl Case {
    /// The group and the case, as `millrace bench tensor` names them.
    pub fn name(&self) -> String {
        match self {
            Self::Product { m, k, n } if m == k && k == n => format!("matmul/{n}"),
            Self::Product { m, k, n } => format!("matmul/{m}x{k}x{n}"),
            Self::Convolution(Convolution { batch, channels, filters, groups, len, kernel, stride, .. }) => {
                let channels =
                    if *groups == 1 { format!("{channels}-{filters}") } else { format!("depthwise-{channels}") };
                let stride = if *stride > 1 { format!("-s{stride}") } else { String::new() };
                format!("conv/{channels}-{len}-k{kernel}{stride}-batch-{batch}")
            }
            Self::Network(Network { lstm, stacked, batch, .. }) => {
                let (cell, form) = (if *lstm { "lstm" } else { "gru" }, if *stacked { "-2-layers-both" } else { "" });
                format!("rnn/{cell}{form}-batch-{batch}")
            }
        }
    }

    /// Ours first.
    pub fn sides(&self, tensors: &Tensors, burn: &[(&'static str, Device)]) -> Result<Vec<Side>> {
        let mut sides = vec![self.ours(tensors)?];
        sides.extend(burn.iter().map(|(name, device)| self.burns(name, device)));
        Ok(sides)
    }

    fn ours(&self, tensors: &Tensors) -> Result<Side> {
        let tensor = |seed, shape: &[usize]| tensors.from_slice(&numbers(shape.iter().product(), seed), shape);
        Ok(match *self {
            Self::Product { m, k, n } => {
                let (a, b) = (tensor(1, &[m, k])?, tensor(2, &[k, n])?);
                Side::ours(tensors, move || Ok(a.matmul(&b)?))
            }
            Self::Convolution(conv) => {
                let (x, weight) = (tensor(1, &conv.shape())?, tensor(2, &conv.weight_shape())?);
                let conv = Conv::new().stride(conv.stride).padding(conv.padding).groups(conv.groups);
                Side::ours(tensors, move || Ok(x.conv(&weight, None, &conv)?))
            }
            Self::Network(network) => {
                let (x, weights) = (tensor(1, &network.shape())?, network.weights());
                let (weights, network) = (tensors.from_slice(&weights, &[weights.len()])?, network.ours());
                Side::ours(tensors, move || Ok(x.recurrent(&network, &weights, None)?.output))
            }
        })
    }

    fn burns(&self, name: &'static str, device: &Device) -> Side {
        match *self {
            Self::Product { m, k, n } => {
                let (a, b): (Tensor<2>, Tensor<2>) = (filled(1, [m, k], device), filled(2, [k, n], device));
                Side::burns(name, device, move || a.clone().matmul(b.clone()))
            }
            Self::Convolution(conv) => {
                let x: Tensor<4> = filled(1, conv.shape(), device);
                let weight: Tensor<4> = filled(2, conv.weight_shape(), device);
                let options = ConvOptions::new([conv.stride; 2], [conv.padding; 2], [1; 2], conv.groups);
                Side::burns(name, device, move || conv2d(x.clone(), weight.clone(), None, options.clone()))
            }
            Self::Network(network) => {
                let x: Tensor<3> = filled(1, network.shape(), device);
                let network = networks::Burns::new(network, &network.weights(), device);
                Side::burns(name, device, move || network.forward(x.clone()))
            }
        }
    }
}

impl Convolution {
    fn shape(self) -> [usize; 4] {
        [self.batch, self.channels, self.len, self.len]
    }

    fn weight_shape(self) -> [usize; 4] {
        [self.filters, self.channels / self.groups, self.kernel, self.kernel]
    }
}

impl Network {
    fn shape(self) -> [usize; 3] {
        [self.batch, self.steps, self.input]
    }

    fn ours(self) -> Recurrent {
        let network =
            if self.lstm { Recurrent::lstm(self.input, self.hidden) } else { Recurrent::gru(self.input, self.hidden) };
        network.layers(if self.stacked { 2 } else { 1 }).bidirectional(self.stacked).batch_first(true)
    }

    fn weights(self) -> Vec<f32> {
        let size = 1.0 / (self.hidden as f32).sqrt();
        numbers(self.ours().weights_len(), 2).into_iter().map(|x| size * x).collect()
    }
}

fn filled<const D: usize>(seed: u64, shape: [usize; D], device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(numbers(shape.iter().product(), seed), shape), device)
}

/// Numbers from -1 to 1, the same ones for the same seed.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
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
