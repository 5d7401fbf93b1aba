//! What a disk image needs beside itself to be read: its format, further disks, the files that it may name, and keys.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use crate::{DiskFile, DiskPart, FileKind, ImageFormat, Keys, Source, SourceError, disk};

/// What a disk image needs beside itself. By default it needs nothing.
#[derive(Clone, Debug, Default)]
pub struct DiskNeeds {
    /// The image's format, and that of the disks of `also`. Without it, the first bytes of each tell.
    pub format: Option<ImageFormat>,
    /// Further disks of the same guest.
    pub also: Vec<PathBuf>,
    /// Files that the image may name: backing files, data files, extents. It gets no others.
    pub with: Vec<PathBuf>,
    /// What opens its encrypted volumes.
    pub keys: Keys,
}

impl Source {
    /// [`Source::parse`] of what may be a disk image, with what that needs. If a format is given, it counts, and not the first bytes.
    ///
    /// # Errors
    /// As there; or something is given that only a disk image needs, and it is none.
    pub fn parse_with(text: &OsStr, needs: &DiskNeeds) -> Result<Source, SourceError> {
        let DiskNeeds { format, also, with, keys } = needs;
        let source = if format.is_some() { parse_as_disk(text) } else { Source::parse(text) }?;
        let mut source = also_of(source, also)?;
        if let Some(format) = *format {
            source = in_format(source, format)?;
        }
        keys_of(with_files(source, with)?, keys)
    }
}

/// What `text` names. A file of a kind that is not known, or not read, is a disk image.
fn parse_as_disk(text: &OsStr) -> Result<Source, SourceError> {
    let is_data = |path: &Path| fs::metadata(path).is_ok_and(|is| is.is_file() || is.file_type().is_block_device());
    match (Source::parse(text), disk::split(text)) {
        (Err(SourceError::Unknown { path, .. } | SourceError::NotRead { path, .. }), _)
            if path == Path::new(text) && is_data(&path) =>
        {
            Ok(Source::Disk { path, part: Box::default() })
        }
        (Err(SourceError::NotRead { .. }), Some((path, part))) => Ok(Source::Disk { path, part: Box::new(part) }),
        (source, _) => source,
    }
}

/// `source` with further disks of the guest whose disk it is.
fn also_of(source: Source, disks: &[PathBuf]) -> Result<Source, SourceError> {
    let (path, mut part) = match source {
        other if disks.is_empty() => return Ok(other),
        Source::Disk { path, part } => (path, part),
        Source::File { path, kind: FileKind::Volume(_), .. } => (path, Box::default()),
        other => return Err(SourceError::NoDisks { path: other.path().to_owned() }),
    };
    part.others.extend(disks.iter().map(|path| DiskFile { path: path.clone(), format: None, with: Vec::new() }));
    Ok(Source::Disk { path, part })
}

/// `source` as a disk image of a format, and those beside it too. What libvirt says of those beside it stays.
fn in_format(source: Source, format: ImageFormat) -> Result<Source, SourceError> {
    match source {
        Source::Disk { path, mut part } => {
            part.format = Some(format);
            part.others.iter_mut().for_each(|disk| disk.format = disk.format.or(Some(format)));
            Ok(Source::Disk { path, part })
        }
        Source::File { path, part, .. } => {
            let part = DiskPart { format: Some(format), within: part.within, ..DiskPart::default() };
            Ok(Source::Disk { path, part: Box::new(part) })
        }
        other => Err(SourceError::NoFormat { path: other.path().to_owned() }),
    }
}

/// `source` with the files that it may name.
fn with_files(source: Source, files: &[PathBuf]) -> Result<Source, SourceError> {
    match source {
        other if files.is_empty() => Ok(other),
        Source::Disk { path, mut part } => {
            part.with.extend_from_slice(files);
            part.others.iter_mut().for_each(|disk| disk.with.extend_from_slice(files));
            Ok(Source::Disk { path, part })
        }
        other => Err(SourceError::NoOthers { path: other.path().to_owned() }),
    }
}

/// `source` with keys for its encrypted volumes.
fn keys_of(source: Source, keys: &Keys) -> Result<Source, SourceError> {
    match source {
        other if keys.is_empty() => Ok(other),
        Source::Disk { path, part } => {
            Ok(Source::Disk { path, part: Box::new(DiskPart { keys: keys.clone(), ..*part }) })
        }
        other => Err(SourceError::NoKeys { path: other.path().to_owned() }),
    }
}
