//! Verbs that list directories, and copy files out of the guest.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, bail};
use inarch_jobs::guest::{Entry, GuestError, Piece, zeros};
use inarch_jobs::{WholeFile, shown};
use inarch_tree::FileType;
use inarch_volume::Last;

use super::print::{Fields, list as print_list};
use super::{Call, Shell, Verb, verb};
use crate::columns::columns;
use crate::disk::files::{LONG_RIGHT, long};
use crate::output::complain;

pub const VERBS: &[Verb] = &[
    verb("ls", "DIR", "list a directory", ls),
    verb("ll", "DIR", "list a directory with types, permissions, owners, sizes and times", ll),
    verb("ls0", "DIR LOCAL", "list a directory into a file of this machine, each name with a NUL", ls0),
    verb("readdir", "DIR", "list a directory with inode numbers and types", readdir),
    verb("find", "DIR", "list everything below a directory", find),
    verb("find0", "DIR LOCAL", "the same into a file of this machine, each path with a NUL", find0),
    verb("glob-expand", "PATTERN [directoryslash:BOOL]", "list the paths that match a pattern", glob),
    verb("du", "PATH", "print the KiB that a file takes, or a directory with all below it", du),
    verb("download", "PATH-OR-DEVICE LOCAL", "copy a file, or a device, to a file of this machine", download),
    verb("download-offset", "PATH-OR-DEVICE LOCAL OFFSET SIZE", "the same for a part of it", download_offset),
    verb("copy-out", "PATH... LOCALDIR", "copy files and directories into a directory of this machine", copy_out),
    verb("tar-out", "DIR LOCAL", "write a directory as a tar archive of this machine", tar_out),
    verb("cpio-out", "DIR LOCAL", "write a directory as a cpio archive (newc) of this machine", cpio_out),
];

type Done = anyhow::Result<()>;

/// Entries of a directory by name. What is damaged is said, and fails the verb at its end.
fn entries(shell: &Shell, path: &Path) -> anyhow::Result<(Vec<Entry>, Lost)> {
    let (mut entries, mut lost) = (Vec::new(), Lost::default());
    shell.session.guest()?.list(path, |found| {
        match found {
            Ok(entry) => entries.push(entry),
            Err(line) => lost.say(&line),
        }
        shell.check().map_err(GuestError::Output)
    })?;
    Ok((entries, lost))
}

/// Lines about what is damaged.
#[derive(Default)]
pub struct Lost(u64);

impl Lost {
    /// Says a line.
    pub fn say(&mut self, line: &str) {
        complain(line);
        self.0 += 1;
    }

    /// An error if there was one.
    pub fn end(self) -> Done {
        if self.0 == 0 { Ok(()) } else { bail!("some of it is damaged, as said above") }
    }
}

/// A directory that is asked for, and nothing else.
fn directory(shell: &Shell, path: &Path) -> Done {
    match shell.session.guest()?.look(path, Last::Followed)? {
        Some(entry) if entry.attributes.file_type() != Some(FileType::Directory) => {
            bail!("{}: it is no directory", shown(path))
        }
        _ => Ok(()),
    }
}

fn ls(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    directory(shell, call.path(0))?;
    let (entries, lost) = entries(shell, call.path(0))?;
    entries.iter().try_for_each(|entry| call.name(&entry.path))?;
    lost.end()
}

fn ll(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (entries, lost) = entries(shell, call.path(0))?;
    write!(call.out, "{}", columns(&entries.iter().map(long).collect::<Vec<_>>(), &LONG_RIGHT))?;
    lost.end()
}

/// Writes a file of this machine, which has its name when it is complete.
fn local(path: &Path, write: impl FnOnce(&File) -> Done) -> Done {
    let whole = WholeFile::create(path)?;
    write(whole.file())?;
    Ok(whole.commit()?)
}

fn ls0(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    directory(shell, call.path(0))?;
    let (entries, lost) = entries(shell, call.path(0))?;
    let names: Vec<u8> = entries.iter().flat_map(|entry| [&entry.path, &b"\0"[..]].concat()).collect();
    local(call.path(1), |mut file| Ok(file.write_all(&names)?))?;
    lost.end()
}

