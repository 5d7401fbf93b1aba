//! Runs lines of a script, of a prompt or of the command line: finds each verb, runs it, and connects pipes.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufWriter, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, ExitCode, Stdio};
use std::sync::atomic::Ordering;

use anyhow::{Context, anyhow, bail};
use inarch_jobs::guest::GuestError;
use inarch_jobs::shell::ShellError;
use inarch_jobs::shown;

use super::lex::{self, Line};
use super::verbs::{Call, Verb};
use super::{Shell, verbs};
use crate::output::complain;

/// How deep verbs may run verbs (`time glob cat ...`), and commands may print commands.
const DEEPEST: usize = 8;
/// The longest line of a script.
const LONGEST: u64 = 1 << 20;

/// The verbs on the command line, separated by `:`. The words are as they are: the user's shell has read quotes.
pub fn commands(words: &[OsString]) -> anyhow::Result<Vec<lex::Verb>> {
    let commands = words.split(|word| word == ":").filter(|words| !words.is_empty());
    let command = |words: &[OsString]| {
        let (name, words) = words.split_first().context("a verb is missing")?;
        let name = name.to_string_lossy().into_owned();
        let may_fail = name.starts_with('-');
        let name = name.trim_start_matches('-').to_owned();
        Ok(lex::Verb { may_fail, name, words: words.to_vec(), pipe: None })
    };
    commands.map(command).collect()
}

