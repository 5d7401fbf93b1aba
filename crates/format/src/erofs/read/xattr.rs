//! Reads extended attributes: inline and shared.

use inarch_tree::Xattr;
use zerocopy::FromBytes;

use super::damaged;
use super::inode::Inode;
use super::parameters::Parameters;
use crate::erofs::spec::xattr::{
    ENTRY_SIZE, HEADER_SIZE, LONG_PREFIX, SHARED_COUNT, UNIT, XattrEntry, entry_size, prefix,
};
use inarch_volume::{Pages, VolumeError};

/// A prefix of names that the image lists: one with an index, and what follows it.
pub(crate) struct LongPrefix {
    base: u8,
    infix: Vec<u8>,
}

impl LongPrefix {
    /// Reads it from a record of the list, without the record's length.
    pub(crate) fn new(record: &[u8]) -> Option<LongPrefix> {
        let (base, infix) = record.split_first()?;
        Some(LongPrefix { base: *base, infix: infix.into() })
    }
}

/// Reads attributes.
pub(crate) struct Xattrs {
    prefixes: Vec<LongPrefix>,
}

impl Xattrs {
    pub(crate) fn new(prefixes: Vec<LongPrefix>) -> Xattrs {
        Xattrs { prefixes }
    }

    /// Reads an inode's inline attribute area into `area`, which must be empty. Without such an area it stays empty. Equal
    /// bytes mean equal attributes.
    pub(crate) fn area(pages: &Pages, inode: &Inode, area: &mut Vec<u8>) -> Result<(), VolumeError> {
        // A header alone has no meaning.
        if inode.xattrs_size <= HEADER_SIZE as u64 {
            return Ok(());
        }
        area.resize(inode.xattrs_size as usize, 0);
        pages.read(inode.xattrs_at, area)
    }

    /// The attributes of an inode: at most 255 shared ones of 128 KiB each, and what fits its inline area.
    pub(crate) fn of(&self, pages: &Pages, parameters: &Parameters, inode: &Inode) -> Result<Vec<Xattr>, VolumeError> {
        let mut area = Vec::new();
        Xattrs::area(pages, inode, &mut area)?;
        if area.is_empty() {
            return Ok(Vec::new());
        }
        let mut set = Vec::new();
        let shared = area.get(SHARED_COUNT).map_or(0, |count| usize::from(*count));
        let (_, rest) = area.split_at(HEADER_SIZE);
        let addresses = rest.get(..shared * UNIT);
        let addresses = addresses.ok_or_else(|| damaged("its shared attributes exceed the space for attributes"))?;
        let mut own = rest.get(addresses.len()..).unwrap_or_default();
        while !own.is_empty() {
            let length = entry_length(own).filter(|length| *length <= own.len());
            let length = length.ok_or_else(|| damaged("an extended attribute of it exceeds the space for them"))?;
            set.extend(self.attribute(own)?);
            own = own.get(length..).unwrap_or_default();
        }
        for address in addresses.as_chunks::<UNIT>().0 {
            let at = parameters.xattrs_start.checked_add(u64::from(u32::from_le_bytes(*address)) * UNIT as u64);
            let at = at.ok_or_else(|| damaged("a shared attribute of it lies beyond 2^64 bytes"))?;
            let head: [u8; ENTRY_SIZE] = pages.array(at)?;
            let mut bytes = vec![0; entry_length(&head).unwrap_or(0)];
            // The padding behind the last one need not be there.
            let held = (pages.size() - at).min(bytes.len() as u64);
            pages.read(at, bytes.get_mut(..held as usize).unwrap_or_default())?;
            set.extend(self.attribute(&bytes)?);
        }
        Ok(set)
    }

    /// The attribute at the start of `bytes`; `None` if the prefix of its name is unknown, as in the kernel.
    fn attribute(&self, bytes: &[u8]) -> Result<Option<Xattr>, VolumeError> {
        let exceeds = || damaged("an extended attribute of it exceeds the space for them");
        let (entry, rest) = XattrEntry::read_from_prefix(bytes).map_err(|_| exceeds())?;
        let name = rest.get(..entry.name_length.into()).ok_or_else(exceeds)?;
        let value = rest.get(name.len()..).and_then(|rest| rest.get(..entry.value_length.get().into()));
        let value = value.ok_or_else(exceeds)?;
        let (base, infix) = match entry.index & LONG_PREFIX {
            0 => (entry.index, &[][..]),
            _ => match self.prefixes.get(usize::from(entry.index & !LONG_PREFIX)) {
                Some(prefix) => (prefix.base, &*prefix.infix),
                None => return Ok(None),
            },
        };
        let Some(base) = prefix(base) else { return Ok(None) };
        let name = [base, infix, name].concat();
        if name.contains(&0) {
            return Err(damaged("the name of an extended attribute of it has a NUL"));
        }
        Ok(Some(Xattr { name: name.into(), value: value.into() }))
    }
}

/// Bytes of the attribute that starts with `head`, as stored.
fn entry_length(head: &[u8]) -> Option<usize> {
    let (entry, _) = XattrEntry::read_from_prefix(head).ok()?;
    Some(entry_size(entry.name_length.into(), entry.value_length.get().into()))
}
