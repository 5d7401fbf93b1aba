//! Mounts an archive or image through the kernel: an EROFS whose metadata is computed and whose file data stays in the archive.
//!
//! 1. Inarch takes a lease on the archive ([`Lease`]): a process that opens it for writing, or truncates it, waits. So the archive is
//!    still what was read.
//! 2. The metadata is computed into memory. The kernel parses nothing of the archive.
//! 3. Two loop devices show the metadata and the archive, and an EROFS is mounted from them.
//! 4. When the kernel asks for the lease back, the archive's loop device lets the archive go: from then on, what was not read before is
//!    an I/O error. Then the lease is released, and an event names the archive. So no read gives the new bytes.
//! 5. When this process ends, in whichever way, its guard ([`inarch_lifecycle::guard`]) has the loop device let the archive go, which
//!    ends the lease. A mount in use goes on without the archive. If the guard was killed, this process does the same.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::Lent;
use inarch_format::erofs::metadata_beside;
use inarch_lifecycle::Events;
use inarch_mount::{Detached, Lease, Loop, LoopId};
use inarch_server::StopHandle;
use inarch_source::{Opened, Resources, Source};
use inarch_tree::select::Selection;
use inarch_tree::{FileType, InodeId, Tree};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, memfd_create};

use super::{MountEvent, MountFault, MountRequest, MountWrites};
use crate::JobError;
use inarch_upper::UpperPlace;

/// The limit of the metadata in memory: bytes for any tree, and more bytes for each of its entries. That is several times what an
/// entry takes whose content is in one part. Without a limit, an archive of a few bytes could describe holes whose map fills the memory.
const METADATA: u64 = 64 << 20;
const METADATA_PER_ENTRY: u64 = 1 << 10;

/// The limit for a tree of any size, in bytes.
const MOST_METADATA: u64 = 1 << 30;

/// Opens the source. Returns `None` if it is a directory.
pub(super) fn open(request: &MountRequest) -> Result<Option<Opened>, JobError> {
    if let Source::Directory(_) = request.source {
        return Ok(None);
    }
    let stamp = matches!(request.writes, MountWrites::Over(UpperPlace::Kept(_)));
    let resources = Resources { stamp, ..Resources::default() };
    let selection = Selection { salvage: request.salvage, ..Selection::default() };
    Ok(Some(inarch_source::open_with(&request.source, &selection, &resources)?))
}

/// A leased archive, and the loop device through which the kernel reads it.
pub(super) struct Archive {
    lease: Lease,
    device: Arc<Loop>,
    path: PathBuf,
}

impl Archive {
    /// Mounts what was opened from `path`, without a mount point yet.
    ///
    /// # Errors
    /// Why the kernel cannot do it, in a few words.
    pub fn mount(opened: &Opened, path: &Path) -> Result<(Detached, Archive), String> {
        let file = file_of(opened)?;
        let in_spite = |kind| format!("it lies on {kind}, where it can change in spite of a lease");
        Lease::is_heeded(file.as_fd()).map_err(in_spite)?;
        let lease = Lease::of(file.as_fd()).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => "somebody has it open for writing".to_owned(),
            _ => format!("its file system has no leases: {error}"),
        })?;
        let bytes = File::from(file.try_clone().map_err(|error| error.to_string())?);
        let bytes = bytes.metadata().map_err(|error| error.to_string())?.len();
        // `lend` compares the archive with its state when it was opened. The lease keeps that state.
        let most = most_metadata(&opened.tree);
        let metadata = metadata_beside(&opened.tree, bytes / 512 * 512, most, |id| parts(opened, id, &file));
        let metadata = metadata.map_err(|error| error.reason)?;
        let no_device = |error: io::Error| format!("a loop device: {error}");
        let computed = Loop::of(in_memory(&metadata).map_err(|error| error.to_string())?.as_fd()).map_err(no_device)?;
        let device = Loop::of(file.as_fd()).map_err(no_device)?;
        let detached = Detached::erofs(&computed, &device).map_err(|error| error.to_string())?;
        Ok((detached, Archive { lease, device: Arc::new(device), path: path.to_owned() }))
    }

    /// The loop device that shows the archive.
    pub fn device(&self) -> Result<LoopId, JobError> {
        self.device.id().map_err(|error| JobError::path(&self.path, "its loop device cannot be looked at", error))
    }

    /// From now on, when a process wants to change the archive, the kernel reads no more of it. If the loop device fails to do that,
    /// the mount is stopped.
    pub fn guarded(self, events: &Events<MountEvent>, stop: &StopHandle) -> GuardedArchive {
        let Archive { mut lease, device, path } = self;
        let (shown_by, events, stop) = (Arc::clone(&device), events.clone(), stop.clone());
        lease.on_break(move || {
            let error = shown_by.let_go().err().map(Arc::new);
            let is_gone = error.is_none();
            events.emit(MountEvent::Fault(MountFault::ArchiveWritten { path, error }));
            if !is_gone {
                // Rather no mount than a mixture of old and new content.
                stop.stop();
            }
            is_gone
        });
        GuardedArchive { lease, device }
    }
}

