//! Runs that were kept: a folder of plain JSON files, one for each.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use millrace::core::file;

use crate::{
    Error, Result,
    machine::Machine,
    report::{Report, SCHEMA},
};

/// Where runs are kept.
#[derive(Debug, Clone)]
pub struct History {
    folder: PathBuf,
}

/// The length of a name, at most.
const LONGEST: usize = 100;

impl History {
    /// In the user's data folder, or where `MILLRACE_HISTORY` says.
    pub fn of_user() -> Self {
        let home = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = || home("XDG_DATA_HOME").or_else(|| home("HOME").map(|home| home.join(".local/share")));
        let said = std::env::var_os("MILLRACE_HISTORY").filter(|said| !said.is_empty()).map(PathBuf::from);
        let folder = said.unwrap_or_else(|| data().unwrap_or_else(std::env::temp_dir).join("millrace/reports"));
        Self { folder }
    }

    /// In a folder, which is made when something is kept.
    ///
    /// ```
    /// use millrace_lab::history::History;
    /// let folder = std::env::temp_dir().join(format!("millrace-history-{}", std::process::id()));
    /// let history = History::in_folder(&folder);
    /// assert!(history.names().is_empty());
    /// assert!(history.load("before").unwrap_err().to_string().contains("there is no run called"));
    /// ```
    pub fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The file of a run.
    pub fn path(&self, name: &str) -> Result<PathBuf> {
        let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if name.is_empty() || name.len() > LONGEST || name.starts_with('.') || !name.chars().all(fine) {
            let text = format!("{name:?} is no name for a run: letters, digits, dots, dashes, at most {LONGEST}");
            return Err(Error::History(text));
        }
        Ok(self.folder.join(format!("{name}.json")))
    }

    /// Keeps a run, in the place of one of the same name.
    pub fn save(&self, name: &str, report: &Report) -> Result<()> {
        let path = self.path(name)?;
        let text = report.to_json().map_err(|error| Error::History(error.to_string()))?;
        let made = fs::create_dir_all(&self.folder)
            .map_err(|error| io::Error::new(error.kind(), format!("cannot make {}: {error}", self.folder.display())));
        made.and_then(|()| file::write(&path, |out| out.write_all(text.as_bytes())))
            .map_err(|error| Error::History(error.to_string()))
    }

    /// A run that was kept.
    pub fn load(&self, name: &str) -> Result<Report> {
        let path = self.path(name)?;
        let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                let known = self.names();
                let known = if known.is_empty() { "none was kept".to_owned() } else { known.join(", ") };
                Error::History(format!("there is no run called {name:?} in {}: {known}", self.folder.display()))
            }
            _ => Error::History(format!("cannot read {}: {error}", path.display())),
        })?;
        let foreign = |why: String| Error::History(format!("{} is no run of the lab: {why}", path.display()));
        let value: serde_json::Value = serde_json::from_str(&text).map_err(|error| foreign(error.to_string()))?;
        match value["schema"].as_u64() {
            Some(schema) if schema == u64::from(SCHEMA) => {}
            Some(schema) => return Err(foreign(format!("it has form {schema}, and this program knows {SCHEMA}"))),
            None => return Err(foreign("it does not say its form".to_owned())),
        }
        serde_json::from_value(value).map_err(|error| foreign(error.to_string()))
    }

    /// The names of all runs, the newest first.
    pub fn names(&self) -> Vec<String> {
        let files = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut names: Vec<_> = files
            .filter_map(|file| {
                let name = file.file_name().to_string_lossy().strip_suffix(".json")?.to_owned();
                Some((file.metadata().and_then(|meta| meta.modified()).ok()?, name))
            })
            .collect();
        names.sort_by(|a, b| b.cmp(a));
        names.into_iter().map(|(_, name)| name).collect()
    }
}

/// Why numbers of two machines cannot be compared, if they cannot.
pub fn differs(now: &Machine, before: &Machine) -> Option<String> {
    let pairs = [("processor", &now.cpu, &before.cpu), ("system", &now.os, &before.os)];
    let different = pairs.iter().find(|(_, now, before)| now != before);
    if let Some((what, now, before)) = different {
        return Some(format!("another {what}: {now} now, {before} then"));
    }
    if now.cores != before.cores {
        return Some(format!("{} cores now, {} then", now.cores, before.cores));
    }
    match (&now.driver, &before.driver) {
        (Some(now), Some(before)) if now != before => Some(format!("another GPU driver: {now} now, {before} then")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test")]

    use tempfile::TempDir;

    use super::*;

    fn scratch() -> (TempDir, History) {
        let folder = tempfile::tempdir().unwrap();
        let history = History::in_folder(folder.path());
        (folder, history)
    }

    #[test]
    fn what_is_kept_comes_back() {
        let (_scratch, history) = scratch();
        let report = Report { schema: SCHEMA, machine: Machine::now(), rows: Vec::new() };
        history.save("before", &report).unwrap();
        history.save("before", &report).unwrap();
        assert_eq!((history.load("before").unwrap(), history.names()), (report, vec!["before".to_owned()]));
    }

    #[test]
    fn files_that_are_broken_or_foreign_are_said_to_be() {
        let (scratch, history) = scratch();
        for (name, text, part) in [
            ("cut", r#"{"schema": 1, "machine": "#, "EOF"),
            ("other", r#"{"a": 1}"#, "does not say its form"),
            ("newer", r#"{"schema": 99}"#, "form 99"),
            ("rows", r#"{"schema": 1, "rows": 3}"#, "is no run"),
        ] {
            fs::write(scratch.path().join(format!("{name}.json")), text).unwrap();
            let error = history.load(name).unwrap_err().to_string();
            assert!(error.contains(part), "{name}: {error}");
        }
        for name in ["", "../secret", "a/b", ".hidden", "a b"] {
            assert!(history.load(name).unwrap_err().to_string().contains("is no name"), "{name}");
        }
    }

    #[test]
    fn other_machines_are_told_apart() {
        let machine = Machine::now();
        assert_eq!(differs(&machine, &machine), None);
        let other = Machine { cpu: "another".to_owned(), ..machine.clone() };
        assert!(differs(&machine, &other).unwrap().contains("another processor"));
        let larger = Machine { cores: machine.cores + 1, ..machine.clone() };
        assert!(differs(&machine, &larger).unwrap().contains("cores"));
    }
}
