//! Encodes a tree as bytes for a later process, and decodes it. Kept runs store their host's tree in this form.
//!
//! | offset | what |
//! |---|---|
//! | 0 | `INARCHTR` |
//! | 8 | version, 32 bits little-endian |
//! | 12 | CRC-32C of all that follows, 32 bits little-endian |
//! | 16 | the sets of extended attributes but the empty one: their number, then of each the number of attributes, then of each its name and value |
//! | then | the root's attributes |
//! | then | for each directory with entries, in the order in which they were listed: its inode, the number of its entries, the entries |
//!
//! An entry is its name, followed by either the number of an inode that an earlier entry named, plus one, or by 0 and a
//! new inode. An inode is its attributes, followed by a symlink's target, or by the number of a regular file's data
//! ranges plus one (0 for a file without holes) and, for each, the gap before it and its length. Numbers are LEB128,
//! signed ones zigzag; byte strings follow their length. Inode numbers are those of the tree: the order of the entries
//! reproduces them.
//!
//! Decoding goes through [`Builder`], which checks every rule of a tree.

use crate::{Attributes, BuildError, Builder, DataRange, Entry, FileType, InodeId, Timestamp, Tree, Xattr, XattrSetId};

const MAGIC: [u8; 8] = *b"INARCHTR";
const VERSION: u32 = 1;
const HEADER: usize = 16;
/// The smallest entry: length and one byte of a name, and its inode.
const ENTRY_MIN: usize = 3;
const BEYOND: &str = "a number is too large";

/// Why bytes are not a tree.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum LoadError {
    /// They do not start with the magic number.
    #[error("it is not a stored tree: it does not start with the magic number")]
    NotATree,
    /// Written by another version of this program.
    #[error("it has format version {found}; this program knows version {VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// The checksum is wrong.
    #[error("it is damaged: its checksum is wrong")]
    Checksum,
    /// They end too early, or contain an impossible value.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// The tree that they describe is invalid.
    #[error("it is damaged: {0}")]
    Build(#[from] BuildError),
}

impl Tree {
    /// Encodes the tree for [`Tree::load`]. The same tree gives the same bytes.
    pub fn store(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER + self.inodes.len() * 40 + self.names.len());
        out.extend_from_slice(&[0; HEADER]);
        self.put_xattr_sets(&mut out);
        self.put_inode(&mut out, InodeId::ROOT);
        let mut seen = 1;
        for dir in self.listed_directories() {
            let entries = self.entries(dir);
            put(&mut out, dir.0.into());
            put(&mut out, entries.len() as u64);
            for entry in entries {
                self.put_entry(&mut out, &entry, &mut seen);
            }
        }
        let checksum = crc32c::crc32c(&out[HEADER..]);
        out[..8].copy_from_slice(&MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..HEADER].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// Decodes what [`Tree::store`] encoded, with the same inode ids. Any bytes are safe: the result is an error or a
    /// valid tree.
    pub fn load(bytes: &[u8]) -> Result<Tree, LoadError> {
        let (header, content) = bytes.split_first_chunk::<HEADER>().ok_or(LoadError::NotATree)?;
        let [magic @ .., v0, v1, v2, v3, c0, c1, c2, c3] = *header;
        if magic != MAGIC {
            return Err(LoadError::NotATree);
        }
        let found = u32::from_le_bytes([v0, v1, v2, v3]);
        if found != VERSION {
            return Err(LoadError::Version { found });
        }
        if crc32c::crc32c(content) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(LoadError::Checksum);
        }
        Reader { rest: content, sets: 1 }.tree()
    }

    /// The directories that have entries, in the order of their listings.
    fn listed_directories(&self) -> impl Iterator<Item = InodeId> {
        self.directories
            .iter()
            .filter(|dir| dir.count > 0)
            .filter_map(|dir| self.entries.get(dir.first as usize))
            .map(|entry| entry.parent)
    }

    fn put_xattr_sets(&self, out: &mut Vec<u8>) {
        let sets = self.xattr_sets.get(1..).unwrap_or_default();
        put(out, sets.len() as u64);
        for set in sets {
            put(out, set.len() as u64);
            for xattr in set.iter() {
                put_bytes(out, &xattr.name);
                put_bytes(out, &xattr.value);
            }
        }
    }

    /// `seen` inodes are in `out` already: those with smaller ids.
    fn put_entry(&self, out: &mut Vec<u8>, entry: &Entry<'_>, seen: &mut u32) {
        put_bytes(out, entry.name);
        if entry.inode.0 < *seen {
            put(out, u64::from(entry.inode.0) + 1);
            return;
        }
        *seen += 1;
        put(out, 0);
        self.put_inode(out, entry.inode);
        match self.inode(entry.inode).file_type() {
            FileType::Symlink => put_bytes(out, self.symlink_target(entry.inode)),
            FileType::Regular => self.put_ranges(out, entry.inode),
            _ => {}
        }
    }

    fn put_inode(&self, out: &mut Vec<u8>, id: InodeId) {
        let inode = self.inode(id);
        for number in [inode.mode(), inode.uid(), inode.gid()] {
            put(out, number.into());
        }
        put(out, inode.size_or_device);
        for time in [inode.mtime(), inode.ctime()] {
            put(out, zigzag(time.seconds));
            put(out, time.nanoseconds.into());
        }
        put(out, inode.source_ino());
        put(out, inode.xattrs().0.into());
    }

    fn put_ranges(&self, out: &mut Vec<u8>, id: InodeId) {
        let Some(ranges) = self.sparse_ranges(id) else { return put(out, 0) };
        put(out, ranges.len() as u64 + 1);
        let mut end = 0;
        for range in ranges {
            put(out, range.offset - end);
            put(out, range.length);
            end = range.offset + range.length;
        }
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Maps small numbers of either sign to small unsigned numbers.
fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

/// The bytes still to be decoded.
struct Reader<'a> {
    rest: &'a [u8],
    /// The number of attribute sets, including the empty one.
    sets: u32,
}

