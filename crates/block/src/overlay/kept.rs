//! The file of a kept overlay: a header, the clusters' states, then the data.
//!
//! | offset | what |
//! |---|---|
//! | 0 | header, one 4 KiB page, see [`Header`]; at 512 in it the [`Seal`](super::Seal) of an overlay that is written to no more |
//! | 4096 | states: a 4 KiB page for each 16384 clusters, two bits a cluster (0 below, 1 written, 2 zeros), as little-endian 64-bit words, the first cluster lowest |
//! | next multiple of 1 MiB | data: device offset 0 |
//!
//! A state may say "written" on the disk only if the data is there. So a flush copies the states that changed, waits
//! for the data written before (fdatasync), writes the copied states, and waits for those. A crash may tear a page of
//! states; that does no harm, because each pair of bits is valid by itself, old or new.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FlockOperation, RenameFlags, flock, linkat, renameat_with};
use rustix::io::Errno;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::file::{failed, nameless, set_length};
use super::states::{CHUNK_CLUSTERS, CHUNK_WORDS, ClusterStates};
use super::{CLUSTER, OverlayError};

const MAGIC: [u8; 8] = *b"INARCHOV";
const VERSION: u32 = 2;
const STATES_START: u64 = 4096;
const PAGE: usize = CHUNK_WORDS * 8;
const DATA_ALIGNMENT: u64 = 1 << 20;
/// Pages of states that a flush copies at once.
const BATCH: usize = 1024;

/// The first bytes of the file; the rest of the page is zeros.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    magic: [u8; 8],
    version: U32,
    /// Bytes in a cluster: 4096.
    cluster: U32,
    /// Clusters of the device.
    clusters: U64,
    /// Where in the file device offset 0 is.
    data_start: U64,
    identity: [u8; 32],
    /// A number that the device's maker stores, to make the same device again.
    note: U32,
    /// CRC-32C of everything before.
    checksum: U32,
}

impl Header {
    fn new(clusters: u64, identity: [u8; 32], note: u32) -> Header {
        let mut header = Header {
            magic: MAGIC,
            version: VERSION.into(),
            cluster: (CLUSTER as u32).into(),
            clusters: clusters.into(),
            data_start: data_start(clusters).into(),
            identity,
            note: note.into(),
            checksum: 0.into(),
        };
        header.checksum = header.compute_checksum().into();
        header
    }

    fn compute_checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        crc32c::crc32c(bytes.split_at(bytes.len() - 4).0)
    }
}

/// The offset of the device's first byte in the file of a kept overlay, in bytes; it depends on the number of clusters.
pub(super) fn data_start(clusters: u64) -> u64 {
    (STATES_START + clusters.div_ceil(CHUNK_CLUSTERS) * PAGE as u64).next_multiple_of(DATA_ALIGNMENT)
}

/// The state of a kept overlay's flushes; one flush runs at a time.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Whether the host once failed to make data durable. The kernel then drops the data and lets the next fdatasync
    /// succeed, so every later flush must fail.
    lost: Mutex<bool>,
}

impl Kept {
    pub(super) fn flush(&self, file: &File, states: &ClusterStates) -> io::Result<()> {
        let mut lost = self.lost.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if *lost {
            return Err(io::Error::from_raw_os_error(libc::EIO));
        }
        let mut changed = (0..states.chunk_count()).filter(|index| states.take_changed(*index));
        loop {
            let taken: Vec<_> = changed.by_ref().take(BATCH).map(|index| (index, states.to_words(index))).collect();
            // For the data of these states, and for the states written in the previous round.
            file.sync_data().inspect_err(|_| *lost = true)?;
            if taken.is_empty() {
                return Ok(());
            }
            if let Err(error) = store(file, &taken) {
                taken.iter().for_each(|(index, _)| states.mark_changed(*index));
                return Err(error);
            }
        }
    }
}

fn store(file: &File, taken: &[(usize, [u64; CHUNK_WORDS])]) -> io::Result<()> {
    taken.iter().try_for_each(|(index, words)| file.write_all_at(words.map(u64::to_le).as_bytes(), page_offset(*index)))
}

fn page_offset(chunk: usize) -> u64 {
    STATES_START + chunk as u64 * PAGE as u64
}

pub(super) fn open_or_create(
    path: &Path,
    clusters: u64,
    identity: [u8; 32],
    note: u32,
) -> Result<(File, ClusterStates), OverlayError> {
    match open(path, clusters, identity) {
        Err(OverlayError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            match create(path, &Header::new(clusters, identity, note))? {
                Some(file) => of_locked(path, file, clusters, identity),
                None => open(path, clusters, identity),
            }
        }
        opened => opened,
    }
}

