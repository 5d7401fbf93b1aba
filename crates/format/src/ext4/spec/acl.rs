//! POSIX access control lists: the form `getxattr` gives (`include/uapi/linux/posix_acl_xattr.h`) and ext4's own
//! (`fs/ext4/acl.h`), which leaves out the ids of entries that have none.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `POSIX_ACL_XATTR_VERSION`
const XATTR_VERSION: u32 = 2;
/// `EXT4_ACL_VERSION`
const EXT4_VERSION: u32 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct XattrEntry {
    tag: U16,
    perm: U16,
    id: U32,
}

/// Converts a value as `getxattr` gives it to ext4's (`ext4_acl_to_disk`); `None` if it is not an ACL.
pub(crate) fn to_ext4(value: &[u8]) -> Option<Vec<u8>> {
    let (version, entries) = U32::read_from_prefix(value).ok()?;
    if version.get() != XATTR_VERSION {
        return None;
    }
    let entries = <[XattrEntry]>::ref_from_bytes(entries).ok()?;
    let mut out = EXT4_VERSION.to_le_bytes().to_vec();
    for entry in entries {
        out.extend_from_slice(&entry.as_bytes()[..4]);
        match entry.tag.get() {
            // ACL_USER_OBJ, ACL_GROUP_OBJ, ACL_MASK, ACL_OTHER
            0x01 | 0x04 | 0x10 | 0x20 => {}
            // ACL_USER, ACL_GROUP
            0x02 | 0x08 => out.extend_from_slice(entry.id.as_bytes()),
            _ => return None,
        }
    }
    Some(out)
}
