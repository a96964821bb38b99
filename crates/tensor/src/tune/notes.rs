//! What is being measured, noted beside the tuning file, so that a way that ends the whole process is known afterwards.
//!
//! Every contest has a note of its own and holds a lock on it, which the system takes away with the process however that
//! ends. A note that can be locked by somebody else has lost its owner, and the way it names is why. Numbers of processes
//! would not do: they are used again. Notes are made, removed and collected under the lock of the tuning file; only their
//! owner writes them, one short line in one piece.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, TryLockError},
    io::{self, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::file::Store;

/// What is said of a way that a note was left of.
pub(super) const ENDED: &str = "it ended the process";

/// Ways that ended a process, by case.
pub(super) type Ended = BTreeMap<String, BTreeSet<String>>;

/// A note that is larger than this is not one of ours.
const LARGEST: u64 = 64 << 10;

#[derive(Serialize, Deserialize)]
struct Line {
    case: String,
    way: String,
}

/// A note, until it is dropped.
#[derive(Debug)]
pub(super) struct Note {
    store: Store,
    path: PathBuf,
    /// Locked.
    file: File,
    case: String,
}

impl Note {
    /// A note about nothing yet. The store's lock is held.
    pub(super) fn new(store: &Store, case: &str) -> io::Result<Self> {
        let folder = store.notes();
        fs::create_dir_all(&folder)?;
        for number in 0u32.. {
            let path = folder.join(format!("{}-{number}", std::process::id()));
            match File::options().create_new(true).read(true).write(true).open(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (),
                Err(error) => return Err(error),
                Ok(file) => {
                    file.lock()?;
                    return Ok(Self { store: store.clone(), path, file, case: case.to_owned() });
                }
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Says which way is measured from now on.
    pub(super) fn set(&self, way: &str) {
        let line = Line { case: self.case.clone(), way: way.to_owned() };
        let write = || {
            let mut text = serde_json::to_vec(&line)?;
            // What an older line has behind this does not count.
            text.push(b'\n');
            (&self.file).seek(SeekFrom::Start(0))?;
            (&self.file).write_all(&text)
        };
        if let Err(error) = write() {
            tracing::warn!("{} cannot be written: {error}", self.path.display());
        }
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let remove = || {
            let _lock = self.store.lock()?;
            fs::remove_file(&self.path)?;
            // Others may be in it.
            let _ = fs::remove_dir(self.store.notes());
            Ok::<_, io::Error>(())
        };
        if let Err(error) = remove() {
            tracing::warn!("{} cannot be removed: {error}", self.path.display());
        }
    }
}

/// Takes up the notes whose owners are gone: what they say, and the files to remove when that is kept. The store's lock is
/// held.
pub(super) fn left_behind(folder: &Path) -> io::Result<(Ended, Vec<PathBuf>)> {
    let (mut ended, mut files) = (Ended::new(), Vec::new());
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let mut file = File::options().read(true).write(true).open(&path)?;
        match file.try_lock() {
            Ok(()) => (),
            // Its owner lives.
            Err(TryLockError::WouldBlock) => continue,
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let mut text = Vec::new();
        Read::by_ref(&mut file).take(LARGEST).read_to_end(&mut text)?;
        let first = text.split(|byte| *byte == b'\n').next().unwrap_or_default();
        // One that says nothing was left between two ways.
        if let Ok(line) = serde_json::from_slice::<Line>(first) {
            ended.entry(line.case).or_default().insert(line.way);
        }
        files.push(path);
    }
    Ok((ended, files))
}
