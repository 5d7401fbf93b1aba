//! Makes images longer and shorter. Locks keep others from writing to them meanwhile. An image is cut only if it still has the
//! length that was expected.

use std::io;
use std::path::PathBuf;

use inarch_lifecycle::PathError;
use inarch_vm::image_disk;
use rustix::io::Errno;

use super::qcow2::Qcow2Image;
use super::{AttachError, AttachedDisk, OpenDisk, Purpose};

impl AttachedDisk {
    /// Makes an image at least `bytes` long. `with` are the files that it may name: no others are opened.
    pub(crate) fn lengthen(&self, with: &[PathBuf], bytes: u64) -> Result<(), AttachError> {
        let fail = |error| PathError::new(&self.path, "cannot be made longer", error);
        let open = OpenDisk::open(self, with, 1, Purpose::Use)?;
        let Some(top) = open.chain.first() else { return Ok(()) };
        if top.format == image_disk::ImageFormat::Qcow2 {
            return Ok(Qcow2Image::lengthen(&open, bytes).map_err(fail)?);
        }
        if top.image.is_device {
            return Err(fail(io::Error::other("a block device has the size that it has")).into());
        }
        let file = &top.image.file;
        // It may have become longer than it was when somebody looked.
        if file.metadata().map_err(fail)?.len() < bytes {
            i64::try_from(bytes).map_err(|_| fail(Errno::FBIG.into()))?;
            file.set_len(bytes).map_err(fail)?;
        }
        Ok(())
    }

    /// Makes a raw image file shorter after its file system was shrunk. A file that is no longer `before` bytes long stays as it is.
    pub(crate) fn shorten(&self, before: u64, bytes: u64) -> Result<(), AttachError> {
        let fail = |error| PathError::new(&self.path, "cannot be made shorter", error);
        let open = OpenDisk::open(self, &[], 1, Purpose::Use)?;
        let Some(top) = open.chain.first().filter(|top| !top.image.is_device) else { return Ok(()) };
        let file = &top.image.file;
        if file.metadata().map_err(fail)?.len() != before {
            return Err(fail(io::Error::other("another program has changed its length")).into());
        }
        file.set_len(bytes).and_then(|()| file.sync_all()).map_err(fail)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use inarch_source::ImageFormat;

    /// What somebody else has made longer meanwhile is not cut off.
    #[test]
    fn an_image_that_is_longer_than_expected_stays_so() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        std::fs::write(&path, vec![1; 5000]).unwrap();
        let length = || path.metadata().unwrap().len();
        let disk = AttachedDisk {
            path: path.clone(),
            read_only: false,
            format: Some(ImageFormat::Raw),
            sector: None,
            seen: None,
        };
        disk.lengthen(&[], 4096).unwrap();
        assert_eq!(length(), 5000);
        let error = disk.shorten(4096, 1024).unwrap_err().to_string();
        assert!(error.contains("changed its length") && length() == 5000, "{error}");
        disk.lengthen(&[], 8192).unwrap();
        assert_eq!(length(), 8192);
        let held = std::fs::File::open(&path).unwrap();
        rustix::fs::flock(&held, rustix::fs::FlockOperation::LockShared).unwrap();
        assert!(disk.shorten(8192, 1024).is_err() && disk.lengthen(&[], 9000).is_err());
        drop(held);
        // Another file of the same length is not cut.
        let (settled, _) = disk.settled().unwrap();
        std::fs::rename(&path, dir.path().join("image.old")).unwrap();
        let other = dir.path().join("other");
        std::fs::write(&other, vec![2; 8192]).unwrap();
        std::os::unix::fs::symlink(&other, &path).unwrap();
        for refused in [settled.shorten(8192, 1024), settled.lengthen(&[], 9000), settled.settled().map(drop)] {
            assert!(refused.unwrap_err().to_string().contains("the file was replaced"));
        }
        assert_eq!(other.metadata().unwrap().len(), 8192);
        std::fs::rename(dir.path().join("image.old"), &path).unwrap();
        settled.shorten(8192, 1024).unwrap();
        assert_eq!(length(), 1024);
    }
}
