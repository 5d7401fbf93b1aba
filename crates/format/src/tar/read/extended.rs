//! Parses the PAX headers of a member.

use std::collections::BTreeMap;
use std::sync::Arc;

use inarch_tree::{Timestamp, Xattr};

use super::sparse::{Part, push_part};
use crate::tar::spec::{number, pax};

/// The most bytes of the names of one file's attributes, a NUL after each: `XATTR_LIST_MAX` of Linux's
/// include/uapi/linux/limits.h.
pub(super) const MAX_NAMES: usize = 64 << 10;
/// The most bytes of the values of one file's attributes: 16 of the largest (`XATTR_SIZE_MAX`).
pub(super) const MAX_VALUES: usize = 16 * (64 << 10);

/// Extended attributes and access control lists as records give them. Members share those of a global header.
#[derive(Clone, Debug, Default)]
pub(super) struct StoredAttributes {
    pub(super) xattrs: BTreeMap<Box<[u8]>, Box<[u8]>>,
    pub(super) acl_access: Option<Vec<u8>>,
    pub(super) acl_default: Option<Vec<u8>>,
    /// Bytes of the names, a NUL after each, and of the values.
    names: usize,
    values: usize,
}

impl StoredAttributes {
    /// Bytes of memory, about.
    pub(super) fn bytes(&self) -> u64 {
        let lists = [&self.acl_access, &self.acl_default].into_iter().flatten().map(Vec::len).sum::<usize>();
        (self.names + self.values + lists + self.xattrs.len() * size_of::<Xattr>()) as u64
    }

    /// Sets an attribute; gives false if there are then more than a file can have, and it is not set.
    fn set(&mut self, name: &[u8], value: &[u8]) -> bool {
        let old = self.xattrs.get(name).map(|value| value.len());
        let names = self.names + if old.is_none() { name.len() + 1 } else { 0 };
        let values = self.values - old.unwrap_or(0) + value.len();
        let fits = names <= MAX_NAMES && values <= MAX_VALUES;
        if fits {
            self.xattrs.insert(name.into(), value.into());
            (self.names, self.values) = (names, values);
        }
        fits
    }
}

/// The content of a member's extended headers; missing fields are in its own header.
#[derive(Clone, Debug, Default)]
pub(super) struct Extended {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link_path: Option<Vec<u8>>,
    pub(super) size: Option<u64>,
    pub(super) uid: Option<u64>,
    pub(super) gid: Option<u64>,
    pub(super) mtime: Option<Timestamp>,
    pub(super) device_major: Option<u64>,
    pub(super) device_minor: Option<u64>,
    pub(super) attributes: Arc<StoredAttributes>,
    /// Whether there were more attributes than a file can have.
    pub(super) exceeds: bool,
    pub(super) sparse: SparseRecords,
}

/// The records of GNU tar's three PAX formats for sparse files.
#[derive(Clone, Debug, Default)]
pub(super) struct SparseRecords {
    pub(super) major: Option<u64>,
    pub(super) minor: Option<u64>,
    /// The member's name, if the header's own name is a placeholder for a sparse file.
    pub(super) name: Option<Vec<u8>>,
    /// Bytes including holes: `GNU.sparse.size` or `GNU.sparse.realsize`.
    pub(super) size: Option<u64>,
    /// The parts, if they are in the header.
    pub(super) map: Option<Vec<Part>>,
    offset: Option<u64>,
}

