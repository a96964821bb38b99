//! All steps of a layer on the CPU.
//!
//! The recurrent weights are packed first: a panel holds, for one vector of hidden units and all gates, the weights of one
//! unit of the state before after the other. So a step walks through memory in order, a few sequences at a time, with
//! their sums in registers, and ends with all gates of the same units at hand.
//!
//! Directions do not wait for one another, and neither do sequences; threads share them as far as they go. Beyond that
//! threads share the panels of a step, and meet after every step (`sync.rs`).

use std::ops::Range;

use millrace_core::{CpuKernel, Launched, Threads};
use pulp::{Simd, WithSimd};

use super::{Cell, Params, Recurrent, gates, sync::Together};
use crate::{
    cpu::{stream::prefetch, worth_threads},
    simd::arch,
};

/// Lanes of the widest vectors.
const WIDEST: usize = 16;
/// Sequences at a time, at most.
const ROWS: usize = 6;
/// Elements that the gates do at a time, at most.
const BLOCK: usize = ROWS * WIDEST;
/// Vectors of a panel, at most.
const VECTORS: usize = 4;
/// Sequences from which on threads share them instead of panels.
const ENOUGH: usize = 8;
/// Nanoseconds per weight and sequence on one thread, roughly.
const COST: f64 = 0.02;

/// Vectors of units that a panel has of each gate, so that there are sums enough to keep the processor busy.
fn blocks(cell: Cell) -> usize {
    if cell.gates() == 1 { VECTORS } else { 1 }
}

/// What packed weights take, whatever the width of vectors.
pub(super) fn packed_len(network: &Recurrent) -> usize {
    let units = network.hidden.next_multiple_of(WIDEST * blocks(network.cell));
    network.directions() * network.hidden * network.cell.gates() * units
}

pub(super) fn kernel(cell: Cell) -> CpuKernel {
    CpuKernel::whole(move |launch| run(launch, cell))
}

/// Memory of which every task writes a part of its own, and reads what was written in steps before.
#[derive(Clone, Copy)]
struct Shared {
    start: *mut f32,
    len: usize,
}

// SAFETY: tasks access disjoint parts, or parts that were written before they met; it is borrowed for the launch.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(slice: &mut [f32]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len() }
    }

    /// # Safety
    /// Nobody writes these elements while the result lives.
    #[inline(always)]
    unsafe fn read<'a>(self, at: usize, len: usize) -> &'a [f32] {
        assert!(at <= self.len && len <= self.len - at, "inside");
        // SAFETY: inside, and by contract not written.
        unsafe { std::slice::from_raw_parts(self.start.add(at), len) }
    }

    /// # Safety
    /// Nobody else reads or writes these elements while the result lives.
    #[inline(always)]
    unsafe fn write<'a>(self, at: usize, len: usize) -> &'a mut [f32] {
        assert!(at <= self.len && len <= self.len - at, "inside");
        // SAFETY: inside, and by contract nobody else's.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }
}

/// A layer: its operands, and how it is divided.
struct Layer<'a> {
    cell: Cell,
    gates: usize,
    hidden: usize,
    batch: usize,
    steps: usize,
    directions: usize,
    params: Params,
    /// The input's part of all gates: `[direction, row, gate, unit]`.
    given: &'a [f32],
    weights: &'a [f32],
    hidden_before: Option<&'a [f32]>,
    cell_before: Option<&'a [f32]>,
    output: Shared,
    hidden_after: Shared,
    cell_after: Option<Shared>,
    packed: Shared,
    /// Hidden units of a panel, panels of a direction, and elements of a panel.
    units: usize,
    panels: usize,
    panel: usize,
}

