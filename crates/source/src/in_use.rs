//! Tells whether somebody else may write to a disk that is read: a running guest, or the kernel.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The byte that QEMU locks for each permission that it uses of an image, plus the number of `BLK_PERM_WRITE`
/// (QEMU's block/file-posix.c, `RAW_LOCK_PERM_BASE`, and include/block/block-common.h).
const WRITER: u64 = 100 + 1;

/// A line about a disk that others may write to meanwhile.
pub fn note(path: &Path) -> Option<String> {
    let metadata = fs::metadata(path).ok()?;
    if metadata.file_type().is_block_device() {
        // O_EXCL has that meaning for block devices.
        let opened = fs::File::options().read(true).custom_flags(libc::O_EXCL).open(path);
        let is_busy = opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY));
        return is_busy
            .then(|| "the device is in use, so what is read may be of different times; a snapshot is not".to_owned());
    }
    has_writer(&metadata).then(|| "a running guest may write to it; reads fail as soon as it has changed".to_owned())
}

/// Whether QEMU has a file as the image of a guest's disk that the guest may write to.
pub fn has_writer(file: &Metadata) -> bool {
    let file = (libc::major(file.dev()), libc::minor(file.dev()), file.ino());
    fs::read_to_string("/proc/locks").is_ok_and(|locks| locks.lines().any(|line| is_writer(line, file)))
}

/// Whether a line of /proc/locks (proc_locks(5)) is QEMU's lock of a writer of that file.
fn is_writer(line: &str, (major, minor, inode): (u32, u32, u64)) -> bool {
    let mut words = line.split_whitespace().skip_while(|word| *word != "OFDLCK" && *word != "POSIX").skip(4);
    let (Some(file), Some(first), Some(last)) = (words.next(), words.next(), words.next()) else { return false };
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let mut parts = file.split(':');
    let (of_major, of_minor) = (parts.next().and_then(number), parts.next().and_then(number));
    let is_file = (of_major, of_minor) == (Some(major.into()), Some(minor.into()))
        && parts.next().and_then(|text| text.parse().ok()) == Some(inode);
    let last = if last == "EOF" { Some(u64::MAX) } else { last.parse().ok() };
    let range = first.parse::<u64>().ok().zip(last);
    is_file && range.is_some_and(|(first, last)| (first..=last).contains(&WRITER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_of_a_writer_is_recognised() {
        // cat /proc/locks beside qemu-system-x86_64 -drive file=disk,format=raw, and with readonly=on.
        let file = (0xfd, 0, 123);
        for (line, is) in [
            ("1: OFDLCK ADVISORY  READ -1 fd:00:123 100 101", true),
            ("1: OFDLCK ADVISORY  READ 1234 fd:00:123 101 101", true),
            ("12: POSIX  ADVISORY  WRITE 77 fd:00:123 0 EOF", true),
            ("1: OFDLCK ADVISORY  READ -1 fd:00:123 100 100", false),
            ("1: OFDLCK ADVISORY  READ -1 fd:00:123 103 103", false),
            ("1: OFDLCK ADVISORY  READ -1 fd:00:124 100 101", false),
            ("1: OFDLCK ADVISORY  READ -1 fd:01:123 100 101", false),
            ("1: -> OFDLCK ADVISORY  READ", false),
            ("", false),
        ] {
            assert_eq!(is_writer(line, file), is, "{line}");
        }
    }
}
