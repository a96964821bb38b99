//! All steps of a layer on the CPU.
//!
//! The recurrent weights are packed first: a panel holds, for one vector of hidden units and all gates, the weights of one
//! unit of the state before after the other. So a step walks through memory in order, a few sequences at a time, with
//! their sums in registers, and ends with all gates of the same units at hand.
//!
//! Directions do not wait for one another, and neither do sequences; threads share them as far as they go. Beyond that
//! threads share the panels of a step, and meet after every step (`sync.rs`).

use millrace_core::{CpuKernel, Launched, Threads};
use pulp::{Simd, WithSimd};

use super::{Cell, Params, Recurrent, sync::Together};
use crate::{cpu::worth_threads, math, simd::arch};

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
    let before = |input: &'_ [f32], from: u32| (params.has_initial != 0).then(|| from as usize..input.len());
    let (given, weights, hidden_before) =
        (launch.input::<f32>(0), launch.input::<f32>(1), launch.input::<f32>(2));
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
fn part(len: usize, parts: usize, n: usize) -> std::ops::Range<usize> {
    len * n / parts..len * (n + 1) / parts
}

impl Layer<'_> {
    fn run(&self, threads: &dyn Threads) {
        let weights = self.hidden * self.hidden * self.cell.gates() * self.directions;
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
        let teams: Vec<Together> =
            (0..self.directions * groups).map(|_| Together::new(members, self.steps)).collect();
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

    /// Packs a panel: `[unit before, gate, unit]`.
    fn pack(&self, panel: usize) {
        /// Of the state before, that are done together: a cache line of each row.
        const TOGETHER: usize = 16;
        let (direction, first) = (panel / self.panels, panel % self.panels * self.units);
        let (hidden, gates, units) = (self.hidden, self.cell.gates(), self.units);
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
    rows: std::ops::Range<usize>,
    panels: std::ops::Range<usize>,
}

impl WithSimd for Work<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match self.layer.cell.gates() {
            3 => self.panels_of::<S, 3>(simd),
            _ => self.panels_of::<S, 4>(simd),
        }
    }
}