/// Opens an existing overlay.
pub(super) fn open(path: &Path, clusters: u64, identity: [u8; 32]) -> Result<(File, ClusterStates), OverlayError> {
    let file = open_file(path, OpenOptions::new().read(true).write(true))?;
    lock(path, &file)?;
    of_locked(path, file, clusters, identity)
}

fn of_locked(
    path: &Path,
    file: File,
    clusters: u64,
    identity: [u8; 32],
) -> Result<(File, ClusterStates), OverlayError> {
    check_header(path, &file, clusters, identity)?;
    let states = load_states(path, &file, clusters)?;
    Ok((file, states))
}

/// The note in the header of the overlay at `path`, even while another process uses it; `None` if there is no file.
pub(super) fn note(path: &Path) -> Result<Option<u32>, OverlayError> {
    match open_file(path, OpenOptions::new().read(true)) {
        Err(OverlayError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
        file => Ok(Some(Header::read(path, &file?)?.note.get())),
    }
}

fn open_file(path: &Path, options: &mut OpenOptions) -> Result<File, OverlayError> {
    let file = options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path);
    file.map_err(|error| failed("open", path, error))
}

/// Locks the file for this process. Retries for a moment: a child that a thread of a killed owner forked holds the lock
/// until its exec closes the copied descriptor.
fn lock(path: &Path, file: &File) -> Result<(), OverlayError> {
    for _ in 0..20 {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(()),
            Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(10)),
            Err(errno) => return Err(failed("lock", path, errno)),
        }
    }
    Err(OverlayError::InUse(path.into()))
}

/// Completes the file and locks it, then gives it its name: what has the name is in use from the start. `None` if another process was
/// faster.
fn create(path: &Path, header: &Header) -> Result<Option<File>, OverlayError> {
    let dir = directory_of(path);
    let named = match nameless(dir).map_err(|error| failed("make a file in", dir, error))? {
        Some(file) => {
            fill(&file, path, header)?;
            link(&file, path).map(|()| file)
        }
        None => Err(Errno::OPNOTSUPP),
    };
    let named = match named {
        // The file system has no nameless files, or there is no /proc to link them by.
        Err(Errno::OPNOTSUPP | Errno::NOENT) => create_under_another_name(path, header)?,
        result => result,
    };
    match named {
        Ok(file) => sync_directory(path).map(|()| Some(file)),
        Err(Errno::EXIST) => Ok(None),
        Err(errno) => Err(failed("name", path, errno)),
    }
}

/// Links a nameless file to `path`, if that name is free. Uses /proc, because `AT_EMPTY_PATH` needs
/// `CAP_DAC_READ_SEARCH` before Linux 6.10.
fn link(file: &File, path: &Path) -> Result<(), Errno> {
    let source = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, source, CWD, path, AtFlags::SYMLINK_FOLLOW)
}

/// Fills a file beside `path`, then renames it; a process that is killed meanwhile leaves the file there.
fn create_under_another_name(path: &Path, header: &Header) -> Result<Result<File, Errno>, OverlayError> {
    /// Names that are tried: one that a killed process left, or another user chose, is not used.
    const NAMES: usize = 100;
    static ATTEMPT: AtomicU32 = AtomicU32::new(0);
    let mut more = 1..NAMES;
    let (new, file) = loop {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}-{}.new", std::process::id(), ATTEMPT.fetch_add(1, Ordering::Relaxed)));
        let new = path.with_file_name(name);
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&new) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && more.next().is_some() => {}
            Err(error) => return Err(failed("make", &new, error)),
            Ok(file) => break (new, file),
        }
    };
    let named = fill(&file, &new, header).map(|()| renameat_with(CWD, &new, CWD, path, RenameFlags::NOREPLACE));
    if !matches!(named, Ok(Ok(()))) {
        // It may not exist; the first error counts.
        let _ = fs::remove_file(&new);
    }
    named.map(|named| named.map(|()| file))
}

/// Writes the header, and locks the file.
fn fill(file: &File, path: &Path, header: &Header) -> Result<(), OverlayError> {
    set_length(file, path, header.data_start.get() + header.clusters.get() * CLUSTER)?;
    let written = file.write_all_at(header.as_bytes(), 0).and_then(|()| file.sync_all());
    written.map_err(|error| failed("write", path, error))?;
    lock(path, file)
}

fn sync_directory(path: &Path) -> Result<(), OverlayError> {
    let synced = File::open(directory_of(path)).and_then(|directory| directory.sync_all());
    synced.map_err(|error| failed("sync the directory of", path, error))
}

fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

