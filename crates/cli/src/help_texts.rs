//! Help texts change only on purpose: all of them are in `tests/help.txt`.

use std::fs;
use std::path::Path;

use clap::{Command, CommandFactory};

use crate::arguments::Arguments;

/// The variable with which the file is written anew: `INARCH_WRITE_HELP=1 cargo test -p inarch help_texts`.
const WRITE: &str = "INARCH_WRITE_HELP";

/// The help of a command and of those below it.
fn add(command: &mut Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name()).to_owned();
    *text += &format!("==== {name}\n\n{}\n", command.clone().term_width(100).render_help());
    for below in command.get_subcommands_mut().filter(|below| below.get_name() != "help") {
        add(below, text);
    }
}

#[test]
fn they_are_as_written_down() {
    let mut root = Arguments::command();
    root.build();
    let mut text = String::new();
    add(&mut root, &mut text);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help.txt");
    if std::env::var_os(WRITE).is_some() {
        fs::write(&path, &text).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    if let Some((number, (now, before))) = text
        .lines()
        .zip(written.lines().chain(std::iter::repeat("")))
        .enumerate()
        .find(|(_, (now, before))| now != before)
    {
        panic!(
            "line {} of {} is '{before}', and '{now}' now; if that is meant, {WRITE}=1 cargo test -p inarch help_texts writes it",
            number + 1,
            path.display()
        );
    }
    assert_eq!(text.lines().count(), written.lines().count(), "{}", path.display());
}
