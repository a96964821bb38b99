//! Recurrent networks: vanilla, GRU and LSTM, in layers, forwards or in both directions.
//!
//! The equations and the order of weights are PyTorch's. For every layer one product makes the input's part of all gates
//! of all steps, for both directions. What is left of a step is the product with the hidden state before it and the
//! gates. On the CPU all steps of a layer are one launch, see `cpu.rs`. Elsewhere a step is one launch, for both
//! directions; the recurrent weights are turned once per layer, so that neighbouring threads read neighbouring weights.
//! Nothing is ever transposed for `batch_first`: rows are found by two strides.

mod cpu;
mod gates;
mod network;
mod sync;

use bytemuck::{Pod, Zeroable};
use millrace_core::{Access, KernelSpec, Launch};

use super::{BLOCK, Family, copy, create, grid, together, wgsl};
use crate::{
    DType, Error, Result, Tensor,
    check::Call,
    layout::{Layout, Shape},
};
use network::Cell;
pub use network::{Nonlinearity, Recurrent};

const OP: &str = "recurrent";
/// Rows of a batch that one thread of a GPU does, with every weight read once.
const ROWS: usize = 4;

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    hidden: u32,
    batch: u32,
    steps: u32,
    directions: u32,
    /// Rows of input and output from one step to the next, and from one sequence to the next.
    along: u32,
    across: u32,
    /// Where the recurrent weights of the first direction are,
    recurrent: u32,
    /// and its biases;
    biases: u32,
    /// from one direction's weights to the next one's.
    direction: u32,
    has_bias: u32,
    has_initial: u32,
    /// Where this layer's states are among the initial ones,
    hidden_from: u32,
    cell_from: u32,
    /// and among the final ones.
    state_to: u32,
    /// The step that a launch on a GPU does.
    step: u32,
}

/// Every cell once for all steps (the CPU's) and once for one step.
pub(crate) const KERNELS: usize = 2 * Cell::ALL.len();

pub(crate) fn spec(number: usize) -> KernelSpec {
    let cell = Cell::ALL[number % Cell::ALL.len()];
    if number < Cell::ALL.len() { all_steps(cell) } else { one_step(cell) }
}

fn all_steps(cell: Cell) -> KernelSpec {
    let spec = KernelSpec::new(format!("recurrent_{}", cell.name()))
        .params::<Params>()
        .binding::<f32>("input", Access::Read)
        .binding::<f32>("weights", Access::Read)
        .binding::<f32>("hidden_before", Access::Read)
        .binding::<f32>("output", Access::Overwrite)
        .binding::<f32>("hidden", Access::Overwrite)
        .binding::<f32>("packed", Access::Overwrite);
    let spec = match cell {
        Cell::Lstm => spec.binding::<f32>("cell_before", Access::Read).binding::<f32>("cell", Access::Overwrite),
        _ => spec,
    };
    spec.cpu(cpu::kernel(cell))
}

fn one_step(cell: Cell) -> KernelSpec {
    let spec = KernelSpec::new(format!("recurrent_step_{}", cell.name()))
        .params::<Params>()
        .block(BLOCK)
        .binding::<f32>("input", Access::Read)
        .binding::<f32>("turned", Access::Read)
        .binding::<f32>("weights", Access::Read)
        .binding::<f32>("hidden_before", Access::Read)
        .binding::<f32>("output", Access::ReadWrite)
        .binding::<f32>("hidden", Access::ReadWrite);
    let spec = match cell {
        Cell::Lstm => spec.binding::<f32>("cell_before", Access::Read).binding::<f32>("cell", Access::ReadWrite),
        _ => spec,
    };
    let gates = cell.gates();
    let each = |line: &dyn Fn(usize) -> String| (0..gates).map(line).collect::<String>();
    let sums = each(&|g| format!("var s{g} = vec4<f32>();\n"));
    let products = each(&|g| format!("s{g} += turned[at + {g}u * params.hidden] * h;\n"));
    let names = [
        (
            "{CELL}",
            match cell {
                Cell::Tanh | Cell::Relu => "",
                Cell::Gru => include_str!("gru.wgsl"),
                Cell::Lstm => include_str!("lstm.wgsl"),
            },
        ),
        ("{GATES}", &format!("{gates}u")),
        ("{SUMS}", &sums),
        ("{PRODUCTS}", &products),
        (
            "{VALUE}",
            match cell {
                Cell::Tanh => "tanh_(given(0u, b) + recurrent(0u, s0[i]))",
                Cell::Relu => "relu(given(0u, b) + recurrent(0u, s0[i]))",
                Cell::Gru => "gru(b, s0[i], s1[i], s2[i])",
                Cell::Lstm => "lstm(b, s0[i], s1[i], s2[i], s3[i])",
            },
        ),
    ];
    let source = format!("{}{}", include_str!("../math.wgsl"), include_str!("step.wgsl"));
    spec.wgsl(wgsl(&source, &names))
}

