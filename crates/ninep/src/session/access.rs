//! Checks whether a client's user has the permissions that a request needs.
//!
//! The protocol names a caller's user, never its groups. The client's kernel has checked group membership before it
//! asked. So here a group's permissions count for everybody but the owner. They are also the limit of an access control
//! list, because no entry of one may exceed them. Root may do everything.

use inarch_vfs::Attributes;
use rustix::io::Errno;

use super::place::{DIRECTORY, REGULAR, TYPE_MASK};

/// A permission, in the three bits of each class.
pub const READ: u32 = 4;
/// A permission.
pub const WRITE: u32 = 2;
/// A permission; for a directory: searching it.
pub const EXECUTE: u32 = 1;

/// Only the owners of a name and of the directory can remove it (`S_ISVTX`).
const STICKY: u32 = 0o1000;

/// The permissions that `uid` has.
fn permissions(uid: u32, attributes: &Attributes) -> u32 {
    let mode = attributes.mode;
    match uid {
        0 => 0o7,
        uid if uid == attributes.uid => mode >> 6 & 0o7,
        _ => (mode >> 3 | mode) & 0o7,
    }
}

/// `EACCES` unless `uid` has all of `wanted`.
pub fn check(uid: u32, attributes: &Attributes, wanted: u32) -> Result<(), Errno> {
    if permissions(uid, attributes) & wanted == wanted { Ok(()) } else { Err(Errno::ACCESS) }
}

/// `EACCES` unless `uid` has one of `wanted`.
pub fn check_any(uid: u32, attributes: &Attributes, wanted: u32) -> Result<(), Errno> {
    if permissions(uid, attributes) & wanted != 0 { Ok(()) } else { Err(Errno::ACCESS) }
}

/// `EPERM` unless `uid` is the owner, or root.
pub fn check_owner(uid: u32, attributes: &Attributes) -> Result<(), Errno> {
    if uid == 0 || uid == attributes.uid { Ok(()) } else { Err(Errno::PERM) }
}

/// Whether `uid` may remove names from a directory, whoever owns them.
pub fn may_remove_any(uid: u32, directory: &Attributes) -> bool {
    directory.mode & STICKY == 0 || uid == 0 || uid == directory.uid
}

/// `EACCES` unless `uid` may move an inode to another parent: moving a directory changes its `..`.
pub fn check_move(uid: u32, attributes: &Attributes) -> Result<(), Errno> {
    if attributes.mode & TYPE_MASK == DIRECTORY { check(uid, attributes, WRITE) } else { Ok(()) }
}

/// `EPERM` unless `uid` may link the file. Another user could not get rid of the link, so it is allowed only if the
/// caller could copy and change the file (`safe_hardlink_source` of Linux's fs/namei.c, for fs.protected_hardlinks).
pub fn check_link(uid: u32, attributes: &Attributes) -> Result<(), Errno> {
    const SET_USER_ID: u32 = 0o4000;
    const GIVES_GROUP: u32 = 0o2010;
    let mode = attributes.mode;
    let gives_rights = mode & SET_USER_ID != 0 || mode & GIVES_GROUP == GIVES_GROUP;
    let is_safe = mode & TYPE_MASK == REGULAR && !gives_rights && check(uid, attributes, READ | WRITE).is_ok();
    if is_safe { Ok(()) } else { check_owner(uid, attributes) }
}

/// Fails unless `uid` may read the extended attribute (`xattr_permission` of Linux's fs/xattr.c).
pub fn check_xattr_read(uid: u32, attributes: &Attributes, name: &[u8]) -> Result<(), Errno> {
    match class(name) {
        Class::Trusted if uid != 0 => Err(Errno::NODATA),
        Class::User => check(uid, attributes, READ),
        _ => Ok(()),
    }
}

/// Fails unless `uid` may set or remove the extended attribute.
pub fn check_xattr_write(uid: u32, attributes: &Attributes, name: &[u8]) -> Result<(), Errno> {
    match class(name) {
        Class::Acl => check_owner(uid, attributes),
        Class::User => check(uid, attributes, WRITE),
        _ if uid == 0 => Ok(()),
        _ => Err(Errno::PERM),
    }
}

enum Class {
    User,
    Acl,
    Trusted,
    Other,
}

fn class(name: &[u8]) -> Class {
    match name {
        b"system.posix_acl_access" | b"system.posix_acl_default" => Class::Acl,
        name if name.starts_with(b"user.") => Class::User,
        name if name.starts_with(b"trusted.") => Class::Trusted,
        _ => Class::Other,
    }
}
