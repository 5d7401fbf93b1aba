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
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter, complete,
};
use clap_complete::env::Shells;
use inarch_format::Algorithm;
use inarch_jobs::{caches, kept, mount};
use inarch_vm::Arch;

use crate::arguments::{Arguments, one_of};
use crate::image::COMPRESSIONS;
use crate::output::{answer, answer_with};

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

/// For bash. Bash inserts a candidate without quotes, so it gets only words that the shell takes as they are. Where there are none, bash
/// completes file names by itself, and quotes them. Bash cuts its `COMP_WORDS` at `=` and `:`, so the script cuts the line itself, at blanks.
const BASH: &str = r#"_inarch() {
    local line=${COMP_LINE:0:COMP_POINT} words current
    read -ra words <<< "$line"
    [[ $line == *[[:blank:]] ]] && words+=("")
    current=${words[-1]}
    COMPREPLY=()
    [[ $current == *[\\\'\"\$\`~]* ]] && return
    mapfile -t COMPREPLY < <(INARCH_COMPLETE=bash inarch -- "${words[@]}" 2> /dev/null)
    if [[ $current == *[=:]* ]]; then
        COMPREPLY=("${COMPREPLY[@]#"${current%"${current##*[=:]}"}"}")
    fi
    if [[ ${#COMPREPLY[@]} == 1 && $COMPREPLY == *[/=:] ]]; then
        compopt -o nospace
    fi
}
complete -o bashdefault -o default -F _inarch inarch
"#;

/// Prints the script.
pub fn run(arguments: CompletionsArguments) -> anyhow::Result<ExitCode> {
    if arguments.shell == "bash" {
        answer(BASH)?;
        return Ok(ExitCode::SUCCESS);
    }
    let shells = Shells::builtins();
    let shell = shells.completer(&arguments.shell).expect("a shell of the list");
    answer_with(|out| shell.write_registration(ASKING, "inarch", "inarch", "inarch", out))?;
    Ok(ExitCode::SUCCESS)
}

/// If a shell's script asks for the completions of a word, prints them. Returns whether one does.
pub fn answer_shell(words: &[OsString]) -> Option<anyhow::Result<ExitCode>> {
    let shell = std::env::var_os(ASKING)?;
    if shell == "bash" {
        return Some(answer_bash(words));
    }
    CompleteEnv::with_factory(|| completing(Arguments::command())).var(ASKING).complete();
    None
}

/// Prints what is offered for the last word after `--`, one on each line. Prints nothing if bash has to quote something of it.
fn answer_bash(words: &[OsString]) -> anyhow::Result<ExitCode> {
    let words: Vec<_> = words.iter().skip_while(|word| *word != "--").skip(1).cloned().collect();
    let last = words.len().saturating_sub(1);
    let found = complete(&mut completing(Arguments::command()), words, last, std::env::current_dir().ok().as_deref());
    let found: Vec<_> = found.unwrap_or_default().iter().map(|one| one.get_value().to_owned()).collect();
    if found.iter().all(|word| is_plain(word)) {
        answer(found.iter().map(|word| format!("{}\n", word.display())).collect::<String>())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a shell takes a word as it is.
fn is_plain(word: &OsStr) -> bool {
    let is_plain = |letter: char| letter.is_alphanumeric() || "_./:=,@%+-".contains(letter);
    word.to_str().is_some_and(|word| word.chars().all(is_plain))
}

/// The command line, with paths as the completions of values that are one by their names, although they can be something else, too.
fn completing(command: Command) -> Command {
    let is_path = |argument: &Arg| {
        let mut names = argument.get_value_names().unwrap_or_default().iter();
        let is_typed =
            matches!(argument.get_value_hint(), ValueHint::AnyPath | ValueHint::FilePath | ValueHint::DirPath);
        is_typed || names.any(|name| ["SRC", "DIR", "FILE", "PATH", "IMAGE"].iter().any(|word| name.contains(word)))
    };
    let has_own = |argument: &Arg| {
        argument.get::<ArgValueCandidates>().is_some() || argument.get::<ArgValueCompleter>().is_some()
    };
    let with_paths = |argument: Arg| match is_path(&argument) && !has_own(&argument) {
        true => argument.add(ArgValueCompleter::new(paths)),
        false => argument,
    };
    command.mut_args(with_paths).mut_subcommands(completing)
}

/// Files whose paths begin with `beginning`. Shells read line by line, so a name with a control character is not offered.
fn paths(beginning: &OsStr) -> Vec<CompletionCandidate> {
    let mut found = PathCompleter::any().complete(beginning);
    found.retain(|one| is_shown(one.get_value()));
    found
}

fn is_shown(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| !name.contains(char::is_control))
}

fn candidates<T: AsRef<OsStr>>(names: impl IntoIterator<Item = T>) -> Vec<CompletionCandidate> {
    let names = names.into_iter().filter(|name| is_shown(name.as_ref()));
    names.map(|name| CompletionCandidate::new(name.as_ref())).collect()
}

/// Names of kept runs. There are none where they cannot be listed.
pub fn kept_runs() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(kept::names().unwrap_or_default()))
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

/// Names of architectures.
pub fn architectures() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(Arch::ALL.map(Arch::name)))
}

/// Names of compressions.
pub fn compressions() -> ArgValueCandidates {
    ArgValueCandidates::new(|| candidates(COMPRESSIONS.map(Algorithm::name)))
}

/// Names of this machine's users, by /etc/passwd: those of the guest, if its root is this machine's.
pub fn users() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let file = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        candidates(file.lines().filter_map(|line| line.split(':').next()).filter(|name| !name.is_empty()))
    })
}

/// A command's words: files, and programs of the search path once a letter is typed.
pub fn command_words() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let mut found = paths(current);
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
        let mut command = completing(Arguments::command());
        let found = complete(&mut command, all, words.len(), Some("/".as_ref())).unwrap();
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
        assert_eq!(offered(&["run", "--arch", "r"]), ["riscv64"]);
        assert_eq!(offered(&["image", "--compress", "z"]), ["zstd"]);
        assert_eq!(offered(&["run", "-u", "roo"]), ["root"]);
    }
}
