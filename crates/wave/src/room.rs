//! The room that sound is in: how large, how fast, what is in it, how it ends; and every check of that.

use crate::{
    Error, MAX_SOURCES, Result, Source,
    layout::{Layout, place},
};

/// A cell: its number along x, y and z.
///
/// ```
/// use millrace_wave::{Cell, Setup};
/// let corner: Cell = [9, 0, 0];
/// assert!(Setup::new([10; 3]).obstacle(corner).build()?.is_solid(corner));
/// # Ok::<(), millrace_wave::Error>(())
/// ```
pub type Cell = [u32; 3];

/// The most cells on a side: what a launch can have groups in a direction.
///
/// ```
/// use millrace_wave::{Error, MAX_SIDE, Setup};
/// assert!(Setup::new([MAX_SIDE, 1, 1]).build().is_ok());
/// assert!(matches!(Setup::new([MAX_SIDE + 1, 1, 1]).build(), Err(Error::TooLarge(_))));
/// ```
pub const MAX_SIDE: u32 = 65_535;
/// The most cells in all, counted with the margin around the room that the kernels have: their bytes are counted in 32
/// bits.
///
/// ```
/// use millrace_wave::{Error, MAX_CELLS, Setup};
/// assert_eq!(MAX_CELLS, 1024 * 1024 * 1024);
/// assert!(matches!(Setup::new([1024; 3]).build(), Err(Error::TooLarge(_))), "there is the margin");
/// ```
pub const MAX_CELLS: usize = 1 << 30;
/// The most cells that sound may go in a step: 1/√3.
pub(crate) const LARGEST_COURANT: f64 = 0.577_350_269_189_625_8;

/// How the room ends.
///
/// ```
/// use millrace_wave::{Boundary, Engine, Reference, Setup};
/// let left = |boundary| {
///     let mut engine = Reference::new(Setup::new([12; 3]).boundary(boundary).build()?)?;
///     engine.inject([6, 6, 6], 1.0)?;
///     engine.step(100)?;
///     engine.energy()
/// };
/// assert!(left(Boundary::Absorbing)? < 0.5 * left(Boundary::Reflecting)?);
/// # Ok::<(), millrace_wave::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Boundary {
    /// Rigid walls: everything comes back.
    #[default]
    Reflecting,
    /// Walls of the air's own impedance, in the middle of the outermost cells: what hits them head-on does not come back.
    Absorbing,
}

/// What is said about a room. [`build`](Self::build) checks it.
///
/// ```
/// use millrace_wave::{Boundary, Error, Setup, Source};
/// let setup = Setup::new([32, 32, 8])
///     .spacing(0.05) // metres
///     .speed(343.0) // metres per second
///     .boundary(Boundary::Absorbing)
///     .source(Source::sine([4, 16, 4], 1.0, 800.0))
///     .obstacle([16, 16, 4])
///     .obstacles(|[x, y, _]| x == 20 && y != 16);
/// let room = setup.clone().build()?;
/// assert_eq!(room.time_step(), 0.5 * 0.05 / 343.0, "half a cell in a step, if nothing else is said");
/// assert!(room.is_solid([20, 3, 0]) && !room.is_solid([20, 16, 0]));
/// assert!(matches!(setup.time_step(1e-3).build(), Err(Error::Unstable { .. })));
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Setup {
    size: [u32; 3],
    spacing: f64,
    speed: f64,
    time_step: Option<f64>,
    boundary: Boundary,
    admittance: f64,
    sources: Vec<Source>,
    obstacles: Vec<Cell>,
    outside: Option<Cell>,
}

impl Setup {
    /// A room of so many cells along x, y and z, with reflecting walls and nothing in it: cells of a centimetre, and sound
    /// that goes 343 metres in a second and half a cell in a step.
    ///
    /// ```
    /// let room = millrace_wave::Setup::new([4, 5, 6]).build()?;
    /// assert_eq!((room.size(), room.cells(), room.courant()), ([4, 5, 6], 120, 0.5));
    /// assert!(room.sources().is_empty());
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn new(size: [u32; 3]) -> Self {
        Self {
            size,
            spacing: 0.01,
            speed: 343.0,
            time_step: None,
            boundary: Boundary::default(),
            admittance: 1.0,
            sources: Vec::new(),
            obstacles: Vec::new(),
            outside: None,
        }
    }

    /// Sets the side of a cell, in metres.
    ///
    /// ```
    /// let room = millrace_wave::Setup::new([8; 3]).spacing(0.343).build()?;
    /// assert!((room.time_step() - 0.0005).abs() < 1e-12, "half a cell in a step");
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn spacing(mut self, metres: f64) -> Self {
        self.spacing = metres;
        self
    }

