//! The commands that read a trace: `inarch trace diff`, `files` and `why`.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, Subcommand};
use inarch_jobs::trace::{Difference, StoredInput, StoredProcess, StoredTrace, differences};
use inarch_jobs::{counted, shown};
use std::os::unix::ffi::OsStrExt;

use crate::apply::cleaned;
use crate::output::{answer, answer_with, complain};

/// What to do with traces.
#[derive(Subcommand, Debug)]
pub enum StoredCommand {
    /// Compare two traces
    Diff(DiffArguments),
    /// List the files that a command used
    Files(FilesArguments),
    /// Say what a command used a path for
    Why(WhyArguments),
}

/// Options of `inarch trace diff`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch trace diff yesterday.json today.json
  inarch trace diff --json a.json b.json | jq -r '.[].path // empty'

A line for each path: - only in A, + only in B, ~ in both, with what differs; and one if the commands ended differently. If both traces have digests (--hash), \
times do not count. 'inarch trace -- diff A B' traces diff(1).")]
pub struct DiffArguments {
    /// A trace, as --json wrote it
    pub a: PathBuf,

    /// Another one
    pub b: PathBuf,

    /// End with status 1 if they differ
    #[arg(long)]
    pub exit_code: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Options of `inarch trace files`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch trace files trace.json
  inarch trace files -0 trace.json > list
  inarch image / --only list -o - --format tar > app.tar

Files, symbolic links and directories that were there before the command, by absolute path. A directory that leads to \
another of these paths is left out.")]
pub struct FilesArguments {
    /// The trace, as --json wrote it
    pub trace: PathBuf,

    /// End each path with NUL instead of a line break
    #[arg(short = '0', long)]
    pub null: bool,
}

/// Options of `inarch trace why`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch trace why /etc/passwd trace.json
  inarch trace why ../include/config.h trace.json

The first processes that used it are named, and the beginnings of their commands; --all names all, and shows whole commands.")]
pub struct WhyArguments {
    /// The path
    pub path: PathBuf,

    /// The trace, as --json wrote it
    pub trace: PathBuf,

