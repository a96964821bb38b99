//! Rooms that are worth looking at.

use crate::{Boundary, Setup, Signal, Source};

/// What is in a room.
///
/// ```
/// use millrace_wave::{Boundary, Scene, Setup, Signal};
/// let room = Scene::Slits.setup(48, Boundary::Absorbing, Scene::tone(8.0)).build()?;
/// assert!(room.is_solid([16, 0, 24]) && !room.is_solid([16, 18, 24]));
/// # Ok::<(), millrace_wave::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scene {
    /// Nothing; the source is in the middle.
    Empty,
    /// A wall with two slits, and the source before it.
    #[default]
    Slits,
    /// A ball, and the source beside it.
    Ball,
}

impl Scene {
    /// A sine whose wave is so many cells long, in a room that [`setup`](Self::setup) makes.
    ///
    /// ```
    /// use millrace_wave::{Boundary, Scene, Signal};
    /// let Signal::Sine(hertz) = Scene::tone(10.0) else { unreachable!() };
    /// assert!((hertz - 3430.0).abs() < 1e-6, "343 metres in a second, ten centimetres long");
    /// assert!(Scene::Empty.setup(16, Boundary::Reflecting, Scene::tone(1.0)).build().is_err(), "too short");
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn tone(cells: f64) -> Signal {
        Signal::Sine(343.0 / 0.01 / cells)
    }

    /// A pulse about so many cells long, in a room that [`setup`](Self::setup) makes.
    ///
    /// ```
    /// use millrace_wave::{Scene, Signal};
    /// assert!(matches!(Scene::pulse(10.0), Signal::Ricker(hertz) if (hertz - 3430.0).abs() < 1e-6));
    /// ```
    pub fn pulse(cells: f64) -> Signal {
        Signal::Ricker(343.0 / 0.01 / cells)
    }

    /// A room of `side` cells in every direction, with one source.
    ///
    /// ```
    /// use millrace_wave::{Boundary, Scene};
    /// let room = Scene::Ball.setup(40, Boundary::Absorbing, Scene::pulse(8.0)).build()?;
    /// assert_eq!((room.cells(), room.sources()[0].cell), (64_000, [8, 20, 20]));
    /// assert!(room.is_solid([22, 20, 20]), "the ball");
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn setup(self, side: u32, boundary: Boundary, signal: Signal) -> Setup {
        let middle = side / 2;
        let x = match self {
            Self::Empty => middle,
            Self::Slits => side / 6,
            Self::Ball => side / 5,
        };
        let source = Source { cell: [x, middle, middle], amplitude: 1.0, signal };
        let setup = Setup::new([side; 3]).boundary(boundary).source(source);
        match self {
            Self::Empty => setup,
            Self::Slits => {
                let (thick, open, apart) = (side.div_ceil(48), side.div_ceil(24), side / 8);
                let in_slit = move |y: u32| y.abs_diff(middle).abs_diff(apart) < open;
                setup.obstacles(move |[x, y, _]| (side / 3..side / 3 + thick).contains(&x) && !in_slit(y))
            }
            Self::Ball => {
                let (centre, radius) = (f64::from(side) * 0.55, f64::from(side) * 0.16);
                let square = move |at: u32, centre: f64| (f64::from(at) + 0.5 - centre).powi(2);
                let half = f64::from(side) * 0.5;
                setup
                    .obstacles(move |[x, y, z]| square(x, centre) + square(y, half) + square(z, half) < radius * radius)
            }
        }
    }
}
