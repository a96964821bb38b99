//! `millrace completions` and `millrace man`

use std::{io::Write as _, path::Path};

use clap::CommandFactory as _;

use crate::{Arguments, Failure};

pub(crate) fn completions(shell: clap_complete::Shell) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "millrace", &mut text);
    print(&text)
}

pub(crate) fn pages(folder: Option<&Path>) -> Result<(), Failure> {
    let command = Arguments::command();
    match folder {
        Some(folder) => {
            let made = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(command, folder));
            made.map_err(|error| Failure::Failed(format!("cannot write {}: {error}", folder.display())))
        }
        None => {
            let mut text = Vec::new();
            let rendered = clap_mangen::Man::new(command).render(&mut text);
            rendered.map_err(|error| Failure::Failed(error.to_string()))?;
            print(&text)
        }
    }
}

fn print(text: &[u8]) -> Result<(), Failure> {
    std::io::stdout().write_all(text).map_err(|error| Failure::Failed(error.to_string()))
}
