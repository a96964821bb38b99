//! Recurrent networks, one layer forwards and two in both directions.

use std::fmt;

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

/// Ours on all threads.
pub(super) fn sides(effort: &Effort) -> Vec<Side> {
    let effort = effort.clone();
    vec![Side::new("millrace", move || {
        let context = context(millrace::cpu::CpuInfo::get().cores)?;
        let metrics = cases(effort.small).into_iter().map(|case| ours(&effort, &context, case)).collect();
        context.finish()?;
        metrics
    })]
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
            let nothing = vec![0.0; case.batch * case.steps * case.form().1 * case.hidden];
            assert!(case.check(&nothing).is_err(), "{case}");
            assert!(case.check(&nothing[1..]).is_err(), "{case}");
        }
    }
}