    /// Sets the speed of sound, in metres per second.
    ///
    /// ```
    /// let [air, water] = [343.0, 1480.0].map(|speed| millrace_wave::Setup::new([8; 3]).speed(speed).build());
    /// assert!(water?.time_step() < air?.time_step());
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn speed(mut self, metres_per_second: f64) -> Self {
        self.speed = metres_per_second;
        self
    }

    /// Sets the time from step to step, in seconds.
    ///
    /// ```
    /// use millrace_wave::{Error, Setup};
    /// let steps = |seconds| Setup::new([8; 3]).time_step(seconds).build();
    /// assert_eq!(steps(1e-5).unwrap().time_step(), 1e-5);
    /// let Err(Error::Unstable { longest, .. }) = steps(1e-4) else { unreachable!() };
    /// assert!(steps(longest).is_ok());
    /// ```
    pub fn time_step(mut self, seconds: f64) -> Self {
        self.time_step = Some(seconds);
        self
    }

    /// Sets how the room ends.
    ///
    /// ```
    /// use millrace_wave::{Boundary, Setup};
    /// let open = Setup::new([8; 3]).boundary(Boundary::Absorbing);
    /// assert_eq!(open.clone().build()?.boundary(), Boundary::Absorbing);
    /// assert_eq!(open.admittance(0.0).build()?.boundary(), Boundary::Reflecting, "nothing gets through");
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn boundary(mut self, boundary: Boundary) -> Self {
        self.boundary = boundary;
        self
    }

    /// Sets how much absorbing walls let through, from 0 to 1: their admittance `β`, as a share of the air's own. Of the
    /// pressure that hits one head-on, `(1 − β)/(1 + β)` comes back; with 0 all of it, and the walls are reflecting ones.
    ///
    /// ```
    /// use millrace_wave::{Boundary, Engine, Reference, Setup};
    /// let left = |admittance| {
    ///     let room = Setup::new([16; 3]).boundary(Boundary::Absorbing).admittance(admittance).build()?;
    ///     let mut engine = Reference::new(room)?;
    ///     engine.inject([8, 8, 8], 1.0)?;
    ///     engine.step(100)?;
    ///     engine.energy()
    /// };
    /// assert!(left(1.0)? < left(0.1)? && left(0.1)? < left(0.01)?);
    /// assert!(Setup::new([4; 3]).admittance(1.5).build().is_err());
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn admittance(mut self, admittance: f64) -> Self {
        self.admittance = admittance;
        self
    }

    /// Adds a source.
    ///
    /// ```
    /// use millrace_wave::{Error, Setup, Source};
    /// let setup = Setup::new([8; 3]).source(Source::impulse([4; 3], 1.0));
    /// assert_eq!(setup.clone().build()?.sources(), [Source::impulse([4; 3], 1.0)]);
    /// assert_eq!(setup.obstacle([4; 3]).build().unwrap_err(), Error::Blocked([4; 3]));
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn source(mut self, source: Source) -> Self {
        self.sources.push(source);
        self
    }

    /// Makes a cell rigid.
    ///
    /// ```
    /// use millrace_wave::{Error, Setup};
    /// assert!(Setup::new([8; 3]).obstacle([1, 2, 3]).build()?.is_solid([1, 2, 3]));
    /// assert!(matches!(Setup::new([8; 3]).obstacle([8, 0, 0]).build(), Err(Error::Outside { .. })));
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn obstacle(mut self, cell: Cell) -> Self {
        if is_inside(cell, self.size) {
            self.obstacles.push(cell);
        } else {
            self.outside = self.outside.or(Some(cell));
        }
        self
    }

    /// Makes every cell rigid that `is_solid` says yes to.
    ///
    /// ```
    /// let room = millrace_wave::Setup::new([6; 3]).obstacles(|[x, y, _]| x == 3 && y > 0).build()?;
    /// assert!(room.is_solid([3, 5, 0]) && !room.is_solid([3, 0, 0]), "a wall with a gap");
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn obstacles(mut self, is_solid: impl Fn(Cell) -> bool) -> Self {
        if self.check_size().is_ok() {
            self.obstacles.extend(cells(self.size).filter(|&cell| is_solid(cell)));
        }
        self
    }

    fn check_size(&self) -> Result<()> {
        let size = self.size;
        if size.contains(&0) {
            return Err(Error::Empty(size));
        }
        if size.iter().any(|&n| n > MAX_SIDE) || Layout::of(size).words() > MAX_CELLS {
            return Err(Error::TooLarge(size));
        }
        Ok(())
    }

