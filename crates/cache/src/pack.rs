//! [`NewPack`]: a file with the bytes of many files.
//!
//! It begins with a block that has the magic number. Each file's bytes begin at a block's start, so that they can be shared by reflink and mapped by
//! the kernel, and become a hole when nothing needs them. A pack has no index; generations say what lies where.

use std::collections::HashMap;
use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use inarch_block::{BLOCK_SIZE, Content, read_content};
use inarch_lifecycle::PathError;
use inarch_lifecycle::new_file::NewFile;
use inarch_tree::InodeId;

use super::stored::{Digest, Stored};

const MAGIC: &[u8; 8] = b"INARCHPK";
const BLOCK: u64 = BLOCK_SIZE as u64;
/// Bytes that are read at once.
const PIECE: u64 = 1 << 20;
/// The most zeros that a guest's files have in one publication, in bytes. They take no room on a disk, but as long to
/// hash as other bytes: without a limit a guest could keep this machine busy for hours with one sparse file.
const MOST_ZEROS: u64 = 64 << 30;

/// A pack that has no name yet.
pub struct NewPack {
    new: NewFile,
    /// Where the next file begins.
    end: u64,
    /// What is in it.
    known: HashMap<Digest, u64>,
    /// How many more bytes of zeros are hashed.
    zeros_left: u64,
}

impl NewPack {
    /// A new pack in `directory`, without a name. Gets its name by [`NewPack::finish`].
    pub fn create(directory: &Path) -> Result<NewPack, PathError> {
        let path = directory.join("new");
        let new = NewFile::create(&path, || {})?;
        let fail = |error| PathError::new(&path, "cannot write a new pack of the cache", error);
        new.file.set_permissions(Permissions::from_mode(0o600)).map_err(fail)?;
        new.file.write_all_at(MAGIC, 0).map_err(fail)?;
        Ok(NewPack { new, end: BLOCK, known: HashMap::new(), zeros_left: u64::MAX })
    }

    /// Limits the zeros of the files that come now: a guest made them.
    pub fn limit_zeros(&mut self) {
        self.zeros_left = MOST_ZEROS;
    }

    /// Whether it has no file's bytes.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Adds the bytes of a file, unless `find` knows them by their digest. Returns where they are, and whether that is in this pack.
    ///
    /// # Errors
    /// The file cannot be read, or the pack cannot be written; or too much of its files is zeros.
    pub fn add(
        &mut self,
        (content, inode, size): (&dyn Content, InodeId, u64),
        find: impl Fn(&Digest) -> Option<Stored>,
    ) -> io::Result<(Stored, bool)> {
        let mut buffer = vec![0; size.min(PIECE) as usize];
        let digest = digest(content, inode, size, &mut buffer, Some(&mut self.zeros_left))?;
        if let Some(stored) = find(&digest) {
            return Ok((stored, false));
        }
        if let Some(at) = self.known.get(&digest) {
            return Ok((Stored { pack: 0, at: *at, digest }, true));
        }
        let start = self.end;
        pieces(size, &mut buffer, |at, piece| {
            if size > PIECE {
                read_content(content, inode, at, piece)?;
            }
            // Zeros stay a hole.
            let mut blocks = piece.chunks(BLOCK_SIZE).map(is_zeros).peekable();
            let mut done = 0;
            while let Some(are_zeros) = blocks.next() {
                let mut count = 1;
                while blocks.next_if_eq(&are_zeros).is_some() {
                    count += 1;
                }
                let end = (done + count * BLOCK_SIZE).min(piece.len());
                if !are_zeros {
                    self.new.file.write_all_at(piece.get(done..end).unwrap_or_default(), start + at + done as u64)?;
                }
                done = end;
            }
            Ok(())
        })?;
        self.known.insert(digest, start);
        self.end = (start + size).next_multiple_of(BLOCK);
        Ok((Stored { pack: 0, at: start, digest }, true))
    }

    /// Makes it durable. It still has no name.
    ///
    /// # Errors
    /// The disk is full, or fails.
    pub fn sync(&self) -> io::Result<()> {
        self.new.file.set_len(self.end)?;
        self.new.file.sync_all()
    }

    /// Gives it its name in the directory in which it was made.
    ///
    /// # Errors
    /// It cannot have it.
    pub fn finish(self, name: &str) -> Result<(), PathError> {
        self.new.commit_as(name)
    }
}

/// The digest of a file's bytes.
///
/// # Errors
/// It cannot be read.
pub fn content_digest(content: &dyn Content, inode: InodeId, size: u64) -> io::Result<Digest> {
    let mut buffer = vec![0; size.min(PIECE) as usize];
    digest(content, inode, size, &mut buffer, None)
}

/// The same. `buffer` has the last piece afterwards. Fails when more zeros come than `zeros_left`, which gets fewer.
fn digest(
    content: &dyn Content,
    inode: InodeId,
    size: u64,
    buffer: &mut [u8],
    mut zeros_left: Option<&mut u64>,
) -> io::Result<Digest> {
    let mut hash = blake3::Hasher::new();
    pieces(size, buffer, |at, piece| {
        read_content(content, inode, at, piece)?;
        if let Some(left) = zeros_left.as_deref_mut() {
            let zeros: usize = piece.chunks(BLOCK_SIZE).filter(|block| is_zeros(block)).map(<[u8]>::len).sum();
            let rest = left.checked_sub(zeros as u64);
            *left = rest.ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, TOO_MANY_ZEROS))?;
        }
        hash.update(piece);
        Ok(())
    })?;
    Ok(Digest(*hash.finalize().as_bytes()))
}

const TOO_MANY_ZEROS: &str =
    "there are sparse files with more than 64 GiB of holes, too many to hash; leave them out of the cache";

fn is_zeros(piece: &[u8]) -> bool {
    piece.iter().all(|byte| *byte == 0)
}

/// Calls `with` for each piece of `size` bytes, with where it begins and a part of `buffer` that is as long.
fn pieces(size: u64, buffer: &mut [u8], mut with: impl FnMut(u64, &mut [u8]) -> io::Result<()>) -> io::Result<()> {
    let mut done = 0;
    while done < size {
        let count = (size - done).min(PIECE);
        with(done, buffer.get_mut(..count as usize).unwrap_or_default())?;
        done += count;
    }
    Ok(())
}

/// Whether an open file begins as a pack.
pub(super) fn is_pack(file: &File) -> io::Result<bool> {
    let mut magic = [0; MAGIC.len()];
    match file.read_exact_at(&mut magic, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| &magic == MAGIC),
    }
}

#[cfg(test)]
mod tests {
    use inarch_block::Cursor;

    use super::*;

    /// A file with one piece of data before its hole.
    struct Sparse;

    impl Content for Sparse {
        fn read(&self, _: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
            if offset < PIECE {
                out.copy_from(&vec![1; count as usize]);
            } else {
                out.fill_zeros(count);
            }
            Ok(())
        }
    }

    #[test]
    fn holes_are_hashed_up_to_a_limit() {
        let directory = tempfile::tempdir().unwrap();
        let mut pack = NewPack { zeros_left: 7 * PIECE, ..NewPack::create(directory.path()).unwrap() };
        let mut add = || pack.add((&Sparse, InodeId::ROOT, 5 * PIECE), |_| None);
        assert!(add().unwrap().1);
        let error = add().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{error}");
    }
}
