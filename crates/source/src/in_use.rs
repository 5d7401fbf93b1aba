//! Tells whether somebody else may write to a disk that is read: a running guest, or the kernel.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{FcntlArg, fcntl};

/// The byte that QEMU locks for each permission that it uses of an image, plus the number of `BLK_PERM_WRITE`
/// (QEMU's block/file-posix.c, `RAW_LOCK_PERM_BASE`, and include/block/block-common.h).
const WRITER: libc::off_t = 100 + 1;

/// A line about a disk that others may write to meanwhile.
pub fn note(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    if metadata.file_type().is_block_device() {
        // O_EXCL has that meaning for block devices.
        let opened = File::options().read(true).custom_flags(libc::O_EXCL).open(path);
        let is_busy = opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY));
        return is_busy
            .then(|| "the device is in use, so what is read may be of different times; a snapshot is not".to_owned());
    }
    // Anything else could be waited for, and could have taken its place.
    let open = || File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path);
    let is_written = metadata.is_file() && open().is_ok_and(|file| has_writer(&file));
    is_written.then(|| "a running guest may write to it; reads fail as soon as it has changed".to_owned())
}

/// Whether QEMU has a file as the image of a guest's disk that the guest may write to. It has a read lock on a byte then.
pub fn has_writer(file: &File) -> bool {
    // The lock is only tested, which a file that is open for reading permits. Reading all of /proc/locks would take the
    // kernel 10 ms.
    let mut wanted = libc::flock { l_type: libc::F_WRLCK as i16, l_whence: 0, l_start: WRITER, l_len: 1, l_pid: 0 };
    let asked = fcntl(file, FcntlArg::F_OFD_GETLK(&mut wanted));
    asked.is_ok() && i32::from(wanted.l_type) != libc::F_UNLCK
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_lock_of_a_writer_is_recognised() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&[0; 300]).unwrap();
        assert_eq!(note(file.path()), None);
        // As QEMU locks an image with readonly=on, and one that its guest writes to; as a program locks a whole file to write to it.
        for (kind, first, length, is) in
            [(libc::F_RDLCK, 100, 1, false), (libc::F_RDLCK, 100, 2, true), (libc::F_WRLCK, 0, 0, true)]
        {
            let other = File::options().read(true).write(true).open(file.path()).unwrap();
            let lock = libc::flock { l_type: kind as i16, l_whence: 0, l_start: first, l_len: length, l_pid: 0 };
            fcntl(&other, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
            assert_eq!((has_writer(file.as_file()), note(file.path()).is_some()), (is, is), "{first} {length}");
        }
        assert_eq!(note(Path::new("/dev/null")), None);
    }
}
