//! Prints the result of `inarch trace --verify`.

use std::io;
use std::path::PathBuf;

use inarch_jobs::shown;
use inarch_jobs::trace::{Again, Different, Minimised, Mismatch, TraceError, Verification};
use rustix::fs::{FileType, fstat};

use crate::output::complain;

/// The most paths of a kind that are named.
const MOST: usize = 20;

/// Says whether the record is complete, and returns that.
pub fn told(verification: &Result<Verification, TraceError>, quiet: bool) -> bool {
    match verification {
        Ok(Verification::Verified { outputs, minimised }) => {
            if !quiet {
                complain(format_args!("verified: {} from the recorded files alone", same(*outputs)));
            }
            minimised.iter().for_each(|minimised| tell_surplus(minimised, quiet));
            return true;
        }
        Ok(Verification::Unclean { changed }) => tell_changed(changed),
        Ok(Verification::Stopped) => complain("not verified: the trace was stopped"),
        Ok(Verification::Different(different)) => tell_different(different),
        Err(error) => complain(format_args!("not verified: {error}")),
    }
    false
}

fn same(outputs: usize) -> String {
    match outputs {
        0 => "the same end without outputs".to_owned(),
        1 => "the same output".to_owned(),
        _ => format!("the same {outputs} outputs"),
    }
}

/// Says which files can be missing.
fn tell_surplus(minimised: &Minimised, quiet: bool) {
    let Minimised { surplus, files, runs, is_whole } = minimised;
    for path in surplus {
        complain(format_args!("surplus: {}", shown(path)));
    }
    if !quiet {
        let rest = if *is_whole { "" } else { "; not all others were tried" };
        complain(format_args!("{} of {files} files are surplus, by {runs} runs{rest}", surplus.len()));
    }
}

/// Says why the command cannot be run again as it was.
fn tell_changed(changed: &[PathBuf]) {
    tell_paths("changed what was there before: ", changed);
    complain(
        "not verified: the command changed files that were there before it, so it cannot be run on them again; start from \
         a clean state, such as after 'make clean', or leave them out with --ignore",
    );
}

/// Says what the further runs did otherwise, and what that means.
fn tell_different(different: &Different) {
    let Different { again, missed, changed, with_all } = different;
    let (alone, all, both) = ("with the recorded files alone", "with all files", "either way");
    if again.ended == with_all.ended {
        tell_end(both, again);
    } else {
        tell_end(alone, again);
        tell_end(all, with_all);
    }
    let is_in = |other: &'_ Again, mismatch: &Mismatch| other.mismatches.contains(mismatch);
    let (common, only_alone): (Vec<_>, Vec<_>) =
        again.mismatches.iter().partition(|mismatch| is_in(with_all, mismatch));
    let only_all = with_all.mismatches.iter().filter(|mismatch| !is_in(again, mismatch)).collect();
    for (how, mismatches) in [(both, common), (alone, only_alone), (all, only_all)] {
        tell_some(&format!("{how}, "), mismatches.into_iter().map(|mismatch| mismatch.to_string()).collect());
    }
    tell_paths("looked for, but not in the trace: ", missed);
    tell_paths("changed since the first run: ", changed);
    complain(if !changed.is_empty() {
        "not verified: another program changed files that the command uses; try again when they stay as they are"
    } else if with_all.is_same() {
        "not verified: the command needs files that the trace does not have"
    } else if input_is_pipe() {
        "not verified: the command makes something else with all files, too; its standard input is a pipe, which no other \
         run can read again: give it a file, as in '< FILE'"
    } else {
        "not verified: the command is not reproducible: it makes something else with all files, too; leave out with \
         --ignore what does not matter"
    });
}

fn input_is_pipe() -> bool {
    fstat(io::stdin())
        .is_ok_and(|stat| matches!(FileType::from_raw_mode(stat.st_mode), FileType::Fifo | FileType::Socket))
}

fn tell_end(how: &str, Again { ended, said, .. }: &Again) {
    if let Some(ended) = ended {
        complain(format_args!("{how}, the command ended otherwise: {ended}"));
        for line in said {
            complain(format_args!("| {line}"));
        }
    }
}

fn tell_paths(what: &str, paths: &[PathBuf]) {
    tell_some(what, paths.iter().map(|path| shown(path).to_string()).collect());
}

fn tell_some(what: &str, lines: Vec<String>) {
    for line in lines.iter().take(MOST) {
        complain(format_args!("{what}{line}"));
    }
    if lines.len() > MOST {
        complain(format_args!("{what}{} more", lines.len() - MOST));
    }
}