    /// Name all processes, with whole commands
    #[arg(short, long)]
    pub all: bool,
}

/// Answers from traces.
pub fn run(command: StoredCommand) -> anyhow::Result<ExitCode> {
    match command {
        StoredCommand::Diff(DiffArguments { a, b, exit_code, json }) => {
            let found = differences(&StoredTrace::read(&a)?, &StoredTrace::read(&b)?);
            if json {
                answer(serde_json::to_string_pretty(&found)? + "\n")?;
            } else {
                answer(found.iter().map(line).collect::<String>())?;
            }
            Ok(if exit_code && !found.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
        }
        StoredCommand::Files(FilesArguments { trace, null }) => {
            let trace = StoredTrace::read(&trace)?;
            let files = trace.files();
            let break_in = files.iter().find(|path| !null && path.as_os_str().as_bytes().contains(&b'\n'));
            if let Some(path) = break_in {
                anyhow::bail!("{}: a path with a line break; use -0", shown(path));
            }
            let is_terminal = std::io::stdout().is_terminal();
            answer_with(|out| {
                files.iter().try_for_each(|path| {
                    match is_terminal {
                        true => out.write_all(shown(path).as_bytes())?,
                        false => out.write_all(path.as_os_str().as_bytes())?,
                    }
                    out.write_all(if null { b"\0" } else { b"\n" })
                })
            })?;
            Ok(ExitCode::SUCCESS)
        }
        StoredCommand::Why(WhyArguments { path, trace, all }) => why(&path, &StoredTrace::read(&trace)?, all),
    }
}

fn line(difference: &Difference) -> String {
    let Difference { path, what, only, details } = difference;
    let sign = match only {
        Some('a') => '-',
        Some(_) => '+',
        None => '~',
    };
    let details = details.join(", ");
    match path {
        Some(path) => format!("{sign} {what}  {}  ({details})\n", shown(path)),
        None => format!("{sign} {what}  {details}\n"),
    }
}

/// The status is 1 if the command did not touch the path.
fn why(path: &Path, trace: &StoredTrace, all: bool) -> anyhow::Result<ExitCode> {
    let named = cleaned(&std::env::current_dir().context("there is no current directory; go to another")?.join(path));
    // The trace has what symbolic links led to.
    let leads_to = named.canonicalize().ok().filter(|other| *other != named);
    let lines: Vec<String> =
        [Some(named.clone()), leads_to].into_iter().flatten().flat_map(|path| uses(&path, trace, all)).collect();
    if !lines.is_empty() {
        answer(lines.concat())?;
        return Ok(ExitCode::SUCCESS);
    }
    let outside = trace.outside.iter().find(|outside| named.starts_with(outside));
    let absent = |above: &&Path| trace.inputs.get(*above).is_some_and(|input| !input.was_there());
    complain(match (outside, named.ancestors().skip(1).find(absent)) {
        (Some(outside), _) => format!("{}: not recorded, as all of {}", shown(&named), shown(outside)),
        (_, Some(above)) => format!("{}: not touched; {} was not there", shown(&named), shown(above)),
        _ => format!("{}: not touched", shown(&named)),
    });
    Ok(ExitCode::from(1))
}

/// A line for what a path was used for, and one for what became of it.
fn uses(path: &Path, trace: &StoredTrace, all: bool) -> Vec<String> {
    let by = |processes: &[u32]| {
        let shown = if all { processes.len() } else { MOST_PROCESSES.min(processes.len()) };
        let mut text: String = processes[..shown].iter().map(|number| by_process(*number, trace, all)).collect();
        if shown < processes.len() {
            let more = counted((processes.len() - shown) as u64, "more process", "more processes");
            text += &format!("  and by {more}; --all names them\n");
        }
        text
    };
    let input = trace.inputs.get(path);
    let input = input.map(|input| format!("{}: {}\n{}", shown(path), used(input), by(&input.processes)));
    let output = trace.outputs.get(path);
    let output = output.map(|output| format!("{}: {}\n{}", shown(path), output.change, by(&output.processes)));
    input.into_iter().chain(output).collect()
}

/// The most processes that are named without `--all`.
const MOST_PROCESSES: usize = 20;

/// The most parents of a process that are named.
const MOST_PARENTS: usize = 20;

/// A line for a process, and one for each of those above it.
fn by_process(number: u32, trace: &StoredTrace, whole: bool) -> String {
    let mut text = format!("  by {number}{}\n", command_of(number, trace, whole));
    let mut child = number;
    for _ in 0..MOST_PARENTS {
        let parent = trace.processes.get(&child).and_then(|lives| lives.last()).map_or(0, |life| life.parent);
        if !trace.processes.contains_key(&parent) {
            break;
        }
        text += &format!("    from {parent}{}\n", command_of(parent, trace, whole));
        child = parent;
    }
    text
}

/// The longest command that is shown whole without `--all`, in characters.
const SHOWN: usize = 100;

/// What a process executed last, of all that had this number.
fn command_of(number: u32, trace: &StoredTrace, whole: bool) -> String {
    let lives = trace.processes.get(&number).map_or(&[][..], |lives| lives);
    let one = |life: &StoredProcess| {
        let words = life.commands.last().map_or(&[][..], |words| words);
        let words: Vec<String> = words.iter().map(|word| shown(Path::new(word))).collect();
        let mut text = words.join(" ");
        if let Some((at, _)) = text.char_indices().nth(SHOWN).filter(|_| !whole) {
            text.truncate(at);
            text += "...";
        }
        text
    };
    let commands: Vec<String> = lives.iter().map(one).collect();
    if commands.is_empty() { String::new() } else { format!(": {}", commands.join(", or ")) }
}

fn used(input: &StoredInput) -> String {
    let mut text = input.uses.join(", ");
    if let Some(target) = &input.target {
        text += &format!("; leads to {}", shown(target));
    }
    if let Some(error) = &input.error {
        text += &format!("; {error}");
    }
    if let Some(size) = input.size() {
        text += &format!("; {}", counted(size, "byte", "bytes"));
    }
    text
}
