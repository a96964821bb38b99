//! Recurrent networks, one layer forwards and two in both directions, next to candle's if the feature `candle` is on.

use std::fmt;
#[cfg(feature = "candle")]
use std::hint::black_box;

#[cfg(feature = "candle")]
use candle_core as candle;
#[cfg(feature = "candle")]
use candle_nn::{GRU, GRUConfig, LSTM, LSTMConfig, RNN, VarBuilder};
use millrace::tensor::Recurrent;

use super::{Effort, context};
use crate::{
    Error, Result,
    gpu::{Context, numbers},
    measure::{Metric, Side, each_timed, warm_up},
};

/// A network and how many sequences it gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Case {
    lstm: bool,
    /// Two layers in both directions instead of one forwards.
    stacked: bool,
    batch: usize,
    steps: usize,
    input: usize,
    hidden: usize,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cell, form) = (if self.lstm { "lstm" } else { "gru" }, if self.stacked { "-2-layers-both" } else { "" });
        write!(f, "{cell}{form}-batch-{}", self.batch)
    }
}

fn cases(small: bool) -> Vec<Case> {
    let (steps, input, hidden) = if small { (8, 16, 32) } else { (64, 128, 256) };
    let mut cases = Vec::new();
    for (lstm, stacked) in [(true, false), (true, true), (false, false), (false, true)] {
        cases.extend([4, 32].map(|batch| Case { lstm, stacked, batch, steps, input, hidden }));
    }
    cases
}

/// One layer's weights in one direction, in PyTorch's order.
struct Direction<'a> {
    features: usize,
    w_ih: &'a [f32],
    w_hh: &'a [f32],
    b_ih: &'a [f32],
    b_hh: &'a [f32],
}

impl Case {
    fn gates(self) -> usize {
        if self.lstm { 4 } else { 3 }
    }

    /// Layers and directions.
    fn form(self) -> (usize, usize) {
        if self.stacked { (2, 2) } else { (1, 1) }
    }

    fn network(self) -> Recurrent {
        let network =
            if self.lstm { Recurrent::lstm(self.input, self.hidden) } else { Recurrent::gru(self.input, self.hidden) };
        network.layers(self.form().0).bidirectional(self.stacked).batch_first(true)
    }

    fn shape(self) -> [usize; 3] {
        [self.batch, self.steps, self.input]
    }

    fn x(self) -> Vec<f32> {
        numbers(self.shape().iter().product(), 1)
    }

    fn weights(self) -> Vec<f32> {
        let size = 1.0 / (self.hidden as f32).sqrt();
        numbers(self.network().weights_len(), 2).into_iter().map(|x| size * x).collect()
    }

