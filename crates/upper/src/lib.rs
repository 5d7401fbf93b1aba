//! The upper layer of an overlay, for writes over a tree that stays unchanged: kept in a directory, or ephemeral.

mod error;

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fmt, fs, io, thread};

use inarch_lifecycle::guard::Guard;
use inarch_lifecycle::named::open_directory;
use inarch_lifecycle::{FileLock, PathError, shown};
use inarch_mount::Detached;
use inarch_vfs::{Changes, FileSystem, HostDirectory, HostOptions, MemoryFiles, Overlay};
use rustix::fs::{
    AtFlags, Dir, FlockOperation, Mode, OFlags, StatxFlags, XattrFlags, fgetxattr, flock, fsetxattr, fstat, fstatvfs,
    open, openat, statx,
};
use rustix::io::Errno;

pub use error::UpperError;

/// What a kept layer belongs to: over anything else it would show nonsense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LowerIdentity {
    /// Without a blank; the same for the same tree, at any time.
    identity: String,
    /// What a user knows it by.
    name: String,
}

impl LowerIdentity {
    /// Of a directory, whatever is in it by now: its inode, that inode's age, and its file system.
    pub fn of_directory(path: &Path) -> io::Result<LowerIdentity> {
        let directory = open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let stat = statx(&directory, "", AtFlags::EMPTY_PATH, StatxFlags::INO | StatxFlags::BTIME)?;
        let born = (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
        let file_system = fstatvfs(&directory)?.f_fsid;
        let identity = format!("directory:{file_system:x}:{:x}:{:x}.{:x}", stat.stx_ino, born.0, born.1);
        Ok(LowerIdentity { identity, name: path.canonicalize()?.display().to_string() })
    }

    /// Of a tree that never changes, by its fingerprint.
    pub fn of_tree(fingerprint: &[u8; 32], path: &Path) -> LowerIdentity {
        use std::fmt::Write;
        let identity = fingerprint.iter().fold(String::from("tree:"), |mut text, byte| {
            // Writing to memory does not fail.
            let _ = write!(text, "{byte:02x}");
            text
        });
        // Standard input has no other name.
        let name = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        LowerIdentity { identity, name: name.display().to_string() }
    }

    /// The identity as it is stored.
    fn record(&self) -> String {
        format!("2 {} {}", self.identity, self.name)
    }

    /// Parses a stored identity; `None` if this version does not know its format.
    fn parse(record: &[u8]) -> Option<LowerIdentity> {
        let record = str::from_utf8(record).ok()?.strip_prefix("2 ")?;
        let (identity, name) = record.split_once(' ')?;
        Some(LowerIdentity { identity: identity.to_owned(), name: name.to_owned() })
    }
}

/// What becomes of writes over a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UpperPlace {
    /// They are kept in this directory, with overlayfs's upper layer and work directory in it, for the next time.
    Kept(PathBuf),
    /// Ephemeral: in a directory of their own in this one, until the end.
    ThrownAway(PathBuf),
    /// Ephemeral: in this process's memory, at most so many bytes, until the end.
    InMemory(u64),
}

impl UpperPlace {
    /// Refuses a place inside the tree that must stay unchanged: each write would change the tree and appear in it.
    pub fn check_apart_from(&self, tree: &Path) -> Result<(), UpperError> {
        let (UpperPlace::Kept(place) | UpperPlace::ThrownAway(place)) = self else { return Ok(()) };
        // A place that does not exist yet is where its parent is.
        let above = place.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (Ok(within), Ok(tree)) = (place.canonicalize().or_else(|_| above.canonicalize()), tree.canonicalize())
        else {
            return Ok(());
        };
        if !within.starts_with(&tree) {
            return Ok(());
        }
        Err(UpperError::WithinTree { place: place.clone(), tree })
    }
}

impl fmt::Display for UpperPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UpperPlace::Kept(path) => write!(f, "writes are kept in {}", shown(path)),
            UpperPlace::ThrownAway(_) | UpperPlace::InMemory(_) => f.write_str("writes are thrown away at the end"),
        }
    }
}

