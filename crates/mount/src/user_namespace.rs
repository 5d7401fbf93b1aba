//! A user namespace that says whose files an idmapped mount shows (mount_setattr(2)).
//!
//! It is made by a child, as a process with threads cannot enter one, and stays when that has ended.

#![allow(unsafe_code, reason = "unshare(2)")]

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// So many ids from `below` on, owners in the file system, are seen as those from `seen` on.
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

/// A namespace with these maps, each id at most once on each side. `child` starts this program so that it calls
/// [`hold_user_namespace`], with pipes for its standard input and output.
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

/// The child's whole life: enters a new user namespace, says so, and waits until its input ends.
///
/// # Errors
/// There can be none.
pub fn hold_user_namespace() -> io::Result<()> {
    // SAFETY: this process has one thread, and no descriptor and no memory is concerned.
    unsafe { unshare_unsafe(UnshareFlags::NEWUSER) }?;
    let mut output = io::stdout();
    output.write_all(b"\n")?;
    output.flush()?;
    io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
}
