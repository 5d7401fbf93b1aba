//! [`Turn`]: lets one run at a time have a cache that is used in mode `locked`.
//!
//! The lock is flock(2) on the file `turn` of the cache's directory, so the kernel frees it when its holder ends, however that is. The file says who
//! holds it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use inarch_lifecycle::trust::{self, Missing, Owner};
use inarch_lifecycle::{FileLock, PathError, shown};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::CacheError;
use super::error::InUse;
use super::place::LIVE;
use super::store::Cache;

const TURN: &str = "turn";
/// Locked (shared) by each run that has the directory `live`, and exclusively to remove the cache.
const LIVE_LOCK: &str = "live.lock";
/// The longest description of a holder that is read, in bytes.
const LONGEST: u64 = 512;
/// How often a turn is asked for again.
const PAUSE: Duration = Duration::from_millis(100);

/// A run's turn with a cache; it ends with this value.
#[derive(Debug)]
pub struct Turn {
    _lock: FileLock,
}

/// A cache that no run can begin to use as long as this is there.
#[derive(Debug)]
pub struct Closed {
    _locks: Vec<FileLock>,
}

impl Cache {
    /// Waits for this run's turn. While another run has it, calls `goes_on` again and again with a description of that run; if it returns
    /// false, the result is `None`. `who` describes this run to others.
    ///
    /// # Errors
    /// The file cannot be opened or locked.
    pub fn turn(&self, who: &str, mut goes_on: impl FnMut(&str) -> bool) -> Result<Option<Turn>, CacheError> {
        let path = self.dir().join(TURN);
        let fail = |error| PathError::new(&path, "cannot lock the cache", error);
        let mut file = self.open_lock(TURN)?;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                // The cache was removed, and perhaps made anew.
                Ok(()) if file.metadata().map_err(fail)?.nlink() == 0 => {
                    return Cache::make(self.place())?.turn(who, goes_on);
                }
                Ok(()) => break,
                Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) => {
                    if !goes_on(&holder(&mut file)) {
                        return Ok(None);
                    }
                    std::thread::sleep(PAUSE);
                }
                Err(errno) => return Err(fail(errno.into()).into()),
            }
        }
        // Only people read it: a disk that is full does not matter.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(who.as_bytes()));
        Ok(Some(Turn { _lock: FileLock::of(file) }))
    }
}

impl Cache {
    /// Makes the directory that is shared live, and keeps it from being removed as long as the result is there.
    ///
    /// # Errors
    /// It cannot be made, or is just being removed.
    pub fn take_live(&self) -> Result<Turn, CacheError> {
        let file = self.open_lock(LIVE_LOCK)?;
        let [scope, name] = self.place().names();
        trust::directory(&self.place().home, &[scope, name, LIVE], Missing::Make, Owner::User)?;
        self.use_now()?;
        let path = self.dir().join(LIVE_LOCK);
        flock(&file, FlockOperation::NonBlockingLockShared)
            .map_err(|errno| PathError::new(&path, "the cache is being removed", std::io::Error::from(errno)))?;
        Ok(Turn { _lock: FileLock::of(file) })
    }

    /// Keeps the cache from being used, so that it can be removed, or says who uses it. With `even_if_read`, a reader
    /// of its current generation does not count: it goes on with the files that it has open.
    ///
    /// # Errors
    /// That cannot be found out.
    pub fn close(&self, even_if_read: bool) -> Result<Result<Closed, InUse>, CacheError> {
        let (turn, live) = (Some(self.open_lock(TURN)?), Some(self.open_lock(LIVE_LOCK)?));
        let generation = if even_if_read { None } else { self.open_current()? };
        let mut locks = Vec::new();
        for (file, by) in [(turn, InUse::Locked), (live, InUse::Live), (generation, InUse::Read)] {
            let Some(file) = file else { continue };
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Ok(Err(by));
            }
            locks.push(FileLock::of(file));
        }
        Ok(Ok(Closed { _locks: locks }))
    }

    fn open_lock(&self, name: &str) -> Result<File, CacheError> {
        let path = self.dir().join(name);
        let options = &mut OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        Ok(trust::open(&path, options).map_err(|error| PathError::new(&path, "cannot lock the cache", error))?)
    }
}

/// Describes the lock's holder, by what that has written into the file.
fn holder(file: &mut File) -> String {
    let mut text = Vec::new();
    let _ = file.rewind().and_then(|()| file.take(LONGEST).read_to_end(&mut text));
    shown(Path::new(&*String::from_utf8_lossy(&text)))
}
