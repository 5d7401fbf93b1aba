//! Drives, and the devices that a guest has of them: disks, partitions, arrays and logical volumes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::Backing;
use inarch_disk::{
    Above, Disk, DiskVolume, Kind, Part, Signature, Volumes, Window, device_name, device_of, volumes_of,
};
use inarch_lifecycle::shown;
use inarch_source::{DiskImage, OpenedDisk, in_use, parse};

use super::{DriveOptions, Session, ShellError};
use inarch_guest::Inspection;
use inarch_guest::examine::{ExamineError, examine_one};

/// An image that was added.
pub(super) struct Drive {
    pub path: PathBuf,
    pub options: DriveOptions,
    /// Its files, before they are read.
    pub opened: Option<DiskImage>,
    /// The disk in it.
    pub disk: Option<OpenedDisk>,
}

impl Drive {
    /// The drive's files, which are opened anew if it was written to.
    fn open(&mut self) -> Result<Option<DiskImage>, ShellError> {
        match (&self.disk, self.opened.take()) {
            (Some(_), _) => Ok(None),
            (None, Some(image)) => Ok(Some(image)),
            (None, None) => Ok(Some(DiskImage::open(&self.options.file(&self.path))?)),
        }
    }
}

/// What is on all drives.
pub(super) struct View {
    /// The disks, in the drives' order.
    pub disks: Vec<(Arc<dyn Backing>, Disk)>,
    /// What can hold file systems.
    pub volumes: Vec<DiskVolume>,
    /// What lies above partitions.
    pub above: Volumes,
    /// The operating systems, once they have been looked for.
    pub systems: Option<Vec<Inspection>>,
}

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A whole disk: its number, from 0.
    Disk(usize),
    /// A partition: the disk's number, and its own in the table.
    Part(usize, u32),
    /// An array or a logical volume.
    Above,
}

/// A device of a guest.
#[derive(Clone)]
pub struct Block {
    /// Its usual name: `/dev/sda1`, `/dev/GROUP/VOLUME`, `/dev/md127`.
    pub name: String,
    /// What it is.
    pub place: Place,
    /// What it holds, if that is known.
    pub content: Option<Signature>,
    /// The name that it has among the volumes that were found.
    pub(super) known_as: String,
    /// Its bytes.
    pub(super) backing: Arc<dyn Backing>,
}

impl Block {
    /// Bytes.
    pub fn size(&self) -> u64 {
        self.backing.size()
    }
}

impl View {
    /// The usual name of an array or logical volume: arrays have numbers from 127 down, as mdadm gives them.
    pub fn name_above(&self, volume: &Above) -> String {
        if volume.kind != Kind::Array || !volume.name.starts_with("/dev/md/") {
            return volume.name.clone();
        }
        let arrays =
            self.above.list.iter().filter(|other| other.kind == Kind::Array && other.name.starts_with("/dev/md/"));
        let place = arrays.map(|array| &array.name).position(|name| *name == volume.name).unwrap_or(0);
        format!("/dev/md{}", 127usize.saturating_sub(place))
    }

    fn above_named(&self, name: &str) -> Option<&Above> {
        let same = |volume: &&Above| {
            let known = self.volumes.iter().find(|known| known.names.above.as_ref() == Some(&volume.name));
            self.name_above(volume) == name || volume.name == name || known.is_some_and(|known| known.answers_to(name))
        };
        self.above.list.iter().find(same)
    }

    fn part(&self, disk: usize, number: u32) -> Option<(&Arc<dyn Backing>, &Disk, &Part)> {
        let (image, examined) = self.disks.get(disk)?;
        let part = examined.parts.iter().find(|part| part.number == number)?;
        Some((image, examined, part))
    }