impl Header {
    /// Reads and checks the header of an overlay.
    fn read(path: &Path, file: &File) -> Result<Header, OverlayError> {
        let damaged = |what| OverlayError::Damaged { path: path.into(), what };
        let metadata = file.metadata().map_err(|error| failed("examine", path, error))?;
        if !metadata.is_file() {
            return Err(OverlayError::NotAnOverlay(path.into()));
        }
        let mut header = Header::new_zeroed();
        let read = file.read_exact_at(header.as_mut_bytes(), 0);
        if header.magic != MAGIC {
            return Err(OverlayError::NotAnOverlay(path.into()));
        }
        match read {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                return Err(damaged("its header is cut short"));
            }
            result => result.map_err(|error| failed("read", path, error))?,
        }
        if header.version.get() != VERSION {
            return Err(OverlayError::Version { path: path.into(), found: header.version.get(), known: VERSION });
        }
        if header.checksum.get() != header.compute_checksum() {
            return Err(damaged("the checksum of its header is wrong"));
        }
        Ok(header)
    }
}

fn check_header(path: &Path, file: &File, clusters: u64, identity: [u8; 32]) -> Result<(), OverlayError> {
    let damaged = |what| OverlayError::Damaged { path: path.into(), what };
    let header = Header::read(path, file)?;
    if header.identity != identity {
        return Err(OverlayError::Identity(path.into()));
    }
    let found = header.clusters.get();
    if found != clusters {
        return Err(OverlayError::Capacity { path: path.into(), found, wanted: clusters });
    }
    if header.cluster.get() != CLUSTER as u32 || header.data_start.get() != data_start(clusters) {
        return Err(damaged("its header names another layout"));
    }
    let length = file.metadata().map_err(|error| failed("examine", path, error))?.len();
    if length < data_start(clusters) + clusters * CLUSTER {
        return Err(damaged("it is cut short"));
    }
    Ok(())
}

fn load_states(path: &Path, file: &File, clusters: u64) -> Result<ClusterStates, OverlayError> {
    let states = ClusterStates::new(clusters);
    let end = page_offset(states.chunk_count());
    let mut offset = STATES_START;
    while let Some(found) = next_data(file, offset, end) {
        let index = ((found - STATES_START) / PAGE as u64) as usize;
        let mut words = [0u64; CHUNK_WORDS];
        let read = file.read_exact_at(words.as_mut_bytes(), page_offset(index));
        read.map_err(|error| failed("read", path, error))?;
        if !states.load_words(index, &words.map(u64::from_le)) {
            return Err(OverlayError::Damaged { path: path.into(), what: "its cluster states hold an unknown state" });
        }
        offset = page_offset(index + 1);
    }
    Ok(states)
}

/// The next offset before `end` that may hold data. Every offset may, if the file system cannot tell.
fn next_data(file: &File, offset: u64, end: u64) -> Option<u64> {
    let found = match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(offset)) {
        Ok(found) => found,
        Err(Errno::NXIO) => return None,
        Err(_) => offset,
    };
    (found < end).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: [u8; 32] = [7; 32];

    #[test]
    fn without_nameless_files_an_overlay_is_made_beside_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept");
        // Such names that there are already are another's.
        let others = (0..20).map(|attempt| dir.path().join(format!("kept.{}-{attempt}.new", std::process::id())));
        let others: Vec<_> = others.collect();
        others.iter().for_each(|other| fs::write(other, "another's").unwrap());
        let made = create_under_another_name(&path, &Header::new(1000, ID, 5)).unwrap().unwrap();
        for other in others {
            assert_eq!(fs::read(&other).unwrap(), b"another's");
            fs::remove_file(other).unwrap();
        }
        assert!(matches!(open(&path, 1000, ID), Err(OverlayError::InUse(_))), "its name is there before its lock");
        drop(made);
        let (file, _) = open_or_create(&path, 1000, ID, 5).unwrap();
        file.write_all_at(b"here", 5 << 20).unwrap();
        let again = create_under_another_name(&path, &Header::new(1000, ID, 5)).unwrap();
        assert_eq!(again.map(drop), Err(Errno::EXIST));
        let mut content = [0; 4];
        File::open(&path).unwrap().read_exact_at(&mut content, 5 << 20).unwrap();
        assert_eq!(&content, b"here", "what is there is not replaced");
        let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["kept"]);
    }

    #[test]
    fn a_new_overlay_is_in_use_from_the_moment_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept");
        let made = create(&path, &Header::new(1000, ID, 5)).unwrap();
        assert!(made.is_some() && matches!(open(&path, 1000, ID), Err(OverlayError::InUse(_))));
        drop(made);
        open(&path, 1000, ID).unwrap();
    }

    #[test]
    fn an_overlay_that_somebody_else_made_first_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept");
        fs::write(&path, "another's").unwrap();
        create(&path, &Header::new(1000, ID, 5)).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"another's");
    }
}
