//! Writes the headers of one member.

use inarch_tree::{DataRange, FileType, InodeId, Timestamp, Tree};

use crate::tar::spec::{BLOCK, acl, number, pax};

/// The largest numbers for fields of 8 and 12 bytes: octal digits before a NUL.
const SHORT_MAX: u64 = 0o7777777;
const LONG_MAX: u64 = 0o77777777777;

/// The headers of `inode` with the name `path`: an extended one if needed, and its own. If `link` is an earlier name of
/// the inode, this one is a hard link to it.
pub(super) fn header(tree: &Tree, inode: InodeId, path: &[u8], link: Option<&[u8]>) -> Vec<u8> {
    let attributes = tree.inode(inode);
    let file_type = attributes.file_type();
    let sparse = holes(tree, inode).filter(|_| link.is_none());
    let target = link.unwrap_or_else(|| tree.symlink_target(inode));
    let size = match (link, file_type, sparse) {
        (None, FileType::Regular, None) => attributes.size(),
        (None, FileType::Regular, Some(ranges)) => stored_bytes(ranges, attributes.size()),
        _ => 0,
    };
    let name = if sparse.is_some() { beside(path, b"GNUSparseFile.0") } else { path.to_owned() };
    let mut records = Records::default();
    records.names(path, target, sparse.is_none());
    records.number(b"size", size, LONG_MAX);
    records.number(b"uid", attributes.uid().into(), SHORT_MAX);
    records.number(b"gid", attributes.gid().into(), SHORT_MAX);
    let (major, minor) = attributes.device();
    records.number(b"SCHILY.devmajor", major.into(), SHORT_MAX);
    records.number(b"SCHILY.devminor", minor.into(), SHORT_MAX);
    if link.is_none() {
        records.time(attributes.mtime());
        records.attributes(tree, inode);
    }
    if sparse.is_some() {
        records.add(b"GNU.sparse.major", b"1");
        records.add(b"GNU.sparse.minor", b"0");
        records.add(b"GNU.sparse.name", path);
        records.add(b"GNU.sparse.realsize", attributes.size().to_string().as_bytes());
    }
    let mut own = Block::new(&name, type_flag(file_type, link.is_some()));
    own.octal(100, 8, u64::from(attributes.mode() & 0o7777), SHORT_MAX);
    own.octal(108, 8, attributes.uid().into(), SHORT_MAX);
    own.octal(116, 8, attributes.gid().into(), SHORT_MAX);
    own.octal(124, 12, size, LONG_MAX);
    own.octal(136, 12, u64::try_from(attributes.mtime().seconds).unwrap_or(0), LONG_MAX);
    own.text(157, 100, target);
    own.octal(329, 8, major.into(), SHORT_MAX);
    own.octal(337, 8, minor.into(), SHORT_MAX);
    let mut out = Vec::new();
    if !records.bytes.is_empty() {
        out.extend_from_slice(&extended_header(path, attributes.mtime(), &records.bytes));
    }
    out.extend_from_slice(&own.finish());
    out
}

/// The parts of a regular file with holes that hold data.
pub(super) fn holes(tree: &Tree, inode: InodeId) -> Option<&[DataRange]> {
    let size = tree.inode(inode).size();
    let stored = |ranges: &&[DataRange]| ranges.iter().map(|range| range.length).sum::<u64>();
    tree.sparse_ranges(inode).filter(|ranges| stored(ranges) < size)
}

/// The map before a sparse file's data: the number of parts, then the position and length of each, one number on each
/// line, in whole blocks. An empty part marks the end of a file that ends with a hole.
pub(super) fn sparse_map(ranges: &[DataRange], size: u64) -> Vec<u8> {
    let end = DataRange { offset: size, length: 0 };
    let is_open = ranges.last().is_none_or(|last| last.offset + last.length < size);
    let mut map = format!("{}\n", ranges.len() + usize::from(is_open));
    for range in ranges.iter().chain(is_open.then_some(&end)) {
        map.push_str(&format!("{}\n{}\n", range.offset, range.length));
    }
    let mut map = map.into_bytes();
    map.resize(map.len().next_multiple_of(BLOCK), 0);
    map
}

