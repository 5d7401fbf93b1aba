//! Serves an image to a machine that does not open images itself: a kernel of User-Mode Linux.
//!
//! QEMU locks the images that it opens. This module takes the same locks (`raw_apply_lock_bytes` and `raw_check_lock_bytes` of
//! QEMU's block/file-posix.c), so that each sees the other.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use inarch_block::RawDisk;
use inarch_lifecycle::LifecycleError;
use inarch_lifecycle::PathError;
use inarch_lifecycle::confinement::{Confinement, Work};
use inarch_lifecycle::shown;
use inarch_server::Pending;
use inarch_vhost::Event;
use inarch_vhost::blk::{BlkOptions, BlkServer};
use inarch_vm::image_disk::ImageFormat;
use inarch_vm::machine;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use super::{AttachError, OpenDisk, OpenImage, Purpose};
use crate::JobError;
use crate::run::failure::DiskFailure;
use crate::run::sockets::{Sockets, pair};
use crate::run::{RunError, RunFault};

/// The byte that a process locks for reading if it has permission 0, and the byte that it locks if it shares that permission with no
/// other process.
const HELD: i64 = 100;
const UNSHARED: i64 = 200;

/// Permissions of QEMU's block layer (`BLK_PERM_*`), by their bits: reading, writing, and changing the size.
const READ: i64 = 0;
const WRITE: i64 = 1;
const RESIZE: i64 = 3;

impl OpenDisk {
    /// Refuses an image that is not raw, or that QEMU uses; and keeps QEMU from using it.
    pub(in crate::run) fn take_for_serving(&self, purpose: Purpose) -> Result<(), AttachError> {
        let image = self.raw()?;
        if image.image.is_device || purpose == Purpose::Look {
            return Ok(());
        }
        let locked = lock(&image.image.file, self.read_only);
        match locked {
            Ok(true) => Ok(()),
            Ok(false) => Err(AttachError::InUse { path: self.path().to_owned(), to_read: self.read_only }),
            Err(errno) => Err(PathError::new(self.path(), "cannot be locked", io::Error::from(errno)).into()),
        }
    }

    /// The image, if it is raw.
    fn raw(&self) -> Result<&OpenImage, AttachError> {
        match &self.chain[..] {
            [image] if image.format == ImageFormat::Raw => Ok(image),
            _ => Err(AttachError::NotRaw { path: self.path().to_owned() }),
        }
    }

    /// The disk of a machine that this serves the image to.
    pub(in crate::run) fn served(&self, sockets: Sockets<'_>) -> Result<machine::Disk, JobError> {
        let socket = sockets.get(&self.serial, |failure| {
            let (socket, thread) = self.serve(failure)?;
            sockets.keep(thread);
            Ok(socket)
        })?;
        Ok(machine::Disk { socket, id: self.serial.clone(), queues: 1 })
    }

    /// Serves the image on one end of a new connection; returns the other, and the thread, which ends when the machine does.
    fn serve(&self, failure: &Arc<DiskFailure>) -> Result<(OwnedFd, JoinHandle<()>), JobError> {
        let (ours, theirs) = pair()?;
        let image = self.raw().map_err(RunError::from)?;
        let fail = |error| RunError::from(AttachError::from(PathError::new(self.path(), "cannot be read", error)));
        let disk = image.image.file.try_clone().and_then(|file| RawDisk::new(file, self.read_only)).map_err(fail)?;
        let options = BlkOptions {
            capacity: inarch_block::BlockDevice::capacity(&disk),
            block_size: self.sector,
            read_only: self.read_only,
            serial: (&*self.serial).into(),
            ..BlkOptions::default()
        };
        let (failure, what) = (Arc::clone(failure), format!("{}: it can no longer be served", shown(self.path())));
        let faults = Arc::clone(&failure);
        let lost = move |reason: &dyn std::fmt::Display| {
            RunError::Lost { what: what.clone(), reason: reason.to_string() }.into()
        };
        let lost = Arc::new(lost);
        let on_event = {
            let (lost, failure) = (Arc::clone(&lost), Arc::clone(&failure));
            // The guest sees a failed request; the user is told why it failed. For a stopped queue the guest would wait for ever.
            move |event: Event| match event {
                Event::QueueStopped { .. } => failure.set_ring(lost(&event)),
                event => faults.tell_fault(RunFault::Server(Arc::new(event))),
            }
        };
        let server = BlkServer::new(Arc::new(Pending::ready(Arc::new(disk))), options).on_event(on_event);
        let serve = move || {
            Confinement::new(Work::Disk).ends_processes().enter();
            if let Err(error) = server.serve_stream(ours) {
                failure.set(lost(&error));
            }
        };
        let thread = thread::Builder::new().name("image".to_owned()).spawn(serve).map_err(LifecycleError::Thread)?;
        Ok((theirs, thread))
    }
}

/// Locks a file as QEMU does for a disk that no other machine writes to. Returns false if one uses it otherwise.
fn lock(file: &File, read_only: bool) -> Result<bool, Errno> {
    let held: &[i64] = if read_only { &[READ] } else { &[READ, WRITE] };
    let unshared = [WRITE, RESIZE];
    let bytes = held.iter().map(|bit| HELD + bit).chain(unshared.map(|bit| UNSHARED + bit));
    for byte in bytes {
        match fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&range(libc::F_RDLCK, byte))) {
            // A file system without locks.
            Err(Errno::EOPNOTSUPP | Errno::ENOLCK | Errno::EINVAL) => return Ok(true),
            Err(Errno::EAGAIN | Errno::EACCES) => return Ok(false),
            done => done.map(drop)?,
        }
    }
    // What we have and others do not share, and what we do not share and others have.
    let bytes = held.iter().map(|bit| UNSHARED + bit).chain(unshared.map(|bit| HELD + bit));
    for byte in bytes {
        let mut other = range(libc::F_WRLCK, byte);
        fcntl(file.as_fd(), FcntlArg::F_OFD_GETLK(&mut other))?;
        if i32::from(other.l_type) != libc::F_UNLCK {
            return Ok(false);
        }
    }
    Ok(true)
}

fn range(kind: i32, byte: i64) -> libc::flock {
    libc::flock { l_type: kind as i16, l_whence: libc::SEEK_SET as i16, l_start: byte, l_len: 1, l_pid: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_share_an_image_and_writers_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image");
        File::create(&path).unwrap().set_len(1 << 20).unwrap();
        // Each open file is another machine.
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (first, second, third) = (open(), open(), open());
        assert!(lock(&first, true).unwrap() && lock(&second, true).unwrap());
        assert!(!lock(&third, false).unwrap());
        drop((first, second, third));
        let (first, second, third) = (open(), open(), open());
        assert!(lock(&first, false).unwrap());
        assert!(!lock(&second, false).unwrap() && !lock(&third, true).unwrap());
        drop(first);
        drop((second, third));
        assert!(lock(&open(), false).unwrap());
    }
}