fn run(launch: &mut Launched<'_>, cell: Cell) {
    let params = launch.params::<Params>();
    let before = |input: &'_ [f32], from: u32| (params.has_initial != 0).then_some(from as usize..input.len());
    let (given, weights, hidden_before) = (launch.input::<f32>(0), launch.input::<f32>(1), launch.input::<f32>(2));
    let hidden_before = before(hidden_before, params.hidden_from).map(|range| &hidden_before[range]);
    let output = Shared::new(launch.output::<f32>(3));
    let hidden_after = Shared::new(launch.output::<f32>(4));
    let packed = launch.output::<f32>(5);
    let (cell_before, cell_after) = match cell {
        Cell::Lstm => {
            let cells = launch.input::<f32>(6);
            let cells = before(cells, params.cell_from).map(|range| &cells[range]);
            (cells, Some(Shared::new(launch.output::<f32>(7))))
        }
        _ => (None, None),
    };
    let (hidden, directions) = (params.hidden as usize, params.directions as usize);
    let units = arch().dispatch(Lanes) * blocks(cell);
    let (panels, panel) = (hidden.div_ceil(units), hidden * cell.gates() * units);
    // Narrow vectors leave less over at the end of the hidden units.
    packed[directions * panels * panel..].fill(0.0);
    let layer = Layer {
        cell,
        gates: cell.gates(),
        hidden,
        batch: params.batch as usize,
        steps: params.steps as usize,
        directions,
        params,
        given,
        weights,
        hidden_before,
        cell_before,
        output,
        hidden_after,
        cell_after,
        packed: Shared::new(packed),
        units,
        panels,
        panel,
    };
    layer.run(launch.threads());
}

/// Lanes of a vector.
struct Lanes;

impl WithSimd for Lanes {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        S::F32_LANES
    }
}

/// Part `n` of `0..len` in `parts` of about the same size.
fn part(len: usize, parts: usize, n: usize) -> Range<usize> {
    len * n / parts..len * (n + 1) / parts
}

impl Layer<'_> {
    fn run(&self, threads: &dyn Threads) {
        let weights = self.hidden * self.hidden * self.gates * self.directions;
        let parallel = worth_threads(threads, COST * (weights * self.steps * self.batch) as f64);
        let count = if parallel { threads.count() } else { 1 };
        let for_each = |n: usize, each: &(dyn Fn(u64) + Sync)| match count {
            1 => (0..n as u64).for_each(each),
            _ => threads.for_each(n as u64, each),
        };
        let panels = self.directions * self.panels;
        let pieces = panels.min(4 * count);
        for_each(pieces, &|piece| part(panels, pieces, piece as usize).for_each(|panel| self.pack(panel)));
        // Directions first, then sequences, then panels.
        let each = (count / self.directions).max(1);
        let groups = (self.batch / ENOUGH).clamp(1, each);
        let members = (each / groups).clamp(1, self.panels);
        let teams: Vec<Together> = (0..self.directions * groups).map(|_| Together::new(members, self.steps)).collect();
        for_each(teams.len() * members, &|task| {
            let (team, me) = (task as usize / members, task as usize % members);
            let (direction, rows) = (team / groups, part(self.batch, groups, team % groups));
            let work = |member: usize, step: usize| {
                let panels = part(self.panels, members, member);
                arch().dispatch(Work { layer: self, direction, step, rows: rows.clone(), panels });
            };
            if members == 1 { (0..self.steps).for_each(|step| work(0, step)) } else { teams[team].join(me, work) }
        });
    }

    /// Where a direction's weights are, from its first recurrent one.
    fn recurrent(&self, direction: usize) -> usize {
        (self.params.recurrent + direction as u32 * self.params.direction) as usize
    }

    /// Where its biases are.
    #[inline(always)]
    fn biases(&self, direction: usize) -> usize {
        (self.params.biases + direction as u32 * self.params.direction) as usize
    }

    /// Packs a panel: `[unit before, gate, unit]`.
    fn pack(&self, panel: usize) {
        /// Of the state before, that are done together: a cache line of each row.
        const TOGETHER: usize = 16;
        let (direction, first) = (panel / self.panels, panel % self.panels * self.units);
        let (hidden, gates, units) = (self.hidden, self.gates, self.units);
        let weights = &self.weights[self.recurrent(direction)..][..gates * hidden * hidden];
        // SAFETY: every panel is packed by one task, and read after all are done.
        let packed = unsafe { self.packed.write(panel * self.panel, self.panel) };
        let (here, width) = (units.min(hidden - first), gates * units);
        if here < units {
            packed.fill(0.0);
        }
        for (gate, start) in (0..gates).flat_map(|gate| (0..hidden).step_by(TOGETHER).map(move |k| (gate, k))) {
            let len = TOGETHER.min(hidden - start);
            let rows = &weights[(gate * hidden + first) * hidden..][..here * hidden];
            let to = &mut packed[start * width..][..len * width];
            for (unit, row) in rows.chunks_exact(hidden).enumerate() {
                for (to, weight) in to[gate * units + unit..].iter_mut().step_by(width).zip(&row[start..start + len]) {
                    *to = *weight;
                }
            }
        }
    }

    /// The row of a step of a sequence, in input and output.
    #[inline(always)]
    fn row(&self, step: usize, sequence: usize) -> usize {
        step * self.params.along as usize + sequence * self.params.across as usize
    }
}

