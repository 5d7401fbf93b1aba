//! What `inarch trace --verify` says.

use std::path::PathBuf;

use inarch_jobs::shown;
use inarch_jobs::trace::{Again, Different, TraceError, Verification};

use crate::output::complain;

/// The most paths of a kind that are named.
const MOST: usize = 20;

/// Says whether the record is complete; whether it is.
pub fn told(verification: &Result<Verification, TraceError>, quiet: bool) -> bool {
    match verification {
        Ok(Verification::Verified { outputs }) => {
            if !quiet {
                complain(format_args!("verified: {} from the recorded files alone", same(*outputs)));
            }
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

/// Says why the command cannot be run again as it was.
fn tell_changed(changed: &[PathBuf]) {
    tell_some("changed what was there before", changed.iter().map(|path| shown(path).to_string()));
    complain(
        "not verified: the command changed files that were there before it, so it cannot be run on them again; start from \
         a clean state, such as after 'make clean', or leave them out with --ignore",
    );
}

/// Says what another run did otherwise, and what that means.
fn tell_different(different: &Different) {
    let Different { again, missed, changed, with_all } = different;
    tell_run("with the recorded files alone", again);
    tell_some("looked for, but not in the trace", missed.iter().map(|path| shown(path).to_string()));
    tell_some("changed since the first run", changed.iter().map(|path| shown(path).to_string()));
    if !changed.is_empty() {
        complain(
            "not verified: another program changed files that the command uses; try again when they stay as they are",
        );
        return;
    }
    if with_all.is_same() {
        complain("not verified: the command needs files that the trace does not have");
        return;
    }
    tell_run("with all files", with_all);
    complain("not verified: the command is not reproducible: a run with all files differs as well");
}

fn tell_run(how: &str, Again { ended, said, mismatches }: &Again) {
    if let Some(ended) = ended {
        complain(format_args!("{how}, the command ended otherwise: {ended}"));
        for line in said {
            complain(format_args!("| {line}"));
        }
    }
    for mismatch in mismatches.iter().take(MOST) {
        complain(format_args!("{how}, {mismatch}"));
    }
    tell_rest(mismatches.len());
}

fn tell_some(what: &str, paths: impl ExactSizeIterator<Item = String>) {
    let count = paths.len();
    for path in paths.take(MOST) {
        complain(format_args!("{what}: {path}"));
    }
    tell_rest(count);
}

fn tell_rest(count: usize) {
    if count > MOST {
        complain(format_args!("and {} more", count - MOST));
    }
}