impl Shell {
    /// Runs verbs up to the first that fails.
    pub fn run_all(&mut self, commands: Vec<lex::Verb>) -> anyhow::Result<ExitCode> {
        for command in commands {
            let name = command.name.clone();
            if let Err(error) = self.run_verb(&command, 0) {
                say(format_args!("{name}: {error:#}"));
                if !command.may_fail {
                    return Ok(ExitCode::FAILURE);
                }
            }
            self.note();
            if self.has_ended {
                break;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Runs the lines of a script up to the first that fails.
    pub fn script(&mut self, mut lines: impl BufRead) -> anyhow::Result<ExitCode> {
        let mut number = 0u64;
        while !self.has_ended {
            number += 1;
            let mut line = Vec::new();
            let read = io::Read::take(&mut lines, LONGEST).read_until(b'\n', &mut line);
            if read.context("cannot read the script")? == 0 {
                break;
            }
            if line.len() as u64 == LONGEST {
                bail!("line {number} has more than 1 MiB");
            }
            if let Err(failed) = self.run_line(&line, 0) {
                failed.say(Some(number));
                if !failed.is_allowed {
                    return Ok(ExitCode::FAILURE);
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Runs a line, and prints what the session noted.
    pub fn run_line(&mut self, text: &[u8], depth: usize) -> Result<(), Failed> {
        self.interrupted.store(false, Ordering::Relaxed);
        let home = std::env::var_os("HOME");
        let mut is_allowed = text.trim_ascii_start().starts_with(b"-");
        let line = lex::line(text, home.as_deref()).map_err(|error| Failed { error: error.into(), is_allowed })?;
        let done = match line {
            Line::Nothing => Ok(()),
            Line::Host(command) => self.run_host(&command),
            Line::Inline(command) => return self.run_inline(&command, depth),
            Line::Verb(verb) => {
                is_allowed = verb.may_fail;
                self.run_verb(&verb, depth).with_context(|| verb.name.clone())
            }
        };
        self.note();
        done.map_err(|error| Failed { error, is_allowed })
    }

    /// Runs a verb, with its output into a pipe if it has one.
    pub fn run_verb(&mut self, verb: &lex::Verb, depth: usize) -> anyhow::Result<()> {
        self.interrupted.store(false, Ordering::Relaxed);
        let Some(pipe) = &verb.pipe else {
            let mut out = Whole { out: BufWriter::new(io::stdout().lock()), is_within_line: false };
            let mut done = self.call(verb, depth, &mut out);
            // The prompt begins a line.
            if self.is_interactive && out.is_within_line {
                done = done.and(out.write_all(b"\n").map_err(anyhow::Error::from));
            }
            // What was found before a failure is printed.
            let flushed = out.flush().map_err(anyhow::Error::from);
            return as_usual(done.and(flushed));
        };
        let mut child = self.host_command(pipe);
        let mut child = child.stdin(Stdio::piped()).spawn().context("cannot start sh")?;
        let done = match child.stdin.take() {
            Some(stdin) => {
                let mut out = BufWriter::new(stdin);
                let done = self.call(verb, depth, &mut out);
                done.and(out.flush().map_err(anyhow::Error::from))
            }
            None => Ok(()),
        };
        child.wait().context("cannot wait for the pipe")?;
        as_usual(done)
    }

    /// Calls a verb.
    pub fn call(&mut self, verb: &lex::Verb, depth: usize, out: &mut dyn Write) -> anyhow::Result<()> {
        if depth > DEEPEST {
            bail!("verbs run verbs too deep");
        }
        let Some(found) = Verb::named(&verb.name) else { return verbs::elsewhere(verb) };
        let mut call = Call::new(found, &verb.words, depth, out)?;
        // What was changed is seen by all that follows. Verbs that run others do nothing of themselves.
        if !verbs::changes::is_change(found) {
            self.session.settle()?;
        }
        (found.run)(self, &mut call)
    }

    /// A command of the host with the variables of this shell.
    fn host_command(&self, command: &OsStr) -> Command {
        let mut child = Command::new("sh");
        child.arg("-c").arg(command);
        for (name, value) in &self.variables {
            match value {
                Some(value) => child.env(name, value),
                None => child.env_remove(name),
            };
        }
        if !self.is_interactive {
            // The script on standard input is this shell's.
            child.stdin(Stdio::null());
        }
        child
    }

    fn run_host(&self, command: &OsStr) -> anyhow::Result<()> {
        let status = self.host_command(command).status().context("cannot start sh")?;
        if status.success() { Ok(()) } else { Err(anyhow!("!{}: {status}", command.to_string_lossy().trim())) }
    }

    /// Runs the lines that a command prints.
    fn run_inline(&mut self, command: &OsStr, depth: usize) -> Result<(), Failed> {
        let fail = |error| Failed { error, is_allowed: false };
        if depth > DEEPEST {
            return Err(fail(anyhow!("commands print commands too deep")));
        }
        let mut child = self.host_command(command);
        let output = child.stderr(Stdio::inherit()).output().context("cannot start sh").map_err(fail)?;
        if !output.status.success() {
            return Err(fail(anyhow!("<!{}: {}", command.to_string_lossy().trim(), output.status)));
        }
        for line in output.stdout.split(|byte| *byte == b'\n') {
            match self.run_line(line, depth + 1) {
                Err(failed) if failed.is_allowed => failed.say(None),
                done => done?,
            }
            if self.has_ended {
                break;
            }
        }
        Ok(())
    }

    /// An error if the user wants this to end.
    pub fn check(&self) -> io::Result<()> {
        if self.interrupted.load(Ordering::Relaxed) { Err(io::Error::other("interrupted")) } else { Ok(()) }
    }
}

/// Output that knows whether it ends within a line.
struct Whole<W> {
    out: W,
    is_within_line: bool,
}

impl<W: Write> Write for Whole<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        if let Some(last) = bytes.get(..count).and_then(<[u8]>::last) {
            self.is_within_line = *last != b'\n';
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A line that failed.
pub struct Failed {
    /// Why.
    pub error: anyhow::Error,
    /// Whether the script goes on.
    pub is_allowed: bool,
}

impl Failed {
    /// Says why, and in which line of a script.
    pub fn say(&self, line: Option<u64>) {
        match line {
            Some(number) => say(format_args!("line {number}: {:#}", self.error)),
            None => say(format_args!("{:#}", self.error)),
        }
    }
}

/// Says a line. It may have names of a guest, which do nothing to a terminal.
fn say(line: std::fmt::Arguments<'_>) {
    complain(shown(std::path::Path::new(&line.to_string())));
}

/// A reader that has gone (`| head`) is no failure.
fn as_usual(done: anyhow::Result<()>) -> anyhow::Result<()> {
    let of_io = |error: &io::Error| error.kind() == ErrorKind::BrokenPipe;
    done.or_else(|error| {
        let has_gone = error.chain().any(|cause| {
            cause.downcast_ref::<io::Error>().is_some_and(of_io)
                || matches!(cause.downcast_ref::<GuestError>(), Some(GuestError::Output(error)) if of_io(error))
                || cause.downcast_ref::<ShellError>().and_then(ShellError::output).is_some_and(of_io)
        });
        if has_gone { Ok(()) } else { Err(error) }
    })
}

/// The bytes of a word as text for a message.
pub fn text(word: &OsStr) -> String {
    String::from_utf8_lossy(word.as_bytes()).escape_debug().to_string()
}