/// A part of one step.
struct Work<'a> {
    layer: &'a Layer<'a>,
    direction: usize,
    step: usize,
    rows: Range<usize>,
    panels: Range<usize>,
}

impl WithSimd for Work<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.layer.gates {
            3 => self.panels_of::<S, 3>(simd),
            _ => self.panels_of::<S, 4>(simd),
        }
    }
}

/// Gates of some sequences for the units of a panel, sequences behind one another.
struct Sums {
    /// One array for every vector of the panel: the input's part, biases and the product with the state before,
    sums: [[f32; BLOCK]; VECTORS],
    /// but what the state adds to a GRU's candidate is here, with its bias.
    apart: [f32; BLOCK],
}

impl Work<'_> {
    /// In time, which runs backwards for the second direction.
    fn time(&self) -> usize {
        if self.direction == 0 { self.step } else { self.layer.steps - 1 - self.step }
    }

    /// The hidden state of a sequence before this step. Empty if it is all zeros.
    #[inline(always)]
    fn before(&self, sequence: usize) -> &[f32] {
        let layer = self.layer;
        let hidden = layer.hidden;
        if self.step == 0 {
            let at = (self.direction * layer.batch + sequence) * hidden;
            return layer.hidden_before.map_or(&[], |state| &state[at..at + hidden]);
        }
        let time = if self.direction == 0 { self.time() - 1 } else { self.time() + 1 };
        let at = (layer.row(time, sequence) * layer.directions + self.direction) * hidden;
        // SAFETY: a step that is done, which nobody writes any more.
        unsafe { layer.output.read(at, hidden) }
    }

    #[inline(always)]
    fn panels_of<S: Simd, const V: usize>(&self, simd: S) {
        // As many sums as there are registers for.
        let most = match S::F32_LANES {
            16 | 4 => ROWS,
            8 => 3,
            _ => 1,
        };
        let passes = self.rows.len().div_ceil(most);
        let mut sums = Sums { sums: [[0.0; BLOCK]; VECTORS], apart: [0.0; BLOCK] };
        for panel in self.panels.clone() {
            for pass in 0..passes {
                let rows = part(self.rows.len(), passes, pass);
                let rows = self.rows.start + rows.start..self.rows.start + rows.end;
                self.rows_of::<S, V>(simd, panel, rows, &mut sums);
            }
        }
    }

    /// Some sequences, for the units of one panel.
    #[inline(always)]
    fn rows_of<S: Simd, const V: usize>(&self, simd: S, panel: usize, rows: Range<usize>, sums: &mut Sums) {
        let layer = self.layer;
        let (hidden, lanes) = (layer.hidden, S::F32_LANES);
        // SAFETY: packed before the steps began.
        let packed = unsafe { layer.packed.read((self.direction * layer.panels + panel) * layer.panel, layer.panel) };
        let mut states: [&[f32]; ROWS] = [&[]; ROWS];
        for (state, sequence) in states.iter_mut().zip(rows.clone()) {
            *state = self.before(sequence);
            // The input's part comes from far; it is here when the product is.
            for v in 0..V {
                if let Some((gate, unit, _)) = self.place(panel, v, lanes) {
                    prefetch(&layer.given[self.given(sequence) + gate * hidden + unit..][..1]);
                }
            }
        }
        match rows.len() {
            1 => multiply::<S, V, 1>(simd, packed, &states, sums),
            2 => multiply::<S, V, 2>(simd, packed, &states, sums),
            3 => multiply::<S, V, 3>(simd, packed, &states, sums),
            4 => multiply::<S, V, 4>(simd, packed, &states, sums),
            5 => multiply::<S, V, 5>(simd, packed, &states, sums),
            _ => multiply::<S, V, ROWS>(simd, packed, &states, sums),
        }
        let (biases, width) = (layer.biases(self.direction), layer.gates * hidden);
        for v in 0..V {
            let Some((gate, unit, len)) = self.place(panel, v, lanes) else { continue };
            let at = gate * hidden + unit;
            let mut bias = [simd.splat_f32s(0.0); 2];
            if layer.params.has_bias != 0 {
                bias[0] = load(simd, &layer.weights[biases + at..][..len]);
                bias[1] = load(simd, &layer.weights[biases + width + at..][..len]);
            }
            let apart = V == 3 && gate == 2;
            for (row, sequence) in rows.clone().enumerate() {
                let place = row * lanes..(row + 1) * lanes;
                let given = load(simd, &layer.given[self.given(sequence) + at..][..len]);
                let product = load(simd, &sums.sums[v][place.clone()]);
                let (given, product) = (simd.add_f32s(given, bias[0]), simd.add_f32s(product, bias[1]));
                let sum = if apart { given } else { simd.add_f32s(given, product) };
                store(simd, &mut sums.sums[v][place.clone()], sum);
                if apart {
                    store(simd, &mut sums.apart[place], product);
                }
            }
        }
        self.gates(simd, panel, rows, sums, &states);
    }

    /// Where the input's part of a sequence is.
    #[inline(always)]
    fn given(&self, sequence: usize) -> usize {
        let layer = self.layer;
        let row = self.direction * layer.steps * layer.batch + layer.row(self.time(), sequence);
        row * layer.gates * layer.hidden
    }

    /// The gate that vector `v` of a panel belongs to, its first unit, and how many there are. None past the last unit.
    #[inline(always)]
    fn place(&self, panel: usize, v: usize, lanes: usize) -> Option<(usize, usize, usize)> {
        let (gate, block) = if self.layer.gates == 1 { (0, v) } else { (v, 0) };
        let unit = panel * self.layer.units + block * lanes;
        let left = self.layer.hidden.checked_sub(unit).filter(|left| *left > 0)?;
        Some((gate, unit, lanes.min(left)))
    }

    /// Ends the step for the units of a panel.
    #[inline(always)]
    fn gates<S: Simd>(&self, simd: S, panel: usize, rows: Range<usize>, sums: &Sums, states: &[&[f32]; ROWS]) {
        let lanes = S::F32_LANES;
        let n = rows.len() * lanes;
        let mut new = [0.0; BLOCK];
        if self.layer.gates == 1 {
            for v in 0..VECTORS {
                let Some((_, unit, len)) = self.place(panel, v, lanes) else { continue };
                match self.layer.cell {
                    Cell::Tanh => gates::vanilla_tanh(&sums.sums[v][..n], &mut new[..n]),
                    _ => gates::vanilla_relu(&sums.sums[v][..n], &mut new[..n]),
                }
                self.store(simd, rows.clone(), unit, len, &new);
            }
            return;
        }
        let Some((_, unit, len)) = self.place(panel, 0, lanes) else { return };
        // The hidden state before, or the cells.
        let mut old = [0.0; BLOCK];
        let Some(cells) = self.layer.cell_after else {
            for (row, state) in states[..rows.len()].iter().enumerate().filter(|(_, state)| !state.is_empty()) {
                store(simd, &mut old[row * lanes..][..lanes], load(simd, &state[unit..unit + len]));
            }
            let [r, z, given, _] = &sums.sums;
            gates::gru([r, z, given], &sums.apart, &old, &mut new[..n]);
            return self.store(simd, rows, unit, len, &new);
        };
        for (row, sequence) in rows.clone().enumerate() {
            store(simd, &mut old[row * lanes..][..lanes], load(simd, self.cells(cells, sequence, unit, len)));
        }
        let [i, f, g, o] = &sums.sums;
        gates::lstm([i, f, g, o], &mut old, &mut new[..n]);
        for (row, sequence) in rows.clone().enumerate() {
            // SAFETY: the cells of these units and this sequence belong to this task.
            let to = unsafe { cells.write(self.state(sequence) + unit, len) };
            store(simd, to, load(simd, &old[row * lanes..][..lanes]));
        }
        self.store(simd, rows, unit, len, &new);
    }

    /// Where a sequence's state of this direction is.
    #[inline(always)]
    fn state(&self, sequence: usize) -> usize {
        (self.direction * self.layer.batch + sequence) * self.layer.hidden
    }

    /// Some cells of a sequence before this step. Empty if they are all zeros.
    #[inline(always)]
    fn cells(&self, cells: Shared, sequence: usize, unit: usize, len: usize) -> &[f32] {
        let at = self.state(sequence) + unit;
        match self.step {
            0 => self.layer.cell_before.map_or(&[], |cells| &cells[at..at + len]),
            // SAFETY: these belong to this task, which writes them later.
            _ => unsafe { cells.read(at, len) },
        }
    }

    /// Writes the new state of some units, once more if it is the final one.
    #[inline(always)]
    fn store<S: Simd>(&self, simd: S, rows: Range<usize>, unit: usize, len: usize, new: &[f32; BLOCK]) {
        let layer = self.layer;
        for (row, sequence) in rows.enumerate() {
            let new = load(simd, &new[row * S::F32_LANES..][..S::F32_LANES]);
            let at = layer.row(self.time(), sequence) * layer.directions + self.direction;
            // SAFETY: this step's state of these units and this sequence belongs to this task.
            store(simd, unsafe { layer.output.write(at * layer.hidden + unit, len) }, new);
            if self.step + 1 == layer.steps {
                // SAFETY: so does the final one.
                store(simd, unsafe { layer.hidden_after.write(self.state(sequence) + unit, len) }, new);
            }
        }
    }
}

