//! Computes digests of files, and decides by a file's attributes whether an earlier digest still holds.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Bytes that are read at once.
const PIECE: usize = 1 << 18;

/// A SHA-256 digest in 64 hexadecimal digits: never a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub struct Digest(String);

impl Digest {
    pub fn of(bytes: &[u8]) -> Digest {
        Digest::from(Sha256::new_with_prefix(bytes))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Sha256> for Digest {
    fn from(hash: Sha256) -> Digest {
        Digest(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl TryFrom<String> for Digest {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Digest, &'static str> {
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        if text.len() == 64 && text.bytes().all(is_digit) { Ok(Digest(text)) } else { Err("not a SHA-256 digest") }
    }
}

/// A time of the clock that the kernel gives files: seconds and nanoseconds since 1970.
pub type Time = (i64, i64);

/// The time that a file would get now. No later change of a file gets an earlier one, unless the clock is set back.
pub fn now() -> Time {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    (now.tv_sec, now.tv_nsec)
}

/// Waits for the next tick of that clock: every file that was changed before has an earlier time.
pub fn next_tick() -> Time {
    const PAUSE: Duration = Duration::from_millis(1);
    let before = now();
    loop {
        thread::sleep(PAUSE);
        let time = now();
        if time != before {
            return time;
        }
    }
}

/// What changes whenever a file's content does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    mtime: Time,
    ctime: Time,
}

impl Stamp {
    pub fn of(file: &Metadata) -> Stamp {
        Stamp {
            device: file.dev(),
            inode: file.ino(),
            size: file.size(),
            mtime: (file.mtime(), file.mtime_nsec()),
            ctime: (file.ctime(), file.ctime_nsec()),
        }
    }
}

/// Whether a file was last changed before `time`, so that a change since then would show in its ctime. A file that was changed in
/// the same tick of the clock could be changed once more and keep it.
pub fn is_settled(file: &Metadata, time: Time) -> bool {
    const COARSE: i64 = 1_000_000;
    // Some file systems keep whole seconds, or two.
    const COARSEST: i64 = 2;
    match (file.ctime(), file.ctime_nsec()) {
        (seconds, nanoseconds) if nanoseconds % COARSE == 0 => seconds.saturating_add(COARSEST) < time.0,
        ctime => ctime < time,
    }
}

/// A file's content.
pub struct Hashed {
    pub sha256: Digest,
    pub metadata: Metadata,
    /// The digest holds as long as the stamp is the same.
    pub is_settled: bool,
}

/// Opens a regular file without following a link or waiting for anybody.
pub fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty())?);
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it is no regular file")) }
}

/// Writes to a new file, and leaves holes in place of zeros: a disk image may be much longer than what is in it.
pub struct Sparse<'f>(pub &'f mut File);

impl Sparse<'_> {
    /// Gives the file its length.
    pub fn finish(self) -> io::Result<()> {
        let length = self.0.stream_position()?;
        self.0.set_len(length)
    }
}

impl Write for Sparse<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        const BLOCK: usize = 64 << 10;
        for block in bytes.chunks(BLOCK) {
            if block.iter().all(|byte| *byte == 0) {
                self.0.seek(SeekFrom::Current(block.len() as i64))?;
            } else {
                self.0.write_all(block)?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The digest of all that can be read, which is also written to `copy`.
pub fn hash(from: &mut impl Read, copy: &mut impl Write) -> io::Result<Digest> {
    let mut hash = Sha256::new();
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(hash.into()),
            Ok(length) => {
                hash.update(&piece[..length]);
                copy.write_all(&piece[..length])?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The content of the regular file at `path`.
///
/// # Errors
/// It cannot be read, is no regular file, or changes meanwhile.
pub fn hash_file(path: &Path, copy: &mut impl Write) -> io::Result<Hashed> {
    let mut file = open_file(path)?;
    let (before, time) = (file.metadata()?, now());
    let sha256 = hash(&mut file, copy)?;
    let metadata = file.metadata()?;
    if Stamp::of(&before) != Stamp::of(&metadata) {
        return Err(io::Error::other("it changes while it is read"));
    }
    Ok(Hashed { sha256, is_settled: is_settled(&metadata, time), metadata })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_name_is_never_a_path() {
        let digest = Digest::of(b"abc");
        assert_eq!(digest.as_str(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(Digest::try_from(digest.as_str().to_owned()), Ok(digest.clone()));
        for text in ["", "../../etc/passwd", &digest.as_str()[1..], &digest.as_str().to_uppercase(), &"/".repeat(64)] {
            assert!(Digest::try_from(text.to_owned()).is_err(), "{text}");
        }
    }

    #[test]
    fn a_file_is_settled_when_its_tick_is_over() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "").unwrap();
        let file = dir.path().join("a").metadata().unwrap();
        assert!(!is_settled(&file, (file.ctime(), file.ctime_nsec())));
        assert!(is_settled(&file, (file.ctime() + 3, 0)));
        assert!(!is_settled(&file, (file.ctime() - 1, 0)));
    }
}
