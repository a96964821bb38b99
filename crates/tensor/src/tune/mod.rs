//! Choosing among ways to do an operation by measuring them on the device.
//!
//! - `contest`: ways are timed in turns, those that fail or fall behind drop out.
//! - `case`: what is tuned, and the ways there are.
//! - `file`: results are kept for the next process,
//! - `notes`: and so is which way ended a process.
//!
//! Every place for tensors asks its [`Tuner`] which way to take. It knows what was kept by `millrace tune`, or by programs
//! that measure while they run ([`Tuning::Measure`]). Where it knows nothing, operations go their usual way.

mod case;
mod contest;
mod file;
mod notes;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_core::Device;
use serde::Serialize;

pub use case::{Case, NoCase, Op};
pub use contest::{Contest, Fate, Outcome, Trial, Way, Work};
pub use file::Kept;

use crate::{Result, Tensors};
use file::{Known, Store};
use notes::Note;

/// The environment variable that says what may happen at run time: `never`, `kept` or `measure`.
const ASKED: &str = "MILLRACE_TUNE";

/// What may happen when an operation asks for its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tuning {
    /// Operations go their usual ways.
    Never,
    /// What was measured earlier is used; nothing is measured.
    #[default]
    Kept,
    /// What is not known yet is measured when it is first needed, which then takes up to the tuner's limit, and kept.
    Measure,
}

impl Tuning {
    /// What the environment variable `MILLRACE_TUNE` says, or [`Tuning::Kept`].
    ///
    /// ```
    /// println!("{:?}", millrace::tensor::tune::Tuning::from_environment());
    /// ```
    pub fn from_environment() -> Self {
        match std::env::var(ASKED).as_deref() {
            Ok("never") => Self::Never,
            Ok("measure") => Self::Measure,
            Ok("kept" | "") | Err(_) => Self::Kept,
            Ok(other) => {
                tracing::warn!("{ASKED}={other} is not one of never, kept, measure; it is ignored");
                Self::Kept
            }
        }
    }
}

/// How often ways were known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// Operations whose way was known.
    pub hits: u64,
    /// Operations whose way was not.
    pub misses: u64,
    /// Cases that were measured,
    pub measured: u64,
    /// and ways that were dropped in that.
    pub dropped: u64,
}

/// What is known of a device's fastest ways. Clones share it.
///
/// ```
/// use millrace::tensor::{Tensors, tune::{Tuner, Tuning}};
/// let device = millrace::runtime().open("cpu")?;
/// # let folder = std::env::temp_dir().join(format!("millrace-tuner-{}", std::process::id()));
/// let tuner = Tuner::new(&device, Some(&folder), Tuning::Kept);
/// let case = "matmul 1x64x64x64".parse()?;
/// let outcome = tuner.tune(&device, &case)?; // measures, and keeps the result
/// println!("{} is {:.2} times as fast", outcome.trials[outcome.chosen].name, outcome.gain());
/// let tensors = Tensors::tuned(&device, &tuner)?;
/// let x = tensors.rand(&[64, 64], 1)?;
/// x.matmul(&x)?.to_vec::<f32>()?;
/// assert_eq!(tuner.stats().hits, 1);
/// # std::fs::remove_dir_all(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Tuner {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    tuning: Tuning,
    limit: Duration,
    store: Option<Store>,
    /// One way for all cases of an operation.
    fixed: Option<(Op, usize)>,
    /// By [`Case::hash`].
    known: RwLock<HashMap<u64, usize>>,
    /// What is known in words, and what went wrong.
    kept: Mutex<(Known, Vec<String>)>,
    /// Whether there is nothing to ask.
    idle: AtomicBool,
    hits: AtomicU64,
    misses: AtomicU64,
    measured: AtomicU64,
    dropped: AtomicU64,
}

impl Tuner {
    /// What was kept for a device in a folder, or in the user's cache folder; nothing is kept if there is none. What is
    /// damaged or of another version or device is ignored, with a warning.
    pub fn new(device: &Device, folder: Option<&Path>, tuning: Tuning) -> Self {
        let folder = folder.map(Path::to_owned).or_else(millrace_core::file::cache_folder);
        let store = folder.map(|folder| Store::new(&folder, device.info()));
        let tuner = Self::of(tuning, store, None);
        if tuning != Tuning::Never {
            tuner.load(device);
        }
        tuner
    }

