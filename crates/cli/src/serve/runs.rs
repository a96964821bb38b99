//! Benchmarks that the page starts: each is this very program in a process of its own, and its report a file.

use std::{
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

/// What can be measured here, as `millrace bench` calls it.
pub(crate) const GROUPS: [&str; 6] = ["commands", "gpu", "tensor", "resident", "interactive", "throughput"];

/// A run that is under way, or was.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) group: String,
    /// "running", "done", or what went wrong.
    pub(crate) state: String,
    pub(crate) seconds: f64,
}

#[derive(Default)]
struct Current {
    run: Option<Run>,
    started: Option<Instant>,
    child: Option<Child>,
}

/// All runs. One at a time: two would disturb each other.
pub(crate) struct Runs {
    folder: PathBuf,
    current: Arc<Mutex<Current>>,
}

fn lock(current: &Mutex<Current>) -> MutexGuard<'_, Current> {
    current.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Runs {
    /// Reports are kept in this folder.
    pub(crate) fn in_folder(folder: PathBuf) -> Self {
        Self { folder, current: Arc::default() }
    }

    pub(crate) fn start(&self, group: &str) -> Result<Run, String> {
        if !GROUPS.contains(&group) {
            return Err(format!("there is no group {group:?}; there is {}", GROUPS.join(", ")));
        }
        let mut current = lock(&self.current);
        if current.run.as_ref().is_some_and(|run| run.state == "running") {
            return Err("a benchmark is running; two would disturb each other".to_owned());
        }
        std::fs::create_dir_all(&self.folder)
            .map_err(|error| format!("cannot make {}: {error}", self.folder.display()))?;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let name = format!("{group}-{seconds}");
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let child = Command::new(program)
            .args(["bench", group, "--quick", "--json"])
            .arg(self.path(&name))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("the benchmark cannot be started: {error}"))?;
        let run = Run { name, group: group.to_owned(), state: "running".to_owned(), seconds: 0.0 };
        *current = Current { run: Some(run.clone()), started: Some(Instant::now()), child: Some(child) };
        Ok(run)
    }

    /// The run of this moment, or the last one.
    pub(crate) fn current(&self) -> Option<Run> {
        let mut current = lock(&self.current);
        let Current { run, started, child } = &mut *current;
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
        Some(run.clone())
    }

    /// Ends the run of this moment.
    pub(crate) fn stop(&self) {
        if let Some(child) = &mut lock(&self.current).child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The names of all reports, the newest first.
    pub(crate) fn reports(&self) -> Vec<String> {
        let files = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut names: Vec<(SystemTime, String)> = files
            .filter_map(|file| {
                let name = file.file_name().to_string_lossy().strip_suffix(".json")?.to_owned();
                Some((file.metadata().and_then(|meta| meta.modified()).ok()?, name))
            })
            .collect();
        names.sort_by(|a, b| b.cmp(a));
        names.into_iter().map(|(_, name)| name).collect()
    }

    /// A report, if there is one of this name.
    pub(crate) fn report(&self, name: &str) -> Option<String> {
        // Only what is in the folder, whatever the name says.
        let known = self.reports().into_iter().any(|report| report == name);
        known.then(|| std::fs::read_to_string(self.path(name)).ok()).flatten()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Where reports are kept: in the user's data folder.
pub(crate) fn folder() -> PathBuf {
    let home = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    home("XDG_DATA_HOME")
        .or_else(|| home("HOME").map(|home| home.join(".local/share")))
        .unwrap_or_else(std::env::temp_dir)
        .join(Path::new("millrace/reports"))
}
