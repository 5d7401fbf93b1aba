//! Volumes above partitions: [`above()`] finds the members of RAID arrays and the physical volumes of volume groups among
//! partitions and disks, and makes a backing of each volume that lies on them.

use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;

use crate::signature::{Signature, signature};
use crate::{DiskError, lvm, md};

/// How often arrays may be members of arrays.
const DEEPEST: usize = 3;

/// A partition, or a disk without partitions.
#[derive(Clone)]
pub struct Piece {
    /// What messages and lists call it.
    pub name: String,
    /// Its bytes.
    pub backing: Arc<dyn Backing>,
}

/// A volume that lies on pieces.
#[derive(Clone)]
pub struct Above {
    /// Its name as a device: `/dev/GROUP/VOLUME`, `/dev/md/NAME`. Each one once.
    pub name: String,
    /// Whether it is an array of MD, and no logical volume.
    pub is_array: bool,
    /// How it is laid out, in the word of its kind: `linear`, `striped`, `thin`, `raid1`.
    pub layout: String,
    /// Bytes.
    pub size: u64,
    /// Its identifier: of a logical volume as LVM prints it, of an array as mdadm does.
    pub id: Option<String>,
    /// The names of the pieces that it lies on.
    pub on: Vec<String>,
    /// What it holds, if that is known.
    pub content: Option<Signature>,
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

/// Finds the volumes on `pieces`: MD arrays, and LVM's logical volumes on pieces and arrays.
///
/// # Errors
/// A piece cannot be read. What is damaged or missing is no error: a note or [`Above::bytes`] says it.
pub fn above(_: Parsing, pieces: &[Piece]) -> Result<Volumes, DiskError> {
    let mut found = Volumes::default();
    let (mut pool, mut fresh) = (Vec::new(), pieces.to_vec());
    for _ in 0..DEEPEST {
        let (arrays, rest) = md::assemble(fresh, &mut found)?;
        pool.extend(rest);
        fresh = arrays;
    }
    pool.extend(fresh);
    lvm::assemble(&pool, &mut found)?;
    for volume in &mut found.list {
        if let Ok(bytes) = &volume.bytes {
            volume.content = signature(&**bytes)?;
        }
    }
    Ok(found)
}
