//! Writes each kind of layout to each kind of output, and reads it back.

use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::{Mutex, PoisonError};

use inarch_block::{
    BLOCK_SIZE, Content, DeviceSink, FileSink, ImageSource, MapParts, Part, Placed, Progress, Sink, Verifier,
    WriteError, Written, stream_parts, write_parts,
};
use inarch_format::{Layout, Pack, Piece, Stream};
use inarch_lifecycle::confinement::Confinement;

use super::output::Output;

/// A layout, and what is needed to write it.
pub(super) struct Job<'a> {
    pub(super) layout: &'a Layout,
    pub(super) content: &'a dyn Content,
    pub(super) progress: &'a dyn Progress,
    pub(super) threads: usize,
    /// The confinement of the threads that read content and write: content of foreign sources is unpacked as it is
    /// read.
    pub(super) confinement: Option<&'a Confinement>,
}

/// What was written.
pub(super) struct Done {
    /// Bytes of the image.
    pub(super) length: u64,
    pub(super) written: Written,
}

impl Job<'_> {
    /// Bytes of the image, if known before it is written.
    fn length(&self) -> Option<u64> {
        match self.layout {
            Layout::Blocks(map) => Some(map.blocks() * BLOCK_SIZE as u64),
            Layout::Stream(stream) => Some(stream.length()),
            Layout::Packed(_) => None,
        }
    }

    /// Whether at most a sixteenth of the image, whose length is known, is holes.
    fn fills_its_length(&self) -> bool {
        match self.layout {
            Layout::Blocks(map) => map.used_blocks() >= map.blocks() / 16 * 15,
            Layout::Stream(_) => true,
            Layout::Packed(_) => false,
        }
    }

    /// Writes the image.
    pub(super) fn write(&self, output: &Output) -> Result<Done, WriteError> {
        match output {
            Output::New(new) => {
                if let Some(length) = self.length() {
                    set_length(&new.file, length)?;
                }
                let sink = FileSink::new(&new.file).filled(self.fills_its_length());
                let done = self.write_to(&sink, self.progress)?;
                set_length(&new.file, done.length)?;
                Ok(done)
            }
            Output::Device { file, bytes } => {
                let length = self.length().unwrap_or(0);
                if length > *bytes {
                    let text = format!("the image has {length} bytes, the device only {bytes}");
                    return Err(WriteError::Output { offset: *bytes, error: io::Error::other(text) });
                }
                self.write_to(&DeviceSink(file), self.progress)
            }
            Output::Pipe(file) => self.stream_to(file),
        }
    }

    /// Reads the image back, and compares it with what layout and content give now.
    pub(super) fn verify(&self, output: &Output, length: u64) -> Result<(), WriteError> {
        let file = match output {
            Output::New(new) => &new.file,
            Output::Device { file, .. } => file,
            // A pipe cannot be read back.
            Output::Pipe(_) => return Ok(()),
        };
        let done = self.write_to(&Verifier(file), self.progress)?;
        if done.length != length {
            let text = format!("was made with {length} bytes, and would have {} now", done.length);
            return Err(WriteError::Output { offset: length, error: io::Error::new(io::ErrorKind::InvalidData, text) });
        }
        Ok(())
    }

    /// Does `work` confined. Everything that it needs must be open.
    fn confined<T: Send>(&self, work: impl FnOnce() -> Result<T, WriteError> + Send) -> Result<T, WriteError> {
        let Some(confinement) = self.confinement else { return work() };
        confinement.run(work, || {}).map_err(|error| WriteError::Output { offset: 0, error })?
    }

    fn write_to(&self, sink: &dyn Sink, progress: &dyn Progress) -> Result<Done, WriteError> {
        self.confined(|| self.write_confined(sink, progress))
    }

    fn write_confined(&self, sink: &dyn Sink, progress: &dyn Progress) -> Result<Done, WriteError> {
        let (content, threads) = (self.content, self.threads);
        match self.layout {
            Layout::Blocks(map) => {
                let length = map.blocks() * BLOCK_SIZE as u64;
                let source = ImageSource { map: Some(map), content };
                let written = write_parts(MapParts::new(map), length, source, sink, progress, threads)?;
                Ok(Done { length, written })
            }
            Layout::Stream(stream) => {
                let (parts, length) = (StreamParts::new(&**stream), stream.length());
                let written = write_parts(parts, length, ImageSource { map: None, content }, sink, progress, threads)?;
                Ok(Done { length, written })
            }
            Layout::Packed(pack) => self.pack_to(&**pack, sink, progress),
        }
    }

    fn pack_to(&self, pack: &dyn Pack, sink: &dyn Sink, progress: &dyn Progress) -> Result<Done, WriteError> {
        let watched = Watched { sink, failed: Mutex::new(None) };
        let packed = pack.pack(self.content, &watched, progress);
        let failed = watched.failed.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (packed, failed) {
            (Ok(length), _) => Ok(Done { length, written: Written { copied: length, shared: 0 } }),
            (Err(_), Some((offset, error))) => Err(WriteError::Output { offset, error }),
            (Err(_), None) if progress.cancelled() => Err(WriteError::Cancelled),
            (Err(error), None) => Err(WriteError::Content { inode: None, error }),
        }
    }

    /// Writes the image in order.
    fn stream_to(&self, file: &File) -> Result<Done, WriteError> {
        let mut file = file;
        let content = self.content;
        match self.layout {
            Layout::Blocks(map) => {
                let length = map.blocks() * BLOCK_SIZE as u64;
                let source = ImageSource { map: Some(map), content };
                let write = || stream_parts(MapParts::new(map), length, source, &mut file, self.progress);
                Ok(Done { length, written: self.confined(write)? })
            }
            Layout::Stream(stream) => {
                let (parts, length) = (StreamParts::new(&**stream), stream.length());
                let source = ImageSource { map: None, content };
                let write = || stream_parts(parts, length, source, &mut file, self.progress);
                Ok(Done { length, written: self.confined(write)? })
            }
            Layout::Packed(_) => {
                // Its parts come in no order, so it is written to a temporary file first.
                let output = |error| WriteError::Output { offset: 0, error };
                let whole = tempfile::tempfile().map_err(output)?;
                let done = self.write_to(&FileSink::new(&whole), self.progress)?;
                set_length(&whole, done.length)?;
                io::copy(&mut (&whole).take(done.length), &mut file).and_then(|_| file.flush()).map_err(output)?;
                Ok(done)
            }
        }
    }
}

