//! The content of a directory as comparable data, without what a tool or a format cannot keep.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::host;
use super::mounted::is_unmounted;

/// One name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Type and permissions.
    pub mode: u32,
    pub owner: (u32, u32),
    /// Seconds and nanoseconds.
    pub mtime: (i64, i64),
    /// A regular file's length and a hash of its bytes.
    pub content: Option<(u64, u64)>,
    pub target: Option<Vec<u8>>,
    pub device: u64,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The same for all names of an inode, and for no others.
    pub inode: u64,
}

/// The names below a directory, and its own, which is empty.
pub type Listing = BTreeMap<Vec<u8>, Facts>;

/// Takes something out of a listing that some tool or format cannot hold.
pub type Limit = fn(&mut Listing);

/// Everything that a listing has.
pub fn listing(root: &Path) -> Listing {
    let mut all = Listing::new();
    let mut pending = vec![Vec::new()];
    while let Some(name) = pending.pop() {
        let path = root.join(OsStr::from_bytes(&name));
        let facts = facts(&path);
        if facts.is(libc::S_IFDIR) {
            let entries = std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().file_name());
            // ext4 has one of its own.
            let entries = entries.filter(|entry| !(name.is_empty() && entry == "lost+found"));
            let prefix = if name.is_empty() { Vec::new() } else { [&name, &b"/"[..]].concat() };
            pending.extend(entries.map(|entry| [&prefix, entry.as_bytes()].concat()));
        }
        all.insert(name, facts);
    }
    all
}

fn facts(path: &Path) -> Facts {
    let stat = path.symlink_metadata().unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let kind = stat.file_type();
    let content = kind.is_file().then(|| {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        let mut hasher = DefaultHasher::new();
        bytes.hash(&mut hasher);
        (bytes.len() as u64, hasher.finish())
    });
    Facts {
        mode: stat.mode(),
        owner: (stat.uid(), stat.gid()),
        mtime: (stat.mtime(), stat.mtime_nsec()),
        content,
        target: std::fs::read_link(path).ok().map(|target| target.as_os_str().as_bytes().to_vec()),
        device: if kind.is_char_device() || kind.is_block_device() { stat.rdev() } else { 0 },
        xattrs: xattrs(path),
        inode: stat.ino(),
    }
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65_536];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap_or_else(|error| panic!("{path:?}: {error}"));
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 65_536];
        let length = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value);
        value.truncate(length.unwrap_or_else(|error| panic!("{path:?}: {}: {error}", name.escape_ascii())));
        value
    };
    names.map(|name| (name.to_vec(), value(name))).collect()
}

impl Facts {
    /// Whether it is of a type, one of the `S_IF` constants.
    pub fn is(&self, kind: u32) -> bool {
        self.mode & libc::S_IFMT == kind
    }
}

/// A listing within limits.
pub fn within(listing: &Listing, limits: &[&[Limit]]) -> Listing {
    let mut listing = listing.clone();
    for limit in limits.iter().copied().flatten() {
        limit(&mut listing);
    }
    listing
}

/// Fails where two listings differ, with the names that do.
#[track_caller]
pub fn assert_same(found: &Listing, expected: &Listing, what: &str) {
    let (found, expected) = (numbered(found), numbered(expected));
    let names: BTreeSet<_> = found.keys().chain(expected.keys()).collect();
    let differences = names.into_iter().filter(|name| found.get(*name) != expected.get(*name));
    let show = |facts: Option<&Facts>| facts.map_or("nothing".to_owned(), |facts| format!("{facts:?}"));
    let line = |name: &Vec<u8>| {
        let (found, expected) = (show(found.get(name)), show(expected.get(name)));
        format!("{}:\n     found {found}\n  expected {expected}\n", name.escape_ascii())
    };
    let lines: Vec<String> = differences.map(line).collect();
    let first: String = lines.iter().take(5).map(String::as_str).collect();
    assert!(lines.is_empty(), "{what}: {} names differ\n{first}", lines.len());
}

/// The same listing with inodes numbered by their first names, so that those of different file systems compare.
fn numbered(listing: &Listing) -> Listing {
    let mut numbers = HashMap::new();
    let mut listing = listing.clone();
    for (number, facts) in listing.values_mut().enumerate() {
        facts.inode = *numbers.entry(facts.inode).or_insert(number as u64);
    }
    listing
}

/// A loop mount, undone when dropped.
pub struct Mount(pub PathBuf);

impl Mount {
    /// For reading.
    pub fn new(image: &Path, at: PathBuf) -> Mount {
        Mount::with(image, at, "loop,ro")
    }

    /// For writing too.
    pub fn writable(image: &Path, at: PathBuf) -> Mount {
        Mount::with(image, at, "loop")
    }

    fn with(image: &Path, at: PathBuf, options: &str) -> Mount {
        std::fs::create_dir_all(&at).unwrap();
        host("mount", &["-o", options, image.to_str().unwrap(), at.to_str().unwrap()], Path::new("/"));
        Mount(at)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = is_unmounted(&self.0);
        assert!(std::thread::panicking() || unmounted, "{:?} cannot be unmounted", self.0);
    }
}
