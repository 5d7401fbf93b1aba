//! Converts ACLs between the form of `getxattr` (`include/uapi/linux/posix_acl_xattr.h`) and ext4's own
//! (`fs/ext4/acl.h`), which omits the IDs of entries that have none.

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

/// Converts ext4's form to the value that `getxattr` gives (`ext4_acl_from_disk`); `None` if it is not an ACL.
pub(crate) fn from_ext4(stored: &[u8]) -> Option<Vec<u8>> {
    let (version, mut rest) = U32::read_from_prefix(stored).ok()?;
    if version.get() != EXT4_VERSION {
        return None;
    }
    let mut out = XATTR_VERSION.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let ([tag, perm], after) = <[U16; 2]>::read_from_prefix(rest).ok()?;
        let (id, after) = match tag.get() {
            0x01 | 0x04 | 0x10 | 0x20 => (U32::new(!0), after),
            0x02 | 0x08 => U32::read_from_prefix(after).ok()?,
            _ => return None,
        };
        out.extend_from_slice(XattrEntry { tag, perm, id }.as_bytes());
        rest = after;
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `getfattr -e hex` shows after `setfacl -m u:1000:r--,g:1001:rw-` on a file of mode 664, and what Linux 6.18
    /// wrote into its inode.
    #[test]
    fn an_acl_converts_as_in_the_kernel() {
        let shown = hex(
            "0200000001000600ffffffff02000400e803000004000400ffffffff08000600e903000010000600ffffffff20000400ffffffff",
        );
        let stored = hex("010000000100060002000400e80300000400040008000600e90300001000060020000400");
        assert_eq!(to_ext4(&shown).as_ref(), Some(&stored));
        assert_eq!(from_ext4(&stored), Some(shown));
    }

    #[test]
    fn what_is_no_acl_is_refused() {
        for value in ["", "02", "0100000001000600ffffffff", "020000000100", "0200000003000600ffffffff"] {
            assert_eq!(to_ext4(&hex(value)), None, "{value}");
        }
        for stored in ["", "01", "02000000", "0100000002000600", "01000000010006", "0100000003000600"] {
            assert_eq!(from_ext4(&hex(stored)), None, "{stored}");
        }
    }

    fn hex(text: &str) -> Vec<u8> {
        (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect()
    }
}
