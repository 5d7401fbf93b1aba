//! [`Members`]: iterates over an archive's members, each with the combined content of its headers.

use std::sync::Arc;

use inarch_tree::{DataRange, Timestamp};

use super::extended::{Extended, MAX_NAMES, MAX_VALUES, StoredAttributes};
use super::sparse::{MapError, leading_map, old_map};
use super::window::Window;
use crate::tar::spec::header::{Dialect, Header};
use crate::tar::spec::{BLOCK, BLOCK_BYTES, pax};
use crate::{Damage, ReadError, notes};

/// The most bytes of an extended header: room for all attributes that an inode can have.
const MAX_EXTENDED: u64 = 16 << 20;

/// The most bytes of a long name; a usable path has at most 4095.
const MAX_NAME: u64 = 64 << 10;

/// The most bytes of attributes that an archive's members may have together, beyond twice the archive's size.
/// Otherwise a few attributes of a global header would make large sets for many members with attributes of their own.
const ATTRIBUTES_SLACK: u64 = 16 << 20;

/// The meaning of a type flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    Regular,
    Directory,
    Symlink,
    HardLink,
    CharDevice,
    BlockDevice,
    Fifo,
    /// A part of a file that starts on another volume.
    Continued,
}

/// A member of an archive.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) path: Vec<u8>,
    pub(super) kind: Type,
    /// Whether the type flag is known; unknown ones are regular files, as POSIX requires.
    pub(super) is_known: bool,
    pub(super) mode: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) mtime: Timestamp,
    pub(super) device: (u32, u32),
    /// The target of a hard link or symlink.
    pub(super) link: Vec<u8>,
    /// Bytes of a regular file, including holes.
    pub(super) size: u64,
    /// The position of its first stored byte.
    pub(super) at: u64,
    /// The parts of a sparse file.
    pub(super) sparse: Option<Vec<DataRange>>,
    pub(super) attributes: Arc<StoredAttributes>,
}

/// How often reading of a damaged archive is resumed, at most.
const MAX_GAPS: u32 = 10_000;

/// Reads members; see [`Members::next`].
pub(super) struct Members<'a> {
    window: Window<'a>,
    damage: Damage,
    /// How often it was resumed.
    gaps: u32,
    /// What was wrong, if damage is salvaged.
    pub(super) lost: Vec<String>,
    /// Whether there was a header.
    pub(super) any: bool,
    /// Whether a block of zeros marks its end.
    pub(super) is_ended: bool,
    /// The position of the next header.
    at: u64,
    /// What the global headers so far say.
    global: Extended,
    /// Bytes of attributes that may still come.
    budget: u64,
}

/// The headers of one member that precede its own.
#[derive(Default)]
struct Preceding {
    long_name: Option<Vec<u8>>,
    long_link: Option<Vec<u8>>,
    records: Vec<u8>,
}

