//! Gives a thread mounts of its own, and another root.

#![allow(unsafe_code, reason = "unshare(2)")]

use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{
    MountAttrFlags, MountPropagationFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, mount_change, move_mount,
    open_tree, unmount,
};
use rustix::process::{chdir, fchdir, getegid, geteuid, pivot_root};
use rustix::thread::{UnshareFlags, unshare_unsafe};

use super::attributes::set_attributes;
use super::detached::{Refusal, refused};

/// Gives the calling thread a mount namespace, a root and a working directory of its own. Later mounts of the host
/// propagate into it, not the other way round.
///
/// # Errors
/// The caller lacks `CAP_SYS_ADMIN`.
pub fn unshare_mounts() -> Result<(), Refusal> {
    // SAFETY: no descriptor and no memory is affected.
    unsafe { unshare_unsafe(UnshareFlags::NEWNS) }.map_err(refused("unshare"))?;
    receive_only()
}

/// The same for a user without privilege: in a new user namespace, in which this user and group are the only ones, and have
/// their own numbers. Files of others belong to nobody there. For a process with one thread.
///
/// # Errors
/// The kernel has no user namespaces, or this user may make none.
pub fn unshare_mounts_as_user() -> Result<(), Refusal> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    // SAFETY: no descriptor and no memory is affected.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }.map_err(refused("unshare"))?;
    // A group may be mapped by its member only where groups cannot be dropped (user_namespaces(7)).
    let maps = [
        ("setgroups", "deny".to_owned()),
        ("uid_map", format!("{user} {user} 1")),
        ("gid_map", format!("{group} {group} 1")),
    ];
    for (name, map) in maps {
        let written = fs::write(format!("/proc/self/{name}"), map);
        written
            .map_err(|error| rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::PERM))
            .map_err(refused(name))?;
    }
    receive_only()
}

fn receive_only() -> Result<(), Refusal> {
    mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC).map_err(refused("mount"))
}

/// What is at `path` with all that is mounted beneath it, mounted nowhere yet.
///
/// # Errors
/// Those of open_tree(2).
pub fn clone_tree(path: &Path) -> Result<OwnedFd, Refusal> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    open_tree(CWD, path, flags).map_err(refused("open_tree"))
}

/// Mounts what [`clone_tree`] made, or another detached mount, on `point`, a directory or a file.
///
/// # Errors
/// Those of move_mount(2).
pub fn attach_tree(tree: BorrowedFd<'_>, point: BorrowedFd<'_>) -> Result<(), Refusal> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", point, "", flags).map_err(refused("move_mount"))
}

/// Sets on `root`, a detached mount, the restrictions of the mount that it stands for.
///
/// # Errors
/// Those of mount_setattr(2).
pub fn restrict(root: BorrowedFd<'_>, flags: MountAttrFlags) -> Result<(), Refusal> {
    set_attributes(root, flags, false, false, None).map_err(refused("mount_setattr"))
}

/// Sets them at and beneath `point` only, a file or directory, by a bind mount of it on itself.
///
/// # Errors
/// Those of open_tree(2), mount_setattr(2) and move_mount(2).
pub fn restrict_beneath(point: BorrowedFd<'_>, flags: MountAttrFlags) -> Result<(), Refusal> {
    let how = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(point, "", how).map_err(refused("open_tree"))?;
    restrict(tree.as_fd(), flags)?;
    attach_tree(tree.as_fd(), point)
}

/// Makes `root`, a detached mount, the root directory, and `/` in it the working directory. Calls `fill` when it is
/// mounted and the old root is still there. The thread must have [mounts of its own](unshare_mounts). After a failure
/// the root is as before.
///
/// # Errors
/// Those of `fill`, move_mount(2) and pivot_root(2).
pub fn replace_root(root: BorrowedFd<'_>, fill: impl FnOnce() -> Result<(), Refusal>) -> Result<(), Refusal> {
    // Mount it over the old root, which pivot_root then replaces.
    move_mount(root, "", CWD, "/", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH).map_err(refused("move_mount"))?;
    let entered = (|| {
        fill()?;
        fchdir(root).map_err(refused("fchdir"))?;
        // The old root is then mounted over the new one, see pivot_root(2).
        pivot_root(".", ".").map_err(refused("pivot_root"))
    })();
    if let Err(failure) = entered {
        // Fails only if it is gone already.
        let _ = fchdir(root).and_then(|()| unmount(".", UnmountFlags::DETACH));
        let _ = chdir("/");
        return Err(failure);
    }
    unmount(".", UnmountFlags::DETACH).map_err(refused("umount2"))?;
    chdir("/").map_err(refused("chdir"))
}