/// Gates of some sequences for the units of a panel: one array per vector of the panel, sequences behind one another.
struct Sums {
    /// The input's part, with all biases but those of a GRU's reset part,
    given: [[f32; BLOCK]; VECTORS],
    /// and the product with the state before, with those.
    product: [[f32; BLOCK]; VECTORS],
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
        for panel in self.panels.clone() {
            for pass in 0..passes {
                let rows = part(self.rows.len(), passes, pass);
                let first = self.rows.start + rows.start;
                match rows.len() {
                    1 => self.rows_of::<S, V, 1>(simd, panel, first),
                    2 => self.rows_of::<S, V, 2>(simd, panel, first),
                    3 => self.rows_of::<S, V, 3>(simd, panel, first),
                    4 => self.rows_of::<S, V, 4>(simd, panel, first),
                    5 => self.rows_of::<S, V, 5>(simd, panel, first),
                    _ => self.rows_of::<S, V, ROWS>(simd, panel, first),
                }
            }
        }
    }

    /// `R` sequences from `first` on, for the units of one panel.
    #[inline(always)]
    fn rows_of<S: Simd, const V: usize, const R: usize>(&self, simd: S, panel: usize, first: usize) {
        let layer = self.layer;
        let (hidden, gates, lanes) = (layer.hidden, layer.cell.gates(), S::F32_LANES);
        // SAFETY: packed before the steps began.
        let packed = unsafe { layer.packed.read((self.direction * layer.panels + panel) * layer.panel, layer.panel) };
        let mut sums = Sums { given: [[0.0; BLOCK]; VECTORS], product: [[0.0; BLOCK]; VECTORS] };
        // The input's part is asked for first: it comes from far, and is not needed until the product is there.
        let width = gates * hidden;
        let given = |row: usize| {
            let row = layer.row(self.time(), first + row);
            let rows = layer.steps * layer.batch;
            &layer.given[(self.direction * rows + row) * width..][..width]
        };
        let biases = self.layer.recurrent(self.direction) + (layer.params.biases - layer.params.recurrent) as usize;
        for v in 0..V {
            let Some((gate, unit, len)) = self.place(panel, v, lanes) else { continue };
            let at = gate * hidden + unit;
            let load = |from: &[f32]| simd.partial_load_f32s(&from[at..at + len]);
            let mut bias = [simd.splat_f32s(0.0); 2];
            if layer.params.has_bias != 0 {
                bias = [0, 1].map(|n| load(&layer.weights[biases + n * width..][..width]));
            }
            let apart = gates == 3 && gate == 2;
            let with = if apart { bias[0] } else { simd.add_f32s(bias[0], bias[1]) };
            for row in 0..R {
                let sum = simd.add_f32s(load(given(row)), with);
                simd.partial_store_f32s(&mut sums.given[v][row * lanes..][..lanes], sum);
                if apart {
                    simd.partial_store_f32s(&mut sums.product[v][row * lanes..][..lanes], bias[1]);
                }
            }
        }
        let states: [&[f32]; R] = std::array::from_fn(|row| self.before(first + row));
        let products = multiply::<S, V, R>(simd, packed, states);
        for (row, products) in products.iter().enumerate() {
            for v in 0..V {
                let to = &mut sums.product[v][row * lanes..][..lanes];
                let sum = simd.add_f32s(simd.partial_load_f32s(to), products[v]);
                simd.partial_store_f32s(to, sum);
            }
        }
        self.gates::<S, R>(simd, panel, first, &mut sums, &states);
    }

    /// The gate that vector `v` of a panel belongs to, its first unit, and how many there are. None past the last unit.
    #[inline(always)]
    fn place(&self, panel: usize, v: usize, lanes: usize) -> Option<(usize, usize, usize)> {
        let (gate, block) = if self.layer.cell.gates() == 1 { (0, v) } else { (v, 0) };
        let unit = panel * self.layer.units + block * lanes;
        let left = self.layer.hidden.checked_sub(unit).filter(|left| *left > 0)?;
        Some((gate, unit, lanes.min(left)))
    }

    /// Ends the step for the units of a panel.
    #[inline(always)]
    fn gates<S: Simd, const R: usize>(
        &self,
        simd: S,
        panel: usize,
        first: usize,
        sums: &mut Sums,
        states: &[&[f32]; R],
    ) {
        let lanes = S::F32_LANES;
        let n = R * lanes;
        let mut new = [0.0; BLOCK];
        match self.layer.cell {
            Cell::Tanh | Cell::Relu => {
                for v in 0..VECTORS {
                    let Some((_, unit, len)) = self.place(panel, v, lanes) else { continue };
                    let (given, product) = (&sums.given[v][..n], &sums.product[v][..n]);
                    let sums = new[..n].iter_mut().zip(given).zip(product);
                    if self.layer.cell == Cell::Tanh {
                        sums.for_each(|((new, a), b)| *new = math::tanh(a + b));
                    } else {
                        sums.for_each(|((new, a), b)| *new = relu(a + b));
                    }
                    self.store::<S, R>(simd, first, unit, len, &new);
                }
            }
            Cell::Gru => {
                let Some((_, unit, len)) = self.place(panel, 0, lanes) else { return };
                let mut old = [0.0; BLOCK];
                for (row, state) in states.iter().enumerate().filter(|(_, state)| !state.is_empty()) {
                    let state = simd.partial_load_f32s(&state[unit..unit + len]);
                    simd.partial_store_f32s(&mut old[row * lanes..][..lanes], state);
                }
                gru(sums, &old[..n], &mut new[..n]);
                self.store::<S, R>(simd, first, unit, len, &new);
            }
            Cell::Lstm => {
                let Some((_, unit, len)) = self.place(panel, 0, lanes) else { return };
                let mut cells = [0.0; BLOCK];
                for row in 0..R {
                    let state = simd.partial_load_f32s(self.cells(first + row, unit, len));
                    simd.partial_store_f32s(&mut cells[row * lanes..][..lanes], state);
                }
                lstm(sums, &mut cells[..n], &mut new[..n]);
                self.store::<S, R>(simd, first, unit, len, &new);
                let Some(after) = self.layer.cell_after else { return };
                for row in 0..R {
                    let at = self.state(first + row) + unit;
                    // SAFETY: the cells of these units and this sequence belong to this task.
                    let to = unsafe { after.write(at, len) };
                    simd.partial_store_f32s(to, simd.partial_load_f32s(&cells[row * lanes..][..lanes]));
                }
            }
        }
    }

    /// Where a sequence's state of this direction is.
    #[inline(always)]
    fn state(&self, sequence: usize) -> usize {
        (self.direction * self.layer.batch + sequence) * self.layer.hidden
    }

    /// Some cells of a sequence before this step. Empty if they are all zeros.
    #[inline(always)]
    fn cells(&self, sequence: usize, unit: usize, len: usize) -> &[f32] {
        let at = self.state(sequence) + unit;
        match (self.step, self.layer.cell_after) {
            (0, _) => self.layer.cell_before.map_or(&[], |cells| &cells[at..at + len]),
            // SAFETY: these belong to this task, which writes them later.
            (_, Some(after)) => unsafe { after.read(at, len) },
            _ => &[],
        }
    }

    /// Writes the new state of some units, once more if it is the final one.
    #[inline(always)]
    fn store<S: Simd, const R: usize>(&self, simd: S, first: usize, unit: usize, len: usize, new: &[f32; BLOCK]) {
        let layer = self.layer;
        for row in 0..R {
            let new = simd.partial_load_f32s(&new[row * S::F32_LANES..][..S::F32_LANES]);
            let at = layer.row(self.time(), first + row) * layer.directions + self.direction;
            // SAFETY: this step's state of these units and this sequence belongs to this task.
            simd.partial_store_f32s(unsafe { layer.output.write(at * layer.hidden + unit, len) }, new);
            if self.step + 1 == layer.steps {
                let at = self.state(first + row) + unit;
                // SAFETY: so does the final one.
                simd.partial_store_f32s(unsafe { layer.hidden_after.write(at, len) }, new);
            }
        }
    }
}

