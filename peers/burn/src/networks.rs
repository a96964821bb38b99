//! burn's recurrent networks with our weights. burn keeps a matrix per gate, of inputs by units; ours are PyTorch's, all
//! gates in one, of units by inputs. burn's GRU applies its reset gate after the product unless told otherwise, as
//! PyTorch and we do, so all results can be compared.

use burn::{
    module::Param,
    nn::{BiGru, BiGruConfig, BiLstm, BiLstmConfig, GateController, Gru, GruConfig, Linear, Lstm, LstmConfig},
    tensor::{Device, Tensor, TensorData},
};

use crate::cases::Network;

/// One layer or two, of either cell.
pub enum Burns {
    Lstm(Lstm),
    Gru(Gru),
    Lstms(Vec<BiLstm>),
    Grus(Vec<BiGru>),
}

impl Burns {
    pub fn new(network: Network, weights: &[f32], device: &Device) -> Self {
        let mut weights = Weights { rest: weights, hidden: network.hidden, device };
        let (input, hidden) = (network.input, network.hidden);
        match (network.lstm, network.stacked) {
            (true, false) => Self::Lstm(weights.lstm(LstmConfig::new(input, hidden, true).init(device), input)),
            (false, false) => Self::Gru(weights.gru(GruConfig::new(input, hidden, true).init(device), input)),
            (true, true) => Self::Lstms(
                [input, 2 * hidden]
                    .map(|input| {
                        let mut both = BiLstmConfig::new(input, hidden, true).init(device);
                        both.forward = weights.lstm(both.forward, input);
                        both.reverse = weights.lstm(both.reverse, input);
                        both
                    })
                    .into(),
            ),
            (false, true) => Self::Grus(
                [input, 2 * hidden]
                    .map(|input| {
                        let mut both = BiGruConfig::new(input, hidden, true).init(device);
                        both.forward = weights.gru(both.forward, input);
                        both.reverse = weights.gru(both.reverse, input);
                        both
                    })
                    .into(),
            ),
        }
    }

    /// The outputs of the last layer.
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        match self {
            Self::Lstm(lstm) => lstm.forward(x, None).0,
            Self::Gru(gru) => gru.forward(x, None),
            Self::Lstms(layers) => layers.iter().fold(x, |x, layer| layer.forward(x, None).0),
            Self::Grus(layers) => layers.iter().fold(x, |x, layer| layer.forward(x, None).0),
        }
    }
}

/// Our weights, taken from the front direction by direction.
struct Weights<'a> {
    rest: &'a [f32],
    hidden: usize,
    device: &'a Device,
}

impl Weights<'_> {
    /// Ours are in the order input, forget, cell, output.
    fn lstm(&mut self, lstm: Lstm, input: usize) -> Lstm {
        let [input_gate, forget_gate, cell_gate, output_gate] = self.gates(input);
        Lstm { input_gate, forget_gate: Some(forget_gate), cell_gate, output_gate, ..lstm }
    }

    /// Ours are in the order reset, update, new.
    fn gru(&mut self, gru: Gru, input: usize) -> Gru {
        let [reset_gate, update_gate, new_gate] = self.gates(input);
        Gru { reset_gate, update_gate, new_gate, ..gru }
    }

    /// The next direction's.
    fn gates<const N: usize>(&mut self, input: usize) -> [GateController; N] {
        let hidden = self.hidden;
        let mut take = |n: usize| {
            let (now, later) = self.rest.split_at(n);
            self.rest = later;
            now
        };
        let (w_ih, w_hh) = (take(N * hidden * input), take(N * hidden * hidden));
        let (b_ih, b_hh) = (take(N * hidden), take(N * hidden));
        let linear = |gate: usize, w: &[f32], b: &[f32], inputs: usize| {
            let (w, b) = (&w[gate * hidden * inputs..][..hidden * inputs], &b[gate * hidden..][..hidden]);
            let turned: Vec<f32> = (0..inputs * hidden).map(|at| w[at % hidden * inputs + at / hidden]).collect();
            Linear {
                weight: Param::from_data(TensorData::new(turned, [inputs, hidden]), self.device),
                bias: Some(Param::from_data(TensorData::new(b.to_vec(), [hidden]), self.device)),
            }
        };
        std::array::from_fn(|gate| GateController {
            input_transform: linear(gate, w_ih, b_ih, input),
            hidden_transform: linear(gate, w_hh, b_hh, hidden),
        })
    }
}
