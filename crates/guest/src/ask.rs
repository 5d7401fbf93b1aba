//! Small questions about files of a guest.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use inarch_block::Cursor;
use inarch_tree::FileType;
use inarch_volume::{Item, Last, Node, Volume, VolumeError, canonical, resolve};
use vm_memory::VolatileSlice;

use super::copy::PIECE;
use super::list::{Entry, entry};
use super::{Guest, GuestError};

/// A name in a directory, and the type that the directory says it has.
pub type Named = (Vec<u8>, Option<FileType>);

impl Guest {
    /// A file's attributes, with a symbolic link's target and without extended attributes; `None` if there is no such file.
    ///
    /// # Errors
    /// It is damaged, or cannot be read.
    pub fn look(&self, path: &Path, last: Last) -> Result<Option<Entry>, GuestError> {
        let name = path.as_os_str().as_bytes();
        let found = inarch_source::parse(|_| {
            let node = resolve(&*self.volume, name, last)?;
            node.map(|node| entry(&*self.volume, node, name.to_vec())).transpose()
        })?;
        found.map_err(self.fail(path))
    }

    /// The same with extended attributes, for a file that must be there.
    ///
    /// # Errors
    /// There is no such file, or it is damaged.
    pub fn attributes(&self, path: &Path, last: Last) -> Result<Entry, GuestError> {
        let (node, _) = self.find_node(path, last)?;
        let entry = inarch_source::parse(|_| {
            let mut entry = entry(&*self.volume, node, path.as_os_str().as_bytes().to_vec())?;
            entry.xattrs = self.volume.xattrs(node, &mut |_| {})?;
            Ok(entry)
        })?;
        entry.map_err(self.fail(path))
    }

    /// The path of a file without symbolic links, as realpath(3) gives it.
    ///
    /// # Errors
    /// There is no such file, or it is damaged.
    pub fn canonical(&self, path: &Path) -> Result<PathBuf, GuestError> {
        let found = inarch_source::parse(|_| canonical(&*self.volume, path.as_os_str().as_bytes()))?;
        let absent = || GuestError::Absent { image: self.image.clone(), path: path.to_owned() };
        let found = found.map_err(self.fail(path))?.ok_or_else(absent)?;
        Ok(PathBuf::from(std::ffi::OsString::from_vec(found)))
    }

    /// At most `most` names of a directory, in the image's order. What is damaged is left out.
    ///
    /// # Errors
    /// There is no such directory, or it is damaged.
    pub fn names(&self, path: &Path, most: usize) -> Result<Vec<Named>, GuestError> {
        let (node, _) = self.find_node(path, Last::Followed)?;
        let names = inarch_source::parse(|_| {
            let mut names = Vec::new();
            self.volume.list(node, 0, &mut |item| {
                if let Item::Entry(entry) = item {
                    let of_inode = || self.volume.attributes(entry.node).ok()?.file_type();
                    names.push((entry.name.to_vec(), entry.file_type.or_else(of_inode)));
                }
                names.len() < most
            })?;
            Ok(names)
        })?;
        names.map_err(self.fail(path))
    }

    /// Up to `count` bytes of a regular file from `offset`.
    ///
    /// # Errors
    /// There is no such file, it is no regular one or damaged.
    pub fn read_at(&self, path: &Path, offset: u64, count: u64) -> Result<Vec<u8>, GuestError> {
        let (node, attributes) = self.find_node(path, Last::Followed)?;
        if attributes.file_type() != Some(FileType::Regular) {
            return Err(self.wrong_type(path, "it is no regular file"));
        }
        let count = count.min(attributes.size.saturating_sub(offset));
        inarch_source::parse(|_| bytes_at(&*self.volume, node, offset, count))?.map_err(self.fail(path))
    }

    /// Whether two regular files have the same content.
    ///
    /// # Errors
    /// One of them is not there, no regular file or damaged.
    pub fn are_equal(&self, one: &Path, other: &Path) -> Result<bool, GuestError> {
        let regular = |path| match self.find_node(path, Last::Followed)? {
            (node, attributes) if attributes.file_type() == Some(FileType::Regular) => Ok((node, attributes.size)),
            _ => Err(self.wrong_type(path, "it is no regular file")),
        };
        let ((one, size), (second, other_size)) = (regular(one)?, regular(other)?);
        if size != other_size || one == second {
            return Ok(size == other_size);
        }
        let volume = &*self.volume;
        let equal = inarch_source::parse(|_| {
            let mut at = 0;
            while at < size {
                let count = PIECE.min(size - at);
                if bytes_at(volume, one, at, count)? != bytes_at(volume, second, at, count)? {
                    return Ok(false);
                }
                at += count;
            }
            Ok(true)
        })?;
        equal.map_err(self.fail(other))
    }
}

fn bytes_at(volume: &dyn Volume, node: Node, offset: u64, count: u64) -> Result<Vec<u8>, VolumeError> {
    let count = usize::try_from(count).map_err(|_| VolumeError::Unsupported("it has too many bytes".to_owned()))?;
    let mut bytes = vec![0; count];
    volume.read(node, offset, count as u64, &mut Cursor::new(&[VolatileSlice::from(&mut *bytes)]))?;
    Ok(bytes)
}
