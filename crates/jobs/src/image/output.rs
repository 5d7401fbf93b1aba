//! The output of an image: a new file that gets its name when it is complete, a block device, or a pipe.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use inarch_lifecycle::Events;
use inarch_lifecycle::named::open_named;
use inarch_lifecycle::new_file::NewFile;
use rustix::fs::{OFlags, SeekFrom, seek};

use super::ImageEvent;
use crate::JobError;

/// The output of an image.
pub(super) enum Output {
    /// A file that does not have its name yet.
    New(NewFile),
    /// A block device of so many bytes.
    Device { file: File, bytes: u64 },
    /// Standard output, a pipe, or a character device: takes bytes in order.
    Pipe(File),
}

impl Output {
    /// Opens `path`; `-` is standard output. If the unfinished output has a temporary name, reports that to `events`.
    pub(super) fn open(path: &Path, events: &Events<ImageEvent>) -> Result<Output, JobError> {
        if path == Path::new("-") {
            let stdout = rustix::stdio::stdout().try_clone_to_owned();
            let stdout = stdout.map_err(|error| JobError::path(path, "cannot use standard output", error))?;
            return Ok(Output::Pipe(File::from(stdout)));
        }
        let kind = match path.metadata() {
            Ok(metadata) => Some(metadata.file_type()),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(JobError::path(path, "cannot write there", error)),
        };
        match kind {
            Some(kind) if kind.is_dir() => {
                Err(JobError::path(path, "cannot write the image", io::Error::from(ErrorKind::IsADirectory)))
            }
            Some(kind) if kind.is_block_device() => {
                // Refuses a device that is mounted or otherwise in use: O_EXCL has that meaning for block devices.
                let flags = OFlags::RDWR | OFlags::EXCL;
                let file = open_named(path, flags)
                    .map_err(|error| JobError::path(path, "cannot have the device for writing", error))?;
                let bytes = seek(&file, SeekFrom::End(0))
                    .map_err(|error| JobError::path(path, "cannot tell the device's size", error))?;
                Ok(Output::Device { file, bytes })
            }
            Some(kind) if !kind.is_file() => {
                let file = open_named(path, OFlags::WRONLY)
                    .map_err(|error| JobError::path(path, "cannot write there", error))?;
                Ok(Output::Pipe(file))
            }
            _ => {
                let events = events.clone();
                Ok(Output::New(NewFile::create(path, move || events.emit(ImageEvent::Named))?))
            }
        }
    }
}

impl Output {
    /// Waits until the data is on stable storage.
    pub(super) fn sync(&self) -> io::Result<()> {
        match self {
            Output::New(NewFile { file, .. }) | Output::Device { file, .. } => file.sync_all(),
            Output::Pipe(_) => Ok(()),
        }
    }

    /// Gives a new file its name.
    pub(super) fn finish(self) -> Result<(), JobError> {
        match self {
            Output::New(new) => new.commit().map_err(JobError::from),
            _ => Ok(()),
        }
    }
}
