//! Takes locks on the host's files, where host programs and other clients see them.
//!
//! An fcntl(2) lock belongs to its owner, whichever descriptor it was taken through; an open-file-description lock of
//! the host belongs to an open file. So each owner that locks a node gets an open file of its own, used for locks
//! only. A flock(2) lock belongs to the open file here as on the host. It still gets a separate open file, because
//! with passthrough the kernel keeps a file open longer than its client does.
//!
//! An owner's locks end when it closes any descriptor of the file, which the client reports ([`Locks::end`]). A lock
//! of a client's open file (`F_OFD_SETLK`) also comes with an owner, but its end is not reported. It ends when the
//! file it was taken through is released ([`Locks::release`]). By then no process's lock is left on it, because
//! closing the file ended those.
//!
//! The file that carries locks is opened for writing only if the client writes or wants an exclusive lock: a program
//! that is open for writing cannot be executed.

mod carrier;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::fs::OFlags;
use rustix::io::Errno;

use self::carrier::Carrier;
use super::{HostDirectory, hold, system_calls};
use crate::{Context, HandleId, Lock, LockKind, LockOwner, NodeId};

/// The longest pause between two attempts at a lock that somebody else holds.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Whose locks an open file carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// A process or open file with fcntl(2) locks.
    Owner(LockOwner),
    /// An open file with flock(2) locks.
    Handle(HandleId),
}

/// The open files that carry locks.
#[derive(Debug)]
pub(super) struct Locks {
    held: Mutex<Held>,
    limit: usize,
}

#[derive(Debug, Default)]
struct Held {
    files: HashMap<(NodeId, Holder), Locked>,
    /// The owners that took locks through each open file.
    by_handle: HashMap<(NodeId, HandleId), HashSet<LockOwner>>,
    /// The number of owners in `by_handle`.
    pairs: usize,
}

#[derive(Debug)]
struct Locked {
    carrier: Arc<Carrier>,
    /// The open files that the owner took locks through.
    handles: HashSet<HandleId>,
}

/// The most open files that an owner may lock one node through, on average.
const HANDLES: usize = 16;

impl Held {
    fn end(&mut self, node: NodeId, holder: Holder) -> Option<Arc<Carrier>> {
        let locked = self.files.remove(&(node, holder))?;
        if let Holder::Owner(owner) = holder {
            for handle in locked.handles {
                let key = (node, handle);
                let Some(owners) = self.by_handle.get_mut(&key) else { continue };
                self.pairs -= usize::from(owners.remove(&owner));
                if owners.is_empty() {
                    self.by_handle.remove(&key);
                }
            }
        }
        Some(locked.carrier)
    }
}

impl Locks {
    /// At most `limit` carriers.
    pub fn new(limit: usize) -> Locks {
        Locks { held: Mutex::default(), limit: limit.max(1) }
    }

    /// Releases all locks of a holder on a node.
    pub fn end(&self, node: NodeId, holder: Holder) {
        let ended = hold(&self.held).end(node, holder);
        drop(ended);
    }

    /// Releases the locks taken through an open file that is being closed.
    pub fn release(&self, node: NodeId, handle: HandleId) {
        let mut held = hold(&self.held);
        let owners = held.by_handle.get(&(node, handle)).cloned().unwrap_or_default();
        let holders = owners.into_iter().map(Holder::Owner).chain([Holder::Handle(handle)]);
        let ended: Vec<_> = holders.map(|holder| held.end(node, holder)).collect();
        drop(held);
        drop(ended);
    }

    /// Releases all locks.
    pub fn end_all(&self) {
        let held = std::mem::take(&mut *hold(&self.held));
        drop(held);
    }

    fn get(&self, node: NodeId, holder: Holder) -> Option<Arc<Carrier>> {
        hold(&self.held).files.get(&(node, holder)).map(|locked| Arc::clone(&locked.carrier))
    }

