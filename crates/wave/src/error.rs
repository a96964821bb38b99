//! What can be wrong with a room, and what a device answers.

use thiserror::Error;

use crate::room::Cell;

/// The answer of every fallible call.
///
/// ```
/// fn room(side: u32) -> millrace_wave::Result<millrace_wave::Room> {
///     millrace_wave::Setup::new([side; 3]).build()
/// }
/// assert_eq!(room(4).unwrap().cells(), 64);
/// assert_eq!(room(0).unwrap_err(), millrace_wave::Error::Empty([0; 3]));
/// ```
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something cannot be done.
///
/// ```
/// use millrace_wave::Setup;
/// let error = Setup::new([8, 0, 8]).build().unwrap_err();
/// assert_eq!(error.to_string(), "a room of 8 × 0 × 8 cells has no cells");
/// ```
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// A side is zero.
    #[error("a room of {} × {} × {} cells has no cells", .0[0], .0[1], .0[2])]
    Empty([u32; 3]),
    /// A side or the whole is larger than what any engine can do.
    #[error(
        "a room of {} × {} × {} cells is too large: at most {} cells on a side, and {} in all with \
         the margin around them",
        .0[0], .0[1], .0[2], crate::MAX_SIDE, crate::MAX_CELLS
    )]
    TooLarge([u32; 3]),
    /// A quantity is not a positive number.
    #[error("the {what} has to be a positive number, not {value}")]
    NotPositive {
        /// What it is.
        what: &'static str,
        /// What was said.
        value: f64,
    },
    /// A quantity is not between zero and one.
    #[error("the {what} has to be between 0 and 1, not {value}")]
    NotAShare {
        /// What it is.
        what: &'static str,
        /// What was said.
        value: f64,
    },
    /// A quantity is infinite or not a number.
    #[error("the {what} has to be a finite number, not {value}")]
    NotFinite {
        /// What it is.
        what: &'static str,
        /// What was said.
        value: f64,
    },
    /// The time step is too long for the grid.
    #[error(
        "a time step of {step:e} s is unstable: sound would go {courant:.4} cells in a step, and at most {:.4} (1/√3) are \
         stable (CFL); take at most {longest:e} s",
        crate::room::LARGEST_COURANT
    )]
    Unstable {
        /// What was said, in seconds.
        step: f64,
        /// Cells in a step.
        courant: f64,
        /// The longest stable step, in seconds.
        longest: f64,
    },
    /// The wave is too short for the grid.
    #[error("a wave of {frequency} Hz is {cells:.2} cells long, and the grid carries none shorter than two cells")]
    TooShort {
        /// What was said.
        frequency: f64,
        /// The length of its wave in cells.
        cells: f64,
    },
    /// Something is at a cell that the room does not have.
    #[error(
        "the {what} at ({}, {}, {}) is outside of a room of {} × {} × {} cells",
        .cell[0], .cell[1], .cell[2], .size[0], .size[1], .size[2]
    )]
    Outside {
        /// What is there.
        what: &'static str,
        /// Where.
        cell: Cell,
        /// Cells of the room.
        size: [u32; 3],
    },
    /// A source is at an obstacle.
    #[error("the source at ({}, {}, {}) is inside an obstacle", .0[0], .0[1], .0[2])]
    Blocked(Cell),
    /// There are more sources than a launch can carry.
    #[error("{0} sources are more than {most}", most = crate::MAX_SOURCES)]
    TooManySources(usize),
    /// A state is not as large as the room.
    #[error("{given} pressures do not fill a room of {expected} cells")]
    WrongLength {
        /// How many there are.
        given: usize,
        /// How many there should be.
        expected: usize,
    },
    /// The system refused memory.
    #[error("the system refused {0} bytes")]
    Memory(usize),
    /// The picture could not be encoded.
    #[error("the picture cannot be encoded: {0}")]
    Picture(String),
    /// The device answered with an error.
    #[error(transparent)]
    Device(#[from] millrace::Error),
    /// The resident kernel answered with an error.
    #[error(transparent)]
    Kernel(#[from] millrace::resident::Error),
}

impl Error {
    /// Whether the request itself is wrong, and not the machine.
    ///
    /// ```
    /// use millrace_wave::Error;
    /// assert!(Error::TooManySources(9).is_callers());
    /// assert!(!Error::Memory(1 << 40).is_callers());
    /// ```
    pub fn is_callers(&self) -> bool {
        !matches!(self, Self::Memory(_) | Self::Picture(_) | Self::Device(_) | Self::Kernel(_))
    }
}

impl From<Box<millrace::Rejected>> for Error {
    fn from(rejected: Box<millrace::Rejected>) -> Self {
        Self::Device(rejected.error)
    }
}
