//! [`Recording`]: takes messages from the queue, turns node numbers into paths, and gives the accesses to a sink.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::queue::{Done, Message, Place, Queue, Taken};
use super::seen::Seen;
use super::{Access, AccessKind, AccessSink, Listed, RecordLevel};
use crate::paths::{Path, Paths};

/// A recording, between its [`Recorder`](super::Recorder)s and its writer.
#[derive(Clone, Debug)]
pub struct Recording {
    pub(super) queue: Arc<Queue>,
    pub(super) level: RecordLevel,
    repeats: bool,
    pub(super) names: bool,
    /// Whether accesses do not count yet.
    preparing: Arc<AtomicBool>,
}

impl Recording {
    /// An empty recording. Something must call [`Recording::write_to`], or requests block.
    pub fn new(level: RecordLevel) -> Recording {
        Recording {
            queue: Arc::default(),
            level,
            repeats: level == RecordLevel::Process,
            names: false,
            preparing: Arc::default(),
        }
    }

    /// Gives the sink every access, even one that it got before. For a sink that adds accesses up: to it, a file that
    /// is made again exists again.
    pub fn with_repeats(self) -> Recording {
        Recording { repeats: true, ..self }
    }

    /// Begins with a preparation: until [`Recording::begin`] accesses are not recorded, and clients cache nothing, so that what they
    /// use again later is recorded.
    pub fn prepared(self) -> Recording {
        self.preparing.store(true, Ordering::Release);
        self
    }

    /// Ends the preparation.
    pub fn begin(&self) {
        self.preparing.store(false, Ordering::Release);
    }

    pub(super) fn is_preparing(&self) -> bool {
        self.preparing.load(Ordering::Acquire)
    }

    /// Gives the sink the names that each listing gave the client.
    pub fn with_names(self) -> Recording {
        Recording { names: true, ..self }
    }

    /// Gives each access to `sink` until the [end](Recording::end); returns their number. If `sink` fails, the
    /// recording fails. For one thread.
    pub fn write_to(&self, sink: &mut dyn AccessSink) -> io::Result<u64> {
        // However this ends, nobody waits for it any more.
        let failing = Failing(&self.queue);
        let mut writer = Writer::new(self.level, self.repeats);
        let mut messages = Vec::new();
        loop {
            match self.queue.take(&mut messages) {
                Taken::Some => messages.drain(..).try_for_each(|message| writer.take(message, sink))?,
                Taken::Nothing => {
                    sink.caught_up()?;
                    self.queue.wait();
                }
                Taken::End => break,
            }
        }
        sink.caught_up()?;
        std::mem::forget(failing);
        Ok(writer.told)
    }

    /// Ends the recording: later accesses are not recorded.
    pub fn end(&self) {
        self.queue.end();
    }
}

struct Failing<'q>(&'q Queue);

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        self.0.fail();
    }
}

/// The state of the writer thread.
pub(super) struct Writer {
    level: RecordLevel,
    repeats: bool,
    pub(super) paths: Paths,
    seen: Seen,
    told: u64,
}

impl Writer {
    pub(super) fn new(level: RecordLevel, repeats: bool) -> Writer {
        Writer { level, repeats, paths: Paths::default(), seen: Seen::default(), told: 0 }
    }

    pub(super) fn take(&mut self, message: Message, sink: &mut dyn AccessSink) -> io::Result<()> {
        match message {
            Message::Done(done) => self.tell(&done, sink)?,
            Message::Listed(node, names) => {
                let Path { bytes, is_named } = self.paths.path(node);
                sink.list(&Listed::new(&bytes, !is_named, &names))?;
            }
            Message::Counted(node) => self.paths.counted(node),
            Message::Forgot(node, lookups) => self.paths.forget(node, lookups),
            Message::Disconnected => self.paths = Paths::default(),
        }
        Ok(())
    }

    fn path(&self, place: &Place) -> Path {
        match place {
            Place::Node(node) => self.paths.path(*node),
            Place::Name(parent, name) => self.paths.path_of_name(*parent, name),
        }
    }

    fn tell(&mut self, done: &Done, sink: &mut dyn AccessSink) -> io::Result<()> {
        let Done { kind, detail, identity, error, process, .. } = done;
        let path = self.path(&done.place);
        let others = self.other_paths(&done.place);
        let to = done.to.as_ref().map(|to| self.path(to).bytes);
        let others_to = done.to.as_ref().map_or_else(Vec::new, |to| self.other_paths(to));
        if error.is_none() {
            self.follow(done);
        }
        if done.is_silent {
            return Ok(());
        }
        let process = (self.level == RecordLevel::Process).then_some(*process);
        let (to, detail) = (to.as_deref(), detail.as_deref());
        let mut tell = |path: &Path, to: Option<&[u8]>| {
            let nameless = !path.is_named || *kind == AccessKind::CreateUnnamed;
            let number = error.map(|error| error.raw_os_error());
            if !self.repeats && !self.seen.is_new((kind, &*path.bytes, nameless, to, detail, number)) {
                return Ok(());
            }
            self.told += 1;
            let (path, identity, error) = (&*path.bytes, *identity, *error);
            sink.record(&Access { kind: *kind, path, nameless, to, detail, identity, error, process })
        };
        tell(&path, to)?;
        others.iter().try_for_each(|other| tell(other, to))?;
        others_to.iter().try_for_each(|other| tell(&path, Some(&other.bytes)))
    }

    /// The further paths of a file with several names. A client that caches look-ups may have used any that it knows.
    fn other_paths(&self, place: &Place) -> Vec<Path> {
        match place {
            Place::Node(node) if self.level == RecordLevel::Command => self.paths.further_paths(*node),
            _ => Vec::new(),
        }
    }

    /// Updates the paths.
    fn follow(&mut self, done: &Done) {
        match (done.kind, &done.place, &done.to, done.node) {
            (AccessKind::CreateUnnamed, Place::Node(parent), _, Some(node)) => self.paths.made_unnamed(node, *parent),
            (AccessKind::Link, _, Some(Place::Name(parent, name)), Some(node)) => self.paths.found(node, *parent, name),
            (_, Place::Name(parent, name), None, Some(node)) => self.paths.found(node, *parent, name),
            (AccessKind::Absent | AccessKind::Remove, Place::Name(parent, name), ..) => {
                self.paths.removed(*parent, name);
            }
            (AccessKind::Rename | AccessKind::Exchange, Place::Name(parent, name), Some(Place::Name(to, other)), _) => {
                let is_exchange = done.kind == AccessKind::Exchange;
                self.paths.renamed((*parent, name), (*to, other), is_exchange);
            }
            (_, _, _, Some(node)) => self.paths.counted(node),
            _ => {}
        }
    }
}
