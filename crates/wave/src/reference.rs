//! The plain engine: the formula, cell by cell. What the others are checked against.

use crate::{Boundary, Cell, Engine, Result, Room, State, layout::place, room::reserve};

/// Nested loops over a vector, on one thread.
///
/// ```
/// use millrace_wave::{Engine, Reference, Setup};
/// let mut engine = Reference::new(Setup::new([8, 8, 8]).build()?)?;
/// engine.inject([4, 4, 4], 1.0)?;
/// engine.step(1)?;
/// assert_eq!(engine.pressure([5, 4, 4])?, 0.25, "λ² of it has come to each neighbour");
/// assert_eq!(engine.pressure([4, 4, 4])?, -0.5);
/// # Ok::<(), millrace_wave::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Reference {
    room: Room,
    state: State,
    steps: u64,
}

impl Reference {
    /// A quiet room.
    ///
    /// ```
    /// use millrace_wave::{Engine, Reference, Setup};
    /// let mut engine = Reference::new(Setup::new([4; 3]).build()?)?;
    /// engine.step(5)?;
    /// assert_eq!((engine.steps(), engine.energy()?), (5, 0.0), "nothing makes a sound");
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn new(room: Room) -> Result<Self> {
        let state = State { now: reserve(room.cells())?, before: reserve(room.cells())? };
        Ok(Self { room, state, steps: 0 })
    }

    fn step_once(&mut self) {
        let (size, solid) = (self.room.size(), self.room.solid());
        let (courant_squared, absorption) = (self.room.courant_squared(), self.room.absorption());
        let absorbs = self.room.boundary() == Boundary::Absorbing;
        let strides = [1, size[0] as usize, size[0] as usize * size[1] as usize];
        let State { now, before } = &mut self.state;
        for z in 0..size[2] {
            for y in 0..size[1] {
                for x in 0..size[0] {
                    let at = place(size, [x, y, z]);
                    if solid[at] {
                        continue;
                    }
                    let (mut open, mut walls) = (0, 0);
                    // The pressure on the other side of a face; none beyond rigid walls and in obstacles.
                    let mut beyond = |axis: usize, up: bool| {
                        let mut up = up;
                        if [x, y, z][axis] == (if up { size[axis] - 1 } else { 0 }) {
                            walls += 1;
                            // Behind an absorbing wall is what is before it.
                            up = !up;
                            if !absorbs || size[axis] == 1 {
                                return 0.0;
                            }
                        }
                        let neighbour = if up { at + strides[axis] } else { at - strides[axis] };
                        if solid[neighbour] {
                            return 0.0;
                        }
                        open += 1;
                        now[neighbour]
                    };
                    let along_x = beyond(0, false) + beyond(0, true);
                    let along_y = beyond(1, false) + beyond(1, true);
                    let along_z = beyond(2, false) + beyond(2, true);
                    let sum = along_x + along_y + along_z;
                    let laplacian = sum - open as f32 * now[at];
                    let w = absorption * walls as f32;
                    // The new pressure takes the place of the one before, which nobody else needs.
                    let unhindered = 2.0 * now[at] - before[at] + courant_squared * laplacian;
                    before[at] = (unhindered + w * before[at]) / (1.0 + w);
                }
            }
        }
        std::mem::swap(now, before);
        for (cell, gain) in self.room.gains(self.steps) {
            self.state.now[place(size, cell)] += gain;
        }
        self.steps += 1;
    }
}

impl Engine for Reference {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn device(&self) -> Option<&str> {
        None
    }

    fn room(&self) -> &Room {
        &self.room
    }

    fn steps(&self) -> u64 {
        self.steps
    }

    fn set_steps(&mut self, steps: u64) {
        self.steps = steps;
    }

    fn step(&mut self, steps: u64) -> Result<()> {
        (0..steps).for_each(|_| self.step_once());
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        Ok(())
    }

    fn inject(&mut self, cell: Cell, amount: f32) -> Result<()> {
        self.room.check_impulse(cell, amount)?;
        let at = place(self.room.size(), cell);
        self.state.now[at] += amount;
        self.state.before[at] += amount;
        Ok(())
    }

    fn set_obstacle(&mut self, cell: Cell, solid: bool) -> Result<()> {
        if self.room.set_solid(cell, solid)? {
            let at = place(self.room.size(), cell);
            (self.state.now[at], self.state.before[at]) = (0.0, 0.0);
        }
        Ok(())
    }

    fn pressure(&mut self, cell: Cell) -> Result<f32> {
        Ok(self.state.now[self.room.index(cell)?])
    }

    fn plane(&mut self, z: u32) -> Result<Vec<f32>> {
        let [nx, ny, _] = self.room.size();
        let start = self.room.index([0, 0, z])?;
        Ok(self.state.now[start..start + nx as usize * ny as usize].to_vec())
    }

    fn state(&mut self) -> Result<State> {
        Ok(self.state.clone())
    }

    fn load(&mut self, state: &State) -> Result<()> {
        self.room.check_length(state.now.len())?;
        self.room.check_length(state.before.len())?;
        self.state.clone_from(state);
        for (at, _) in self.room.solid().iter().enumerate().filter(|(_, solid)| **solid) {
            (self.state.now[at], self.state.before[at]) = (0.0, 0.0);
        }
        Ok(())
    }
}
