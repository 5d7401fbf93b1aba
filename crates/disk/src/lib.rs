//! What is on a disk image.
//!
//! [`examine`] reads the partition table, if there is one ([`gpt`], [`mbr`]), and tells what each part holds by the first
//! bytes of its content ([`signature`]): a file system, swap space, a part of a volume group. A [`Window`] makes a backing
//! of a part, for the readers of file systems. A [`container`] makes a disk of an image that is not raw. [`above()`] finds what
//! lies above the parts of one or several disks: the logical volumes of LVM, the arrays of MD and LUKS volumes. [`table`] and [`new_qcow2`]
//! plan new partition tables and empty images.
//!
//! Images are hostile: all numbers are checked, nothing is allocated by what an image claims, and no chain is followed
//! without end.
//!
//! ```no_run
//! use std::sync::Arc;
//! use inarch_block::{Backing, BackingFile};
//! use inarch_confine::Parse;
//!
//! let path = std::path::PathBuf::from("guest.img");
//! let image: Arc<dyn Backing> = Arc::new(BackingFile::new(std::fs::File::open(&path)?, path)?);
//! let disk = Parse::new().run(|parsing| inarch_disk::examine(parsing, &image), || {})??;
//! for part in &disk.parts {
//!     println!("{}: {} bytes", part.number, part.length);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod above;
#[cfg(test)]
mod above_tests;
pub mod container;
mod gpt;
pub mod guest;
mod identifiers;
mod keys;
mod luks;
mod lvm;
mod mapped;
mod mbr;
mod md;
mod names;
pub mod new_qcow2;
mod read;
mod signature;
mod space;
pub mod table;
#[cfg(test)]
mod tests;
mod volumes;
mod window;

use std::io;
use std::sync::Arc;

pub use above::{Above, Kind, Piece, Volumes, above};
pub use identifiers::guid;
use inarch_block::Backing;
use inarch_confine::Parsing;
pub use keys::{Key, Keys};
pub use names::{Names, device_name, device_of};
pub use signature::Signature;
pub use space::{Space, space};
pub use volumes::{DiskVolume, volumes, volumes_of};
pub use window::Window;

/// What is on a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Bytes.
    pub size: u64,
    /// Its partition table.
    pub table: Option<Table>,
    /// The partitions, by where they start.
    pub parts: Vec<Part>,
    /// What the whole disk holds, if it has no partition table.
    pub content: Option<Signature>,
    /// What is wrong with the table, and what was done about it: a line each.
    pub notes: Vec<String>,
}

/// A partition table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Its kind.
    pub kind: TableKind,
    /// The disk's identifier.
    pub id: String,
    /// Bytes of a logical sector.
    pub sector: u64,
}

/// The kinds of partition tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableKind {
    /// GUID partition table (UEFI specification 2.10, section 5.3).
    Gpt,
    /// Master boot record (section 5.2).
    Mbr,
}

impl TableKind {
    /// Its usual name, in small letters.
    pub fn name(self) -> &'static str {
        match self {
            TableKind::Gpt => "gpt",
            TableKind::Mbr => "mbr",
        }
    }
}

impl Disk {
    /// What may hold volumes, for [`above()`]: the partitions, or the whole disk if it has none. They are called
    /// `NAME:NUMBER`, and the whole disk `NAME`.
    /// `number` is that of the disk among a guest's disks, from 0.
    pub fn pieces(&self, image: &Arc<dyn Backing>, number: usize, name: &str) -> Vec<Piece> {
        if self.table.is_none() {
            let names = Names { disk: number, content: self.content.clone(), ..Names::default() };
            return vec![Piece { name: name.to_owned(), names, backing: Arc::clone(image) }];
        }
        let is_within = |part: &&Part| part.start.checked_add(part.length).is_some_and(|end| end <= self.size);
        let parts = self.parts.iter().filter(is_within).filter(|part| part.type_name != Some("extended"));
        let piece = |part: &Part| Piece {
            name: format!("{name}:{}", part.number),
            names: Names {
                disk: number,
                part: Some(part.number),
                start: Some(part.start),
                part_id: part.id.clone(),
                part_name: part.name.clone(),
                content: part.content.clone(),
                ..Names::default()
            },
            backing: Arc::new(Window::new(Arc::clone(image), part.start, part.length)),
        };
        parts.map(piece).collect()
    }
}

/// A partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number in the table, from 1; those in an extended partition from 5.
    pub number: u32,
    /// Where it starts, in bytes.
    pub start: u64,
    /// How long it is, in bytes.
    pub length: u64,
    /// Its type: a GUID, or two hexadecimal digits.
    pub type_id: String,
    /// The type in words, if it is a usual one.
    pub type_name: Option<&'static str>,
    /// Its name in the table, of a GPT.
    pub name: Option<String>,
    /// Its identifier (`PARTUUID`).
    pub id: Option<String>,
    /// Whether it is marked to be booted.
    pub boots: bool,
    /// What it holds, if that is known.
    pub content: Option<Signature>,
}

/// Why a disk cannot be examined.
#[derive(Debug, thiserror::Error)]
pub enum DiskError {
    /// The host failed to read it.
    #[error("cannot read the image at byte {offset}: {error}")]
    Io {
        /// Where.
        offset: u64,
        /// Why.
        error: io::Error,
    },
    /// Both copies of the table are damaged.
    #[error("its partition table is damaged: {0}")]
    Damaged(String),
}

/// Looks at a disk image's partition table, and at the first bytes of each partition.
///
/// # Errors
/// The image cannot be read, or its partition table is damaged.
pub fn examine(_: Parsing, image: &Arc<dyn Backing>) -> Result<Disk, DiskError> {
    let mut disk = Disk { size: image.size(), table: None, parts: Vec::new(), content: None, notes: Vec::new() };
    // A file system may leave the first sector to a boot loader that looks like a table, or hold an old table.
    let start = signature::at_the_start(&**image)?;
    if start.as_ref().is_some_and(|signature| !signature.is_weak()) {
        disk.content = signature::signature(&**image)?;
        return Ok(disk);
    }
    let found = match gpt::read(&**image, &mut disk.notes)? {
        Some(found) => Some(found),
        None => mbr::read(&**image, &mut disk.notes)?,
    };
    let Some((table, mut parts)) = found else {
        disk.content = signature::signature(&**image)?;
        return Ok(disk);
    };
    parts.sort_by_key(|part| (part.start, part.number));
    for part in &mut parts {
        let is_within = part.start.checked_add(part.length).is_some_and(|end| end <= disk.size);
        if !is_within {
            disk.notes.push(format!("partition {} goes beyond the end of the image", part.number));
            continue;
        }
        part.content = signature::signature(&Window::new(Arc::clone(image), part.start, part.length))?;
    }
    disk.table = Some(table);
    disk.parts = parts;
    Ok(disk)
}
