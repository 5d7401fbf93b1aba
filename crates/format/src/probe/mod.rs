//! Identifies a file by a few of its bytes: a supported source, or a known but unsupported format. So nothing is
//! mistaken for an archive without files.
//!
//! [`probe`] asks every reader of the registry ([`readers`]), then looks for unsupported formats. Their magic numbers
//! are in [`table`]; formats that need more than one number to recognise (the checksum of an old tar, a partition
//! table) are handled here.

mod table;

#[cfg(test)]
mod tests;

use std::io;

use inarch_block::{Backing, Cursor, read_backing};
use inarch_confine::Parsing;

use table::{Advice, Magic, OTHERS, Other, SOURCES};

use crate::registry::{Reader, readers};
use crate::tar;

/// How much something looks like what a reader reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Likeness {
    /// Not at all.
    No,
    /// It may be, unless it is something else that is known.
    Weak,
    /// It is.
    Sure,
}

impl Likeness {
    /// The likeness for a yes or no.
    pub(crate) fn certain(is_so: bool) -> Likeness {
        if is_so { Likeness::Sure } else { Likeness::No }
    }
}

/// The `N` bytes of a backing from byte `at`; none beyond its end.
pub(crate) fn bytes_at<const N: usize>(image: &dyn Backing, at: u64) -> io::Result<Option<[u8; N]>> {
    if at.checked_add(N as u64).is_none_or(|end| end > image.size()) {
        return Ok(None);
    }
    let mut bytes = [0; N];
    read_backing(image, at, &mut bytes)?;
    Ok(Some(bytes))
}

/// Bytes from the file's start that [`identify`] looks at: as far as the superblocks of Btrfs, UFS2 and GFS2.
pub const HEAD: usize = 0x11000;
/// Bytes from the file's end that it looks at.
pub const TAIL: usize = 512;

/// An archive or a disk image that can be a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A tar archive, plain.
    Tar,
    /// A tar archive compressed by gzip, zstd or xz. Nothing else that is compressed can be a source.
    CompressedTar,
    /// A file system, with its reader.
    Volume(&'static Reader),
}

/// What [`identify`] finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A source.
    Source(FileKind),
    /// Something else. The text follows the file's name: what it is, and what to do.
    Other(String),
    /// Zeros, as far as one looked: an archive without files, or a disk with nothing at its start.
    Zeros,
    /// Nothing that is known.
    Unknown,
}

/// Identifies the content of a backing by a few bytes.
pub fn probe(_: Parsing, backing: &dyn Backing) -> io::Result<Found> {
    let mut head = vec![0; backing.size().min(HEAD as u64) as usize];
    read_backing(backing, 0, &mut head)?;
    let mut tail = vec![0; backing.size().min(TAIL as u64) as usize];
    read_backing(backing, backing.size() - tail.len() as u64, &mut tail)?;
    Ok(tell(&head, &tail, likeliest(backing)?))
}

/// The text of [`Found::Other`] for a disk image in a container that QEMU reads, by its magic number alone: whatever its content looks like at
/// places where a raw disk has its partition table. `None` if it is none.
pub fn container(_: Parsing, backing: &dyn Backing) -> io::Result<Option<String>> {
    let mut head = vec![0; backing.size().min(HEAD as u64) as usize];
    read_backing(backing, 0, &mut head)?;
    let mut tail = vec![0; backing.size().min(TAIL as u64) as usize];
    read_backing(backing, backing.size() - tail.len() as u64, &mut tail)?;
    let is_in = |other: &&table::Other, bytes: &[u8]| {
        other.is_container() && other.magics.iter().any(|magic| at(bytes, magic.0, magic.1.len()) == Some(magic.1))
    };
    let found = OTHERS.iter().find(|other| is_in(other, &head));
    let found = found.or_else(|| table::AT_THE_END.iter().find(|other| is_in(other, &tail)));
    Ok(found.map(table::Other::text))
}

/// What a file is, by its first [`HEAD`] bytes and its last [`TAIL`], or all that it has if it has fewer.
pub fn identify(_: Parsing, head: &[u8], tail: &[u8]) -> Found {
    told(head, tail)
}