fn stored_bytes(ranges: &[DataRange], size: u64) -> u64 {
    sparse_map(ranges, size).len() as u64 + ranges.iter().map(|range| range.length).sum::<u64>()
}

fn type_flag(file_type: FileType, is_link: bool) -> u8 {
    match file_type {
        _ if is_link => b'1',
        FileType::Symlink => b'2',
        FileType::CharDevice => b'3',
        FileType::BlockDevice => b'4',
        FileType::Directory => b'5',
        FileType::Fifo => b'6',
        FileType::Regular | FileType::Socket => b'0',
    }
}

/// The name of a header that belongs to a member: `DIRECTORY/between/NAME`.
fn beside(path: &[u8], between: &[u8]) -> Vec<u8> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let cut = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (directory, name) = path.split_at(cut);
    [directory, between, b"/", name].concat()
}

/// An extended header: its own header, the records, and padding of their last block.
fn extended_header(path: &[u8], mtime: Timestamp, records: &[u8]) -> Vec<u8> {
    let mut block = Block::new(&beside(path, b"PaxHeaders"), b'x');
    block.octal(100, 8, 0o644, SHORT_MAX);
    block.octal(108, 8, 0, SHORT_MAX);
    block.octal(116, 8, 0, SHORT_MAX);
    block.octal(124, 12, records.len() as u64, LONG_MAX);
    block.octal(136, 12, u64::try_from(mtime.seconds).unwrap_or(0), LONG_MAX);
    block.octal(329, 8, 0, SHORT_MAX);
    block.octal(337, 8, 0, SHORT_MAX);
    let mut out = block.finish().to_vec();
    out.extend_from_slice(records);
    out.resize(out.len().next_multiple_of(BLOCK), 0);
    out
}

/// The records of an extended header.
#[derive(Default)]
struct Records {
    bytes: Vec<u8>,
}

impl Records {
    fn add(&mut self, keyword: &[u8], value: &[u8]) {
        pax::write_record(&mut self.bytes, keyword, value);
    }

    /// Records the name (unless another record has it) and the target, if they do not fit the header or are not ASCII.
    fn names(&mut self, path: &[u8], target: &[u8], with_path: bool) {
        let is_foreign = |name: &[u8]| std::str::from_utf8(name).is_err();
        if is_foreign(path) || is_foreign(target) {
            self.add(b"hdrcharset", b"BINARY");
        }
        if with_path && (!path.is_ascii() || split_name(path).is_none()) {
            self.add(b"path", path);
        }
        if !target.is_ascii() || target.len() > 100 {
            self.add(b"linkpath", target);
        }
    }

    fn number(&mut self, keyword: &[u8], value: u64, max: u64) {
        if value > max {
            self.add(keyword, value.to_string().as_bytes());
        }
    }

    fn time(&mut self, mtime: Timestamp) {
        let fits = u64::try_from(mtime.seconds).is_ok_and(|seconds| seconds <= LONG_MAX);
        if mtime.nanoseconds > 0 || !fits {
            self.add(b"mtime", number::write_time(mtime).as_bytes());
        }
    }

    fn attributes(&mut self, tree: &Tree, inode: InodeId) {
        for xattr in tree.xattrs(tree.inode(inode).xattrs()) {
            let keyword: Option<&[u8]> = match &*xattr.name {
                b"system.posix_acl_access" => Some(b"SCHILY.acl.access"),
                b"system.posix_acl_default" => Some(b"SCHILY.acl.default"),
                _ => None,
            };
            match keyword.zip(acl::to_text(&xattr.value)) {
                Some((keyword, text)) => self.add(keyword, text.as_bytes()),
                None => {
                    let name = pax::encode_attribute(&xattr.name);
                    self.add(&[b"SCHILY.xattr.", &name[..]].concat(), &xattr.value);
                }
            }
        }
    }
}

