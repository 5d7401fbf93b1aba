//! A tree far deeper than PATH_MAX, wide at every level, is scanned with few descriptors.

use std::os::fd::OwnedFd;

use inarch_tree::FileType;
use inarch_tree::scan::{ScanOptions, scan};
use rustix::fs::{Mode, OFlags, mkdirat, openat};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const DEPTH: usize = 600;
const NAME: &str = "a directory whose name has some forty bytes";
const SIBLINGS: [&str; 3] = ["0", "b", "z"];

fn directory(parent: &OwnedFd, name: &str) -> OwnedFd {
    openat(parent, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

#[test]
fn under_a_limit_of_32() {
    // In memory: on a busy disk, making and removing 4,200 directories takes seconds.
    let root = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut at: OwnedFd = std::fs::File::open(root.path()).unwrap().into();
    let mode = Mode::from_raw_mode(0o755);
    for _ in 0..DEPTH {
        mkdirat(&at, NAME, mode).unwrap();
        for sibling in SIBLINGS {
            mkdirat(&at, sibling, mode).unwrap();
            mkdirat(&at, format!("{sibling}/below"), mode).unwrap();
        }
        at = directory(&at, NAME);
    }
    drop(at);
    let usual = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(32), ..usual }).unwrap();
    for threads in [1, 2, 4, 8] {
        let scan = scan(root.path(), &ScanOptions { threads, ..ScanOptions::default() }).unwrap();
        assert_eq!(scan.report.total(), 0, "{}", scan.report.left_out[0]);
        let tree = scan.tree;
        assert_eq!(tree.entry_count() as usize, DEPTH * (1 + 2 * SIBLINGS.len()));
        assert!(tree.inodes().all(|(_, inode)| inode.file_type() == FileType::Directory));
        let path = [NAME; DEPTH].join("/");
        let deepest = tree.lookup(path.as_bytes()).unwrap();
        assert_eq!(tree.path(deepest), path.as_bytes());
        assert_eq!(tree.entries(deepest).count(), 0);
    }
    // Removing the tree takes a descriptor for each level.
    setrlimit(Resource::Nofile, usual).unwrap();
}
