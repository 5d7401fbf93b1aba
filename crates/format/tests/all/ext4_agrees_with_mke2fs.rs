//! The kernel reads the same from a planned device as from an image that `mke2fs -d` made of the same directory.
//!
//! Known differences, which the comparison leaves out:
//!
//! - mke2fs stores whole seconds and 32 bits of them: times are compared in seconds, and lie between 1901 and 2038.
//! - It gives the root directory a mode, an owner and times of its own; only the root's names are compared.
//! - It makes a symlink of its own for every hard link to one.
//! - It stores no block of zeros, even if the file has one, and no preallocated block; the plan opens no file and
//!   takes what the host says is allocated, and a file as whole if the host counts as many blocks as that needs,
//!   those of its attributes included. See [`zeros_that_the_host_stores`].
//! - It makes no hashed directories, numbers inodes in another order, and keeps the access time, where the plan
//!   has the modification's.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use crate::common::mount::{Mount, host_content, xattrs};
use crate::common::odd::acl;
use crate::common::*;
use inarch_format::ext4::{Options, plan};
use inarch_tree::Xattr;
use inarch_tree::scan::{ScanOptions, scan};
use proptest::prelude::*;
use rustix::fs::{AtFlags, CWD, FileType, Mode, SeekFrom, Timespec, XattrFlags};

/// Whether this host can do what the test `name` needs; says why not.
fn possible(name: &str) -> bool {
    let reason = if !rustix::process::geteuid().is_root() {
        "device nodes, owners and mounts need root"
    } else if Command::new("mke2fs").arg("-V").output().is_err() {
        "mke2fs is not installed"
    } else {
        return true;
    };
    eprintln!("skipped: {name}: {reason}");
    false
}

/// A range of a file that is not a hole, and the hash of its bytes.
type Data = (u64, u64, u64);

/// What a mounted file system says of a name.
#[derive(Debug, PartialEq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    size: Option<u64>,
    mtime: i64,
    ctime: i64,
    /// Not of symlinks, whose hard links mke2fs does not keep.
    links: Option<u64>,
    /// The first path with the same inode number; its own for a symlink.
    linked_with: PathBuf,
    device: u64,
    target: PathBuf,
    /// Names, and lengths and hashes of values.
    xattrs: Vec<(String, usize, u64)>,
    data: Vec<Data>,
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

fn short(xattr: &Xattr) -> (String, usize, u64) {
    (String::from_utf8_lossy(&xattr.name).into_owned(), xattr.value.len(), hash(&xattr.value))
}

fn data(path: &Path) -> Vec<Data> {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let mut list = Vec::new();
    let mut end = 0;
    while end < size
        && let Ok(start) = rustix::fs::seek(&file, SeekFrom::Data(end))
    {
        end = rustix::fs::seek(&file, SeekFrom::Hole(start)).unwrap();
        let mut bytes = vec![0; (end - start) as usize];
        file.read_exact_at(&mut bytes, start).unwrap();
        list.push((start, end - start, hash(&bytes)));
    }
    list
}

/// What a mounted image says of every name but the root and `lost+found`.
fn seen(root: &Path) -> BTreeMap<PathBuf, Seen> {
    let mut all = BTreeMap::new();
    let mut first_paths = BTreeMap::new();
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let mut names: Vec<_> =
            fs::read_dir(root.join(&directory)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        for name in names.into_iter().filter(|name| !(directory == Path::new("") && name == "lost+found")) {
            let path = directory.join(name);
            let full = root.join(&path);
            let metadata = fs::symlink_metadata(&full).unwrap();
            let kind = metadata.file_type();
            let linked_with = match first_paths.entry(metadata.ino()).or_insert_with(|| path.clone()) {
                _ if kind.is_symlink() => path.clone(),
                first => first.clone(),
            };
            let seen = Seen {
                mode: metadata.mode(),
                owner: (metadata.uid(), metadata.gid()),
                size: (!kind.is_dir()).then_some(metadata.len()),
                mtime: metadata.mtime(),
                ctime: metadata.ctime(),
                links: (!kind.is_symlink()).then(|| metadata.nlink()),
                linked_with,
                device: metadata.rdev(),
                target: if kind.is_symlink() { fs::read_link(&full).unwrap() } else { PathBuf::new() },
                xattrs: xattrs(&full).iter().map(short).collect(),
                data: if kind.is_file() { data(&full) } else { Vec::new() },
            };
            if kind.is_dir() {
                directories.push(path.clone());
            }
            all.insert(path, seen);
        }
    }
    all
}

