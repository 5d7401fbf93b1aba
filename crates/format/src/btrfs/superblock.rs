//! Reads and checks the superblock.

use inarch_block::{Backing, read_backing};
use inarch_volume::VolumeError;
use zerocopy::FromBytes;

use super::checksum::Checksum;
use super::spec::MAX_LEVEL;
use super::spec::superblock::{MAGIC, OFFSETS, SIZE, Superblock, incompat};
use super::{NAME, damaged, unsupported};
use crate::notes::counted;
use crate::{Damage, ReadError};

/// What the superblock says, checked.
#[derive(Clone)]
pub(super) struct Parameters {
    pub(super) superblock: Superblock,
    pub(super) checksum: Checksum,
    /// The UUID that blocks of trees have.
    pub(super) fsid: [u8; 16],
    /// Bytes of a block of a tree: 4096 to 65536.
    pub(super) node_size: usize,
    /// 4096 to 65536.
    pub(super) sector_size: u32,
    /// The number of this device in its file system.
    pub(super) device: u64,
}

impl Parameters {
    /// Reads the first superblock. If that is damaged and damage is salvaged, the newest of the others.
    pub(super) fn read(image: &dyn Backing, damage: Damage, notes: &mut Vec<String>) -> Result<Parameters, ReadError> {
        let refuse = |error| ReadError::of_volume(NAME, error);
        let first = OFFSETS.first().copied().unwrap_or_default();
        let parameters = match Parameters::at(image, first) {
            Ok(parameters) => parameters,
            Err(VolumeError::Damaged(reason)) => {
                let reason = damage.or_refuse(NAME, reason)?;
                let others = OFFSETS.iter().skip(1).filter_map(|at| Parameters::at(image, *at).ok());
                let newest = others.max_by_key(|others| others.superblock.generation.get());
                let found = newest.ok_or_else(|| refuse(damaged(format!("{reason}, and it has no sound copy"))))?;
                notes.push(format!("{reason}; its copy at byte {} is used", found.superblock.address.get()));
                found
            }
            Err(error) => return Err(refuse(error)),
        };
        parameters.check_features().map_err(refuse)?;
        notes.extend(parameters.notes());
        Ok(parameters)
    }

    fn at(image: &dyn Backing, at: u64) -> Result<Parameters, VolumeError> {
        let wrong = |what: String| damaged(format!("the superblock at byte {at} {what}"));
        if at.checked_add(SIZE as u64).is_none_or(|end| end > image.size()) {
            return Err(wrong(format!("lies behind the end of the image, which has {} bytes", image.size())));
        }
        let mut bytes = [0; SIZE];
        read_backing(image, at, &mut bytes).map_err(|error| VolumeError::Io { offset: at, error })?;
        let Ok((superblock, _)) = Superblock::read_from_prefix(&bytes) else {
            return Err(damaged("internal: a superblock has fewer than 4096 bytes"));
        };
        if superblock.magic != MAGIC {
            return Err(wrong("is none: it has no magic number".to_owned()));
        }
        let number = superblock.checksum_kind.get();
        let checksum = Checksum::from_number(number)
            .ok_or_else(|| unsupported(format!("its checksums are of the unknown kind {number}")))?;
        if !checksum.matches(&bytes) {
            return Err(wrong("has a wrong checksum".to_owned()));
        }
        let (sector_size, node_size) = (superblock.sector_size.get(), superblock.node_size.get());
        let is_size = |size: u32| size.is_power_of_two() && (4096..=65_536).contains(&size);
        if !is_size(sector_size) || !is_size(node_size) || sector_size > node_size {
            return Err(wrong(format!("has sectors of {sector_size} bytes and nodes of {node_size}")));
        }
        if superblock.root_level >= MAX_LEVEL || superblock.chunk_root_level >= MAX_LEVEL {
            return Err(wrong("has trees of more than 8 levels".to_owned()));
        }
        if superblock.address.get() != at {
            return Err(wrong(format!("says that it is at byte {}", superblock.address.get())));
        }
        let own_uuid = superblock.incompat.get() & incompat::METADATA_UUID != 0;
        Ok(Parameters {
            checksum,
            fsid: if own_uuid { superblock.metadata_uuid } else { superblock.fsid },
            node_size: node_size as usize,
            sector_size,
            device: superblock.device.id.get(),
            superblock,
        })
    }

    fn check_features(&self) -> Result<(), VolumeError> {
        let unknown = self.superblock.incompat.get() & !incompat::KNOWN;
        if unknown == 0 {
            return Ok(());
        }
        let named = incompat::NAMES.iter().find(|(bit, _)| unknown & bit != 0);
        let what = named.map_or_else(|| format!("the unknown features {unknown:#x}"), |(_, name)| (*name).to_owned());
        Err(unsupported(format!("it has {what}, which is not supported; mount it, and give the directory")))
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        if self.superblock.log_root.get() != 0 {
            let text = "it was not unmounted, and has a log of what fsync(2) wrote since the last commit, which is not \
                        replayed: files of the last 30 seconds may be older here";
            notes.push(text.to_owned());
        }
        let others = self.superblock.devices.get().saturating_sub(1);
        if others > 0 {
            let device = self.device;
            let others = counted(others, "other device", "other devices");
            notes.push(format!(
                "it is device {device} of a file system with {others}; what is only there cannot be read"
            ));
        }
        if self.checksum == Checksum::Blake2b {
            notes.push("its metadata has BLAKE2b checksums, which are not checked here".to_owned());
        }
        notes
    }
}
