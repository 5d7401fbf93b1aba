//! [`Generation`]: one state of a cache.
//!
//! | offset | what |
//! |---|---|
//! | 0 | `INARCHGN` |
//! | 8 | version, 32 bits little-endian |
//! | 12 | BLAKE3 of all that follows |
//! | 44 | the length of the next part in bytes, 64 bits little-endian |
//! | 52 | JSON: the generation's [`Body`] |
//! | then | for each regular file that is not empty, in the order of the inodes: pack (32 bits), where its bytes begin there (64 bits), BLAKE3 of them |
//! | then | for each of these of more than one chunk whose pack is a remote's: the digests of its chunks ([`chunks`]) |
//! | then | the tree, see `crates/tree/src/stored.rs` |
//!
//! Version 1 knew no remotes. A remote has the same bytes, compressed ([`super::far`]).

use std::collections::HashMap;
use std::sync::Arc;

use inarch_tree::{Extent, Extents, FileType, InodeId, Tree};
use serde::{Deserialize, Serialize};

use super::chunks::{self, Lists};
use super::error::Damage;
use super::stored::{Digest, Stored, is_remote_name};

const MAGIC: &[u8; 8] = b"INARCHGN";
const VERSION: u32 = 2;
/// The version without chunks, which is still read.
const OLDER: u32 = 1;
const HASHED: usize = 44;
const HEADER: usize = HASHED + 8;
/// Bytes of a file in the table.
const ROW: usize = 4 + 8 + 32;

/// What a generation is, beside its files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Body {
    /// 1 for a cache's first, and one more for each that follows.
    pub number: u64,
    /// When it was published, in seconds since 1970.
    pub time: u64,
    /// The command that made it, for people.
    pub made_by: String,
    /// The names of its packs.
    pub packs: Vec<String>,
}

/// One state of a cache.
#[derive(Clone, Debug)]
pub struct Generation {
    /// What is stored of it.
    pub body: Body,
    /// Names and attributes of its files.
    pub tree: Arc<Tree>,
    /// For each inode.
    pub files: Vec<Option<Stored>>,
    /// The chunks of those whose bytes are in a remote's pack.
    pub lists: Arc<Lists>,
}

