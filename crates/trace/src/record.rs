//! Records the accesses in a mount: a line of JSON for each.
//!
//! A thread of its own makes and writes the lines; requests wait for it only if it is far behind. Only a complete
//! record ends with a line that says so. If the file cannot be written, that is reported at once, and later requests
//! fail.

pub(crate) mod processes;

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use inarch_kept::Bytes;
use inarch_lifecycle::PathError;
use inarch_lifecycle::named::create_named;
use inarch_vfs::{Access, AccessKind, AccessSink, FileSystem, RecordLevel, Recorder, Recording};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use processes::Processes;

/// What to record, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordRequest {
    /// The file: new, truncated if it exists, or a pipe.
    pub file: PathBuf,
    /// The detail.
    pub level: RecordLevel,
}

/// The first line.
#[derive(Serialize)]
struct Start {
    start: bool,
    level: &'static str,
}

/// The content of a line.
#[derive(Serialize)]
struct Said<'a> {
    access: &'a str,
    path: Bytes,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    nameless: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attribute: Option<Bytes>,
    #[serde(flatten)]
    identity: Option<Identity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Cow<'static, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pid: Option<u32>,
}

/// See [`inarch_vfs::Identity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub inode: u64,
    pub mode: u32,
    pub size: u64,
    /// Seconds and nanoseconds.
    pub mtime: (i64, u32),
}

impl From<inarch_vfs::Identity> for Identity {
    fn from(identity: inarch_vfs::Identity) -> Identity {
        let inarch_vfs::Identity { inode, mode, size, mtime } = identity;
        Identity { inode, mode, size, mtime: (mtime.seconds, mtime.nanoseconds) }
    }
}

/// The last line.
#[derive(Serialize)]
struct End {
    end: bool,
    accesses: u64,
}

/// A record without its thread yet: a server starts threads only once it is confined.
pub struct NewRecord {
    path: PathBuf,
    file: File,
    recording: Recording,
}

/// The file, and the thread that writes it.
pub struct RecordFile {
    path: PathBuf,
    recording: Recording,
    writer: JoinHandle<io::Result<()>>,
}

impl NewRecord {
    /// A new file, or in place of what is in it, with the first line.
    pub fn create(request: &RecordRequest) -> Result<NewRecord, PathError> {
        let RecordRequest { file: path, level } = request;
        let fail = |error| PathError::new(path, "cannot record there", error);
        let file = create_named(path).map_err(fail)?;
        let level_name = match level {
            RecordLevel::Command => "command",
            RecordLevel::Process => "process",
        };
        (&file).write_all(&line(&Start { start: true, level: level_name })).map_err(fail)?;
        // Readers of the log are in other directories.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Ok(NewRecord { path, file, recording: Recording::new(*level) })
    }

    /// The same as `layer`, and what is done to it is written down.
    pub fn over(&self, layer: Arc<dyn FileSystem>) -> Arc<dyn FileSystem> {
        let processes = Processes::default();
        Arc::new(Recorder::new(layer, self.recording.clone(), move |thread, _| processes.of(thread)))
    }

    /// Starts to write. If that fails before the end, calls `failed` with the reason.
    pub fn start(self, failed: impl FnOnce(String) + Send + 'static) -> Result<RecordFile, PathError> {
        let NewRecord { path, file, recording } = self;
        let (taken, named) = (recording.clone(), path.clone());
        let write = move || {
            let written = write_lines(file, &taken);
            if let Err(error) = &written {
                // The record's end may be far away, so report it now.
                let reason = incomplete(&named, io::Error::new(error.kind(), error.to_string()));
                failed(format!("{reason}; what is asked for in the mount fails from now on"));
            }
            written
        };
        let writer = thread::Builder::new().name("record".into()).spawn(write);
        let writer = writer.map_err(|error| PathError::new(&path, "cannot record there", error))?;
        Ok(RecordFile { path, recording, writer })
    }
}

fn incomplete(path: &Path, error: io::Error) -> PathError {
    PathError::new(path, "the record is not complete", error)
}

impl RecordFile {
    /// Writes what is still to be written, and the last line. What is done from now on is not written down.
    pub fn finish(self) -> Result<(), PathError> {
        let RecordFile { path, recording, writer } = self;
        recording.end();
        let written = writer.join().unwrap_or_else(|_| Err(io::Error::other("the writer failed")));
        written.map_err(|error| incomplete(&path, error))
    }
}

fn write_lines(file: File, recording: &Recording) -> io::Result<()> {
    let mut lines = Lines(BufWriter::with_capacity(1 << 16, file));
    let accesses = recording.write_to(&mut lines)?;
    lines.0.write_all(&line(&End { end: true, accesses }))?;
    lines.0.flush()
}

fn line(content: &impl Serialize) -> Vec<u8> {
    // Structures of strings and numbers always have a text.
    let mut line = serde_json::to_vec(content).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Where lines go.
struct Lines(BufWriter<File>);

impl AccessSink for Lines {
    fn record(&mut self, access: &Access<'_>) -> io::Result<()> {
        let detail = access.detail.map(Bytes::new);
        let (target, attribute) = match access.kind {
            AccessKind::ReadLink | AccessKind::Create => (detail, None),
            _ => (None, detail),
        };
        let identity = access.identity.map(Identity::from);
        let said = Said {
            access: access.kind.name(),
            path: Bytes::new(access.path),
            nameless: access.nameless,
            to: access.to.map(Bytes::new),
            target,
            attribute,
            identity,
            error: access.error.map(error_name),
            pid: access.process,
        };
        serde_json::to_writer(&mut self.0, &said)?;
        self.0.write_all(b"\n")
    }

    /// Flushes, so that a reader sees all lines so far.
    fn caught_up(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The name of an error as errno(3) has it, or its number.
pub(crate) fn error_name(errno: Errno) -> Cow<'static, str> {
    macro_rules! names {
        ($($name:ident)*) => {
            match errno {
                $(Errno::$name => concat!("E", stringify!($name)),)*
                Errno::ACCESS => "EACCES",
                Errno::TOOBIG => "E2BIG",
                other => return Cow::Owned(other.raw_os_error().to_string()),
            }
        };
    }
    Cow::Borrowed(names! {
        AGAIN BADF BUSY DEADLK DQUOT EXIST FAULT FBIG INTR INVAL IO ISDIR LOOP MFILE MLINK NAMETOOLONG NFILE NODATA NODEV
        NOENT NOLCK NOMEM NOSPC NOSYS NOTCONN NOTDIR NOTEMPTY NOTTY NXIO OPNOTSUPP OVERFLOW PERM PIPE RANGE ROFS SPIPE STALE
        TIMEDOUT TXTBSY XDEV
    })
}

#[cfg(test)]
mod tests;
