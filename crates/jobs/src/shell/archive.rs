//! Writes a directory of the guest as a tar or cpio archive.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use inarch_format::{Damage, TreeAndContent};
use inarch_lifecycle::shown;
use inarch_source::{DiskPart, Opened, Source, parse};
use inarch_volume::Composite;

use super::{Session, ShellError};
use crate::image::{ImageReport, ImageRequest, make_of};

impl Session {
    /// Writes a directory with everything in it as an archive of that format, `tar` or `cpio`. The archive has its name when it is complete.
    ///
    /// # Errors
    /// There is no such directory, something in it is damaged, or the archive cannot be written.
    pub fn archive(&self, directory: &Path, output: &Path, format: &str) -> Result<ImageReport, ShellError> {
        let image = self.drives.first().map(|drive| drive.path.clone()).ok_or(ShellError::NoDrives)?;
        let same = |path: &Path| {
            output.canonicalize().is_ok_and(|output| path.canonicalize().is_ok_and(|path| path == output))
        };
        if self.drives.iter().any(|drive| same(&drive.path)) {
            return Err(ShellError::unfit(shown(output), "it is the image of a drive"));
        }
        let volume = self.guest()?.volume();
        let opened = parse(|parsing| {
            let mut rooted = Composite::new(volume);
            rooted
                .set_root(directory.as_os_str().as_bytes())
                .map_err(|error| ShellError::unfit(shown(directory), error.to_string()))?;
            TreeAndContent::walk(parsing, Arc::new(rooted), Damage::Refused)
                .map_err(|error| ShellError::unfit(shown(directory), error.to_string()))
        })??;
        // For messages, and as what it is: an image that somebody else made.
        let part = DiskPart { within: directory.to_owned(), ..DiskPart::default() };
        let source = Source::Disk { path: image, part: Box::new(part) };
        let request = ImageRequest { format: Some(format.to_owned()), ..ImageRequest::new(source, output.to_owned()) };
        Ok(make_of(request, Opened::from(opened)).map_err(Box::new)?)
    }
}