/// How clients use what is written over a tree.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    /// Who else changes what a client sees.
    pub changes: Changes,
    /// They read and write files without opening them. The layer below must let them do so.
    pub without_opening: bool,
    /// Clients open directories, so that listings can refresh attributes.
    pub opens_directories: bool,
}

impl Clients {
    fn served_by(self, overlay: Overlay) -> Arc<dyn FileSystem> {
        let overlay = overlay.changed_by(self.changes);
        let overlay = if self.without_opening { overlay.without_opening() } else { overlay };
        Arc::new(if self.opens_directories { overlay.opening_directories() } else { overlay })
    }
}

/// What must live as long as the overlay.
pub struct Upper {
    path: Option<PathBuf>,
    #[expect(dead_code, reason = "it is there to be dropped")]
    hold: Hold,
}

/// What holds a layer's directory.
enum Hold {
    /// The lock that keeps other servers from writing to the same directory.
    Kept(FileLock),
    /// A directory that is removed at the end, however the process ends.
    ThrownAway(#[expect(dead_code, reason = "it is there to be dropped")] Guard),
    /// Nothing.
    InMemory,
    /// A file system in memory, mounted nowhere.
    FileSystem(#[expect(dead_code, reason = "it is there to be dropped")] Detached),
}

/// Two directories, as the kernel's overlayfs takes them.
pub struct KernelLayer {
    /// The upper layer.
    pub upper: OwnedFd,
    /// Where changes are prepared.
    pub work: OwnedFd,
}

impl Upper {
    /// A layer over `lower` for such `clients`; its `identity` is written down if the layer is kept, and must be given then.
    pub fn over(
        lower: Arc<dyn FileSystem>,
        place: &UpperPlace,
        clients: Clients,
        identity: Option<&LowerIdentity>,
    ) -> Result<(Arc<dyn FileSystem>, Upper), UpperError> {
        if let UpperPlace::InMemory(bytes) = place {
            check_size(*bytes)?;
            let fail = |errno: Errno| UpperError::Memory(errno.into());
            let layer = MemoryFiles::new(*bytes);
            let layer = if clients.without_opening { layer.without_opening() } else { layer };
            let overlay = Overlay::new(lower, Arc::new(layer), true).map_err(fail)?.thrown_away();
            return Ok((clients.served_by(overlay), Upper { path: None, hold: Hold::InMemory }));
        }
        let (path, hold) = Upper::take(place, identity)?;
        let there = if let Hold::Kept(directory) = &hold { by_number(&**directory) } else { path.clone() };
        let overlay = overlay_in(&there, lower, clients.without_opening).map_err(|error| cannot_keep(&path, error))?;
        let overlay = if let Hold::ThrownAway(_) = hold { overlay.thrown_away() } else { overlay };
        Ok((clients.served_by(overlay), Upper { path: Some(path), hold }))
    }

    /// The upper layer and work directory of a kernel overlayfs over `lower`, in the same place and state as for
    /// [`Upper::over`].
    pub fn for_kernel(
        lower: Arc<dyn FileSystem>,
        place: &UpperPlace,
        identity: Option<&LowerIdentity>,
    ) -> Result<(KernelLayer, Upper), UpperError> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let (directory, upper) = match place {
            UpperPlace::InMemory(bytes) => {
                check_size(*bytes)?;
                // As many as there would be if each had a block.
                let memory = Detached::memory(*bytes, (bytes / 1024).max(64));
                let memory = memory.map_err(|error| UpperError::Memory(io::Error::other(error.to_string())))?;
                let root = memory.root().try_clone_to_owned().map_err(UpperError::Memory)?;
                (root, Upper { path: None, hold: Hold::FileSystem(memory) })
            }
            place => {
                let (path, hold) = Upper::take(place, identity)?;
                let directory = match &hold {
                    Hold::Kept(directory) => directory.try_clone().map(OwnedFd::from),
                    _ => open(&path, flags, Mode::empty()).map_err(io::Error::from),
                };
                let directory = directory.map_err(|error| cannot_keep(&path, error))?;
                (directory, Upper { path: Some(path), hold })
            }
        };
        let fail = |error| cannot_keep(upper.path.as_deref().unwrap_or(Path::new("memory")), error);
        overlay_in(&by_number(&directory), lower, false).map_err(fail)?;
        let part = |name: &str| openat(&directory, name, flags, Mode::empty()).map_err(|errno| fail(errno.into()));
        Ok((KernelLayer { upper: part("upper")?, work: part("work")? }, upper))
    }

    /// Takes a directory for the layer.
    fn take(place: &UpperPlace, identity: Option<&LowerIdentity>) -> Result<(PathBuf, Hold), UpperError> {
        match place {
            UpperPlace::InMemory(_) => Err(UpperError::Memory(io::ErrorKind::InvalidInput.into())),
            UpperPlace::Kept(path) => {
                let identity = identity.ok_or_else(|| cannot_keep(path, Errno::INVAL.into()))?;
                let is_new = make_directory(path)?;
                let claimed = claim(path, identity).inspect_err(|_| {
                    if is_new {
                        // Nobody needs it. Where others have put something into it, it stays.
                        let _ = fs::remove_dir(path);
                    }
                });
                Ok((path.clone(), Hold::Kept(claimed?)))
            }
            UpperPlace::ThrownAway(within) => {
                let (directory, guard) = thrown_away_directory(within)?;
                Ok((directory, Hold::ThrownAway(guard)))
            }
        }
    }

    /// The directory that writes are in, if they are in one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

/// The overlay whose upper layer and work directory are in a directory; they are created or cleaned up.
fn overlay_in(directory: &Path, lower: Arc<dyn FileSystem>, without_opening: bool) -> io::Result<Overlay> {
    let options = HostOptions { changes: Changes::Guest, without_opening, ..HostOptions::default() };
    let layer = HostDirectory::new(directory, options).map_err(|error| error.error)?;
    Ok(Overlay::new(lower, Arc::new(layer), is_root())?)
}

/// A directory that is open: once more by its name could be another one.
fn by_number(directory: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

fn check_size(bytes: u64) -> Result<(), UpperError> {
    if bytes > 0 {
        return Ok(());
    }
    Err(UpperError::NoMemory)
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn cannot_keep(path: &Path, error: io::Error) -> UpperError {
    PathError::new(path, "cannot keep writes there", error).into()
}

/// Makes the directory, unless it is there already. Returns whether it is new.
fn make_directory(path: &Path) -> Result<bool, UpperError> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        made => made.map(|()| true).map_err(|error| cannot_keep(path, error)),
    }
}

/// Claims a directory, made before if need be, for the writes over one tree: stores the tree's identity in an extended attribute that the
/// kernel's overlayfs ignores. Returns the lock.
fn claim(path: &Path, lower: &LowerIdentity) -> Result<FileLock, UpperError> {
    let attribute = if is_root() { "trusted.inarch.lower" } else { "user.inarch.lower" };
    let fail = |errno: Errno| cannot_keep(path, errno.into());
    let directory = open_directory(path).map_err(|error| cannot_keep(path, error))?;
    refuse_what_others_enter(path, &directory)?;
    lock(path, &directory)?;
    /// The most bytes of a stored identity: a path, and some more.
    const LONGEST: usize = 8192;
    let mut record = vec![0; LONGEST];
    match fgetxattr(directory.as_fd(), attribute, &mut record[..]) {
        Ok(length) => {
            record.truncate(length);
            refuse_another(path, LowerIdentity::parse(&record).as_ref(), lower)?;
        }
        Err(Errno::NODATA) => {
            refuse_other_things(path, &directory)?;
            let record = lower.record();
            fsetxattr(directory.as_fd(), attribute, record.as_bytes(), XattrFlags::empty()).map_err(fail)?;
        }
        Err(errno) => return Err(fail(errno)),
    }
    Ok(FileLock::of(directory.into()))
}

/// Refuses a directory that other users can enter, or could open to themselves. Files in it keep the owners and permissions of the
/// tree, but not the tree's own parents, and new ones may be devices or set-user-ID programs. The directory may serve somebody else, so
/// its permissions are not changed here.
fn refuse_what_others_enter(path: &Path, directory: &OwnedFd) -> Result<(), UpperError> {
    let fail = |errno: Errno| cannot_keep(path, errno.into());
    let stat = fstat(directory).map_err(fail)?;
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(UpperError::OtherUser { place: path.to_owned() });
    }
    // The mask of an access control list is shown as the group's permissions.
    if stat.st_mode & 0o077 != 0 {
        return Err(UpperError::OpenToOthers { place: path.to_owned(), mode: stat.st_mode & 0o7777 });
    }
    Ok(())
}

/// Refuses a directory that was not made for writes over a tree.
fn refuse_other_things(path: &Path, directory: &OwnedFd) -> Result<(), UpperError> {
    let fail = |errno: Errno| cannot_keep(path, errno.into());
    for entry in Dir::read_from(directory).map_err(fail)? {
        let name = OsString::from_vec(entry.map_err(fail)?.file_name().to_bytes().to_vec());
        if ![".", "..", "upper", "work"].contains(&&*name.to_string_lossy()) {
            return Err(UpperError::OtherThings { place: path.to_owned(), name });
        }
    }
    Ok(())
}

/// Takes the lock of the one server that may write to the directory. A server that is ending, for instance after
/// umount(8), which does not wait, still holds it for a moment.
fn lock(path: &Path, directory: &OwnedFd) -> Result<(), UpperError> {
    // Tests only wait to see that it is refused.
    const PATIENCE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5000 });
    const PAUSE: Duration = Duration::from_millis(10);
    let begun = Instant::now();
    loop {
        match flock(directory, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) if begun.elapsed() < PATIENCE => thread::sleep(PAUSE),
            Err(Errno::AGAIN) => {
                return Err(UpperError::InUse { place: path.to_owned() });
            }
            locked => return locked.map_err(|errno| cannot_keep(path, errno.into())),
        }
    }
}

