//! What a network is: its cell, its sizes, and where its weights are.

use crate::{Error, Result};

/// What a vanilla network does with the sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Nonlinearity {
    /// The hyperbolic tangent.
    #[default]
    Tanh,
    /// Nothing below zero.
    Relu,
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) enum Cell {
    Tanh,
    Relu,
    Gru,
    Lstm,
}

impl Cell {
    pub(crate) const ALL: [Self; 4] = [Self::Tanh, Self::Relu, Self::Gru, Self::Lstm];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tanh => "tanh",
            Self::Relu => "relu",
            Self::Gru => "gru",
            Self::Lstm => "lstm",
        }
    }

    pub(crate) fn gates(self) -> usize {
        match self {
            Self::Tanh | Self::Relu => 1,
            Self::Gru => 3,
            Self::Lstm => 4,
        }
    }
}

/// A recurrent network without its weights, for [`Tensor::recurrent`](crate::Tensor::recurrent).
///
/// With `x` the input of a step, `h` the hidden state before it and `σ` the sigmoid, a step makes `h'`:
///
/// - vanilla: `h' = tanh(W_ih x + b_ih + W_hh h + b_hh)`, or the positive part instead of tanh;
/// - GRU: `r = σ(W_ir x + b_ir + W_hr h + b_hr)`, `z` alike, `n = tanh(W_in x + b_in + r * (W_hn h + b_hn))`,
///   `h' = (1 - z) * n + z * h`;
/// - LSTM: `i`, `f` and `o` as `r` above, `g = tanh(W_ig x + b_ig + W_hg h + b_hg)`, the cells `c' = f * c + i * g`,
///   `h' = o * tanh(c')`.
///
/// These are PyTorch's. So is the order of the weights, all of them one after the other: for every layer, for every
/// direction, `w_ih` of shape `[gates * hidden, features]`, `w_hh` of shape `[gates * hidden, hidden]`, and if there are
/// biases `b_ih` and `b_hh` of shape `[gates * hidden]`. The gates are in the order r, z, n of a GRU and i, f, g, o of an
/// LSTM. The first layer's features are the input's, those of further layers are `directions * hidden`.
///
/// ```
/// use millrace::tensor::{Recurrent, Tensors};
/// let network = Recurrent::lstm(128, 256);
/// assert_eq!(network.weights_len(), 4 * 256 * (128 + 256 + 2));
/// // One unit that remembers: forget nothing, let everything in.
/// let counter = Recurrent::lstm(1, 1);
/// let (w_ih, w_hh, open) = ([0.0, 0.0, 100.0, 0.0], [0.0f32; 4], [100.0, 100.0, 0.0, 100.0]);
/// let weights = [w_ih, w_hh, open, [0.0; 4]].concat();
/// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
/// let y = tensors.ones(&[3, 1, 1])?.recurrent(&counter, &tensors.from_slice(&weights, &[16])?, None)?;
/// let cell = y.state.cell.ok_or("an LSTM has cells")?;
/// assert_eq!(cell.to_vec::<f32>()?, [3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Recurrent {
    pub(crate) cell: Cell,
    pub(crate) input: usize,
    pub(crate) hidden: usize,
    pub(crate) layers: usize,
    pub(crate) bidirectional: bool,
    pub(crate) batch_first: bool,
    pub(crate) bias: bool,
}

/// Where one direction's weights are, from the beginning of its input's.
pub(crate) struct Parts {
    pub(crate) recurrent: usize,
    pub(crate) biases: usize,
    pub(crate) len: usize,
}

impl Recurrent {
    fn new(cell: Cell, input: usize, hidden: usize) -> Self {
        Self { cell, input, hidden, layers: 1, bidirectional: false, batch_first: false, bias: true }
    }

    /// Gates and cells (Hochreiter and Schmidhuber, with the forget gate of Gers).
    pub fn lstm(input: usize, hidden: usize) -> Self {
        Self::new(Cell::Lstm, input, hidden)
    }

    /// Gates without cells (Cho), the variant whose reset gate follows the product.
    pub fn gru(input: usize, hidden: usize) -> Self {
        Self::new(Cell::Gru, input, hidden)
    }

    /// No gates (Elman).
    pub fn vanilla(input: usize, hidden: usize, nonlinearity: Nonlinearity) -> Self {
        let cell = match nonlinearity {
            Nonlinearity::Tanh => Cell::Tanh,
            Nonlinearity::Relu => Cell::Relu,
        };
        Self::new(cell, input, hidden)
    }

    /// So many layers, each over the output of the one before; one if nothing is said.
    pub fn layers(mut self, layers: usize) -> Self {
        self.layers = layers;
        self
    }

    /// Whether every layer also runs backwards, with weights of its own. It does not if nothing is said.
    pub fn bidirectional(mut self, bidirectional: bool) -> Self {
        self.bidirectional = bidirectional;
        self
    }

    /// Whether inputs and outputs are `[batch, steps, …]` instead of `[steps, batch, …]`, as if nothing is said. States
    /// are the same either way.
    pub fn batch_first(mut self, batch_first: bool) -> Self {
        self.batch_first = batch_first;
        self
    }

    /// Whether there are biases; there are if nothing is said.
    pub fn bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// How many weights there are. What is too much to count is `usize::MAX`, which no tensor has.
    ///
    /// ```
    /// use millrace::tensor::Recurrent;
    /// let network = Recurrent::gru(8, 16).layers(2).bidirectional(true).bias(false);
    /// assert_eq!(network.weights_len(), 2 * 3 * 16 * (8 + 16) + 2 * 3 * 16 * (32 + 16));
    /// ```
    pub fn weights_len(&self) -> usize {
        let first = self.parts(0).len;
        let others = self.parts(1).len.saturating_mul(self.layers.saturating_sub(1));
        match self.layers {
            0 => 0,
            _ => first.saturating_add(others).saturating_mul(self.directions()),
        }
    }

    pub(crate) fn directions(&self) -> usize {
        1 + usize::from(self.bidirectional)
    }

    /// Of a step of a layer's input.
    pub(crate) fn features(&self, layer: usize) -> usize {
        if layer == 0 { self.input } else { self.hidden.saturating_mul(self.directions()) }
    }

    pub(crate) fn parts(&self, layer: usize) -> Parts {
        let rows = self.hidden.saturating_mul(self.cell.gates());
        let recurrent = rows.saturating_mul(self.features(layer));
        let biases = recurrent.saturating_add(rows.saturating_mul(self.hidden));
        let len = biases.saturating_add(if self.bias { rows.saturating_mul(2) } else { 0 });
        Parts { recurrent, biases, len }
    }

    /// Where a layer's weights begin.
    pub(crate) fn start(&self, layer: usize) -> usize {
        let before: usize = (0..layer).map(|layer| self.parts(layer).len).sum();
        before * self.directions()
    }

    pub(crate) fn check(&self, op: &'static str) -> Result<()> {
        let Self { input, hidden, layers, .. } = *self;
        if input == 0 || hidden == 0 || layers == 0 {
            return Err(Error::Network { op, input, hidden, layers });
        }
        Ok(())
    }
}
