//! `inarch disk partition`: writes a partition table into an image.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use inarch_disk::TableKind;
use inarch_disk::table::{self, ALIGNMENT, Placed, Wanted};
use inarch_lifecycle::PathError;

use super::MakeError;
use super::image::{Image, told};

/// The most bytes that an MBR can address: 2^32 sectors.
const MBR_REACH: u64 = 2 << 40;

/// What to write.
#[derive(Clone, Debug)]
pub struct PartitionRequest {
    /// The image.
    pub image: PathBuf,
    /// The kind of table; by default GPT for a disk of more than 2 TiB, and MBR for others.
    pub table: Option<TableKind>,
    /// Bytes of a logical sector.
    pub sector: u64,
    /// The partitions.
    pub parts: Vec<Wanted>,
    /// Overwrite a table or a file system that is there.
    pub force: bool,
}

/// A partitioned disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partitioned {
    /// The kind of its table.
    pub table: TableKind,
    /// Its partitions, in the order of their numbers.
    pub parts: Vec<Placed>,
}

/// Partitions a disk. The content of what becomes a partition stays as it is.
///
/// # Errors
/// There is something on the disk, or the table cannot be made. The image is as it was then.
pub fn partition(request: &PartitionRequest) -> Result<Partitioned, MakeError> {
    write(request, None)
}

/// The same for partitions that lie at `places`, one for each.
///
/// # Errors
/// As [`partition`].
pub(crate) fn partition_at(request: &PartitionRequest, places: &[Placed]) -> Result<Partitioned, MakeError> {
    write(request, Some(places))
}

fn write(request: &PartitionRequest, places: Option<&[Placed]>) -> Result<Partitioned, MakeError> {
    let image = Image::open(&request.image)?;
    if !request.force {
        refuse_what_is_there(&image)?;
    }
    let kind = request.table.unwrap_or(if image.size > MBR_REACH { TableKind::Gpt } else { TableKind::Mbr });
    let mut source = File::open("/dev/urandom").map_err(random_failed)?;
    let mut failed = None;
    let mut random = || {
        let mut bytes = [0; 16];
        failed = source.read_exact(&mut bytes).err().or(failed.take());
        bytes
    };
    let planned = match places {
        None => table::plan(kind, image.size, request.sector, &request.parts, &mut random),
        Some(places) => table::plan_at(kind, image.size, request.sector, (&request.parts, places), &mut random),
    };
    if let Some(error) = failed {
        return Err(random_failed(error).into());
    }
    let planned = planned.map_err(|error| MakeError::Table { path: request.image.clone(), error })?;
    // Room first: after that a write cannot fail for want of it.
    for (at, bytes) in &planned.pieces {
        let reserved = image.reserve(*at, bytes.len() as u64);
        reserved.map_err(|error| PathError::new(&request.image, "cannot be written to, and is as it was", error))?;
    }
    let write = || {
        if request.force && places.is_none() {
            // What was there is not to be found beside the new table: at the start, and where a GPT has its second copy.
            image.clear(0, ALIGNMENT.min(image.size))?;
            let end = planned.parts.iter().map(|part| part.start.saturating_add(part.length)).max().unwrap_or(0);
            let end = end.max(image.size.saturating_sub(ALIGNMENT));
            image.clear(end, image.size.saturating_sub(end))?;
        }
        planned.pieces.iter().try_for_each(|(at, bytes)| image.write(bytes, *at))
    };
    write().map_err(|error| PathError::new(&request.image, "its partition table is only partly written", error))?;
    Ok(Partitioned { table: kind, parts: planned.parts })
}

fn random_failed(error: io::Error) -> PathError {
    PathError::new(Path::new("/dev/urandom"), "cannot read it", error)
}

fn refuse_what_is_there(image: &Image) -> Result<(), MakeError> {
    let what = match &image.disk {
        Ok(disk) => match (&disk.table, &disk.content) {
            (Some(table), _) => format!("a partition table ({})", table.kind.name()),
            (None, Some(content)) => told(content),
            (None, None) => {
                let has_bytes = image.has_bytes(0, image.size);
                match has_bytes.map_err(|error| PathError::new(&image.path, "cannot read it", error))? {
                    true => "data of an unknown kind".to_owned(),
                    false => return Ok(()),
                }
            }
        },
        Err(_) => "a damaged partition table".to_owned(),
    };
    Err(MakeError::Holds { path: image.path.clone(), place: "the disk".to_owned(), what })
}
