//! Makes images, partition tables and file systems by the jobs of `inarch disk`.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::path::Path;

use inarch_disk::table::{PartKind, Placed, Wanted};
use inarch_disk::{TableKind, device_name};
use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use rustix::fs::{FallocateFlags, fallocate};

use super::{DriveOptions, Place, Session, ShellError};
use crate::make_disk::MakeError;
use crate::make_disk::create::{CreateRequest, Created, create};
use crate::make_disk::format::{FormatRequest, Formatted, format};
use crate::make_disk::partition::{PartitionRequest, partition, partition_at};
use crate::make_disk::tools::{MAKERS, Maker};

/// Bytes of a sector that partitions are counted in.
const SECTOR: u64 = 512;

/// A table that was begun in this session: its kind, and its partitions so far.
pub(super) type Begun = (TableKind, Vec<(Wanted, Placed)>);

/// A partition that is added to a table.
#[derive(Clone, Copy, Debug)]
pub struct AddedPart {
    /// Its first sector; negative from the end of the disk.
    pub first: i64,
    /// Its last sector; negative from the end of the disk.
    pub last: i64,
}

/// A file system that is wanted.
#[derive(Clone, Debug, Default)]
pub struct Formatting {
    /// Its label.
    pub label: String,
    /// Bytes of a block.
    pub block_size: Option<u64>,
}

impl Session {
    /// Creates an image of `size` bytes, raw unless `qcow2`; with `allocated` all its bytes take room. A file that is there is not replaced.
    ///
    /// # Errors
    /// There is one, or it cannot be so large.
    pub fn create(path: &Path, size: u64, qcow2: bool, allocated: bool) -> Result<Created, ShellError> {
        let request = CreateRequest { image: path.to_owned(), size, qcow2: Some(qcow2), force: false };
        let created = create(&request).map_err(|error| match error {
            MakeError::Exists(path) => ShellError::unfit(shown(&path), "exists already, and is not replaced"),
            error => error.into(),
        })?;
        if allocated {
            let allocate = || {
                let file = OpenOptions::new().write(true).open(path)?;
                Ok::<(), std::io::Error>(fallocate(&file, FallocateFlags::empty(), 0, size)?)
            };
            if let Err(error) = allocate() {
                // Made a moment ago, and nothing is in it.
                let _ = std::fs::remove_file(path);
                return Err(PathError::new(path, "cannot get its room", error).into());
            }
        }
        Ok(created)
    }

    /// Creates a raw image, and adds it.
    ///
    /// # Errors
    /// As [`Session::create`] and [`Session::add`].
    pub fn create_and_add(&mut self, path: &Path, size: u64, allocated: bool) -> Result<String, ShellError> {
        Session::create(path, size, false, allocated)?;
        self.add(path, DriveOptions { format: Some(inarch_source::ImageFormat::Raw), ..DriveOptions::default() })
    }

    /// The path of a disk that may be written to and has nothing mounted.
    fn free(&mut self, disk: usize, part: Option<u32>) -> Result<std::path::PathBuf, ShellError> {
        let path = self.writable(disk)?.to_owned();
        match self.mounted_on(disk, part) {
            Some(device) => Err(ShellError::unfit(device, "it is mounted; umount it first")),
            None => Ok(path),
        }
    }

    /// Writes a table with one partition that takes the whole disk, over what is there.
    ///
    /// # Errors
    /// It is no raw image, something of it is mounted, or the table cannot be.
    pub fn partition(&mut self, device: &str, kind: TableKind) -> Result<(), ShellError> {
        self.write_table(device, kind, vec![Wanted::default()])
    }

    /// The same for partitions of these sizes, in this order.
    ///
    /// # Errors
    /// As [`Session::partition`].
    pub fn write_table(&mut self, device: &str, kind: TableKind, parts: Vec<Wanted>) -> Result<(), ShellError> {
        let disk = self.disk_number(device)?;
        let image = self.free(disk, None)?;
        let request = PartitionRequest { image, table: Some(kind), sector: SECTOR, parts, force: true };
        let made = partition(&request);
        self.begun.retain(|(of, _)| *of != disk);
        self.forget(disk);
        made?;
        Ok(())
    }

