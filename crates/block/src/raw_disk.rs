//! [`RawDisk`]: a raw disk image or a block device, read and written in place.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, fallocate, fdatasync};
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::{BlockDevice, Cursor};

/// Bytes of zeros that are written at once where the file system cannot make a range read as zeros.
const ZEROS: usize = 64 << 10;

/// A raw disk image or a block device.
#[derive(Debug)]
pub struct RawDisk {
    file: File,
    capacity: u64,
    read_only: bool,
}

impl RawDisk {
    /// The disk in `file`, whose size stays as it is.
    ///
    /// # Errors
    /// The file has no size.
    pub fn new(mut file: File, read_only: bool) -> io::Result<RawDisk> {
        let capacity = file.seek(SeekFrom::End(0))?;
        Ok(RawDisk { file, capacity, read_only })
    }

    fn allocate(&self, flags: FallocateFlags, offset: u64, length: u64) -> rustix::io::Result<()> {
        loop {
            match fallocate(&self.file, flags, offset, length) {
                Err(Errno::INTR) => {}
                done => return done,
            }
        }
    }

    fn write_zeros(&self, mut offset: u64, mut length: u64) -> io::Result<()> {
        let mut zeros = vec![0; ZEROS.min(usize::try_from(length).unwrap_or(ZEROS))];
        while length > 0 {
            let part = length.min(zeros.len() as u64);
            let piece = VolatileSlice::from(zeros.as_mut_slice());
            Cursor::new(&[piece]).write_to(self.file.as_fd(), offset, &[], part, &[])?;
            (offset, length) = (offset + part, length - part);
        }
        Ok(())
    }
}

/// Whether a file system or device cannot do what was asked of it.
fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL)
}

impl BlockDevice for RawDisk {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&self, offset: u64, out: &[VolatileSlice<'_>]) -> io::Result<()> {
        let mut cursor = Cursor::new(out);
        let mut at = offset;
        while cursor.remaining() > 0 {
            match cursor.read_from(self.file.as_fd(), at, cursor.remaining())? {
                // Another process has truncated the file.
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                got => at += got,
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[VolatileSlice<'_>]) -> io::Result<()> {
        let mut cursor = Cursor::new(data);
        let count = cursor.remaining();
        cursor.write_to(self.file.as_fd(), offset, &[], count, &[])
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        match self.allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, length) {
            // The content may stay.
            Err(errno) if is_unsupported(errno) => Ok(()),
            done => Ok(done?),
        }
    }

    fn write_zeroes(&self, offset: u64, length: u64, unmap: bool) -> io::Result<()> {
        let flags = match unmap {
            true => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            false => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        };
        match self.allocate(flags, offset, length) {
            Err(errno) if is_unsupported(errno) => self.write_zeros(offset, length),
            done => Ok(done?),
        }
    }

    fn flush(&self) -> io::Result<()> {
        Ok(fdatasync(&self.file)?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn what_is_written_is_in_the_file_at_once_and_nothing_beyond_it() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 20).unwrap();
        let disk = RawDisk::new(file.try_clone().unwrap(), false).unwrap();
        assert_eq!((disk.capacity(), disk.read_only()), (1 << 20, false));
        let (mut one, mut two) = (*b"written ", *b"in pieces");
        disk.write_at(4096, &[one.as_mut_slice().into(), two.as_mut_slice().into()]).unwrap();
        disk.flush().unwrap();
        let mut read = [0; 17];
        file.read_exact_at(&mut read, 4096).unwrap();
        assert_eq!(&read, b"written in pieces");
        for (unmap, at) in [(true, 4096), (false, 4104)] {
            disk.write_zeroes(at, 8, unmap).unwrap();
        }
        let mut out = [1; 17];
        disk.read_at(4096, &[out.as_mut_slice().into()]).unwrap();
        assert_eq!(&out, b"\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0s");
        disk.discard(4096, 4096).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
        // The file was cut off.
        file.set_len(8192).unwrap();
        assert!(disk.read_at(8190, &[out.as_mut_slice().into()]).is_err());
    }
}
