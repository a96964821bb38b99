//! Recurrent networks through the public interface, on the CPU and on a GPU if there is one, against PyTorch's equations
//! written down step by step in `f64`.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use millrace::{
    Runtime,
    cpu::CpuThreads,
    tensor::{DType, Error, Nonlinearity, Recurrent, RecurrentOutput, RecurrentState, Tensor, Tensors},
};
use proptest::prelude::*;
use support::places;

/// An error of a state, whose size is about one.
const TOLERANCE: f64 = 5e-6;

/// The CPU with so many threads.
fn threads(count: usize) -> Tensors {
    Tensors::on(&Runtime::new(vec![Box::new(CpuThreads(count))]).open("cpu").unwrap()).unwrap()
}

/// Numbers between minus and plus `size`.
fn noise(n: usize, seed: u64, size: f32) -> Vec<f32> {
    support::noise(n, seed).into_iter().map(|x| size * x).collect()
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Tanh,
    Relu,
    Gru,
    Lstm,
}

const KINDS: [Kind; 4] = [Kind::Tanh, Kind::Relu, Kind::Gru, Kind::Lstm];

/// A network and what it is run on.
#[derive(Debug, Clone, Copy)]
struct Case {
    kind: Kind,
    input: usize,
    hidden: usize,
    layers: usize,
    both: bool,
    batch_first: bool,
    bias: bool,
    initial: bool,
    steps: usize,
    batch: usize,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            kind: Kind::Lstm,
            input: 3,
            hidden: 5,
            layers: 1,
            both: false,
            batch_first: false,
            bias: true,
            initial: false,
            steps: 4,
            batch: 2,
        }
    }
}

/// Elements in order: the output, the hidden state, the cells (none but an LSTM's).
type Parts = [Vec<f64>; 3];

impl Case {
    fn network(&self) -> Recurrent {
        let network = match self.kind {
            Kind::Tanh => Recurrent::vanilla(self.input, self.hidden, Nonlinearity::Tanh),
            Kind::Relu => Recurrent::vanilla(self.input, self.hidden, Nonlinearity::Relu),
            Kind::Gru => Recurrent::gru(self.input, self.hidden),
            Kind::Lstm => Recurrent::lstm(self.input, self.hidden),
        };
        network.layers(self.layers).bidirectional(self.both).batch_first(self.batch_first).bias(self.bias)
    }

    fn directions(&self) -> usize {
        if self.both { 2 } else { 1 }
    }

    fn gates(&self) -> usize {
        match self.kind {
            Kind::Tanh | Kind::Relu => 1,
            Kind::Gru => 3,
            Kind::Lstm => 4,
        }
    }

    fn shape(&self) -> [usize; 3] {
        if self.batch_first { [self.batch, self.steps, self.input] } else { [self.steps, self.batch, self.input] }
    }

    fn states(&self) -> [usize; 3] {
        [self.layers * self.directions(), self.batch, self.hidden]
    }

    fn x(&self) -> Vec<f32> {
        noise(self.shape().iter().product(), 1, 1.0)
    }

    fn weights(&self) -> Vec<f32> {
        // About what networks are initialized with, so that states neither vanish nor explode.
        noise(self.network().weights_len(), 2, 1.0 / (self.hidden as f32).sqrt())
    }

    fn state(&self, seed: u64) -> Vec<f32> {
        noise(self.states().iter().product(), seed, 0.8)
    }

    fn run(&self, tensors: &Tensors) -> RecurrentOutput {
        let x = tensors.from_slice(&self.x(), &self.shape()).unwrap();
        let weights = self.weights();
        let weights = tensors.from_slice(&weights, &[weights.len()]).unwrap();
        let state = |seed| tensors.from_slice(&self.state(seed), &self.states()).unwrap();
        let initial = self
            .initial
            .then(|| RecurrentState { hidden: state(3), cell: (self.kind == Kind::Lstm).then(|| state(4)) });
        x.recurrent(&self.network(), &weights, initial.as_ref()).unwrap()
    }

