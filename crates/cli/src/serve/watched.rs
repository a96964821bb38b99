//! The devices that the page's work runs on, and what happened to them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{SystemTime, UNIX_EPOCH},
};

use millrace::{Device, Event, Health, Subscription};
use serde::Serialize;

/// Events that are remembered.
const REMEMBERED: usize = 100;

/// Something that happened to a device.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Happened {
    /// Seconds since 1970.
    at: u64,
    device: String,
    what: String,
}

struct Known {
    device: Device,
    events: Option<Subscription>,
    last: Health,
    busy: f64,
}

#[derive(Default)]
struct Book {
    /// By id and generation, as the id may be opened anew.
    known: BTreeMap<(String, u32, bool), Known>,
    happened: VecDeque<Happened>,
}

/// All devices in use.
#[derive(Default)]
pub(crate) struct Watched {
    book: Mutex<Book>,
}

impl Watched {
    fn lock(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A device for kernels, opened when it is first asked for and after it was lost.
    pub(crate) fn open(&self, id: &str) -> Result<Device, String> {
        let mut book = self.lock();
        let kept = book.known.iter().find(|((known, _, ours), _)| *ours && known == id);
        if let Some((key, kept)) = kept.map(|(key, kept)| (key.clone(), kept)) {
            if kept.device.health().state.name() != "lost" {
                return Ok(kept.device.clone());
            }
            book.known.remove(&key);
        }
        let device = millrace::runtime().open(id).map_err(|error| error.to_string())?;
        // It may be known by a kind, as `gpu`, or by its id.
        book.add(device.clone(), true);
        Ok(device)
    }

    /// How all devices in use are, and what happened to them, the newest first.
    pub(crate) fn look(&self, simulation: Option<Device>) -> (Vec<(Device, Health, f64)>, Vec<Happened>) {
        let mut book = self.lock();
        let key = simulation.as_ref().map(|device| (device.info().id.clone(), device.health().generation, false));
        book.collect();
        // The simulation may have moved to another.
        book.known.retain(|known, _| known.2 || Some(known) == key.as_ref());
        if let (Some(device), Some(key)) = (simulation, key)
            && !book.known.contains_key(&key)
        {
            book.add(device, false);
        }
        let now = |known: &Known| (known.device.clone(), known.last.clone(), known.busy);
        (book.known.values().map(now).collect(), book.happened.iter().rev().cloned().collect())
    }
}

impl Book {
    fn add(&mut self, device: Device, ours: bool) {
        let (events, last) = (device.subscribe(256).ok(), device.health());
        let what = format!("in use, generation {}", last.generation);
        self.remember(&device.info().id.clone(), what);
        let key = (device.info().id.clone(), last.generation, ours);
        self.known.insert(key, Known { device, events, last, busy: 0.0 });
    }

    fn remember(&mut self, device: &str, what: String) {
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.happened.push_back(Happened { at, device: device.to_owned(), what });
        if self.happened.len() > REMEMBERED {
            self.happened.pop_front();
        }
    }

    /// Takes in what happened since the last look.
    fn collect(&mut self) {
        let mut news = Vec::new();
        for known in self.known.values_mut() {
            let id = known.device.info().id.clone();
            while let Some(event) = known.events.as_mut().and_then(Subscription::try_next) {
                match event {
                    Event::Health { from, to, reason } => {
                        let why = reason.map_or_else(String::new, |reason| format!(": {reason}"));
                        news.push((id.clone(), format!("{} → {}{why}", from.name(), to.name())));
                    }
                    Event::Failed { command, error, .. } => {
                        news.push((id.clone(), format!("{command:?} failed: {error}")))
                    }
                    _ => {}
                }
            }
            let health = known.device.health();
            known.busy = health.busy_share_since(&known.last);
            known.last = health;
        }
        for (device, what) in news {
            self.remember(&device, what);
        }
    }
}
