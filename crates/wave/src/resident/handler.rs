//! What the kernel does with an order, in Rust and in WGSL.

use millrace::resident::{Handler, Message, Scope};
use pulp::{Arch, Simd, WithSimd};

use crate::cells::Grid;

/// Values in an answer.
pub(super) const PER_ANSWER: usize = size_of::<Cells>() / 4;

/// Does a step of some rows.
const STEP: u32 = 0;
/// Adds to a word.
const ADD: u32 = 1;
/// Replaces a word.
const SET: u32 = 2;
/// Tells words.
const READ: u32 = 3;

/// What to do.
#[derive(Debug, Clone, Copy, Message)]
#[repr(C)]
pub(super) struct Order {
    what: u32,
    /// The row or the word that it begins with.
    at: u32,
    /// How many rows.
    count: u32,
    /// What to add or to set, or which field is now.
    value: u32,
}

impl Order {
    pub(super) fn step(first: u32, rows: u32, now: usize) -> Self {
        Self { what: STEP, at: first, count: rows, value: now as u32 }
    }

    pub(super) fn add(at: usize, amount: f32) -> Self {
        Self { what: ADD, at: at as u32, count: 0, value: amount.to_bits() }
    }

    pub(super) fn set(at: usize, value: u32) -> Self {
        Self { what: SET, at: at as u32, count: 0, value }
    }

    pub(super) fn read(at: usize) -> Self {
        Self { what: READ, at: at as u32, count: 0, value: 0 }
    }
}

/// Words of the memory, if they were asked for.
#[derive(Debug, Clone, Copy, Message)]
#[repr(C)]
pub(super) struct Cells {
    pub(super) values: [f32; 32],
}

/// Where everything is: a [`Grid`], and the words of a field.
#[derive(Debug, Clone, Copy, Message)]
#[repr(C)]
pub(super) struct Shape {
    nx: u32,
    ny: u32,
    nz: u32,
    pitch: u32,
    plane: u32,
    lead: u32,
    courant_squared: f32,
    absorption: f32,
    words: u32,
}

/// The handler: it keeps the fields.
#[derive(Debug)]
pub(super) struct Keeper {
    grid: Grid,
    words: usize,
    first: Vec<u32>,
}

impl Keeper {
    /// The memory to start with is both fields, of so many words each, and the kinds.
    pub(super) fn new(grid: Grid, words: usize, first: Vec<u32>) -> Self {
        Self { grid, words, first }
    }

    /// A step of some rows, counted through all planes.
    fn step(&self, memory: &mut [u32], order: &Order) {
        let (fields, kinds) = memory.split_at_mut(2 * self.words);
        let (first, second) = fields.split_at_mut(self.words);
        let (now, before) = if order.value == 0 { (first, second) } else { (second, first) };
        let rows = Rows {
            grid: &self.grid,
            now: bytemuck::cast_slice(now),
            kinds: bytemuck::cast_slice(kinds),
            before: bytemuck::cast_slice_mut(before),
            rows: order.at as usize..(order.at + order.count) as usize,
        };
        Arch::new().dispatch(rows);
    }
}

struct Rows<'a> {
    grid: &'a Grid,
    now: &'a [f32],
    kinds: &'a [u8],
    before: &'a mut [f32],
    rows: std::ops::Range<usize>,
}

impl WithSimd for Rows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let grid = self.grid;
        let [pitch, plane, lead] = [grid.pitch, grid.plane, grid.lead].map(|n| n as usize);
        let [nx, ny, _] = grid.size.map(|n| n as usize);
        for row in self.rows {
            let (y, z) = (row % ny + 1, row / ny + 1);
            let start = z * plane + y * pitch + lead;
            grid.step_row(simd, [y, z], self.now, self.kinds, &mut self.before[start..start + nx]);
        }
    }
}

