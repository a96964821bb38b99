//! Ways to do one thing, timed in turns until it is clear which is the fastest.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use millrace_core::{Device, DeviceOptions};
use serde::{Deserialize, Serialize};

use super::{
    Tuner,
    notes::{ENDED, Note},
};
use crate::{Error, Result, Tensor, Tensors, validate};

/// Rounds before a way can be dropped for being slow,
const FIRST_ROUNDS: usize = 3;
/// and after which it is decided.
const MOST_ROUNDS: usize = 25;
/// Rounds in which the fastest has to prove itself against the usual way, one after the other,
const DUELS: usize = 20;
/// and how many of them it has to win: equal ways do so once in two hundred times.
const WON: usize = 16;
/// A sample takes at least this long, so that reading the clock is nothing beside it.
const SAMPLE: Duration = Duration::from_micros(100);
/// A challenger has to need at most this share of the usual way's time.
const BETTER: f64 = 0.97;

/// What is timed: does the work once, and hands out its result without waiting for it.
pub type Work = Box<dyn FnMut() -> Result<Tensor>>;

/// Makes a place and the work in it.
type Prepare<'a> = dyn Fn(&Device) -> Result<(Tensors, Work)> + 'a;

/// One way to do something: a name, and what prepares the work in a place of its own.
pub struct Way<'a> {
    name: String,
    prepare: Box<Prepare<'a>>,
}

impl<'a> Way<'a> {
    /// A way that is prepared by a function. It gets a context of its own on the device, so that a way that fails or
    /// hangs harms nobody else.
    pub fn new(name: impl Into<String>, prepare: impl Fn(&Tensors) -> Result<Work> + 'a) -> Self {
        Self::on(name, move |device| {
            let tensors = Tensors::on(device)?;
            let work = prepare(&tensors)?;
            Ok((tensors, work))
        })
    }

    pub(crate) fn on(name: impl Into<String>, prepare: impl Fn(&Device) -> Result<(Tensors, Work)> + 'a) -> Self {
        Self { name: name.into(), prepare: Box::new(prepare) }
    }
}

impl std::fmt::Debug for Way<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Way").field(&self.name).finish()
    }
}

/// How a way did.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// It is the fastest, or the usual one and nothing is clearly faster.
    Chosen,
    /// Another one is faster.
    Slower,
    /// It failed, took too long, gave a wrong result or ended an earlier process: it is never chosen.
    Dropped(String),
}

/// What came out for one way.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Trial {
    /// The way's name.
    pub name: String,
    /// The median time of one run in nanoseconds; none if it never ran to its end.
    pub median_ns: Option<f64>,
    /// How often it was timed.
    pub samples: usize,
    /// How it did.
    pub fate: Fate,
}

/// What came out of a contest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Outcome {
    /// The number of the way that was chosen.
    pub chosen: usize,
    /// All ways, in their order.
    pub trials: Vec<Trial>,
    /// Whether there was time for enough rounds. If not, the usual way is chosen.
    pub complete: bool,
}

impl Outcome {
    /// How many times as fast the chosen way is as the usual one.
    pub fn gain(&self) -> f64 {
        match (self.trials[0].median_ns, self.trials[self.chosen].median_ns) {
            (Some(usual), Some(chosen)) if chosen > 0.0 => usual / chosen,
            _ => 1.0,
        }
    }
}