    /// The equations, one number after the other.
    fn reference(&self) -> Parts {
        let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
        let (steps, batch, hidden, directions) = (self.steps, self.batch, self.hidden, self.directions());
        let (rows, weights) = (self.gates() * hidden, wide(self.weights()));
        let given = wide(self.x());
        let mut features = self.input;
        // By step, by sequence.
        let place = |t: usize, b: usize| if self.batch_first { b * steps + t } else { t * batch + b };
        let mut x: Vec<Vec<Vec<f64>>> = (0..steps)
            .map(|t| (0..batch).map(|b| given[place(t, b) * features..][..features].to_vec()).collect())
            .collect();
        let initial = |seed| if self.initial { wide(self.state(seed)) } else { vec![0.0; self.state(seed).len()] };
        let (mut hiddens, mut cells) = (initial(3), initial(4));
        let mut rest = &weights[..];
        let mut take = |n: usize| {
            let (now, later) = rest.split_at(n);
            rest = later;
            now.to_vec()
        };
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        for layer in 0..self.layers {
            let mut next = vec![vec![vec![0.0; directions * hidden]; batch]; steps];
            for direction in 0..directions {
                let (w_ih, w_hh) = (take(rows * features), take(rows * hidden));
                let [b_ih, b_hh] = [(); 2].map(|()| if self.bias { take(rows) } else { vec![0.0; rows] });
                for b in 0..batch {
                    let at = ((layer * directions + direction) * batch + b) * hidden;
                    for step in 0..steps {
                        let t = if direction == 0 { step } else { steps - 1 - step };
                        let dot = |w: &[f64], x: &[f64]| w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>();
                        let h = hiddens[at..at + hidden].to_vec();
                        let i = |row: usize| dot(&w_ih[row * features..][..features], &x[t][b]) + b_ih[row];
                        let r = |row: usize| dot(&w_hh[row * hidden..][..hidden], &h) + b_hh[row];
                        for unit in 0..hidden {
                            let [g0, g1, g2, g3] = [0, 1, 2, 3].map(|gate| gate * hidden + unit);
                            let new = match self.kind {
                                Kind::Tanh => (i(g0) + r(g0)).tanh(),
                                Kind::Relu => (i(g0) + r(g0)).max(0.0),
                                Kind::Gru => {
                                    let (reset, update) = (sigmoid(i(g0) + r(g0)), sigmoid(i(g1) + r(g1)));
                                    let candidate = (i(g2) + reset * r(g2)).tanh();
                                    (1.0 - update) * candidate + update * h[unit]
                                }
                                Kind::Lstm => {
                                    let (input, forget) = (sigmoid(i(g0) + r(g0)), sigmoid(i(g1) + r(g1)));
                                    let (cell, output) = ((i(g2) + r(g2)).tanh(), sigmoid(i(g3) + r(g3)));
                                    cells[at + unit] = forget * cells[at + unit] + input * cell;
                                    output * cells[at + unit].tanh()
                                }
                            };
                            next[t][b][direction * hidden + unit] = new;
                        }
                        hiddens[at..at + hidden].copy_from_slice(&next[t][b][direction * hidden..][..hidden]);
                    }
                }
            }
            (x, features) = (next, directions * hidden);
        }
        assert!(rest.is_empty(), "all weights were used");
        let mut output = vec![0.0; steps * batch * features];
        for (t, b) in (0..steps).flat_map(|t| (0..batch).map(move |b| (t, b))) {
            output[place(t, b) * features..][..features].copy_from_slice(&x[t][b]);
        }
        [output, hiddens, if self.kind == Kind::Lstm { cells } else { Vec::new() }]
    }

