//! What was measured, kept for the next process: one file per device and version.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use millrace_core::{DeviceInfo, file};
use serde::{Deserialize, Serialize};

use super::notes::{self, Ended, Note};

/// A result that was kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The way that was chosen.
    pub way: String,
    /// What it took, in nanoseconds,
    pub ns: f64,
    /// and what the usual way took in the same contest.
    pub usual_ns: f64,
}

/// A file's content.
#[derive(Serialize, Deserialize)]
struct Content {
    schema: u32,
    /// Results hold for one version,
    version: String,
    /// and for one device with one driver.
    device: String,
    results: BTreeMap<String, Kept>,
    /// Ways that ended a process are never tried again.
    #[serde(default, skip_serializing_if = "Ended::is_empty")]
    ended: Ended,
}

/// What is known of a device.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) results: BTreeMap<String, Kept>,
    pub(super) ended: Ended,
}

impl Known {
    /// Adds what is new. What ended a process is not chosen, whatever was found before.
    fn add(&mut self, new: Self) {
        self.results.extend(new.results);
        new.ended.into_iter().for_each(|(case, ways)| self.ended.entry(case).or_default().extend(ways));
        self.results.retain(|case, kept| !self.ended.get(case).is_some_and(|ways| ways.contains(&kept.way)));
    }
}

const SCHEMA: u32 = 1;
/// A file that is larger than this is not one of ours.
const LARGEST: u64 = 16 << 20;

/// What makes two devices the same: their name and everything that is known of them, as the driver's version.
fn identity(info: &DeviceInfo) -> String {
    let details = info.details.iter().map(|(name, value)| format!("{name}={value}"));
    let all: Vec<_> = [info.kind.name().to_owned(), info.name.clone()].into_iter().chain(details).collect();
    all.join("; ")
}

/// Where results are kept.
#[derive(Debug, Clone)]
pub(super) struct Store {
    path: PathBuf,
    device: String,
}

impl Store {
    /// The file for a device in a folder.
    pub(super) fn new(folder: &Path, info: &DeviceInfo) -> Self {
        let device = identity(info);
        // FNV-1a: the same in every build.
        let hash = device
            .bytes()
            .fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let name = format!("tune-{}-{hash:016x}-{}.json", info.kind.name(), env!("CARGO_PKG_VERSION"));
        Self { path: folder.join(name), device }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The folder of what is being measured.
    pub(super) fn notes(&self) -> PathBuf {
        self.path.with_extension("trying")
    }

    /// What is there. Nothing is no error; what cannot be used is, in words.
    pub(super) fn load(&self) -> Result<Known, String> {
        let text = match read(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Known::default()),
            Err(error) => return Err(format!("{} cannot be read: {error}", self.path.display())),
        };
        let ignored = |why: String| format!("{} is ignored: {why}", self.path.display());
        let content: Content =
            serde_json::from_str(&text).map_err(|error| ignored(format!("it is damaged: {error}")))?;
        if content.schema != SCHEMA || content.version != env!("CARGO_PKG_VERSION") {
            let what = format!("it is of version {}, schema {}", content.version, content.schema);
            return Err(ignored(format!("{what}, not of {}, schema {SCHEMA}", env!("CARGO_PKG_VERSION"))));
        }
        if content.device != self.device {
            return Err(ignored(format!("it is of another device: {}", content.device)));
        }
        let sane =
            |kept: &Kept| kept.ns.is_finite() && kept.ns > 0.0 && kept.usual_ns.is_finite() && kept.usual_ns > 0.0;
        if let Some((case, _)) = content.results.iter().find(|(_, kept)| !sane(kept)) {
            return Err(ignored(format!("the times of {case} are no times")));
        }
        Ok(Known { results: content.results, ended: content.ended })
    }

    /// Keeps others that change the file waiting for as long as it is held.
    pub(super) fn lock(&self) -> io::Result<File> {
        let folder = self.path.parent().ok_or(io::ErrorKind::InvalidFilename)?;
        fs::create_dir_all(folder)?;
        // Another file than the one that is replaced, which is a new one each time.
        let lock = File::options().create(true).truncate(false).write(true).open(self.path.with_extension("lock"))?;
        lock.lock()?;
        Ok(lock)
    }

    /// Adds results to those that are there, also to those that another process has added meanwhile. A file that cannot
    /// be used is replaced.
    pub(super) fn add(&self, results: BTreeMap<String, Kept>) -> io::Result<()> {
        let _lock = self.lock()?;
        self.merge(Known { results, ended: Ended::new() }).map(drop)
    }

    /// The lock is held.
    fn merge(&self, new: Known) -> io::Result<Known> {
        let mut known = self.load().unwrap_or_default();
        known.add(new);
        let Known { results, ended } = known;
        let (version, device) = (env!("CARGO_PKG_VERSION").to_owned(), self.device.clone());
        let content = Content { schema: SCHEMA, version, device, results, ended };
        let text = serde_json::to_string_pretty(&content)?;
        file::write(&self.path, |out| out.write_all(text.as_bytes()))?;
        Ok(Known { results: content.results, ended: content.ended })
    }

    /// Keeps what processes left behind that ended while they measured. Where there is nothing, that costs one look at
    /// the folder.
    pub(super) fn collect(&self) -> io::Result<()> {
        if self.notes().is_dir() { self.collect_locked(&self.lock()?) } else { Ok(()) }
    }

    fn collect_locked(&self, _lock: &File) -> io::Result<()> {
        let (ended, files) = match notes::left_behind(&self.notes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        if !ended.is_empty() {
            self.merge(Known { results: BTreeMap::new(), ended })?;
        }
        // Not before it is kept.
        files.iter().try_for_each(fs::remove_file)?;
        // Others may be in it.
        let _ = fs::remove_dir(self.notes());
        Ok(())
    }

    /// A note about what is measured from now on, and what ended other processes until now.
    pub(super) fn begin(&self, case: &str) -> io::Result<(Note, Ended)> {
        let lock = self.lock()?;
        self.collect_locked(&lock)?;
        Ok((Note::new(self, case)?, self.load().unwrap_or_default().ended))
    }

    /// Forgets everything.
    pub(super) fn clear(&self) -> io::Result<()> {
        self.collect()?; // or what was left behind would be found later
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn read(path: &Path) -> io::Result<String> {
    let file = File::open(path)?;
    if file.metadata()?.len() > LARGEST {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {LARGEST} bytes")));
    }
    io::read_to_string(file)
}