    /// The weights layer by layer, direction by direction.
    fn directions(self, weights: &[f32]) -> Vec<Direction<'_>> {
        let ((layers, directions), rows) = (self.form(), self.gates() * self.hidden);
        let mut rest = weights;
        let mut take = |n: usize| {
            let (now, later) = rest.split_at(n);
            rest = later;
            now
        };
        let numbered = (0..layers).flat_map(|layer| (0..directions).map(move |_| layer));
        let each = numbered.map(|layer| {
            let features = if layer == 0 { self.input } else { directions * self.hidden };
            let (w_ih, w_hh) = (take(rows * features), take(rows * self.hidden));
            Direction { features, w_ih, w_hh, b_ih: take(rows), b_hh: take(rows) }
        });
        each.collect()
    }

    /// Whether the first sequence is what the equations make of it.
    fn check(self, y: &[f32]) -> Result<()> {
        let ((_, directions), hidden) = (self.form(), self.hidden);
        let expected = self.batch * self.steps * directions * hidden;
        if y.len() != expected {
            return Err(Error::Wrong(format!("{self} has {} outputs, not {expected}", y.len())));
        }
        let (x, weights) = (self.x(), self.weights());
        let mut x: Vec<f32> = x[..self.steps * self.input].to_vec();
        for layer in self.directions(&weights).chunks_exact(directions) {
            let mut next = vec![0.0; self.steps * directions * hidden];
            for (number, direction) in layer.iter().enumerate() {
                let (mut h, mut c) = (vec![0.0f32; hidden], vec![0.0f32; hidden]);
                for step in 0..self.steps {
                    let t = if number == 0 { step } else { self.steps - 1 - step };
                    let x = &x[t * direction.features..][..direction.features];
                    h = self.step(direction, x, &h, &mut c);
                    next[(t * directions + number) * hidden..][..hidden].copy_from_slice(&h);
                }
            }
            x = next;
        }
        match x.iter().zip(y).position(|(want, got)| (want - got).abs() > 1e-4 || got.is_nan()) {
            Some(at) => Err(Error::Wrong(format!("output {at} of {self} is {}, not {}", y[at], x[at]))),
            None => Ok(()),
        }
    }

    fn step(self, of: &Direction<'_>, x: &[f32], h: &[f32], c: &mut [f32]) -> Vec<f32> {
        let dot = |w: &[f32], x: &[f32]| w.iter().zip(x).map(|(w, x)| w * x).sum::<f32>();
        let given = |row: usize| dot(&of.w_ih[row * x.len()..][..x.len()], x) + of.b_ih[row];
        let recurrent = |row: usize| dot(&of.w_hh[row * h.len()..][..h.len()], h) + of.b_hh[row];
        let both = |gate: usize, unit: usize| given(gate * h.len() + unit) + recurrent(gate * h.len() + unit);
        let sigmoid = |x: f32| 1.0 / (1.0 + (-x).exp());
        let unit = |unit: usize| {
            if self.lstm {
                let written = sigmoid(both(0, unit)) * both(2, unit).tanh();
                c[unit] = sigmoid(both(1, unit)) * c[unit] + written;
                return sigmoid(both(3, unit)) * c[unit].tanh();
            }
            let (r, z, row) = (sigmoid(both(0, unit)), sigmoid(both(1, unit)), 2 * h.len() + unit);
            (1.0 - z) * (given(row) + r * recurrent(row)).tanh() + z * h[unit]
        };
        (0..h.len()).map(unit).collect()
    }
}

/// Ours and candle's, both on all threads.
pub(super) fn sides(effort: &Effort) -> Vec<Side> {
    let ours = {
        let effort = effort.clone();
        Side::new("millrace", move || {
            let context = context(millrace::cpu::CpuInfo::get().cores)?;
            let metrics = cases(effort.small).into_iter().map(|case| ours(&effort, &context, case)).collect();
            context.finish()?;
            metrics
        })
    };
    #[cfg_attr(not(feature = "candle"), allow(unused_mut, reason = "then there is one side"))]
    let mut sides = vec![ours];
    #[cfg(feature = "candle")]
    {
        let effort = effort.clone();
        let all = move || cases(effort.small).into_iter().map(|case| theirs(&effort, case)).collect();
        sides.push(Side::new("candle", all));
    }
    sides
}

/// Our side on any device, with the small cases.
pub(super) fn on(effort: &Effort, context: &Context) -> Result<()> {
    cases(true).into_iter().try_for_each(|case| ours(effort, context, case).map(drop))
}

fn timed(effort: &Effort, case: Case, mut run: impl FnMut() -> Result<()>) -> Result<Metric> {
    warm_up(effort.turn / 4, &mut run)?;
    let times = each_timed(effort.turn, run)?;
    Ok(Metric::lower(case.to_string(), "us", times.into_iter().map(|ns| ns / 1e3).collect()))
}

fn ours(effort: &Effort, context: &Context, case: Case) -> Result<Metric> {
    let (tensors, network, weights) = (context.tensors(), case.network(), case.weights());
    let x = tensors.from_slice(&case.x(), &case.shape())?;
    let weights = tensors.from_slice(&weights, &[weights.len()])?;
    let mut y = None;
    let metric = timed(effort, case, || {
        y = None; // back to the pool
        y = Some(x.recurrent(&network, &weights, None)?);
        Ok(tensors.synchronize()?)
    })?;
    case.check(&y.map(|y| y.output.to_vec::<f32>()).transpose()?.unwrap_or_default())?;
    Ok(metric)
}

