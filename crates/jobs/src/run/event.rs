//! [`RunEvent`]: what a run tells while it runs.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use inarch_kept::FoldNote;
use inarch_lifecycle::trust::Obstacle;
use inarch_lifecycle::{counted, shown};
use inarch_vhost::Event as ServerEvent;
use inarch_vm::accel::Accel;

use super::Way;
use super::report::CacheUse;

/// Something that happened in a run. Its text is one line.
#[derive(Clone, Debug)]
pub enum RunEvent {
    /// The transport chosen for a `--via auto` tree.
    Way {
        /// Where the guest sees the tree.
        destination: PathBuf,
        /// How it reaches the guest.
        way: Way,
        /// Why this way.
        reason: &'static str,
        /// Whether a guest with every driver gets it this way.
        is_usual: bool,
    },
    /// The guest gets a disk image as a disk.
    Disk {
        /// The image.
        image: PathBuf,
        /// How the disk lies in it: raw, qcow2.
        format: &'static str,
        /// Its number among them, from 1: the guest has it as /dev/disk/by-id/virtio-diskNUMBER.
        number: usize,
    },
    /// A note about a tree: what was left out or could not be read.
    Tree(String),
    /// Names of a tree that this user cannot read, and that the guest does not have.
    Unreadable {
        /// The tree's source, as it was given.
        source: String,
        /// How many files.
        files: u64,
        /// How many directories.
        directories: u64,
    },
    /// What a container image runs.
    Image {
        /// The program and its arguments.
        command: Vec<OsString>,
        /// Where it starts.
        directory: PathBuf,
        /// As whom: a name, or numbers.
        user: String,
    },
    /// The guest has spoken, and runs under this accelerator; `fall_back` says why KVM was not used if the choice was
    /// open.
    Acceleration {
        /// How the guest's instructions run.
        accel: Accel,
        /// Why not by KVM.
        fall_back: Option<String>,
    },
    /// The guest has spoken, and runs under User-Mode Linux.
    Uml,
    /// The guest is started once more, for this reason.
    StartedAgain(FirstStart),
    /// The guest's agent warns of what the guest lacks, in these words.
    Guest(String),
    /// What could not be kept of the guest's changes, or not yet.
    Kept(FoldNote),
    /// The run waits for a cache that only one run at a time may have: another run has it now.
    Waits {
        /// The cache.
        name: String,
        /// The run that has the cache now.
        holder: String,
    },
    /// Of what use a cache was, at the run's end.
    Cache(CacheUse),
    /// Part of the run failed, and the guest continues.
    Fault(RunFault),
}

/// How the guest's first start failed, if the next one will most likely not.
#[derive(Clone, Debug)]
pub enum FirstStart {
    /// The guest did not speak for this long.
    Silent(Duration),
    /// This signal ended QEMU before the guest spoke.
    Crashed {
        /// The signal's number.
        signal: i32,
    },
}

impl fmt::Display for FirstStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FirstStart::Silent(waited) => {
                write!(f, "the guest did not answer within {} s", waited.as_secs().max(1))
            }
            FirstStart::Crashed { signal } => write!(f, "QEMU crashed while the guest booted (signal {signal})"),
        }
    }
}

/// A part of a run that failed, while the guest continues. Its text is one line.
#[derive(Clone, Debug)]
pub enum RunFault {
    /// There is no place to keep unpacked kernels, so the guest unpacks its own.
    NoKernelCache(Arc<Obstacle>),
    /// The server of a disk or a share failed a request.
    Server(Arc<ServerEvent>),
    /// QEMU was killed after this many seconds, before it had written all of the guest's disk images.
    QemuKilled {
        /// How long it was waited for.
        waited: Duration,
    },
    /// The log of the guest's console is incomplete.
    Console {
        /// The log.
        path: PathBuf,
        /// Why.
        error: Arc<io::Error>,
    },
    /// The remote of a cache or a tree, in its own words.
    Remote(String),
    /// A cache is used without its remote.
    NoRemote {
        /// The cache.
        cache: String,
        /// Why.
        reason: String,
    },
    /// What the guest changed in a cache is not published.
    NotPublished {
        /// The cache.
        cache: String,
        /// Why.
        reason: String,
    },
    /// What is new in a cache is not pushed to its remote.
    NotPushed {
        /// The cache.
        cache: String,
        /// Why.
        reason: String,
    },
}

impl fmt::Display for RunFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunFault::NoKernelCache(obstacle) => write!(
                f,
                "no cache, so the guest unpacks its kernel itself: {obstacle}; set XDG_CACHE_HOME to a directory of your own \
                 (sudo -H sets HOME to root's)"
            ),
            RunFault::Server(event) => event.fmt(f),
            RunFault::QemuKilled { waited } => write!(
                f,
                "QEMU did not end within {} s, and was killed: what it had not written to the guest's disk images is lost",
                waited.as_secs()
            ),
            RunFault::Console { path, error } => {
                write!(f, "{}: the log of the guest's console is incomplete: {error}", shown(path))
            }
            RunFault::Remote(line) => f.write_str(line),
            RunFault::NoRemote { cache, reason } => {
                write!(f, "cache {cache}: the run goes on without its remote: {reason}")
            }
            RunFault::NotPublished { cache, reason } => write!(f, "cache {cache}: nothing is published: {reason}"),
            RunFault::NotPushed { cache, reason } => write!(f, "cache {cache}: nothing is pushed: {reason}"),
        }
    }
}

impl fmt::Display for RunEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RunEvent::Way { destination, way, reason, .. } => {
                write!(f, "{} goes by {}: {reason}", shown(destination), way.name())
            }
            RunEvent::Disk { image, format, number } => write!(
                f,
                "{} ({format}) is /dev/disk/by-id/virtio-disk{number} in the guest, $INARCH_DISK_{number}",
                shown(image)
            ),
            RunEvent::Unreadable { source, files, directories } => {
                let files = counted(*files, "file", "files");
                let directories = counted(*directories, "directory", "directories");
                write!(
                    f,
                    "{source}: left out what is not readable: {files}, {directories} (inarch plan {source} lists them)"
                )
            }
            RunEvent::Image { command, directory, user } => {
                let words = command.iter().map(|word| shown(Path::new(word))).collect::<Vec<_>>().join(" ");
                write!(f, "the image runs {words} (in {}, as {})", shown(directory), shown(Path::new(user)))
            }
            RunEvent::Acceleration { accel, fall_back } => {
                write!(f, "the guest runs under {}", accel.to_string().to_uppercase())?;
                fall_back.as_ref().map_or(Ok(()), |reason| write!(f, ": {reason}"))
            }
            RunEvent::Uml => f.write_str("the guest runs under User-Mode Linux"),
            RunEvent::StartedAgain(reason) => write!(f, "{reason}; it is started once more"),
            RunEvent::Waits { name, holder } => {
                write!(f, "cache {name}: it is locked, and this run waits for {holder}")
            }
            RunEvent::Cache(usage) => usage.fmt(f),
            RunEvent::Tree(line) | RunEvent::Guest(line) => f.write_str(line),
            RunEvent::Kept(note) => note.fmt(f),
            RunEvent::Fault(fault) => fault.fmt(f),
        }
    }
}
