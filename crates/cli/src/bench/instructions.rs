//! `millrace bench --instructions`: how many instructions the hot paths take, counted by valgrind. Unlike times they do
//! not depend on what else the machine does.

use std::process::{Command, Stdio};

use clap::Args;
use millrace_lab::hot::Path;

use crate::{Failure, table::table};

/// One hot path so many times.
#[derive(Args)]
pub(crate) struct HotOptions {
    path: String,
    count: u64,
}

pub(crate) fn hot(options: &HotOptions) -> Result<(), Failure> {
    let path = Path::of(&options.path).ok_or_else(|| Failure::Usage(format!("there is no path {:?}", options.path)))?;
    Ok((path.run)(options.count)?)
}

/// Times in the shorter of the two runs of a path; the longer has twice as many.
const COUNT: u64 = 2000;

pub(crate) fn instructions(words: &[String]) -> Result<(), Failure> {
    let chosen = |path: &&Path| words.is_empty() || words.iter().any(|word| path.name.contains(word.as_str()));
    let paths: Vec<_> = Path::ALL.iter().filter(chosen).collect();
    if paths.is_empty() {
        let known: Vec<_> = Path::ALL.iter().map(|path| path.name).collect();
        return Err(Failure::Usage(format!("no hot path is called like {words:?}; there is {}", known.join(", "))));
    }
    let version = Command::new("valgrind").arg("--version").stdin(Stdio::null()).output();
    if !version.is_ok_and(|version| version.status.success()) {
        let text = "valgrind is not installed; it counts the instructions (Debian: apt install valgrind)";
        return Err(Failure::Failed(text.to_owned()));
    }
    let mut out = table(&["hot path", "instructions", "what"], 1);
    if let Some(column) = out.column_mut(2) {
        column.set_cell_alignment(comfy_table::CellAlignment::Left);
    }
    for path in paths {
        let (few, many) = (counted(path, COUNT)?, counted(path, 2 * COUNT)?);
        let each = many.saturating_sub(few) as f64 / COUNT as f64;
        out.add_row([path.name.to_owned(), format!("{each:.1}"), path.about.to_owned()]);
    }
    println!("{out}");
    println!(
        "\ninstructions of the processor for each operation, by valgrind: (2 x {COUNT} runs - {COUNT} runs) / {COUNT}"
    );
    Ok(())
}

/// Instructions of a process that runs a path so many times.
fn counted(path: &Path, count: u64) -> Result<u64, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::Failed(error.to_string()))?;
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["bench-hot", path.name, &count.to_string()])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| Failure::Failed(format!("valgrind cannot be started: {error}")))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find_map(|line| line.split_once("Collected :")).map(|(_, number)| number.trim());
    match line.and_then(|number| number.parse().ok()) {
        Some(number) if output.status.success() => Ok(number),
        _ => {
            let last: Vec<_> = said.lines().rev().take(4).collect();
            let last = last.into_iter().rev().collect::<Vec<_>>().join(" | ");
            Err(Failure::Failed(format!("{} did not run under valgrind ({}): {last}", path.name, output.status)))
        }
    }
}
