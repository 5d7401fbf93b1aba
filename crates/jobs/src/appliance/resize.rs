//! Makes a volume longer or shorter: the image, the partition, and the file system.

use std::io;

use inarch_disk::{Disk, TableKind};
use inarch_lifecycle::Events;
use inarch_lifecycle::PathError;
use inarch_source::ImageFormat;

use super::wire::{Ask, AttachedVolume, Device, Grown};
use super::{Access, Appliance, ApplianceError, ApplianceEvent, ApplianceReport, ApplianceRequest, volumes};

/// Partitions end at multiples of this.
const ALIGNMENT: u64 = 1 << 20;

/// What a GPT takes at the end of a disk: its second copy, rounded up.
const TABLE_AT_THE_END: u64 = 1 << 20;

/// How long a volume is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewSize {
    /// So many bytes.
    Bytes(u64),
    /// So many more.
    More(u64),
    /// So many fewer.
    Fewer(u64),
    /// As many as there is room for on the disk.
    Most,
}

/// A volume that was resized.
#[derive(Clone, Debug)]
pub struct Resized {
    /// The volume, as a guest calls it.
    pub volume: String,
    /// Bytes before.
    pub before: u64,
    /// Bytes now.
    pub now: u64,
    /// What took how long, if anything was done.
    pub report: Option<ApplianceReport>,
}

/// How a file system can be resized.
fn abilities(format: &str) -> Option<(bool, &'static str)> {
    match format {
        "ext2" | "ext3" | "ext4" | "btrfs" | "ntfs" => Some((true, "")),
        "xfs" => Some((false, "XFS cannot be made smaller; copy its files into a new one")),
        _ => None,
    }
}

/// Where a volume is on the disk, and how long it can become there.
struct Room {
    now: u64,
    /// `None` if the disk can grow for it.
    most: Option<u64>,
    start: u64,
    table: Option<TableKind>,
}

impl Room {
    fn of(disk: &Disk, volume: &AttachedVolume) -> Result<Room, String> {
        let Device::Disk { part, .. } = volume.device else {
            return Err(format!(
                "{} is a logical volume or an array; lvextend -r and mdadm --grow resize those",
                volume.name
            ));
        };
        let Some(number) = part else {
            return Ok(Room { now: disk.size, most: None, start: 0, table: None });
        };
        let part = disk.parts.iter().find(|part| part.number == number).ok_or("there is no such partition")?;
        if part.number > 4 && disk.table.as_ref().is_some_and(|table| table.kind == TableKind::Mbr) {
            return Err("a partition in an extended one is not resized".to_owned());
        }
        let following = disk.parts.iter().map(|other| other.start).filter(|start| *start > part.start).min();
        let most = following.map(|end| end.saturating_sub(part.start));
        let table = disk.table.as_ref().map(|table| table.kind);
        Ok(Room { now: part.length, most, start: part.start, table })
    }

    /// Bytes at the disk's end that are no partition's.
    fn reserved(&self) -> u64 {
        if self.table == Some(TableKind::Gpt) { TABLE_AT_THE_END } else { 0 }
    }
}

/// Resizes a volume. It grows from the outside in, and shrinks from the inside out: if it is interrupted, its file
/// system is still within its partition.
///
/// # Errors
/// The file system cannot be resized so, there is no room, or a tool fails.
pub fn resize(
    request: &ApplianceRequest,
    size: NewSize,
    events: Events<ApplianceEvent>,
) -> Result<Resized, ApplianceError> {
    let path = &request.image.path;
    let refuse =
        |reason: String| ApplianceError::from(PathError::new(path, "cannot be resized", io::Error::other(reason)));
    let (image, format) = request.image.settled()?;
    let plan = volumes::plan(&image, format, &request.with, request.wanted())?;
    let volume = plan.attach.volumes.first().ok_or(ApplianceError::Protocol)?.clone();
    let room = Room::of(&plan.disk, &volume).map_err(refuse)?;
    let there = plan.disk.size.saturating_sub(room.start).saturating_sub(room.reserved());
    let most = room.most.unwrap_or(there);
    let wanted = match size {
        NewSize::Bytes(bytes) => bytes,
        NewSize::More(bytes) => room.now.saturating_add(bytes),
        NewSize::Fewer(bytes) => room.now.saturating_sub(bytes),
        NewSize::Most => most,
    };
    let (down, up) = (wanted / ALIGNMENT * ALIGNMENT, wanted.checked_next_multiple_of(ALIGNMENT));
    // At least what is asked for, where there is room.
    let bytes = match size {
        NewSize::Bytes(_) | NewSize::More(_) => {
            up.filter(|up| room.most.is_none_or(|most| *up <= most)).unwrap_or(down)
        }
        NewSize::Fewer(_) | NewSize::Most => down,
    };
    let format_of = volume.format.clone().unwrap_or_default();
    let Some((can_shrink, why)) = abilities(&format_of) else {
        let holds = if format_of.is_empty() { "no file system that is known" } else { &format_of };
        return Err(refuse(format!(
            "{} holds {holds}; ext2, ext3, ext4, XFS, Btrfs and NTFS are resized",
            volume.name
        )));
    };
    if bytes == room.now || (size == NewSize::Most && bytes < room.now) {
        return Ok(Resized { volume: volume.name, before: room.now, now: room.now, report: None });
    }
    if bytes < room.now && !can_shrink {
        return Err(refuse(why.to_owned()));
    }
    if bytes == 0 {
        return Err(refuse(format!("it has {} bytes, and would have {wanted}; the least is {ALIGNMENT}", room.now)));
    }
    if room.most.is_some_and(|most| bytes > most) {
        return Err(refuse(format!("{} can have at most {most} bytes: another partition follows", volume.name)));
    }
    let grows = bytes > room.now;
    let end = room.start.saturating_add(bytes).saturating_add(room.reserved());
    let moves_table = grows && end > plan.disk.size;
    if moves_table {
        image.lengthen(&request.with, end)?;
    }
    let moves_table = moves_table && room.table == Some(TableKind::Gpt);
    let asked = ApplianceRequest { image: image.clone(), access: Access::Resize, ..request.clone() };
    let mut appliance = Appliance::open(&asked, events)?;
    appliance.ask(&Ask::Resize(Grown { bytes, grows, moves_table }))?;
    let report = appliance.close()?;
    if !grows && room.table.is_none() && format == ImageFormat::Raw {
        image.shorten(room.now, bytes)?;
    }
    Ok(Resized { volume: volume.name, before: room.now, now: bytes, report: Some(report) })
}