    /// Begins a table without partitions, over what is there.
    ///
    /// # Errors
    /// As [`Session::partition`].
    pub fn begin_table(&mut self, device: &str, kind: TableKind) -> Result<(), ShellError> {
        self.write_table(device, kind, Vec::new())?;
        let disk = self.disk_number(device)?;
        self.begun.push((disk, (kind, Vec::new())));
        Ok(())
    }

    /// Adds a partition to a table that was begun.
    ///
    /// # Errors
    /// None was begun, or there is no room.
    pub fn add_part(&mut self, device: &str, part: AddedPart) -> Result<(), ShellError> {
        let disk = self.disk_number(device)?;
        let image = self.free(disk, None)?;
        let Some((_, (kind, parts))) = self.begun.iter().find(|(of, _)| *of == disk) else {
            let what =
                "partitions are added to tables that part-init began in this shell; what else is there is not changed";
            return Err(ShellError::unfit(device_name(disk), what));
        };
        let size = image.metadata().map_err(|error| PathError::new(&image, "cannot open it", error))?.len();
        let placed = placed(part, size).ok_or_else(|| {
            ShellError::unfit(device_name(disk), format!("it has no sectors {} to {}", part.first, part.last))
        })?;
        let (kind, mut parts) = (*kind, parts.clone());
        parts.push((Wanted { length: Some(placed.length), kind: PartKind::Linux, name: String::new() }, placed));
        let (wanted, places): (Vec<_>, Vec<_>) = parts.iter().cloned().unzip();
        let request = PartitionRequest { image, table: Some(kind), sector: SECTOR, parts: wanted, force: true };
        let made = partition_at(&request, &places);
        self.forget(disk);
        made?;
        self.begun.retain(|(of, _)| *of != disk);
        self.begun.push((disk, (kind, parts)));
        Ok(())
    }

    /// Makes a file system on a partition, or on a disk without partitions, over what is there.
    ///
    /// # Errors
    /// There is no tool for it, it is no raw image, or it is mounted.
    pub fn format(&mut self, kind: &str, device: &str, wish: &Formatting) -> Result<Formatted, ShellError> {
        let maker = Maker::named(kind).ok_or_else(|| {
            let known: Vec<_> = MAKERS.iter().map(|maker| maker.format).collect();
            ShellError::unfit(
                kind.escape_debug().to_string(),
                format!("no such file system is made; these are: {}", known.join(", ")),
            )
        })?;
        let block = self.block(device)?;
        let (disk, part) = match block.place {
            Place::Disk(disk) => (disk, None),
            Place::Part(disk, part) => (disk, Some(part)),
            Place::Above => return Err(ShellError::unfit(block.name, "nothing is made on arrays and logical volumes")),
        };
        let image = self.free(disk, part)?;
        let options = options(maker, wish)?;
        let request = FormatRequest {
            image,
            partition: part,
            maker,
            label: wish.label.clone(),
            options,
            tree: None,
            force: true,
        };
        let made = format(&request);
        self.forget(disk);
        self.remount();
        Ok(made?)
    }
}

/// The range of bytes of a partition; `None` if the disk has no such sectors.
fn placed(part: AddedPart, size: u64) -> Option<Placed> {
    let sectors = i64::try_from(size / SECTOR).ok()?;
    let sector = |number: i64| if number < 0 { sectors.checked_add(number) } else { Some(number) };
    let (first, last) = (sector(part.first)?, sector(part.last)?);
    let start = u64::try_from(first).ok().filter(|_| last < sectors)?.checked_mul(SECTOR)?;
    let length = u64::try_from(last.checked_sub(first)?.checked_add(1)?).ok()?.checked_mul(SECTOR)?;
    (start > 0 && length > 0).then_some(Placed { start, length })
}

fn options(maker: &Maker, wish: &Formatting) -> Result<Vec<OsString>, ShellError> {
    let Some(bytes) = wish.block_size else { return Ok(Vec::new()) };
    match maker.format {
        "ext2" | "ext3" | "ext4" | "nilfs2" | "gfs2" => Ok(vec!["-b".into(), bytes.to_string().into()]),
        "xfs" => Ok(vec!["-b".into(), format!("size={bytes}").into()]),
        format => Err(ShellError::unfit("blocksize", format!("it is not given to the tool that makes {format}"))),
    }
}