/// Finds the fastest of several ways to do the same on a device.
///
/// The first way is the usual one: its result is what the others have to give, and it stays unless another needs at most
/// 97% of its time, also in two duels at the end. Ways are timed in turns. One that panics, fails, hangs or gives another result is dropped and
/// reported; one that is clearly slower than the best is not timed any longer.
///
/// ```
/// use millrace::tensor::tune::{Contest, Way};
/// let device = millrace::runtime().open("cpu")?;
/// let ways = [
///     Way::new("twice", |tensors| {
///         let x = tensors.rand(&[100_000], 1)?;
///         Ok(Box::new(move || x.exp()?.log()))
///     }),
///     Way::new("not at all", |tensors| {
///         let x = tensors.rand(&[100_000], 1)?;
///         Ok(Box::new(move || x.contiguous()))
///     }),
///     Way::new("wrong", |tensors| {
///         let x = tensors.zeros(&[100_000])?;
///         Ok(Box::new(move || x.contiguous()))
///     }),
/// ];
/// let outcome = Contest::on(&device).run(&ways)?;
/// assert_eq!(outcome.trials[outcome.chosen].name, "not at all");
/// println!("{:?}", outcome.trials[2].fate); // a wrong result
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Contest {
    device: Device,
    limit: Duration,
    patience: Duration,
    tolerance: f64,
    noted: Option<(Tuner, String)>,
}

impl Contest {
    /// A contest on a device, of at most a second.
    pub fn on(device: &Device) -> Self {
        let (limit, patience) = (Duration::from_secs(1), Duration::from_secs(2));
        Self { device: device.clone(), limit, patience, tolerance: 1e-4, noted: None }
    }

    /// After how long it is over. A way's first run may take longer, as kernels are compiled in it.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How long one run may take before the way counts as hanging.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// By how much results may differ, as a share of the largest.
    pub fn tolerance(mut self, tolerance: f64) -> Self {
        self.tolerance = tolerance;
        self
    }