impl Generation {
    /// The bytes of its file.
    pub fn encode(&self) -> Vec<u8> {
        // What can fail of writing JSON is the writing, and keys that are no strings.
        let body = serde_json::to_vec(&self.body).unwrap_or_default();
        let tree = self.tree.store();
        let mut out = Vec::with_capacity(HEADER + body.len() + tree.len() + self.files.len() * ROW);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&[0; 32]);
        out.extend_from_slice(&(body.len() as u64).to_le_bytes());
        out.extend_from_slice(&body);
        for stored in self.files.iter().flatten() {
            out.extend_from_slice(&stored.pack.to_le_bytes());
            out.extend_from_slice(&stored.at.to_le_bytes());
            out.extend_from_slice(&stored.digest.0);
        }
        for (_, stored) in self.remote_files() {
            out.extend(self.lists.get(&stored.digest).iter().flat_map(|list| list.iter()).flatten());
        }
        out.extend_from_slice(&tree);
        let digest = blake3::hash(out.get(HASHED..).unwrap_or_default());
        if let Some(place) = out.get_mut(12..HASHED) {
            place.copy_from_slice(digest.as_bytes());
        }
        out
    }

    /// Any bytes are safe: the result is an error or a valid generation.
    pub fn decode(bytes: &[u8]) -> Result<Generation, Damage> {
        let (magic, rest) = bytes.split_first_chunk::<8>().ok_or(Damage::Magic)?;
        if magic != MAGIC {
            return Err(Damage::Magic);
        }
        let (version, rest) = rest.split_first_chunk::<4>().ok_or(Damage::Magic)?;
        let version = u32::from_le_bytes(*version);
        if ![VERSION, OLDER].contains(&version) {
            return Err(Damage::Version(version));
        }
        let (digest, hashed) = rest.split_first_chunk::<32>().ok_or(Damage::Magic)?;
        if blake3::hash(hashed) != *digest {
            return Err(Damage::Digest);
        }
        let short = Damage::Table("it ends too early");
        let (length, rest) = hashed.split_first_chunk::<8>().ok_or(short)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let (body, rest) = rest.split_at_checked(length).ok_or(Damage::Table("it ends too early"))?;
        let body: Body = serde_json::from_slice(body).map_err(|_| Damage::Table("its description cannot be read"))?;
        // The table's length follows from the tree, which comes after it; its magic number ends the table.
        let (table, tree) = split_table(rest)?;
        let tree = Arc::new(Tree::load(tree)?);
        let count = tree.inodes().filter(|(id, _)| has_bytes(&tree, *id)).count();
        let (table, lists) = table.split_at_checked(count * ROW).ok_or(Damage::Table("a file has no place"))?;
        let mut rows = table.chunks_exact(ROW);
        let mut files = Vec::with_capacity(tree.inode_count() as usize);
        for (id, _) in tree.inodes() {
            if !has_bytes(&tree, id) {
                files.push(None);
                continue;
            }
            let stored = rows.next().and_then(row).ok_or(Damage::Table("a file has no place"))?;
            if stored.pack as usize >= body.packs.len() || stored.at.checked_add(tree.inode(id).size()).is_none() {
                return Err(Damage::Table("a file's place is impossible"));
            }
            files.push(Some(stored));
        }
        let mut generation = Generation { body, tree, files, lists: Arc::default() };
        generation.lists = Arc::new(generation.read_lists(lists)?);
        Ok(generation)
    }

    /// Checks the digests of chunks: each file's must be what its own digest is made of.
    fn read_lists(&self, mut rest: &[u8]) -> Result<Lists, Damage> {
        let mut lists = Lists::new();
        for (id, stored) in self.remote_files() {
            let size = self.tree.inode(id).size();
            let bytes = chunks::count(size).checked_mul(32).and_then(|bytes| usize::try_from(bytes).ok());
            let (list, after) = bytes.and_then(|bytes| rest.split_at_checked(bytes)).ok_or(Damage::Table(CHUNKS))?;
            rest = after;
            let list: Vec<[u8; 32]> = list.as_chunks().0.to_vec();
            if !list.is_empty() && !chunks::is_of(&list, size, &stored.digest) {
                return Err(Damage::Table("the digests of a file's chunks are not those of the file"));
            }
            if !list.is_empty() {
                lists.insert(stored.digest, list.into());
            }
        }
        if rest.is_empty() { Ok(lists) } else { Err(Damage::Table(CHUNKS)) }
    }

    /// The files whose bytes are in a remote's pack.
    pub fn remote_files(&self) -> impl Iterator<Item = (InodeId, Stored)> {
        let is_remote: Vec<bool> = self.body.packs.iter().map(|name| is_remote_name(name)).collect();
        let files = self.files.iter().zip(0..).filter_map(|(stored, id)| Some((InodeId(id), (*stored)?)));
        files.filter(move |(_, stored)| is_remote.get(stored.pack as usize) == Some(&true))
    }

    /// Where the bytes of all files are; an extent's backing is an index into [`Body::packs`].
    pub fn extents(&self) -> Extents {
        let extent = |(id, stored): (usize, &Option<Stored>)| {
            let (stored, id) = ((*stored)?, InodeId(u32::try_from(id).ok()?));
            let length = self.tree.inode(id).size();
            Some((id, Extent { offset: 0, length, at: stored.at, backing: stored.pack }))
        };
        let list = self.files.iter().enumerate().filter_map(extent).collect();
        // One extent a file, which neither is empty nor ends beyond 64 bits.
        Extents::new(self.tree.inode_count(), list).unwrap_or_default()
    }

    /// For each inode the name of its file's pack, where the bytes begin there, and what they are.
    pub fn places(&self) -> Vec<Option<(String, u64, Digest)>> {
        let place = |stored: &Option<Stored>| {
            let stored = (*stored)?;
            Some((self.body.packs.get(stored.pack as usize)?.clone(), stored.at, stored.digest))
        };
        self.files.iter().map(place).collect()
    }

    /// Distinguishes generations with the same names and attributes whose files have other bytes.
    pub fn content_stamp(&self) -> Vec<u8> {
        let mut hasher = blake3::Hasher::new();
        for stored in &self.files {
            hasher.update(&stored.map_or([0; 32], |stored| stored.digest.0));
        }
        hasher.finalize().as_bytes().to_vec()
    }

    /// What is stored, by its digest.
    pub fn by_digest(&self) -> HashMap<Digest, Stored> {
        self.files.iter().flatten().map(|stored| (stored.digest, *stored)).collect()
    }

    /// The number of its regular files, and their bytes.
    pub fn totals(&self) -> (u64, u64) {
        let files = self.tree.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular);
        files.fold((0, 0), |(count, bytes), (_, inode)| (count + 1, bytes + inode.size()))
    }
}

