//! Samples, percentiles, taking turns, and a watchdog.

use std::{
    borrow::Cow,
    hint::black_box,
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, TryRecvError, bounded, select};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// Which way is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less is better: a time.
    Lower,
    /// More is better: a rate.
    Higher,
}

/// Samples in a few numbers.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// Half of the samples are at least this good.
    pub p50: f64,
    /// 99 of 100 samples are at least this good: the slow tail, of times as of rates.
    pub p99: f64,
    /// 999 of 1000 samples are at least this good; only where there are [`ENOUGH`] of them.
    pub p999: Option<f64>,
    /// The arithmetic mean.
    pub mean: f64,
    /// How many samples there were.
    pub samples: usize,
    /// The best sample, what every further twentieth of them reaches, and the worst; none for a single number.
    pub spread: Vec<f64>,
}

/// Samples below which nothing is said of one in a thousand: ten of them are beyond it.
pub const ENOUGH: usize = 10_000;

/// Parts that [`Summary::spread`] has.
pub const PARTS: usize = 20;

impl Summary {
    /// A single number.
    pub(crate) fn of_one(value: f64) -> Self {
        Self { p50: value, p99: value, p999: None, mean: value, samples: 1, spread: Vec::new() }
    }

    /// Sums samples up; `None` without any.
    ///
    /// ```
    /// use millrace_lab::measure::{Better, Summary};
    /// let times: Vec<f64> = (1..=100).map(f64::from).collect();
    /// let times = Summary::of(times, Better::Lower).unwrap();
    /// assert_eq!((times.p50, times.p99, times.mean), (50.0, 99.0, 50.5));
    /// ```
    pub fn of(mut samples: Vec<f64>, better: Better) -> Option<Self> {
        if samples.is_empty() {
            return None;
        }
        let mean = samples.iter().sum::<f64>() / samples.len() as f64;
        samples.sort_unstable_by(|a, b| match better {
            Better::Lower => a.total_cmp(b),
            Better::Higher => b.total_cmp(a),
        });
        let spread = match samples.len() {
            1 => Vec::new(),
            _ => (0..=PARTS).map(|part| percentile(&samples, part as f64 / PARTS as f64)).collect(),
        };
        Some(Self {
            p50: percentile(&samples, 0.50),
            p99: percentile(&samples, 0.99),
            p999: (samples.len() >= ENOUGH).then(|| percentile(&samples, 0.999)),
            mean,
            samples: samples.len(),
            spread,
        })
    }
}

/// The nearest-rank percentile of samples that are sorted, best first; zero without any.
///
/// ```
/// assert_eq!(millrace_lab::measure::percentile(&[1.0, 2.0, 3.0, 4.0], 0.5), 2.0);
/// ```
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (share * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(0.0)
}

/// What one round of one side brought, for one case of it.
#[derive(Debug, Clone)]
pub struct Metric {
    /// Which case; empty if there is only one.
    pub case: Cow<'static, str>,
    /// What the samples are counted in.
    pub unit: &'static str,
    /// Which way is better.
    pub better: Better,
    /// The samples.
    pub samples: Vec<f64>,
}

impl Metric {
    /// Samples of times or counts: less is better.
    pub fn lower(case: impl Into<Cow<'static, str>>, unit: &'static str, samples: Vec<f64>) -> Self {
        Self { case: case.into(), unit, better: Better::Lower, samples }
    }

    /// Samples of rates: more is better.
    pub fn higher(case: impl Into<Cow<'static, str>>, unit: &'static str, samples: Vec<f64>) -> Self {
        Self { case: case.into(), unit, better: Better::Higher, samples }
    }
}

/// One round of a side.
pub type Round = Arc<dyn Fn() -> Result<Vec<Metric>> + Send + Sync>;

/// A side of a comparison.
#[derive(Clone)]
pub struct Side {
    /// As reports call it.
    pub name: String,
    /// Runs one round.
    pub round: Round,
}

impl Side {
    /// A side and what it does in a round.
    pub fn new(name: impl Into<String>, round: impl Fn() -> Result<Vec<Metric>> + Send + Sync + 'static) -> Self {
        Self { name: name.into(), round: Arc::new(round) }
    }
}

impl std::fmt::Debug for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Side").field(&self.name).finish()
    }
}