fn readdir(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    directory(shell, call.path(0))?;
    let (entries, lost) = entries(shell, call.path(0))?;
    let fields = |entry: &Entry| -> Fields {
        let kind = match entry.attributes.file_type() {
            Some(FileType::Regular) => "r",
            Some(FileType::Directory) => "d",
            Some(FileType::Symlink) => "l",
            Some(FileType::BlockDevice) => "b",
            Some(FileType::CharDevice) => "c",
            Some(FileType::Fifo) => "f",
            Some(FileType::Socket) => "s",
            None => "?",
        };
        use std::os::unix::ffi::OsStrExt;
        let name = shown(Path::new(std::ffi::OsStr::from_bytes(&entry.path)));
        vec![("ino", entry.attributes.inode.to_string()), ("ftyp", kind.to_owned()), ("name", name)]
    };
    print_list(call, &entries.iter().map(fields).collect::<Vec<_>>())?;
    lost.end()
}

/// Everything below a directory, by paths below it.
fn below(shell: &Shell, path: &Path, mut take: impl FnMut(Entry) -> io::Result<()>) -> Done {
    let mut lost = Lost::default();
    shell.session.guest()?.find(path, &|_, _| true, |found| {
        let taken = match found {
            Ok(entry) => take(entry),
            Err(line) => {
                lost.say(&line);
                Ok(())
            }
        };
        taken.and_then(|()| shell.check()).map_err(GuestError::Output)
    })?;
    lost.end()
}

fn find(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let out = &mut call.out;
    let path = Path::new(call.words.first().copied().unwrap_or_default());
    below(shell, path, |entry| {
        use std::os::unix::ffi::OsStrExt;
        writeln!(out, "{}", shown(Path::new(std::ffi::OsStr::from_bytes(&entry.path))))
    })
}

fn find0(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    local(call.path(1), |file| {
        let mut file = io::BufWriter::new(file);
        below(shell, call.path(0), |entry| file.write_all(&entry.path).and_then(|()| file.write_all(b"\0")))?;
        Ok(file.flush()?)
    })
}

fn glob(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let mark = call.option("directoryslash").is_none() || call.flag("directoryslash")?;
    let found = shell.session.guest()?.glob(call.path(0), mark)?;
    found.iter().try_for_each(|path| call.name(path))
}

fn du(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let path = call.path(0);
    let entry = shell.session.guest()?.attributes(path, Last::Taken)?;
    let mut bytes = entry.attributes.allocated;
    // A file with several names takes its room once.
    let mut seen = HashSet::new();
    if entry.attributes.file_type() == Some(FileType::Directory) {
        below(shell, path, |entry| {
            let attributes = entry.attributes;
            let is_directory = attributes.file_type() == Some(FileType::Directory);
            if is_directory || attributes.links < 2 || seen.insert(attributes.inode) {
                bytes = bytes.saturating_add(attributes.allocated);
            }
            Ok(())
        })?;
    }
    call.line(bytes.div_ceil(1024))
}

fn download(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    save(shell, call, (0, u64::MAX))
}

fn download_offset(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let range = (call.number(2)?, call.number(3)?);
    save(shell, call, range)
}

/// Copies `count` bytes from `offset` of a file or a device.
fn save(shell: &mut Shell, call: &mut Call<'_>, (offset, count): (u64, u64)) -> Done {
    let (from, to) = (call.path(0), call.path(1));
    let block = if from.starts_with("/dev") { Some(shell.session.block(call.text(0)?)) } else { None };
    let is_device = matches!(block, Some(Ok(_)));
    if let Some(Err(error)) = block
        && shell.session.guest().is_err()
    {
        return Err(error.into());
    }
    if to == Path::new("-") {
        let out = &mut *call.out;
        let mut take = |part: &Part<'_>| part.write_to(out);
        return copy(shell, from, is_device, (offset, count), &mut |_, part| take(&part)).map(drop);
    }
    local(to, |file| {
        let is_regular = file.metadata()?.is_file();
        let length = copy(shell, from, is_device, (offset, count), &mut |at, part| match part {
            Part::Zeros(_) if is_regular => Ok(()),
            // Zeros become holes.
            Part::Bytes(bytes) if is_regular && bytes.iter().all(|byte| *byte == 0) => Ok(()),
            Part::Bytes(bytes) if is_regular => file.write_all_at(bytes, at),
            part => part.write_to(&mut &*file),
        })?;
        if is_regular { Ok(file.set_len(length)?) } else { Ok(()) }
    })
    .with_context(|| shown(to))
}

/// A part of what is copied.
enum Part<'a> {
    Bytes(&'a [u8]),
    /// So many zeros, of a hole.
    Zeros(u64),
}