/// Into `sums`, a panel times the states of `R` sequences. States that are empty are zeros.
#[inline(always)]
#[allow(clippy::needless_range_loop, reason = "loops of a known length over registers")]
fn multiply<S: Simd, const V: usize, const R: usize>(simd: S, panel: &[f32], states: &[&[f32]; ROWS], to: &mut Sums) {
    let mut sums = [[simd.splat_f32s(0.0); V]; R];
    let len = states[0].len();
    let mut rows: [&[f32]; R] = [&[]; R];
    for row in 0..R {
        rows[row] = &states[row][..len];
    }
    let (weights, _) = S::as_simd_f32s(panel);
    let (weights, _) = weights.as_chunks::<V>();
    for (k, weights) in weights[..len].iter().enumerate() {
        // States stay and weights go by: with twelve sums there is a register for one of these only.
        let mut now = [simd.splat_f32s(0.0); R];
        for row in 0..R {
            now[row] = simd.splat_f32s(rows[row][k]);
        }
        for v in 0..V {
            let weight = weights[v];
            for row in 0..R {
                sums[row][v] = simd.mul_add_e_f32s(now[row], weight, sums[row][v]);
            }
        }
    }
    for row in 0..R {
        for v in 0..V {
            store(simd, &mut to.sums[v][row * S::F32_LANES..][..S::F32_LANES], sums[row][v]);
        }
    }
}

/// A vector of the slice's elements, with zeros behind them if there are fewer.
#[inline(always)]
fn load<S: Simd>(simd: S, from: &[f32]) -> S::f32s {
    match S::as_simd_f32s(from).0 {
        [vector, ..] => *vector,
        [] => simd.partial_load_f32s(from),
    }
}

/// As many of the vector's elements as the slice has.
#[inline(always)]
fn store<S: Simd>(simd: S, to: &mut [f32], vector: S::f32s) {
    match S::as_mut_simd_f32s(to) {
        ([to, ..], _) => *to = vector,
        (_, to) => simd.partial_store_f32s(to, vector),
    }
}
