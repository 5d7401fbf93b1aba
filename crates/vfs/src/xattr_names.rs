//! Names of extended attributes that have to do with permissions (include/uapi/linux/xattr.h).

use crate::Context;

/// A file's ACL, whose group entry or mask is the group's part of the mode.
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The ACL that files get which are made in the directory.
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// Whether it is an ACL's name.
pub fn is_acl(name: &[u8]) -> bool {
    name == ACCESS_ACL || name == DEFAULT_ACL
}

/// The prefix of those whose reading needs read permission on the file. All others can be read by everybody or by
/// root only (`xattr_permission` of Linux's fs/xattr.c). A client's kernel reads ACLs in the name of whichever caller
/// it checks.
pub const OF_USERS: &[u8] = b"user.";

/// The prefix of those that only root sees (`ext4_xattr_trusted_list` of Linux's fs/ext4/xattr_trusted.c).
const OF_ROOT: &[u8] = b"trusted.";

/// A list of names, as listxattr(2) gives it, without those that the caller does not see.
pub fn visible_to(context: &Context<'_>, mut names: Vec<u8>) -> Vec<u8> {
    if !context.is_root() {
        let seen = names.split_inclusive(|byte| *byte == 0).filter(|name| !name.starts_with(OF_ROOT));
        names = seen.flatten().copied().collect();
    }
    names
}