    fn check(&self, tensors: &Tensors) {
        let (got, want) = (self.run(tensors), self.reference());
        let [first, second, _] = self.shape();
        assert_eq!(got.output.shape(), [first, second, self.directions() * self.hidden], "{self:?}");
        assert_eq!(got.state.hidden.shape(), self.states(), "{self:?}");
        let device = &tensors.device().info().id;
        for (part, (got, want)) in ["output", "hidden", "cell"].into_iter().zip(parts(&got).iter().zip(&want)) {
            assert_eq!(got.len(), want.len(), "{part} of {self:?}");
            let off = got.iter().zip(want).map(|(got, want)| (got - want).abs() / want.abs().max(1.0));
            let error = off.fold(0.0, |worst: f64, off| if off.is_nan() { f64::INFINITY } else { worst.max(off) });
            assert!(error <= TOLERANCE, "{part} of {self:?} on {device}: off by {error:e}");
        }
    }
}

fn parts(got: &RecurrentOutput) -> Parts {
    let numbers = |x: &Tensor| x.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect();
    let cells = got.state.cell.as_ref().map(numbers).unwrap_or_default();
    [numbers(&got.output), numbers(&got.state.hidden), cells]
}

#[test]
fn every_kind_of_network_follows_its_equations() {
    for tensors in places() {
        for kind in KINDS {
            for n in 0..32 {
                let bit = |place: u32| n >> place & 1 == 1;
                let layers = if bit(0) { 2 } else { 1 };
                let (both, batch_first, bias, initial) = (bit(1), bit(2), bit(3), bit(4));
                Case { kind, layers, both, batch_first, bias, initial, ..Case::default() }.check(&tensors);
            }
        }
    }
}

#[test]
fn sizes_from_one_on_are_right_with_every_remainder() {
    for tensors in places() {
        for kind in KINDS {
            for hidden in [1, 2, 4, 15, 16, 17, 33, 65] {
                let case = Case { kind, hidden, steps: 3, initial: true, both: true, ..Case::default() };
                case.check(&tensors);
            }
            for batch in 1..=13 {
                Case { kind, batch, hidden: 7, initial: true, ..Case::default() }.check(&tensors);
            }
            Case { kind, steps: 1, batch: 1, hidden: 1, input: 1, ..Case::default() }.check(&tensors);
            Case { kind, steps: 1, initial: true, both: true, layers: 3, ..Case::default() }.check(&tensors);
        }
    }
}

