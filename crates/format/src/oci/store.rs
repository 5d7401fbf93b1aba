//! [`Store`]: the documents and layers of images, in a directory or in a tar archive.

use std::io::{self, Read};
use std::path::PathBuf;
use std::sync::Arc;

use inarch_block::{Backing, BackingFile, read_backing};
use inarch_tree::{Extent, Extents, FileType, InodeId, Tree};
use serde::de::DeserializeOwned;

use super::document::{DockerImage, LayoutFile, MAX_DOCUMENT};
use super::malformed;
use crate::notes::Notes;
use crate::{Damage, Host, ReadError, tar};

/// The most symlinks on the way to one file of an archive. `docker save` links layers that images share.
const MAX_SYMLINKS: u32 = 8;

/// See the module's page.
pub(super) enum Store<'h> {
    /// The host has it.
    Directory {
        host: &'h dyn Host,
        path: PathBuf,
    },
    Archive(ArchiveStore),
}

/// The files of a plain tar archive, which are ranges of it.
pub(super) struct ArchiveStore {
    pub(super) tree: Box<Tree>,
    pub(super) extents: Extents,
    pub(super) backing: Arc<dyn Backing>,
}

/// A file in a store: `length` bytes of `backing`, from byte `start`.
pub(super) struct Blob {
    pub(super) backing: Arc<dyn Backing>,
    pub(super) start: u64,
    pub(super) length: u64,
}

impl<'h> Store<'h> {
    /// The regular file with that name, if it exists.
    pub(super) fn find(&self, name: &str) -> Result<Option<Blob>, ReadError> {
        match self {
            Store::Directory { host, path } => {
                let Some(file) = host.of_layout(name)? else { return Ok(None) };
                let at = path.join(name);
                let failed = |error| malformed(format!("{}: {error}", at.display()));
                let backing = BackingFile::new(file, at.clone()).map_err(failed)?;
                Ok(Some(Blob { start: 0, length: backing.size(), backing: Arc::new(backing) }))
            }
            Store::Archive(archive) => archive.find(name),
        }
    }

    /// Like [`Store::find`], for a file that must exist.
    pub(super) fn get(&self, name: &str) -> Result<Blob, ReadError> {
        self.find(name)?.ok_or_else(|| malformed(format!("{} is missing", name.escape_debug())))
    }

    /// Reads a document that may be missing.
    pub(super) fn document<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, ReadError> {
        let Some(blob) = self.find(name)? else { return Ok(None) };
        parse(name, &blob.bytes(name)?).map(Some)
    }
}

impl ArchiveStore {
    /// Indexes a plain tar archive.
    pub(super) fn open(
        backing: Arc<dyn Backing>,
        host: &dyn Host,
        damage: Damage,
        notes: &mut Notes,
    ) -> Result<ArchiveStore, ReadError> {
        let (tree, extents) = tar::read_archive(&*backing, host, damage, notes)?;
        Ok(ArchiveStore { tree: Box::new(tree), extents, backing })
    }

    /// Whether it is a container image, not an archive with files of such names: an OCI layout has a marker file; what
    /// a Docker archive's manifest lists must exist.
    pub(super) fn is_image(&self) -> bool {
        let is_there = |name: &str| matches!(self.find(name), Ok(Some(_)));
        let text = |name: &str| self.find(name).ok().flatten().and_then(|blob| blob.bytes(name).ok());
        if is_there("index.json") && text("oci-layout").is_some_and(|text| parse::<LayoutFile>("", &text).is_ok()) {
            return true;
        }
        let images = text("manifest.json").and_then(|text| parse::<Vec<DockerImage>>("", &text).ok());
        images.and_then(|images| images.into_iter().next()).is_some_and(|first| is_there(&first.config))
    }

    /// Like [`Store::find`].
    fn find(&self, name: &str) -> Result<Option<Blob>, ReadError> {
        let ArchiveStore { tree, extents, backing } = self;
        let Some(inode) = follow(tree, name.as_bytes()) else { return Ok(None) };
        if tree.inode(inode).file_type() != FileType::Regular {
            return Err(malformed(format!("{} is not a regular file", name.escape_debug())));
        }
        let (start, length) = match extents.of(inode) {
            [] if tree.inode(inode).size() == 0 => (0, 0),
            [Extent { offset: 0, length, at, .. }] if *length == tree.inode(inode).size() => (*at, *length),
            _ => return Err(malformed(format!("{} is a sparse file", name.escape_debug()))),
        };
        Ok(Some(Blob { backing: Arc::clone(backing), start, length }))
    }
}

/// Parses a document.
pub(super) fn parse<T: DeserializeOwned>(name: &str, bytes: &[u8]) -> Result<T, ReadError> {
    serde_json::from_slice(bytes).map_err(|error| malformed(format!("{} makes no sense: {error}", name.escape_debug())))
}

impl Blob {
    /// The whole file, if it is small enough for a document.
    pub(super) fn bytes(&self, name: &str) -> Result<Vec<u8>, ReadError> {
        if self.length > MAX_DOCUMENT {
            let length = self.length;
            let name = name.escape_debug();
            return Err(malformed(format!("{name} has {length} bytes; a document has at most {MAX_DOCUMENT}")));
        }
        let mut bytes = vec![0; self.length as usize];
        let failed = |error| ReadError::Io { offset: self.start, error };
        read_backing(&*self.backing, self.start, &mut bytes).map_err(failed)?;
        Ok(bytes)
    }

    /// Reads the file from its start.
    pub(super) fn reader(&self) -> BlobReader<'_> {
        BlobReader { blob: self, at: 0 }
    }
}

/// See [`Blob::reader`].
pub(super) struct BlobReader<'a> {
    blob: &'a Blob,
    at: u64,
}

impl Read for BlobReader<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = (self.blob.length - self.at).min(out.len() as u64) as usize;
        let out = out.get_mut(..count).unwrap_or_default();
        read_backing(&*self.blob.backing, self.blob.start + self.at, out)?;
        self.at += count as u64;
        Ok(count)
    }
}

/// Resolves a path of an archive, following symlinks at its end.
fn follow(tree: &Tree, path: &[u8]) -> Option<InodeId> {
    let mut path = clean(path)?;
    for _ in 0..MAX_SYMLINKS {
        let inode = tree.lookup(&path)?;
        if tree.inode(inode).file_type() != FileType::Symlink {
            return Some(inode);
        }
        let target = tree.symlink_target(inode);
        let directory = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
        path =
            if target.starts_with(b"/") { clean(target)? } else { clean(&[path.get(..directory)?, target].concat())? };
    }
    None
}

/// A path from an archive's root without `.` and `..`; `None` if it leads out.
fn clean(path: &[u8]) -> Option<Vec<u8>> {
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(parts.join(&b'/'))
}
