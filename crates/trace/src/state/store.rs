//! The directory of a state.
//!
//! | file | content |
//! |---|---|
//! | `inarch-trace.lock` | locked by the process that uses the state |
//! | `state.json` | the [`Memory`](super::memory::Memory) of a run |
//! | `objects/SHA256` | content of outputs, named by its digest |
//!
//! Everything that is relied on has a digest, so the order in which a disk gets it does not matter.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use inarch_lifecycle::new_file::NewFile;
use inarch_lifecycle::trust::{self, Missing, Owner};
use inarch_lifecycle::{FileLock, PathError};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::super::processes::parent;
use super::hashed::{Digest, Sparse, hash, hash_file};
use super::{StateError, memory};

const LOCK: &str = "inarch-trace.lock";
const STATE: &str = "state.json";
const OBJECTS: &str = "objects";

/// A state's directory, which this process has for itself.
#[derive(Debug)]
pub struct Store {
    home: PathBuf,
    /// Held until the end.
    _lock: FileLock,
}

impl Store {
    /// Opens a directory, making it if it is missing, and waits until no other process has it. Calls `waiting` before it waits.
    ///
    /// # Errors
    /// It is something else, another user could write to it, or it cannot be made.
    pub fn open(path: &Path, waiting: impl FnOnce()) -> Result<Store, StateError> {
        let fail = |action| move |error: io::Error| PathError::new(path, action, error);
        let absolute = std::path::absolute(path).map_err(fail("cannot use it"))?;
        // A link on the way is the user's choice; one in its own place is not followed.
        let home = match (absolute.parent(), absolute.file_name()) {
            (Some(parent), Some(name)) => parent.canonicalize().map_or(absolute.clone(), |parent| parent.join(name)),
            _ => return Err(StateError::NotOurs(absolute)),
        };
        trust::directory(&home, &[], Missing::Make, Owner::User)?;
        let lock_path = home.join(LOCK);
        if !lock_path.exists() && fs::read_dir(&home).map_err(fail("cannot read it"))?.next().is_some() {
            return Err(StateError::NotOurs(home));
        }
        // The lock comes first: a state is known by it, also if this process is killed before it makes the rest.
        let fail = |error| PathError::new(&lock_path, "cannot lock it", error);
        let lock = trust::open(&lock_path, OpenOptions::new().read(true).append(true).create(true).mode(0o600));
        let lock = lock.map_err(fail)?;
        trust::directory(&home, &[OBJECTS], Missing::Make, Owner::User)?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            if holder(&lock).is_some_and(is_above) {
                return Err(StateError::Within(home));
            }
            waiting();
            loop {
                match flock(&lock, FlockOperation::LockExclusive) {
                    Err(Errno::INTR) => {}
                    locked => break locked.map_err(|errno| fail(errno.into()))?,
                }
            }
        }
        // For those that come while it is locked.
        lock.set_len(0).and_then(|()| write!(&lock, "{}", std::process::id())).map_err(fail)?;
        Ok(Store { home, _lock: FileLock::of(lock) })
    }

    /// Where it is.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Opens the file of the run that is remembered; `None` if there is none.
    pub fn state(&self) -> Result<Option<File>, PathError> {
        let path = self.home.join(STATE);
        match trust::open(&path, OpenOptions::new().read(true)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(PathError::new(&path, "cannot read it", error)),
        }
    }

    /// Remembers nothing any more.
    pub fn forget(&self) -> Result<(), PathError> {
        let path = self.home.join(STATE);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(PathError::new(&path, "cannot remove it", error))
            }
            _ => Ok(()),
        }
    }

    /// Gives the directory a whole memory, and removes the objects that it does not refer to.
    pub fn commit(&self, memory: &memory::Memory) -> Result<(), PathError> {
        let path = self.home.join(STATE);
        self.write(&path, |out| memory.write(&*out))?;
        self.sweep(&memory.objects());
        Ok(())
    }

    /// Removes all objects but `used`.
    pub fn sweep(&self, used: &BTreeSet<&Digest>) {
        let used: BTreeSet<&str> = used.iter().map(|digest| digest.as_str()).collect();
        for entry in fs::read_dir(self.home.join(OBJECTS)).into_iter().flatten().flatten() {
            if entry.file_name().to_str().is_none_or(|name| !used.contains(name)) {
                // One that stays takes room, and is tried again the next time.
                let _ = fs::remove_file(entry.path());
            }
        }
    }

    fn object(&self, digest: &Digest) -> PathBuf {
        self.home.join(OBJECTS).join(digest.as_str())
    }

    /// Writes a file that gets its name when it is complete.
    fn write<T>(&self, path: &Path, make: impl FnOnce(&mut File) -> io::Result<T>) -> Result<T, PathError> {
        // The target of a link would be written.
        if path.is_symlink() {
            fs::remove_file(path).map_err(|error| PathError::new(path, "cannot remove it", error))?;
        }
        let mut new = NewFile::create(path, || {})?;
        let fail = |error| PathError::new(path, "cannot write it", error);
        new.file.set_permissions(Permissions::from_mode(0o600)).map_err(fail)?;
        let made = make(&mut new.file).map_err(fail)?;
        new.commit()?;
        Ok(made)
    }

    /// Keeps bytes.
    pub fn keep(&self, bytes: &[u8]) -> Result<Digest, PathError> {
        let digest = Digest::of(bytes);
        self.write(&self.object(&digest), |out| out.write_all(bytes))?;
        Ok(digest)
    }

    /// Keeps the content of a file that has this digest; false if it has not.
    pub fn keep_file(&self, from: &Path, digest: &Digest) -> Result<bool, PathError> {
        if self.check(digest).is_ok() {
            return Ok(true);
        }
        let mut source =
            super::hashed::open_file(from).map_err(|error| PathError::new(from, "cannot read it", error))?;
        let copied = self.write(&self.object(digest), |out| {
            let mut sparse = Sparse(out);
            let copied = hash(&mut source, &mut sparse)?;
            sparse.finish().map(|()| copied)
        });
        Ok(copied? == *digest)
    }

    /// Whether an object is there and what it should be.
    pub fn check(&self, digest: &Digest) -> Result<(), PathError> {
        self.copy(digest, &mut io::sink())
    }

    /// Copies an object. What was written is none of it if this fails.
    pub fn copy(&self, digest: &Digest, to: &mut impl Write) -> Result<(), PathError> {
        let path = self.object(digest);
        let fail = |error| PathError::new(&path, "cannot use it", error);
        trust::open(&path, OpenOptions::new().read(true)).map_err(fail)?;
        let copied = hash_file(&path, to).map_err(fail)?;
        if copied.sha256 != *digest {
            return Err(fail(io::Error::other("it is damaged")));
        }
        Ok(())
    }

    /// The whole of an object, of `most` bytes at most.
    pub fn read(&self, digest: &Digest, most: u64) -> Result<Vec<u8>, PathError> {
        let path = self.object(digest);
        let fail = |error| PathError::new(&path, "cannot use it", error);
        let mut file = trust::open(&path, OpenOptions::new().read(true)).map_err(fail)?;
        let mut bytes = Vec::new();
        (&mut file).take(most.saturating_add(1)).read_to_end(&mut bytes).map_err(fail)?;
        if bytes.len() as u64 > most || Digest::of(&bytes) != *digest {
            return Err(fail(io::Error::other("it is damaged")));
        }
        Ok(bytes)
    }
}

/// The process that has the lock, if it has said so by now.
fn holder(lock: &File) -> Option<u32> {
    let mut text = String::new();
    lock.take(16).read_to_string(&mut text).ok()?;
    text.parse().ok()
}

/// Whether a process is this one's parent, or its parent's, and so on: it would wait for the command that waits for it.
fn is_above(process: u32) -> bool {
    let mut own = std::process::id();
    // Numbers are used again, so that a chain that changes could have no end.
    for _ in 0..1000 {
        match parent(own) {
            0 => return false,
            parent if parent == process => return true,
            parent => own = parent,
        }
    }
    false
}
