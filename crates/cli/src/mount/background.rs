//! A mount whose server goes on in the background.
//!
//! A process with threads cannot be forked, so the command starts itself anew. [`start`] waits until that child says on its
//! standard output, a pipe, that the mount answers. Until the mount is made, the child has the caller's working directory, standard
//! input and standard error, and an interrupt ends both. It gives these up before it looks whether the mount answers.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use inarch_jobs::serve::BACKGROUND_ARGUMENT;
use inarch_jobs::{close_inherited, mount, shown};
use rustix::process::{Signal, set_parent_process_death_signal, setsid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};

use crate::output::complain;
use crate::say::say_in_log;

/// Starts this program with `words` in the background, and waits until it is a server. Gives false if it is not, and has said
/// why.
///
/// # Errors
/// The program cannot be started, or ended without a word.
pub fn start(words: impl IntoIterator<Item = OsString>) -> anyhow::Result<bool> {
    let fail = |error| anyhow::anyhow!("cannot start the server in the background: {error}");
    // By its own name, by which people look for it; one that was replaced meanwhile has none.
    let program = std::env::current_exe().ok().filter(|path| path.exists()).unwrap_or("/proc/self/exe".into());
    let mut command = Command::new(program);
    command.arg0("inarch").arg(BACKGROUND_ARGUMENT).args(words).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(fail)?;
    let mut answer = [0];
    let answer = child.stdout.take().map_or(Ok(0), |mut output| output.read(&mut answer)).map_err(fail)?;
    if answer > 0 {
        return Ok(true);
    }
    let status = child.wait().map_err(fail)?;
    let ended = |how: &dyn std::fmt::Display| anyhow::bail!("the server in the background {how}");
    match status.code() {
        Some(0) => ended(&"was told to end before the mount answered"),
        Some(_) => Ok(false),
        None => ended(&format_args!("ended with {status} before the mount answered")),
    }
}

/// The child before it is a server.
pub struct Child {
    log: File,
    path: PathBuf,
    /// The pipe on which the parent waits.
    parent: File,
    /// Whether the caller's open files are closed already.
    has_closed: bool,
}

impl Child {
    /// Opens the log: the file `named`, or `mount.log` in the user's directory of state. From now on the child ends with its
    /// parent.
    pub fn begin(named: Option<&Path>) -> anyhow::Result<Child> {
        // The mount works without this signal: if the parent ends early, sending the answer fails.
        let _ = set_parent_process_death_signal(Some(Signal::TERM));
        let parent = io::stdout().as_fd().try_clone_to_owned();
        let parent = parent.map_err(|error| anyhow::anyhow!("cannot answer from the background: {error}"))?.into();
        let (path, log) = match named {
            Some(path) => {
                let fail = |error| anyhow::anyhow!("{}: cannot write the log there: {error}", shown(path));
                let log = mount::open_log(path).map_err(fail)?;
                (path.canonicalize().map_err(fail)?, log)
            }
            None => usual_log()?,
        };
        Ok(Child { log, path, parent, has_closed: false })
    }

    /// Closes the caller's open files now. For a server that gets descriptors from elsewhere before it answers, which look as if
    /// they were inherited.
    pub fn close_inherited(&mut self) -> anyhow::Result<()> {
        self.has_closed = true;
        close_inherited().map_err(|error| anyhow::anyhow!("cannot close what the caller has open: {error}"))
    }

    /// The line that says where the log is.
    pub fn introduction(&self) -> String {
        format!("log:    {}\n", shown(&self.path))
    }

    /// Leaves the caller's session, directory, standard input and open files: what a confined process could not do any more.
    /// Its source must be open.
    pub fn detach(&self) -> anyhow::Result<()> {
        let detach = || {
            // Not a leader of its group, which its parent started it in.
            setsid()?;
            std::env::set_current_dir("/")?;
            dup2_stdin(nowhere()?)?;
            if !self.has_closed {
                close_inherited()?;
            }
            set_parent_process_death_signal(None)?;
            io::Result::Ok(())
        };
        detach().map_err(|error| anyhow::anyhow!("cannot go to the background: {error}"))
    }

    /// Lets the parent go: the mount answers. What is said from now on goes to the log, and what `introduce` says is there by then.
    pub fn answer(mut self, introduce: impl FnOnce()) -> anyhow::Result<()> {
        let answer = || {
            dup2_stderr(&self.log)?;
            say_in_log();
            introduce();
            // When the parent has ended, nothing of its caller's is left here.
            dup2_stdout(&self.log)?;
            self.parent.write_all(b"\n")?;
            io::Result::Ok(())
        };
        answer().map_err(|error| anyhow::anyhow!("nobody waits for the mount any more: {error}"))
    }
}

/// The log in the user's directory of state. If there can be none, the mount goes on with [`NOWHERE`] as its log.
fn usual_log() -> anyhow::Result<(PathBuf, File)> {
    let opened = match mount::state_directory() {
        Some(home) => mount::mount_log(&home),
        None => Err("neither XDG_STATE_HOME nor HOME is set".to_owned()),
    };
    opened.or_else(|reason| {
        complain(format_args!("no log of what the server says later: {reason}; --log FILE names another place"));
        let fail = |error| anyhow::anyhow!("{NOWHERE}: cannot open it: {error}");
        Ok((NOWHERE.into(), nowhere().map_err(fail)?))
    })
}

/// What takes everything and has nothing.
const NOWHERE: &str = "/dev/null";

fn nowhere() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(NOWHERE)
}
