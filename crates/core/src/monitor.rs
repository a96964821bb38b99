//! Publishing: a process writes down how its devices are, and others can look.
//!
//! Every publishing context has a file of its own in a folder that all processes of a user share, written anew about
//! twice a second and removed at the end. What a killed process left is removed by whoever looks.

use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError, Weak},
    time::Duration,
};

use crate::{
    health::Health,
    road::{Core, Drive},
};

/// Asks every device that a runtime opens to publish.
pub(crate) const ASKED: &str = "MILLRACE_MONITOR";
const PERIOD: Duration = Duration::from_millis(500);

/// The folder that all processes of this user share.
///
/// ```
/// println!("{}", millrace::published_folder().display());
/// ```
pub fn published_folder() -> PathBuf {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
    match runtime {
        Some(folder) => folder.join("millrace"),
        None => {
            let user = std::env::var("USER").unwrap_or_else(|_| "anyone".to_owned());
            std::env::temp_dir().join(format!("millrace-{user}"))
        }
    }
}

/// Publishes for as long as it is kept.
///
/// ```
/// # let device = millrace::runtime().open("cpu")?;
/// let folder = std::env::temp_dir().join(format!("millrace-publication-{}", std::process::id()));
/// let publication = device.publish(&folder)?;
/// let path = publication.path().to_owned();
/// assert!(path.starts_with(&folder) && path.exists());
/// drop(publication);
/// assert!(!path.exists());
/// # std::fs::remove_dir(folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Publication {
    end: Arc<End>,
    thread: Option<std::thread::JoinHandle<()>>,
    path: PathBuf,
}

#[derive(Default)]
struct End {
    reached: Mutex<bool>,
    changed: Condvar,
}

impl Publication {
    pub(crate) fn start(core: &Arc<Core>, folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let path = folder.join(format!("{}-{}.json", std::process::id(), core.id));
        write(core, &path)?; // so that an error is told here
        let (weak, end, to) = (Arc::downgrade(core), Arc::<End>::default(), path.clone());
        let until = end.clone();
        let thread =
            std::thread::Builder::new().name("millrace-publish".into()).spawn(move || publish(&weak, &to, &until))?;
        Ok(Self { end, thread: Some(thread), path })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Publication {
    fn drop(&mut self) {
        *self.end.reached.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && thread.thread().id() != std::thread::current().id()
        {
            let _ = thread.join();
        }
        let _ = fs::remove_file(&self.path);
    }
}

fn publish(core: &Weak<Core>, path: &Path, end: &End) {
    let mut reached = end.reached.lock().unwrap_or_else(PoisonError::into_inner);
    while !*reached {
        (reached, _) = end.changed.wait_timeout(reached, PERIOD).unwrap_or_else(PoisonError::into_inner);
        let Some(core) = core.upgrade() else { return };
        if !*reached && let Err(error) = write(&core, path) {
            tracing::debug!(path = %path.display(), %error, "not published");
        }
    }
}

/// Whole or not at all, for those who read at the same time.
fn write(core: &Core, path: &Path) -> io::Result<()> {
    let temporary = path.with_extension("part");
    let written = fs::write(&temporary, line(core)).and_then(|()| fs::rename(&temporary, path));
    written.inspect_err(|_| _ = fs::remove_file(&temporary))
}

/// A text as JSON has it.
fn text(value: &str) -> String {
    let mut out = String::from("\"");
    for c in value.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c < ' ' => _ = write!(out, "\\u{:04x}", c as u32),
            c => out.push(c),
        }
    }
    out + "\""
}

fn line(core: &Core) -> String {
    let Health {
        state,
        reason,
        strikes,
        generation,
        memory,
        waiting,
        submissions_in_flight,
        bytes_in_flight,
        counts,
        busy,
        workers,
        uptime,
        temperature,
    } = core.health();
    let program = std::env::current_exe().ok().and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()));
    let kind = if matches!(core.drive, Drive::Direct(_)) { "direct" } else { "queued" };
    let or_null = |value: Option<String>| value.unwrap_or_else(|| "null".to_owned());
    let mut out = String::from("{");
    let mut field = |name: &str, value: String| {
        let comma = if out.len() > 1 { "," } else { "" };
        let _ = write!(out, "{comma}\"{name}\":{value}");
    };
    field("pid", std::process::id().to_string());
    field("program", or_null(program.as_deref().map(text)));
    field("device", text(&core.info.id));
    field("name", text(&core.info.name));
    field("engine", text(kind));
    field("state", text(state.name()));
    field("reason", or_null(reason.as_deref().map(text)));
    field("strikes", strikes.to_string());
    field("generation", generation.to_string());
    field("memory_in_use", memory.in_use.to_string());
    field("memory_reserved", memory.reserved.to_string());
    field("memory_budget", memory.budget.to_string());
    field("waiting", waiting.to_string());
    field("submissions_in_flight", submissions_in_flight.to_string());
    field("bytes_in_flight", bytes_in_flight.to_string());
    field("commands", counts.commands().to_string());
    field("launches", counts.launches.to_string());
    field("busy_seconds", format!("{:.6}", busy.as_secs_f64()));
    field("workers", workers.to_string());
    field("uptime_seconds", format!("{:.6}", uptime.as_secs_f64()));
    field("temperature", or_null(temperature.map(|t| format!("{t:.1}"))));
    out.push_str("}\n");
    out
}