    /// Notes the way that is measured beside a tuner's file, under a name for the contest. If one ends the whole process
    /// (by a segmentation fault, an abort, or because the system ran out of memory), the next contest of this name drops it
    /// without trying it, as does every later one until [`Tuner::clear`]. Of contests that run at once in a process that
    /// ends, each has its way dropped.
    ///
    /// ```
    /// use millrace::tensor::tune::{Contest, Tuner, Tuning, Way};
    /// let device = millrace::runtime().open("cpu")?;
    /// # let folder = std::env::temp_dir().join(format!("millrace-noted-{}", std::process::id()));
    /// let tuner = Tuner::new(&device, Some(&folder), Tuning::Kept);
    /// let usual = Way::new("usual", |tensors| {
    ///     let x = tensors.rand(&[1000], 1)?;
    ///     Ok(Box::new(move || x.neg()))
    /// });
    /// let outcome = Contest::on(&device).noted(&tuner, "negation").run(&[usual])?;
    /// assert!(outcome.complete && tuner.ended().is_empty());
    /// # std::fs::remove_dir_all(folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn noted(mut self, tuner: &Tuner, name: impl Into<String>) -> Self {
        self.noted = Some((tuner.clone(), name.into()));
        self
    }

    /// Runs it. That the usual way fails is an error.
    pub fn run(&self, ways: &[Way<'_>]) -> Result<Outcome> {
        let Some((usual, others)) = ways.split_first() else {
            return Err(millrace_core::Error::Invalid("a contest needs at least one way".into()).into());
        };
        let note = self.noted.as_ref().and_then(|(tuner, name)| tuner.begin(name));
        let note = note.as_ref();
        let ended = self.noted.as_ref().and_then(|(tuner, name)| tuner.ended().remove(name)).unwrap_or_default();
        let may = |way: &Way<'_>| if ended.contains(&way.name) { Err(ENDED.to_owned()) } else { Ok(()) };
        let (first, want) = may(usual).and_then(|()| self.enter(usual, None, note)).map_err(|reason| {
            let reason = format!("the usual way, {}, cannot be timed: {reason}", usual.name);
            Error::Device(millrace_core::Error::Invalid(reason.into()))
        })?;
        let mut entrants = vec![first];
        entrants.extend(others.iter().map(|way| match may(way).and_then(|()| self.enter(way, Some(&want), note)) {
            Ok((entrant, _)) => entrant,
            Err(reason) => Entrant::out(&way.name, reason),
        }));
        let start = Instant::now();
        let mut rounds = 0;
        // Alone it has nothing to win.
        while rounds < MOST_ROUNDS && start.elapsed() < self.limit && entrants[1..].iter().any(Entrant::is_in) {
            self.round(&mut entrants, rounds);
            rounds += 1;
            if rounds >= FIRST_ROUNDS {
                drop_slow(&mut entrants);
            }
        }
        let complete = rounds >= FIRST_ROUNDS || entrants[1..].iter().all(|entrant| entrant.dropped.is_some());
        let chosen = if complete { self.decide(ways, &mut entrants, note) } else { 0 };
        Ok(outcome(&entrants, chosen, complete))
    }

    /// Prepares a way on a context of its own and looks at its first result.
    fn enter<'a>(
        &self,
        way: &'a Way<'_>,
        want: Option<&[f64]>,
        note: Option<&'a Note>,
    ) -> std::result::Result<(Entrant<'a>, Vec<f64>), String> {
        let mut entrant = Entrant::new(&way.name, note);
        entrant.noted();
        let prepare = || -> Result<(Tensors, Work)> {
            // Opened anew, so that what one does to it stays its own affair.
            let device = self.device.twin(DeviceOptions::default().timeout(self.patience))?;
            (way.prepare)(&device)
        };
        let (tensors, work) = entrant.at.insert(caught(prepare)?);
        let result = caught(|| {
            let result = work()?;
            tensors.synchronize()?;
            validate::numbers(&result)
        })?;
        if let Some(want) = want {
            compare(&result, want, self.tolerance)?;
        }
        let once = entrant.sample().ok_or_else(|| entrant.dropped.clone().unwrap_or_default())?;
        entrant.repeats = (SAMPLE.as_nanos() as f64 / once.max(1.0)).ceil().clamp(1.0, 1000.0) as u32;
        entrant.samples.clear();
        Ok((entrant, result))
    }

    /// The fastest way, if it is clearly faster than the usual one: by its median, side by side, and side by side once more
    /// in contexts that were opened anew, because where memory happens to lie can make one of two equal ways faster.
    fn decide(&self, ways: &[Way<'_>], entrants: &mut [Entrant<'_>], note: Option<&Note>) -> usize {
        let Some(challenger) = leader(entrants) else { return 0 };
        let (usual, others) = entrants.split_at_mut(1);
        if !wins(&mut usual[0], &mut others[challenger - 1]) {
            return 0;
        }
        let [Ok((mut usual, _)), Ok((mut other, _))] = [0, challenger].map(|n| self.enter(&ways[n], None, note)) else {
            return 0;
        };
        if wins(&mut usual, &mut other) { challenger } else { 0 }
    }

    fn round(&self, entrants: &mut [Entrant<'_>], round: usize) {
        let count = entrants.len();
        for turn in 0..count {
            // Another one begins every time.
            let entrant = &mut entrants[(turn + round) % count];
            if entrant.is_in() {
                entrant.sample();
            }
        }
    }
}

/// A way that takes part.
struct Entrant<'a> {
    name: &'a str,
    note: Option<&'a Note>,
    at: Option<(Tensors, Work)>,
    repeats: u32,
    samples: Vec<f64>,
    slow: bool,
    dropped: Option<String>,
}

impl<'a> Entrant<'a> {
    fn new(name: &'a str, note: Option<&'a Note>) -> Self {
        Self { name, note, at: None, repeats: 1, samples: Vec::new(), slow: false, dropped: None }
    }

    fn out(name: &'a str, reason: String) -> Self {
        let mut entrant = Self::new(name, None);
        entrant.dropped = Some(reason);
        entrant
    }

    /// What happens from now on is its doing.
    fn noted(&self) {
        if let Some(note) = self.note {
            note.set(self.name);
        }
    }

    fn is_in(&self) -> bool {
        self.at.is_some() && !self.slow && self.dropped.is_none()
    }

