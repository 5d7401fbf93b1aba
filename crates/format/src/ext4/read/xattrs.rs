//! Extended attributes: within inodes, in blocks, and as values in inodes of their own.

use std::collections::{HashMap, HashSet};

use inarch_tree::{Builder, Xattr, XattrSetId};

use super::flaw::{Flaw, Loss};
use super::inline;
use super::inodes::{Inodes, Slot};
use super::mapping::{Claims, Place, map};
use super::volume::Volume;
use crate::ext4::spec::acl;
use crate::ext4::spec::inode::flags;
use crate::ext4::spec::xattr::{AreaReader, Entry, Value, checksum_matches, index, value_hash};

/// Bytes of a value at most (`XATTR_SIZE_MAX`).
const VALUE_MAX: u32 = 65_536;
/// Bytes of values of one file system at most: blocks and values may be shared, so an image can name far more than it
/// has.
const BUDGET: usize = 512 << 20;

/// What an inode says of its attributes.
#[derive(Default)]
pub(super) struct Stored {
    within: Vec<Attribute>,
    names: HashSet<Vec<u8>>,
    block: u64,
    /// What was found wrong.
    flaws: Vec<Loss>,
}

struct Attribute {
    name: Vec<u8>,
    index: u8,
    value: Bytes,
}

enum Bytes {
    Here(Vec<u8>),
    Inode { ino: u32, size: u32 },
}

/// The attributes within an inode and where others are; `None` where it has none.
pub(super) fn stored(slot: &Slot<'_>) -> Option<Stored> {
    let block = slot.inode.file_acl();
    let area = inline::area(slot).and_then(AreaReader::in_inode);
    if block == 0 && area.is_none() {
        return None;
    }
    let mut stored = Stored { block, ..Stored::default() };
    if let Some(area) = area {
        stored.add(area);
    }
    Some(stored)
}

impl Stored {
    fn add(&mut self, area: AreaReader<'_>) {
        for entry in area {
            match entry.map(attribute) {
                Ok(Ok(Some(attribute))) => {
                    if self.names.insert(attribute.name.clone()) {
                        self.within.push(attribute);
                    }
                }
                Ok(Ok(None)) => {}
                Ok(Err(reason)) => self.flaws.push(reason),
                Err(()) => self.flaws.push(damage("has extended attributes with nonsense among them".to_owned())),
            }
        }
    }
}

/// An entry with its whole name; `None` for what is ext4's own.
fn attribute(entry: Entry<'_>) -> Result<Option<Attribute>, Loss> {
    let prefix: &[u8] = match entry.index {
        index::USER => b"user.",
        index::TRUSTED => b"trusted.",
        index::SECURITY => b"security.",
        index::POSIX_ACL_ACCESS => b"system.posix_acl_access",
        index::POSIX_ACL_DEFAULT => b"system.posix_acl_default",
        index::ENCRYPTION => return Ok(None),
        index::SYSTEM if entry.name == b"data" => return Ok(None),
        other => {
            let reason = format!("has an extended attribute of the unknown kind {other}; it is left out");
            return Err(Loss { is_damage: false, reason });
        }
    };
    let is_acl = matches!(entry.index, index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT);
    if entry.name.is_empty() != is_acl || entry.name.contains(&0) {
        return Err(damage("has an extended attribute with an impossible name; it is left out".to_owned()));
    }
    let value = match entry.value {
        Value::Inline(bytes) => Bytes::Here(bytes.to_vec()),
        Value::Inode { ino, size, .. } => Bytes::Inode { ino, size },
    };
    Ok(Some(Attribute { name: [prefix, entry.name].concat(), index: entry.index, value }))
}

fn damage(reason: String) -> Loss {
    Loss { is_damage: true, reason }
}

/// Reads what inodes do not hold themselves.
pub(super) struct XattrReader {
    block: Vec<u8>,
    /// The sets of blocks, which inodes may share, that were read without a flaw and are all that their inode has.
    blocks: HashMap<u64, XattrSetId>,
    /// Sets in the tree so far.
    sets: u32,
    spent: usize,
}

impl XattrReader {
    pub(super) fn new() -> XattrReader {
        XattrReader { block: Vec::new(), blocks: HashMap::new(), sets: 0, spent: 0 }
    }

