//! Extended attributes: behind inodes, and shared.

use std::collections::HashMap;

use inarch_tree::{Builder, Xattr, XattrSetId};
use zerocopy::FromBytes;

use super::damaged;
use super::image::Pages;
use super::inode::Inode;
use super::volume::Volume;
use crate::ReadError;
use crate::erofs::spec::xattr::{
    ENTRY_SIZE, HEADER_SIZE, LONG_PREFIX, SHARED_COUNT, UNIT, XattrEntry, entry_size, prefix,
};

/// Bytes of attributes that sets may hold, beyond what the image's size allows.
const SLACK: u64 = 16 << 20;

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

/// Reads attributes, each distinct set once.
pub(crate) struct Xattrs {
    prefixes: Vec<LongPrefix>,
    /// By what is behind the inode.
    sets: HashMap<Box<[u8]>, XattrSetId>,
    /// Bytes that may still be read: few shared attributes could make many large sets.
    budget: u64,
}

impl Xattrs {
    pub(crate) fn new(image_size: u64, prefixes: Vec<LongPrefix>) -> Xattrs {
        Xattrs { prefixes, sets: HashMap::new(), budget: image_size.saturating_mul(2).saturating_add(SLACK) }
    }

    /// The attributes of an inode. The caller has seen to it that all areas together are not larger than the image.
    pub(crate) fn of(
        &mut self,
        pages: &mut Pages,
        volume: &Volume,
        inode: &Inode,
        builder: &mut Builder,
    ) -> Result<XattrSetId, ReadError> {
        // A header alone has no meaning.
        if inode.xattrs_size <= HEADER_SIZE as u64 {
            return Ok(XattrSetId::NONE);
        }
        let mut area = vec![0; inode.xattrs_size as usize];
        pages.read(inode.xattrs_at, &mut area)?;
        if let Some(set) = self.sets.get(&*area) {
            return Ok(*set);
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
            let at = volume.xattrs_start + u64::from(u32::from_le_bytes(*address)) * UNIT as u64;
            let head: [u8; ENTRY_SIZE] = pages.array(at)?;
            let mut bytes = vec![0; entry_length(&head).unwrap_or(0)];
            // The padding behind the last one need not be there.
            let held = (pages.image().size() - at).min(bytes.len() as u64);
            pages.read(at, bytes.get_mut(..held as usize).unwrap_or_default())?;
            set.extend(self.attribute(&bytes)?);
        }
        let id = builder.intern_xattrs(set);
        self.sets.insert(area.into(), id);
        Ok(id)
    }

    /// The attribute at the start of `bytes`; none if its name's prefix is unknown, as the kernel has it.
    fn attribute(&mut self, bytes: &[u8]) -> Result<Option<Xattr>, ReadError> {
        let exceeds = || damaged("an extended attribute of it exceeds the space for them");
        let (entry, rest) = XattrEntry::read_from_prefix(bytes).map_err(|_| exceeds())?;
        let name = rest.get(..entry.name_length.into()).ok_or_else(exceeds)?;
        let value = rest.get(name.len()..).and_then(|rest| rest.get(..entry.value_length.get().into()));
        let value = value.ok_or_else(exceeds)?;
        // What is left out costs too: many inodes may refer to it.
        self.spend(size_of::<Xattr>() + name.len() + value.len())?;
        let (base, infix) = match entry.index & LONG_PREFIX {
            0 => (entry.index, &[][..]),
            _ => match self.prefixes.get(usize::from(entry.index & !LONG_PREFIX)) {
                Some(prefix) => (prefix.base, &*prefix.infix),
                None => return Ok(None),
            },
        };
        let Some(base) = prefix(base) else { return Ok(None) };
        let name = [base, infix, name].concat();
        self.spend(name.len())?;
        if name.contains(&0) {
            return Err(damaged("the name of an extended attribute of it has a NUL"));
        }
        Ok(Some(Xattr { name: name.into(), value: value.into() }))
    }

    fn spend(&mut self, bytes: usize) -> Result<(), ReadError> {
        let exceeds =
            || damaged("the extended attributes of its files together are too large for an image of its size");
        self.budget = self.budget.checked_sub(bytes as u64).ok_or_else(exceeds)?;
        Ok(())
    }
}

/// Bytes of the attribute that starts with `head`, as stored.
fn entry_length(head: &[u8]) -> Option<usize> {
    let (entry, _) = XattrEntry::read_from_prefix(head).ok()?;
    Some(entry_size(entry.name_length.into(), entry.value_length.get().into()))
}
