//! Benchmarks that the page starts: each is this very program in a process of its own, and its report is kept
//! with all others.

use std::{
    io::{BufRead as _, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use millrace_lab::{
    history::History,
    html::{self, Page},
    report::Report,
    suites::Suite,
};
use serde::Serialize;

use crate::bench::Going;

/// What can be measured here, as `millrace bench` calls it.
pub(crate) fn groups() -> Vec<String> {
    Suite::ALL.iter().map(|suite| suite.name().to_owned()).collect()
}

/// A run that is under way, or was.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) group: String,
    /// "running", "done", or what went wrong.
    pub(crate) state: String,
    pub(crate) seconds: f64,
    /// Where it is, while it runs.
    pub(crate) going: Option<Going>,
}

/// Where a run is, as its process says.
type Place = Arc<Mutex<Option<Going>>>;

fn locked<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads what a run says of itself until it ends.
fn follow(out: ChildStdout, place: Place) {
    let read = move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if let Ok(going) = serde_json::from_str(&line) {
                *locked(&place) = Some(going);
            }
        }
    };
    let _ = thread::Builder::new().name("millrace-follow".to_owned()).spawn(read); // else nothing is shown of it
}

#[derive(Default)]
struct Current {
    run: Option<Run>,
    started: Option<Instant>,
    child: Option<Child>,
    place: Place,
}

/// All runs. One at a time: two would disturb each other.
pub(crate) struct Runs {
    history: History,
    current: Mutex<Current>,
}

impl Default for Runs {
    fn default() -> Self {
        Self { history: History::of_user(), current: Mutex::default() }
    }
}

impl Runs {
    pub(crate) fn start(&self, group: &str) -> Result<Run, String> {
        if !groups().iter().any(|known| known == group) {
            return Err(format!("there is no group {group:?}; there is {}", groups().join(", ")));
        }
        let mut current = locked(&self.current);
        if current.run.as_ref().is_some_and(|run| run.state == "running") {
            return Err("a benchmark is running; two would disturb each other".to_owned());
        }
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let name = format!("{group}-{seconds}");
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut child = Command::new(program)
            .args(["bench", group, "--quick", "--follow", "--save", &name])
            .stdin(Stdio::piped()) // it ends with this one
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("the benchmark cannot be started: {error}"))?;
        let place = Place::default();
        if let Some(out) = child.stdout.take() {
            follow(out, place.clone());
        }
        let run = Run { name, group: group.to_owned(), state: "running".to_owned(), seconds: 0.0, going: None };
        *current = Current { run: Some(run.clone()), started: Some(Instant::now()), child: Some(child), place };
        Ok(run)
    }

    /// The run of this moment, or the last one.
    pub(crate) fn current(&self) -> Option<Run> {
        let mut current = locked(&self.current);
        let Current { run, started, child, place } = &mut *current;
        let run = run.as_mut()?;
        if let Some(process) = child {
            run.seconds = started.map_or(0.0, |started| started.elapsed().as_secs_f64());
            match process.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) if status.success() => (run.state, *child) = ("done".to_owned(), None),
                Ok(Some(status)) => (run.state, *child) = (format!("ended with {status}"), None),
                Err(error) => (run.state, *child) = (format!("lost: {error}"), None),
            }
        }
        run.going = child.is_some().then(|| locked(place).clone()).flatten();
        Some(run.clone())
    }

    /// Ends the run of this moment.
    pub(crate) fn stop(&self) {
        if let Some(child) = &mut locked(&self.current).child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The names of all reports, the newest first.
    pub(crate) fn reports(&self) -> Vec<String> {
        self.history.names()
    }

    /// The page about a report, if there is one of this name.
    pub(crate) fn page(&self, name: &str) -> Result<String, String> {
        let report = self.report(name)?;
        let history = html::earlier(&self.history, &report, Some(name));
        Ok(Page { report: &report, name: Some(name), baseline: None, history }.to_html())
    }

    /// A report, if there is one of this name.
    pub(crate) fn report(&self, name: &str) -> Result<Report, String> {
        self.history.load(name).map_err(|error| error.to_string())
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.stop();
    }
}
