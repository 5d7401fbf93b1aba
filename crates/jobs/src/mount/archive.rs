//! An archive or image that the kernel reads by itself: an EROFS of computed metadata over the bytes where they lie.
//!
//! 1. The archive is leased, so that whoever opens it for writing, or cuts it, waits ([`Lease`]). Then it is still what was read.
//! 2. The metadata is computed into memory: the kernel parses nothing of the archive.
//! 3. Both are loop devices, and an EROFS is mounted from them.
//! 4. When the lease is wanted back, the archive's device is cut to nothing first: what was not read by then is an I/O error. Then the
//!    lease is given up, and the archive named. So no read gives what was written meanwhile.
//! 5. When this process ends, in whichever way, its guard cuts the device and lets the archive go ([`crate::lifecycle::guard`]): the
//!    lease ends, and a mount that is in use then goes on without it. If the guard was killed, this process does so.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use inarch_block::Lent;
use inarch_format::erofs::metadata_beside;
use inarch_mount::{Detached, Lease, Loop, LoopId};
use inarch_server::StopHandle;
use inarch_tree::select::Selection;
use inarch_tree::{FileType, InodeId, Tree};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, memfd_create};
use signal_hook::consts::SIGIO;
use signal_hook::iterator::{Handle, Signals};

use super::{MountEvent, MountRequest, MountWrites};
use crate::JobError;
use crate::events::Events;
use crate::source::{self, Opened, Resources, Source};
use crate::text::shown;
use crate::upper::UpperPlace;

/// Bytes of metadata in memory at most, for any tree, and as many more for each of its entries: several times what an entry has
/// whose content is in one part. A few bytes of an archive can tell of holes whose map takes any number.
const METADATA: u64 = 64 << 20;
const METADATA_PER_ENTRY: u64 = 1 << 10;

/// So many at most in any case.
const MOST_METADATA: u64 = 1 << 30;

/// Opens the source, unless it is a directory.
pub(super) fn open(request: &MountRequest) -> Result<Option<Opened>, JobError> {
    if let Source::Directory(_) = request.source {
        return Ok(None);
    }
    let stamp = matches!(request.writes, MountWrites::Over(UpperPlace::Kept(_)));
    let resources = Resources { stamp, ..Resources::default() };
    let selection = Selection { salvage: request.salvage, ..Selection::default() };
    Ok(Some(source::open_with(&request.source, &selection, &resources)?))
}

/// What the kernel reads.
pub(super) struct Archive {
    leased: Leased,
    signals: Signals,
}

/// A leased archive, and the device by which the kernel reads it.
struct Leased {
    lease: Lease,
    device: Loop,
    path: PathBuf,
}

impl Archive {
    /// A mount of what was opened from `path`, nowhere yet.
    ///
    /// # Errors
    /// Why the kernel cannot do it, in a few words.
    pub fn mount(opened: &Opened, path: &Path) -> Result<(Detached, Archive), String> {
        let file = file_of(opened)?;
        // What comes before the thread that heeds it is kept for that.
        let signals = Signals::new([SIGIO]).map_err(|error| error.to_string())?;
        let in_spite = |kind| format!("it lies on {kind}, where it can change in spite of a lease");
        Lease::is_heeded(file.as_fd()).map_err(in_spite)?;
        let lease = Lease::of(file.as_fd()).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => "somebody has it open for writing".to_owned(),
            _ => format!("its file system has no leases: {error}"),
        })?;
        let bytes = File::from(file.try_clone().map_err(|error| error.to_string())?);
        let bytes = bytes.metadata().map_err(|error| error.to_string())?.len();
        // Each look at a file's parts finds the archive as it was when it was opened: now that it is leased it stays so.
        let most = most_metadata(&opened.tree);
        let metadata = metadata_beside(&opened.tree, bytes / 512 * 512, most, |id| parts(opened, id, &file));
        let metadata = metadata.map_err(|error| error.reason)?;
        let no_device = |error: io::Error| format!("a loop device: {error}");
        let computed = Loop::of(in_memory(&metadata).map_err(|error| error.to_string())?.as_fd()).map_err(no_device)?;
        let device = Loop::of(file.as_fd()).map_err(no_device)?;
        let detached = Detached::erofs(&computed, &device).map_err(|error| error.to_string())?;
        Ok((detached, Archive { leased: Leased { lease, device, path: path.to_owned() }, signals }))
    }

    /// The device of the archive's bytes.
    pub fn device(&self) -> Result<LoopId, JobError> {
        let Leased { device, path, .. } = &self.leased;
        device.id().map_err(|error| JobError::path(path, "its loop device cannot be looked at", error))
    }

    /// Has a thread wait for whoever wants to change the archive.
    pub fn guarded(self, events: &Events<MountEvent>, stop: &StopHandle) -> GuardedArchive {
        let Archive { leased, mut signals } = self;
        let (leased, handle) = (Arc::new(leased), signals.handle());
        let (held, events, stop) = (Arc::clone(&leased), events.clone(), stop.clone());
        thread::spawn(move || {
            // Other signals of this number are nobody's.
            if signals.forever().any(|_| !held.lease.holds()) {
                let (line, is_cut) = cut(&held.device, &held.path);
                events.emit(MountEvent::Fault(line));
                // Rather no mount than a mixture.
                if is_cut { held.lease.give_up() } else { stop.stop() }
            }
        });
        GuardedArchive { handle, leased }
    }
}

/// Bytes of metadata that are made of a tree at most.
fn most_metadata(tree: &Tree) -> u64 {
    let entries = tree.inodes().count() as u64;
    METADATA.saturating_add(entries.saturating_mul(METADATA_PER_ENTRY)).min(MOST_METADATA)
}

/// Reads no further. Gives the line that says so, and whether that could be done.
fn cut(device: &Loop, path: &Path) -> (String, bool) {
    let (path, cut) = (shown(path), device.cut());
    let outcome = match &cut {
        Ok(()) => "; what was not read before is an I/O error from now on".to_owned(),
        Err(error) => format!(", and it cannot be let go: {error}"),
    };
    (format!("{path}: somebody writes to it while it is mounted{outcome}"), cut.is_ok())
}

/// An archive that is mounted. Its lease ends with this, and what was not read of it before is an I/O error from then on.
pub(super) struct GuardedArchive {
    handle: Handle,
    leased: Arc<Leased>,
}

impl Drop for GuardedArchive {
    fn drop(&mut self) {
        self.handle.close();
        // The guard has cut it already, unless it was killed.
        if self.leased.device.cut().is_ok() {
            self.leased.lease.give_up();
        }
    }
}

fn in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("inarch-metadata", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    Ok(file.into())
}

/// The file that holds the content of the first file that has any.
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
    // What is not to be read is no file to lease.
    let is_read = fcntl_getfl(&file).is_ok_and(|flags| flags & OFlags::ACCMODE == OFlags::RDONLY);
    if is_regular && is_read { Ok(file.into()) } else { Err("it is no regular file".to_owned()) }
}

/// Where a file's content is in `archive`.
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
