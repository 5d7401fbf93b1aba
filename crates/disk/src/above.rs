//! Volumes above partitions: [`above()`] finds the members of RAID arrays, LUKS volumes and the physical volumes of volume groups
//! among partitions and disks, and makes a backing of each volume that lies on them.

use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;

use crate::luks::Tries;
use crate::signature::{Signature, signature};
use crate::{DiskError, Keys, Names, luks, lvm, md};

/// How many volumes of each kind may lie on each other.
const DEEPEST: usize = 3;

/// A partition, or a disk without partitions.
#[derive(Clone)]
pub struct Piece {
    /// What messages and lists call it.
    pub name: String,
    /// What a guest calls it.
    pub names: Names,
    /// Its bytes.
    pub backing: Arc<dyn Backing>,
}

/// What a volume above is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An array of MD.
    Array,
    /// A LUKS volume.
    Luks,
    /// A logical volume of LVM.
    Logical,
}

/// A volume that lies on pieces.
#[derive(Clone)]
pub struct Above {
    /// Its name as a device: `/dev/GROUP/VOLUME`, `/dev/md/NAME`, `/dev/mapper/luks-UUID`. Each one once.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// How it is laid out, in the word of its kind: `linear`, `striped`, `thin`, `raid1`, `luks2`.
    pub layout: String,
    /// Bytes.
    pub size: u64,
    /// Its identifier: of a logical volume as LVM prints it, of an array as mdadm does.
    pub id: Option<String>,
    /// The names of the pieces that it lies on.
    pub on: Vec<String>,
    /// What it holds, if that is known.
    pub content: Option<Signature>,
    /// Of a LUKS volume, what it lies in.
    pub within: Option<Names>,
    /// Its bytes, or why they are not read.
    pub bytes: Result<Arc<dyn Backing>, String>,
}

/// What [`above()`] found.
#[derive(Clone, Default)]
pub struct Volumes {
    /// Arrays, then logical volumes.
    pub list: Vec<Above>,
    /// The names of the volume groups of LVM, those without volumes too.
    pub groups: Vec<String>,
    /// What is damaged or missing: a line each.
    pub notes: Vec<String>,
}

impl Above {
    /// The volume as a piece on which others may lie, if its bytes can be read.
    fn piece(&self) -> Option<Piece> {
        let backing = Arc::clone(self.bytes.as_ref().ok()?);
        Some(Piece { name: self.name.clone(), names: self.names(), backing })
    }

    /// What it is called by.
    pub fn names(&self) -> Names {
        let (above, content) = (Some(self.name.clone()), self.content.clone());
        Names { above, content, within: self.within.clone().map(Box::new), ..Names::default() }
    }
}

/// Finds the volumes on `pieces`: MD arrays, LUKS volumes, which `keys` may open, and LVM's logical volumes; and those that lie on such volumes.
///
/// # Errors
/// A piece cannot be read. What is damaged, locked or missing is no error: a note or [`Above::bytes`] says it.
pub fn above(_: Parsing, pieces: &[Piece], keys: &Keys) -> Result<Volumes, DiskError> {
    let (mut found, mut tries) = (Volumes::default(), Tries::default());
    let mut fresh = pieces.to_vec();
    for _ in 0..DEEPEST {
        let mut pool = Vec::new();
        for _ in 0..DEEPEST {
            let (arrays, rest) = md::assemble(fresh, &mut found)?;
            let (opened, rest) = luks::assemble(rest, keys, &mut tries, &mut found)?;
            pool.extend(rest);
            fresh = arrays;
            fresh.extend(opened);
        }
        pool.extend(fresh);
        let known = found.list.len();
        lvm::assemble(&pool, &mut found)?;
        for volume in &mut found.list {
            if let (Ok(bytes), None) = (&volume.bytes, &volume.content) {
                match signature(&**bytes) {
                    Ok(content) => volume.content = content,
                    // To read the bytes, tables of the volume are read, which may be damaged.
                    Err(error) => volume.bytes = Err(error.to_string()),
                }
            }
        }
        // Only logical volumes with such content hold further volumes.
        let logical = found.list.iter().skip(known).filter(|volume| volume.content.as_ref().is_some_and(is_below));
        fresh = logical.filter_map(Above::piece).collect();
        if fresh.is_empty() {
            break;
        }
    }
    Ok(found)
}

/// Whether other volumes may lie on a volume with this content.
fn is_below(content: &Signature) -> bool {
    matches!(content.format, "crypto_LUKS" | "linux_raid_member" | "LVM2_member")
}