fn told(head: &[u8], tail: &[u8]) -> Found {
    // Memory does not fail to be read.
    let likeliest = likeliest(&Head(head)).unwrap_or((Likeness::No, None));
    tell(head, tail, likeliest)
}

/// The first bytes of something.
struct Head<'a>(&'a [u8]);

impl Backing for Head<'_> {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).ok_or(io::ErrorKind::UnexpectedEof)?;
        let bytes = self.0.get(offset as usize..end as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from(bytes);
        Ok(())
    }
}

/// The reader with the greatest likeness; of several, the first.
fn likeliest(backing: &dyn Backing) -> io::Result<(Likeness, Option<&'static Reader>)> {
    let mut weak = (Likeness::No, None);
    for reader in readers() {
        match (reader.probe)(backing)? {
            Likeness::Sure => return Ok((Likeness::Sure, Some(reader))),
            Likeness::Weak if weak.1.is_none() => weak = (Likeness::Weak, Some(reader)),
            _ => {}
        }
    }
    Ok(weak)
}

fn tell(head: &[u8], tail: &[u8], likeliest: (Likeness, Option<&'static Reader>)) -> Found {
    let has = |magic: Magic| at(head, magic.0, magic.1.len()) == Some(magic.1);
    if let Some((_, kind)) = SOURCES.iter().find(|(magic, _)| has(*magic)) {
        return Found::Source(*kind);
    }
    if let (Likeness::Sure, Some(reader)) = likeliest {
        return Found::Source(FileKind::Volume(reader));
    }
    if head.first_chunk().is_some_and(tar::is_header) {
        return Found::Source(FileKind::Tar);
    }
    let ends_with = |magic: Magic| at(tail, magic.0, magic.1.len()) == Some(magic.1);
    let other = OTHERS.iter().find(|other| other.magics.iter().any(|magic| has(*magic)));
    let other = other.or_else(|| table::AT_THE_END.iter().find(|other| other.magics.iter().any(|m| ends_with(*m))));
    if let Some(other) = other {
        return Found::Other(other.text());
    }
    if let (Likeness::Weak, Some(reader)) = likeliest {
        return Found::Source(FileKind::Volume(reader));
    }
    match boot_sector(head) {
        Some(other) => Found::Other(other.text()),
        None if head.iter().all(|byte| *byte == 0) => Found::Zeros,
        None => Found::Unknown,
    }
}

/// The message for bytes that were taken for a tar archive but are none; it follows "it".
pub(crate) fn mistaken_for_a_tar(head: &[u8]) -> Option<String> {
    match told(head, &[]) {
        Found::Other(text) => Some(text),
        Found::Source(FileKind::CompressedTar) => Some("is compressed twice; unpack it first".to_owned()),
        Found::Source(FileKind::Volume(reader)) => Some(Advice::Image.text(reader.title)),
        Found::Source(FileKind::Tar) | Found::Zeros | Found::Unknown => None,
    }
}

fn at(bytes: &[u8], from: usize, length: usize) -> Option<&[u8]> {
    bytes.get(from..from.checked_add(length)?)
}

/// The little-endian 32-bit number at `offset`.
fn number(bytes: &[u8], offset: usize) -> Option<u32> {
    at(bytes, offset, 4)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

/// Identifies a boot sector: a partition table, or a boot loader.
fn boot_sector(head: &[u8]) -> Option<&'static Other> {
    if at(head, 510, 2)? != [0x55, 0xaa] {
        return None;
    }
    Some(if has_partitions(head) { &table::MBR } else { &table::LOADER })
}

/// Whether an MBR's four entries (UEFI specification 2.10, section 5.2.1) make sense, and one of them is used.
pub(crate) fn has_partitions(head: &[u8]) -> bool {
    let mut used = false;
    for entry in 0..4 {
        let start = 446 + 16 * entry;
        let (Some(flag), Some(kind)) = (head.get(start), head.get(start + 4)) else { return false };
        if !matches!(flag, 0 | 0x80) {
            return false;
        }
        let sectors = number(head, start + 12).unwrap_or_default();
        used |= *kind != 0 && sectors != 0;
    }
    used
}
