//! Mounts below the scanned directory are left out unless asked for: another file system, and a bind mount of the same
//! one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{is_root, names};
use inarch_tree::scan::{LeftOut, Reason, ScanOptions, scan};

/// A mount that is unmounted on drop.
struct Mount(PathBuf);

impl Mount {
    fn new(arguments: &[&str], point: &Path) -> Mount {
        fs::create_dir(point).unwrap();
        let status = Command::new("mount").args(arguments).arg(point).status().unwrap();
        assert!(status.success(), "mount {arguments:?}: {status}");
        Mount(point.to_owned())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // A process that another test starts has our descriptors until it runs its program.
        let status = Command::new("umount").arg("--lazy").arg(&self.0).status();
        assert!(status.is_ok_and(|status| status.success()) || std::thread::panicking());
    }
}

fn mount_point(path: &str) -> LeftOut {
    LeftOut { path: path.into(), reason: Reason::MountPoint, error: None }
}

#[test]
fn a_mount_point_is_an_empty_directory_and_reported() {
    if !is_root("mounts") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    fs::create_dir(path.join("source")).unwrap();
    fs::write(path.join("source/file"), "x").unwrap();
    let other = Mount::new(&["-t", "tmpfs", "-o", "mode=711", "tmpfs"], &path.join("other"));
    fs::write(other.0.join("inside"), "x").unwrap();
    let bind = Mount::new(&["--bind", path.join("source").to_str().unwrap()], &path.join("bind"));
    let scanned = scan(path, &ScanOptions::default()).unwrap();
    assert_eq!(names(&scanned.tree), ["bind", "other", "source", "source/file"]);
    assert_eq!(scanned.report.left_out, [mount_point("bind"), mount_point("other")]);
    let mounted = scanned.tree.inode(scanned.tree.lookup(b"other").unwrap());
    assert_eq!(mounted.mode() & 0o7777, 0o711, "the attributes are those of the mounted root");

    let all = scan(path, &ScanOptions { cross: true, ..ScanOptions::default() }).unwrap();
    assert_eq!(names(&all.tree), ["bind", "bind/file", "other", "other/inside", "source", "source/file"]);
    assert_eq!(all.report.total(), 0);

    let below = scan(&bind.0, &ScanOptions::default()).unwrap();
    assert_eq!(names(&below.tree), ["file"], "the scanned directory itself may be a mount point");
}

#[test]
fn directories_that_are_asked_to_be_left_out_stay_empty() {
    let root = tempfile::tempdir().unwrap();
    for dir in ["proc/1", "a/proc/1", "tmp", "run"] {
        fs::create_dir_all(root.path().join(dir)).unwrap();
    }
    fs::write(root.path().join("run/file"), "").unwrap();
    let leave_out = vec![b"proc".to_vec(), b"run".to_vec(), b"none".to_vec(), b"run/file".to_vec()];
    let scan = scan(root.path(), &ScanOptions { leave_out, ..ScanOptions::default() }).unwrap();
    assert_eq!(names(&scan.tree), ["a", "a/proc", "a/proc/1", "proc", "run", "tmp"]);
    assert_eq!(scan.report.count(Reason::AskedFor), 2);
}