/// A name as the two fields of a ustar header, prefix and name; `None` if it does not fit.
fn split_name(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.len() <= 100 {
        return Some((&[], path));
    }
    // The earliest slash that leaves at most 100 bytes: the shortest prefix.
    let from = path.len() - 101;
    let cut = from + path.get(from..path.len() - 1)?.iter().position(|byte| *byte == b'/')?;
    let (prefix, name) = (path.get(..cut)?, path.get(cut + 1..)?);
    (!prefix.is_empty() && prefix.len() <= 155).then_some((prefix, name))
}

/// A header block.
struct Block([u8; BLOCK]);

impl Block {
    fn new(name: &[u8], type_flag: u8) -> Block {
        let mut block = Block([0; BLOCK]);
        let (prefix, name) = split_name(name).unwrap_or((&[], name));
        block.text(0, 100, name);
        block.text(345, 155, prefix);
        block.text(148, 8, b"        ");
        block.text(156, 1, &[type_flag]);
        block.text(257, 8, b"ustar\x0000");
        block
    }

    /// Writes as much of `text` as the field holds.
    fn text(&mut self, at: usize, length: usize, text: &[u8]) {
        let count = text.len().min(length);
        if let (Some(field), Some(text)) = (self.0.get_mut(at..at + count), text.get(..count)) {
            field.copy_from_slice(text);
        }
    }

    /// Octal digits and a NUL; for a number that does not fit, 0, and a record has the number.
    fn octal(&mut self, at: usize, length: usize, value: u64, max: u64) {
        let value = if value > max { 0 } else { value };
        let digits = length - 1;
        self.text(at, digits, format!("{value:0digits$o}").as_bytes());
    }

    fn finish(mut self) -> [u8; BLOCK] {
        let sum: u64 = self.0.iter().map(|byte| u64::from(*byte)).sum();
        self.text(148, 8, format!("{sum:06o}\0 ").as_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_split_where_ustar_can_hold_them() {
        assert_eq!(split_name(b"./a"), Some((&b""[..], &b"./a"[..])));
        let long = format!("./{}/{}", "d".repeat(150), "n".repeat(100));
        let (prefix, name) = split_name(long.as_bytes()).unwrap();
        assert_eq!((prefix.len(), name.len()), (152, 100));
        let directory = format!("./{}/", "d".repeat(99));
        let (prefix, name) = split_name(directory.as_bytes()).unwrap();
        assert_eq!((prefix, name.len()), (&b"."[..], 100));
        for too_long in ["d".repeat(101), format!("./{}/n", "d".repeat(256)), format!("./{}", "n".repeat(101))] {
            assert_eq!(split_name(too_long.as_bytes()), None);
        }
        for length in 90..300 {
            let path = format!("./{}/{}/{}", "a".repeat(length / 3), "b".repeat(length / 3), "c".repeat(length / 3));
            if let Some((prefix, name)) = split_name(path.as_bytes()).filter(|(prefix, _)| !prefix.is_empty()) {
                assert_eq!([prefix, b"/", name].concat(), path.as_bytes());
                assert!(prefix.len() <= 155 && !name.is_empty() && name.len() <= 100);
            }
        }
    }

    #[test]
    fn maps_are_whole_blocks_and_end_with_the_file() {
        let range = |offset, length| DataRange { offset, length };
        let map = sparse_map(&[range(0, 10), range(4096, 4)], 4100);
        assert_eq!(map.len(), 512);
        assert!(map.starts_with(b"2\n0\n10\n4096\n4\n\0"));
        assert!(sparse_map(&[range(0, 10)], 100).starts_with(b"2\n0\n10\n100\n0\n\0"));
        assert!(sparse_map(&[], 100).starts_with(b"1\n100\n0\n\0"));
    }

    #[test]
    fn headers_that_belong_to_a_member_are_named_beside_it() {
        assert_eq!(beside(b"./a/b/", b"PaxHeaders"), b"./a/PaxHeaders/b");
        assert_eq!(beside(b"./", b"PaxHeaders"), b"PaxHeaders/.");
    }
}