/// What all rounds of a side brought, for one case of it.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The side, and after a slash the case.
    pub id: String,
    /// What it is counted in.
    pub unit: &'static str,
    /// Which way is better.
    pub better: Better,
    /// The numbers, or why there are none.
    pub outcome: Result<Summary>,
    /// The median of every round.
    pub rounds: Vec<f64>,
    /// Whether it was stopped before all rounds were over.
    pub interrupted: bool,
}

impl Measured {
    /// Nothing measured yet.
    pub(crate) fn nothing(id: String, unit: &'static str, better: Better) -> Self {
        let outcome = Err(Error::System("no samples".to_owned()));
        Self { id, unit, better, outcome, rounds: Vec::new(), interrupted: false }
    }

    /// One number that was computed from others.
    pub(crate) fn computed(id: String, unit: &'static str, better: Better, value: f64) -> Self {
        let outcome = Ok(Summary::of_one(value));
        Self { outcome, ..Self::nothing(id, unit, better) }
    }
}

/// Says that enough was measured. Clones say the same.
///
/// ```
/// use millrace_lab::measure::Stop;
/// let (stop, same) = (Stop::default(), Stop::default());
/// let clone = stop.clone();
/// clone.ask();
/// assert!(stop.is_asked() && !same.is_asked());
/// ```
#[derive(Debug, Clone)]
pub struct Stop {
    /// Closed when it is asked for; nothing is ever sent.
    asked: Receiver<()>,
    open: Arc<Mutex<Option<Sender<()>>>>,
}

impl Default for Stop {
    fn default() -> Self {
        let (open, asked) = bounded(0);
        Self { asked, open: Arc::new(Mutex::new(Some(open))) }
    }
}

impl Stop {
    /// Asks for it. A turn that is under way has [`LAST_TURN`] to finish, and none is begun.
    pub fn ask(&self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Whether it was asked for.
    pub fn is_asked(&self) -> bool {
        self.asked.try_recv() == Err(TryRecvError::Disconnected)
    }
}

/// How long the turn under way may go on when a stop is asked for.
pub const LAST_TURN: Duration = Duration::from_secs(5);

/// How sides take turns.
#[derive(Debug, Clone)]
pub struct Turns {
    /// Turns of every side.
    pub rounds: usize,
    /// When a turn is given up.
    pub timeout: Duration,
    /// Ends it before all rounds are over.
    pub stop: Stop,
}

/// Lets the sides take turns, each turn on a thread of its own with a timeout. `step` is told whose turn it is.
///
/// A side that fails, panics or does not finish is not asked again and is answered with the error. The thread of one
/// that does not finish cannot be ended: it stays behind. When it is stopped, what the turns so far brought is answered,
/// marked as interrupted; sides without a turn are missing.
pub fn interleaved(sides: &[Side], turns: &Turns, step: &mut dyn FnMut(&str)) -> Vec<Measured> {
    let mut collected: Vec<Result<Vec<Collected>>> = sides.iter().map(|_| Ok(Vec::new())).collect();
    let mut interrupted = false;
    'turns: for round in 0..turns.rounds {
        for turn in 0..sides.len() {
            if turns.stop.is_asked() {
                interrupted = true;
                break 'turns;
            }
            // Another one begins each round, so that nobody always comes after the same neighbour's mess.
            let place = (turn + round) % sides.len();
            let (side, so_far) = (&sides[place], &mut collected[place]);
            step(&side.name);
            if let Ok(metrics) = so_far {
                let run = side.round.clone();
                match guarded_unless(&turns.stop, turns.timeout, move || run()) {
                    Some(Ok(Ok(new))) => merge(metrics, new),
                    Some(Ok(Err(error)) | Err(error)) => *so_far = Err(error),
                    None => interrupted = true,
                }
            }
        }
    }
    let named = sides.iter().zip(collected);
    let measured = named.flat_map(|(side, collected)| summarize(&side.name, collected));
    measured.map(|measured| Measured { interrupted, ..measured }).collect()
}

/// What the rounds so far brought, and the median of each.
struct Collected {
    metric: Metric,
    rounds: Vec<f64>,
}

fn merge(collected: &mut Vec<Collected>, new: Vec<Metric>) {
    for metric in new {
        let round = Summary::of(metric.samples.clone(), metric.better).map(|summary| summary.p50);
        match collected.iter_mut().find(|known| known.metric.case == metric.case) {
            Some(known) => {
                known.metric.samples.extend(metric.samples);
                known.rounds.extend(round);
            }
            None => collected.push(Collected { metric, rounds: round.into_iter().collect() }),
        }
    }
}

