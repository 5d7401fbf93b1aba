//! Reads extended attributes: in inodes, in blocks, and values in inodes of their own.

use inarch_tree::Xattr;
use inarch_volume::{Loss, VolumeError};

use super::disk::Disk;
use super::inline;
use super::inodes::{Inodes, Slot};
use super::mapping::{Claims, Place, map};
use crate::ext4::spec::acl;
use crate::ext4::spec::inode::flags;
use crate::ext4::spec::xattr::{AreaReader, Entry, Value, checksum_matches, index, value_hash};

/// Bytes of a value at most (`XATTR_SIZE_MAX`).
const VALUE_MAX: u32 = 65_536;
/// The most bytes of values in inodes of their own that one reader reads: they may be shared, so an image can refer
/// to far more bytes than it has.
const BUDGET: usize = 512 << 20;

/// What an inode says of its attributes.
#[derive(Default)]
pub(super) struct Stored {
    within: Vec<Attribute>,
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
                Ok(Ok(Some(attribute))) if self.within.iter().all(|other| other.name != attribute.name) => {
                    self.within.push(attribute);
                }
                Ok(Ok(_)) => {}
                Ok(Err(reason)) => self.flaws.push(reason),
                Err(()) => self.flaws.push(Loss::damage("has extended attributes with nonsense among them".to_owned())),
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
        return Err(Loss::damage("has an extended attribute with an impossible name; it is left out".to_owned()));
    }
    let value = match entry.value {
        Value::Inline(bytes) => Bytes::Here(bytes.to_vec()),
        Value::Inode { ino, size, .. } => Bytes::Inode { ino, size },
    };
    Ok(Some(Attribute { name: [prefix, entry.name].concat(), index: entry.index, value }))
}

/// Reads what inodes do not hold themselves.
#[derive(Default)]
pub(super) struct XattrReader {
    block: Vec<u8>,
    spent: usize,
}

impl XattrReader {
    /// The attributes of an inode, and what is wrong with them.
    pub(super) fn read(
        &mut self,
        disk: &Disk,
        inodes: &mut Inodes,
        mut stored: Stored,
    ) -> Result<(Vec<Xattr>, Vec<Loss>), VolumeError> {
        if stored.block != 0 {
            match self.add_block(disk, &mut stored) {
                Err(VolumeError::Damaged(reason)) => {
                    stored.flaws.push(Loss::damage(format!("has a block of extended attributes that {reason}")));
                }
                other => other?,
            }
        }
        let mut set = Vec::with_capacity(stored.within.len());
        for attribute in stored.within {
            match self.value(disk, inodes, attribute) {
                Ok(xattr) => set.push(xattr),
                Err(VolumeError::Damaged(reason)) => stored.flaws.push(Loss::damage(reason)),
                Err(VolumeError::Unsupported(reason)) => stored.flaws.push(Loss::sound(reason)),
                Err(error) => return Err(error),
            }
        }
        Ok((set, stored.flaws))
    }

    fn add_block(&mut self, disk: &Disk, stored: &mut Stored) -> Result<(), VolumeError> {
        self.block.resize(disk.block_size as usize, 0);
        disk.read_blocks(stored.block, &mut self.block)?;
        if disk.verifies() && !checksum_matches(&self.block, disk.seed, stored.block) {
            return Err(VolumeError::Damaged(format!("has a wrong checksum: {}", stored.block)));
        }
        let area = AreaReader::in_block(&self.block);
        stored.add(area.ok_or_else(|| VolumeError::Damaged(format!("is none: {}", stored.block)))?);
        Ok(())
    }

    fn value(&mut self, disk: &Disk, inodes: &mut Inodes, attribute: Attribute) -> Result<Xattr, VolumeError> {
        let value = match attribute.value {
            Bytes::Here(bytes) => bytes,
            Bytes::Inode { ino, size } => {
                let text = |reason| format!("has an extended attribute whose value {reason}; it is left out");
                self.spent += size.min(VALUE_MAX) as usize;
                if self.spent > BUDGET {
                    let most = BUDGET >> 20;
                    let text =
                        format!("has extended attributes beyond the {most} MiB that are read; they are left out");
                    return Err(VolumeError::Unsupported(text));
                }
                external(disk, inodes, ino, size).map_err(|flaw| match flaw {
                    VolumeError::Damaged(reason) => VolumeError::Damaged(text(reason)),
                    host => host,
                })?
            }
        };
        let value = match attribute.index {
            index::POSIX_ACL_ACCESS | index::POSIX_ACL_DEFAULT => acl::from_ext4(&value).ok_or_else(|| {
                VolumeError::Damaged("has an access control list that is none; it is left out".to_owned())
            })?,
            _ => value,
        };
        Ok(Xattr { name: attribute.name.into(), value: value.into() })
    }
}

/// A value in an inode of its own (`ext4_xattr_inode_get`).
fn external(disk: &Disk, inodes: &mut Inodes, ino: u32, size: u32) -> Result<Vec<u8>, VolumeError> {
    let slot = inodes.get(disk, ino)?;
    if !slot.inode.has(flags::EA_INODE) || slot.inode.size() != u64::from(size) || size > VALUE_MAX {
        return Err(VolumeError::Damaged(format!("is given as inode {ino}, which is no value of {size} bytes")));
    }
    let hash = slot.inode.atime.get();
    let mut runs = Vec::new();
    // Values may be shared, so their blocks are nobody's own.
    let blocks = 0..u64::from(size).div_ceil(disk.block_size);
    if let Some(reason) = map(disk, &mut Claims::default(), ino, &slot.inode, blocks, &mut runs)? {
        return Err(VolumeError::Damaged(reason));
    }
    let mut value = vec![0; size as usize];
    for run in runs {
        let Place::Blocks(block) = run.place else { continue };
        let part = value.get_mut((run.logical * disk.block_size) as usize..).unwrap_or_default();
        let count = part.len().min((run.length * disk.block_size) as usize);
        disk.read_blocks(block, part.get_mut(..count).unwrap_or_default())?;
    }
    if disk.verifies() && value_hash(disk.seed, &value) != hash {
        return Err(VolumeError::Damaged(format!("in inode {ino} does not have the hash that is given for it")));
    }
    Ok(value)
}