#[test]
fn threads_share_directions_sequences_and_units() {
    // Enough of it that threads are woken.
    let large = Case { hidden: 96, steps: 24, input: 8, initial: true, ..Case::default() };
    for count in [1, 2, 3, 4, 7] {
        let tensors = threads(count);
        for kind in KINDS {
            let hidden = if kind == Kind::Tanh || kind == Kind::Relu { 260 } else { large.hidden };
            for (batch, both) in [(1, false), (3, false), (5, true), (33, false), (17, true)] {
                Case { kind, batch, both, hidden, batch_first: batch == 33, ..large }.check(&tensors);
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let case = Case { hidden: 100, steps: 30, batch: 20, both: true, layers: 2, ..Case::default() };
    let alone = parts(&case.run(&threads(1)));
    for count in [2, 3, 8] {
        assert_eq!(parts(&case.run(&threads(count))), alone, "{count} threads");
    }
}

#[test]
fn the_final_state_is_the_last_output() {
    for tensors in places() {
        for kind in KINDS {
            let case = Case { kind, both: true, steps: 5, ..Case::default() };
            let got = case.run(&tensors);
            let part = |t: usize, from: usize| {
                let step = got.output.slice(0, t..=t).unwrap();
                step.slice(2, from..from + case.hidden).unwrap().to_vec::<f32>().unwrap()
            };
            let last = [part(case.steps - 1, 0), part(0, case.hidden)].concat();
            assert_eq!(got.state.hidden.to_vec::<f32>().unwrap(), last);
        }
    }
}

#[test]
fn a_sequence_in_two_parts_is_the_sequence() {
    for tensors in places() {
        for kind in KINDS {
            let case = Case { kind, layers: 2, steps: 6, ..Case::default() };
            let whole = case.run(&tensors);
            let x = tensors.from_slice(&case.x(), &case.shape()).unwrap();
            let weights = tensors.from_slice(&case.weights(), &[case.network().weights_len()]).unwrap();
            let run = |range, state| x.slice(0, range).unwrap().recurrent(&case.network(), &weights, state).unwrap();
            let first = run(0..2, None);
            let second = run(2..6, Some(&first.state));
            let [_, hidden, cells] = parts(&second);
            let [output, all_hidden, all_cells] = parts(&whole);
            assert_eq!([hidden, cells], [all_hidden, all_cells]);
            assert_eq!(parts(&second)[0], output[output.len() - second.output.elements()..]);
        }
    }
}

#[test]
fn views_are_as_good_as_copies() {
    for tensors in places() {
        for kind in [Kind::Gru, Kind::Lstm] {
            let case = Case { kind, initial: true, layers: 2, both: true, ..Case::default() };
            let want = parts(&case.run(&tensors));
            // Every operand backwards or turned in memory.
            let turned = |data: &[f32], shape: &[usize]| {
                let x = tensors.from_slice(data, shape).unwrap();
                x.flip(0).unwrap().contiguous().unwrap().flip(0).unwrap()
            };
            let by_batch = tensors.from_slice(&case.x(), &case.shape()).unwrap().transpose(0, 1).unwrap();
            let x = by_batch.contiguous().unwrap().transpose(0, 1).unwrap();
            assert!(!x.is_contiguous());
            let weights = case.weights();
            let weights = turned(&weights, &[weights.len()]);
            let state = |seed| turned(&case.state(seed), &case.states());
            let initial = RecurrentState { hidden: state(3), cell: (kind == Kind::Lstm).then(|| state(4)) };
            let got = x.recurrent(&case.network(), &weights, Some(&initial)).unwrap();
            assert_eq!(parts(&got), want);
            // Weights and states in the middle of something larger.
            let padded = |x: &Tensor| x.flatten().unwrap().pad(&[(7, 3)], 9.0f32).unwrap();
            let inside = |x: &Tensor| {
                let n = x.elements();
                padded(x).slice(0, 7..7 + n).unwrap().reshape(x.shape()).unwrap()
            };
            let cell = initial.cell.as_ref().map(inside);
            let initial = RecurrentState { hidden: inside(&initial.hidden), cell };
            let got = inside(&x).recurrent(&case.network(), &inside(&weights), Some(&initial)).unwrap();
            assert_eq!(parts(&got), want);
        }
    }
}

#[test]
fn what_is_wrong_with_a_call_is_said_with_both_sides() {
    for tensors in places() {
        let network = Recurrent::lstm(3, 4);
        let zeros = |shape: &[usize]| tensors.zeros(shape).unwrap();
        let (x, weights) = (zeros(&[5, 2, 3]), zeros(&[network.weights_len()]));
        let text = |x: &Tensor, network: Recurrent, weights: &Tensor, state: Option<&RecurrentState>| {
            x.recurrent(&network, weights, state).unwrap_err().to_string()
        };
        for off in [1, 127, 129, 1000] {
            assert_eq!(
                text(&x, network, &zeros(&[off]), None),
                format!("recurrent: shapes [{off}] and [144] differ; the second is what the packed weights have")
            );
        }
        let other = network.bias(false);
        assert_eq!(
            text(&x, other, &weights, None),
            "recurrent: shapes [144] and [112] differ; the second is what the packed weights have"
        );
        // As many as there should be, but not along one axis.
        assert_eq!(
            text(&x, network, &zeros(&[12, 12]), None),
            "recurrent: shapes [12, 12] and [144] differ; the second is what the packed weights have"
        );
        assert_eq!(
            text(&zeros(&[5, 2, 4]), network, &weights, None),
            "recurrent: shapes [5, 2, 4] and [5, 2, 3] differ; the second is what the network takes"
        );
        for shape in [&[5, 3][..], &[5, 2, 3, 1]] {
            let why = "do not go together; a batch of sequences has three axes, the last of the second's length";
            let expected = format!("recurrent: shapes {shape:?} and [3] {why}");
            assert_eq!(text(&zeros(shape), network, &weights, None), expected);
        }
        assert_eq!(
            text(&zeros(&[0, 2, 3]), network, &weights, None),
            "recurrent: axis 0 of shape [0, 2, 3] has length zero"
        );
        assert_eq!(
            text(&zeros(&[2, 0, 3]), network.batch_first(true), &weights, None),
            "recurrent: axis 1 of shape [2, 0, 3] has length zero"
        );
        for (network, said) in [
            (Recurrent::lstm(3, 0), "3 inputs, 0 hidden units and 1 layers"),
            (Recurrent::gru(0, 4), "0 inputs, 4 hidden units and 1 layers"),
            (Recurrent::gru(3, 4).layers(0), "3 inputs, 4 hidden units and 0 layers"),
        ] {
            let expected = format!("recurrent: {said}; of each there has to be at least one");
            assert_eq!(text(&x, network, &zeros(&[network.weights_len()]), None), expected);
        }
        // Too much to count, and no overflow on the way.
        let huge = Recurrent::lstm(3, usize::MAX / 2).layers(usize::MAX);
        assert_eq!(huge.weights_len(), usize::MAX);
        assert!(matches!(x.recurrent(&huge, &weights, None), Err(Error::Shapes { .. })));
    }
}

#[test]
fn an_initial_state_has_to_fit() {
    for tensors in places() {
        let zeros = |shape: &[usize]| tensors.zeros(shape).unwrap();
        let (lstm, gru) = (Recurrent::lstm(3, 4).bidirectional(true), Recurrent::gru(3, 4).bidirectional(true));
        let x = zeros(&[5, 2, 3]);
        let text = |network: Recurrent, hidden: &[usize], cell: Option<&[usize]>| {
            let state = RecurrentState { hidden: zeros(hidden), cell: cell.map(zeros) };
            x.recurrent(&network, &zeros(&[network.weights_len()]), Some(&state)).unwrap_err().to_string()
        };
        assert_eq!(
            text(gru, &[1, 2, 4], None),
            "recurrent: shapes [1, 2, 4] and [2, 2, 4] differ; the second is what the initial hidden state has"
        );
        assert_eq!(
            text(lstm, &[2, 2, 4], Some(&[2, 4])),
            "recurrent: shapes [2, 4] and [2, 2, 4] differ; the second is what the initial cells have"
        );
        assert_eq!(
            text(lstm, &[2, 2, 4], None),
            "recurrent: shapes [] and [2, 2, 4] differ; the second is what an LSTM's initial cells have"
        );
        assert_eq!(
            text(gru, &[2, 2, 4], Some(&[2, 2, 4])),
            "recurrent: shapes [2, 2, 4] and [] differ; only an LSTM begins with cells"
        );
    }
}

#[test]
fn operands_are_f32_and_of_one_place() {
    for tensors in places() {
        let network = Recurrent::gru(3, 4);
        let (x, weights) = (tensors.zeros(&[5, 2, 3]).unwrap(), tensors.zeros(&[network.weights_len()]).unwrap());
        let whole = |x: &Tensor| x.cast(DType::I32).unwrap();
        let state = RecurrentState { hidden: tensors.full(&[1, 2, 4], 1).unwrap(), cell: None };
        for got in [
            whole(&x).recurrent(&network, &weights, None),
            x.recurrent(&network, &whole(&weights), None),
            x.recurrent(&network, &weights, Some(&state)),
        ] {
            assert_eq!(got.unwrap_err().to_string(), "recurrent: takes f32, not i32");
        }
        let elsewhere = Tensors::on(tensors.device()).unwrap().zeros(&[network.weights_len()]).unwrap();
        assert!(matches!(x.recurrent(&network, &elsewhere, None), Err(Error::Strangers { .. })));
    }
}

#[test]
fn no_sequences_give_no_states() {
    for tensors in places() {
        let network = Recurrent::lstm(3, 4).layers(2);
        let x = tensors.zeros(&[5, 0, 3]).unwrap();
        let got = x.recurrent(&network, &tensors.zeros(&[network.weights_len()]).unwrap(), None).unwrap();
        assert_eq!((got.output.shape(), got.state.hidden.shape()), (&[5, 0, 4][..], &[2, 0, 4][..]));
        assert_eq!(got.state.cell.unwrap().shape(), [2, 0, 4]);
        assert!(got.output.to_vec::<f32>().unwrap().is_empty());
    }
}

#[test]
fn states_at_the_ends_of_the_gates_stay_finite_and_nan_stays() {
    for tensors in places() {
        for kind in [Kind::Tanh, Kind::Gru, Kind::Lstm] {
            let case = Case { kind, ..Case::default() };
            let run = |x: f32, w: f32| {
                let x = tensors.full(&case.shape(), x).unwrap();
                let weights = tensors.full(&[case.network().weights_len()], w).unwrap();
                parts(&x.recurrent(&case.network(), &weights, None).unwrap())
            };
            for (x, w) in [(1e30, 1.0), (-1e30, 1.0), (1e4, 1e4), (0.0, -1e20)] {
                assert!(run(x, w).iter().flatten().all(|y| y.is_finite()), "{case:?}, {x} and {w}");
            }
            assert!(run(f32::NAN, 1.0)[0].iter().all(|y| y.is_nan()), "{case:?}");
        }
    }
}

/// Launches and other commands that a call takes.
fn commands(tensors: &Tensors, case: Case) -> (u64, u64) {
    let x = tensors.from_slice(&case.x(), &case.shape()).unwrap();
    let weights = tensors.from_slice(&case.weights(), &[case.network().weights_len()]).unwrap();
    tensors.synchronize().unwrap();
    let before = tensors.device().counts();
    let _result = x.recurrent(&case.network(), &weights, None).unwrap();
    tensors.synchronize().unwrap();
    let counts = tensors.device().counts() - before;
    (counts.launches, counts.writes + counts.reads + counts.copies + counts.fills)
}

#[test]
fn a_gpu_takes_one_launch_for_every_step_of_a_layer_and_two_to_begin_it() {
    // A device of its own: nobody else's commands are counted.
    let Ok(gpu) = millrace::runtime().open("gpu") else { return };
    let tensors = Tensors::on(&gpu).unwrap();
    for kind in KINDS {
        for (layers, both, batch_first) in [(1, false, false), (1, true, true), (3, true, false)] {
            let case = Case { kind, layers, both, batch_first, steps: 9, batch: 6, ..Case::default() };
            // One product for all steps and both directions, the recurrent weights turned once, and the steps.
            assert_eq!(commands(&tensors, case), (layers as u64 * (1 + 1 + 9), 0), "{case:?}");
        }
    }
}

#[test]
fn the_cpu_takes_two_launches_for_every_layer() {
    let tensors = Tensors::on(&millrace::runtime().open("cpu").unwrap()).unwrap();
    for kind in KINDS {
        for (layers, both, batch_first) in [(1, false, false), (1, true, true), (3, true, false)] {
            let case = Case { kind, layers, both, batch_first, steps: 9, batch: 6, ..Case::default() };
            assert_eq!(commands(&tensors, case), (2 * layers as u64, 0), "{case:?}");
        }
    }
}

fn any_case() -> impl Strategy<Value = Case> {
    let flags = (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>());
    let sizes = (1usize..6, 1usize..20, 1usize..6, 1usize..10, 1usize..4);
    (0..KINDS.len(), sizes, flags).prop_map(|(kind, (input, hidden, steps, batch, layers), flags)| {
        let (both, batch_first, bias, initial) = flags;
        Case { kind: KINDS[kind], input, hidden, layers, both, batch_first, bias, initial, steps, batch }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn small_networks_of_any_shape_follow_their_equations(case in any_case()) {
        for tensors in places() {
            case.check(&tensors);
        }
    }
}