/// The most bytes of metadata for this tree.
fn most_metadata(tree: &Tree) -> u64 {
    let entries = tree.inodes().count() as u64;
    METADATA.saturating_add(entries.saturating_mul(METADATA_PER_ENTRY)).min(MOST_METADATA)
}

/// A mounted archive. When this is dropped, the kernel reads no more of it, and then the lease is released.
pub(super) struct GuardedArchive {
    #[expect(dead_code, reason = "it is there to be dropped")]
    lease: Lease,
    device: Arc<Loop>,
}

impl Drop for GuardedArchive {
    fn drop(&mut self) {
        // The guard has done so already, unless it was killed.
        let _ = self.device.let_go();
    }
}

fn in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("inarch-metadata", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// The file that holds the content of the tree: that of the first regular file that is not empty.
fn file_of(opened: &Opened) -> Result<OwnedFd, String> {
    let regular = opened.tree.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular && inode.size() > 0);
    for (id, inode) in regular {
        let mut found = None;
        let lent = opened.content.lend(id, 0, inode.size(), &mut |file, _| {
            found = Some(file.try_clone_to_owned()?);
            Ok(())
        });
        match (lent, found) {
            (Ok(true), Some(file)) => return regular_file(file),
            (Ok(true), None) => {}
            (Ok(false), _) => return Err("its content is compressed".to_owned()),
            (Err(error), _) => return Err(error.to_string()),
        }
    }
    Err("it holds no content".to_owned())
}

fn regular_file(file: OwnedFd) -> Result<OwnedFd, String> {
    let file = File::from(file);
    let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
    // A read lease needs a file that is open for reading only.
    let is_read = fcntl_getfl(&file).is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::RDONLY);
    if is_regular && is_read { Ok(file.into()) } else { Err("it is no regular file".to_owned()) }
}

/// The ranges of `archive` that hold a file's content.
fn parts(opened: &Opened, id: InodeId, archive: &OwnedFd) -> Result<Vec<Lent>, String> {
    let size = opened.tree.inode(id).size();
    if size == 0 {
        return Ok(Vec::new());
    }
    let own = rustix::fs::fstat(archive).map_err(|errno| io::Error::from(errno).to_string())?;
    let mut found = Vec::new();
    let lent = opened.content.lend(id, 0, size, &mut |file, lent| {
        let stat = rustix::fs::fstat(file)?;
        if (stat.st_dev, stat.st_ino) != (own.st_dev, own.st_ino) {
            return Err(io::Error::other("its content is in several files"));
        }
        found.push(lent);
        Ok(())
    });
    match lent {
        Ok(true) => Ok(found),
        Ok(false) => Err("its content is compressed".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}
