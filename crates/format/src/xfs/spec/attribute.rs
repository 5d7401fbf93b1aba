//! Extended attributes (`fs/xfs/libxfs/xfs_da_format.h`): within an inode, and in leaves.

use super::{be16, be32};

/// `XFS_ATTR_*`
mod flags {
    pub(super) const LOCAL: u8 = 1 << 0;
    pub(super) const ROOT: u8 = 1 << 1;
    pub(super) const SECURE: u8 = 1 << 2;
    /// The name of a file in its directory, kept with it.
    pub(super) const PARENT: u8 = 1 << 3;
    /// Being written.
    pub(super) const INCOMPLETE: u8 = 1 << 7;
}

/// Bytes of the header before each block of a value, in version 5.
pub(crate) const REMOTE_HEADER: usize = 56;
/// Its magic number: `XFS_ATTR3_RMT_MAGIC`.
pub(crate) const REMOTE_MAGIC: [u8; 4] = *b"XARM";

/// Where a value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Here(&'a [u8]),
    /// In blocks of the attribute fork from this one on, with so many bytes.
    Remote {
        block: u32,
        length: u32,
    },
}

/// An attribute as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attribute<'a> {
    flags: u8,
    pub(crate) name: &'a [u8],
    pub(crate) value: Value<'a>,
}

/// What an attribute is to a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One with this name.
    Named(Vec<u8>),
    /// An access control list, with its name.
    Acl(&'static [u8]),
    /// XFS's own.
    Internal,
}

impl Attribute<'_> {
    /// As the kernel shows it (`xfs_xattr_put_listent`, `xfs_get_acl`).
    pub(crate) fn kind(&self) -> Kind {
        if self.flags & (flags::PARENT | flags::INCOMPLETE) != 0 {
            return Kind::Internal;
        }
        let prefix: &[u8] = match (self.flags & flags::ROOT != 0, self.flags & flags::SECURE != 0) {
            (true, _) => match self.name {
                b"SGI_ACL_FILE" => return Kind::Acl(b"system.posix_acl_access"),
                b"SGI_ACL_DEFAULT" => return Kind::Acl(b"system.posix_acl_default"),
                _ => b"trusted.",
            },
            (false, true) => b"security.",
            (false, false) => b"user.",
        };
        Kind::Named([prefix, self.name].concat())
    }
}

/// The attributes within an inode (`struct xfs_attr_sf_hdr`). Something that is no attribute is an error, and ends
/// the list.
pub(crate) fn short(fork: &[u8]) -> impl Iterator<Item = Result<Attribute<'_>, ()>> {
    let total = be16(fork, 0).map(usize::from);
    let bytes = total.and_then(|total| fork.get(..total));
    let (count, mut rest) = match bytes.and_then(|bytes| Some((*bytes.get(2)?, bytes.get(4..)?))) {
        Some((count, rest)) => (usize::from(count), rest),
        // One error, for what is no list.
        None => (1, &[][..]),
    };
    let mut number = 0;
    std::iter::from_fn(move || {
        if number >= count {
            return None;
        }
        let entry = short_entry(&mut rest);
        number = if entry.is_some() { number + 1 } else { count };
        Some(entry.ok_or(()))
    })
}

fn short_entry<'a>(rest: &mut &'a [u8]) -> Option<Attribute<'a>> {
    let [name_length, value_length, flags] = *rest.first_chunk()?;
    let (name, after) = rest.get(3..)?.split_at_checked(name_length.into())?;
    let (value, after) = after.split_at_checked(value_length.into())?;
    *rest = after;
    Some(Attribute { flags, name, value: Value::Here(value) })
}

