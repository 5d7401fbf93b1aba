//! A scan reports every kind of node with every attribute, on ext4 (or the file system of temporary files) and on
//! tmpfs.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use crate::support::{is_root, nodes_of, nodes_on_host, set_xattr};
use inarch_tree::scan::{ScanOptions, scan};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// `user::rw-,user:1000:r--,group::r--,mask::r--,other::---` as setxattr takes it.
const ACL: &[u8] = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\
\x10\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

fn make(root: &Path) {
    fs::write(root.join("plain"), "content").unwrap();
    fs::write(root.join("empty"), "").unwrap();
    for dir in ["a", "a/b", "a/b/c", "a-b", "z"] {
        fs::create_dir(root.join(dir)).unwrap();
    }
    fs::write(root.join("a/setuid"), "x").unwrap();
    fs::set_permissions(root.join("a/setuid"), PermissionsExt::from_mode(0o6755)).unwrap();
    fs::set_permissions(root.join("z"), PermissionsExt::from_mode(0o1777)).unwrap();
    fs::hard_link(root.join("plain"), root.join("a/b/plain")).unwrap();
    fs::hard_link(root.join("plain"), root.join("0")).unwrap();
    symlink("nowhere", root.join("dangling")).unwrap();
    symlink(OsStr::from_bytes(&[b'\xff'; 4000]), root.join("long")).unwrap();
    fs::hard_link(root.join("dangling"), root.join("a/dangling")).unwrap();
    fs::write(root.join(OsStr::from_bytes(b"\xff\xfe not utf-8 \n")), "x").unwrap();
    fs::write(root.join("n".repeat(255)), "x").unwrap();
    fs::write(root.join(OsStr::from_bytes(&[1])), "x").unwrap();
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let old = File::create(root.join("old")).unwrap();
    let before = UNIX_EPOCH - Duration::new(86_400 * 365, 1);
    old.set_times(FileTimes::new().set_modified(before)).unwrap();
    let many = root.join("many");
    fs::create_dir(&many).unwrap();
    for i in 0..3000 {
        fs::write(many.join(format!("file with a name of some length, number {i}")), "").unwrap();
    }
}

fn make_as_root(root: &Path) {
    let mode = Mode::from_raw_mode(0o640);
    mknodat(CWD, root.join("null"), FileType::CharacterDevice, mode, rustix::fs::makedev(1, 3)).unwrap();
    mknodat(CWD, root.join("disk"), FileType::BlockDevice, mode, rustix::fs::makedev(259, 0x12345)).unwrap();
    lchown(root.join("dangling"), Some(1234), Some(4_000_000_000)).unwrap();
    set_xattr(&root.join("dangling"), "trusted.of-a-link", b"\0\xff");
    set_xattr(&root.join("fifo"), "trusted.of-a-fifo", b"");
    let capability = b"\x01\0\0\x02\0\x20\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
    set_xattr(&root.join("a/setuid"), "security.capability", capability);
    set_xattr(&root.join("plain"), "system.posix_acl_access", ACL);
    set_xattr(&root.join("a"), "system.posix_acl_default", ACL);
}

fn compare(parent: &Path, user_xattrs: bool) {
    let root = tempfile::tempdir_in(parent).unwrap();
    make(root.path());
    if is_root("device nodes, foreign owners, trusted attributes and capabilities") {
        make_as_root(root.path());
    }
    if user_xattrs {
        set_xattr(&root.path().join("plain"), "user.short", b"1");
        set_xattr(&root.path().join("plain"), "user.longer-than-the-first-try", &[b'v'; 2000]);
        set_xattr(root.path(), "user.of-the-root", b"r");
        for i in 0..20 {
            set_xattr(&root.path().join("a"), &format!("user.one-of-many-whose-names-fill-a-list-{i}"), b"x");
        }
    }
    let scan = scan(root.path(), &ScanOptions::default()).unwrap();
    assert_eq!(scan.report.total(), 0, "{:?}", scan.report);
    let (found, expected) = (nodes_of(&scan.tree), nodes_on_host(root.path()));
    for (path, node) in &expected {
        assert_eq!(found.get(path), Some(node), "{}", path.escape_ascii());
    }
    assert_eq!(found.len(), expected.len());
    // An inode has 72 bytes, an entry 16; the names here are of some 45 bytes, and the sets of attributes are few.
    let entries = scan.tree.entry_count() as usize;
    let memory = scan.tree.memory_bytes();
    assert!((entries * 120..entries * 160).contains(&memory), "{memory} bytes for {entries} entries");
    let id = |path: &[u8]| scan.tree.lookup(path).unwrap();
    assert_eq!(id(b"plain"), id(b"a/b/plain"));
    assert_eq!(id(b"plain"), id(b"0"));
    assert_eq!(scan.tree.path(id(b"plain")), b"0");
    assert_eq!(id(b"dangling"), id(b"a/dangling"));
}

#[test]
fn on_the_file_system_of_temporary_files() {
    compare(&std::env::temp_dir(), true);
}

#[test]
fn on_tmpfs() {
    // User attributes came to tmpfs with Linux 6.6.
    let probe = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    let user_xattrs = rustix::fs::lsetxattr(probe.path(), "user.x", b"", flags).is_ok();
    compare(Path::new("/dev/shm"), user_xattrs);
}