fn set_length(file: &File, length: u64) -> Result<(), WriteError> {
    file.set_len(length).map_err(|error| WriteError::Output { offset: length, error })
}

/// Iterates over the parts of an archive.
pub(crate) struct StreamParts<'a> {
    pieces: Box<dyn Iterator<Item = Piece> + Send + 'a>,
    at: u64,
}

impl<'a> StreamParts<'a> {
    /// The parts of `stream`, from its start.
    pub(crate) fn new(stream: &'a dyn Stream) -> StreamParts<'a> {
        StreamParts { pieces: stream.pieces(), at: 0 }
    }
}

impl Iterator for StreamParts<'_> {
    type Item = Placed;

    fn next(&mut self) -> Option<Placed> {
        loop {
            let piece = self.pieces.next()?;
            let at = self.at;
            self.at += piece.length();
            let part = match piece {
                Piece::Zeros(_) => continue,
                Piece::Bytes(bytes) => Part::Bytes(bytes),
                Piece::File { length: 0, .. } => continue,
                Piece::File { inode, offset, length } => Part::File { inode, offset, length },
            };
            return Some(Placed { at, part });
        }
    }
}

/// Records a sink's error, because a packer does not distinguish it from a content error.
struct Watched<'a> {
    sink: &'a dyn Sink,
    failed: Mutex<Option<(u64, io::Error)>>,
}

impl Sink for Watched<'_> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.sink.write_at(offset, bytes).map_err(|error| {
            let kind = error.kind();
            self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((offset, error));
            kind.into()
        })
    }
}