/// The hidden state of every layer and direction, layers outermost; for an LSTM its cells too.
///
/// ```
/// use millrace::tensor::{Recurrent, RecurrentState, Tensors};
/// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
/// let network = Recurrent::lstm(3, 5).layers(2);
/// let weights = tensors.rand(&[network.weights_len()], 1)?;
/// let (first, second) = (tensors.rand(&[4, 1, 3], 2)?, tensors.rand(&[6, 1, 3], 3)?);
/// // A sequence may come in parts: what a part ends with, the next one begins with.
/// let start: RecurrentState = first.recurrent(&network, &weights, None)?.state;
/// assert_eq!(start.hidden.shape(), [2, 1, 5]);
/// let end = second.recurrent(&network, &weights, Some(&start))?;
/// assert_eq!(end.output.shape(), [6, 1, 5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct RecurrentState {
    /// `[layers * directions, batch, hidden]`.
    pub hidden: Tensor,
    /// The same shape; only an LSTM has it.
    pub cell: Option<Tensor>,
}

/// What a recurrent network gives. See [`Tensor::recurrent`].
#[derive(Debug, Clone)]
pub struct RecurrentOutput {
    /// The last layer's hidden state of every step, `[steps, batch, directions * hidden]`, or with the first two axes
    /// exchanged if the batch comes first. Backwards is behind forwards.
    pub output: Tensor,
    /// What the sequence ended with: after the last step forwards, after the first step backwards.
    pub state: RecurrentState,
}

impl Tensor {
    /// Runs a recurrent network over sequences: `[steps, batch, input]`, or `[batch, steps, input]` if the network takes
    /// the batch first. Without an initial state it begins with zeros. See [`Recurrent`] for the order of `weights`.
    ///
    /// ```
    /// use millrace::tensor::{Recurrent, Tensors};
    /// let tensors = Tensors::on(&millrace::runtime().open("cpu")?)?;
    /// let network = Recurrent::gru(3, 8).layers(2).bidirectional(true).batch_first(true);
    /// let weights = tensors.rand(&[network.weights_len()], 1)?;
    /// let x = tensors.rand(&[2, 10, 3], 2)?;
    /// let y = x.recurrent(&network, &weights, None)?;
    /// assert_eq!((y.output.shape(), y.state.hidden.shape()), (&[2, 10, 16][..], &[4, 2, 8][..]));
    ///
    /// let error = x.recurrent(&network.layers(1), &weights, None).unwrap_err().to_string();
    /// assert_eq!(error, "recurrent: shapes [1872] and [624] differ; the second is what the packed weights have");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn recurrent(
        &self,
        network: &Recurrent,
        weights: &Self,
        initial: Option<&RecurrentState>,
    ) -> Result<RecurrentOutput> {
        let checked = Checked::new(self, network, weights, initial)?;
        if checked.batch == 0 {
            return checked.nothing(self);
        }
        let weights = weights.contiguous()?;
        let initial = initial.map(contiguous).transpose()?;
        let result = checked.run(self, &weights, initial.as_ref())?;
        let (hidden, cell) = (initial.as_ref().map(|i| &i.hidden), initial.as_ref().and_then(|i| i.cell.as_ref()));
        let inputs = [Some(self), Some(&weights), hidden, cell];
        self.tensors().watch_some(|| Call::Recurrent { network: *network }, &inputs, &result.output);
        Ok(result)
    }
}

fn contiguous(state: &RecurrentState) -> Result<RecurrentState> {
    let cell = state.cell.as_ref().map(Tensor::contiguous).transpose()?;
    Ok(RecurrentState { hidden: state.hidden.contiguous()?, cell })
}

/// A call that is known to be right.
struct Checked<'a> {
    network: &'a Recurrent,
    steps: usize,
    batch: usize,
    output: Shape,
    states: Shape,
}

