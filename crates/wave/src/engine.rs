//! What every engine can do.

use crate::{Cell, Result, Room, layout::place};

/// The pressures of all cells, x changing fastest, now and a step ago. The next step follows from both.
///
/// ```
/// use millrace_wave::{Engine, Reference, Setup};
/// let mut engine = Reference::new(Setup::new([4, 3, 2]).build()?)?;
/// engine.inject([1, 2, 0], 1.0)?;
/// let state = engine.state()?;
/// assert_eq!((state.now.len(), state.now[4 * 2 + 1]), (24, 1.0));
/// assert_eq!(state.now, state.before, "it is at rest");
/// # Ok::<(), millrace_wave::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    /// After the last step.
    pub now: Vec<f32>,
    /// After the one before.
    pub before: Vec<f32>,
}

/// Something that lets sound go its way through a room.
///
/// Calls take effect in the order in which they are made. [`step`](Self::step) may return before the steps have been
/// done; whatever is asked afterwards is answered as if they had, and [`finish`](Self::finish) waits for them.
///
/// ```
/// use millrace_wave::{Engine, Reference, Setup};
/// let mut engine = Reference::new(Setup::new([16; 3]).build()?)?;
/// engine.set_obstacle([10, 8, 8], true)?;
/// engine.inject([8, 8, 8], 1.0)?;
/// engine.step(10)?;
/// assert_eq!((engine.steps(), engine.pressure([10, 8, 8])?), (10, 0.0));
/// assert!(engine.pressure([8, 12, 8])?.abs() > 1e-4, "sound has come here");
/// # Ok::<(), millrace_wave::Error>(())
/// ```
pub trait Engine: Send {
    /// What users call it.
    fn name(&self) -> &'static str;

    /// The id of the device that it runs on; none if it needs none.
    fn device(&self) -> Option<&str>;

    /// The room as it is now, with all obstacles.
    fn room(&self) -> &Room;

    /// How many steps were asked for so far.
    fn steps(&self) -> u64;

    /// Counts on from here, as after a [`load`](Self::load): what sources do depends on it.
    fn set_steps(&mut self, steps: u64);

    /// Does so many steps.
    fn step(&mut self, steps: u64) -> Result<()>;

    /// Waits until everything that was asked for is done, and brings the first error of it.
    fn finish(&mut self) -> Result<()>;

    /// Lets so much pressure into a cell, at rest: it is added to the pressure now and to the one before.
    fn inject(&mut self, cell: Cell, amount: f32) -> Result<()>;

    /// Makes a cell an obstacle, which takes its pressure away, or open again.
    fn set_obstacle(&mut self, cell: Cell, solid: bool) -> Result<()>;

    /// The pressure of a cell.
    fn pressure(&mut self, cell: Cell) -> Result<f32>;

    /// The pressures of all cells with this z, x changing fastest.
    fn plane(&mut self, z: u32) -> Result<Vec<f32>>;

    /// The pressures of all cells.
    fn state(&mut self) -> Result<State>;

    /// Replaces the pressures of all cells; obstacles stay without any.
    fn load(&mut self, state: &State) -> Result<()>;

    /// The energy in the room: see [`energy`].
    fn energy(&mut self) -> Result<f64> {
        let state = self.state()?;
        energy(self.room(), &state)
    }
}

/// The energy of a state, in squares of pressure:
///
/// ```text
/// ½ Σ cells (p − p⁻)² + ½ λ² Σ neighbours (p − q)·(p⁻ − q⁻)
/// ```
///
/// over all open cells and all pairs of open neighbours; of cells that an absorbing wall goes through, only the share that
/// is in the room counts. It is what the leapfrog method keeps exactly where nothing is
/// absorbed or added: the first part is the energy of motion, the second that of compression, halfway between the two
/// times. It is never negative in a stable room, and with absorbing walls it never grows.
///
/// ```
/// use millrace_wave::{Setup, State, energy};
/// let room = Setup::new([3, 1, 1]).build()?; // λ² is ¼
/// let state = State { now: vec![1.0, 0.0, 0.0], before: vec![1.0, 0.0, 0.0] };
/// assert_eq!(energy(&room, &state)?, 0.125);
/// # Ok::<(), millrace_wave::Error>(())
/// ```
pub fn energy(room: &Room, state: &State) -> Result<f64> {
    room.check_length(state.now.len())?;
    room.check_length(state.before.len())?;
    let (size, solid) = (room.size(), room.solid());
    let [nx, ny, nz] = size;
    let strides = [1, nx as usize, nx as usize * ny as usize];
    let (mut motion, mut compression) = (0.0, 0.0);
    for z in 0..nz {
        for y in 0..ny {
            for x in 0..nx {
                let at = place(size, [x, y, z]);
                if solid[at] {
                    continue;
                }
                let (now, before) = (f64::from(state.now[at]), f64::from(state.before[at]));
                let shares = [0, 1, 2].map(|axis| room.share([x, y, z], axis));
                motion += shares[0] * shares[1] * shares[2] * (now - before) * (now - before);
                for (axis, cell) in [x, y, z].into_iter().enumerate() {
                    let next = at + strides[axis];
                    if cell + 1 < size[axis] && !solid[next] {
                        let face = shares[(axis + 1) % 3] * shares[(axis + 2) % 3];
                        let differences = (f64::from(state.now[next]) - now) * (f64::from(state.before[next]) - before);
                        compression += face * differences;
                    }
                }
            }
        }
    }
    Ok(0.5 * motion + 0.5 * room.courant() * room.courant() * compression)
}
