//! Members of a tar archive, one after the other, as dpkg-deb writes them: GNU's format, or POSIX's without extended headers.
//!
//! The archives come from packages whose signatures apt has checked. They are nevertheless read with checks, since a damaged one
//! must be an error.

use std::io::{self, Read, Write};

/// A header, and what content is padded to.
pub(super) const BLOCK: usize = 512;

/// The longest name that is read, in bytes: Linux's `PATH_MAX`.
const NAME_MAX: u64 = 4096;

/// Fields of a header (GNU tar's `struct posix_header`): offset and length.
const NAME: (usize, usize) = (0, 100);
const MODE: (usize, usize) = (100, 8);
const UID: (usize, usize) = (108, 8);
const GID: (usize, usize) = (116, 8);
const SIZE: (usize, usize) = (124, 12);
const TIME: (usize, usize) = (136, 12);
const CHECKSUM: (usize, usize) = (148, 8);
const KIND: usize = 156;
const LINK: (usize, usize) = (157, 100);
const MAGIC: (usize, usize) = (257, 8);
const PREFIX: (usize, usize) = (345, 155);

/// One member, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    header: [u8; BLOCK],
    /// Its name, as the archive has it, without `./` before and `/` after it; empty for the root.
    pub name: Vec<u8>,
    /// What it links to, for links.
    pub link: Vec<u8>,
    /// Bytes of content that follow.
    pub size: u64,
}

impl Member {
    /// A new file, of root and with this time.
    pub fn file(name: &[u8], mode: u32, size: u64, time: u64) -> Member {
        Member::new(b'0', name, b"", mode, size, time)
    }

    /// A new symbolic link.
    pub fn symlink(name: &[u8], target: &[u8], time: u64) -> Member {
        Member::new(b'2', name, target, 0o777, 0, time)
    }

    /// A new directory.
    pub fn directory(name: &[u8], mode: u32, time: u64) -> Member {
        Member::new(b'5', name, b"", mode, 0, time)
    }

    fn new(kind: u8, name: &[u8], link: &[u8], mode: u32, size: u64, time: u64) -> Member {
        let mut header = [0; BLOCK];
        header[KIND] = kind;
        put(&mut header, MAGIC, b"ustar  \0");
        for (field, value) in [(MODE, u64::from(mode)), (UID, 0), (GID, 0), (TIME, time)] {
            put_number(&mut header, field, value);
        }
        Member { header, name: name.to_owned(), link: link.to_owned(), size }
    }

    /// As `self`, with other names.
    pub fn renamed(&self, name: Vec<u8>, link: Vec<u8>) -> Member {
        Member { header: self.header, name, link, size: self.size }
    }

    /// Its type, as the header has it.
    pub fn kind(&self) -> u8 {
        self.header[KIND]
    }

    /// Whether it is an ordinary file.
    pub fn is_file(&self) -> bool {
        matches!(self.kind(), b'0' | 0)
    }

    /// Its time, in seconds since 1970.
    pub fn time(&self) -> u64 {
        number(&self.header, TIME).unwrap_or(0)
    }

    /// Writes the header; names that are too long for it come before, as GNU's tar has it.
    pub fn write_header(&self, to: &mut dyn Write) -> io::Result<()> {
        let mut name = [b"./", &self.name[..]].concat();
        if self.kind() == b'5' && !self.name.is_empty() {
            name.push(b'/');
        }
        let link = if self.kind() == b'1' { [b"./", &self.link[..]].concat() } else { self.link.clone() };
        for (kind, long, field) in [(b'K', &link, LINK), (b'L', &name, NAME)] {
            if long.len() > field.1 {
                let length = long.len() as u64 + 1;
                let mut before = Member::new(kind, b"", b"", 0, length, 0).header;
                put(&mut before, NAME, b"././@LongLink");
                finish(&mut before, length);
                to.write_all(&before)?;
                to.write_all(&[long.as_slice(), b"\0"].concat())?;
                pad(length, to)?;
            }
        }
        let mut header = self.header;
        let is_posix = header.get(MAGIC.0..MAGIC.0 + 6) == Some(b"ustar\0".as_slice());
        if is_posix {
            put(&mut header, PREFIX, b"");
        }
        put(&mut header, NAME, &name);
        put(&mut header, LINK, &link);
        finish(&mut header, self.size);
        to.write_all(&header)
    }
}

