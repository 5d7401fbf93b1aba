//! [`Made`]: the files that a copy has made. None of its later files takes the place of one of them.

use std::cell::RefCell;
use std::collections::HashSet;

use rustix::fs::Stat;

use super::failure::Failure;

/// Files by device and inode number. Two of the files that are copied can have one place: by a link to a directory that the image has, or in
/// a file system that does not distinguish `a` and `A`.
#[derive(Debug, Default)]
pub(super) struct Made(RefCell<HashSet<(u64, u64)>>);

impl Made {
    /// Another copy begins.
    pub fn forget(&self) {
        self.0.borrow_mut().clear();
    }

    /// Adds a file.
    pub fn add(&self, file: &Stat) {
        self.0.borrow_mut().insert(identity(file));
    }

    /// Refuses to replace the file `old` if this copy has made it.
    pub fn spare(&self, path: &[u8], old: Option<&Stat>) -> Result<(), Failure> {
        if old.is_some_and(|old| self.0.borrow().contains(&identity(old))) {
            let path = String::from_utf8_lossy(path);
            return Err(Failure::new(format!("{path}: another of the files that are copied is there already")));
        }
        Ok(())
    }
}

fn identity(file: &Stat) -> (u64, u64) {
    (file.st_dev, file.st_ino)
}
