//! Reads extended attributes, stored inline in the inode and in an xattr node.

use inarch_tree::Xattr;
use inarch_volume::{Loss, VolumeError};

use super::nodes::{Inode, Nodes};
use super::{u16_at, u32_at};
use crate::ext4::from_ext4;

/// `F2FS_XATTR_MAGIC`, and the bytes of the header that begins with it.
const MAGIC: u32 = 0xF2F5_2011;
const HEADER: usize = 24;
/// Bytes of a node without its footer.
const NODE: usize = 4072;
/// The place of the node (`XATTR_NODE_OFFSET`).
const PLACE: u32 = u32::MAX >> 3;

/// The name of an attribute, and whether its value is an ACL; `None` for those that mean nothing outside of F2FS.
fn full_name(index: u8, name: &[u8]) -> Option<(Vec<u8>, bool)> {
    let prefix: &[u8] = match index {
        1 => b"user.",
        2 => return Some((b"system.posix_acl_access".to_vec(), true)),
        3 => return Some((b"system.posix_acl_default".to_vec(), true)),
        4 => b"trusted.",
        6 => b"security.",
        _ => return None,
    };
    (!name.is_empty() && !name.contains(&0)).then(|| ([prefix, name].concat(), false))
}

impl Nodes {
    /// The extended attributes of an inode, each name once.
    pub(super) fn xattrs(&self, inode: &Inode, lost: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        let mut bytes = inode.xattrs_inside().to_vec();
        if inode.xattrs_below() != 0 {
            let (node, _) = self.node(inode.xattrs_below(), inode.number, PLACE)?;
            bytes.extend_from_slice(node.get(..NODE).unwrap_or_default());
        }
        let mut list = Vec::new();
        if bytes.is_empty() || u32_at(&bytes, 0) != MAGIC {
            return Ok(list);
        }
        let mut rest = bytes.get(HEADER..).unwrap_or_default();
        while let [index, name_length, ..] = rest
            && *index > 0
        {
            let (name, value) = (4 + usize::from(*name_length), usize::from(u16_at(rest, 2)));
            let entry = rest.get(4..name).zip(rest.get(name..name + value));
            let Some((name_bytes, value_bytes)) = entry else {
                lost(Loss::damage("has extended attributes that are cut off; they are left out"));
                break;
            };
            match full_name(*index, name_bytes) {
                Some((name, true)) => match from_ext4(value_bytes) {
                    Some(value) => list.push(Xattr { name: name.into(), value: value.into() }),
                    None => lost(Loss::damage("has an invalid ACL; it is left out")),
                },
                Some((name, false)) => list.push(Xattr { name: name.into(), value: value_bytes.into() }),
                None => {}
            }
            rest = rest.get((name + value).next_multiple_of(4)..).unwrap_or_default();
        }
        list.sort_by(|a, b| a.name.cmp(&b.name));
        list.dedup_by(|b, a| a.name == b.name);
        Ok(list)
    }
}
