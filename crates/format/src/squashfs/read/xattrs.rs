//! Reads sets of extended attributes.

use std::sync::Arc;

use inarch_tree::Xattr;

use super::image::{Image, wrong};
use super::metadata::{Reader, Table};
use super::pass::Budget;
use crate::squashfs::spec::xattr::{self, NameHeader, OUT_OF_LINE, PREFIX_MASK, PREFIXES, Set, ValueHeader};
use crate::squashfs::spec::{METADATA_SIZE, NO_TABLE, Reference};
use inarch_volume::VolumeError;

/// Bytes of a name at most (`XATTR_NAME_MAX`).
const MAX_NAME: usize = 255;
/// Bytes of a value at most (`XATTR_SIZE_MAX`).
const MAX_VALUE: u32 = 65_536;

/// The attribute sets of an image.
pub(super) struct Sets {
    count: u32,
    /// Where the metadata blocks of the sets are.
    blocks: Vec<u64>,
    table: Table,
    pairs: Table,
}

impl Sets {
    /// `None` where the image has none.
    pub(super) fn open(image: &Arc<Image>) -> Result<Option<Sets>, VolumeError> {
        let start = image.superblock.xattr_table.get();
        if start == NO_TABLE {
            return Ok(None);
        }
        let table: xattr::Table = image.read_struct(start)?;
        let (count, pairs) = (table.sets.get(), table.pairs.get());
        if pairs > start {
            return Err(wrong(format!("the extended attributes start at byte {pairs}, behind their table")));
        }
        let blocks = u64::from(count).div_ceil(SETS_PER_BLOCK) as usize;
        Ok(Some(Sets {
            count,
            blocks: image.read_offsets(start + size_of::<xattr::Table>() as u64, blocks)?,
            table: Table::new(image, "xattr id", pairs, start),
            pairs: Table::new(image, "xattr", pairs, start),
        }))
    }

    /// The attributes of a set. What is in a namespace that Linux does not know is left out.
    pub(super) fn read(&self, set: u32, budget: &mut Budget) -> Result<Vec<Xattr>, VolumeError> {
        let block = self.blocks.get((u64::from(set) / SETS_PER_BLOCK) as usize).filter(|_| set < self.count);
        let block = *block.ok_or_else(|| wrong(format!("an inode has attribute set {set} of {}", self.count)))?;
        let within = (u64::from(set) % SETS_PER_BLOCK) as usize * size_of::<Set>();
        let set: Set = self.table.reader_at(block, within)?.read_struct()?;
        if set.count.get() == 0 {
            return Ok(Vec::new());
        }
        let mut reader = self.pairs.reader(Reference(set.pairs.get()))?;
        let mut list = Vec::new();
        for _ in 0..set.count.get() {
            list.extend(self.read_pair(&mut reader, budget)?);
        }
        Ok(list)
    }

    fn read_pair(&self, reader: &mut Reader<'_>, budget: &mut Budget) -> Result<Option<Xattr>, VolumeError> {
        let header: NameHeader = reader.read_struct()?;
        let prefix = PREFIXES.get(usize::from(header.kind.get() & PREFIX_MASK)).copied();
        let mut name = prefix.unwrap_or_default().to_vec();
        let start = name.len();
        let length = start + usize::from(header.length.get());
        if length > MAX_NAME {
            return Err(reader.wrong(&format!("an attribute's name of {length} bytes; it has {MAX_NAME} at most")));
        }
        name.resize(length, 0);
        reader.read(name.get_mut(start..).unwrap_or_default())?;
        let value = if header.kind.get() & OUT_OF_LINE != 0 {
            let _: ValueHeader = reader.read_struct()?;
            let place: zerocopy::little_endian::U64 = reader.read_struct()?;
            read_value(&mut self.pairs.reader(Reference(place.get()))?, budget)?
        } else {
            read_value(reader, budget)?
        };
        budget.spend(name.len() as u64)?;
        let is_name = length > start && !name.contains(&0);
        Ok(prefix.filter(|_| is_name).map(|_| Xattr { name: name.into(), value }))
    }
}

const SETS_PER_BLOCK: u64 = (METADATA_SIZE / size_of::<Set>()) as u64;

fn read_value(reader: &mut Reader<'_>, budget: &mut Budget) -> Result<Box<[u8]>, VolumeError> {
    let header: ValueHeader = reader.read_struct()?;
    let length = header.length.get();
    if length > MAX_VALUE {
        return Err(reader.wrong(&format!("an attribute's value of {length} bytes; it has {MAX_VALUE} at most")));
    }
    budget.spend(length.into())?;
    let mut value = vec![0; length as usize].into_boxed_slice();
    reader.read(&mut value)?;
    Ok(value)
}