    /// All cases of one operation go one way. The names are [`Op::ways`]; another name is none.
    ///
    /// ```
    /// use millrace::tensor::{Tensors, tune::{Op, Tuner}};
    /// let device = millrace::runtime().open("cpu")?;
    /// let alone = Tuner::fixed(&device, Op::Matmul, "one thread").ok_or("no such way")?;
    /// let tensors = Tensors::tuned(&device, &alone)?; // its products stay on one thread
    /// # let x = tensors.rand(&[8, 8], 1)?;
    /// # x.matmul(&x)?.to_vec::<f32>()?;
    /// assert!(Tuner::fixed(&device, Op::Matmul, "by hand").is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fixed(device: &Device, op: Op, way: &str) -> Option<Self> {
        let number = op.ways(device.info().kind).iter().position(|name| *name == way)?;
        Some(Self::of(Tuning::Never, None, Some((op, number))))
    }

    /// Sets how long measuring one case may take: a second if not said.
    pub fn limit(mut self, limit: Duration) -> Self {
        match Arc::get_mut(&mut self.inner) {
            Some(inner) => inner.limit = limit,
            // Somebody uses it already, with the limit it has.
            None => tracing::warn!("the limit of a tuner in use stays as it is"),
        }
        self
    }

    /// The tuner that all places on a device share.
    pub(crate) fn shared(device: &Device) -> Self {
        #[derive(Default)]
        struct Shared(OnceLock<Tuner>);
        let shared = device.attachment::<Shared>();
        shared.0.get_or_init(|| Self::new(device, None, Tuning::from_environment())).clone()
    }

    fn of(tuning: Tuning, store: Option<Store>, fixed: Option<(Op, usize)>) -> Self {
        let inner = Inner {
            tuning,
            limit: Duration::from_secs(1),
            store,
            fixed,
            known: RwLock::default(),
            kept: Mutex::default(),
            idle: AtomicBool::new(fixed.is_none() && tuning != Tuning::Measure),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            measured: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        };
        Self { inner: Arc::new(inner) }
    }

    fn load(&self, device: &Device) {
        let Some(store) = &self.inner.store else { return };
        if let Err(error) = store.collect() {
            self.warn(format!("what was left in {} is not kept: {error}", store.notes().display()));
        }
        match store.load() {
            Ok(Known { results, ended }) => {
                self.kept().0.ended = ended;
                results.into_iter().for_each(|(case, kept)| self.note(device, &case, kept));
            }
            Err(warning) => self.warn(warning),
        }
    }

    /// Takes up a result. Cases and ways that there are not here are left alone.
    fn note(&self, device: &Device, text: &str, kept: Kept) {
        let Ok(case) = text.parse::<Case>() else { return };
        let ways = case.op.ways(device.info().kind);
        let Some(way) = ways.iter().position(|name| *name == kept.way) else { return };
        self.inner.known.write().unwrap_or_else(PoisonError::into_inner).insert(case.hash(), way);
        self.inner.idle.store(false, Ordering::Relaxed);
        self.kept().0.results.insert(text.to_owned(), kept);
    }

    fn warn(&self, warning: String) {
        tracing::warn!("{warning}");
        self.kept().1.push(warning);
    }

    fn kept(&self) -> MutexGuard<'_, (Known, Vec<String>)> {
        self.inner.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything that is known, by case.
    pub fn results(&self) -> BTreeMap<String, Kept> {
        self.kept().0.results.clone()
    }

    /// Ways that ended a process that measured them, by case. They are never tried again; [`Tuner::clear`] forgets them.
    pub fn ended(&self) -> BTreeMap<String, BTreeSet<String>> {
        self.kept().0.ended.clone()
    }

    /// Notes what is measured from now on, and looks for what ended other processes until now. Where nothing can be
    /// written there is no note.
    fn begin(&self, case: &str) -> Option<Note> {
        let store = self.inner.store.as_ref()?;
        match store.begin(case) {
            Ok((note, ended)) => {
                self.kept().0.ended = ended;
                Some(note)
            }
            Err(error) => {
                tracing::warn!("{case} is not noted beside {}: {error}", store.path().display());
                None
            }
        }
    }

    /// What went wrong with the file so far.
    pub fn warnings(&self) -> Vec<String> {
        self.kept().1.clone()
    }

    /// The file.
    pub fn path(&self) -> Option<PathBuf> {
        self.inner.store.as_ref().map(|store| store.path().to_owned())
    }

    /// How often ways were known.
    pub fn stats(&self) -> Stats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Inner { hits, misses, measured, dropped, .. } = &*self.inner;
        Stats { hits: get(hits), misses: get(misses), measured: get(measured), dropped: get(dropped) }
    }

    /// Forgets everything, also in the file.
    pub fn clear(&self) -> io::Result<()> {
        self.inner.known.write().unwrap_or_else(PoisonError::into_inner).clear();
        self.kept().0 = Known::default();
        self.inner.store.as_ref().map_or(Ok(()), Store::clear)
    }

    /// Measures a case on contexts of its own, and keeps the result. Ways that fail, hang or give a wrong result are
    /// dropped and never chosen, nor are those that ended an earlier process ([`Contest::noted`]). That the file cannot be written is a warning: see [`Tuner::warnings`].
    pub fn tune(&self, device: &Device, case: &Case) -> Result<Outcome> {
        let ways: Vec<_> = case
            .op
            .ways(device.info().kind)
            .iter()
            .enumerate()
            .filter(|(number, _)| case.is_done_by(*number))
            .map(|(number, name)| {
                Way::on(*name, move |device| {
                    let fixed = Self::of(Tuning::Never, None, Some((case.op, number)));
                    let tensors = Tensors::tuned(device, &fixed)?;
                    let work = case.work(&tensors)?;
                    Ok((tensors, work))
                })
            })
            .collect();
        let outcome = Contest::on(device).limit(self.inner.limit).noted(self, case.to_string()).run(&ways)?;
        self.inner.measured.fetch_add(1, Ordering::Relaxed);
        for trial in &outcome.trials {
            if let Fate::Dropped(reason) = &trial.fate {
                self.inner.dropped.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%case, way = trial.name, reason, "a way was dropped");
            }
        }
        let times = (outcome.trials[outcome.chosen].median_ns, outcome.trials[0].median_ns);
        if let (true, (Some(ns), Some(usual_ns))) = (outcome.complete, times) {
            let kept = Kept { way: outcome.trials[outcome.chosen].name.clone(), ns, usual_ns };
            self.note(device, &case.to_string(), kept.clone());
            if let Some(store) = &self.inner.store
                && let Err(error) = store.add(BTreeMap::from([(case.to_string(), kept)]))
            {
                self.warn(format!("{} cannot be written: {error}", store.path().display()));
            }
        }
        Ok(outcome)
    }

    /// The number of the way to go.
    #[inline]
    pub(crate) fn way(&self, tensors: &Tensors, op: Op, kind: usize, sizes: &[usize]) -> usize {
        if self.inner.idle.load(Ordering::Relaxed) { 0 } else { self.look_up(tensors, op, kind, sizes) }
    }

    #[cold]
    fn look_up(&self, tensors: &Tensors, op: Op, kind: usize, sizes: &[usize]) -> usize {
        if let Some((fixed, way)) = self.inner.fixed {
            return if fixed == op { way } else { 0 };
        }
        let hash = case::hash(op, kind, sizes);
        let known = self.inner.known.read().unwrap_or_else(PoisonError::into_inner).get(&hash).copied();
        if let Some(way) = known {
            self.inner.hits.fetch_add(1, Ordering::Relaxed);
            return way;
        }
        self.inner.misses.fetch_add(1, Ordering::Relaxed);
        let device = tensors.device();
        // Of a convolution paddings may be zero.
        let is_empty = if op == Op::Conv { sizes[0] == 0 } else { sizes.contains(&0) };
        if self.inner.tuning != Tuning::Measure || op.ways(device.info().kind).len() < 2 || is_empty {
            return 0;
        }
        let case = Case::new(op, kind, sizes);
        // What cannot be measured now goes its usual way from now on.
        self.inner.known.write().unwrap_or_else(PoisonError::into_inner).insert(hash, 0);
        match self.tune(device, &case) {
            Ok(outcome) => outcome.chosen,
            Err(error) => {
                tracing::warn!(%case, %error, "it could not be tuned");
                0
            }
        }
    }
}