/// Whether an inode of a tree is a file with bytes.
pub fn has_bytes(tree: &Tree, id: InodeId) -> bool {
    tree.inode(id).file_type() == FileType::Regular && tree.inode(id).size() > 0
}

const CHUNKS: &str = "the digests of its chunks are too many or too few";

/// The tree begins at the first place where its magic number can be: rows have 44 bytes, and digests of chunks 32. A digest that happens to begin
/// so makes the generation unreadable, and is as likely as any other collision of 64 bits.
fn split_table(rest: &[u8]) -> Result<(&[u8], &[u8]), Damage> {
    let step = 4;
    let at = (0..rest.len()).step_by(step).find(|at| rest.get(*at..).is_some_and(|rest| rest.starts_with(b"INARCHTR")));
    Ok(rest.split_at(at.ok_or(Damage::Table("it has no tree"))?))
}

fn row(row: &[u8]) -> Option<Stored> {
    let (pack, rest) = row.split_first_chunk::<4>()?;
    let (at, rest) = rest.split_first_chunk::<8>()?;
    let digest = Digest(*rest.first_chunk::<32>()?);
    Some(Stored { pack: u32::from_le_bytes(*pack), at: u64::from_le_bytes(*at), digest })
}

#[cfg(test)]
mod tests {
    use inarch_tree::{Attributes, Builder};
    use proptest::prelude::*;

    use super::*;

    fn generation(files: u64) -> Generation {
        let mut builder = Builder::new(&Attributes { mode: 0o040_755, ..Attributes::default() }).unwrap();
        builder.list(InodeId::ROOT).unwrap();
        for number in 0..files {
            let attributes = Attributes { mode: 0o100_644, size: number, ..Attributes::default() };
            builder.add(format!("{number:03}").as_bytes(), &attributes).unwrap();
        }
        let tree = Arc::new(builder.finish().unwrap());
        let stored = |(id, inode): (InodeId, &inarch_tree::Inode)| {
            let digest = Digest([id.0 as u8; 32]);
            (inode.file_type() == FileType::Regular && inode.size() > 0).then_some(Stored {
                pack: id.0 % 2,
                at: u64::from(id.0) << 12,
                digest,
            })
        };
        let files = tree.inodes().map(stored).collect();
        let packs = vec!["1".to_owned(), "2".to_owned()];
        Generation {
            body: Body { number: 7, time: 1, made_by: "make".to_owned(), packs },
            tree,
            files,
            lists: Arc::default(),
        }
    }

    #[test]
    fn what_was_stored_is_read_again() {
        for files in [0, 1, 2, 99] {
            let stored = generation(files);
            let read = Generation::decode(&stored.encode()).unwrap();
            assert_eq!((&read.body, &read.files), (&stored.body, &stored.files));
            assert_eq!(read.tree.store(), stored.tree.store());
            assert_eq!(read.totals(), (files, (0..files).sum()));
            for (id, stored) in read.files.iter().enumerate().filter_map(|(id, stored)| Some((id, (*stored)?))) {
                let id = InodeId(id as u32);
                let of = read.extents();
                let [extent] = of.of(id) else { panic!("{id:?}") };
                assert_eq!(
                    (extent.at, extent.backing, extent.length),
                    (stored.at, stored.pack, read.tree.inode(id).size())
                );
            }
        }
    }

    #[test]
    fn what_is_damaged_is_refused() {
        let bytes = generation(5).encode();
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(Generation::decode(&wrong).is_err(), "{at}");
            assert!(Generation::decode(&bytes[..at]).is_err(), "{at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_with_a_right_digest_are_safe(at in 44..400usize, byte: u8, cut in 44..600usize) {
            let mut bytes = generation(5).encode();
            bytes.truncate(cut.min(bytes.len()));
            if let Some(place) = bytes.get_mut(at) {
                *place = byte;
            }
            let digest = blake3::hash(&bytes[HASHED..]);
            bytes[12..HASHED].copy_from_slice(digest.as_bytes());
            if let Ok(read) = Generation::decode(&bytes) {
                prop_assert!(read.files.iter().flatten().all(|stored| (stored.pack as usize) < read.body.packs.len()));
            }
        }
    }
}
