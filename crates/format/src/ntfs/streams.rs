//! Named streams of a file, which are extended attributes here, as in ntfs-3g.

use inarch_tree::Xattr;
use inarch_volume::{Loss, VolumeError};

use super::compressed::{Units, decode, is_compressed, unit_size};
use super::inode::{Inode, Stream};
use super::mft::Mft;
use super::names::{to_bytes, units};
use super::record::Form;
use super::spec::kind;
use super::system;
use super::volume::NtfsVolume;

/// The largest stream that is an attribute; Linux's `XATTR_SIZE_MAX`.
const MAX_VALUE: u64 = 64 << 10;
/// The most bytes of an attribute's name; Linux's `XATTR_NAME_MAX`.
const MAX_NAME: usize = 255;
/// The most bytes of attributes of one file, and how many streams are looked at.
const MAX_ALL: u64 = 1 << 20;
const MAX_STREAMS: usize = 64;

/// The names in UTF-16, and the sizes, of a file's named streams.
pub(super) fn named_streams(mft: &Mft, inode: &Inode) -> Result<Vec<(Vec<u8>, u64)>, VolumeError> {
    let mut found: Vec<(Vec<u8>, u64)> = Vec::new();
    inode.each(mft, kind::DATA, &mut |attribute| {
        let size = match attribute.form {
            Form::Resident(bytes) => bytes.len() as u64,
            Form::Mapped(mapping) => mapping.size,
        };
        let is_known = found.iter().any(|(name, _)| name == attribute.name);
        if !attribute.name.is_empty() && !is_known {
            found.push((attribute.name.to_vec(), size));
        }
        Ok(found.len() < MAX_STREAMS)
    })?;
    Ok(found)
}

impl NtfsVolume {
    /// The named streams of a file as attributes `user.NAME`.
    pub(super) fn xattrs_of(&self, inode: &Inode, lost: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        let (mut xattrs, mut all) = (Vec::new(), 0u64);
        for (name, size) in named_streams(&self.mft, inode)? {
            let own = to_bytes(units(&name));
            if own == system::NAME.as_bytes() {
                continue;
            }
            let shown = String::from_utf8_lossy(&own).into_owned();
            let name_in_linux = [b"user.", &*own].concat();
            all = all.saturating_add(size);
            if size > MAX_VALUE || all > MAX_ALL || name_in_linux.len() > MAX_NAME || own.contains(&0) {
                let text =
                    format!("has a stream {shown:?} of {size} bytes that is no attribute of Linux; it is left out");
                lost(Loss::sound(text));
                continue;
            }
            let value = match inode.stream(&self.mft, kind::DATA, &name) {
                Ok(Some(stream)) => self.value_of(inode, &stream, stream.size().min(size)),
                Ok(None) => continue,
                Err(error) => Err(error),
            };
            match value {
                Ok(value) => xattrs.push(Xattr { name: name_in_linux.into(), value: value.into() }),
                Err(VolumeError::Damaged(reason)) => lost(Loss::damage(format!("its stream {shown:?}: {reason}"))),
                Err(VolumeError::Unsupported(reason)) => lost(Loss::sound(format!("its stream {shown:?} {reason}"))),
                Err(error) => return Err(error),
            }
        }
        Ok(xattrs)
    }

    fn value_of(&self, inode: &Inode, stream: &Stream, size: u64) -> Result<Vec<u8>, VolumeError> {
        let mut value = Vec::with_capacity(size as usize);
        if is_compressed(stream)? {
            let unit = unit_size(&self.mft, stream)?;
            let make = |number| decode(&self.mft, inode, stream, number, unit);
            Units::default().read(0, unit, 0..size, &make, &mut |bytes| value.extend_from_slice(bytes))?;
        } else {
            value.resize(size as usize, 0);
            inode.read(&self.mft, stream, 0, &mut value)?;
        }
        Ok(value)
    }
}