    /// The room, if everything that was said about it makes sense.
    ///
    /// ```
    /// use millrace_wave::{Error, Setup};
    /// assert!(Setup::new([8; 3]).build().is_ok());
    /// assert!(matches!(Setup::new([8; 3]).spacing(0.0).build(), Err(Error::NotPositive { .. })));
    /// assert!(matches!(Setup::new([8; 3]).time_step(1.0).build(), Err(Error::Unstable { .. })));
    /// ```
    pub fn build(self) -> Result<Room> {
        self.check_size()?;
        for (what, value) in [("side of a cell", self.spacing), ("speed of sound", self.speed)] {
            if !(value > 0.0 && value.is_finite()) {
                return Err(Error::NotPositive { what, value });
            }
        }
        if !(0.0..=1.0).contains(&self.admittance) {
            return Err(Error::NotAShare { what: "admittance of the walls", value: self.admittance });
        }
        let step = self.time_step.unwrap_or(0.5 * self.spacing / self.speed);
        if !(step > 0.0 && step.is_finite()) {
            return Err(Error::NotPositive { what: "time step", value: step });
        }
        let courant = self.speed * step / self.spacing;
        if courant.is_nan() || courant > LARGEST_COURANT {
            return Err(Error::Unstable { step, courant, longest: LARGEST_COURANT * self.spacing / self.speed });
        }
        if let Some(cell) = self.outside {
            return Err(Error::Outside { what: "obstacle", cell, size: self.size });
        }
        if self.sources.len() > MAX_SOURCES {
            return Err(Error::TooManySources(self.sources.len()));
        }
        let mut solid = reserve(self.size.iter().map(|&n| n as usize).product())?;
        self.obstacles.iter().for_each(|&cell| solid[place(self.size, cell)] = true);
        let Self { size, boundary, admittance, sources, .. } = self;
        let boundary = if admittance == 0.0 { Boundary::Reflecting } else { boundary };
        let room = Room { size, time_step: step, courant, boundary, admittance, sources, solid };
        for source in &room.sources {
            source.check(self.speed / self.spacing)?;
            room.check_open("source", source.cell)?;
        }
        Ok(room)
    }
}

fn is_inside(cell: Cell, size: [u32; 3]) -> bool {
    cell.iter().zip(size).all(|(&at, n)| at < n)
}

/// All cells, in the order in which they are stored.
fn cells([nx, ny, nz]: [u32; 3]) -> impl Iterator<Item = Cell> {
    (0..nz).flat_map(move |z| (0..ny).flat_map(move |y| (0..nx).map(move |x| [x, y, z])))
}

/// So many zeros, or an error instead of an end of the program.
pub(crate) fn reserve<T: Default + Clone>(n: usize) -> Result<Vec<T>> {
    let mut all = Vec::new();
    all.try_reserve_exact(n).map_err(|_| Error::Memory(n * size_of::<T>()))?;
    all.resize(n, T::default());
    Ok(all)
}

/// What is beyond a face of a cell.
pub(crate) struct Beyond {
    /// The cell whose pressure is there; it may be an obstacle.
    pub(crate) neighbour: Option<Cell>,
    /// Whether the face is on a wall of the room.
    pub(crate) wall: bool,
}

/// A room that was checked, as it is now.
///
/// ```
/// use millrace_wave::{Boundary, Setup};
/// let room = Setup::new([4, 3, 2]).spacing(0.1).speed(300.0).time_step(1e-4).boundary(Boundary::Absorbing).build()?;
/// assert_eq!((room.size(), room.cells(), room.time_step()), ([4, 3, 2], 24, 1e-4));
/// assert!((room.courant() - 0.3).abs() < 1e-12, "three centimetres of ten");
/// assert_eq!((room.boundary(), room.index([1, 2, 1])?), (Boundary::Absorbing, 1 + 4 * (2 + 3)));
/// # Ok::<(), millrace_wave::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Room {
    size: [u32; 3],
    time_step: f64,
    courant: f64,
    boundary: Boundary,
    admittance: f64,
    sources: Vec<Source>,
    solid: Vec<bool>,
}

impl Room {
    /// Cells along x, y and z.
    pub fn size(&self) -> [u32; 3] {
        self.size
    }

    /// Cells in all.
    pub fn cells(&self) -> usize {
        self.solid.len()
    }

    /// Seconds from step to step.
    pub fn time_step(&self) -> f64 {
        self.time_step
    }

    /// Cells that sound goes in a step.
    pub fn courant(&self) -> f64 {
        self.courant
    }

    /// How it ends.
    pub fn boundary(&self) -> Boundary {
        self.boundary
    }