fn summarize(name: &str, collected: Result<Vec<Collected>>) -> Vec<Measured> {
    let error = |error| {
        let (id, outcome) = (name.to_owned(), Err(error));
        Measured { outcome, ..Measured::nothing(id, "", Better::Lower) }
    };
    match collected {
        Err(reason) => vec![error(reason)],
        Ok(metrics) => metrics
            .into_iter()
            .map(|Collected { metric: Metric { case, unit, better, samples }, rounds }| {
                let id = if case.is_empty() { name.to_owned() } else { format!("{name}/{case}") };
                let outcome = Summary::of(samples, better).ok_or_else(|| Error::System("no samples".to_owned()));
                Measured { id, unit, better, outcome, rounds, interrupted: false }
            })
            .collect(),
    }
}

/// Runs `work` on a thread of its own and waits for it, but not longer than `timeout`.
pub fn guarded<T: Send + 'static>(timeout: Duration, work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    guarded_unless(&Stop::default(), timeout, work).unwrap_or(Err(Error::Timeout(timeout)))
}

/// The same; none if a stop is asked for and `work` is not over soon.
fn guarded_unless<T: Send + 'static>(
    stop: &Stop,
    timeout: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<Result<T>> {
    let (tx, done) = bounded(1);
    let thread = thread::Builder::new().name("lab-round".to_owned()).spawn(move || {
        let _ = tx.send(work()); // nobody listens after the timeout
    });
    let thread = match thread {
        Ok(thread) => thread,
        Err(error) => return Some(Err(Error::System(error.to_string()))),
    };
    let start = Instant::now();
    // Waiting costs nothing meanwhile: what is measured may need all cores.
    let result = select! {
        recv(done) -> result => result,
        recv(stop.asked) -> _ => {
            let left = timeout.saturating_sub(start.elapsed()).min(LAST_TURN);
            select! {
                recv(done) -> result => result,
                default(left) => return None,
            }
        }
        default(timeout) => return Some(Err(Error::Timeout(timeout))),
    };
    match result {
        Ok(result) => {
            let _ = thread.join(); // its threads are gone before the next turn
            Some(Ok(result))
        }
        Err(_) => Some(Err(Error::Panicked)),
    }
}

/// Nanoseconds that reading the clock adds to what is timed: the median of many readings back to back.
pub fn clock_cost() -> f64 {
    let mut costs = Vec::with_capacity(1001);
    let mut before = Instant::now();
    for _ in 0..1001 {
        let now = Instant::now();
        costs.push((now - before).as_nanos() as f64);
        before = now;
    }
    costs.sort_unstable_by(f64::total_cmp);
    percentile(&costs, 0.5)
}

/// Times `work` again and again until `budget` is used up, each run by itself. Nanoseconds, less what the clock costs.
pub fn each_timed(budget: Duration, mut work: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let clock = clock_cost();
    let mut samples = Vec::with_capacity(1 << 18);
    let start = Instant::now();
    let mut before = start;
    loop {
        work()?;
        let now = Instant::now();
        samples.push(((now - before).as_nanos() as f64 - clock).max(1.0));
        if now - start >= budget || samples.len() == samples.capacity() {
            return Ok(samples);
        }
        before = now;
    }
}

/// Times runs of `count` times `work` until `budget` is used up. A sample is one run's nanoseconds per time.
pub fn batch_timed(budget: Duration, count: usize, mut work: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let mut samples = Vec::with_capacity(1 << 14);
    let start = Instant::now();
    loop {
        let before = Instant::now();
        for _ in 0..count {
            work()?;
        }
        let now = Instant::now();
        samples.push((now - before).as_nanos() as f64 / count as f64);
        if now - start >= budget || samples.len() == samples.capacity() {
            return Ok(black_box(samples));
        }
    }
}

