//! [`FileLock`]: a lock that ends with its value, whatever other threads do.

use std::fs::File;
use std::ops::Deref;

use rustix::fs::{FlockOperation, flock};

/// An open file that flock(2) has locked.
///
/// A child that another thread has just made also has the open file, and with it the lock, until its execve(2). Closing
/// the file would leave the lock to that child, so the lock is released explicitly. Do not share the file with anybody
/// who is to keep the lock.
#[derive(Debug)]
pub struct FileLock(File);

impl FileLock {
    /// The lock of `file`, which is locked.
    pub fn of(file: File) -> FileLock {
        FileLock(file)
    }
}

impl Deref for FileLock {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // It ends with the file at the latest.
        let _ = flock(&self.0, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_of_the_file_does_not_keep_the_lock() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let open = || File::open(&path).unwrap();
        let try_lock = |file: &File| flock(file, FlockOperation::NonBlockingLockExclusive).is_ok();
        let lock = FileLock::of(open());
        assert!(try_lock(&lock) && !try_lock(&open()));
        // As a child has it.
        let copy = lock.try_clone().unwrap();
        drop(lock);
        assert!(try_lock(&open()));
        drop(copy);
    }
}
