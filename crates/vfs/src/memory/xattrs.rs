//! Extended attributes and ACLs; an ACL also sets permission bits.

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::acl::Acl;
use super::inode::{Inode, NAME_SPACE};
use super::{MemoryFiles, read, write};
use crate::NodeId;
use crate::xattr_names::{ACCESS_ACL, DEFAULT_ACL, is_acl};

/// Most bytes of a name, of a value and of all names: `XATTR_*_MAX` of Linux's include/uapi/linux/limits.h.
const NAME_MAX: usize = 255;
const SIZE_MAX: usize = 64 << 10;

/// The supported prefixes.
const SPACES: [&[u8]; 3] = [b"user.", b"trusted.", b"security."];

fn check(name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::RANGE);
    }
    let has_space = SPACES.iter().any(|space| name.starts_with(space) && name.len() > space.len());
    if has_space || is_acl(name) { Ok(()) } else { Err(Errno::OPNOTSUPP) }
}

fn space_of(name: &[u8], value: &[u8]) -> u64 {
    NAME_SPACE + (name.len() + value.len()) as u64
}

impl MemoryFiles {
    pub(super) fn xattr_value(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        check(name)?;
        let inodes = read(&self.inodes);
        inodes.get(node)?.xattrs.get(name).map(|value| value.to_vec()).ok_or(Errno::NODATA)
    }

    pub(super) fn xattr_names(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        let inodes = read(&self.inodes);
        Ok(inodes.get(node)?.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect())
    }

    pub(super) fn change_xattr(
        &self,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_set_group_id: bool,
    ) -> Result<(), Errno> {
        check(name)?;
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        if value.len() > SIZE_MAX {
            return Err(Errno::TOOBIG);
        }
        let mut inodes = write(&self.inodes);
        let inode = inodes.get_mut(node)?;
        let is_there = inode.xattrs.contains_key(name);
        match (is_there, flags) {
            (true, flags) if flags.contains(XattrFlags::CREATE) => return Err(Errno::EXIST),
            (false, flags) if flags.contains(XattrFlags::REPLACE) => return Err(Errno::NODATA),
            _ => {}
        }
        let all: usize = inode.xattrs.keys().map(|name| name.len() + 1).sum();
        if !is_there && all + name.len() + 1 > SIZE_MAX {
            return Err(Errno::NOSPC);
        }
        let list = if is_acl(name) { implied(inode, name, value)? } else { Implied { mode: None, is_kept: true } };
        if list.is_kept {
            // First, for it may fail: without the list, the bits of its mask would be the group's.
            self.space.take(space_of(name, value))?;
        }
        self.drop_xattr(inode, name);
        if list.is_kept {
            inode.xattrs.insert(name.into(), value.into());
        }
        if let Some(mode) = list.mode {
            inode.mode = inode.mode & !0o777 | mode;
        }
        if kill_set_group_id && name == ACCESS_ACL {
            inode.mode &= !libc::S_ISGID;
        }
        inode.touch(false);
        Ok(())
    }

    pub(super) fn delete_xattr(&self, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        check(name)?;
        let mut inodes = write(&self.inodes);
        let inode = inodes.get_mut(node)?;
        if !inode.xattrs.contains_key(name) {
            // An ACL that says no more than the permission bits is not stored.
            return if is_acl(name) { Ok(()) } else { Err(Errno::NODATA) };
        }
        self.drop_xattr(inode, name);
        inode.touch(false);
        Ok(())
    }

    fn drop_xattr(&self, inode: &mut Inode, name: &[u8]) {
        if let Some(value) = inode.xattrs.remove(name) {
            self.space.give_back(space_of(name, &value));
        }
    }
}

/// What an ACL implies.
struct Implied {
    /// The permission bits, if it is an access ACL.
    mode: Option<u32>,
    /// Whether it says more than these do.
    is_kept: bool,
}

fn implied(inode: &Inode, name: &[u8], value: &[u8]) -> Result<Implied, Errno> {
    if inode.mode & libc::S_IFMT == libc::S_IFLNK {
        return Err(Errno::OPNOTSUPP);
    }
    let mut list = Acl::parse(value)?;
    if name == DEFAULT_ACL {
        return if inode.is_directory() { Ok(Implied { mode: None, is_kept: true }) } else { Err(Errno::ACCESS) };
    }
    Ok(Implied { mode: Some(list.mode()), is_kept: !list.is_minimal() })
}
