//! Descriptors: lines of text, in a file of their own or in a sparse extent.

use inarch_block::Backing;

use super::{SECTOR, refused};
use crate::container::{Container, ContainerError};

/// The longest descriptor that is read. Those of real disks have a line for every 2 GiB at most.
pub(super) const LONGEST: u64 = 64 << 10;

/// A descriptor's lines.
pub(super) struct Descriptor {
    text: Vec<u8>,
}

/// A part of a disk.
pub(super) struct Extent {
    /// Bytes.
    pub(super) length: u64,
    pub(super) kind: ExtentKind,
}

/// Where an extent is.
pub(super) enum ExtentKind {
    Zeros,
    /// As it is in a file, from that byte on.
    Flat {
        name: Vec<u8>,
        offset: u64,
    },
    /// In a sparse extent of its own.
    Sparse {
        name: Vec<u8>,
    },
}

impl Descriptor {
    /// Reads the descriptor at `at`, up to the first NUL.
    pub(super) fn read(file: &dyn Backing, at: u64, length: u64) -> Result<Descriptor, ContainerError> {
        let mut text = Container::Vmdk.bytes(file, at, length.min(LONGEST), "the descriptor")?;
        text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
        Ok(Descriptor { text })
    }

    /// A file that is a descriptor.
    pub(super) fn of_file(file: &dyn Backing) -> Result<Descriptor, ContainerError> {
        if file.size() > LONGEST {
            return Err(refused(format!("a descriptor of {} bytes, where {LONGEST} is the most", file.size())));
        }
        Descriptor::read(file, 0, file.size())
    }

    fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii)
    }

    /// The value of a key, without quotes. The case of keys does not matter.
    pub(super) fn value(&self, key: &[u8]) -> Option<&[u8]> {
        self.lines().find_map(|line| {
            let at = line.iter().position(|byte| *byte == b'=')?;
            let is_key = line.get(..at)?.trim_ascii().eq_ignore_ascii_case(key);
            let value = line.get(at + 1..)?.trim_ascii();
            is_key.then(|| value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\"")).unwrap_or(value))
        })
    }

    /// The extents, in order.
    pub(super) fn extents(&self) -> Result<Vec<Extent>, ContainerError> {
        let of = |line: &&[u8]| {
            let word = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
            [&b"RW"[..], b"RDONLY", b"NOACCESS"].contains(&word)
        };
        let extents: Vec<Extent> = self.lines().filter(of).map(extent).collect::<Result<_, _>>()?;
        if extents.is_empty() {
            return Err(refused("the descriptor has no extents"));
        }
        Ok(extents)
    }
}

/// An extent: access, length in sectors, kind, and the file's name and where it begins there, in sectors.
fn extent(line: &[u8]) -> Result<Extent, ContainerError> {
    let fail = || refused(format!("the extent {} of its descriptor makes no sense", super::super::error::quoted(line)));
    let mut quotes = line.splitn(3, |byte| *byte == b'"');
    let (words, name, rest) = (quotes.next().unwrap_or_default(), quotes.next(), quotes.next().unwrap_or_default());
    let mut words = words.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let (access, length, kind) = (words.next(), words.next(), words.next().unwrap_or_default());
    let length = length.and_then(sectors).ok_or_else(fail)?;
    let name = name.map(<[u8]>::to_vec).ok_or_else(fail);
    let offset = rest.trim_ascii();
    let offset = if offset.is_empty() { Some(0) } else { sectors(offset) };
    let kind = match kind {
        _ if access == Some(b"NOACCESS") => return Err(refused("a part of the disk cannot be accessed (NOACCESS)")),
        b"ZERO" => ExtentKind::Zeros,
        b"FLAT" | b"VMFS" => ExtentKind::Flat { name: name?, offset: offset.ok_or_else(fail)? },
        b"SPARSE" => ExtentKind::Sparse { name: name? },
        other => {
            let other = super::super::error::quoted(other);
            return Err(refused(format!("an extent of kind {other}, where FLAT, VMFS, SPARSE and ZERO are read")));
        }
    };
    Ok(Extent { length, kind })
}

/// A number of sectors, in bytes.
fn sectors(word: &[u8]) -> Option<u64> {
    std::str::from_utf8(word).ok()?.parse::<u64>().ok()?.checked_mul(SECTOR)
}
