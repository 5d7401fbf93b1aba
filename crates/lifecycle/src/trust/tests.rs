//! Which directories of state are trusted.

use std::fs::{Permissions, create_dir, set_permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};

use super::*;

/// Nobody of the host's.
const ANOTHER: u32 = 65_534;

fn home() -> (tempfile::TempDir, PathBuf) {
    let place = tempfile::tempdir().unwrap();
    let home = place.path().join("state/inarch");
    (place, home)
}

fn make(home: &Path, below: &[&str]) -> Result<bool, Obstacle> {
    directory(home, below, Missing::Make, Owner::User)
}

/// What is in the way, where, and that it is for want of trust.
#[track_caller]
fn refused(home: &Path, at: &Path, part: &str) {
    for missing in [Missing::Make, Missing::Leave] {
        let obstacle = directory(home, &["runs", "x"], missing, Owner::User).unwrap_err();
        let line = obstacle.to_string();
        assert!(obstacle.is_distrust() && obstacle.path == at && line.contains(part), "{line}");
    }
}

#[test]
fn directories_are_made_for_this_user_alone() {
    let (place, home) = home();
    assert!(!directory(&home, &["runs"], Missing::Leave, Owner::User).unwrap());
    assert!(!place.path().join("state").exists(), "nothing is made by a look");
    assert!(make(&home, &["runs", "x"]).unwrap());
    assert!(directory(&home, &["runs", "x"], Missing::Leave, Owner::User).unwrap());
    for made in [&home, &home.join("runs"), &home.join("runs/x"), &place.path().join("state")] {
        assert_eq!(made.metadata().unwrap().mode() & 0o777, 0o700, "{}", made.display());
    }
}

#[test]
fn links_are_followed_above_and_not_among_our_directories() {
    let (place, home) = home();
    create_dir(place.path().join("real")).unwrap();
    symlink("../real/../real", place.path().join("real/there")).unwrap();
    symlink("real/there", place.path().join("state")).unwrap();
    assert!(make(&home, &["runs"]).unwrap());
    assert!(place.path().join("real/inarch/runs").is_dir());
    symlink(place.path(), home.join("runs/x")).unwrap();
    refused(&home, &place.path().join("real/inarch/runs/x"), "symbolic link");
    let loop_at = place.path().join("loop");
    symlink("loop", &loop_at).unwrap();
    let obstacle = make(&loop_at.join("inarch"), &[]).unwrap_err();
    assert_eq!(obstacle.error.raw_os_error(), Some(Errno::LOOP.raw_os_error()));
}

#[test]
fn what_others_may_write_to_is_refused() {
    let (place, home) = home();
    make(&home, &["runs", "x"]).unwrap();
    let mode = |path: &Path, mode| set_permissions(path, Permissions::from_mode(mode)).unwrap();
    let state = place.path().join("state");
    // As /tmp: what is ours there stays ours.
    mode(&state, 0o1777);
    assert!(make(&home, &["runs", "x"]).unwrap());
    for path in [&state, &home, &home.join("runs"), &home.join("runs/x")] {
        mode(path, 0o777);
        refused(&home, path, "other users may write to it");
        mode(path, 0o755);
    }
    mode(&home, 0o1777);
    refused(&home, &home, "other users may write to it");
}

#[test]
fn a_group_that_may_write_is_this_users_alone() {
    let (_place, home) = home();
    make(&home, &["runs", "x"]).unwrap();
    set_permissions(&home, Permissions::from_mode(0o775)).unwrap();
    let user = rustix::process::geteuid().as_raw();
    // A user whose group is common to many has none of their own.
    if home.metadata().unwrap().gid() == user {
        assert!(make(&home, &["runs", "x"]).unwrap());
    } else {
        refused(&home, &home, "chmod g-w");
    }
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a_group_that_may_write_is_this_users_alone: not root");
        return;
    }
    chown(&home, None, Some(ANOTHER)).unwrap();
    set_permissions(&home, Permissions::from_mode(0o775)).unwrap();
    refused(&home, &home, "those of group 65534; chmod g-w");
    // Nor if it is the primary group of the caller, which others may have, too. Only this thread changes its group.
    let back = rustix::process::getegid();
    rustix::thread::set_thread_gid(rustix::process::Gid::from_raw(ANOTHER)).unwrap();
    let obstacle = directory(&home, &["runs"], Missing::Leave, Owner::User).unwrap_err();
    rustix::thread::set_thread_gid(back).unwrap();
    assert!(obstacle.is_distrust() && obstacle.path == home, "{obstacle}");
}

