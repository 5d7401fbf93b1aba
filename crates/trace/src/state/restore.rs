//! Restores missing outputs from the store, without running the command.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, chown, fchown, lchown, symlink};
use std::path::Path;

use inarch_lifecycle::PathError;
use inarch_lifecycle::new_file::NewFile;

use super::fact::{Fact, There};
use super::hashed::Sparse;
use super::memory::Left;
use super::store::Store;

const PERMISSIONS: u32 = 0o7777;

/// Makes outputs again: sorted by path, so that a directory comes before what lies in it. The objects must have been checked.
///
/// # Errors
/// One cannot be made. Those before it are there.
pub fn restore(missing: &[(&Path, &Left)], store: &Store) -> Result<(), PathError> {
    let there = |left: &Left| if let Fact::There(there) = &left.fact { Some((**there).clone()) } else { None };
    for (path, left) in missing {
        if let Some(there) = there(left) {
            make(path, &there, store)?;
        }
    }
    // A directory may be one in which nobody may write.
    for (path, left) in missing.iter().rev() {
        if let Some(there) = there(left).filter(|there| there.is(libc::S_IFDIR)) {
            set(path, &there).map_err(|error| PathError::new(path, "cannot make it again", error))?;
        }
    }
    Ok(())
}

fn make(path: &Path, there: &There, store: &Store) -> Result<(), PathError> {
    let fail = |error| PathError::new(path, "cannot make it again", error);
    match (&there.target, &there.sha256) {
        _ if there.is(libc::S_IFDIR) => DirBuilder::new().mode(0o700).create(path).map_err(fail),
        (Some(target), _) => {
            symlink(target.to_path(), path).map_err(fail)?;
            let (user, group) = there.owner;
            lchown(path, Some(user), Some(group)).map_err(fail)
        }
        (None, Some(digest)) => {
            let mut new = NewFile::create(path, || {})?;
            // Without O_TMPFILE the file has a name: other users must not open it before it has its owner and mode.
            new.file.set_permissions(Permissions::from_mode(0o600)).map_err(fail)?;
            let mut sparse = Sparse(&mut new.file);
            store.copy(digest, &mut sparse)?;
            sparse.finish().map_err(fail)?;
            let (user, group) = there.owner;
            fchown(&new.file, Some(user), Some(group)).map_err(fail)?;
            new.file.set_permissions(Permissions::from_mode(there.mode & PERMISSIONS)).map_err(fail)?;
            new.commit()
        }
        (None, None) => Err(fail(io::Error::other("its content is not kept"))),
    }
}

fn set(path: &Path, there: &There) -> io::Result<()> {
    let (user, group) = there.owner;
    chown(path, Some(user), Some(group))?;
    fs::set_permissions(path, Permissions::from_mode(there.mode & PERMISSIONS))
}