#[cfg(feature = "candle")]
fn theirs(effort: &Effort, case: Case) -> Result<Metric> {
    let wrong = |error: candle::Error| Error::Wrong(error.to_string());
    let weights = case.weights();
    let x = candle::Tensor::from_vec(case.x(), &case.shape(), &candle::Device::Cpu).map_err(wrong)?;
    let cells: candle::Result<Vec<Cell>> =
        case.directions(&weights).iter().map(|direction| Cell::new(case, direction)).collect();
    let cells = cells.map_err(wrong)?;
    let forward = || {
        cells.chunks_exact(case.form().1).try_fold(x.clone(), |x, layer| match layer {
            [forwards, backwards] => {
                candle::Tensor::cat(&[forwards.outputs(&x, false)?, backwards.outputs(&x, true)?], 2)
            }
            cells => cells.iter().try_fold(x, |x, cell| cell.outputs(&x, false)),
        })
    };
    let mut y = None;
    let metric = timed(effort, case, || {
        y = Some(black_box(forward().map_err(wrong)?));
        Ok(())
    })?;
    let y = y.map(|y| y.flatten_all()?.to_vec1::<f32>()).transpose().map_err(wrong)?.unwrap_or_default();
    case.check(&y)?;
    Ok(metric)
}

/// One of candle's layers in one direction. Its gates come in the order of ours. It has one layer forwards, so the rest
/// is done here: the last step is given first and comes out last.
#[cfg(feature = "candle")]
enum Cell {
    Lstm(LSTM),
    Gru(GRU),
}

#[cfg(feature = "candle")]
impl Cell {
    fn new(case: Case, of: &Direction<'_>) -> candle::Result<Self> {
        let (rows, device) = (case.gates() * case.hidden, candle::Device::Cpu);
        let tensor = |name: &str, data: &[f32], shape: &[usize]| {
            candle::Tensor::from_slice(data, shape, &device).map(|tensor| (name.to_string(), tensor))
        };
        let weights = [
            tensor("weight_ih_l0", of.w_ih, &[rows, of.features])?,
            tensor("weight_hh_l0", of.w_hh, &[rows, case.hidden])?,
            tensor("bias_ih_l0", of.b_ih, &[rows])?,
            tensor("bias_hh_l0", of.b_hh, &[rows])?,
        ];
        let weights = VarBuilder::from_tensors(weights.into(), candle::DType::F32, &device);
        Ok(match case.lstm {
            true => Self::Lstm(LSTM::new(of.features, case.hidden, LSTMConfig::default(), weights)?),
            false => Self::Gru(GRU::new(of.features, case.hidden, GRUConfig::default(), weights)?),
        })
    }

    fn outputs(&self, x: &candle::Tensor, backwards: bool) -> candle::Result<candle::Tensor> {
        let turned = if backwards { Some(x.flip(&[1])?) } else { None };
        let x = turned.as_ref().unwrap_or(x);
        let mut outputs: Vec<_> = match self {
            Self::Lstm(lstm) => lstm.seq(x)?.into_iter().map(|state| state.h).collect(),
            Self::Gru(gru) => gru.seq(x)?.into_iter().map(|state| state.h).collect(),
        };
        if backwards {
            outputs.reverse();
        }
        candle::Tensor::stack(&outputs, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_network_is_run_and_checked() {
        let mut effort = Effort::quick();
        effort.turn = std::time::Duration::from_micros(50);
        let context = context(2).unwrap();
        for case in cases(true) {
            ours(&effort, &context, case).unwrap();
            #[cfg(feature = "candle")]
            theirs(&effort, case).unwrap();
            let nothing = vec![0.0; case.batch * case.steps * case.form().1 * case.hidden];
            assert!(case.check(&nothing).is_err(), "{case}");
            assert!(case.check(&nothing[1..]).is_err(), "{case}");
        }
    }
}
