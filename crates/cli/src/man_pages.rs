//! `inarch man-pages`: writes the manual pages, which are made of the same definitions as the help texts.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use crate::arguments::Arguments;

/// Options of `inarch man-pages`.
#[derive(Args, Debug)]
#[command(after_help = "\
Example:
  inarch man-pages man1 && man -l man1/inarch-run.1

There is a page for each command: inarch.1, inarch-run.1, inarch-serve-blk.1... 'make install' and the Debian package install them.")]
pub struct ManPagesArguments {
    /// The directory to write the pages into; made if it does not exist
    #[arg(value_name = "DIR")]
    pub directory: PathBuf,
}

/// Writes the pages.
pub fn run(arguments: ManPagesArguments) -> anyhow::Result<ExitCode> {
    let directory = &arguments.directory;
    fs::create_dir_all(directory).with_context(|| format!("cannot make the directory {}", directory.display()))?;
    let mut root = Arguments::command().disable_help_subcommand(true);
    root.build();
    write_all(&root, None, directory)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of `command`, whose page above is called `above`, and those of its subcommands.
fn write_all(command: &Command, above: Option<&str>, directory: &Path) -> anyhow::Result<()> {
    let man =
        Man::new(command.clone()).date(date()).manual("Inarch").source(format!("inarch {}", env!("CARGO_PKG_VERSION")));
    let path = directory.join(man.get_filename());
    let page = render(&man, command, above).and_then(|page| fs::write(&path, page));
    page.map_err(|error| anyhow::anyhow!("cannot write the page {}: {error}", path.display()))?;
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_all(below, Some(page_name(command)), directory)?;
    }
    Ok(())
}

/// The name of a command's page, such as `inarch-serve-blk`.
fn page_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// The day of the commit that this program is built from; a space where that is not known, as troff needs a word there.
fn date() -> &'static str {
    let commit = env!("INARCH_VERSION").rsplit_once(' ').and_then(|(_, last)| last.strip_suffix(')'));
    commit.unwrap_or(" ")
}

/// A page, with the sections that man-pages(7) names.
fn render(man: &Man, command: &Command, above: Option<&str>) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    let mut synopsis = Roff::new();
    synopsis.control("SH", ["SYNOPSIS"]);
    let usage = command.clone().render_usage().to_string();
    for line in usage.trim_start_matches("Usage:").lines().map(str::trim).filter(|line| !line.is_empty()) {
        synopsis.text([roman(line)]).control("br", []);
    }
    synopsis.to_writer(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut rest = Roff::new();
    let text = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    add_sections(&mut rest, &text);
    rest.control("SH", ["SEE ALSO"]);
    let own = command.get_subcommands().filter(|below| !below.is_hide_set()).map(page_name);
    let related: Vec<_> = above.into_iter().chain(own).collect();
    for (number, name) in related.iter().enumerate() {
        let comma = if number + 1 < related.len() { ", " } else { "" };
        rest.text([bold(*name), roman(format!("(1){comma}"))]);
    }
    rest.to_writer(&mut page)?;
    Ok(page)
}

/// The text after a help's options: its examples, its exit statuses, and what else there is to know.
fn add_sections(page: &mut Roff, text: &str) {
    let mut notes = Vec::new();
    for paragraph in text.split("\n\n").filter(|paragraph| !paragraph.is_empty()) {
        if let Some(lines) = ["Example:\n", "Examples:\n"].iter().find_map(|word| paragraph.strip_prefix(word)) {
            page.control("SH", ["EXAMPLES"]).control("nf", []);
            for line in lines.lines() {
                page.text([roman(line)]);
            }
            page.control("fi", []);
        } else if let Some(statuses) = paragraph.strip_prefix("Exit status: ") {
            page.control("SH", ["EXIT STATUS"]).text([roman(statuses)]);
        } else {
            notes.push(paragraph);
        }
    }
    if !notes.is_empty() {
        page.control("SH", ["NOTES"]);
    }
    for (number, note) in notes.into_iter().enumerate() {
        if number > 0 {
            page.control("PP", []);
        }
        page.text([roman(note)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_has_a_page_with_its_options_and_examples() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("man1");
        run(ManPagesArguments { directory: directory.clone() }).unwrap();
        let page = |name: &str| fs::read_to_string(directory.join(format!("{name}.1"))).unwrap();
        let run = page("inarch-run");
        for words in [
            "SH NAME",
            "SH SYNOPSIS",
            "SH OPTIONS",
            "SH EXAMPLES",
            "inarch run \\-t",
            "SH \"EXIT STATUS\"",
            "\\-\\-root",
        ] {
            assert!(run.contains(words), "{words}");
        }
        assert!(page("inarch-serve-9p").contains("inarch\\-serve"));
        // A line that begins with a dot or an apostrophe is a request to troff.
        let mut count = 0;
        for entry in fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            count += 1;
            let checked = std::process::Command::new("man")
                .args(["--warnings=w", "-l"])
                .arg(&path)
                .env("MANROFFOPT", "-ww")
                .env("LC_ALL", "C.UTF-8")
                .output();
            if let Ok(checked) = checked {
                let said = String::from_utf8_lossy(&checked.stderr).into_owned();
                assert!(checked.status.success() && said.is_empty(), "{}: {said}", path.display());
            }
        }
        assert!(count > 40, "{count}");
    }
}
