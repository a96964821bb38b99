//! Files that appear whole or not at all, and where to keep those that can be made again.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
};

/// Writes a file next to its place and moves it there when it is complete. What is not a file, as a pipe or a terminal,
/// is written to as it is. An error names the path.
///
/// ```
/// let path = std::env::temp_dir().join("millrace-example.txt");
/// millrace_core::file::write(&path, |out| out.write_all(b"whole"))?;
/// assert_eq!(std::fs::read(&path)?, b"whole");
/// # std::fs::remove_file(path)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write(path: &Path, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let written = open(path).and_then(|place| place.fill(content));
    written.map_err(|error| cannot_write(path, &error))
}

/// Whether [`write()`] would find its place: what fails is better known before the work than after. Changes nothing.
///
/// ```
/// let folder = std::env::temp_dir();
/// assert!(millrace_core::file::check(&folder.join("millrace-example.json")).is_ok());
/// assert!(millrace_core::file::check(&folder.join("no such folder/example.json")).is_err());
/// ```
pub fn check(path: &Path) -> io::Result<()> {
    open(path).map(drop).map_err(|error| cannot_write(path, &error))
}

fn cannot_write(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write {}: {error}", path.display()))
}

/// The folder for what can be made again: `millrace` in `XDG_CACHE_HOME`, or in `.cache` of the user's home.
///
/// ```
/// assert!(millrace_core::file::cache_folder().is_none_or(|folder| folder.ends_with("millrace")));
/// ```
pub fn cache_folder() -> Option<PathBuf> {
    let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
    let folder = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    Some(folder.or_else(home)?.join("millrace"))
}

/// Where the bytes go, and where they are moved when all are there; what is not a file stays where it is.
struct Place<'a> {
    file: File,
    beside: Option<(Part, &'a Path)>,
}

fn open(path: &Path) -> io::Result<Place<'_>> {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => return Err(io::ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() => {
            return Ok(Place { file: File::options().write(true).open(path)?, beside: None });
        }
        _ => {}
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?;
    let mut unfinished = name.to_owned();
    unfinished.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(unfinished);
    Ok(Place { file: File::create(&part)?, beside: Some((Part(part), path)) })
}

impl Place<'_> {
    fn fill(self, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(1 << 16, self.file);
        content(&mut out)?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        match file.sync_all() {
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {} // a pipe has nothing to wait for
            other => other?,
        }
        self.beside.map_or(Ok(()), |(part, path)| fs::rename(&part.0, path))
    }
}

/// Renamed if all went well, and then there is nothing to remove.
struct Part(PathBuf);

impl Drop for Part {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fails_half_way_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace.json");
        write(&path, |out| out.write_all(b"old")).unwrap();
        let full = |out: &mut dyn Write| {
            out.write_all(&[b'x'; 1 << 20])?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        };
        let error = write(&path, full).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().contains("trace.json"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        check(&path).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"old", "looking changes nothing");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing is left beside it");
        assert_eq!(check(folder.path()).unwrap_err().kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_is_an_error_with_the_path() {
        let error = write(Path::new("/dev/full"), |out| out.write_all(&[b'x'; 1 << 20])).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert!(error.to_string().starts_with("cannot write /dev/full: "), "{error}");
        let small = write(Path::new("/dev/full"), |out| out.write_all(b"x"));
        assert!(small.is_err(), "also what fits into the buffer");
        write(Path::new("/dev/null"), |out| out.write_all(b"x")).unwrap();
    }
}