    /// The carrier of a holder's locks, `new` if there is none yet. Records that `handle` is locked through it.
    fn insert(
        &self,
        node: NodeId,
        handle: HandleId,
        holder: Holder,
        new: Option<Carrier>,
    ) -> Result<Arc<Carrier>, Errno> {
        let held = &mut *hold(&self.held);
        if held.files.len() >= self.limit && !held.files.contains_key(&(node, holder)) {
            return Err(Errno::NOLCK);
        }
        if let Holder::Owner(owner) = holder {
            let is_known = held.by_handle.get(&(node, handle)).is_some_and(|owners| owners.contains(&owner));
            if !is_known && held.pairs >= self.limit.saturating_mul(HANDLES) {
                return Err(Errno::NOLCK);
            }
            held.pairs += usize::from(held.by_handle.entry((node, handle)).or_default().insert(owner));
        }
        let locked = match held.files.entry((node, holder)) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => {
                let carrier = Arc::new(new.ok_or(Errno::NOLCK)?);
                place.insert(Locked { carrier, handles: HashSet::new() })
            }
        };
        locked.handles.insert(handle);
        Ok(Arc::clone(&locked.carrier))
    }
}

impl HostDirectory {
    /// The carrier of a holder's locks on the file of `handle`; open for writing if the locks are to `exclude`
    /// readers.
    fn carrier(&self, node: NodeId, handle: HandleId, holder: Holder, exclude: bool) -> Result<Arc<Carrier>, Errno> {
        self.require_regular(node)?;
        let there = self.locks.get(node, holder);
        let new = match &there {
            Some(_) => None,
            None => Some(self.open_carrier(node, handle, exclude)?),
        };
        let carrier = self.locks.insert(node, handle, holder, new)?;
        if exclude && !carrier.is_writable() {
            carrier.reopen(self.open_carrier(node, handle, true)?)?;
        }
        Ok(carrier)
    }

    fn open_carrier(&self, node: NodeId, handle: HandleId, exclude: bool) -> Result<Carrier, Errno> {
        let open = |from: BorrowedFd<'_>, writes: bool| {
            let way = |flags| self.open_again(from, flags | OFlags::NONBLOCK);
            match writes {
                // For both if possible: a shared lock needs a file open for reading, an exclusive one a file open for
                // writing.
                true => way(OFlags::RDWR).or_else(|_| way(OFlags::WRONLY)).map(|file| Carrier::new(file, true)),
                false => way(OFlags::RDONLY).map(|file| Carrier::new(file, false)),
            }
        };
        match self.file(node, handle) {
            // As fcntl(2) does.
            Ok(file) if exclude && !file.writable => Err(Errno::BADF),
            Ok(file) => open(file.descriptor.as_fd(), file.writable),
            // Whether the file is open for writing is known to the client alone.
            Err(_) if !self.opens_files() => {
                if exclude {
                    self.writable().map_err(|_| Errno::BADF)?;
                }
                open(self.readable_unopened(node)?.as_fd(), exclude)
            }
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn conflicting_lock(
        &self,
        node: NodeId,
        handle: HandleId,
        owner: LockOwner,
        lock: &Lock,
    ) -> Result<Option<Lock>, Errno> {
        if !self.options.locks {
            return Err(Errno::NOSYS);
        }
        self.require_regular(node)?;
        let mut raw = to_raw(lock)?;
        match self.locks.get(node, Holder::Owner(owner)) {
            Some(carrier) => carrier.test(&mut raw)?,
            // Plain I/O locks nothing.
            None => system_calls::lock(self.readable_or_open(node, handle)?.as_fd(), libc::F_OFD_GETLK, &mut raw)?,
        }
        Ok(from_raw(&raw))
    }

    fn readable_or_open(&self, node: NodeId, handle: HandleId) -> Result<Arc<OwnedFd>, Errno> {
        match self.file(node, handle) {
            Err(_) if !self.opens_files() => self.readable_unopened(node),
            file => Ok(file?.descriptor),
        }
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
        if !self.options.locks {
            return Err(Errno::NOSYS);
        }
        let holder = if lock.whole_file { Holder::Handle(handle) } else { Holder::Owner(owner) };
        if lock.kind == LockKind::None && self.locks.get(node, holder).is_none() {
            return Ok(());
        }
        if lock.whole_file {
            let carrier = self.carrier(node, handle, holder, false)?;
            return attempt(context, wait, || carrier.lock_whole(lock.kind));
        }
        let raw = to_raw(lock)?;
        let carrier = self.carrier(node, handle, holder, lock.kind == LockKind::Exclusive)?;
        attempt(context, wait, || carrier.lock(lock, &raw))
    }
}

/// Retries until it succeeds if told to `wait`, or until the request is interrupted. The kernel's own wait could not
/// be interrupted for a single request.
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
    // A length of 0 means up to any future end.
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
    // For a lock of an open file the kernel reports the process -1.
    Some(Lock { kind, start, end, pid: u32::try_from(raw.l_pid).unwrap_or(0), whole_file: false })
}
