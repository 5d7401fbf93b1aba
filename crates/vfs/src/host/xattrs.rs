//! Extended attributes, ACLs among them.

use std::ffi::CString;
use std::os::fd::AsFd;

use rustix::fs::XattrFlags;
use rustix::io::Errno;

use super::HostDirectory;
use super::privileges::CAPABILITY;
use super::reach::DescriptorName;
use crate::{Context, NodeId};

/// Most bytes of a name, of a value and of all names: `XATTR_*_MAX` of Linux's include/uapi/linux/limits.h.
const NAME_MAX: usize = 255;
const SIZE_MAX: usize = 64 << 10;

/// An access ACL, whose group entry is the mode's.
const ACCESS_ACL: &[u8] = b"system.posix_acl_access";

impl HostDirectory {
    /// Does something with the path of a node in `/proc`, which no type of file needs to be opened for.
    fn with_path<T>(&self, node: NodeId, act: impl FnOnce(&[u8]) -> Result<T, Errno>) -> Result<T, Errno> {
        let descriptor = self.descriptor(node)?;
        act(DescriptorName::new(descriptor.as_fd()).path())
    }

    pub(super) fn xattr_value(&self, node: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let name = checked(name)?;
        if self.is_closed(node)? {
            return Err(Errno::NODATA);
        }
        self.with_path(node, |path| {
            let mut value = vec![0; SIZE_MAX];
            let length = rustix::fs::getxattr(path, &name, &mut value[..])?;
            value.truncate(length);
            Ok(value)
        })
    }

    pub(super) fn xattr_names(&self, node: NodeId) -> Result<Vec<u8>, Errno> {
        if self.is_closed(node)? {
            return Ok(Vec::new());
        }
        self.with_path(node, |path| {
            let mut names = vec![0; SIZE_MAX];
            let length = rustix::fs::listxattr(path, &mut names[..])?;
            names.truncate(length);
            Ok(names)
        })
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
        Ok(())
    }

    pub(super) fn delete_xattr(&self, context: &Context<'_>, node: NodeId, name: &[u8]) -> Result<(), Errno> {
        let text = checked(name)?;
        self.require_open(node)?;
        let descriptor = self.descriptor(node)?;
        self.require_told(context, node, descriptor.as_fd())?;
        if is_permission(name) && name != CAPABILITY {
            self.before_changing(descriptor.as_fd())?;
        }
        rustix::fs::removexattr(DescriptorName::new(descriptor.as_fd()).path(), &text)
    }
}

/// Whether an extended attribute says who may do what.
fn is_permission(name: &[u8]) -> bool {
    matches!(name, ACCESS_ACL | CAPABILITY)
}

fn checked(name: &[u8]) -> Result<CString, Errno> {
    if name.is_empty() || name.len() > NAME_MAX {
        return Err(Errno::RANGE);
    }
    CString::new(name).map_err(|_| Errno::INVAL)
}
