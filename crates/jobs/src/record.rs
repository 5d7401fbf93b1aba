//! What is done in a mount, written down: a line of JSON for each access.
//!
//! A thread of its own writes. Those who are served never wait for it: what it is behind with is kept, up to a bound;
//! above that, accesses are counted, and the last line tells their number.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

use inarch_vfs::{Access, AccessSink};
use serde::Serialize;

use crate::JobError;
use crate::kept::Bytes;

/// Lines that wait to be written, at most.
const MOST: usize = 1 << 16;

/// A line to be written; none after the last one.
type Line = Option<Vec<u8>>;

/// What a line says.
#[derive(Serialize)]
struct Said<'a> {
    access: &'a str,
    path: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<Bytes>,
    pid: u32,
}

/// The last line.
#[derive(Serialize)]
struct End {
    end: bool,
    lost: u64,
}

/// A file that nobody writes yet: a server starts its threads when it is confined.
pub(crate) struct NewRecord {
    path: PathBuf,
    file: File,
    sink: RecordSink,
    to_write: Receiver<Line>,
}

/// The file, and the thread that writes it.
pub(crate) struct RecordFile {
    path: PathBuf,
    lines: SyncSender<Line>,
    lost: Arc<AtomicU64>,
    writer: JoinHandle<io::Result<()>>,
}

/// Where accesses are told.
#[derive(Clone)]
pub(crate) struct RecordSink {
    lines: SyncSender<Line>,
    lost: Arc<AtomicU64>,
}

impl NewRecord {
    /// A new file at `path`, or in place of what is in it.
    pub fn create(path: &Path) -> Result<NewRecord, JobError> {
        let file = File::create(path).map_err(|error| JobError::path(path, "cannot record there", error))?;
        let (lines, to_write) = sync_channel(MOST);
        Ok(NewRecord { path: path.to_owned(), file, sink: RecordSink { lines, lost: Arc::default() }, to_write })
    }

    /// What takes accesses.
    pub fn sink(&self) -> RecordSink {
        self.sink.clone()
    }

    /// Starts to write.
    pub fn start(self) -> Result<RecordFile, JobError> {
        let NewRecord { path, file, sink: RecordSink { lines, lost }, to_write } = self;
        let writer = thread::Builder::new().name("record".into()).spawn(move || write_lines(file, &to_write));
        let writer = writer.map_err(|error| JobError::path(&path, "cannot record there", error))?;
        Ok(RecordFile { path, lines, lost, writer })
    }
}

impl RecordFile {
    /// Writes what is still to be written, and the last line. What is done from now on is lost.
    pub fn finish(self) -> Result<(), JobError> {
        let RecordFile { path, lines, lost, writer } = self;
        let end = line(&End { end: true, lost: lost.load(Ordering::Relaxed) });
        // If nobody takes it, the writer says why.
        let _ = lines.send(Some(end)).and_then(|()| lines.send(None));
        let written = writer.join().unwrap_or_else(|_| Err(io::Error::other("the writer failed")));
        written.map_err(|error| JobError::path(&path, "the record is not complete", error))
    }
}

fn write_lines(file: File, lines: &Receiver<Line>) -> io::Result<()> {
    let mut file = BufWriter::with_capacity(1 << 16, file);
    loop {
        let line = match lines.try_recv() {
            Ok(line) => line,
            // Whoever reads along sees all that there is by now.
            Err(_) => {
                file.flush()?;
                lines.recv().unwrap_or(None)
            }
        };
        match line {
            Some(line) => file.write_all(&line)?,
            None => return file.flush(),
        }
    }
}

fn line(content: &impl Serialize) -> Vec<u8> {
    // Structures of strings and numbers always have a text.
    let mut line = serde_json::to_vec(content).unwrap_or_default();
    line.push(b'\n');
    line
}

/// The process that a thread of this machine is of. The thread waits for its answer meanwhile, unless it was killed; where
/// nobody says, it is the thread itself.
fn process_of(thread: u32) -> u32 {
    let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    process.and_then(|process| process.trim().parse().ok()).unwrap_or(thread)
}

impl AccessSink for RecordSink {
    fn record(&self, access: &Access<'_>) {
        let (path, to) = (Bytes::new(access.path), access.to.map(Bytes::new));
        let line = line(&Said { access: access.kind.name(), path, to, pid: process_of(access.pid) });
        if self.lines.try_send(Some(line)).is_err() {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use inarch_vfs::AccessKind;

    use super::*;

    #[test]
    fn every_access_is_a_line_and_the_last_one_says_what_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("record");
        let file = NewRecord::create(&path).unwrap();
        let sink = file.sink();
        sink.record(&Access { kind: AccessKind::Absent, path: b"a/\"b\"", to: None, pid: 7 });
        sink.record(&Access { kind: AccessKind::Rename, path: b"\xff", to: Some(b"x\n"), pid: 0 });
        file.start().unwrap().finish().unwrap();
        let expected = "{\"access\":\"absent\",\"path\":\"a/\\\"b\\\"\",\"pid\":7}\n\
                        {\"access\":\"rename\",\"path\":[255],\"to\":\"x\\n\",\"pid\":0}\n\
                        {\"end\":true,\"lost\":0}\n";
        assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
        let error = NewRecord::create(Path::new("/proc/nothing/here")).err().unwrap();
        assert!(error.to_string().contains("cannot record there"));
    }
}