    /// Times it once, in nanoseconds per run.
    fn sample(&mut self) -> Option<f64> {
        self.noted();
        let ((tensors, work), repeats) = (self.at.as_mut()?, self.repeats);
        let timed = caught(|| {
            let start = Instant::now();
            for _ in 0..repeats {
                work()?;
                tensors.synchronize()?;
            }
            Ok(start.elapsed().as_nanos() as f64 / f64::from(repeats))
        });
        match timed {
            Ok(ns) => {
                self.samples.push(ns);
                Some(ns)
            }
            Err(reason) => {
                self.dropped = Some(reason);
                self.at = None;
                None
            }
        }
    }

    fn median(&self) -> Option<f64> {
        let mut sorted = self.samples.clone();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

impl Drop for Entrant<'_> {
    /// Also to close its context can go wrong.
    fn drop(&mut self) {
        if let Some(at) = self.at.take() {
            self.noted();
            drop(at);
        }
    }
}

/// Ways whose best time is worse than the best way's usual one have no chance. The usual way stays, to be compared with.
fn drop_slow(entrants: &mut [Entrant<'_>]) {
    let medians = entrants.iter().filter(|entrant| entrant.is_in()).filter_map(|entrant| entrant.median());
    let Some(best) = medians.min_by(f64::total_cmp) else { return };
    for entrant in entrants.iter_mut().skip(1).filter(|entrant| entrant.is_in()) {
        entrant.slow = entrant.samples.iter().all(|&ns| ns > best * 1.02);
    }
}

/// The way that is the fastest by its median, if that is not the usual one.
fn leader(entrants: &[Entrant<'_>]) -> Option<usize> {
    let able = entrants.iter().enumerate().filter(|(_, entrant)| entrant.dropped.is_none());
    let fastest = able.filter_map(|(n, entrant)| Some((n, entrant.median()?))).min_by(|a, b| a.1.total_cmp(&b.1));
    let ((challenger, median), usual) = (fastest?, entrants[0].median()?);
    (challenger > 0 && median <= usual * BETTER).then_some(challenger)
}

/// Whether a way is faster than the usual one, again and again.
fn wins<'a>(usual: &mut Entrant<'a>, other: &mut Entrant<'a>) -> bool {
    let mut ratios = Vec::new();
    for round in 0..DUELS {
        // Another one begins every time.
        let (first, second) = if round % 2 == 0 { (&mut *usual, &mut *other) } else { (&mut *other, &mut *usual) };
        let (Some(first), Some(second)) = (first.sample(), second.sample()) else { return false };
        ratios.push(if round % 2 == 0 { second / first } else { first / second });
    }
    ratios.sort_by(f64::total_cmp);
    ratios[WON - 1] < 1.0 && ratios[DUELS / 2] <= BETTER
}

fn outcome(entrants: &[Entrant<'_>], chosen: usize, complete: bool) -> Outcome {
    let trials = entrants.iter().enumerate().map(|(n, entrant)| Trial {
        name: entrant.name.to_owned(),
        median_ns: entrant.median(),
        samples: entrant.samples.len(),
        fate: match &entrant.dropped {
            Some(reason) => Fate::Dropped(reason.clone()),
            None if n == chosen => Fate::Chosen,
            None => Fate::Slower,
        },
    });
    Outcome { chosen, trials: trials.collect(), complete }
}

fn compare(got: &[f64], want: &[f64], tolerance: f64) -> std::result::Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("a wrong result: {} elements instead of {}", got.len(), want.len()));
    }
    let largest = want.iter().filter(|x| x.is_finite()).fold(f64::MIN_POSITIVE, |max, x| max.max(x.abs()));
    let same = |got: f64, want: f64| {
        got == want || (got.is_nan() && want.is_nan()) || (got - want).abs() <= tolerance * largest
    };
    match got.iter().zip(want).position(|(&got, &want)| !same(got, want)) {
        None => Ok(()),
        Some(at) => Err(format!("a wrong result: element {at} is {} instead of {}", got[at], want[at])),
    }
}

/// What went wrong, in words, also if it was a panic.
fn caught<T>(run: impl FnOnce() -> Result<T>) -> std::result::Result<T, String> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
            Err(format!("it panicked: {}", text.unwrap_or("without a message")))
        }
    }
}
