//! Recurrent networks, against their equations one number at a time.

use super::{
    Run,
    reference::{Array, Expected},
    sample::{Domain, Sample},
};
use crate::{DType, Nonlinearity, Recurrent, RecurrentState, Result};

/// States are about one, and errors relative to that: sums of as many products as there are hidden units, through gates
/// that make them smaller, from step to step.
const TOLERANCE: f64 = 5e-6;

const UNIT: Domain = Domain { range: (-1.0, 1.0), huge: false };

/// A network of so many inputs and hidden units.
type Make = fn(usize, usize) -> Recurrent;

const CELLS: [(&str, Make); 4] = [
    ("rnn_tanh", |input, hidden| Recurrent::vanilla(input, hidden, Nonlinearity::Tanh)),
    ("rnn_relu", |input, hidden| Recurrent::vanilla(input, hidden, Nonlinearity::Relu)),
    ("gru", Recurrent::gru),
    ("lstm", Recurrent::lstm),
];

/// One step of one sequence: `x` are the input's parts of all gates and `h` the state's, unit by unit.
fn step(op: &str, x: &[f64], h: &[f64], old: f64, cell: &mut f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match op {
        "rnn_tanh" => (x[0] + h[0]).tanh(),
        "rnn_relu" => (x[0] + h[0]).max(0.0),
        "gru" => {
            let (r, z) = (sigmoid(x[0] + h[0]), sigmoid(x[1] + h[1]));
            (1.0 - z) * (x[2] + r * h[2]).tanh() + z * old
        }
        _ => {
            *cell = sigmoid(x[1] + h[1]) * *cell + sigmoid(x[0] + h[0]) * (x[2] + h[2]).tanh();
            sigmoid(x[3] + h[3]) * cell.tanh()
        }
    }
}

/// The output, the hidden states and the cells of a network with `gates` gates over `x`, which is time first.
fn network(op: &str, gates: usize, x: &Array, weights: &Array, directions: usize, states: [&Array; 2]) -> [Array; 3] {
    let [mut hidden, mut cells] = states.map(Array::clone);
    let (steps, batch, units) = (x.shape[0], x.shape[1], hidden.shape[2]);
    let (mut x, mut rest) = (x.clone(), &weights.data[..]);
    for layer in 0..hidden.shape[0] / directions {
        let features = x.shape[2];
        let mut next = Array::from_fn(&[steps, batch, directions * units], |_| 0.0);
        for direction in 0..directions {
            let mut take = |n: usize| {
                let (now, later) = rest.split_at(n);
                rest = later;
                now
            };
            let rows = gates * units;
            let (w_ih, w_hh) = (take(rows * features), take(rows * units));
            let (b_ih, b_hh) = (take(rows), take(rows));
            for (b, step_number) in (0..batch).flat_map(|b| (0..steps).map(move |step| (b, step))) {
                let t = if direction == 0 { step_number } else { steps - 1 - step_number };
                let at = ((layer * directions + direction) * batch + b) * units;
                let (x, old) =
                    (&x.data[(t * batch + b) * features..][..features], hidden.data[at..at + units].to_vec());
                for unit in 0..units {
                    let part = |w: &[f64], bias: &[f64], of: &[f64]| -> Vec<f64> {
                        let dot = |row: usize| {
                            bias[row] + w[row * of.len()..][..of.len()].iter().zip(of).map(|(w, x)| w * x).sum::<f64>()
                        };
                        (0..gates).map(|gate| dot(gate * units + unit)).collect()
                    };
                    let (given, recurrent) = (part(w_ih, b_ih, x), part(w_hh, b_hh, &old));
                    let new = step(op, &given, &recurrent, old[unit], &mut cells.data[at + unit]);
                    next.data[(t * batch + b) * directions * units + direction * units + unit] = new;
                    hidden.data[at + unit] = new;
                }
            }
        }
        x = next;
    }
    [x, hidden, cells]
}

pub(super) fn all(run: &mut Run<'_>) -> Result<()> {
    for (op, make) in CELLS {
        // One of everything, remainders of vectors, and layers in both directions.
        for [steps, batch, input, hidden, layers, directions] in
            [[1, 1, 1, 1, 1, 1], [6, 3, 5, 17, 1, 1], [5, 9, 7, 33, 2, 2], [12, 2, 16, 64, 1, 2]]
        {
            let x = run.samples.shaped(&[steps, batch, input], DType::F32, UNIT)?;
            let network = make(input, hidden).layers(layers).bidirectional(directions == 2);
            let size =
                format!("random {steps}x{batch}x{input}, {hidden} units, {layers} layers, {directions} directions");
            one(run, op, size, network, &x)?;
        }
        let x = run.samples.tangled(&[4, 5, 6], DType::F32, UNIT, false)?;
        one(run, op, "non-contiguous 4x5x6, 9 units".to_owned(), make(6, 9), &x)?;
        let mut x = run.samples.shaped(&[1, 5, 6], DType::F32, UNIT)?;
        (x.tensor, x.array) = (x.tensor.expand(&[4, 5, 6])?, x.array.expand(&[4, 5, 6]));
        one(run, op, "broadcast 4x5x6, 9 units".to_owned(), make(6, 9), &x)?;
        let (x, short) = (run.samples.shaped(&[2, 1, 3], DType::F32, UNIT)?.tensor, make(3, 4).weights_len() - 1);
        let weights = run.samples.shaped(&[short], DType::F32, UNIT)?.tensor;
        let got = x.recurrent(&make(3, 4), &weights, None).map(|y| y.output);
        run.refused(op, format!("{short} weights, one too few"), got)?;
    }
    Ok(())
}

fn one(run: &mut Run<'_>, op: &str, size: String, of: Recurrent, x: &Sample) -> Result<()> {
    let (batch, hidden, directions) = (x.array.shape[1], of.hidden, of.directions());
    // About what networks begin with: states neither vanish nor explode.
    let small = 1.0 / (hidden as f64).sqrt();
    let weights =
        run.samples.shaped(&[of.weights_len()], DType::F32, Domain { range: (-small, small), huge: false })?;
    let states = [of.layers * directions, batch, hidden];
    let (h, c) = (run.samples.shaped(&states, DType::F32, UNIT)?, run.samples.shaped(&states, DType::F32, UNIT)?);
    let cell = (op == "lstm").then(|| c.tensor.clone());
    let initial = RecurrentState { hidden: h.tensor.clone(), cell };
    let got = x.tensor.recurrent(&of, &weights.tensor, Some(&initial));
    let [output, hidden, cells] =
        network(op, of.cell.gates(), &x.array, &weights.array, directions, [&h.array, &c.array]);
    let about_one = |array: Array| Expected { scale: vec![1.0; array.data.len()], array };
    let part = |n: usize| got.clone().map(|y| if n == 0 { y.output } else { y.state.hidden });
    run.compare(op, size.clone(), TOLERANCE, part(0), &about_one(output))?;
    run.compare(op, format!("{size}, hidden state"), TOLERANCE, part(1), &about_one(hidden))?;
    if let Ok(Some(cell)) = got.map(|y| y.state.cell) {
        run.compare(op, format!("{size}, cells"), TOLERANCE, Ok(cell), &about_one(cells))?;
    }
    Ok(())
}
