//! Passes on what a command prints, and keeps it.

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::Stdio;
use std::thread::{self, JoinHandle};

use inarch_vm::session::write_whole;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::fstat;
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The standard streams of a command; by default, those of this process.
#[derive(Debug, Default)]
pub struct Streams {
    /// Standard input.
    pub input: Option<Stdio>,
    /// Standard output.
    pub output: Option<Stdio>,
    /// Standard error.
    pub errors: Option<Stdio>,
}

/// Bytes that are kept, at most.
pub(super) const MOST: u64 = 64 << 20;
/// Bytes that are read at once: what a pipe holds.
const PIECE: usize = 1 << 16;

/// A standard stream that a command prints to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Stream {
    /// Standard output. Standard error, too, if both lead to the same file: one pipe keeps their order.
    Output,
    /// Standard error.
    Errors,
}

/// What a command printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Captured {
    /// All of it, in the order in which it came.
    pub bytes: Vec<u8>,
    /// Whose each piece is, and its length in bytes.
    pub pieces: Vec<(Stream, u64)>,
    /// Whether both streams came through one pipe.
    pub is_joint: bool,
    /// Why this is not all, if it is not.
    pub lacks: Option<&'static str>,
}

impl Captured {
    /// The pieces in order.
    pub fn pieces(&self) -> impl Iterator<Item = (Stream, &[u8])> {
        let mut rest = &self.bytes[..];
        self.pieces.iter().map(move |(stream, length)| {
            let (piece, after) = rest.split_at(rest.len().min(usize::try_from(*length).unwrap_or(usize::MAX)));
            rest = after;
            (*stream, piece)
        })
    }

    fn add(&mut self, stream: Stream, piece: &[u8]) {
        if self.lacks.is_some() {
            return;
        }
        if (self.bytes.len() + piece.len()) as u64 > MOST {
            self.bytes = Vec::new();
            self.lacks = Some("the command printed more than 64 MiB");
            return;
        }
        self.bytes.extend_from_slice(piece);
        match self.pieces.last_mut() {
            Some((last, length)) if *last == stream => *length += piece.len() as u64,
            _ => self.pieces.push((stream, piece.len() as u64)),
        }
    }
}

/// Whether two streams lead to the same file, pipe or terminal.
///
/// # Errors
/// One of them is not open.
pub fn is_joint(output: impl AsFd, errors: impl AsFd) -> io::Result<bool> {
    let (output, errors) = (fstat(output)?, fstat(errors)?);
    Ok((output.st_dev, output.st_ino, output.st_rdev) == (errors.st_dev, errors.st_ino, errors.st_rdev))
}

/// A capture under way.
#[derive(Debug)]
pub struct Capture {
    thread: JoinHandle<Captured>,
    /// Closed when the trace has ended.
    ends: PipeWriter,
}

/// A capture that has not begun.
#[derive(Debug)]
pub struct NewCapture {
    sources: Vec<Source>,
    is_joint: bool,
}

/// A pipe from the command, and where it leads to.
#[derive(Debug)]
struct Source {
    pipe: PipeReader,
    to: File,
    stream: Stream,
}

impl NewCapture {
    /// Makes streams for a command: nothing to read, and what it prints goes to `output` and `errors` and is kept, from when the
    /// capture is [started](NewCapture::start).
    ///
    /// # Errors
    /// There are no pipes.
    pub fn new(output: OwnedFd, errors: OwnedFd) -> io::Result<(NewCapture, Streams)> {
        let is_joint = is_joint(&output, &errors)?;
        let (pipe, end) = io::pipe()?;
        let mut sources = vec![Source { pipe, to: output.into(), stream: Stream::Output }];
        let errors_end = if is_joint {
            end.try_clone()?
        } else {
            let (pipe, end) = io::pipe()?;
            sources.push(Source { pipe, to: errors.into(), stream: Stream::Errors });
            end
        };
        let streams = Streams { input: Some(Stdio::null()), output: Some(end.into()), errors: Some(errors_end.into()) };
        Ok((NewCapture { sources, is_joint }, streams))
    }