impl<'a> Reader<'a> {
    fn tree(mut self) -> Result<Tree, LoadError> {
        let sets = self.xattr_sets()?;
        self.sets = sets.len() as u32 + 1;
        let root = self.attributes()?;
        // A usual entry is longer. If most are shorter the tables grow.
        let entries = self.rest.len() / 32;
        let mut builder = Builder::with_capacity(&root, entries, entries * 12)?;
        for (set, id) in sets.into_iter().zip(1..) {
            if builder.intern_xattrs(set) != XattrSetId(id) {
                return Err(LoadError::Damaged("a set of extended attributes comes twice"));
            }
        }
        while !self.rest.is_empty() {
            let dir = self.number32()?;
            builder.list(InodeId(dir))?;
            for _ in 0..self.count(ENTRY_MIN)? {
                self.entry(&mut builder)?;
            }
        }
        Ok(builder.finish()?)
    }

    fn xattr_sets(&mut self) -> Result<Vec<Vec<Xattr>>, LoadError> {
        let count = self.count(1)?;
        (0..count).map(|_| self.xattr_set()).collect()
    }

    fn xattr_set(&mut self) -> Result<Vec<Xattr>, LoadError> {
        let count = self.count(2)?;
        (0..count).map(|_| Ok(Xattr { name: self.bytes()?.into(), value: self.bytes()?.into() })).collect()
    }

    fn entry(&mut self, builder: &mut Builder) -> Result<(), LoadError> {
        let name = self.bytes()?;
        let link = self.number()?;
        if let Some(inode) = link.checked_sub(1) {
            let inode = u32::try_from(inode).map_err(|_| LoadError::Damaged(BEYOND))?;
            return Ok(builder.link(name, InodeId(inode))?);
        }
        let attributes = self.attributes()?;
        let id = builder.add(name, &attributes)?;
        match FileType::from_mode(attributes.mode) {
            Some(FileType::Symlink) => builder.set_target(id, self.bytes()?)?,
            Some(FileType::Regular) => {
                if let Some(ranges) = self.ranges()? {
                    builder.set_sparse(id, &ranges)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn attributes(&mut self) -> Result<Attributes, LoadError> {
        let (mode, uid, gid) = (self.number32()?, self.number32()?, self.number32()?);
        let size_or_device = self.number()?;
        let (mtime, ctime) = (self.time()?, self.time()?);
        let source_ino = self.number()?;
        let set = self.number32()?;
        if set >= self.sets {
            return Err(LoadError::Damaged("an inode has extended attributes that are not there"));
        }
        let device = ((size_or_device >> 32) as u32, size_or_device as u32);
        Ok(Attributes {
            mode,
            uid,
            gid,
            size: size_or_device,
            mtime,
            ctime,
            source_ino,
            device,
            xattrs: XattrSetId(set),
        })
    }

    fn time(&mut self) -> Result<Timestamp, LoadError> {
        let seconds = unzigzag(self.number()?);
        let nanoseconds = self.number32()?;
        if nanoseconds >= 1_000_000_000 {
            return Err(LoadError::Damaged("a time has more than a second of nanoseconds"));
        }
        Ok(Timestamp { seconds, nanoseconds })
    }

    fn ranges(&mut self) -> Result<Option<Vec<DataRange>>, LoadError> {
        let Some(count) = self.count(2)?.checked_sub(1) else { return Ok(None) };
        let mut end = 0u64;
        let mut ranges = Vec::with_capacity(count);
        for _ in 0..count {
            let (gap, length) = (self.number()?, self.number()?);
            let offset = end.checked_add(gap).ok_or(LoadError::Damaged(BEYOND))?;
            end = offset.checked_add(length).ok_or(LoadError::Damaged(BEYOND))?;
            ranges.push(DataRange { offset, length });
        }
        Ok(Some(ranges))
    }

    /// Reads a number of items. Checks that all (or all but one) fit into the remaining bytes, with at least `least`
    /// bytes each.
    fn count(&mut self, least: usize) -> Result<usize, LoadError> {
        let count = usize::try_from(self.number()?).map_err(|_| LoadError::Damaged(BEYOND))?;
        if count > self.rest.len() / least + 1 {
            return Err(LoadError::Damaged("it ends too early"));
        }
        Ok(count)
    }

    fn number(&mut self) -> Result<u64, LoadError> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.rest.split_first().ok_or(LoadError::Damaged("it ends too early"))?;
            self.rest = rest;
            let bits = u64::from(byte & 0x7f);
            if bits << shift >> shift != bits {
                return Err(LoadError::Damaged(BEYOND));
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(LoadError::Damaged(BEYOND))
    }

    fn number32(&mut self) -> Result<u32, LoadError> {
        u32::try_from(self.number()?).map_err(|_| LoadError::Damaged(BEYOND))
    }

    fn bytes(&mut self) -> Result<&'a [u8], LoadError> {
        let length = self.count(1)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(LoadError::Damaged("it ends too early"))?;
        self.rest = rest;
        Ok(bytes)
    }
}
