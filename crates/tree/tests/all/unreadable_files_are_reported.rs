//! Unreadable files are left out and reported, and never fail the scan.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use crate::support::{is_root, names, set_xattr};
use inarch_tree::scan::{LeftOut, Reason, Scan, ScanError, ScanOptions, scan};
use rustix::process::{Gid, Uid};

const NOBODY: u32 = 65534;
const GROUP: u32 = 4242;

/// Scans as the user `nobody` in the group 4242, if this is root; as the caller otherwise. Credentials are a
/// thread's own, and those it starts inherit them.
fn scan_unprivileged(root: &Path, options: &ScanOptions) -> Scan {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            if rustix::process::geteuid().is_root() {
                let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
                rustix::thread::set_thread_groups(&[Gid::from_raw(GROUP)]).unwrap();
                rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
            }
            scan(root, options).unwrap()
        });
        thread.join().unwrap()
    })
}

fn file(root: &Path, name: &str, owner: (u32, u32), mode: u32) {
    let path = root.join(name);
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(owner.0), Some(owner.1)).unwrap();
    }
}

fn open_to_all(root: &Path) {
    fs::set_permissions(root, PermissionsExt::from_mode(0o755)).unwrap();
}

fn left_out(path: &str, reason: Reason) -> LeftOut {
    let error = Some(rustix::io::Errno::ACCESS.raw_os_error());
    LeftOut { path: path.into(), reason, error }
}

#[test]
fn files_by_their_mode_and_directories_by_trying() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    open_to_all(path);
    file(path, "mine", (NOBODY, NOBODY), 0o400);
    file(path, "mine-closed", (NOBODY, NOBODY), 0o077);
    fs::create_dir(path.join("closed")).unwrap();
    file(path, "closed/inside", (NOBODY, NOBODY), 0o644);
    fs::set_permissions(path.join("closed"), PermissionsExt::from_mode(0o000)).unwrap();
    let scan = scan_unprivileged(path, &ScanOptions::default());
    fs::set_permissions(path.join("closed"), PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(names(&scan.tree), ["closed", "mine"]);
    assert_eq!(
        scan.report.left_out,
        [left_out("closed", Reason::UnreadableDirectory), left_out("mine-closed", Reason::UnreadableFile)]
    );
    assert_eq!((scan.report.count(Reason::UnreadableFile), scan.report.total()), (1, 2));
}

#[test]
fn the_first_class_that_fits_decides() {
    if !is_root("files of other owners") {
        return;
    }
    for xattrs in [true, false] {
        let root = tempfile::tempdir().unwrap();
        let path = root.path();
        open_to_all(path);
        file(path, "group", (0, GROUP), 0o640);
        file(path, "group-closed", (0, GROUP), 0o604);
        file(path, "other", (0, 0), 0o604);
        file(path, "other-closed", (0, 0), 0o660);
        let scan = scan_unprivileged(path, &ScanOptions { xattrs, ..ScanOptions::default() });
        assert_eq!(names(&scan.tree), ["group", "other"], "xattrs: {xattrs}");
        assert_eq!(scan.report.count(Reason::UnreadableFile), 2);
    }
}

#[test]
fn an_acl_gives_and_takes() {
    if !is_root("files of other owners") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    open_to_all(path);
    let acl = |permissions: u8, other: u8| {
        let entry = |tag: u8, permissions: u8, id: u32| {
            let mut entry = vec![tag, 0, permissions, 0];
            entry.extend(id.to_le_bytes());
            entry
        };
        let undefined = u32::MAX;
        let mut value = vec![2, 0, 0, 0];
        value.extend(entry(0x01, 6, undefined));
        value.extend(entry(0x02, permissions, NOBODY));
        value.extend(entry(0x04, 4, undefined));
        value.extend(entry(0x10, 4, undefined));
        value.extend(entry(0x20, other, undefined));
        value
    };
    file(path, "given", (0, 0), 0o600);
    set_xattr(&path.join("given"), "system.posix_acl_access", &acl(4, 0));
    file(path, "taken", (0, 0), 0o644);
    set_xattr(&path.join("taken"), "system.posix_acl_access", &acl(0, 4));
    for xattrs in [true, false] {
        let scan = scan_unprivileged(path, &ScanOptions { xattrs, ..ScanOptions::default() });
        assert_eq!(names(&scan.tree), ["given"], "xattrs: {xattrs}");
        assert_eq!(scan.report.left_out, [left_out("taken", Reason::UnreadableFile)]);
    }
}

#[test]
fn what_may_be_listed_but_not_searched() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path();
    open_to_all(path);
    fs::create_dir(path.join("listed")).unwrap();
    file(path, "listed/inside", (NOBODY, NOBODY), 0o644);
    fs::set_permissions(path.join("listed"), PermissionsExt::from_mode(0o444)).unwrap();
    let scan = scan_unprivileged(path, &ScanOptions::default());
    fs::set_permissions(path.join("listed"), PermissionsExt::from_mode(0o700)).unwrap();
    assert_eq!(names(&scan.tree), ["listed"]);
    assert_eq!(scan.report.left_out, [left_out("listed/inside", Reason::Failed)]);
    assert_eq!(scan.report.left_out[0].to_string(), "listed/inside: cannot be read: Permission denied (os error 13)");
}

#[test]
fn root_reads_everything() {
    if !is_root("the privilege of root") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    file(root.path(), "closed", (NOBODY, NOBODY), 0o000);
    let scan = scan(root.path(), &ScanOptions::default()).unwrap();
    assert_eq!((names(&scan.tree), scan.report.total()), (vec!["closed".to_owned()], 0));
}

#[test]
fn a_root_that_is_no_directory_fails_the_scan() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("file"), "").unwrap();
    let error = |name: &str| scan(&root.path().join(name), &ScanOptions::default()).unwrap_err();
    assert!(matches!(error("none"), ScanError::Open { error: rustix::io::Errno::NOENT, .. }));
    assert!(matches!(error("file"), ScanError::Open { error: rustix::io::Errno::NOTDIR, .. }));
    let message = error("none").to_string();
    assert!(message.ends_with("/none: No such file or directory (os error 2)"), "{message}");
}