    /// The device of that name.
    pub fn block(&self, name: &str) -> Result<Block, ShellError> {
        let absent = || {
            ShellError::unfit(name.escape_debug().to_string(), "there is no such device; list-filesystems names some")
        };
        if let Some((disk, number)) = device_of(name).filter(|_| name.starts_with("/dev/")) {
            return match number {
                None => {
                    let (image, examined) = self.disks.get(disk).ok_or_else(absent)?;
                    let (place, content) = (Place::Disk(disk), examined.content.clone());
                    let name = device_name(disk);
                    Ok(Block { known_as: name.clone(), name, place, content, backing: Arc::clone(image) })
                }
                Some(number) => {
                    let (image, examined, part) = self.part(disk, number).ok_or_else(absent)?;
                    if part.start.checked_add(part.length).is_none_or(|end| end > examined.size) {
                        return Err(ShellError::unfit(name, "it goes beyond the end of its disk"));
                    }
                    let backing = Arc::new(Window::new(Arc::clone(image), part.start, part.length));
                    let (place, content) = (Place::Part(disk, number), part.content.clone());
                    let name = format!("{}{number}", device_name(disk));
                    Ok(Block { known_as: name.clone(), name, place, content, backing })
                }
            };
        }
        if let Some(volume) = self.above_named(name) {
            let unread = |why: &String| ShellError::unfit(self.name_above(volume), format!("it cannot be read: {why}"));
            let backing = Arc::clone(volume.bytes.as_ref().map_err(unread)?);
            let content = volume.content.clone();
            let (name, known_as) = (self.name_above(volume), volume.name.clone());
            return Ok(Block { name, known_as, place: Place::Above, content, backing });
        }
        let named: Vec<_> = self.volumes.iter().filter(|volume| volume.answers_to(name)).collect();
        match &*named {
            [volume] if !name.bytes().all(|byte| byte.is_ascii_digit()) => self.block(&volume.name()),
            [_, _, ..] => Err(ShellError::unfit(name.escape_debug().to_string(), "several volumes have that name")),
            _ => Err(absent()),
        }
    }
}

impl Session {
    /// What is on the drives, read if that was not done.
    pub(super) fn view(&mut self) -> Result<&mut View, ShellError> {
        if self.view.is_none() {
            let read = self.read_drives()?;
            self.view = Some(read);
        }
        self.view.as_mut().ok_or(ShellError::NoDrives)
    }

    fn read_drives(&mut self) -> Result<View, ShellError> {
        let images = self.drives.iter_mut().map(Drive::open).collect::<Result<Vec<_>, _>>()?;
        let used = |drive: &Drive| in_use::note(&drive.path).map(|note| format!("{}: {note}", shown(&drive.path)));
        let in_use: Vec<Option<String>> = self.drives.iter().map(used).collect();
        let keys = self.drives.first().map(|drive| drive.options.keys.clone()).unwrap_or_default();
        let drives = &mut self.drives;
        let mut notes = Vec::new();
        let view = parse(|parsing| {
            let mut disks = Vec::new();
            for (drive, image) in drives.iter_mut().zip(images) {
                if let Some(image) = image {
                    notes.extend(in_use.get(disks.len()).cloned().flatten());
                    let opened = image.disk(parsing);
                    let opened = opened.map_err(|error| ShellError::Container { path: drive.path.clone(), error })?;
                    drive.disk = Some(opened);
                }
                let Some(opened) = &drive.disk else { continue };
                let examined = match examine_one(parsing, &drive.path, opened, drive.options.format.is_none()) {
                    // A damaged table can be made anew, and is no reason to keep the other drives back.
                    Err(ExamineError::Disk { error, .. }) => Disk {
                        size: opened.disk.size(),
                        table: None,
                        parts: Vec::new(),
                        content: None,
                        notes: vec![error.to_string()],
                    },
                    examined => examined?,
                };
                notes.extend(examined.notes.iter().map(|note| format!("{}: {note}", device_name(disks.len()))));
                disks.push((Arc::clone(&opened.disk), examined));
            }
            let (volumes, above) = volumes_of(parsing, &disks, &keys).map_err(ShellError::Volumes)?;
            notes.extend(above.notes.iter().cloned());
            Ok::<_, ShellError>(View { disks, volumes, above, systems: None })
        })??;
        self.notes.extend(notes);
        Ok(view)
    }

    /// The drive of a disk, and whether something may be made on it.
    ///
    /// # Errors
    /// It was added for reading.
    pub(super) fn writable(&self, disk: usize) -> Result<&Path, ShellError> {
        let drive = self.drives.get(disk).ok_or(ShellError::NoDrives)?;
        if drive.options.read_only {
            return Err(ShellError::unfit(device_name(disk), "the drive was added for reading only"));
        }
        Ok(&drive.path)
    }

    /// Forgets what is known of a disk that was written to.
    pub(super) fn forget(&mut self, disk: usize) {
        if let Some(drive) = self.drives.get_mut(disk) {
            (drive.opened, drive.disk) = (None, None);
        }
        self.view = None;
    }
}
