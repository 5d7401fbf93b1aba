//! Extended attributes, including ACLs.

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::privileges::CAPABILITY;
use super::reach::DescriptorName;
use super::table::Node;
use super::{HostDirectory, read};
use crate::xattr_names::{ACCESS_ACL, OF_USERS};
use crate::{Changes, Context, NodeId};

/// Most bytes of a name, of a value and of all names: `XATTR_*_MAX` of Linux's include/uapi/linux/limits.h.
const NAME_MAX: usize = 255;
const SIZE_MAX: usize = 64 << 10;

impl HostDirectory {
    pub(super) fn xattr_value(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let text = checked(name)?;
        if self.is_closed(node)? {
            return Err(Errno::NODATA);
        }
        let descriptor = self.descriptor(node)?;
        if name.starts_with(OF_USERS) {
            self.require_told(context, node, descriptor.as_fd())?;
        }
        let mut value = vec![0; SIZE_MAX];
        let length = rustix::fs::getxattr(DescriptorName::new(descriptor.as_fd()).path(), &text, &mut value[..])?;
        value.truncate(length);
        Ok(value)
    }

    pub(super) fn xattr_names(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        if self.is_closed(node)? {
            return Ok(Vec::new());
        }
        // Through its path in `/proc`, which needs no open of any file type.
        let descriptor = self.descriptor(node)?;
        let mut names = vec![0; SIZE_MAX];
        let length = rustix::fs::listxattr(DescriptorName::new(descriptor.as_fd()).path(), &mut names[..])?;
        names.truncate(length);
        Ok(names)
    }

    pub(super) fn change_xattr(
        &self,
        context: &Context<'_>,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kill_set_group_id: bool,
    ) -> Result<(), Errno> {
        let text = checked(name)?;
        if value.len() > SIZE_MAX {
            return Err(Errno::TOOBIG);
        }
        self.require_open(node)?;
        let flags = XattrFlags::from_bits(flags).ok_or(Errno::INVAL)?;
        let descriptor = self.descriptor(node)?;
        self.require_told(context, node, descriptor.as_fd())?;
        if is_permission(name) {
            self.before_changing(descriptor.as_fd())?;
        }
        if name == CAPABILITY && self.options.refused.privileges {
            return Ok(());
        }
        rustix::fs::setxattr(DescriptorName::new(descriptor.as_fd()).path(), &text, value, flags)?;
        if kill_set_group_id && name == ACCESS_ACL {
            self.drop_set_group_id(descriptor.as_fd())?;
        }
        self.list_changed(node, descriptor.as_fd(), name)
    }

    pub(super) fn delete_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        let text = checked(name)?;
        self.require_open(node)?;
        let descriptor = self.descriptor(node)?;
        self.require_told(context, node, descriptor.as_fd())?;
        if is_permission(name) && name != CAPABILITY {
            self.before_changing(descriptor.as_fd())?;
        }
        rustix::fs::removexattr(DescriptorName::new(descriptor.as_fd()).path(), &text)?;
        self.list_changed(node, descriptor.as_fd(), name)
    }

    /// A changed ACL changes the permissions, too. A client's kernel that does not enforce ACLs goes on to decide by
    /// those it has cached, so callers are compared from now on.
    fn list_changed(&self, node: NodeId, now: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
        if name != ACCESS_ACL {
            return Ok(());
        }
        let stat = self.stat(now, b"")?;
        if self.options.changes == Changes::Host {
            self.tell_changed_permissions(node, &stat);
        }
        let table = read(&self.table);
        table.index(node).and_then(|index| table.node(index)).map(Node::list_changed)
    }
}

/// Whether an extended attribute is an ACL.
fn is_permission(name: &[u8]) -> bool {
    matches!(name, ACCESS_ACL | CAPABILITY)
}

fn checked(name: &[u8]) -> Result<CString, Errno> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::RANGE);
    }
    CString::new(name).map_err(|_| Errno::INVAL)
}