/// A directory of this host, and both images of it.
struct Pair {
    scratch: Scratch,
}

impl Pair {
    /// Makes a directory with `make`, and both images of it; `e2fsck` must find nothing in either.
    fn new(make: impl FnOnce(&Path)) -> Pair {
        let pair = Pair { scratch: Scratch::new() };
        let source = pair.source();
        fs::create_dir(&source).unwrap();
        make(&source);
        let tree = Arc::new(scan(&source, &ScanOptions::default()).unwrap().tree);
        let planned = plan(tree.clone(), &Options { journal: Some(4 << 20), ..small() }).unwrap();
        dump(&planned.map, &pair.image("planned"), host_content(&source, &tree));

        let output = Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-b", "4096", "-I", "256", "-d"])
            .args([&source, &pair.image("built")])
            .arg("256M")
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        for name in ["planned", "built"] {
            assert_clean(&pair.image(name));
        }
        pair
    }

    fn source(&self) -> PathBuf {
        self.scratch.path("source")
    }

    fn image(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    fn mount(&self, name: &str) -> Mount {
        Mount::new(&self.image(name), "loop,ro").expect("root can mount")
    }

    /// Fails unless the kernel sees the same in both.
    fn compare(&self) {
        let (planned, built) = (self.mount("planned"), self.mount("built"));
        let (planned, built) = (seen(&planned.0), seen(&built.0));
        assert!(planned.keys().eq(built.keys()), "planned {:?}\nbuilt {:?}", planned.keys(), built.keys());
        for (path, seen) in &planned {
            assert!(*seen == built[path], "{path:?}\nplanned: {seen:?}\nbuilt:   {:?}", built[path]);
        }
    }
}

fn content(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i % 251) as u8 + 1).collect()
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap_or_else(|e| panic!("{path:?} {name}: {e}"));
}

fn make_node(path: &Path, kind: FileType, device: (u32, u32)) {
    rustix::fs::mknodat(CWD, path, kind, Mode::from_raw_mode(0o640), rustix::fs::makedev(device.0, device.1)).unwrap();
}

/// Sets both times; of a symlink, its own.
fn set_time(path: &Path, seconds: i64) {
    let time = Timespec { tv_sec: seconds, tv_nsec: 987_654_321 };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

#[test]
fn nodes_of_every_kind() {
    if !possible("nodes_of_every_kind") {
        return;
    }
    let pair = Pair::new(|root| {
        for size in [0, 1, 59, 60, 4095, 4096, 4097, 70_000, 5_000_000] {
            fs::write(root.join(format!("file-{size}")), content(size)).unwrap();
        }
        for length in [1, 59, 60, 61, 255, 4095] {
            symlink("t".repeat(length), root.join(format!("symlink-{length}"))).unwrap();
        }
        symlink(OsStr::from_bytes(b"\xFF\xFE\n/.."), root.join("symlink-odd")).unwrap();
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::hard_link(root.join("file-4097"), root.join("a/b/link-1")).unwrap();
        fs::hard_link(root.join("file-4097"), root.join("a/b/c/link-2")).unwrap();
        fs::hard_link(root.join("symlink-61"), root.join("a/link-to-symlink")).unwrap();
        make_node(&root.join("fifo"), FileType::Fifo, (0, 0));
        fs::hard_link(root.join("fifo"), root.join("a/fifo-2")).unwrap();
        make_node(&root.join("socket"), FileType::Socket, (0, 0));
        for (number, device) in [(0, 0), (1, 3), (255, 255), (256, 0), (4095, 1_048_575)].into_iter().enumerate() {
            make_node(&root.join(format!("char-{number}")), FileType::CharacterDevice, device);
            make_node(&root.join(format!("block-{number}")), FileType::BlockDevice, device);
        }
    });
    pair.compare();
    let planned = pair.mount("planned");
    let ino = |name| fs::symlink_metadata(planned.0.join(name)).unwrap().ino();
    assert_eq!(ino("symlink-61"), ino("a/link-to-symlink"));
}

#[test]
fn modes_owners_and_times() {
    if !possible("modes_owners_and_times") {
        return;
    }
    let pair = Pair::new(|root| {
        let owners = [(0, 0), (1000, 1000), (65_535, 65_536), (u32::MAX - 1, u32::MAX - 1)];
        for (number, mode) in [0o000, 0o7777, 0o4755, 0o2750, 0o1777, 0o644].into_iter().enumerate() {
            for kind in ["file", "directory"] {
                let path = root.join(format!("{kind}-{mode:o}"));
                if kind == "file" { fs::write(&path, kind) } else { fs::create_dir(&path) }.unwrap();
                let (uid, gid) = owners[number % owners.len()];
                lchown(&path, Some(uid), Some(gid)).unwrap();
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            }
        }
        for seconds in [i64::from(i32::MIN), -1, 0, 1, 1_700_000_000, i64::from(i32::MAX)] {
            let path = root.join(format!("time-{seconds}"));
            fs::write(&path, "").unwrap();
            set_time(&path, seconds);
        }
        symlink("nowhere", root.join("symlink")).unwrap();
        lchown(root.join("symlink"), Some(70_000), Some(80_000)).unwrap();
        set_time(&root.join("symlink"), 1_234_567_890);
        set_time(&root.join("directory-1777"), 1_000_000_000);
    });
    pair.compare();
}

#[test]
fn nanoseconds_and_times_after_2038_are_kept_by_the_plan() {
    if !possible("nanoseconds_and_times_after_2038_are_kept_by_the_plan") {
        return;
    }
    let times = [(1_700_000_000, 123_456_789), (i64::from(i32::MAX) + 1, 1), (13_000_000_000, 999_999_999)];
    let pair = Pair::new(|root| {
        for (seconds, nanoseconds) in times {
            let time = std::time::UNIX_EPOCH + std::time::Duration::new(seconds as u64, nanoseconds);
            let file = File::create(root.join(seconds.to_string())).unwrap();
            file.set_times(FileTimes::new().set_accessed(time).set_modified(time)).unwrap();
        }
    });
    let planned = pair.mount("planned");
    for (seconds, nanoseconds) in times {
        let metadata = fs::metadata(planned.0.join(seconds.to_string())).unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (seconds, i64::from(nanoseconds)));
    }
}

