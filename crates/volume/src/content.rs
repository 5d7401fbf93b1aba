//! The content of a tree that a walk has made of a volume. Files that lie plain in the image are read there; the volume decodes the others.
//! What is damaged is counted, and named up to a limit.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use inarch_block::{BackedFiles, Borrower, ChangeReason, ChangedFile, ChangedFiles, Content, Cursor, Lent};
use inarch_tree::{InodeId, Tree};
use rustix::io::Errno;

use crate::{Node, Volume, VolumeError};

/// The most damaged files that are named; the rest are counted.
const MAX_NAMED: usize = 1000;

/// The files of a walked tree: some are in the image as they are, the volume reads the others.
pub struct WalkedFiles {
    tree: Arc<Tree>,
    plain: BackedFiles,
    /// In ascending order.
    packed: Vec<(InodeId, Node)>,
    volume: Arc<dyn Volume>,
    damaged: Mutex<Damaged>,
}

/// Files that could not be read.
#[derive(Default)]
struct Damaged {
    seen: HashSet<InodeId>,
    named: Vec<ChangedFile>,
}

impl WalkedFiles {
    /// `packed`, ascending, are the files to read through the volume.
    pub fn new(
        tree: Arc<Tree>,
        plain: BackedFiles,
        packed: Vec<(InodeId, Node)>,
        volume: Arc<dyn Volume>,
    ) -> WalkedFiles {
        WalkedFiles { tree, plain, packed, volume, damaged: Mutex::default() }
    }

    fn packed(&self, inode: InodeId) -> Option<Node> {
        let place = self.packed.binary_search_by_key(&inode, |(id, _)| *id).ok()?;
        self.packed.get(place).map(|(_, node)| *node)
    }

    /// Records a damaged file, unless the image as a whole has changed.
    fn fail(&self, inode: InodeId, error: VolumeError) -> io::Error {
        let path = self.tree.path(inode);
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        if self.volume.changed().is_none() && damaged.seen.insert(inode) && damaged.named.len() < MAX_NAMED {
            let path = PathBuf::from(OsString::from_vec(path.clone()));
            damaged.named.push(ChangedFile { path, reason: ChangeReason::Unreadable(Errno::IO) });
        }
        match error {
            VolumeError::Io { error, .. } => error,
            error => {
                let text = format!("{:?}: {error}", String::from_utf8_lossy(&path));
                io::Error::new(io::ErrorKind::InvalidData, text)
            }
        }
    }
}

impl Content for WalkedFiles {
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let Some(node) = self.packed(inode) else { return self.plain.read(inode, offset, count, out) };
        let mut start = out.clone();
        self.volume.read(node, offset, count, out).map_err(|error| {
            start.fill_zeros(count);
            self.fail(inode, error)
        })
    }

    fn lend(&self, inode: InodeId, offset: u64, count: u64, take: &mut Borrower<'_>) -> io::Result<bool> {
        let Some(node) = self.packed(inode) else { return self.plain.lend(inode, offset, count, take) };
        let extents = self.volume.extents(node, offset, count).map_err(|error| self.fail(inode, error))?;
        let Some(extents) = extents else { return Ok(false) };
        let backings = self.volume.backings();
        let backing = |number: u32| backings.get(number as usize).ok_or_else(|| io::Error::from(Errno::IO));
        for extent in &extents {
            if !backing(extent.backing)?.lends(extent.at, extent.length) {
                return Ok(false);
            }
        }
        for extent in extents {
            let of_file = |lent: Lent| Lent { offset: extent.offset + (lent.offset - extent.at), ..lent };
            let mut take = |file: std::os::fd::BorrowedFd<'_>, lent| take(file, of_file(lent));
            backing(extent.backing)?.lend(extent.at, extent.length, &mut take)?;
        }
        Ok(true)
    }

    fn changed(&self) -> ChangedFiles {
        let damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        let image = self.volume.changed();
        let count = damaged.seen.len() as u64 + u64::from(image.is_some());
        ChangedFiles { named: image.into_iter().chain(damaged.named.iter().cloned()).collect(), count }
    }
}
