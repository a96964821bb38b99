//! `millrace top`: what the programs that publish do on their devices.

use std::{
    collections::HashMap,
    fs,
    io::{IsTerminal, Write},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant, SystemTime},
};

use serde::{Deserialize, Serialize};

use crate::{
    Failure,
    table::{bytes, table},
};

/// A context of a running program, as it publishes itself.
#[derive(Debug, Clone, Deserialize, Serialize)]
struct Entry {
    pid: u32,
    program: Option<String>,
    device: String,
    name: String,
    state: String,
    reason: Option<String>,
    strikes: u32,
    generation: u32,
    memory_in_use: u64,
    memory_reserved: u64,
    memory_budget: u64,
    waiting: u64,
    submissions_in_flight: u64,
    bytes_in_flight: u64,
    commands: u64,
    launches: u64,
    busy_seconds: f64,
    workers: u64,
    uptime_seconds: f64,
    temperature: Option<f32>,
}

#[derive(Serialize)]
struct Listing<'a> {
    contexts: Vec<&'a Entry>,
}

/// Older than this, and not from a process that lives: left by one that was killed.
const STALE: Duration = Duration::from_secs(5);

/// Whether the terminal's second screen is in use.
static ON_SCREEN: AtomicBool = AtomicBool::new(false);

/// Gives the terminal back as it was.
pub(crate) fn leave_screen() {
    if ON_SCREEN.swap(false, Ordering::Relaxed) {
        print!("\x1b[?25h\x1b[?1049l");
        let _ = std::io::stdout().flush();
    }
}

/// A number of seconds that makes sense here.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("say a number from 0.1 to 3600".to_owned()),
    }
}

pub(crate) fn top(once: bool, json: bool, interval: f64) -> Result<(), Failure> {
    let folder = millrace::published_folder();
    let mut before = look(&folder);
    if json {
        let text = serde_json::to_string_pretty(&Listing { contexts: before.values().collect() });
        println!("{}", text.map_err(|error| Failure::Failed(error.to_string()))?);
        return Ok(());
    }
    let live = !once && std::io::stdout().is_terminal();
    if live {
        ON_SCREEN.store(true, Ordering::Relaxed);
        print!("\x1b[?1049h\x1b[?25l");
    }
    loop {
        let start = Instant::now();
        // A share of time and a rate need two looks.
        std::thread::sleep(Duration::from_secs_f64(if live { interval } else { interval.min(1.0) }));
        let now = look(&folder);
        let text = show(&before, &now, start.elapsed());
        if !live {
            print!("{text}");
            return Ok(());
        }
        print!("\x1b[H\x1b[J{text}\nevery {interval} s; Ctrl-C ends\n");
        if std::io::stdout().flush().is_err() {
            return Ok(()); // nobody looks any more
        }
        before = now;
    }
}

/// What is published, by file.
fn look(folder: &Path) -> HashMap<String, Entry> {
    let mut found = HashMap::new();
    for file in fs::read_dir(folder).into_iter().flatten().flatten() {
        let (path, name) = (file.path(), file.file_name().to_string_lossy().into_owned());
        let entry: Option<Entry> = fs::read(&path).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let age = file.metadata().and_then(|meta| meta.modified()).ok();
        let age = age.and_then(|at| SystemTime::now().duration_since(at).ok()).unwrap_or_default();
        let pid = name.split('-').next().and_then(|pid| pid.parse().ok());
        if age > STALE && !pid.is_some_and(lives) {
            let _ = fs::remove_file(&path);
        } else if let Some(entry) = entry.filter(|_| name.ends_with(".json")) {
            found.insert(name, entry);
        }
    }
    found
}

fn lives(pid: u32) -> bool {
    // Where there is no /proc, age alone decides.
    Path::new("/proc").join(pid.to_string()).exists()
}

fn show(before: &HashMap<String, Entry>, now: &HashMap<String, Entry>, time: Duration) -> String {
    if now.is_empty() {
        return "No program publishes its devices. Start one with MILLRACE_MONITOR=1, or call `Device::publish` in it.\n"
            .to_owned();
    }
    let mut rows: Vec<_> = now.iter().collect();
    rows.sort_by_key(|(_, entry)| (entry.pid, entry.device.clone()));
    let header = [
        "pid",
        "program",
        "device",
        "state",
        "busy",
        "memory",
        "of budget",
        "in flight",
        "waiting",
        "commands/s",
        "°C",
    ];
    let mut out = table(&header, 4);
    let mut reasons = String::new();
    for (file, entry) in rows {
        let earlier = before.get(file).unwrap_or(entry);
        let uptime = entry.uptime_seconds - earlier.uptime_seconds;
        let busy = (entry.busy_seconds - earlier.busy_seconds) / (uptime * entry.workers.max(1) as f64);
        let rate =
            (entry.commands - earlier.commands.min(entry.commands)) as f64 / uptime.max(time.as_secs_f64() / 2.0);
        let of_budget = 100.0 * entry.memory_in_use as f64 / entry.memory_budget.max(1) as f64;
        out.add_row([
            entry.pid.to_string(),
            entry.program.clone().unwrap_or_default(),
            entry.device.clone(),
            entry.state.clone(),
            if busy.is_finite() { format!("{:.0}%", 100.0 * busy.clamp(0.0, 1.0)) } else { "-".to_owned() },
            bytes(entry.memory_in_use),
            format!("{of_budget:.0}%"),
            format!("{} ({})", entry.submissions_in_flight, bytes(entry.bytes_in_flight)),
            entry.waiting.to_string(),
            format!("{rate:.0}"),
            entry.temperature.map_or_else(|| "-".to_owned(), |t| format!("{t:.0}")),
        ]);
        if let Some(reason) = &entry.reason {
            reasons += &format!("{} of {}: {reason}\n", entry.device, entry.pid);
        }
    }
    format!("{out}\n{reasons}")
}