#[test]
fn an_acl_lets_nobody_else_write() {
    let (_place, home) = home();
    make(&home, &["runs", "x"]).unwrap();
    set_permissions(&home, Permissions::from_mode(0o700)).unwrap();
    let entry = |tag: u16, may: u16, id: u32| [&tag.to_le_bytes()[..], &may.to_le_bytes(), &id.to_le_bytes()].concat();
    let acl = |entries: &[Vec<u8>]| [&2_u32.to_le_bytes()[..], &entries.concat()].concat();
    let set = |mask: u16| {
        // What setfacl -m u:65534:rwx,m::MASK makes of mode 0700: the mode shows the mask as the group's bits.
        let entries = [
            entry(0x01, 7, u32::MAX),
            entry(0x02, 7, ANOTHER),
            entry(0x04, 0, u32::MAX),
            entry(0x10, mask, u32::MAX),
            entry(0x20, 0, u32::MAX),
        ];
        rustix::fs::setxattr(&home, "system.posix_acl_access", &acl(&entries), rustix::fs::XattrFlags::empty())
    };
    if let Err(Errno::OPNOTSUPP) = set(7) {
        eprintln!("skipped: an_acl_lets_nobody_else_write: no ACLs on this file system");
        return;
    }
    assert_eq!(home.metadata().unwrap().mode() & 0o777, 0o770);
    refused(&home, &home, "by an ACL; setfacl -b");
    // To read is not to write.
    set(5).unwrap();
    assert!(make(&home, &["runs", "x"]).unwrap());
}

#[test]
fn roots_way_leads_through_no_other_users_directory() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: roots_way_leads_through_no_other_users_directory: not root");
        return;
    }
    let (place, home) = home();
    make(&home, &["runs", "x"]).unwrap();
    let state = place.path().join("state");
    for path in [&state, &home, &home.join("runs"), &home.join("runs/x")] {
        chown(path, Some(ANOTHER), None).unwrap();
        refused(&home, path, "belongs to user 65534");
        assert!(directory(&home, &["runs", "x"], Missing::Leave, Owner::UserOrRoot).unwrap_err().is_distrust());
        chown(path, Some(0), None).unwrap();
    }
    let link = place.path().join("link");
    symlink("state", &link).unwrap();
    assert!(make(&link.join("inarch"), &["runs", "x"]).unwrap());
    std::os::unix::fs::lchown(&link, Some(ANOTHER), None).unwrap();
    refused(&link.join("inarch"), &link, "belongs to user 65534");
}

#[test]
fn a_file_is_regular_ours_and_of_one_name() {
    let place = tempfile::tempdir().unwrap();
    let (victim, path) = (place.path().join("victim"), place.path().join("file"));
    fs::write(&victim, "content").unwrap();
    let reason = |path: &Path| open(path, OpenOptions::new().append(true).create(true)).unwrap_err().to_string();
    symlink(&victim, &path).unwrap();
    assert!(reason(&path).contains("symbolic link") && read(&path).is_err());
    fs::remove_file(&path).unwrap();
    symlink(place.path().join("not there"), &path).unwrap();
    assert!(reason(&path).contains("symbolic link"));
    assert!(!place.path().join("not there").exists());
    fs::remove_file(&path).unwrap();
    fs::hard_link(&victim, &path).unwrap();
    assert!(reason(&path).contains("another name") && read(&path).is_err());
    // A new file is a new one, whatever has its name.
    drop(create(&path).unwrap());
    assert_eq!((fs::read(&victim).unwrap(), read(&path).unwrap()), (b"content".to_vec(), Vec::new()));
    fs::remove_file(&path).unwrap();
    symlink(&victim, &path).unwrap();
    drop(create(&path).unwrap());
    assert_eq!(fs::read(&victim).unwrap(), b"content");
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(ANOTHER), None).unwrap();
        assert!(reason(&path).contains("belongs to user 65534"));
    }
}
