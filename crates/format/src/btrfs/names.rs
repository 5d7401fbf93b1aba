//! Names: entries of directories and extended attributes, which are stored alike.

use inarch_tree::Xattr;
use inarch_volume::{Loss, VolumeError};
use zerocopy::FromBytes;

use super::blocks::Blocks;
use super::damaged;
use super::search::{Position, Root};
use super::spec::inode::DirectoryItem;
use super::spec::kind;
use super::spec::tree::Key;

/// One name of an item.
pub(super) struct Named<'a> {
    pub(super) item: DirectoryItem,
    pub(super) name: &'a [u8],
    /// An extended attribute's.
    pub(super) value: &'a [u8],
}

/// The names of an item: several if their hashes are the same.
pub(super) struct Names<'a>(pub(super) &'a [u8]);

impl<'a> Iterator for Names<'a> {
    type Item = Result<Named<'a>, VolumeError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        // After an error there is no more.
        let bytes = std::mem::take(&mut self.0);
        let split = || {
            let (item, rest) = DirectoryItem::read_from_prefix(bytes).ok()?;
            let (name, rest) = rest.split_at_checked(usize::from(item.name.get()))?;
            let (value, rest) = rest.split_at_checked(usize::from(item.value.get()))?;
            Some((Named { item, name, value }, rest))
        };
        Some(match split() {
            Some((named, rest)) => {
                self.0 = rest;
                Ok(named)
            }
            None => Err(damaged("has a name that is cut off")),
        })
    }
}

/// Whether an attribute means something outside of Btrfs. `btrfs.compression` and the like do not.
fn is_kept(name: &[u8]) -> bool {
    let prefixes = [&b"user."[..], b"trusted.", b"security."];
    let whole = [&b"system.posix_acl_access"[..], b"system.posix_acl_default"];
    name.len() <= 255
        && !name.contains(&0)
        && (whole.contains(&name)
            || prefixes.iter().any(|prefix| name.len() > prefix.len() && name.starts_with(prefix)))
}

/// Adds the extended attributes of an item to `list`. Access lists are stored as getxattr(2) gives them.
pub(super) fn add_xattrs(item: &[u8], list: &mut Vec<Xattr>, lost: &mut dyn FnMut(Loss)) {
    for named in Names(item) {
        match named {
            Ok(named) if is_kept(named.name) => {
                list.push(Xattr { name: named.name.into(), value: named.value.into() });
            }
            Ok(_) => {}
            Err(_) => lost(Loss::damage("has extended attributes that are cut off; they are left out")),
        }
    }
}

/// The extended attributes of an inode, each name once.
pub(super) fn xattrs(
    blocks: &Blocks,
    root: &Root,
    inode: u64,
    lost: &mut dyn FnMut(Loss),
) -> Result<Vec<Xattr>, VolumeError> {
    let mut list = Vec::new();
    let mut position = Position::from(blocks, root, Key::new(inode, kind::XATTR_ITEM, 0))?;
    while let Some((key, item)) = position.item()
        && (key.objectid, key.kind) == (inode, kind::XATTR_ITEM)
    {
        add_xattrs(item, &mut list, lost);
        position.advance()?;
    }
    make_unique(&mut list);
    Ok(list)
}

/// Drops names that are there twice, which no sound image has.
pub(super) fn make_unique(list: &mut Vec<Xattr>) {
    list.sort_by(|a, b| a.name.cmp(&b.name));
    list.dedup_by(|b, a| a.name == b.name);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(name: &[u8], value: &[u8]) -> Vec<u8> {
        let (names, values) = (name.len() as u16, value.len() as u16);
        [&[0; 25][..], &values.to_le_bytes(), &names.to_le_bytes(), &[8], name, value].concat()
    }

    #[test]
    fn an_item_may_have_several_names() {
        let item =
            [stored(b"user.a", b"1"), stored(b"btrfs.compression", b"zstd"), stored(b"security.b", b"")].concat();
        let (mut list, mut lost) = (Vec::new(), 0);
        add_xattrs(&item, &mut list, &mut |_| lost += 1);
        let found: Vec<_> = list.iter().map(|xattr| (&*xattr.name, &*xattr.value)).collect();
        assert_eq!(found, [(&b"user.a"[..], &b"1"[..]), (b"security.b", b"")]);
        assert_eq!(lost, 0);
        add_xattrs(&item[..item.len() - 1], &mut list, &mut |_| lost += 1);
        assert_eq!((list.len(), lost), (3, 1));
    }
}