impl<'a> Members<'a> {
    pub(super) fn new(window: Window<'a>, damage: Damage) -> Members<'a> {
        let budget = window.size().saturating_mul(2).saturating_add(ATTRIBUTES_SLACK);
        let global = Extended::default();
        Members { window, damage, gaps: 0, lost: Vec::new(), any: false, is_ended: false, at: 0, global, budget }
    }

    /// The next member. `None` at the archive's end: a block of zeros followed only by zeros, or the end of its bytes.
    ///
    /// If damage is salvaged, an error loses the member in which it is; reading resumes at the next valid header.
    pub(super) fn next(&mut self) -> Result<Option<Member>, ReadError> {
        loop {
            let at = self.at;
            let reason = match self.read_next() {
                Err(ReadError::Format { reason, .. }) => self.damage.or_refuse("tar", reason)?,
                other => return other,
            };
            self.gaps += 1;
            self.lost.push(reason);
            let found = if self.gaps < MAX_GAPS { self.find_header(self.at.max(at + BLOCK_BYTES))? } else { None };
            let Some(next) = found else {
                self.is_ended = true;
                return Ok(None);
            };
            self.at = next;
        }
    }

    /// The position of the first header from byte `at`.
    fn find_header(&mut self, mut at: u64) -> Result<Option<u64>, ReadError> {
        while let Some(block) = self.window.block(at)? {
            if Header(block).is_valid() {
                return Ok(Some(at));
            }
            at += BLOCK_BYTES;
        }
        Ok(None)
    }

    /// The position of the first byte that is not zero, from byte `at`.
    fn find_data(&mut self, mut at: u64) -> Result<Option<u64>, ReadError> {
        let is_set = |byte: &u8| *byte != 0;
        while let Some(block) = self.window.block(at)? {
            if let Some(within) = block.iter().position(is_set) {
                return Ok(Some(at + within as u64));
            }
            at += BLOCK_BYTES;
        }
        let left = self.window.size().saturating_sub(at);
        let rest = self.window.read(at, left as usize)?.unwrap_or_default();
        Ok(rest.iter().position(is_set).map(|within| at + within as u64))
    }

    fn read_next(&mut self) -> Result<Option<Member>, ReadError> {
        let mut preceding = Preceding::default();
        loop {
            let at = self.at;
            let Some(block) = self.header()? else { return Ok(None) };
            let header = Header(&block);
            let size = self.size_field(header.size(), "size")?;
            match header.type_flag() {
                b'L' => preceding.long_name = Some(self.long_name(size)?),
                b'K' => preceding.long_link = Some(self.long_name(size)?),
                b'x' | b'X' => preceding.records = self.extension(size, MAX_EXTENDED)?,
                b'g' => {
                    let records = self.extension(size, MAX_EXTENDED)?;
                    self.set_global(&records)?;
                }
                // A volume label, long names as GNU tar wrote them in 1990, Solaris' own ACLs.
                b'V' | b'N' | b'A' => self.skip(at, size)?,
                _ => return self.member(header, preceding).map(Some),
            }
        }
    }

    /// A copy of the next header block; `None` at the end.
    fn header(&mut self) -> Result<Option<[u8; BLOCK]>, ReadError> {
        let at = self.at;
        let Some(block) = self.window.block(at)?.copied() else {
            let left = self.window.size().saturating_sub(at);
            let rest = self.window.read(at, left as usize)?.unwrap_or_default();
            return match rest.iter().all(|byte| *byte == 0) {
                true => Ok(None),
                false => Err(malformed(format!("byte {at}: it ends in the middle of a header"))),
            };
        };
        let header = Header(&block);
        if header.is_zero() {
            return self.end(at);
        }
        if !header.is_valid() {
            let reason = match at {
                0 => "it does not start as a tar archive does".to_owned(),
                at => format!("byte {at}: the header's checksum is wrong; the archive is damaged"),
            };
            return Err(malformed(reason));
        }
        self.at = at + BLOCK_BYTES;
        self.any = true;
        Ok(Some(block))
    }

    /// Handles a block of zeros, which ends an archive if nothing follows.
    fn end(&mut self, at: u64) -> Result<Option<[u8; BLOCK]>, ReadError> {
        let Some(data) = self.find_data(at)? else {
            self.is_ended = true;
            return Ok(None);
        };
        // The next data is beyond the zeros.
        self.at = data / BLOCK_BYTES * BLOCK_BYTES;
        Err(malformed(match at {
            0 => format!("it begins with {data} zeros, and is not a tar archive"),
            _ => format!(
                "byte {at}: here the archive ends by a block of zeros, and there is more at byte {data}: a part of it was \
                 lost, or another archive was appended"
            ),
        }))
    }

    fn size_field(&self, value: Option<i64>, field: &str) -> Result<u64, ReadError> {
        value.and_then(|value| u64::try_from(value).ok()).ok_or_else(|| self.bad_field(field))
    }

    fn bad_field(&self, field: &str) -> ReadError {
        malformed(format!("byte {}: the header's {field} makes no sense", self.at.saturating_sub(BLOCK_BYTES)))
    }

    /// Skips `size` bytes of a member whose header is at byte `at`.
    fn skip(&mut self, at: u64, size: u64) -> Result<(), ReadError> {
        let end = self.at.checked_add(size).filter(|end| *end <= self.window.size());
        let Some(end) = end else {
            let whole = self.window.size();
            // The rest belongs to this member, whatever it looks like.
            self.at = whole;
            return Err(malformed(format!(
                "it is cut off: the member at byte {at} has {size} bytes, the archive only {whole}"
            )));
        };
        // The last member's last block may lack its padding.
        self.at = end.next_multiple_of(BLOCK_BYTES);
        Ok(())
    }

    fn extension(&mut self, size: u64, limit: u64) -> Result<Vec<u8>, ReadError> {
        let (header, data) = (self.at - BLOCK_BYTES, self.at);
        if size > limit {
            return Err(malformed(format!("byte {header}: an extended header of {size} bytes; {limit} are read")));
        }
        self.skip(header, size)?;
        Ok(self.window.read(data, size as usize)?.unwrap_or_default())
    }

    fn long_name(&mut self, size: u64) -> Result<Vec<u8>, ReadError> {
        let mut name = self.extension(size, MAX_NAME)?;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        name.truncate(end);
        Ok(name)
    }

    fn set_global(&mut self, records: &[u8]) -> Result<(), ReadError> {
        let mut global = self.global.clone();
        for record in pax::Records(records) {
            let (keyword, value) = record.map_err(|_| self.bad_field("extended record"))?;
            global.apply_global(keyword, value).map_err(|keyword| self.bad_field(keyword))?;
        }
        // Each member has a copy of the texts.
        if global.longest_text() as u64 > MAX_NAME {
            return Err(self.bad_field("global extended record"));
        }
        self.check_attributes(&global, "the global header")?;
        self.global = global;
        Ok(())
    }

    fn extended(&self, records: &[u8]) -> Result<Extended, ReadError> {
        let mut extended = self.global.clone();
        for record in pax::Records(records) {
            let (keyword, value) = record.map_err(|_| self.bad_field("extended record"))?;
            extended.apply(keyword, value).map_err(|keyword| self.bad_field(keyword))?;
        }
        Ok(extended)
    }

    /// Refuses attributes that no file can have, and too many of all files together. What is shared is not counted again.
    fn check_attributes(&mut self, extended: &Extended, whose: &str) -> Result<(), ReadError> {
        let refuse = |reason: String| Err(malformed(format!("{whose}: {reason}")));
        if extended.exceeds {
            return refuse(format!(
                "more extended attributes than a file can have, which are {} KiB of names and {} KiB of values",
                MAX_NAMES >> 10,
                MAX_VALUES >> 10
            ));
        }
        if Arc::ptr_eq(&extended.attributes, &self.global.attributes) {
            return Ok(());
        }
        match self.budget.checked_sub(extended.attributes.bytes()) {
            Some(left) => self.budget = left,
            None => {
                return refuse(
                    "the extended attributes up to here are too large for an archive of its size".to_owned(),
                );
            }
        }
        Ok(())
    }

    fn member(&mut self, header: Header<'_>, preceding: Preceding) -> Result<Member, ReadError> {
        let header_at = self.at - BLOCK_BYTES;
        let mut extended = self.extended(&preceding.records)?;
        let path = extended.sparse.name.take().or(extended.path.take()).or(preceding.long_name);
        let path = path.unwrap_or_else(|| header.name());
        let link = extended.link_path.take().or(preceding.long_link).unwrap_or_else(|| header.link_name().to_owned());
        let (kind, is_known) = kind(header.type_flag(), path.last() == Some(&b'/'));
        let content = self.content(kind, header, &mut extended)?;
        self.skip(header_at, content.stored)?;
        self.check_attributes(&extended, &notes::shown(&path))?;
        let device = match kind {
            Type::CharDevice | Type::BlockDevice => self.device(header, &extended)?,
            _ => (0, 0),
        };
        let mtime = match (extended.mtime, header.mtime()) {
            (Some(time), _) => time,
            (None, Some(seconds)) => Timestamp { seconds, nanoseconds: 0 },
            (None, None) => return Err(self.bad_field("mtime")),
        };
        Ok(Member {
            path,
            kind,
            is_known,
            mode: header.mode().ok_or_else(|| self.bad_field("mode"))? as u32 & 0o7777,
            uid: self.id(extended.uid, header.uid(), "uid")?,
            gid: self.id(extended.gid, header.gid(), "gid")?,
            mtime,
            device,
            link,
            size: content.size,
            at: content.at,
            sparse: content.sparse,
            attributes: extended.attributes,
        })
    }

    /// The position of the content of the member whose header was just read.
    fn content(&mut self, kind: Type, header: Header<'_>, extended: &mut Extended) -> Result<Content, ReadError> {
        let size = match extended.size {
            Some(size) => size,
            None => self.size_field(header.size(), "size")?,
        };
        let start = self.at;
        let plain = |stored| Content { stored, size, at: start, sparse: None };
        match (kind, header.type_flag()) {
            // The names in a directory at the time of an incremental archive of GNU tar.
            (Type::Directory, b'D') => return Ok(plain(size)),
            (Type::Regular | Type::Continued, _) => {}
            _ => return Ok(plain(if self.has_body(size)? { size } else { 0 })),
        }
        let records = std::mem::take(&mut extended.sparse);
        let (parts, at, real_size) = if header.type_flag() == b'S' && header.dialect() == Dialect::Gnu {
            let real_size = self.size_field(header.real_size(), "realsize")?;
            let (parts, at) = old_map(&mut self.window, header, start).map_err(|error| self.bad_map(error))?;
            (parts, at, real_size)
        } else if records.major == Some(1) {
            let (parts, at) = leading_map(&mut self.window, start, size).map_err(|error| self.bad_map(error))?;
            (parts, at, records.size.ok_or_else(|| self.bad_field("GNU.sparse.realsize"))?)
        } else if let Some(parts) = records.map {
            (parts, start, records.size.ok_or_else(|| self.bad_field("GNU.sparse.size"))?)
        } else {
            return Ok(plain(size));
        };
        // The blocks of GNU's old map do not count as content; the lines of the newest map do.
        let stored = if records.major == Some(1) { size } else { size.saturating_add(at - start) };
        let data: u64 = parts.iter().map(|part| part.length).sum();
        let end = parts.last().map_or(0, |part| part.offset + part.length);
        if data > stored.saturating_sub(at - start) || end > real_size || i64::try_from(real_size).is_err() {
            return Err(self.bad_map(MapError::Malformed));
        }
        Ok(Content { stored, size: real_size, at, sparse: Some(parts) })
    }

    /// Whether the size of a member that is not a regular file is the size of content after its header. For hard links
    /// POSIX says so since 2001, and said the opposite before; for directories the meaning was never settled. If there
    /// is no content, another header follows directly.
    fn has_body(&mut self, size: u64) -> Result<bool, ReadError> {
        if size == 0 {
            return Ok(false);
        }
        let next = self.window.block(self.at)?;
        Ok(next.is_some_and(|block| !Header(block).is_zero() && !Header(block).is_valid()))
    }

    fn bad_map(&self, error: MapError) -> ReadError {
        match error {
            MapError::Read(error) => error,
            MapError::Malformed => self.bad_field("map of a sparse file"),
            MapError::TooLarge => {
                let at = self.at - BLOCK_BYTES;
                malformed(format!("byte {at}: a sparse file with more parts than can be read"))
            }
        }
    }

    fn device(&self, header: Header<'_>, extended: &Extended) -> Result<(u32, u32), ReadError> {
        let number = |record: Option<u64>, field: Option<i64>| match record {
            Some(number) => u32::try_from(number).ok(),
            None => u32::try_from(field?).ok(),
        };
        let major = number(extended.device_major, header.device_major());
        let minor = number(extended.device_minor, header.device_minor());
        major.zip(minor).ok_or_else(|| self.bad_field("device number"))
    }

    /// An owner or group. Some writers store numbers beyond 2^31 as negative ones.
    fn id(&self, record: Option<u64>, field: Option<i64>, name: &str) -> Result<u32, ReadError> {
        let id = match record {
            Some(id) => u32::try_from(id).ok(),
            None => field.and_then(|id| u32::try_from(id).ok().or(i32::try_from(id).ok().map(|id| id as u32))),
        };
        id.ok_or_else(|| self.bad_field(name))
    }
}

/// The position of a member's content.
struct Content {
    /// Bytes after its header, without padding.
    stored: u64,
    size: u64,
    at: u64,
    sparse: Option<Vec<DataRange>>,
}

/// The meaning of a type flag, and whether it is known.
fn kind(flag: u8, ends_with_slash: bool) -> (Type, bool) {
    let kind = match flag {
        // v7 has no directories; a trailing slash marks them.
        0 | b'0' | b'7' if ends_with_slash => Type::Directory,
        0 | b'0' | b'7' | b'S' => Type::Regular,
        b'1' => Type::HardLink,
        b'2' => Type::Symlink,
        b'3' => Type::CharDevice,
        b'4' => Type::BlockDevice,
        b'5' | b'D' => Type::Directory,
        b'6' => Type::Fifo,
        b'M' => Type::Continued,
        _ => return (Type::Regular, false),
    };
    (kind, true)
}

fn malformed(reason: impl Into<String>) -> ReadError {
    ReadError::Format { format: "tar", reason: reason.into() }
}
