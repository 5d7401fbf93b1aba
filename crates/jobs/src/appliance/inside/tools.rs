//! Runs the host's tools in the guest.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::failure::Failure;

/// Where programs are.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A tool, and Debian's package of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tool {
    pub program: &'static str,
    pub package: &'static str,
}

/// How a tool ended.
#[derive(Debug)]
pub(super) struct Ended {
    /// Its exit status; 128 and more for a signal.
    pub status: i32,
    /// The last lines that it printed.
    pub lines: Vec<String>,
}

impl Tool {
    /// Where it is.
    pub fn find(self) -> Result<PathBuf, Failure> {
        let found = std::env::split_paths(PATH).map(|dir| dir.join(self.program)).find(|path| path.is_file());
        found.ok_or_else(|| {
            let Tool { program, package } = self;
            Failure::new(format!("this machine lacks {program}, which is needed for that: apt-get install {package}"))
        })
    }

    /// Runs it; hands each line that it prints to `say`.
    pub fn run<S: AsRef<OsStr>>(
        self,
        arguments: impl IntoIterator<Item = S>,
        say: &mut dyn FnMut(&str),
    ) -> Result<Ended, Failure> {
        self.feed(arguments, "", say)
    }

    /// The same with a few lines of input.
    pub fn feed<S: AsRef<OsStr>>(
        self,
        arguments: impl IntoIterator<Item = S>,
        input: &str,
        say: &mut dyn FnMut(&str),
    ) -> Result<Ended, Failure> {
        /// So many lines are kept.
        const MOST: usize = 20;
        let failed = |error| Failure::of(format!("cannot run {}", self.program), error);
        let (reader, writer) = std::io::pipe().map_err(failed)?;
        let mut command = Command::new(self.find()?);
        command.args(arguments).env_clear().env("PATH", PATH).env("LC_ALL", "C").current_dir("/");
        let (to_it, mut its) = std::io::pipe().map_err(failed)?;
        // A pipe takes that much without a reader.
        std::io::Write::write_all(&mut its, input.as_bytes()).map_err(failed)?;
        drop(its);
        command.stdin(Stdio::from(to_it)).stderr(writer.try_clone().map_err(failed)?).stdout(writer);
        let mut child = command.spawn().map_err(failed)?;
        drop(command);
        let mut lines = Vec::new();
        for line in BufReader::new(reader).split(b'\n') {
            let Ok(line) = line else { break };
            // What is written over, as a progress bar, ends with a carriage return.
            let last = line.rsplit(|byte| *byte == b'\r').find(|part| !part.is_empty()).unwrap_or_default();
            let line = String::from_utf8_lossy(last).trim_end().to_owned();
            if !line.is_empty() {
                say(&line);
                lines.push(line);
            }
            let excess = lines.len().saturating_sub(MOST);
            lines.drain(..excess);
        }
        let status = child.wait().map_err(failed)?;
        let status = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        Ok(Ended { status, lines })
    }

    /// Runs it, and takes any status but 0 for a failure, which its last lines explain.
    pub fn must<S: AsRef<OsStr>>(self, arguments: impl IntoIterator<Item = S>) -> Result<Vec<String>, Failure> {
        let ended = self.run(arguments, &mut |_| {})?;
        if ended.status == 0 { Ok(ended.lines) } else { Err(self.failed(&ended)) }
    }

    /// The failure of it, in its own words.
    pub fn failed(self, ended: &Ended) -> Failure {
        let last = ended.lines.len().saturating_sub(4);
        let words = ended.lines.get(last..).unwrap_or_default().join("; ");
        let words = if words.is_empty() { "it did not say why".to_owned() } else { words };
        Failure::new(format!("{} failed (status {}): {words}", self.program, ended.status))
    }
}

/// The name of a device in a message of a tool stands for a volume that the user knows by another name.
pub(super) fn with_name(line: &str, device: &Path, name: &str) -> String {
    line.replace(&*device.to_string_lossy(), name)
}
