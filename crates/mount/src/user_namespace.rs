//! Makes user namespaces that define the owners of idmapped mounts (mount_setattr(2)).
//!
//! A child process makes the namespace, because a process with threads cannot enter a new one. The namespace outlives
//! the child.

#![allow(unsafe_code, reason = "unshare(2)")]

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// `count` IDs from `below`, the file system's, are shown as those from `seen`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The first in the file system.
    pub below: u32,
    /// The first that is seen.
    pub seen: u32,
    /// How many.
    pub count: u32,
}

/// As the kernel takes them (user_namespaces(7)).
fn lines(ranges: &[IdRange]) -> String {
    ranges.iter().map(|IdRange { below, seen, count }| format!("{below} {seen} {count}\n")).collect()
}

/// A namespace with these maps, in which each ID occurs at most once on each side. `child` must start this program
/// such that it calls [`hold_user_namespace`], with pipes as standard input and output.
///
/// # Errors
/// The kernel has no user namespaces, or refuses the maps.
pub fn user_namespace(mut child: Command, users: &[IdRange], groups: &[IdRange]) -> io::Result<OwnedFd> {
    let mut child = child.spawn()?;
    let made = namespace_of(&mut child, users, groups);
    drop(child.stdin.take());
    let ended = child.wait();
    made.and_then(|namespace| ended.map(|_| namespace))
}

fn namespace_of(child: &mut Child, users: &[IdRange], groups: &[IdRange]) -> io::Result<OwnedFd> {
    let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
    let mut ready = [0];
    child.stdout.take().ok_or_else(refused)?.read_exact(&mut ready).map_err(|_| refused())?;
    let place = format!("/proc/{}", child.id());
    fs::write(format!("{place}/uid_map"), lines(users))?;
    fs::write(format!("{place}/gid_map"), lines(groups))?;
    Ok(File::open(format!("{place}/ns/user"))?.into())
}

/// The main function of the child: enters a new user namespace, reports it, and waits for the end of its input.
///
/// # Errors
/// The namespace cannot be made.
pub fn hold_user_namespace() -> io::Result<()> {
    // SAFETY: this process has one thread, and no descriptor and no memory is concerned.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?;
    let mut output = io::stdout();
    output.write_all(b"\n")?;
    output.flush()?;
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}
