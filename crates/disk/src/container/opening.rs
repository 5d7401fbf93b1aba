//! [`Opening`]: what is shared while an image and those below it are opened.

use std::sync::Arc;

use inarch_block::{Backing, read_backing};

use super::cache::Cache;
use super::tables::Tables;
use super::{Below, Container, ContainerError, Reference, kind_of, qcow2, vdi, vhd, vhdx, vmdk};

/// The most images that may lie on each other. Reads go through all of them.
pub const MAX_CHAIN: u32 = 32;

/// An image that is being opened.
pub(super) struct Opening<'a, 'b> {
    below: &'a mut Below<'b>,
    cache: Arc<Cache>,
    /// Files with tables so far.
    files: u32,
    /// Images above this one.
    depth: u32,
}

impl<'a, 'b> Opening<'a, 'b> {
    /// `below` gives the files that are named.
    pub(super) fn new(below: &'a mut Below<'b>) -> Opening<'a, 'b> {
        Opening { below, cache: Arc::default(), files: 0, depth: 0 }
    }

    /// Opens an image of that kind.
    pub(super) fn open(&mut self, kind: Container, file: Arc<dyn Backing>) -> Result<Arc<dyn Backing>, ContainerError> {
        match kind {
            Container::Qcow2 => qcow2::open(self, file),
            Container::Vdi => vdi::open(self, file),
            Container::Vhd => vhd::open(self, file),
            Container::Vhdx => vhdx::open(self, file),
            Container::Vmdk => vmdk::open(self, file),
        }
    }

    /// The tables of a file, with a number of its own in the cache.
    pub(super) fn tables(&mut self, file: &Arc<dyn Backing>) -> Tables {
        self.files = self.files.wrapping_add(1);
        Tables::new(Arc::clone(file), Arc::clone(&self.cache), self.files)
    }

    /// The file that an image of that kind names.
    pub(super) fn named(&mut self, kind: Container, reference: Reference) -> Result<Arc<dyn Backing>, ContainerError> {
        (self.below)(&reference).ok_or(ContainerError::NotNamed { kind, reference })
    }

    /// Opens the disk in `file` as the one below: a container, or a raw disk. `format` is what the image above says.
    pub(super) fn lower(
        &mut self,
        above: Container,
        file: Arc<dyn Backing>,
        format: Option<&[u8]>,
    ) -> Result<Arc<dyn Backing>, ContainerError> {
        let kind = match format.map(|format| (format, std::str::from_utf8(format).ok().and_then(Container::by_name))) {
            Some((b"raw", _)) => None,
            Some((_, Some(kind))) => Some(kind),
            Some((format, None)) => {
                let format = super::error::quoted(format);
                return Err(
                    above.refused(format!("the format of its backing file is {format}, which is not read here"))
                );
            }
            None => kind_of(&*file).map_err(|error| ContainerError::Io { offset: 0, error })?,
        };
        let Some(kind) = kind else { return Ok(file) };
        if self.depth + 1 >= MAX_CHAIN {
            return Err(ContainerError::TooLong);
        }
        self.depth += 1;
        let opened = self.open(kind, file);
        self.depth -= 1;
        opened
    }
}

impl Container {
    /// The error for an image of this kind that cannot be read.
    pub(super) fn refused(self, reason: impl Into<String>) -> ContainerError {
        ContainerError::Format { kind: self, reason: reason.into() }
    }

    /// The `length` bytes of an image from `at`. `what` they are is for the message if they go beyond its end.
    pub(super) fn bytes(self, file: &dyn Backing, at: u64, length: u64, what: &str) -> Result<Vec<u8>, ContainerError> {
        if at.checked_add(length).is_none_or(|end| end > file.size()) {
            let reason =
                format!("{what} at byte {at} goes beyond the end of the file; the image is cut off or damaged");
            return Err(self.refused(reason));
        }
        let mut bytes = vec![0; length as usize];
        read_backing(file, at, &mut bytes).map_err(|error| ContainerError::Io { offset: at, error })?;
        Ok(bytes)
    }
}
