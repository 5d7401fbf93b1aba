//! Lists devices, partitions and volumes, and reads bytes of a device, for the verbs.

use inarch_block::read_backing;
use inarch_disk::{Above, Disk, Kind, Part, Table, device_name, device_of};
use inarch_source::{OpenError, parse};

use super::{Block, Place, Session, ShellError};
use inarch_guest::{Inspection, systems};

/// The most bytes of a device that are read at once.
const PIECE: u64 = 1 << 20;

impl Session {
    /// The disks: `/dev/sda`. Nothing is read for that.
    pub fn devices(&self) -> Vec<String> {
        (0..self.drives.len()).map(device_name).collect()
    }

    /// The partitions of all disks, extended ones too.
    ///
    /// # Errors
    /// A drive cannot be read.
    pub fn partitions(&mut self) -> Result<Vec<String>, ShellError> {
        let disks = self.view()?.disks.iter().enumerate();
        let of = |(disk, (_, examined)): (usize, &(_, Disk))| {
            let mut numbers: Vec<u32> = examined.parts.iter().map(|part| part.number).collect();
            numbers.sort_unstable();
            numbers.into_iter().map(move |number| format!("{}{number}", device_name(disk))).collect::<Vec<_>>()
        };
        Ok(disks.flat_map(of).collect())
    }

    /// The volumes of one kind above partitions.
    ///
    /// # Errors
    /// A drive cannot be read.
    pub fn above(&mut self, kind: Kind) -> Result<Vec<(String, Above)>, ShellError> {
        let view = self.view()?;
        let wanted = view.above.list.iter().filter(|volume| volume.kind == kind);
        let mut found: Vec<_> = wanted.map(|volume| (view.name_above(volume), volume.clone())).collect();
        found.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(found)
    }

    /// The names of volume groups.
    ///
    /// # Errors
    /// A drive cannot be read.
    pub fn groups(&mut self) -> Result<Vec<String>, ShellError> {
        let mut groups = self.view()?.above.groups.clone();
        groups.sort();
        Ok(groups)
    }

    /// Every device that can hold something: disks without a table, partitions but extended ones, arrays, logical volumes that can be read.
    ///
    /// # Errors
    /// A drive cannot be read.
    pub fn blocks(&mut self) -> Result<Vec<Block>, ShellError> {
        let view = self.view()?;
        let mut names = Vec::new();
        for (disk, (_, examined)) in view.disks.iter().enumerate() {
            if examined.table.is_none() {
                names.push(device_name(disk));
            }
            let parts = examined.parts.iter().filter(|part| part.type_name != Some("extended"));
            names.extend(parts.map(|part| format!("{}{}", device_name(disk), part.number)));
        }
        let mut above: Vec<_> = view
            .above
            .list
            .iter()
            .filter(|volume| volume.bytes.is_ok())
            .map(|volume| view.name_above(volume))
            .collect();
        above.sort();
        names.extend(above);
        // A partition that goes beyond its disk is noted, and holds nothing that can be read.
        Ok(names.iter().filter_map(|name| view.block(name).ok()).collect())
    }

    /// The device of that name: `/dev/sda1`, also as `/dev/vda1` and `/dev/hda1`, `/dev/GROUP/VOLUME`, `/dev/md127`, `LABEL=...` and the like.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn block(&mut self, name: &str) -> Result<Block, ShellError> {
        if self.drives.is_empty() {
            return Err(ShellError::NoDrives);
        }
        self.view()?.block(name)
    }

    /// The number of the disk that is meant by a device's name.
    ///
    /// # Errors
    /// It is no disk.
    pub fn disk_number(&mut self, name: &str) -> Result<usize, ShellError> {
        match device_of(name).filter(|_| name.starts_with("/dev/")) {
            Some((disk, None)) if disk < self.drives.len() => Ok(disk),
            Some((disk, Some(_))) if disk < self.drives.len() => {
                Err(ShellError::unfit(name, format!("it is a partition; the disk is {}", device_name(disk))))
            }
            _ => Err(ShellError::unfit(
                name.escape_debug().to_string(),
                "there is no such disk; list-devices names them",
            )),
        }
    }

    /// A disk's partition table, and its partitions by where they start.
    ///
    /// # Errors
    /// It is no disk, cannot be read, or has no table.
    pub fn table(&mut self, name: &str) -> Result<(Table, Vec<Part>), ShellError> {
        let disk = self.disk_number(name)?;
        let (_, examined) = self.view()?.disks.get(disk).ok_or(ShellError::NoDrives)?;
        match &examined.table {
            Some(table) => Ok((table.clone(), examined.parts.clone())),
            None => Err(ShellError::unfit(device_name(disk), "it has no partition table")),
        }
    }

    /// The sector's bytes of a device.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn sector(&mut self, name: &str) -> Result<u64, ShellError> {
        let block = self.block(name)?;
        let disk = match block.place {
            Place::Disk(disk) | Place::Part(disk, _) => disk,
            Place::Above => return Ok(512),
        };
        let table = self.view()?.disks.get(disk).and_then(|(_, examined)| examined.table.as_ref());
        Ok(table.map_or(512, |table| table.sector))
    }

    /// The bytes of a device from `offset`, at most `count`, piece by piece, until `take` returns false.
    ///
    /// # Errors
    /// It cannot be read, or `take` failed.
    pub fn read_device(
        &mut self,
        name: &str,
        (offset, count): (u64, u64),
        mut take: impl FnMut(&[u8]) -> std::io::Result<bool>,
    ) -> Result<(), ShellError> {
        let block = self.block(name)?;
        let end = block.size().min(offset.saturating_add(count));
        let mut at = offset;
        while at < end {
            let length = PIECE.min(end - at);
            let mut bytes = vec![0; length as usize];
            let read = parse(|_| read_backing(&*block.backing, at, &mut bytes))?;
            read.map_err(|error| ShellError::unfit(&*block.name, format!("cannot read it at byte {at}: {error}")))?;
            if !take(&bytes).map_err(inarch_guest::GuestError::Output)? {
                break;
            }
            at += length;
        }
        Ok(())
    }

    /// The operating systems on the drives.
    ///
    /// # Errors
    /// A drive cannot be read.
    pub fn systems(&mut self) -> Result<&[Inspection], ShellError> {
        let view = self.view()?;
        if view.systems.is_none() {
            let volumes = &view.volumes;
            let found = parse(|parsing| systems(parsing, volumes, &|_| true)).map_err(|error: OpenError| error)?;
            view.systems = Some(found);
        }
        Ok(view.systems.as_deref().unwrap_or_default())
    }
}