impl<'a> Checked<'a> {
    fn new(x: &Tensor, network: &'a Recurrent, weights: &Tensor, initial: Option<&RecurrentState>) -> Result<Self> {
        network.check(OP)?;
        let given = [Some(x), Some(weights), initial.map(|i| &i.hidden), initial.and_then(|i| i.cell.as_ref())];
        for tensor in given.into_iter().flatten() {
            if tensor.dtype() != DType::F32 {
                return Err(Error::DType { op: OP, given: tensor.dtype(), takes: "f32" });
            }
            together(OP, x, tensor)?;
        }
        let differ = |left: &[usize], right: &[usize], why| {
            Err(Error::Shapes { op: OP, left: left.into(), right: right.into(), why })
        };
        let &[first, second, features] = x.shape() else {
            let why = "do not go together; a batch of sequences has three axes, the last of the second's length";
            return differ(x.shape(), &[network.input], why);
        };
        let (steps, batch) = if network.batch_first { (second, first) } else { (first, second) };
        if features != network.input {
            return differ(x.shape(), &[first, second, network.input], "differ; the second is what the network takes");
        }
        if steps == 0 {
            let (axis, shape) = (isize::from(network.batch_first), x.shape().into());
            return Err(Error::Axis { op: OP, axis, shape, why: "has length zero" });
        }
        if weights.shape() != [network.weights_len()] {
            let why = "differ; the second is what the packed weights have";
            return differ(weights.shape(), &[network.weights_len()], why);
        }
        let states = Shape::new(OP, &[network.layers * network.directions(), batch, network.hidden])?;
        if let Some(initial) = initial {
            if initial.hidden.shape() != &*states {
                let why = "differ; the second is what the initial hidden state has";
                return differ(initial.hidden.shape(), &states, why);
            }
            match (&initial.cell, network.cell) {
                (Some(cell), Cell::Lstm) if cell.shape() != &*states => {
                    return differ(cell.shape(), &states, "differ; the second is what the initial cells have");
                }
                (None, Cell::Lstm) => {
                    return differ(&[], &states, "differ; the second is what an LSTM's initial cells have");
                }
                (Some(cell), cell_kind) if cell_kind != Cell::Lstm => {
                    return differ(cell.shape(), &[], "differ; only an LSTM begins with cells");
                }
                _ => {}
            }
        }
        let output = Shape::new(OP, &[first, second, network.directions() * network.hidden])?;
        Ok(Self { network, steps, batch, output, states })
    }

    /// No sequences at all.
    fn nothing(&self, x: &Tensor) -> Result<RecurrentOutput> {
        let empty = |shape: Shape| create::full(x.tensors(), shape, DType::F32, 0);
        let cell = if self.network.cell == Cell::Lstm { Some(empty(self.states)?) } else { None };
        Ok(RecurrentOutput { output: empty(self.output)?, state: RecurrentState { hidden: empty(self.states)?, cell } })
    }

    fn run(&self, x: &Tensor, weights: &Tensor, initial: Option<&RecurrentState>) -> Result<RecurrentOutput> {
        let (network, tensors) = (self.network, x.tensors());
        let state = RecurrentState {
            hidden: tensors.output(DType::F32, self.states)?,
            cell: match network.cell {
                Cell::Lstm => Some(tensors.output(DType::F32, self.states)?),
                _ => None,
            },
        };
        let (rows, directions) = (self.steps * self.batch, network.directions());
        let mut input = x.clone();
        for layer in 0..network.layers {
            let features = network.features(layer);
            let parts = network.parts(layer);
            let base = weights.layout().offset + network.start(layer);
            let of = |rows: usize, at: usize| -> Result<Tensor> {
                // Columns of the matrix are rows of this view.
                let shape = Shape::new(OP, &[directions, rows, network.cell.gates() * network.hidden])?;
                let mut layout = Layout { offset: base + at, ..Layout::contiguous(shape) };
                layout.strides[..3].copy_from_slice(&[parts.len as isize, 1, rows as isize]);
                Ok(weights.view(layout))
            };
            let given = input.reshape(&[1, rows, features])?.matmul(&of(features, 0)?)?;
            let output = tensors.output(DType::F32, self.output)?;
            let (along, across) = if network.batch_first { (1, self.steps) } else { (self.batch, 1) };
            let elements = directions * self.batch * network.hidden;
            let at = layer * elements;
            let offset = |state: Option<&Tensor>| state.map_or(0, |state| state.layout().offset + at) as u32;
            let params = Params {
                hidden: network.hidden as u32,
                batch: self.batch as u32,
                steps: self.steps as u32,
                directions: directions as u32,
                along: along as u32,
                across: across as u32,
                recurrent: (base + parts.recurrent) as u32,
                biases: (base + parts.biases) as u32,
                direction: parts.len as u32,
                has_bias: u32::from(network.bias),
                has_initial: u32::from(initial.is_some()),
                hidden_from: offset(initial.map(|i| &i.hidden)),
                cell_from: offset(initial.and_then(|i| i.cell.as_ref())),
                state_to: at as u32,
                step: 0,
            };
            let layer = Step { network, given: &given, weights, initial, output: &output, state: &state, elements };
            if tensors.is_bounded() {
                layer.one_by_one(params, &of(network.hidden, parts.recurrent)?)?;
            } else {
                layer.at_once(&params)?;
            }
            input = output;
        }
        Ok(RecurrentOutput { output: input, state })
    }
}