impl Extended {
    /// Applies one record; an empty value cancels a global header's. The error names the wrong field.
    pub(super) fn apply(&mut self, keyword: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match keyword {
            b"path" => self.path = text(value),
            b"linkpath" => self.link_path = text(value),
            b"size" => self.size = decimal(value, "size")?,
            b"uid" => self.uid = decimal(value, "uid")?,
            b"gid" => self.gid = decimal(value, "gid")?,
            b"mtime" if value.is_empty() => self.mtime = None,
            b"mtime" => self.mtime = Some(number::time(value).ok_or("mtime")?),
            b"SCHILY.devmajor" => self.device_major = decimal(value, "SCHILY.devmajor")?,
            b"SCHILY.devminor" => self.device_minor = decimal(value, "SCHILY.devminor")?,
            b"SCHILY.acl.access" => Arc::make_mut(&mut self.attributes).acl_access = text(value),
            b"SCHILY.acl.default" => Arc::make_mut(&mut self.attributes).acl_default = text(value),
            // The kernel's own value ends with a NUL, which GNU tar does not store.
            b"RHT.security.selinux" => self.attribute(b"security.selinux", &[value, b"\0"].concat()),
            _ => {
                if let Some(name) = keyword.strip_prefix(b"SCHILY.xattr.") {
                    self.attribute(&pax::decode_attribute(name), value);
                } else if let Some(name) = keyword.strip_prefix(b"LIBARCHIVE.xattr.") {
                    let value = pax::decode_base64(value).ok_or("LIBARCHIVE.xattr")?;
                    self.attribute(&pax::decode_url(name), &value);
                } else if let Some(keyword) = keyword.strip_prefix(b"GNU.sparse.") {
                    self.sparse.apply(keyword, value)?;
                }
            }
        }
        Ok(())
    }

    fn attribute(&mut self, name: &[u8], value: &[u8]) {
        self.exceeds |= !Arc::make_mut(&mut self.attributes).set(name, value);
    }

    /// Applies the records of a global header, except for those of sparse files, which differ from file to file.
    pub(super) fn apply_global(&mut self, keyword: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match keyword.starts_with(b"GNU.sparse.") {
            true => Ok(()),
            false => self.apply(keyword, value),
        }
    }

    /// Bytes of the longest text in it.
    pub(super) fn longest_text(&self) -> usize {
        let StoredAttributes { acl_access, acl_default, .. } = &*self.attributes;
        [&self.path, &self.link_path, acl_access, acl_default].into_iter().flatten().map(Vec::len).max().unwrap_or(0)
    }
}

impl SparseRecords {
    fn apply(&mut self, keyword: &[u8], value: &[u8]) -> Result<(), &'static str> {
        match keyword {
            b"major" => self.major = decimal(value, "GNU.sparse.major")?,
            b"minor" => self.minor = decimal(value, "GNU.sparse.minor")?,
            b"name" => self.name = text(value),
            b"size" => self.size = decimal(value, "GNU.sparse.size")?,
            b"realsize" => self.size = decimal(value, "GNU.sparse.realsize")?,
            b"numblocks" => self.map = Some(Vec::new()),
            b"offset" => self.offset = decimal(value, "GNU.sparse.offset")?,
            b"numbytes" => {
                let offset = self.offset.take().ok_or("GNU.sparse.numbytes")?;
                let length = number::decimal(value).ok_or("GNU.sparse.numbytes")?;
                push_part(self.map.get_or_insert_default(), offset, length).ok_or("GNU.sparse.numbytes")?;
            }
            b"map" => self.map = Some(map(value).ok_or("GNU.sparse.map")?),
            _ => {}
        }
        Ok(())
    }
}

/// `OFFSET,LENGTH,OFFSET,LENGTH...`
fn map(value: &[u8]) -> Option<Vec<Part>> {
    let mut parts = Vec::new();
    if value.is_empty() {
        return Some(parts);
    }
    let mut numbers = value.split(|byte| *byte == b',');
    while let Some(offset) = numbers.next() {
        push_part(&mut parts, number::decimal(offset)?, number::decimal(numbers.next()?)?)?;
    }
    Some(parts)
}

fn text(value: &[u8]) -> Option<Vec<u8>> {
    Some(value.to_owned()).filter(|value| !value.is_empty())
}

fn decimal(value: &[u8], keyword: &'static str) -> Result<Option<u64>, &'static str> {
    if value.is_empty() { Ok(None) } else { number::decimal(value).map(Some).ok_or(keyword) }
}