fn refuse_another(path: &Path, known: Option<&LowerIdentity>, lower: &LowerIdentity) -> Result<(), UpperError> {
    let belongs = match known {
        Some(known) if known.identity == lower.identity => return Ok(()),
        Some(known) if known.name == lower.name => "an earlier state of it".to_owned(),
        Some(known) => known.name.clone(),
        None => "something that another version of inarch knows".to_owned(),
    };
    Err(UpperError::OtherTree { place: path.to_owned(), tree: lower.name.clone(), belongs })
}

/// A new directory, and the guard that removes it. The guard learns of it first, so that a killed process never
/// leaves it behind.
fn thrown_away_directory(within: &Path) -> Result<(PathBuf, Guard), UpperError> {
    let within = within.canonicalize().map_err(|error| cannot_keep(within, error))?;
    let number = RandomState::new().hash_one(std::process::id());
    let path = within.join(format!("inarch-mount-{number:016x}"));
    let guard = Guard::of_directory(&path)?;
    match fs::DirBuilder::new().mode(0o700).create(&path) {
        Ok(()) => Ok((path, guard)),
        Err(error) => {
            // It exists, and belongs to somebody else.
            guard.dismiss();
            Err(cannot_keep(&within, error))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_record_says_what_it_said() {
        let tree = LowerIdentity::of_tree(&[7; 32], Path::new("/a path/x.tar"));
        assert_eq!(LowerIdentity::parse(tree.record().as_bytes()), Some(tree.clone()));
        let directory = LowerIdentity::of_directory(Path::new("/usr")).unwrap();
        assert_eq!(LowerIdentity::parse(directory.record().as_bytes()), Some(directory.clone()));
        assert_eq!(LowerIdentity::of_directory(Path::new("/usr/.")).unwrap(), directory);
        assert_ne!(LowerIdentity::of_directory(Path::new("/etc")).unwrap().identity, directory.identity);
        for other in [&b""[..], b"1 a b", b"2 a", b"2 \xff b"] {
            assert_eq!(LowerIdentity::parse(other), None);
        }
    }

    #[test]
    fn nobody_else_reaches_what_is_written_over_a_tree() {
        let parent = tempfile::tempdir_in("/var/tmp").unwrap();
        let (tree, over) = (parent.path().join("tree"), parent.path().join("over"));
        let make = |path: &Path, mode| {
            fs::create_dir(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        make(&tree, 0o777);
        let clients = Clients { changes: Changes::Guest, without_opening: false, opens_directories: false };
        let lower = || Arc::new(HostDirectory::new(&tree, HostOptions::default()).unwrap());
        let identity = LowerIdentity::of_directory(&tree).unwrap();
        for place in [UpperPlace::Kept(over.clone()), UpperPlace::ThrownAway(parent.path().to_owned())] {
            let (_, upper) = Upper::over(lower(), &place, clients, Some(&identity)).unwrap();
            let path = upper.path().unwrap().to_owned();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o700, "{place:?}");
            assert_eq!(fs::metadata(path.join("upper")).unwrap().mode() & 0o7777, 0o777, "{place:?}");
        }
        // A directory with other content stays as it is.
        let message = |path: &Path| {
            let made = Upper::over(lower(), &UpperPlace::Kept(path.to_owned()), clients, Some(&identity));
            made.map(drop).map_err(|error| error.to_string())
        };
        let other = parent.path().join("other");
        make(&other, 0o700);
        for name in ["upper", "work"] {
            make(&other.join(name), 0o755);
        }
        message(&other).unwrap();
        let other = parent.path().join("documents");
        make(&other, 0o700);
        fs::write(other.join("letter"), "dear").unwrap();
        assert!(message(&other).unwrap_err().contains("other things in it (letter)"));
        assert_eq!(fs::read_dir(&other).unwrap().count(), 1);
        // Its other users would be shut out.
        for mode in [0o1777, 0o777, 0o755, 0o710, 0o2701, 0o704] {
            let shared = parent.path().join(format!("shared-{mode:o}"));
            make(&shared, mode);
            let refusal = message(&shared).unwrap_err();
            assert!(refusal.contains(&format!("other users can enter it (mode {mode:04o})")), "{refusal}");
            assert_eq!(fs::metadata(&shared).unwrap().mode() & 0o7777, mode);
            assert_eq!(fs::read_dir(&shared).unwrap().count(), 0);
        }
        if is_root() {
            let theirs = parent.path().join("theirs");
            fs::create_dir(&theirs).unwrap();
            std::os::unix::fs::chown(&theirs, Some(65534), None).unwrap();
            assert!(message(&theirs).unwrap_err().contains("another user's"));
            // Nor does a link of theirs choose one of ours.
            let (empty, link) = (parent.path().join("empty"), parent.path().join("link"));
            make(&empty, 0o700);
            std::os::unix::fs::symlink(&empty, &link).unwrap();
            message(&link).unwrap();
            fs::remove_dir_all(&empty).unwrap();
            make(&empty, 0o700);
            std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
            assert!(message(&link).unwrap_err().contains("a symbolic link there belongs to user 65534"));
            assert_eq!(fs::read_dir(&empty).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_directory_is_for_the_writes_over_one_tree() {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let (one, other) = ([1; 32], [2; 32]);
        let of = |fingerprint, name: &str| LowerIdentity::of_tree(fingerprint, Path::new(name));
        let claim = |lower| claim(directory.path(), &lower).map_err(|error| error.to_string());
        let held = claim(of(&one, "a.tar")).unwrap();
        assert!(claim(of(&one, "a.tar")).unwrap_err().contains("another inarch"));
        drop(held);
        claim(of(&one, "moved.tar")).unwrap();
        assert!(claim(of(&other, "b.tar")).unwrap_err().contains("those over a.tar"));
        assert!(claim(of(&other, "a.tar")).unwrap_err().contains("an earlier state"));
    }
}