/// A layer under way.
struct Step<'a> {
    network: &'a Recurrent,
    given: &'a Tensor,
    weights: &'a Tensor,
    initial: Option<&'a RecurrentState>,
    output: &'a Tensor,
    state: &'a RecurrentState,
    /// Of this layer's hidden state.
    elements: usize,
}

impl Step<'_> {
    fn kernel(&self) -> usize {
        self.network.cell as usize
    }

    /// A tensor that is read, or another one in its place if there is none: kernels look at a flag.
    fn read(launch: Launch, tensor: Option<&Tensor>, other: &Tensor) -> Launch {
        match tensor.unwrap_or(other).buffer() {
            Some(buffer) => launch.bind(buffer),
            None => launch,
        }
    }

    /// All steps in one launch.
    fn at_once(&self, params: &Params) -> Result<()> {
        let tensors = self.given.tensors();
        let packed = Shape::new(OP, &[cpu::packed_len(self.network)])?;
        let packed = tensors.output(DType::F32, packed)?;
        let part = |tensor: &Tensor| {
            let start = params.state_to as usize * size_of::<f32>();
            tensor.buffer().map(|buffer| buffer.slice(start..start + self.elements * size_of::<f32>()))
        };
        let (Some(output), Some(hidden), Some(packed)) =
            (self.output.buffer(), part(&self.state.hidden), packed.buffer())
        else {
            return Ok(());
        };
        let launch = tensors.kernel(Family::Recurrent, self.kernel())?.launch();
        let launch = Self::read(Self::read(launch, None, self.given), None, self.weights);
        let launch = Self::read(launch, self.initial.map(|i| &i.hidden), self.given);
        let mut launch = launch.bind(output).bind(hidden).bind(packed);
        if let Some(cell) = self.state.cell.as_ref().and_then(part) {
            launch = Self::read(launch, self.initial.and_then(|i| i.cell.as_ref()), self.given).bind(cell);
        }
        tensors.enqueue(launch.params(params))
    }

    /// A launch for every step. `recurrent` are its weights with one hidden unit's behind those of all gates.
    fn one_by_one(&self, mut params: Params, recurrent: &Tensor) -> Result<()> {
        let tensors = self.given.tensors();
        let turned = copy::copy(recurrent)?;
        let (Some(output), Some(hidden)) = (self.output.buffer(), self.state.hidden.buffer()) else { return Ok(()) };
        let threads = params.directions as usize * self.network.hidden * (params.batch as usize).div_ceil(ROWS);
        for step in 0..params.steps {
            params.step = step;
            let launch = tensors.kernel(Family::Recurrent, Cell::ALL.len() + self.kernel())?.launch();
            let launch = Self::read(Self::read(launch, None, self.given), None, &turned);
            let launch = Self::read(launch, None, self.weights);
            let launch = Self::read(launch, self.initial.map(|i| &i.hidden), self.given);
            let mut launch = launch.bind(output).bind(hidden);
            if let Some(cell) = self.state.cell.as_ref().and_then(Tensor::buffer) {
                launch = Self::read(launch, self.initial.and_then(|i| i.cell.as_ref()), self.given).bind(cell);
            }
            tensors.enqueue(launch.params(&params).grid(grid(threads)))?;
        }
        Ok(())
    }
}