impl Part<'_> {
    fn length(&self) -> u64 {
        match self {
            Part::Bytes(bytes) => bytes.len() as u64,
            Part::Zeros(length) => *length,
        }
    }

    /// The part of it within a range.
    fn within(&self, range: Range<u64>) -> Part<'_> {
        match self {
            Part::Bytes(bytes) => Part::Bytes(bytes.get(range.start as usize..range.end as usize).unwrap_or_default()),
            Part::Zeros(_) => Part::Zeros(range.end.saturating_sub(range.start)),
        }
    }

    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Part::Bytes(bytes) => out.write_all(bytes),
            Part::Zeros(length) => zeros(*length).try_for_each(|zeros| out.write_all(zeros)),
        }
    }
}

/// Gives the bytes of a range, each piece with its place in the range. Returns how many there were.
fn copy(
    shell: &mut Shell,
    from: &Path,
    is_device: bool,
    (offset, count): (u64, u64),
    put: &mut dyn FnMut(u64, Part<'_>) -> io::Result<()>,
) -> anyhow::Result<u64> {
    let (mut at, mut done) = (0u64, 0u64);
    let end = offset.saturating_add(count);
    let mut take = |part: Part<'_>| {
        let length = part.length();
        // A device is read from the offset on, and a file from its start.
        let start = if is_device { offset.saturating_add(at) } else { at };
        let skip = offset.saturating_sub(start).min(length);
        let most = end.saturating_sub(start).min(length);
        let wanted = part.within(skip..most);
        let count = wanted.length();
        put(done, wanted)?;
        done += count;
        at += length;
        Ok(start.saturating_add(length) < end)
    };
    if is_device {
        let name = from.to_str().unwrap_or_default();
        let interrupted = std::sync::Arc::clone(&shell.interrupted);
        shell.session.read_device(name, (offset, count), |bytes| {
            if interrupted.load(std::sync::atomic::Ordering::Relaxed) {
                return Err(io::Error::other("interrupted"));
            }
            take(Part::Bytes(bytes))
        })?;
    } else {
        shell.read_pieces(from, &mut |piece| match &piece {
            Piece::Data(bytes) => take(Part::Bytes(bytes)),
            Piece::Hole(length) => take(Part::Zeros(*length)),
        })?;
    }
    Ok(done)
}

fn copy_out(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let words = call.words();
    let Some((to, paths)) = words.split_last() else { return Ok(()) };
    let to = Path::new(to);
    if !to.is_dir() {
        bail!("{}: there is no such directory", shown(to));
    }
    let mut lost = Lost::default();
    for path in paths {
        let report = shell.session.guest()?.copy_out(Path::new(path), to)?;
        report.lost.iter().for_each(|line| lost.say(line));
        if report.more > 0 {
            lost.say(&format!("{} more lines like these", report.more));
        }
    }
    lost.end()
}

fn tar_out(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    archive(shell, call, "tar")
}

fn cpio_out(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    archive(shell, call, "cpio")
}

fn archive(shell: &Shell, call: &Call<'_>, format: &str) -> Done {
    let (directory, output) = (call.path(0), call.path(1));
    if output == Path::new("-") {
        bail!("-: an archive is written to a file; a FIFO will do");
    }
    shell.session.archive(directory, output, format)?.notes.iter().for_each(complain);
    Ok(())
}

impl Shell {
    /// Reads a file, piece by piece, until `take` returns false. An error of `take` is told as it is.
    pub fn read(&self, path: &Path, take: &mut dyn FnMut(&[u8]) -> io::Result<bool>) -> Done {
        self.read_pieces(path, &mut |piece| match piece {
            Piece::Data(bytes) => take(&bytes),
            Piece::Hole(length) => {
                for zeros in zeros(length) {
                    self.check()?;
                    if !take(zeros)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        })
    }

    /// The same, with its holes.
    fn read_pieces(&self, path: &Path, take: &mut dyn FnMut(Piece) -> io::Result<bool>) -> Done {
        let mut failed = None;
        self.session.guest()?.read_pieces(path, |piece| {
            let taken = self.check().and_then(|()| take(piece));
            Ok(taken.unwrap_or_else(|error| {
                failed = Some(error);
                false
            }))
        })?;
        failed.map_or(Ok(()), |error| Err(anyhow::Error::new(error).context(shown(path))))
    }
}