#[test]
fn extended_attributes() {
    if !possible("extended_attributes") {
        return;
    }
    let capability: Vec<u8> = [0x0200_0001u32, 1 << 13, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
    let pair = Pair::new(|root| {
        fs::create_dir(root.join("directory")).unwrap();
        for name in ["one", "in-inode", "in-block", "in-block-too", "both", "empty", "acl", "capability"] {
            fs::write(root.join(name), name).unwrap();
        }
        set_xattr(&root.join("one"), "user.one", b"1");
        for (number, name) in ["user.a", "trusted.a", "security.a"].into_iter().enumerate() {
            set_xattr(&root.join("in-inode"), name, &content(number + 3));
            set_xattr(&root.join("in-block"), name, &content(900));
            set_xattr(&root.join("in-block-too"), name, &content(900));
        }
        set_xattr(&root.join("both"), "user.small", b"small");
        set_xattr(&root.join("both"), "user.large", &content(3000));
        set_xattr(&root.join("empty"), "user.empty", b"");
        set_xattr(&root.join("acl"), "system.posix_acl_access", &acl());
        set_xattr(&root.join("directory"), "system.posix_acl_access", &acl());
        set_xattr(&root.join("directory"), "system.posix_acl_default", &acl());
        set_xattr(&root.join("directory"), "user.long name with spaces \u{e9}", &content(100));
        set_xattr(&root.join("capability"), "security.capability", &capability);
        symlink("one", root.join("symlink")).unwrap();
        symlink("l".repeat(100), root.join("long-symlink")).unwrap();
        make_node(&root.join("fifo"), FileType::Fifo, (0, 0));
        make_node(&root.join("char"), FileType::CharacterDevice, (1, 3));
        for name in ["symlink", "long-symlink", "fifo", "char"] {
            set_xattr(&root.join(name), "trusted.of-a-node", name.as_bytes());
            set_xattr(&root.join(name), "security.of-a-node", &content(700));
        }
    });
    pair.compare();
}

/// Writes `length` bytes at each offset of a file of `size` bytes, with holes between.
fn write_sparse(path: &Path, size: u64, pieces: impl IntoIterator<Item = (u64, usize)>) {
    let file = File::create(path).unwrap();
    for (offset, length) in pieces {
        file.write_all_at(&content(length), offset).unwrap();
    }
    file.set_len(size).unwrap();
    // Until blocks are allocated, the host may give no answer about holes that stays.
    file.sync_all().unwrap();
}

#[test]
fn holes() {
    if !possible("holes") {
        return;
    }
    let pair = Pair::new(|root| {
        let sparse = |name: &str, size, pieces: &[(u64, usize)]| {
            write_sparse(&root.join(name), size, pieces.iter().copied());
        };
        sparse("all", 1 << 20, &[]);
        sparse("less-than-a-block", 100, &[]);
        sparse("first", 10_000, &[(8192, 10)]);
        sparse("last", 1_000_001, &[(0, 10)]);
        sparse("middle", 40_960, &[(0, 8192), (20_000, 20_960)]);
        sparse("terabyte", 1 << 40, &[(1 << 30, 5000), ((1 << 40) - 1, 1)]);
        for count in [4u64, 5, 340, 341, 3000] {
            write_sparse(&root.join(format!("pieces-{count}")), count * 12_288, (0..count).map(|i| (i * 12_288, 10)));
        }
    });
    pair.compare();
}

#[test]
fn zeros_that_the_host_stores() {
    if !possible("zeros_that_the_host_stores") {
        return;
    }
    let names = ["zeros", "zeros-within", "allocated", "hole-and-attributes"];
    let pair = Pair::new(|root| {
        fs::write(root.join("zeros"), vec![0; 100_000]).unwrap();
        fs::write(root.join("zeros-within"), [content(10_000), vec![0; 50_000], content(10_000)].concat()).unwrap();
        let allocated = File::create(root.join("allocated")).unwrap();
        rustix::fs::fallocate(&allocated, rustix::fs::FallocateFlags::empty(), 0, 50_000).unwrap();
        allocated.write_all_at(&content(100), 20_000).unwrap();
        write_sparse(&root.join("hole-and-attributes"), 8192, [(0, 4096)]);
        set_xattr(&root.join("hole-and-attributes"), "user.large", &content(2000));
    });
    let (planned, built) = (pair.mount("planned"), pair.mount("built"));
    for name in names {
        let original = fs::read(pair.source().join(name)).unwrap();
        assert!(fs::read(planned.0.join(name)).unwrap() == original, "{name} differs from its source");
        assert!(fs::read(built.0.join(name)).unwrap() == original, "{name} by mke2fs differs from its source");
    }
}

#[test]
fn large_directories_and_odd_names() {
    if !possible("large_directories_and_odd_names") {
        return;
    }
    let pair = Pair::new(|root| {
        fs::create_dir_all(root.join("many")).unwrap();
        for i in 0..3000 {
            fs::write(root.join(format!("many/{i}-{}", "n".repeat(i % 200))), "").unwrap();
        }
        fs::create_dir_all(root.join("directories")).unwrap();
        for i in 0..500 {
            fs::create_dir(root.join(format!("directories/{i}"))).unwrap();
        }
        let longest = [b'x'; 255];
        let odd: [&[u8]; 13] = [
            b" ",
            b"-",
            b"...",
            b".hidden",
            b"new\nline",
            b"tab\t",
            b"back\\slash",
            b"*?[",
            b"\x01\x7F",
            b"\xFF\xFE",
            b"\xC3\xA9",
            b"#11",
            &longest,
        ];
        for name in odd {
            fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
        }
        fs::create_dir_all(root.join("d/".repeat(100))).unwrap();
    });
    pair.compare();
    assert!(debugfs(&pair.image("planned"), "stat many").contains("Flags: 0x81000"), "the directory has no index");
}

/// One thing to make in a random directory.
#[derive(Clone, Debug)]
struct Step {
    /// Which of the directories made so far it goes into.
    parent: prop::sample::Index,
    name: Vec<u8>,
    kind: Kind,
    mode: u32,
    owner: (u32, u32),
    mtime: i32,
    xattrs: Vec<(&'static str, usize)>,
}

#[derive(Clone, Debug)]
enum Kind {
    /// A regular file with data at (offset, length).
    File {
        size: u64,
        pieces: Vec<(u64, usize)>,
    },
    Directory,
    Symlink(Vec<u8>),
    Node(FileType, (u32, u32)),
    /// Another name of something made before that is no directory.
    Link(prop::sample::Index),
}

impl Step {
    fn is_whole_file(&self) -> bool {
        matches!(&self.kind, Kind::File { size, pieces } if *pieces == [(0, *size as usize)])
    }
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    let byte = (1..=255u8).prop_map(|byte| if byte == b'/' { b'_' } else { byte });
    let length = prop_oneof![9 => 1..20usize, 1 => 200..256usize];
    length.prop_flat_map(move |length| prop::collection::vec(byte.clone(), length))
}

fn kind() -> impl Strategy<Value = Kind> {
    let pieces = prop::collection::vec((0..200_000u64, 1..20_000usize), 0..8);
    let device = (0..4096u32, 0..1_048_576u32);
    let node = prop::sample::select(vec![FileType::CharacterDevice, FileType::BlockDevice, FileType::Fifo]);
    prop_oneof![
        3 => (0..20_000usize).prop_map(|size| Kind::File { size: size as u64, pieces: vec![(0, size)] }),
        3 => (0..200_000u64, pieces).prop_map(|(size, pieces)| Kind::File { size, pieces }),
        3 => Just(Kind::Directory),
        1 => prop::collection::vec(1..=255u8, 1..200).prop_map(Kind::Symlink),
        1 => (node, device).prop_map(|(kind, device)| Kind::Node(kind, device)),
        2 => any::<prop::sample::Index>().prop_map(Kind::Link),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let names = ["user.a", "user.b", "trusted.c", "security.d"];
    let xattrs = prop::collection::vec((prop::sample::select(names.to_vec()), 0..700usize), 0..4);
    let attributes = (0..0o10_000u32, (0..200_000u32, 0..200_000u32), any::<i32>(), xattrs);
    let step = (any::<prop::sample::Index>(), name(), kind(), attributes).prop_map(
        |(parent, name, kind, (mode, owner, mtime, xattrs))| Step { parent, name, kind, mode, owner, mtime, xattrs },
    );
    prop::collection::vec(step, 0..120)
}

/// Makes what a step says; `false` if its name is taken, as `.` and `..` are, or it has nothing to link to.
fn make(step: &Step, path: &Path, others: &[PathBuf]) -> bool {
    if fs::symlink_metadata(path).is_ok() {
        return false;
    }
    match &step.kind {
        Kind::File { size, pieces } => {
            // What is written and then cut off would leave blocks of zeros.
            let within = |(at, length): &(u64, usize)| (*at, (*length).min(size.saturating_sub(*at) as usize));
            write_sparse(path, *size, pieces.iter().map(within));
        }
        Kind::Directory => fs::create_dir(path).unwrap(),
        Kind::Symlink(target) => symlink(OsStr::from_bytes(target), path).unwrap(),
        Kind::Node(kind, device) => {
            make_node(path, *kind, if *kind == FileType::Fifo { (0, 0) } else { *device });
        }
        Kind::Link(_) if others.is_empty() => return false,
        Kind::Link(index) => fs::hard_link(index.get(others), path).unwrap(),
    }
    true
}

/// Gives what a step made its attributes.
fn dress(step: &Step, path: &Path) {
    let kind = fs::symlink_metadata(path).unwrap().file_type();
    // A sparse file's attributes fit into its inode: the host counts an attribute block among the file's.
    let (count, length_max) = match step.kind {
        Kind::Link(_) => (0, 0),
        Kind::File { .. } if !step.is_whole_file() => (1, 40),
        _ => (usize::MAX, usize::MAX),
    };
    for (name, length) in step.xattrs.iter().take(count) {
        if kind.is_file() || kind.is_dir() || !name.starts_with("user.") {
            set_xattr(path, name, &content(*length.min(&length_max)));
        }
    }
    lchown(path, Some(step.owner.0), Some(step.owner.1)).unwrap();
    if !kind.is_symlink() {
        fs::set_permissions(path, Permissions::from_mode(step.mode)).unwrap();
    }
}

fn make_all(root: &Path, steps: &[Step]) {
    let mut directories = vec![root.to_owned()];
    let mut others = Vec::new();
    let mut made = Vec::new();
    for step in steps {
        let path = step.parent.get(&directories).join(OsStr::from_bytes(&step.name));
        // Below PATH_MAX, wherever an image is mounted.
        let too_long = path.as_os_str().len() > 3000;
        if too_long || !make(step, &path, &others) {
            continue;
        }
        dress(step, &path);
        if matches!(step.kind, Kind::Directory) {
            directories.push(path.clone())
        } else {
            others.push(path.clone())
        }
        made.push((path, step.mtime));
    }
    for (path, mtime) in made {
        set_time(&path, i64::from(mtime));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, max_shrink_iters: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_directories(steps in steps()) {
        if possible("random_directories") {
            Pair::new(|root| make_all(root, &steps)).compare();
        }
    }
}
