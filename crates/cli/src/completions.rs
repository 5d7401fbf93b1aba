//! Completes words of the command line in a shell.
//!
//! `inarch completions` prints a script for a shell. For each word, the script starts this program again, which knows more than
//! a script could: the names of kept runs and caches, and what is mounted.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::{Arg, Args, Command, CommandFactory, ValueHint};
use clap_complete::CompleteEnv;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::Shells;
use inarch_jobs::{caches, kept, mount};

use crate::arguments::{Arguments, one_of};
use crate::output::answer_with;

/// The environment variable with which a shell's script asks for completions; its value is the shell's name.
const ASKING: &str = "INARCH_COMPLETE";

/// Options of `inarch completions`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  source <(inarch completions bash)    in this shell
  inarch completions bash > ~/.local/share/bash-completion/completions/inarch
  inarch completions zsh > ~/.zfunc/_inarch    if that is in your fpath
  inarch completions fish > ~/.config/fish/completions/inarch.fish

'make install' and the Debian package bring those of bash, zsh and fish.")]
pub struct CompletionsArguments {
    /// The shell that reads the script
    #[arg(value_name = "SHELL", value_parser = one_of::<String>(["bash", "elvish", "fish", "powershell", "zsh"]))]
    pub shell: String,
}

/// Prints the script.
pub fn run(arguments: CompletionsArguments) -> anyhow::Result<ExitCode> {
    let shells = Shells::builtins();
    let shell = shells.completer(&arguments.shell).expect("a shell of the list");
    answer_with(|out| shell.write_registration(ASKING, "inarch", "inarch", "inarch", out))?;
    Ok(ExitCode::SUCCESS)
}

/// If a shell's script asks for the completions of a word, prints them and ends the process.
pub fn answer_shell() {
    CompleteEnv::with_factory(|| with_paths(Arguments::command())).var(ASKING).complete();
}

/// The command line, with paths as the completions of values that are one by their names, although they can be something else, too.
fn with_paths(command: Command) -> Command {
    let is_path = |argument: &Arg| {
        let mut names = argument.get_value_names().unwrap_or_default().iter();
        argument.get_value_hint() == ValueHint::Unknown
            && names.any(|name| ["SRC", "DIR", "FILE", "PATH", "IMAGE"].iter().any(|word| name.contains(word)))
    };
    let hinted = |argument: Arg| if is_path(&argument) { argument.value_hint(ValueHint::AnyPath) } else { argument };
    command.mut_args(hinted).mut_subcommands(with_paths)
}

fn candidates<T: AsRef<OsStr>>(names: impl IntoIterator<Item = T>) -> Vec<CompletionCandidate> {
    names.into_iter().map(|name| CompletionCandidate::new(name.as_ref())).collect()
}

/// Names of kept runs, with their commands. There are none where they cannot be listed.
pub fn kept_runs() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let runs = kept::runs().unwrap_or_default().into_iter();
        runs.map(|run| CompletionCandidate::new(run.name).help(Some(run.command.join(" ").into()))).collect()
    })
}

/// Names of caches of any scope.
pub fn cache_names() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let mut names: Vec<_> = caches::all_places().unwrap_or_default().into_iter().map(|place| place.name).collect();
        names.sort();
        names.dedup();
        candidates(names)
    })
}

/// Mount points of Inarch's mounts.
pub fn mount_points() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(mount::mounted()))
}

/// A command's words: files, and programs of the search path once a letter is typed.
pub fn command_words() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let mut found = PathCompleter::any().complete(current);
        if !current.is_empty() && !current.as_bytes().contains(&b'/') {
            found.extend(candidates(programs(current.as_bytes())));
        }
        found
    })
}

/// The names of programs of the search path that begin with `beginning`.
fn programs(beginning: &[u8]) -> BTreeSet<OsString> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let listings = std::env::split_paths(&path).filter_map(|directory| directory.read_dir().ok());
    let names = listings.flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
    names.filter(|name| name.as_bytes().starts_with(beginning)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is offered for the last of `words`.
    fn offered(words: &[&str]) -> Vec<String> {
        let all = [&["inarch"], words].concat().into_iter().map(OsString::from).collect();
        let mut command = with_paths(Arguments::command());
        let found = clap_complete::engine::complete(&mut command, all, words.len(), Some("/".as_ref())).unwrap();
        found.into_iter().map(|one| one.get_value().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn words_of_the_command_line_paths_and_programs_are_offered() {
        assert_eq!(offered(&["ru"]), ["run", "runs"]);
        assert_eq!(offered(&["run", "--via", "e"]), ["ext4", "erofs"]);
        for words in
            [&["mount", "/us"][..], &["run", "--root", "/us"], &["run", "--tree", "/us"], &["disk", "ls", "/us"]]
        {
            assert_eq!(offered(words), ["/usr/"], "{words:?}");
        }
        assert!(offered(&["run", "tru"]).contains(&"true".to_owned()));
        assert!(offered(&["run", "make", ""]).len() < 1000);
        assert_eq!(offered(&["man-"]), ["man-pages"]);
    }
}
