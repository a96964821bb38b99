//! What makes the sound.

use crate::{Cell, Error, Result};

/// The most sources that a room can have: what fits into a launch's parameters.
///
/// ```
/// use millrace_wave::{Error, MAX_SOURCES, Setup, Source};
/// let with = |n| (0..n).fold(Setup::new([8; 3]), |setup, _| setup.source(Source::impulse([4; 3], 1.0))).build();
/// assert!(with(MAX_SOURCES).is_ok());
/// assert_eq!(with(MAX_SOURCES + 1).unwrap_err(), Error::TooManySources(MAX_SOURCES + 1));
/// ```
pub const MAX_SOURCES: usize = 8;

/// How a source's strength changes with time.
///
/// ```
/// use millrace_wave::{Engine, Reference, Setup, Signal, Source};
/// let added = |signal| {
///     let source = Source { cell: [4; 3], amplitude: 1.0, signal };
///     let mut engine = Reference::new(Setup::new([9; 3]).source(source).build()?)?;
///     engine.step(3)?;
///     Ok::<f32, millrace_wave::Error>(engine.state()?.now.iter().sum())
/// };
/// assert!((added(Signal::Impulse)? - 1.0).abs() < 1e-5, "once");
/// assert!(added(Signal::Ricker(1000.0))?.abs() < 0.1, "it has not come yet");
/// # Ok::<(), millrace_wave::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Signal {
    /// Once, in the first step.
    Impulse,
    /// A sine of so many hertz, from the start on.
    Sine(f64),
    /// A Ricker wavelet: one pulse whose spectrum has its peak at so many hertz. It is strongest one and a half periods
    /// after the start, and negligible before.
    Ricker(f64),
}

/// One cell that air is let into: in every step its pressure rises by the amplitude times the signal, and what was added
/// spreads. An amplitude below zero lets air out.
///
/// ```
/// use millrace_wave::{Engine, Reference, Setup, Source};
/// let mut room = Reference::new(Setup::new([9; 3]).source(Source::impulse([4, 4, 4], 2.0)).build()?)?;
/// room.step(20)?;
/// let sum: f32 = room.state()?.now.iter().sum();
/// assert!((sum - 2.0).abs() < 1e-5, "the room is closed: what came in is still there");
/// # Ok::<(), millrace_wave::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Source {
    /// Where.
    pub cell: Cell,
    /// Pressure per step when the signal is one.
    pub amplitude: f32,
    /// How it changes with time.
    pub signal: Signal,
}

impl Source {
    /// So much pressure at once.
    ///
    /// ```
    /// use millrace_wave::{Signal, Source};
    /// let source = Source::impulse([1, 2, 3], 0.5);
    /// assert_eq!((source.cell, source.amplitude, source.signal), ([1, 2, 3], 0.5, Signal::Impulse));
    /// ```
    pub fn impulse(cell: Cell, amplitude: f32) -> Self {
        Self { cell, amplitude, signal: Signal::Impulse }
    }

    /// A lasting sine.
    ///
    /// ```
    /// use millrace_wave::{Error, Setup, Signal, Source};
    /// assert_eq!(Source::sine([4; 3], 1.0, 440.0).signal, Signal::Sine(440.0));
    /// let shrill = Setup::new([8; 3]).source(Source::sine([4; 3], 1.0, 20_000.0)).build();
    /// assert!(matches!(shrill, Err(Error::TooShort { .. })), "cells of a centimetre cannot carry it");
    /// ```
    pub fn sine(cell: Cell, amplitude: f32, hertz: f64) -> Self {
        Self { cell, amplitude, signal: Signal::Sine(hertz) }
    }

    /// One smooth pulse.
    ///
    /// ```
    /// use millrace_wave::{Engine, Reference, Setup, Source};
    /// let room = Setup::new([12; 3]).source(Source::ricker([6; 3], 1.0, 2000.0)).build()?;
    /// let mut engine = Reference::new(room)?;
    /// engine.step(200)?; // about six periods
    /// assert!(engine.energy()? > 0.0);
    /// assert!(engine.state()?.now.iter().sum::<f32>().abs() < 1e-2, "as much air was let out as in");
    /// # Ok::<(), millrace_wave::Error>(())
    /// ```
    pub fn ricker(cell: Cell, amplitude: f32, hertz: f64) -> Self {
        Self { cell, amplitude, signal: Signal::Ricker(hertz) }
    }

    /// Checks all but the place, for a speed in cells per second.
    pub(crate) fn check(&self, cells_per_second: f64) -> Result<()> {
        if !self.amplitude.is_finite() {
            return Err(Error::NotFinite { what: "amplitude of a source", value: self.amplitude.into() });
        }
        let (Signal::Sine(frequency) | Signal::Ricker(frequency)) = self.signal else { return Ok(()) };
        if !(frequency > 0.0 && frequency.is_finite()) {
            return Err(Error::NotPositive { what: "frequency of a source", value: frequency });
        }
        let cells = cells_per_second / frequency;
        if cells < 2.0 { Err(Error::TooShort { frequency, cells }) } else { Ok(()) }
    }

    /// What it adds in step `n` (zero before the first), with steps of `dt` seconds.
    fn strength(&self, n: Option<u64>, dt: f64) -> f64 {
        let Some(n) = n else { return 0.0 };
        let t = n as f64 * dt;
        let signal = match self.signal {
            Signal::Impulse => f64::from(u8::from(n == 0)),
            Signal::Sine(frequency) => (std::f64::consts::TAU * frequency * t).sin(),
            Signal::Ricker(frequency) => {
                let phase = std::f64::consts::PI * (frequency * t - 1.5);
                (1.0 - 2.0 * phase * phase) * (-phase * phase).exp()
            }
        };
        f64::from(self.amplitude) * signal
    }

    /// What the result of step `n` differs by at the source's cell.
    ///
    /// Adding `s` both to the pressure and to the one before it starts a disturbance that is at rest, and keeps the mean.
    /// With a pressure that is only added to in the newest field, that is the difference of what two steps add.
    pub(crate) fn gain(&self, n: u64, dt: f64) -> f32 {
        (self.strength(Some(n), dt) - self.strength(n.checked_sub(1), dt)) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gains_add_up_to_the_strength() {
        let dt = 1e-3;
        for source in [Source::impulse([0; 3], 3.0), Source::sine([0; 3], 3.0, 40.0), Source::ricker([0; 3], 3.0, 40.0)]
        {
            let mut sum = 0.0;
            for n in 0..200 {
                sum += f64::from(source.gain(n, dt));
                assert!((sum - source.strength(Some(n), dt)).abs() < 1e-5, "{source:?}, step {n}");
            }
        }
    }

    #[test]
    fn a_ricker_pulse_begins_and_ends_with_nothing() {
        let source = Source::ricker([0; 3], 1.0, 50.0);
        let dt = 1e-4;
        assert!(source.strength(Some(0), dt).abs() < 1e-7);
        assert!((source.strength(Some(300), dt) - 1.0).abs() < 1e-6, "its peak is after one and a half periods");
        assert!(source.strength(Some(600), dt).abs() < 1e-7);
        let sum: f64 = (0..600).map(|n| source.strength(Some(n), dt)).sum();
        assert!(sum.abs() < 1e-4, "as much air is let out as in: {sum}");
    }
}
