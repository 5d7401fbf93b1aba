//! Lists the names of a directory from any position.

use inarch_tree::FileType;
use inarch_volume::VolumeError;

use super::image::wrong;
use super::inode::read_inode;
use super::metadata::{Reader, Table};
use crate::squashfs::spec::directory::{Entry, HEADER_LENGTH, Header, Index, MAX_NAME, MAX_RUN};
use crate::squashfs::spec::inode::{Body, DOTS, DirectoryBody, kind_of};
use crate::squashfs::spec::{METADATA_SIZE, Reference};

/// A directory that was found.
pub(super) struct Directory {
    pub(super) body: DirectoryBody,
    /// Where its index is, behind its inode.
    index: Reference,
}

/// An entry of a listing.
pub(super) struct Found<'a> {
    pub(super) name: &'a [u8],
    pub(super) inode: Reference,
    pub(super) file_type: Option<FileType>,
    /// Bytes of the listing behind this entry.
    pub(super) next: u64,
}

/// Where in a listing a header is.
#[derive(Clone, Copy)]
struct Place {
    /// Bytes from the listing's start.
    position: u64,
    at: Reference,
}

/// The listings and inodes of an image.
pub(super) struct Listings<'a> {
    pub(super) inodes: &'a Table,
    pub(super) directories: &'a Table,
}

impl Listings<'_> {
    /// The directory at `place`.
    pub(super) fn directory(&self, place: Reference) -> Result<Directory, VolumeError> {
        let mut reader = self.inodes.reader(place)?;
        match read_inode(&mut reader, &mut Vec::new())?.body {
            Body::Directory(body) => Ok(Directory { body, index: reader.reference() }),
            _ => Err(VolumeError::WrongType),
        }
    }

    /// Gives `take` the entries that begin `from` bytes behind the listing's start or later, until it says false.
    pub(super) fn each(
        &self,
        directory: &Directory,
        from: u64,
        take: &mut dyn FnMut(Found<'_>) -> bool,
    ) -> Result<(), VolumeError> {
        let start = self.indexed(directory, &mut |position, _| position <= from)?;
        self.read(directory, start, from, take)
    }

    /// Looks up a name: names are sorted, and the index has some of them.
    pub(super) fn find(&self, directory: &Directory, name: &[u8]) -> Result<Option<Reference>, VolumeError> {
        let start = self.indexed(directory, &mut |_, first| first <= name)?;
        let mut result = None;
        self.read(directory, start, 0, &mut |entry| {
            if entry.name == name {
                result = Some(entry.inode);
            }
            entry.name < name
        })?;
        Ok(result)
    }

    /// The last index entry that `precedes` the target, which is called with its position and first name; otherwise
    /// the start.
    fn indexed(
        &self,
        directory: &Directory,
        precedes: &mut dyn FnMut(u64, &[u8]) -> bool,
    ) -> Result<Place, VolumeError> {
        let body = &directory.body;
        let mut found = Place { position: 0, at: Reference::new(body.block.into(), body.offset) };
        if body.indexes == 0 {
            return Ok(found);
        }
        let mut reader = self.inodes.reader(directory.index)?;
        for _ in 0..body.indexes {
            let index: Index = reader.read_struct()?;
            let length = index.name_size.get() as usize;
            if length >= MAX_NAME {
                return Err(reader.wrong(&format!("an index with a name of {length} bytes and one more")));
            }
            let mut name = vec![0; length + 1];
            reader.read(&mut name)?;
            let position = u64::from(index.position.get());
            if position < found.position || position >= u64::from(body.size) {
                return Err(reader.wrong(&format!("an index that leads to byte {position} of a listing")));
            }
            if !precedes(position, &name) {
                break;
            }
            let offset = (u64::from(body.offset) + position) % METADATA_SIZE as u64;
            found = Place { position, at: Reference::new(index.block.get().into(), offset as u16) };
        }
        Ok(found)
    }

    fn read(
        &self,
        directory: &Directory,
        start: Place,
        from: u64,
        take: &mut dyn FnMut(Found<'_>) -> bool,
    ) -> Result<(), VolumeError> {
        let end = u64::from(directory.body.size.saturating_sub(DOTS));
        let mut position = start.position;
        if position >= end {
            return Ok(());
        }
        let mut reader = self.directories.reader(start.at)?;
        let mut name = [0; MAX_NAME];
        while position < end {
            let header: Header = reader.read_struct()?;
            let count = u64::from(header.count.get()) + 1;
            if count > MAX_RUN as u64 {
                return Err(reader.wrong(&format!("a run of {count} entries; it has {MAX_RUN} at most")));
            }
            position += HEADER_LENGTH as u64;
            for _ in 0..count {
                let begins = position;
                let (entry, name) = read_entry(&mut reader, &mut name, end, &mut position)?;
                if begins < from {
                    continue;
                }
                let inode = Reference::new(header.block.get().into(), entry.offset.get());
                let file_type = kind_of(entry.kind.get()).map(|(kind, _)| kind);
                if !take(Found { name, inode, file_type, next: position }) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// The next entry, which ends before byte `end` of the listing; `position` goes behind it.
fn read_entry<'n>(
    reader: &mut Reader<'_>,
    name: &'n mut [u8; MAX_NAME],
    end: u64,
    position: &mut u64,
) -> Result<(Entry, &'n [u8]), VolumeError> {
    let entry: Entry = reader.read_struct()?;
    let length = usize::from(entry.name_size.get()) + 1;
    let next = *position + size_of::<Entry>() as u64 + length as u64;
    let name = name.get_mut(..length).filter(|_| next <= end);
    let name = name.ok_or_else(|| wrong(format!("a name of {length} bytes, more than can be in its directory")))?;
    reader.read(name)?;
    *position = next;
    Ok((entry, name))
}