/// A panel times the states of `R` sequences. States that are empty are zeros.
#[inline(always)]
fn multiply<S: Simd, const V: usize, const R: usize>(simd: S, panel: &[f32], states: [&[f32]; R]) -> [[S::f32s; V]; R] {
    let mut sums = [[simd.splat_f32s(0.0); V]; R];
    let len = states[0].len();
    let states = states.map(|state| &state[..len]);
    let (weights, _) = S::as_simd_f32s(panel);
    let (weights, _) = weights.as_chunks::<V>();
    for (k, weights) in weights[..len].iter().enumerate() {
        for row in 0..R {
            let state = simd.splat_f32s(states[row][k]);
            for v in 0..V {
                sums[row][v] = simd.mul_add_e_f32s(state, weights[v], sums[row][v]);
            }
        }
    }
    sums
}

#[inline(always)]
fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

#[inline(always)]
fn gru(sums: &Sums, old: &[f32], new: &mut [f32]) {
    let n = new.len();
    let [[ri, zi, ni], [rh, zh, nh]] = [&sums.given, &sums.product].map(|s| [&s[0][..n], &s[1][..n], &s[2][..n]]);
    let old = &old[..n];
    for i in 0..n {
        let (r, z) = (math::sigmoid(ri[i] + rh[i]), math::sigmoid(zi[i] + zh[i]));
        let candidate = math::tanh(r.mul_add(nh[i], ni[i]));
        new[i] = z.mul_add(old[i] - candidate, candidate);
    }
}

#[inline(always)]
fn lstm(sums: &Sums, cells: &mut [f32], new: &mut [f32]) {
    let n = new.len();
    let [[ii, fi, gi, oi], [ih, fh, gh, oh]] =
        [&sums.given, &sums.product].map(|s| [&s[0][..n], &s[1][..n], &s[2][..n], &s[3][..n]]);
    let cells = &mut cells[..n];
    for i in 0..n {
        let (input, forget) = (math::sigmoid(ii[i] + ih[i]), math::sigmoid(fi[i] + fh[i]));
        let cell = forget.mul_add(cells[i], input * math::tanh(gi[i] + gh[i]));
        cells[i] = cell;
        new[i] = math::sigmoid(oi[i] + oh[i]) * math::tanh(cell);
    }
}