/// The attributes in a leaf; an error for each invalid entry. Together the attributes are no longer than the leaf, so
/// that a leaf cannot use the same bytes many times; the rest is an error.
pub(crate) fn leaf(block: &[u8], is_sealed: bool) -> impl Iterator<Item = Result<Attribute<'_>, ()>> {
    let (head, start) = if is_sealed { (56, 80) } else { (12, 32) };
    let count = be16(block, head).map_or(0, usize::from);
    let mut room = block.len();
    let mut number = 0;
    std::iter::from_fn(move || {
        if number >= count {
            return None;
        }
        let entry = leaf_entry(block, start + number * 8);
        number += 1;
        let Some((attribute, length)) = entry else { return Some(Err(())) };
        match room.checked_sub(length) {
            Some(left) => room = left,
            None => {
                number = count;
                return Some(Err(()));
            }
        }
        Some(Ok(attribute))
    })
}

/// An entry, and how many bytes of the leaf it takes.
fn leaf_entry(block: &[u8], at: usize) -> Option<(Attribute<'_>, usize)> {
    let place = usize::from(be16(block, at + 4)?);
    let flags = *block.get(at + 6)?;
    let bytes = block.get(place..)?;
    if flags & flags::LOCAL != 0 {
        let (value_length, name_length) = (usize::from(be16(bytes, 0)?), usize::from(*bytes.get(2)?));
        let (name, after) = bytes.get(3..)?.split_at_checked(name_length)?;
        let value = Value::Here(after.get(..value_length)?);
        return Some((Attribute { flags, name, value }, 8 + 3 + name_length + value_length));
    }
    let value = Value::Remote { block: be32(bytes, 0)?, length: be32(bytes, 4)? };
    let name_length = usize::from(*bytes.get(8)?);
    let name = bytes.get(9..)?.get(..name_length)?;
    Some((Attribute { flags, name, value }, 8 + 9 + name_length))
}

/// Converts an access control list (`struct xfs_acl`) to the value that `getxattr` gives; `None` if it is none.
pub(crate) fn acl(stored: &[u8]) -> Option<Vec<u8>> {
    const ENTRY: usize = 12;
    let count = be32(stored, 0)? as usize;
    let entries = stored.get(4..)?;
    if Some(entries.len()) != count.checked_mul(ENTRY) {
        return None;
    }
    // POSIX_ACL_XATTR_VERSION; then tag, permissions and ID of each entry.
    let mut out = 2u32.to_le_bytes().to_vec();
    for entry in entries.chunks_exact(ENTRY) {
        let tag = u16::try_from(be32(entry, 0)?).ok()?;
        let id = match tag {
            // ACL_USER_OBJ, ACL_GROUP_OBJ, ACL_MASK, ACL_OTHER
            0x01 | 0x04 | 0x10 | 0x20 => u32::MAX,
            // ACL_USER, ACL_GROUP
            0x02 | 0x08 => be32(entry, 4)?,
            _ => return None,
        };
        out.extend_from_slice(&tag.to_le_bytes());
        out.extend_from_slice(&be16(entry, 8)?.to_le_bytes());
        out.extend_from_slice(&id.to_le_bytes());
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acl_converts_as_in_the_kernel() {
        let entry = |tag: u32, id: u32, perm: u16| {
            [&tag.to_be_bytes()[..], &id.to_be_bytes(), &perm.to_be_bytes(), &[0; 2]].concat()
        };
        let stored = [3u32.to_be_bytes().to_vec(), entry(1, 7, 6), entry(2, 1000, 4), entry(0x20, 0, 4)].concat();
        let shown = [
            &[2, 0, 0, 0][..],
            &[1, 0, 6, 0, 0xFF, 0xFF, 0xFF, 0xFF],
            &[2, 0, 4, 0, 0xE8, 3, 0, 0],
            &[0x20, 0, 4, 0, 0xFF, 0xFF, 0xFF, 0xFF],
        ];
        assert_eq!(acl(&stored), Some(shown.concat()));
        assert_eq!(acl(&stored[..stored.len() - 1]), None);
        assert_eq!(acl(&[]), None);
    }
}
