//! Kept runs: makes their names, and continues one with the arguments and in the directory of its first command.

use std::ffi::OsString;

use anyhow::Context;
use clap::Parser;
use inarch_jobs::run::{self, Keep};

use super::arguments::RunArguments;

/// The kept run of this name. If it exists and the command names no trees, it has those with which it began; paths in
/// the first arguments are relative to the directory in which they were given.
pub fn keep(name: String, arguments: &mut RunArguments) -> anyhow::Result<Keep> {
    let here = std::env::current_dir().context("there is no current directory; go to another")?;
    let says_trees = arguments.root != "host"
        || !(arguments.tree.is_empty() && arguments.volume.is_empty())
        || arguments.rw
        || arguments.ro
        || !arguments.source.is_all();
    let first = if says_trees { None } else { run::kept_words(&name)? };
    let Some((words, directory)) = first else {
        let words = words_before(std::env::args_os().skip(2).collect(), arguments.command.len());
        return Ok(Keep { name, words, directory: here });
    };
    let first = FirstWords::try_parse_from([OsString::from("run")].iter().chain(&words));
    let first = first.context("the kept run was made by another version of inarch")?.arguments;
    (arguments.root, arguments.ro, arguments.rw) = (first.root, first.ro, first.rw);
    (arguments.tree, arguments.volume, arguments.source) = (first.tree, first.volume, first.source);
    if arguments.root == "host" {
        arguments.workdir = Some(here.join(arguments.workdir.take().unwrap_or_default()));
    }
    let machine = &mut arguments.machine;
    for path in [&mut machine.kernel, &mut machine.modules, &mut machine.console]
        .into_iter()
        .flatten()
        .chain([&mut machine.overlay_dir])
    {
        *path = here.join(&*path);
    }
    let gone = || format!("{}: the kept run began there, and it is gone", directory.display());
    std::env::set_current_dir(&directory).with_context(gone)?;
    Ok(Keep { name, words, directory })
}

/// Removes the last `command` words of a command line, and a `--` before them.
fn words_before(mut words: Vec<OsString>, command: usize) -> Vec<OsString> {
    words.truncate(words.len().saturating_sub(command));
    words.pop_if(|word| word == "--");
    words
}

/// The arguments with which a kept run began.
#[derive(Parser, Debug)]
pub struct FirstWords {
    #[command(flatten)]
    pub arguments: RunArguments,
}

/// Parses these words as arguments of `inarch run`.
#[cfg(test)]
pub fn parse(words: &[&str]) -> RunArguments {
    FirstWords::try_parse_from([&["run"], words].concat()).unwrap().arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_the_command_is_its_own() {
        for words in [&["-q", "ls", "-l", "--quiet", "--", "-x"][..], &["-q", "--", "ls", "-l", "--quiet", "--", "-x"]]
        {
            let arguments = parse(words);
            assert!(arguments.quiet && !arguments.verbose);
            assert_eq!(arguments.command, ["ls", "-l", "--quiet", "--", "-x"]);
            assert_eq!(words_before(words.iter().map(OsString::from).collect(), 5), ["-q"]);
        }
        assert_eq!(parse(&["--", "-x"]).command, ["-x"]);
        assert!(parse(&["-t"]).command.is_empty());
        assert!(FirstWords::try_parse_from(["run", "--qiet", "ls"]).is_err());
    }
}
