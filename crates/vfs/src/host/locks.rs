//! Locks on the host's files, seen by the host's programs and by other clients.
//!
//! A lock of fcntl(2) is its owner's, whichever of the file's descriptors it was taken by, and one of a host's open file
//! is that file's. So each owner that locks a node has an open file of it for its locks alone. A lock of flock(2) is the
//! opened file's, here as there; but it too is taken on a file of its own, for the kernel that reads and writes an opened
//! file by itself keeps it open longer than its client does.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;

use super::{HostDirectory, hold, system_calls};
use crate::{Context, HandleId, Lock, LockKind, LockOwner, NodeId};

/// Longest time between two attempts at a lock that somebody else has.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Whose locks an open file carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// A process's, of fcntl(2).
    Owner(LockOwner),
    /// An opened file's, of flock(2).
    Handle(HandleId),
}

/// The open files of those who have locks.
#[derive(Debug)]
pub(super) struct Locks {
    files: Mutex<HashMap<(NodeId, Holder), Arc<OwnedFd>>>,
    limit: usize,
}

impl Locks {
    /// Of at most so many of them.
    pub fn new(limit: usize) -> Locks {
        Locks { files: Mutex::default(), limit: limit.max(1) }
    }

    /// Ends all of somebody's locks on a node.
    pub fn end(&self, node: NodeId, holder: Holder) {
        let file = hold(&self.files).remove(&(node, holder));
        drop(file);
    }

    /// Ends the locks of all owners.
    pub fn end_all(&self) {
        let files = std::mem::take(&mut *hold(&self.files));
        drop(files);
    }

    fn get(&self, node: NodeId, holder: Holder) -> Option<Arc<OwnedFd>> {
        hold(&self.files).get(&(node, holder)).cloned()
    }

    fn insert(&self, node: NodeId, holder: Holder, file: OwnedFd) -> Result<Arc<OwnedFd>, Errno> {
        let mut files = hold(&self.files);
        if files.len() >= self.limit {
            return Err(Errno::NOLCK);
        }
        Ok(files.entry((node, holder)).or_insert_with(|| Arc::new(file)).clone())
    }
}

impl HostDirectory {
    /// The open file that carries somebody's locks on what `handle` is of.
    fn lock_file(&self, node: NodeId, handle: HandleId, holder: Holder) -> Result<Arc<OwnedFd>, Errno> {
        if !self.options.locks {
            return Err(Errno::NOSYS);
        }
        let file = self.file(node, handle)?;
        self.require_regular(node)?;
        if let Some(file) = self.locks.get(node, holder) {
            return Ok(file);
        }
        // Both ways, if that is possible, for another handle of the owner may be for another way.
        let open = |flags| self.open_again(file.descriptor.as_fd(), flags | OFlags::NONBLOCK);
        let own = open(OFlags::RDWR).or_else(|_| open(if file.writable { OFlags::WRONLY } else { OFlags::RDONLY }))?;
        self.locks.insert(node, holder, own)
    }

    pub(super) fn conflicting_lock(
        &self,
        node: NodeId,
        handle: HandleId,
        owner: LockOwner,
        lock: &Lock,
    ) -> Result<Option<Lock>, Errno> {
        let file = self.lock_file(node, handle, Holder::Owner(owner))?;
        let mut raw = to_raw(lock)?;
        system_calls::lock(file.as_fd(), libc::F_OFD_GETLK, &mut raw)?;
        Ok(from_raw(&raw))
    }

    pub(super) fn take_lock(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        owner: LockOwner,
        lock: &Lock,
        wait: bool,
    ) -> Result<(), Errno> {
        let holder = if lock.whole_file { Holder::Handle(handle) } else { Holder::Owner(owner) };
        if lock.kind == LockKind::None && self.locks.get(node, holder).is_none() {
            return if self.options.locks { Ok(()) } else { Err(Errno::NOSYS) };
        }
        let file = self.lock_file(node, handle, holder)?;
        if lock.whole_file {
            let operation = match lock.kind {
                LockKind::Shared => FlockOperation::NonBlockingLockShared,
                LockKind::Exclusive => FlockOperation::NonBlockingLockExclusive,
                LockKind::None => FlockOperation::NonBlockingUnlock,
            };
            return attempt(context, wait, || flock(&file, operation));
        }
        let raw = to_raw(lock)?;
        attempt(context, wait, || system_calls::lock(file.as_fd(), libc::F_OFD_SETLK, &mut raw.clone()))
    }
}

/// Tries until it works, if it is to `wait`, or nobody waits for it any more. The kernel's own waiting could not be
/// ended for one request.
fn attempt(context: &Context<'_>, wait: bool, lock: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    let mut pause = Duration::from_micros(200);
    loop {
        match lock() {
            Err(Errno::AGAIN | Errno::ACCESS) if wait => {}
            Err(Errno::ACCESS) => return Err(Errno::AGAIN),
            result => return result,
        }
        if context.is_interrupted() {
            return Err(Errno::INTR);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn to_raw(lock: &Lock) -> Result<libc::flock, Errno> {
    let kind = match lock.kind {
        LockKind::Shared => libc::F_RDLCK,
        LockKind::Exclusive => libc::F_WRLCK,
        LockKind::None => libc::F_UNLCK,
    };
    let start = i64::try_from(lock.start).map_err(|_| Errno::INVAL)?;
    // A length of 0 is all there is and will be.
    let length = match lock.end.checked_sub(lock.start).ok_or(Errno::INVAL)?.checked_add(1) {
        Some(length) if lock.end < i64::MAX as u64 => i64::try_from(length).map_err(|_| Errno::INVAL)?,
        _ => 0,
    };
    Ok(libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    })
}

fn from_raw(raw: &libc::flock) -> Option<Lock> {
    let kind = match i32::from(raw.l_type) {
        libc::F_RDLCK => LockKind::Shared,
        libc::F_WRLCK => LockKind::Exclusive,
        _ => return None,
    };
    let start = u64::try_from(raw.l_start).unwrap_or(0);
    let end = match u64::try_from(raw.l_len) {
        Ok(length) if length > 0 => start.saturating_add(length - 1),
        _ => u64::MAX,
    };
    // Of a lock of an open file no process is known: -1.
    Some(Lock { kind, start, end, pid: u32::try_from(raw.l_pid).unwrap_or(0), whole_file: false })
}