/// Does `work` for `budget` without timing it, so that threads are where they will be and caches are warm.
pub fn warm_up(budget: Duration, mut work: impl FnMut() -> Result<()>) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < budget {
        work()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(rounds: usize, timeout: Duration) -> Turns {
        Turns { rounds, timeout, stop: Stop::default() }
    }

    #[test]
    fn percentiles_of_known_samples_are_exact() {
        let samples: Vec<f64> = (1..=1000).rev().map(f64::from).collect();
        let times = Summary::of(samples.clone(), Better::Lower).unwrap();
        assert_eq!((times.p50, times.p99, times.mean), (500.0, 990.0, 500.5));
        let rates = Summary::of(samples, Better::Higher).unwrap();
        assert_eq!((rates.p50, rates.p99), (501.0, 11.0), "the tail of a rate is its low end");
        assert_eq!(times.p999, None, "too few to tell");
        assert_eq!((times.samples, times.spread.len(), times.spread[0], times.spread[20]), (1000, 21, 1.0, 1000.0));
        let many = Summary::of((1..=10_000).map(f64::from).collect(), Better::Lower).unwrap();
        assert_eq!(many.p999, Some(9990.0));
        assert_eq!(Summary::of(vec![7.0], Better::Lower).unwrap(), Summary::of_one(7.0));
        assert_eq!(Summary::of(Vec::new(), Better::Lower), None);
    }

    #[test]
    fn a_side_that_hangs_or_panics_becomes_an_error_and_the_others_go_on() {
        let fine = |name| Side::new(name, || Ok(vec![Metric::lower("", "ns", vec![1.0, 3.0])]));
        let sides = [
            fine("first"),
            Side::new("hangs", || {
                loop {
                    thread::park();
                }
            }),
            Side::new("panics", || std::panic::resume_unwind(Box::new("no message"))),
            Side::new("fails", || Err(Error::Closed("it"))),
            fine("last"),
        ];
        // So long that nobody is held up for it on a busy machine, and still seen if it is waited for three times.
        let timeout = Duration::from_millis(800);
        let start = Instant::now();
        let mut steps = 0;
        let measured = interleaved(&sides, &turns(3, timeout), &mut |_| steps += 1);
        assert!(start.elapsed() < Duration::from_secs(2), "a hanging side is waited for once");
        assert_eq!(steps, 15);
        let outcomes: Vec<_> = measured.iter().map(|m| (m.id.as_str(), m.outcome.as_ref().err())).collect();
        let expected = [
            ("first", None),
            ("hangs", Some(&Error::Timeout(timeout))),
            ("panics", Some(&Error::Panicked)),
            ("fails", Some(&Error::Closed("it"))),
            ("last", None),
        ];
        assert_eq!(outcomes, expected);
        assert_eq!(measured[0].outcome.as_ref().unwrap().mean, 2.0);
    }

    #[test]
    fn sides_take_turns_and_their_samples_are_merged_by_case() {
        let order = Arc::new(std::sync::Mutex::new(String::new()));
        let side = |name: &'static str| {
            let order = order.clone();
            Side::new(name, move || {
                order.lock().unwrap().push_str(name);
                Ok(vec![Metric::lower("x", "ns", vec![1.0]), Metric::higher("y", "/s", vec![2.0])])
            })
        };
        let measured = interleaved(&[side("a"), side("b")], &turns(3, Duration::from_secs(5)), &mut |_| ());
        assert_eq!(*order.lock().unwrap(), "abbaab");
        let ids: Vec<_> = measured.iter().map(|m| m.id.as_str()).collect();
        assert_eq!(ids, ["a/x", "a/y", "b/x", "b/y"]);
        assert!(measured.iter().all(|m| !m.interrupted && m.rounds.len() == 3), "{measured:?}");
    }

    #[test]
    fn a_stop_lets_the_turn_under_way_finish_and_keeps_what_was_measured() {
        let turns = turns(3, Duration::from_secs(60));
        let stop = turns.stop.clone();
        let one = || Ok(vec![Metric::lower("", "ns", vec![1.0])]);
        let asks = Side::new("asks", move || {
            stop.ask();
            thread::sleep(Duration::from_millis(20));
            one()
        });
        let mut steps = Vec::new();
        let sides = [Side::new("before", one), asks, Side::new("after", one)];
        let measured = interleaved(&sides, &turns, &mut |side| steps.push(side.to_owned()));
        assert_eq!(steps, ["before", "asks"]);
        let rows: Vec<_> = measured.iter().map(|m| (m.id.as_str(), m.rounds.len(), m.interrupted)).collect();
        assert_eq!(rows, [("before", 1, true), ("asks", 1, true)], "the third has nothing to say");
    }

    #[test]
    fn a_stop_with_the_last_turn_interrupts_nothing() {
        let turns = turns(1, Duration::from_secs(60));
        let stop = turns.stop.clone();
        let side = Side::new("asks", move || {
            stop.ask();
            Ok(vec![Metric::lower("", "ns", vec![1.0])])
        });
        let measured = interleaved(&[side], &turns, &mut |_| ());
        assert!(measured.len() == 1 && !measured[0].interrupted, "{measured:?}");
    }
}
