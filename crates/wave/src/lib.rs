//! A 3-D acoustic wave simulation: a demonstration of Millrace, and a benchmark of it.
//!
//! # The method
//! The wave equation `∂²p/∂t² = c² ∇²p` on a grid of cubic cells, in second-order finite differences of time and space
//! (leapfrog), in `f32`, with one speed of sound everywhere. With the Courant number `λ = c·dt/h`, for every cell
//!
//! ```text
//! p⁺ = (2p − p⁻ + λ²·(Σ neighbours − K·p) + w·p⁻) / (1 + w),    w = β·λ·W
//! ```
//!
//! where `K` is the number of its six neighbours that are open (in the room and not an obstacle) and `W` the number of its
//! faces beyond which an absorbing wall of admittance `β` (1 if nothing is said) ends the room. It is stable for
//! `λ ≤ 1/√3`, which is checked.
//!
//! - **Reflecting** walls, and obstacles always, are rigid: no flow through the face (Neumann, `∂p/∂n = 0`), by leaving
//!   the neighbour out. The room then keeps its [energy](Engine::energy), exactly but for rounding.
//! - **Absorbing** walls have the impedance of the air, `∂p/∂t = ∓c ∂p/∂n`: the first-order condition of Engquist and
//!   Majda. They go through the middle of the outermost cells, whose neighbour behind the wall is the one before it, and
//!   are centred in time so that energy can only leave. Of the pressure that hits a wall head-on, `(k·h)²·(1 − λ²)/16` comes
//!   back: 3% of a wave of 8 cells, 0.5% of one of 20. At an angle `θ` it is `(1 − cos θ)/(1 + cos θ)`, 17% at 45°. The form is
//!   that of Kowalczyk and van Walstijn, *Room acoustics simulation using 3-D compact explicit FDTD schemes* (2011), for this
//!   case.
//! - **Sources** let air into their cell: what they add is kept, so that in a closed room the mean pressure is what all
//!   sources have added.
//!
//! # The engines
//! All are an [`Engine`], and all agree: [`Reference`] is plain nested loops, [`PerStep`] launches a kernel for every
//! step on any device, [`Resident`] is a kernel that stays there and is sent messages. On the CPU they do every operation
//! in the order of the reference and agree in every bit; a GPU may fuse a multiplication with an addition, and is held to
//! 1e-5 of the largest pressure.
//!
//! This room uses only the public API of `millrace`. [`Setup::build`] checks everything that a user can say; the engines
//! rely on it.
//!
//! ```
//! use millrace_wave::{Boundary, Engine, PerStep, Reference, Setup, Source};
//! let room = Setup::new([24, 20, 16]).boundary(Boundary::Absorbing).source(Source::impulse([5, 10, 8], 1.0)).build()?;
//! let device = millrace::runtime().open("cpu")?;
//! let (mut plain, mut fast) = (Reference::new(room.clone())?, PerStep::on(&device, room)?);
//! plain.step(40)?;
//! fast.step(40)?;
//! assert!(plain.energy()? > 0.0);
//! assert_eq!(plain.state()?, fast.state()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod cells;
mod engine;
mod error;
mod launch;
mod layout;
mod picture;
mod reference;
mod resident;
mod room;
mod scene;
mod source;

pub use engine::{Engine, State, energy};
pub use error::{Error, Result};
pub use launch::PerStep;
pub use picture::Picture;
pub use reference::Reference;
pub use resident::Resident;
pub use room::{Boundary, Cell, MAX_CELLS, MAX_SIDE, Room, Setup};
pub use scene::Scene;
pub use source::{MAX_SOURCES, Signal, Source};