    /// The set of an inode, and what is wrong with it.
    pub(super) fn read(
        &mut self,
        volume: &Volume,
        inodes: &mut Inodes,
        mut stored: Stored,
        builder: &mut Builder,
    ) -> Result<(XattrSetId, Vec<Loss>), Flaw> {
        if self.spent > BUDGET {
            let text =
                format!("has extended attributes beyond the {} MiB that are read; they are left out", BUDGET >> 20);
            return Ok((XattrSetId::NONE, vec![Loss { is_damage: false, reason: text }]));
        }
        let is_all = stored.within.is_empty() && stored.flaws.is_empty() && stored.block != 0;
        if let Some(id) = self.blocks.get(&stored.block).filter(|_| is_all) {
            return Ok((*id, Vec::new()));
        }
        if stored.block != 0 {
            match self.add_block(volume, &mut stored) {
                Err(Flaw::Bad(reason)) => {
                    stored.flaws.push(damage(format!("has a block of extended attributes that {reason}")));
                }
                other => other?,
            }
        }
        let mut set = Vec::with_capacity(stored.within.len());
        for attribute in stored.within {
            match self.value(volume, inodes, attribute) {
                Ok(xattr) => set.push(xattr),
                Err(Flaw::Bad(reason)) => stored.flaws.push(damage(reason)),
                Err(host) => return Err(host),
            }
        }
        let bytes: usize = set.iter().map(|xattr| xattr.name.len() + xattr.value.len() + size_of::<Xattr>()).sum();
        let id = builder.intern_xattrs(set);
        if id.0 > self.sets {
            self.sets = id.0;
            // The builder keeps a set twice, once to find it again.
            self.spent += 2 * bytes;
        }
        if is_all && stored.flaws.is_empty() {
            self.blocks.insert(stored.block, id);
        }
        Ok((id, stored.flaws))
    }

    fn add_block(&mut self, volume: &Volume, stored: &mut Stored) -> Result<(), Flaw> {
        self.block.resize(volume.block_size as usize, 0);
        volume.read_blocks(stored.block, &mut self.block)?;
        if volume.verifies() && !checksum_matches(&self.block, volume.seed, stored.block) {
            return Err(Flaw::Bad(format!("has a wrong checksum: {}", stored.block)));
        }
        let area = AreaReader::in_block(&self.block);
        stored.add(area.ok_or_else(|| Flaw::Bad(format!("is none: {}", stored.block)))?);
        Ok(())
    }

    fn value(&mut self, volume: &Volume, inodes: &mut Inodes, attribute: Attribute) -> Result<Xattr, Flaw> {
        let value = match attribute.value {
            Bytes::Here(bytes) => bytes,
            Bytes::Inode { ino, size } => {
                let text = |reason| format!("has an extended attribute whose value {reason}; it is left out");
                self.spent += size.min(VALUE_MAX) as usize;
                external(volume, inodes, ino, size).map_err(|flaw| match flaw {
                    Flaw::Bad(reason) => Flaw::Bad(text(reason)),
                    host => host,
                })?
            }
        };
        let value = match attribute.index {
            index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT => acl::from_ext4(&value)
                .ok_or_else(|| Flaw::Bad("has an access control list that is none; it is left out".to_owned()))?,
            _ => value,
        };
        Ok(Xattr { name: attribute.name.into(), value: value.into() })
    }
}

/// A value in an inode of its own (`ext4_xattr_inode_get`).
fn external(volume: &Volume, inodes: &mut Inodes, ino: u32, size: u32) -> Result<Vec<u8>, Flaw> {
    let slot = inodes.get(volume, ino)?;
    if !slot.inode.has(flags::EA_INODE) || slot.inode.size() != u64::from(size) || size > VALUE_MAX {
        return Err(Flaw::Bad(format!("is given as inode {ino}, which is no value of {size} bytes")));
    }
    let hash = slot.inode.atime.get();
    let mut runs = Vec::new();
    // Values may be shared, so their blocks are nobody's own.
    let blocks = u64::from(size).div_ceil(volume.block_size);
    if let Some(reason) = map(volume, &mut Claims::default(), ino, &slot.inode, blocks, &mut runs)? {
        return Err(Flaw::Bad(reason));
    }
    let mut value = vec![0; size as usize];
    for run in runs {
        let Place::Blocks(block) = run.place else { continue };
        let part = value.get_mut((run.logical * volume.block_size) as usize..).unwrap_or_default();
        let count = part.len().min((run.length * volume.block_size) as usize);
        volume.read_blocks(block, part.get_mut(..count).unwrap_or_default())?;
    }
    if volume.verifies() && value_hash(volume.seed, &value) != hash {
        return Err(Flaw::Bad(format!("in inode {ino} does not have the hash that is given for it")));
    }
    Ok(value)
}