/// Reads an archive, and gives each member with its content to `take`, which need not read all of it.
///
/// # Errors
/// It is no such archive, or `take` fails.
pub(super) fn each(
    from: &mut dyn Read,
    mut take: impl FnMut(Member, &mut dyn Read) -> io::Result<()>,
) -> io::Result<()> {
    let (mut long_name, mut long_link) = (None, None);
    loop {
        let mut header = [0; BLOCK];
        from.read_exact(&mut header)?;
        if header.iter().all(|byte| *byte == 0) {
            // The end; what follows are zeros.
            return io::copy(from, &mut io::sink()).map(drop);
        }
        if number(&header, CHECKSUM) != Some(checksum(&header)) {
            return Err(damaged("a header's checksum is wrong"));
        }
        let size = number(&header, SIZE).ok_or_else(|| damaged("a member's size is no number"))?;
        let kind = header[KIND];
        // Of other members the size means nothing.
        let size = if matches!(kind, b'0' | 0 | b'L' | b'K' | b'x' | b'g') { size } else { 0 };
        let mut content = from.take(size);
        match kind {
            b'L' | b'K' => {
                if size > NAME_MAX {
                    return Err(damaged("a name is too long"));
                }
                let mut name = Vec::new();
                content.read_to_end(&mut name)?;
                name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
                *(if kind == b'L' { &mut long_name } else { &mut long_link }) = Some(name);
            }
            b'0' | 0 | b'1'..=b'6' => {
                let name = long_name.take().unwrap_or_else(|| short_name(&header));
                let link = long_link.take().unwrap_or_else(|| text(&header, LINK).to_owned());
                let link = if kind == b'1' { plain(&link).to_owned() } else { link };
                take(Member { header, name: plain(&name).to_owned(), link, size }, &mut content)?;
            }
            _ => return Err(damaged("a member is of a type that no package has")),
        }
        io::copy(&mut content, &mut io::sink())?;
        if content.limit() > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let padding = size.next_multiple_of(BLOCK as u64) - size;
        let read = io::copy(&mut from.take(padding), &mut io::sink())?;
        if read < padding {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Fills up the last block of content of `size` bytes.
pub(super) fn pad(size: u64, to: &mut dyn Write) -> io::Result<()> {
    let padding = (BLOCK - (size % BLOCK as u64) as usize) % BLOCK;
    to.write_all(&[0; BLOCK][..padding])
}

/// Without `./` before and `/` after it.
fn plain(name: &[u8]) -> &[u8] {
    let name = name.strip_prefix(b".").filter(|rest| rest.is_empty() || rest.starts_with(b"/")).unwrap_or(name);
    let start = name.iter().position(|byte| *byte != b'/').unwrap_or(name.len());
    let end = name.iter().rposition(|byte| *byte != b'/').map_or(start, |last| last + 1);
    name.get(start..end).unwrap_or_default()
}

fn short_name(header: &[u8; BLOCK]) -> Vec<u8> {
    let is_posix = header.get(MAGIC.0..MAGIC.0 + 6) == Some(b"ustar\0".as_slice());
    match text(header, PREFIX) {
        prefix if is_posix && !prefix.is_empty() => [prefix, b"/", text(header, NAME)].concat(),
        _ => text(header, NAME).to_owned(),
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// A field's text, up to its NUL.
fn text(header: &[u8; BLOCK], (offset, length): (usize, usize)) -> &[u8] {
    let field = header.get(offset..offset + length).unwrap_or_default();
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    field.get(..end).unwrap_or_default()
}

/// A field's octal number.
fn number(header: &[u8; BLOCK], field: (usize, usize)) -> Option<u64> {
    let digits = std::str::from_utf8(text(header, field)).ok()?.trim();
    u64::from_str_radix(digits, 8).ok()
}

fn put(header: &mut [u8; BLOCK], (offset, length): (usize, usize), bytes: &[u8]) {
    if let Some(field) = header.get_mut(offset..offset + length) {
        field.fill(0);
        field.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    }
}

fn put_number(header: &mut [u8; BLOCK], field: (usize, usize), value: u64) {
    let digits = format!("{value:0width$o}", width = field.1 - 1);
    put(header, field, digits.as_bytes());
}

fn finish(header: &mut [u8; BLOCK], size: u64) {
    put_number(header, SIZE, size);
    let digits = format!("{:06o}\0 ", checksum(header));
    put(header, CHECKSUM, digits.as_bytes());
}

/// The sum of the header's bytes, with blanks in the place of the sum.
fn checksum(header: &[u8; BLOCK]) -> u64 {
    let bytes = header.iter().enumerate();
    bytes
        .map(|(at, byte)| if (CHECKSUM.0..CHECKSUM.0 + CHECKSUM.1).contains(&at) { 32 } else { u64::from(*byte) })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(members: &[(Member, &[u8])]) -> Vec<u8> {
        let mut archive = Vec::new();
        for (member, content) in members {
            member.write_header(&mut archive).unwrap();
            archive.write_all(content).unwrap();
            pad(content.len() as u64, &mut archive).unwrap();
        }
        archive.extend([0; 2 * BLOCK]);
        archive
    }

    /// Name, link and content.
    type Found = (Vec<u8>, Vec<u8>, Vec<u8>);

    fn read(archive: &[u8]) -> io::Result<Vec<Found>> {
        let mut found = Vec::new();
        each(&mut &archive[..], |member, content| {
            let mut bytes = Vec::new();
            content.read_to_end(&mut bytes)?;
            found.push((member.name, member.link, bytes));
            Ok(())
        })?;
        Ok(found)
    }

    #[test]
    fn what_is_written_is_read_again() {
        let long = [b'x'; 300];
        let members = [
            (Member::directory(b"", 0o755, 1), &b""[..]),
            (Member::directory(b"usr", 0o755, 1), b""),
            (Member::file(b"usr/file", 0o644, 5, 7), b"hello"),
            (Member::symlink(b"bin", b"usr/bin", 7), b""),
            (Member::file(&long, 0o644, 512, 7), &[b'a'; 512]),
            (Member::symlink(b"link", &long, 7), b""),
        ];
        let archive = written(&members);
        let found = read(&archive).unwrap();
        let expected: Vec<_> = members
            .iter()
            .map(|(member, content)| (member.name.clone(), member.link.clone(), content.to_vec()))
            .collect();
        assert_eq!(found, expected);
        // GNU tar reads it too.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &archive).unwrap();
        let listing = std::process::Command::new("tar").arg("-tf").arg(file.path()).output().unwrap();
        let listing = String::from_utf8(listing.stdout).unwrap();
        assert_eq!(listing.lines().take(3).collect::<Vec<_>>(), ["./", "./usr/", "./usr/file"]);
        assert_eq!(listing.lines().count(), members.len());
    }

    #[test]
    fn damage_is_an_error_and_no_panic() {
        let archive =
            written(&[(Member::file(b"file", 0o644, 5, 7), b"hello"), (Member::symlink(b"l", &[b'y'; 200], 7), b"")]);
        for end in 0..archive.len() - 2 * BLOCK {
            assert!(read(&archive[..end]).is_err(), "{end}");
        }
        for at in 0..archive.len() {
            let mut broken = archive.clone();
            broken[at] ^= 0x15;
            let _ = read(&broken);
        }
        let mut huge = Member::file(b"file", 0o644, 0o77777777777, 7).header;
        finish(&mut huge, 0o77777777777);
        assert!(read(&huge).is_err());
    }
}
