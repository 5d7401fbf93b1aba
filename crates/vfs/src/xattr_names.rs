//! Names of extended attributes that have to do with permissions (include/uapi/linux/xattr.h).

/// A file's ACL, whose group entry or mask is the group's part of the mode.
pub const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

/// The ACL that files get which are made in the directory.
pub const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

/// The prefix of those whose reading needs read permission on the file. All others can be read by everybody or by
/// root only (`xattr_permission` of Linux's fs/xattr.c). A client's kernel reads ACLs in the name of whichever caller
/// it checks.
pub const OF_USERS: &[u8] = b"user.";
