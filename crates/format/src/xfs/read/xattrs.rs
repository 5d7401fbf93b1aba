//! Reads extended attributes: within inodes, in leaves, and values in blocks of their own.

use std::collections::HashSet;

use inarch_tree::Xattr;
use inarch_volume::{Loss, VolumeError};

use super::disk::Disk;
use super::inodes::{Fork, Inode};
use super::mapping::{Claims, Run, blocks_of, map};
use super::{damaged, tolerate};
use crate::xfs::spec::attribute::{Attribute, Kind, REMOTE_HEADER, REMOTE_MAGIC, Value, acl, leaf, short};
use crate::xfs::spec::directory::{Hashes, pairs};
use crate::xfs::spec::inode::Format;
use crate::xfs::spec::seal;

/// Bytes of a value at most (`XFS_XATTR_SIZE_MAX`).
const VALUE_MAX: u32 = 65_536;
/// Blocks of an attribute fork at most: their numbers have 32 bits.
const MAX_BLOCKS: u64 = 1 << 32;

/// Collects the attributes of one inode.
struct Collector<'a> {
    disk: &'a Disk,
    claims: &'a mut Claims,
    ino: u64,
    runs: Vec<Run>,
    names: HashSet<Vec<u8>>,
    list: Vec<Xattr>,
    losses: Vec<Loss>,
}

/// The attributes of an inode, and what is wrong with them.
pub(super) fn read(disk: &Disk, claims: &mut Claims, inode: &Inode) -> Result<(Vec<Xattr>, Vec<Loss>), VolumeError> {
    let Some(fork) = inode.attribute() else { return Ok((Vec::new(), Vec::new())) };
    let (names, list, losses) = (HashSet::new(), Vec::new(), Vec::new());
    let mut collector = Collector { disk, claims, ino: inode.ino, runs: Vec::new(), names, list, losses };
    match fork.format {
        Format::Local => {
            for attribute in short(fork.bytes) {
                collector.add(attribute)?;
            }
        }
        Format::Extents if fork.extents == 0 => {}
        _ => collector.tree(fork)?,
    }
    Ok((collector.list, collector.losses))
}

impl Collector<'_> {
    fn lose(&mut self, reason: impl Into<String>) {
        self.losses.push(Loss::damage(reason));
    }

    fn tree(&mut self, fork: Fork<'_>) -> Result<(), VolumeError> {
        let flaw = map(self.disk, self.claims, self.ino, fork, 0..MAX_BLOCKS, &mut self.runs)?;
        if let Some(reason) = flaw {
            self.lose(format!("has extended attributes that are left out: the fork with them {reason}"));
        }
        // Each block is claimed, so this ends.
        let mut pending = vec![0];
        while let Some(number) = pending.pop() {
            let block = match tolerate(self.block(number))? {
                Ok((block, first)) => match tolerate(self.disk.check(seal::TREE, &block, &[first], self.ino))? {
                    Ok(()) => block,
                    Err(reason) => {
                        self.lose(format!("has a block of extended attributes that {reason}"));
                        continue;
                    }
                },
                Err(reason) => {
                    self.lose(format!("has a block of extended attributes that {reason}"));
                    continue;
                }
            };
            match Hashes::parse(&block, self.disk.is_sealed) {
                Some(Hashes::Node(children)) => {
                    pending.extend(pairs(children).rev().map(|(_, below)| u64::from(below)))
                }
                Some(Hashes::Attributes) => {
                    for attribute in leaf(&block, self.disk.is_sealed) {
                        self.add(attribute)?;
                    }
                }
                _ => self.lose(format!("has a block of extended attributes that is none: {number}")),
            }
        }
        Ok(())
    }

    /// A block of the fork, and which one of the file system it is.
    fn block(&mut self, number: u64) -> Result<(Vec<u8>, u64), VolumeError> {
        let blocks = blocks_of(&self.runs, number, 1);
        let Some(&[first]) = blocks.as_deref() else { return Err(damaged(format!("is not there: {number}"))) };
        if !self.claims.take(first) {
            return Err(damaged(format!("is in another place, too: {first}")));
        }
        let mut bytes = vec![0; self.disk.block_size as usize];
        self.disk.read_blocks(first, &mut bytes)?;
        Ok((bytes, first))
    }

    fn add(&mut self, attribute: Result<Attribute<'_>, ()>) -> Result<(), VolumeError> {
        let Ok(attribute) = attribute else {
            self.lose("has extended attributes with nonsense among them");
            return Ok(());
        };
        let (name, is_acl) = match attribute.kind() {
            Kind::Internal => return Ok(()),
            Kind::Acl(name) => (name.to_vec(), true),
            Kind::Named(name) => (name, false),
        };
        if attribute.name.is_empty() || attribute.name.contains(&0) {
            self.lose("has an extended attribute with an impossible name; it is left out");
            return Ok(());
        }
        if !self.names.insert(name.clone()) {
            self.lose("has an extended attribute twice");
            return Ok(());
        }
        let value = match attribute.value {
            Value::Here(bytes) => bytes.to_vec(),
            Value::Remote { block, length } => match tolerate(self.remote(block.into(), length))? {
                Ok(value) => value,
                Err(reason) => {
                    self.lose(format!("has an extended attribute whose value {reason}; it is left out"));
                    return Ok(());
                }
            },
        };
        let value = match is_acl {
            true => acl(&value),
            false => Some(value),
        };
        match value {
            Some(value) => self.list.push(Xattr { name: name.into(), value: value.into() }),
            None => self.lose("has an access control list that is none; it is left out"),
        }
        Ok(())
    }

    /// A value in blocks of its own (`xfs_attr_rmtval_get`).
    fn remote(&mut self, first: u64, length: u32) -> Result<Vec<u8>, VolumeError> {
        if length > VALUE_MAX {
            return Err(damaged(format!("has {length} bytes")));
        }
        let length = length as usize;
        let mut value = Vec::with_capacity(length);
        let mut number = first;
        while value.len() < length {
            let (block, at) = self.block(number).map_err(|error| match error {
                VolumeError::Damaged(reason) => damaged(format!("has a block that {reason}")),
                host => host,
            })?;
            let bytes = match self.disk.is_sealed {
                true => {
                    self.disk.check(seal::REMOTE, &block, &[at], self.ino)?;
                    if !block.starts_with(&REMOTE_MAGIC) {
                        return Err(damaged(format!("has a block that is none: {number}")));
                    }
                    block.get(REMOTE_HEADER..).unwrap_or_default()
                }
                false => &block,
            };
            value.extend_from_slice(bytes.get(..length - value.len()).unwrap_or(bytes));
            number += 1;
        }
        Ok(value)
    }
}
