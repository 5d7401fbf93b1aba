//! [`MountEvent`]: what happens to a mount.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io};

use inarch_lifecycle::shown;
use inarch_mount::User;
use inarch_vm::command::shell_word;

/// The most processes that a line names.
const NAMED: usize = 5;

/// Something that happened while a tree was mounted or unmounted. Its text is one line.
#[derive(Clone, Debug)]
pub enum MountEvent {
    /// The mount is about to appear. Until now there is nothing to unmount: the process can end at any time.
    Mounting,
    /// What the source lacks, in its reader's words.
    Source(String),
    /// The mount was in use when it ended.
    WasInUse {
        /// The mount point.
        point: PathBuf,
        /// What becomes of the files that programs have open.
        open_files: OpenFiles,
    },
    /// A mount in use was detached.
    Detached {
        /// The mount point.
        point: PathBuf,
        /// Who uses it.
        users: Users,
        /// Whether the kernel serves the users' open files, and no server.
        is_bound: bool,
    },
    /// Another mount of Inarch's was covered by the one that was unmounted.
    Uncovered {
        /// The mount point.
        point: PathBuf,
        /// What is mounted there.
        source: PathBuf,
    },
    /// The mount's server takes its time to end, and is waited for.
    WaitsForServer {
        /// The server's process.
        process: u32,
    },
    /// Something failed, and the mount continues.
    Fault(MountFault),
}

/// What becomes of the files that programs have open when a mount ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenFiles {
    /// They fail: the server has ended.
    Fail,
    /// They are waited for.
    WaitedFor,
    /// What was not read before fails.
    FailWhereUnread,
    /// They go on until they are closed.
    GoOn,
}

/// A failure of a mount that continues. Its text is one line.
#[derive(Clone, Debug)]
pub enum MountFault {
    /// An archive that the kernel reads is written to. The kernel reads no more of it.
    ArchiveWritten {
        /// The archive.
        path: PathBuf,
        /// Why the kernel could not be kept from reading on, so that the mount ends.
        error: Option<Arc<io::Error>>,
    },
    /// A file of the source cannot be read, in its reader's words.
    Source {
        /// The source.
        path: PathBuf,
        /// The words.
        line: String,
    },
    /// The record of what is done in the mount is not complete.
    Record(String),
}

/// Who uses a mount. Its text is part of a line.
#[derive(Clone, Debug)]
pub enum Users {
    /// Another mount lies in it, at this path.
    Mount(PathBuf),
    /// Processes, as far as this user may look at them: none if it may look at none.
    Processes(Vec<User>),
}

impl MountEvent {
    /// Whether something failed.
    pub fn is_fault(&self) -> bool {
        matches!(self, MountEvent::Fault(_))
    }
}

impl fmt::Display for MountEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountEvent::Mounting => f.write_str("it is mounted now"),
            MountEvent::Source(line) => f.write_str(line),
            MountEvent::WasInUse { point, open_files } => {
                let rest = match open_files {
                    OpenFiles::Fail => "programs that have files of it open get errors from now on",
                    OpenFiles::WaitedFor => "waiting until its last open file is closed",
                    OpenFiles::FailWhereUnread => {
                        "programs that have files of it open get errors for what was not read before"
                    }
                    OpenFiles::GoOn => "programs that have files of it open keep them until they close them",
                };
                write!(f, "{} was in use: {rest}", shown(point))
            }
            MountEvent::Detached { point, users, is_bound } => {
                let rest =
                    if *is_bound { "they keep the files that they have open" } else { "its server ends after them" };
                write!(f, "{}: {users}; {rest}", shown(point))
            }
            MountEvent::Uncovered { point, source } => {
                let (point, source) = (word(point), shown(source));
                write!(
                    f,
                    "{point}: another mount of Inarch's, of {source}, was covered and is visible now; inarch umount {point} \
                     again unmounts it"
                )
            }
            MountEvent::WaitsForServer { process } => {
                write!(f, "waiting for the end of the server, process {process}")
            }
            MountEvent::Fault(fault) => fault.fmt(f),
        }
    }
}

impl fmt::Display for MountFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountFault::ArchiveWritten { path, error } => {
                write!(f, "{}: somebody writes to it while it is mounted", shown(path))?;
                match error {
                    None => f.write_str("; what was not read before is an I/O error from now on"),
                    Some(error) => write!(f, ", and its loop device cannot let it go: {error}"),
                }
            }
            MountFault::Source { path, line } => write!(f, "{}: {line}", shown(path)),
            MountFault::Record(line) => f.write_str(line),
        }
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = match self {
            Users::Mount(within) => return write!(f, "{} is mounted in it", shown(within)),
            Users::Processes(users) if users.is_empty() => {
                return f.write_str("it is in use, by processes that this user cannot look at");
            }
            Users::Processes(users) => users,
        };
        let name = |user: &User| format!("{} ({})", shown(Path::new(&user.name)), user.process);
        let names: Vec<String> = users.iter().take(NAMED).map(name).collect();
        write!(f, "it is in use by {}", names.join(", "))?;
        match users.len().saturating_sub(NAMED) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// A path as a word of a shell's command line.
pub(super) fn word(path: &Path) -> String {
    shown(Path::new(&shell_word(path.as_os_str())))
}
