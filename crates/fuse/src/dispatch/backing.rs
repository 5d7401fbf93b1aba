//! Files of the host that the kernel reads and writes itself (Linux's Documentation/filesystems/fuse-passthrough.rst).
//!
//! The kernel wants one such file a node while any handle of it is open, and none while one is open without
//! (`fuse_file_uncached_io_open` of fs/fuse/iomode.c): the first open decides, until the last one is closed.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inarch_vfs::{FileSystem, HandleId, NodeId};
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::Dispatcher;
use crate::wire::init_flag;

/// How a node is open.
struct Open {
    handles: u64,
    /// The kernel's number for the host's file; none if data goes through the server.
    backing: Option<i32>,
}

/// The files that were handed to the kernel.
pub(crate) struct Backings {
    device: OwnedFd,
    stack_depth: u32,
    permitted: AtomicBool,
    open: Mutex<HashMap<NodeId, Open>>,
}

impl Backings {
    /// For the connection that `device` is of. With a `stack_depth` of 1 the host's files are on an ordinary file system,
    /// and the mount may be a layer of an overlayfs; with 2 they may be on an overlayfs themselves.
    pub fn new(device: OwnedFd, stack_depth: u32) -> Backings {
        Backings { device, stack_depth, permitted: AtomicBool::new(true), open: Mutex::default() }
    }

    /// How many file systems may lie over each other.
    pub fn stack_depth(&self) -> u32 {
        self.stack_depth
    }

    /// A handle of `node` was opened; gives the kernel's number for its file, if the kernel can have it.
    fn open(&self, node: NodeId, file: impl FnOnce() -> Option<Arc<OwnedFd>>) -> Option<i32> {
        match self.lock().entry(node) {
            Entry::Occupied(mut open) => {
                let open = open.get_mut();
                open.handles += 1;
                open.backing
            }
            Entry::Vacant(vacant) => {
                let file = self.permitted.load(Ordering::Relaxed).then(file).flatten();
                let backing = file.and_then(|file| self.register(&file));
                vacant.insert(Open { handles: 1, backing }).backing
            }
        }
    }

    fn release(&self, node: NodeId) {
        let mut open = self.lock();
        let Entry::Occupied(mut entry) = open.entry(node) else { return };
        entry.get_mut().handles -= 1;
        if entry.get().handles == 0
            && let Some(backing) = entry.remove().backing
        {
            self.unregister(backing);
        }
    }

    /// Takes all of them back.
    pub fn clear(&self) {
        let open = std::mem::take(&mut *self.lock());
        open.into_values().filter_map(|open| open.backing).for_each(|backing| self.unregister(backing));
    }

    fn register(&self, file: &OwnedFd) -> Option<i32> {
        match without_set_id(|| ioctl::open_backing(&self.device, file.as_fd().as_raw_fd())) {
            Ok(backing) => Some(backing),
            Err(Errno::PERM) => {
                // It takes CAP_SYS_ADMIN, which does not come by waiting.
                self.permitted.store(false, Ordering::Relaxed);
                None
            }
            // Of this file it cannot be: what it lies on is stacked already, or has no reads of its own.
            Err(_) => None,
        }
    }

    fn unregister(&self, backing: i32) {
        // Fails only if the connection is gone, and its files with it.
        let _ = ioctl::close_backing(&self.device, backing);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Does something without the thread's privilege to leave set-user-ID and set-group-ID bits where they are (`CAP_FSETID`).
///
/// The kernel writes to a file in the name of who handed it over, with the capabilities of that moment (`fuse_backing_open`
/// of Linux's fs/fuse/passthrough.c), and believes that the server clears these bits. So the host's file system has
/// to clear them at each write, also those that were set when the file was open already.
fn without_set_id<T>(act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let sets = capabilities(None)?;
    if !sets.effective.contains(CapabilitySet::FSETID) {
        return act();
    }
    set_capabilities(None, CapabilitySets { effective: sets.effective.difference(CapabilitySet::FSETID), ..sets })?;
    let done = act();
    // What is permitted can always be taken up again.
    let _ = set_capabilities(None, sets);
    done
}

impl<F: FileSystem + ?Sized> Dispatcher<F> {
    /// The kernel's number for the file behind a handle that was just opened.
    pub(super) fn backing_of(&self, node: NodeId, handle: HandleId) -> Option<i32> {
        let flags = self.agreement.flags().unwrap_or_default();
        let backings = self.backings.as_ref().filter(|_| flags & init_flag::PASSTHROUGH != 0)?;
        backings.open(node, || self.file_system.host_file(node, handle))
    }

    /// A handle is closed.
    pub(super) fn release_backing(&self, node: NodeId) {
        if let Some(backings) = &self.backings {
            backings.release(node);
        }
    }
}

#[allow(unsafe_code, reason = "ioctls")]
mod ioctl {
    use std::ffi::c_void;
    use std::os::fd::OwnedFd;

    use rustix::io::{Errno, Result};
    use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, Setter, ioctl, opcode};

    /// `struct fuse_backing_map`.
    #[repr(C)]
    struct BackingMap {
        fd: i32,
        flags: u32,
        padding: u64,
    }

    /// `FUSE_DEV_IOC_BACKING_OPEN`, whose result is a number.
    struct BackingOpen(BackingMap);

    // SAFETY: the kernel reads one `fuse_backing_map` from the pointer and writes nothing (fuse_dev_ioctl_backing_open in
    // fs/fuse/dev.c); the opcode is that of include/uapi/linux/fuse.h.
    unsafe impl Ioctl for BackingOpen {
        type Output = i32;
        const IS_MUTATING: bool = false;

        fn opcode(&self) -> Opcode {
            opcode::write::<BackingMap>(229, 1)
        }

        fn as_ptr(&mut self) -> *mut c_void {
            (&raw mut self.0).cast()
        }

        unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> Result<i32> {
            Ok(output)
        }
    }

    /// Hands a file to the kernel and gives the number that it has there.
    pub fn open_backing(device: &OwnedFd, fd: i32) -> Result<i32> {
        let open = BackingOpen(BackingMap { fd, flags: 0, padding: 0 });
        // SAFETY: see `BackingOpen`.
        unsafe { ioctl(device, open) }
    }

    /// Takes it back.
    pub fn close_backing(device: &OwnedFd, backing: i32) -> Result<()> {
        /// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, uint32_t)`.
        const CLOSE: Opcode = opcode::write::<u32>(229, 2);
        let backing = u32::try_from(backing).map_err(|_| Errno::NOENT)?;
        // SAFETY: the kernel reads one u32 from the pointer, which `Setter` passes.
        unsafe { ioctl(device, Setter::<CLOSE, u32>::new(backing)) }
    }
}
