//! Passthrough: host files that the kernel reads and writes itself (Linux's
//! Documentation/filesystems/fuse-passthrough.rst).
//!
//! All open handles of a node must use the same backing file, or none (`fuse_file_uncached_io_open` of
//! fs/fuse/iomode.c). So the first open of a node decides, until its last handle is closed.

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
    /// The kernel's backing ID; `None` if data goes through the server.
    backing: Option<i32>,
}

/// The backing files registered with the kernel.
pub(crate) struct Backings {
    device: OwnedFd,
    stack_depth: u32,
    permitted: AtomicBool,
    open: Mutex<HashMap<NodeId, Open>>,
}

impl Backings {
    /// For the connection of `device`. With a `stack_depth` of 1, host files must be on an ordinary file system, and
    /// the mount may be a layer of an overlayfs. With 2, host files may be on an overlayfs themselves.
    pub fn new(device: OwnedFd, stack_depth: u32) -> Backings {
        Backings { device, stack_depth, permitted: AtomicBool::new(true), open: Mutex::default() }
    }

    /// The maximum depth of stacked file systems.
    pub fn stack_depth(&self) -> u32 {
        self.stack_depth
    }

    /// Records an open of `node`. Returns the backing ID if the kernel can use the file.
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

    /// Closes all backing files.
    pub fn clear(&self) {
        let open = std::mem::take(&mut *self.lock());
        open.into_values().filter_map(|open| open.backing).for_each(|backing| self.unregister(backing));
    }

    fn register(&self, file: &OwnedFd) -> Option<i32> {
        match without_set_id(|| ioctl::open_backing(&self.device, file.as_fd().as_raw_fd())) {
            Ok(backing) => Some(backing),
            Err(Errno::PERM) => {
                // It needs CAP_SYS_ADMIN, which this process will not get later.
                self.permitted.store(false, Ordering::Relaxed);
                None
            }
            // This file cannot be a backing file: its file system is already stacked, or has no read operation.
            Err(_) => None,
        }
    }

    fn unregister(&self, backing: i32) {
        // This fails only if the connection is gone, and its backing files with it.
        let _ = ioctl::close_backing(&self.device, backing);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Calls `act` without `CAP_FSETID`, which lets a thread keep set-user-ID and set-group-ID bits on write.
///
/// The kernel writes with the credentials of the process that registered the file, as of then (`fuse_backing_open` of
/// Linux's fs/fuse/passthrough.c), and expects the server to clear these bits. Without the capability, the host's
/// file system clears them at each write, including bits that were already set when the file was opened.
fn without_set_id<T>(act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    let sets = capabilities(None)?;
    if !sets.effective.contains(CapabilitySet::FSETID) {
        return act();
    }
    set_capabilities(None, CapabilitySets { effective: sets.effective.difference(CapabilitySet::FSETID), ..sets })?;
    let done = act();
    // Permitted capabilities can always be made effective again.
    let _ = set_capabilities(None, sets);
    done
}

impl<F: FileSystem + ?Sized> Dispatcher<F> {
    /// The backing ID for a newly opened handle.
    pub(super) fn backing_of(&self, node: NodeId, handle: HandleId) -> Option<i32> {
        let flags = self.agreement.flags().unwrap_or_default();
        let backings = self.backings.as_ref().filter(|_| flags & init_flag::PASSTHROUGH != 0)?;
        backings.open(node, || self.file_system.host_file(node, handle))
    }

    /// Records the close of a handle.
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

    /// `FUSE_DEV_IOC_BACKING_OPEN`, which returns a backing ID.
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

    /// Registers a file with the kernel. Returns its backing ID.
    pub fn open_backing(device: &OwnedFd, fd: i32) -> Result<i32> {
        let open = BackingOpen(BackingMap { fd, flags: 0, padding: 0 });
        // SAFETY: see `BackingOpen`.
        unsafe { ioctl(device, open) }
    }

    /// Closes a backing file.
    pub fn close_backing(device: &OwnedFd, backing: i32) -> Result<()> {
        /// `FUSE_DEV_IOC_BACKING_CLOSE`: `_IOW(229, 2, uint32_t)`.
        const CLOSE: Opcode = opcode::write::<u32>(229, 2);
        let backing = u32::try_from(backing).map_err(|_| Errno::NOENT)?;
        // SAFETY: the kernel reads one u32 from the pointer, which `Setter` passes.
        unsafe { ioctl(device, Setter::<CLOSE, u32>::new(backing)) }
    }
}
