//! `Txattrwalk` and `Txattrcreate`: extended attributes, read and written like small files.

use std::sync::Arc;

use inarch_vfs::visible_to;
use rustix::io::Errno;

use super::access;
use super::fids::Fid;
use super::usage::{NewXattr, Use, XattrBytes};
use super::walk::{group_of, is_xattr};
use super::{Call, Session};
use crate::wire::Reply;

/// Flag of setxattr(2): fail if it exists.
const CREATE: u32 = 1;
/// Flag of setxattr(2): fail if it does not exist.
const REPLACE: u32 = 2;
/// The longest name that Linux accepts (`XATTR_NAME_MAX`).
const LONGEST_NAME: usize = 255;

impl Session<'_> {
    /// `Txattrwalk`: the new fid refers to the attribute's value or, without a name, to the list of names.
    pub(super) fn xattrwalk(
        &self,
        call: &Call<'_>,
        fid: u32,
        new_fid: u32,
        name: &[u8],
    ) -> Result<Reply<'static>, Errno> {
        let fid = self.fids.get(fid)?;
        if is_xattr(&fid) || self.fids.contains(new_fid) {
            return Err(Errno::BADF);
        }
        let node = fid.place.node;
        let bytes = call.context(fid.uid, group_of(fid.uid), |context| {
            if name.is_empty() {
                return self.file_system().list_xattrs(context, node).map(|names| visible_to(context, names));
            }
            check_xattr_name(name)?;
            if context.uid != 0 {
                let attributes = self.file_system().attributes(context, node, None)?;
                access::check_xattr_read(context.uid, &attributes, name)?;
            }
            self.file_system().get_xattr(context, node, name)
        });
        let bytes = bytes.map_err(known)?;
        let size = bytes.len() as u64;
        let value = XattrBytes::new(&self.xattr_memory, bytes)?;
        let usage = Some(Arc::new(Use::Value(value)));
        self.fids.insert(new_fid, Fid { usage, ..fid })?;
        Ok(Reply::Xattrwalk { size })
    }

    /// `Txattrcreate`: the fid becomes the new value, which is set when it is complete and the fid is clunked.
    pub(super) fn xattrcreate(&self, number: u32, name: &[u8], size: u64, flags: u32) -> Result<Reply<'static>, Errno> {
        let fid = self.fids.get(number)?;
        if fid.usage.is_some() {
            return Err(Errno::BUSY);
        }
        check_xattr_name(name)?;
        if !matches!(flags, 0 | CREATE | REPLACE) {
            return Err(Errno::INVAL);
        }
        let value = NewXattr::new(&self.xattr_memory, name, flags, size)?;
        let new = Fid { usage: Some(Arc::new(Use::NewValue(value))), ..fid.clone() };
        self.fids.replace(number, &fid, new)?;
        Ok(Reply::Xattrcreate)
    }

    /// Sets the value. Linux's client removes an attribute by replacing it with an empty value; to set an empty value
    /// it leaves that flag out.
    pub(super) fn set_value(&self, call: &Call<'_>, fid: &Fid, new: &NewXattr) -> Result<(), Errno> {
        let value = new.value().ok_or(Errno::INVAL)?;
        let node = fid.place.node;
        let set = call.context(fid.uid, group_of(fid.uid), |context| {
            let mut kill_set_group_id = false;
            if context.uid != 0 {
                let attributes = self.file_system().attributes(context, node, None)?;
                access::check_xattr_write(context.uid, &attributes, &new.name)?;
                kill_set_group_id = &*new.name == b"system.posix_acl_access";
            }
            if value.is_empty() && new.flags == REPLACE {
                return self.file_system().remove_xattr(context, node, &new.name);
            }
            self.file_system().set_xattr(context, node, &new.name, &value, new.flags, kill_set_group_id)
        });
        set.map_err(known)
    }
}

/// Maps the error of a file system without extended attributes to that of getxattr(2).
fn known(errno: Errno) -> Errno {
    if errno == Errno::NOSYS { Errno::OPNOTSUPP } else { errno }
}

fn check_xattr_name(name: &[u8]) -> Result<(), Errno> {
    match name {
        b"" => Err(Errno::INVAL),
        name if name.len() > LONGEST_NAME => Err(Errno::RANGE),
        name if name.contains(&0) => Err(Errno::INVAL),
        _ => Ok(()),
    }
}
