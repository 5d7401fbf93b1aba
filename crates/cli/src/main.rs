//! The `inarch` command: parses its arguments, calls a job, prints the result.

#![forbid(unsafe_code)]

mod access;
mod apply;
mod arguments;
mod cache;
mod cache_option;
mod chart;
mod columns;
mod compare;
mod completions;
mod diff;
mod discard;
mod disk;
mod disk_option;
mod disk_options;
mod doctor;
#[cfg(test)]
mod documented;
mod duration;
#[cfg(test)]
mod help_texts;
mod image;
mod log;
mod man_pages;
mod mount;
mod output;
mod plan;
mod profile;
mod publish;
mod push;
mod run;
mod runs;
mod sandbox;
mod say;
mod serve;
mod shell;
mod signals;
mod size;
mod source;
mod stats;
mod telling;
mod timings;
mod trace;
mod tree_option;
mod umount;
mod upper;

use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};

use arguments::{Arguments, Command};
use inarch_jobs::JobError;
use output::complain;
use serve::virtiofsd;

/// Inarch or the VM failed; the command has no status of its own.
const EXIT_FAILED: u8 = 125;

fn main() -> ExitCode {
    inarch_jobs::heed_children();
    // The child that cleans up after a server: an internal command.
    if let Some(status) = inarch_jobs::as_child() {
        return status.into();
    }
    inarch_jobs::make_room_at_start();
    if let Err(error) = log::begin() {
        return finish(Err(error));
    }
    signals::survive_size_limit();
    let words = disk::with_options_of_find(std::env::args_os().collect());
    if words.first().is_some_and(|program| virtiofsd::is_meant(program)) {
        return virtiofsd::run(&words).map_or_else(|error| refuse(&error), finish);
    }
    if let Some(answered) = completions::answer_shell(&words) {
        return finish(answered);
    }
    // A server that was started in the background.
    let is_background = words.get(1).is_some_and(|word| word == inarch_jobs::serve::BACKGROUND_ARGUMENT);
    let own = words.iter().enumerate().filter(|(place, _)| !(is_background && *place == 1)).map(|(_, word)| word);
    let arguments = match Arguments::try_parse_from(own) {
        Ok(arguments) => arguments,
        Err(error) => {
            return refuse(&error);
        }
    };
    let result = match arguments.command {
        Command::Run(arguments) => run::run(*arguments),
        Command::Compare(arguments) => compare::run(*arguments),
        Command::Trace(arguments) => trace::run(arguments),
        Command::Cache(arguments) => cache::run(arguments),
        Command::Plan(arguments) => plan::run(arguments),
        Command::Image(arguments) => image::run(*arguments),
        Command::Push(arguments) => push::run(*arguments),
        Command::Serve(arguments) => serve::run(arguments),
        Command::Disk(arguments) => disk::run(arguments),
        Command::Shell(arguments) => shell::run(arguments),
        Command::Mount(arguments) if is_background => mount::serve(arguments),
        Command::Mount(arguments) => mount::run(arguments, words.get(1..).unwrap_or_default()),
        Command::Umount(arguments) => umount::run(arguments),
        Command::Diff(arguments) => diff::run(arguments),
        Command::Apply(arguments) => apply::run(arguments),
        Command::Discard(arguments) => discard::run(arguments),
        Command::Runs(arguments) => runs::run(arguments),
        Command::Doctor(arguments) => doctor::run(arguments),
        Command::Completions(arguments) => completions::run(arguments),
        Command::ManPages(arguments) => man_pages::run(arguments),
    };
    finish(result)
}

/// Reports what failed. Returns the status of a command's end.
fn finish(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        complain(&error);
        match error.downcast_ref() {
            Some(JobError::Command { status, .. }) => ExitCode::from(*status),
            _ => ExitCode::from(EXIT_FAILED),
        }
    })
}

/// Help and version are answers. Any other error is a failure of ours, never a status of the command's, reported in one
/// line like every other.
fn refuse(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        if error.use_stderr() {
            let _ = error.print();
            return ExitCode::from(EXIT_FAILED);
        }
        return match output::printed(error.print().and_then(|()| std::io::stdout().flush())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                complain(error);
                ExitCode::from(EXIT_FAILED)
            }
        };
    }
    complain(format_args!("{}; {}--help says more", first_words(error), suggestion(error).unwrap_or_default()));
    ExitCode::from(EXIT_FAILED)
}

/// What an error of the command line says first, in one line.
fn first_words(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    first.trim_start_matches("error:").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The `words` with the fewest spelling mistakes in `word`, at most `most`; longest common prefix first.
fn nearest<'a>(word: &str, words: &'a [String], most: usize) -> Vec<&'a str> {
    let mistakes = |other: &str| {
        // The Levenshtein distance, row by row.
        let other: Vec<char> = other.chars().collect();
        let mut row: Vec<usize> = (0..=other.len()).collect();
        for (i, letter) in word.chars().enumerate() {
            let mut before = std::mem::replace(&mut row[0], i + 1);
            for (j, theirs) in other.iter().enumerate() {
                let changed = before + usize::from(letter != *theirs);
                before = row[j + 1];
                row[j + 1] = changed.min(before + 1).min(row[j] + 1);
            }
        }
        row[other.len()]
    };
    let alike = |other: &str| word.chars().zip(other.chars()).take_while(|(ours, theirs)| ours == theirs).count();
    let mut found: Vec<(usize, usize, &str)> =
        words.iter().map(|other| (mistakes(other), usize::MAX - alike(other), &other[..])).collect();
    found.sort();
    found.dedup();
    let fewest = found.first().map_or(0, |(mistakes, ..)| *mistakes).min(most);
    found.into_iter().filter(|(mistakes, ..)| *mistakes == fewest).map(|(.., other)| other).collect()
}

/// A suggestion for what the user may have meant.
fn suggestion(error: &clap::Error) -> Option<String> {
    let text = |kind| match error.get(kind)? {
        ContextValue::String(word) => Some(word.clone()),
        ContextValue::Strings(words) => Some(words.join("' or '")),
        _ => None,
    };
    // The word may stand behind a command that has commands of its own.
    let root = Arguments::command();
    let above = std::env::args_os().nth(1).and_then(|word| root.find_subcommand(word).cloned());
    let above = above.filter(clap::Command::has_subcommands);
    let is_first = above.is_none();
    let commands = || {
        let command = above.as_ref().unwrap_or(&root);
        command.get_subcommands().map(|below| below.get_name().to_owned()).collect::<Vec<_>>()
    };
    let meant = match text(ContextKind::InvalidSubcommand) {
        // Covers the word after `help`, too, for which clap suggests nothing.
        Some(word) => Some(nearest(&word, &commands(), 2).join("' or '")).filter(|words| !words.is_empty()),
        None => [ContextKind::SuggestedArg, ContextKind::SuggestedValue].into_iter().find_map(text),
    };
    let similar = meant.map(|words| format!("did you mean '{words}'? "));
    let command =
        text(ContextKind::InvalidSubcommand).filter(|word| is_first && inarch_jobs::doctor::in_path(word).is_some());
    let command = command.map(|word| format!("'inarch run {word}' runs that in a guest; "));
    let image = text(ContextKind::InvalidArg)
        .filter(|word| !word.starts_with('-') && std::env::args_os().nth(1).is_some_and(|command| command == "image"))
        .map(|word| format!("-o {word} writes the image there; "));
    let all: String = similar.into_iter().chain(command).chain(image).collect();
    (!all.is_empty()).then_some(all)
}