    /// Begins in a thread of its own. The command can be running: its pipes hold what it prints.
    ///
    /// # Errors
    /// There are no pipes, or no thread.
    pub fn start(self) -> io::Result<Capture> {
        let NewCapture { sources, is_joint } = self;
        let (ended, ends) = io::pipe()?;
        let captured = Captured { is_joint, ..Captured::default() };
        let thread = thread::Builder::new().name("capture".into()).spawn(move || pass_on(sources, &ended, captured))?;
        Ok(Capture { thread, ends })
    }
}

impl Capture {
    /// Takes what came until now, if processes still have the streams, and ends.
    pub fn finish(self) -> Captured {
        drop(self.ends);
        let lacking = Captured { lacks: Some("what the command printed could not be kept"), ..Captured::default() };
        self.thread.join().unwrap_or(lacking)
    }
}

/// Passes on until all sources are at their end, or `ended` is and nothing is there.
fn pass_on(mut sources: Vec<Source>, ended: &PipeReader, mut captured: Captured) -> Captured {
    let mut piece = vec![0; PIECE];
    let mut is_over = false;
    while !sources.is_empty() {
        let ready = {
            let mut polled: Vec<PollFd<'_>> =
                sources.iter().map(|source| PollFd::new(&source.pipe, PollFlags::IN)).collect();
            polled.push(PollFd::new(ended, if is_over { PollFlags::empty() } else { PollFlags::IN }));
            let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            match poll(&mut polled, is_over.then_some(&at_once)) {
                Err(Errno::INTR) => continue,
                Err(_) => {
                    captured.lacks = Some("what the command printed could not be kept");
                    return captured;
                }
                Ok(_) => polled.iter().map(|one| !one.revents().is_empty()).collect::<Vec<_>>(),
            }
        };
        let Some(at) = ready[..sources.len()].iter().position(|is_ready| *is_ready) else {
            if is_over {
                captured.lacks.get_or_insert("processes that the command left behind may still print");
                return captured;
            }
            is_over = ready[sources.len()];
            continue;
        };
        let Source { pipe, to, stream } = &mut sources[at];
        let length = match pipe.read(&mut piece) {
            Ok(0) => {
                sources.remove(at);
                continue;
            }
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        captured.add(*stream, &piece[..length]);
        if length == 0 || write_whole(to, &piece[..length]).is_err() {
            captured.lacks.get_or_insert("nobody took what the command printed");
            // The command finds out as if it had printed there itself.
            sources.remove(at);
        }
    }
    captured
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_keep_their_order_and_are_bounded() {
        let mut captured = Captured::default();
        for (stream, text) in
            [(Stream::Output, "a"), (Stream::Output, "b"), (Stream::Errors, "c"), (Stream::Output, "d")]
        {
            captured.add(stream, text.as_bytes());
        }
        let pieces: Vec<_> = captured.pieces().collect();
        assert_eq!(pieces, [(Stream::Output, &b"ab"[..]), (Stream::Errors, b"c"), (Stream::Output, b"d")]);
        captured.add(Stream::Output, &vec![0; MOST as usize]);
        assert!(captured.lacks.is_some() && captured.bytes.is_empty());
    }

    #[test]
    fn streams_to_the_same_place_share_a_pipe() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (capture, streams) = NewCapture::new(writer.try_clone().unwrap().into(), writer.into()).unwrap();
        let capture = capture.start().unwrap();
        let mut command = std::process::Command::new("sh");
        command.args(["-c", "for i in 1 2 3 4 5; do echo $i; echo e$i >&2; done"]);
        let Streams { input, output, errors } = streams;
        command.stdin(input.unwrap()).stdout(output.unwrap()).stderr(errors.unwrap());
        assert!(command.status().unwrap().success());
        drop(command);
        let captured = capture.finish();
        let text = "1\ne1\n2\ne2\n3\ne3\n4\ne4\n5\ne5\n";
        assert_eq!((captured.bytes.as_slice(), captured.is_joint, captured.lacks), (text.as_bytes(), true, None));
        let mut passed = String::new();
        reader.read_to_string(&mut passed).unwrap();
        assert_eq!(passed, text);
    }
}