    /// What makes the sound.
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Whether a cell is an obstacle. Beyond the room nothing is.
    ///
    /// ```
    /// let room = millrace_wave::Setup::new([4; 3]).obstacle([1; 3]).build()?;
    /// assert!(room.is_solid([1; 3]) && !room.is_solid([2; 3]) && !room.is_solid([9; 3]));
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn is_solid(&self, cell: Cell) -> bool {
        is_inside(cell, self.size) && self.solid[place(self.size, cell)]
    }

    /// The number of a cell in a [`State`](crate::State): x changes fastest.
    ///
    /// ```
    /// use millrace_wave::{Engine, Reference, Setup};
    /// let mut engine = Reference::new(Setup::new([4; 3]).build()?)?;
    /// engine.inject([1, 2, 3], 0.5)?;
    /// let at = engine.room().index([1, 2, 3])?;
    /// assert_eq!(engine.state()?.now[at], 0.5);
    /// assert!(engine.room().index([4, 0, 0]).is_err());
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn index(&self, cell: Cell) -> Result<usize> {
        self.check_inside("cell", cell)?;
        Ok(place(self.size, cell))
    }

    /// λ², as the engines use it.
    pub(crate) fn courant_squared(&self) -> f32 {
        (self.courant * self.courant) as f32
    }

    /// β λ if the walls absorb, zero if not.
    pub(crate) fn absorption(&self) -> f32 {
        match self.boundary {
            Boundary::Reflecting => 0.0,
            Boundary::Absorbing => (self.admittance * self.courant) as f32,
        }
    }

    /// The cell beyond a face of another; none where the room ends. Absorbing walls are in the middle of the outermost
    /// cells, and what is before them is also behind them.
    pub(crate) fn beyond(&self, cell: Cell, axis: usize, up: bool) -> Beyond {
        let inside = |there: Option<u32>| {
            let at = there.filter(|&at| at < self.size[axis])?;
            let mut neighbour = cell;
            neighbour[axis] = at;
            Some(neighbour)
        };
        let (below, above) = (inside(cell[axis].checked_sub(1)), inside(cell[axis].checked_add(1)));
        let (there, back) = if up { (above, below) } else { (below, above) };
        match (there, self.boundary) {
            (Some(neighbour), _) => Beyond { neighbour: Some(neighbour), wall: false },
            (None, Boundary::Reflecting) => Beyond { neighbour: None, wall: true },
            (None, Boundary::Absorbing) => Beyond { neighbour: back, wall: true },
        }
    }

    /// How much of a cell is in the room along an axis: half of it where an absorbing wall goes through its middle.
    pub(crate) fn share(&self, cell: Cell, axis: usize) -> f64 {
        let at_end = cell[axis] == 0 || cell[axis] + 1 == self.size[axis];
        if self.boundary == Boundary::Absorbing && self.size[axis] > 1 && at_end { 0.5 } else { 1.0 }
    }

    /// What the result of step `n` differs by, and where.
    pub(crate) fn gains(&self, n: u64) -> impl Iterator<Item = (Cell, f32)> {
        let gains = self.sources.iter().map(move |source| (source.cell, source.gain(n, self.time_step)));
        gains.filter(|(_, gain)| *gain != 0.0)
    }

    pub(crate) fn solid(&self) -> &[bool] {
        &self.solid
    }

    /// Makes a cell an obstacle or open; says whether that is a change.
    pub(crate) fn set_solid(&mut self, cell: Cell, solid: bool) -> Result<bool> {
        self.check_inside("obstacle", cell)?;
        if solid && self.sources.iter().any(|source| source.cell == cell) {
            return Err(Error::Blocked(cell));
        }
        let at = place(self.size, cell);
        Ok(std::mem::replace(&mut self.solid[at], solid) != solid)
    }

    fn check_inside(&self, what: &'static str, cell: Cell) -> Result<()> {
        if is_inside(cell, self.size) { Ok(()) } else { Err(Error::Outside { what, cell, size: self.size }) }
    }

    /// Checks that sound can be made at a cell.
    pub(crate) fn check_open(&self, what: &'static str, cell: Cell) -> Result<()> {
        self.check_inside(what, cell)?;
        if self.is_solid(cell) { Err(Error::Blocked(cell)) } else { Ok(()) }
    }

    /// Checks that a source can add so much at a cell.
    pub(crate) fn check_impulse(&self, cell: Cell, amount: f32) -> Result<()> {
        self.check_open("source", cell)?;
        if amount.is_finite() {
            Ok(())
        } else {
            Err(Error::NotFinite { what: "amplitude of a source", value: amount.into() })
        }
    }

    /// Checks that so many pressures fill the room.
    pub(crate) fn check_length(&self, given: usize) -> Result<()> {
        let expected = self.cells();
        if given == expected { Ok(()) } else { Err(Error::WrongLength { given, expected }) }
    }
}