/// A cell of the row, the next of it.
macro_rules! cell {
    () => {
        "
        if (x < s.nx) {
            let right = bitcast<f32>(load(now + at + 1u));
            let kind = (load(kinds + at / 4u) >> (at % 4u * 8u)) & 0xffu;
            if (kind < 128u) {
                let along_x = select(left, right, mirrors && x == 0u) + select(right, left, mirrors && x + 1u == s.nx);
                let along_y = bitcast<f32>(load(now + at + y_below)) + bitcast<f32>(load(now + at + y_above));
                let along_z = bitcast<f32>(load(now + at + z_below)) + bitcast<f32>(load(now + at + z_above));
                let laplacian = along_x + along_y + along_z - f32(kind & 7u) * here;
                let old = bitcast<f32>(load(before + at));
                var new_pressure = 2.0 * here - old + s.courant_squared * laplacian;
                let w = s.absorption * f32(kind >> 3u);
                new_pressure = (new_pressure + w * old) / (1.0 + w);
                store(before + at, bitcast<u32>(new_pressure));
            }
            left = here;
            here = right;
            at += 1u;
            x += 1u;
        }"
    };
}

impl Handler for Keeper {
    type Message = Order;
    type Reply = Cells;
    type State = Shape;

    // Several cells in a turn of the loop, because turns are what a lease is made of.
    const WGSL: Option<&'static str> = Some(concat!(
        "
        let s = *state;
        var answer: Cells;
        if (message.what == 0u) {
            let now = select(0u, s.words, message.value == 1u);
            let before = s.words - now;
            let kinds = 2u * s.words;
            // Behind an absorbing wall is what is before it.
            let mirrors = s.absorption > 0.0;
            for (var row = message.at; row < message.at + message.count; row++) {
                let y = row % s.ny;
                let z = row / s.ny;
                let y_below = select(0u - s.pitch, s.pitch, mirrors && y == 0u);
                let y_above = select(s.pitch, 0u - s.pitch, mirrors && y + 1u == s.ny);
                let z_below = select(0u - s.plane, s.plane, mirrors && z == 0u);
                let z_above = select(s.plane, 0u - s.plane, mirrors && z + 1u == s.nz);
                var at = (z + 1u) * s.plane + (y + 1u) * s.pitch + s.lead;
                var left = bitcast<f32>(load(now + at - 1u));
                var here = bitcast<f32>(load(now + at));
                var x = 0u;
                while (x < s.nx) {",
        cell!(),
        cell!(),
        cell!(),
        cell!(),
        cell!(),
        cell!(),
        cell!(),
        cell!(),
        "
                }
            }
        } else if (message.what == 1u) {
            store(message.at, bitcast<u32>(bitcast<f32>(load(message.at)) + bitcast<f32>(message.value)));
        } else if (message.what == 2u) {
            store(message.at, message.value);
        } else {
            for (var i = 0u; i < 32u; i++) {
                answer.values[i] = bitcast<f32>(load(message.at + i));
            }
        }
        return answer;"
    ));

    fn state(&self) -> Shape {
        let Grid { size: [nx, ny, nz], pitch, plane, lead, courant_squared, absorption } = self.grid;
        Shape { nx, ny, nz, pitch, plane, lead, courant_squared, absorption, words: self.words as u32 }
    }

    fn memory(&self) -> Vec<u32> {
        self.first.clone()
    }

    fn handle(&mut self, _: &mut Shape, order: &Order, scope: &mut Scope<'_, Cells>) -> Cells {
        let mut answer = Cells { values: [0.0; PER_ANSWER] };
        let (memory, at) = (scope.memory(), order.at as usize);
        match order.what {
            STEP => self.step(memory, order),
            ADD => memory[at] = (f32::from_bits(memory[at]) + f32::from_bits(order.value)).to_bits(),
            SET => memory[at] = order.value,
            _ => {
                let words = memory.iter().skip(at).copied().map(f32::from_bits);
                answer.values.iter_mut().zip(words).for_each(|(value, word)| *value = word);
            }
        }
        answer
    }
}
