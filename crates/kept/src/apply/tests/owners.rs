//! Owners of the guest that no range of the map has: they have no place on the host.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;

use inarch_tree::select::Owners;
use rustix::fs::{XattrFlags, getxattr, setxattr};
use rustix::io::Errno;

use super::super::super::staged::{Staged, go_wrong};
use super::super::calls::Faults;
use super::super::world::{CAPABILITIES, fill, set_time};

/// An owner of the guest outside of the range.
const OUTSIDE: u32 = 70_000;
/// What the guest gave to that owner: two files that the host has not, and four that it has.
const GIVEN: [&str; 6] = ["new", "new program", "given", "rewritten", "set-user-ID", "program"];
/// What the user is told.
const LOST: [&str; 2] = [
    "the owners of 7 files are outside of every range of --map-uid and --map-gid, and were not set",
    "3 files came without set-user-ID, set-group-ID or capabilities, since a file of another owner has none of them",
];

/// Attributes of a file of the host.
#[derive(Debug, PartialEq)]
struct Attributes {
    owner: (u32, u32),
    permissions: u32,
    has_capabilities: bool,
    has_acl: bool,
}

struct Scene {
    dir: tempfile::TempDir,
    staged: Staged,
}

impl Scene {
    /// A host whose files are those of users from 100000 on, and a guest in which these are users from 0 on.
    fn new() -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let (host, guest) = (dir.path().join("host"), dir.path().join("guest"));
        for (root, owner) in [(&host, 100_000), (&guest, 0)] {
            fs::create_dir(root).unwrap();
            fill(root, &[("given", "1"), ("rewritten", "x"), ("set-user-ID", "2"), ("program", "3"), ("shared", "4")]);
            chown(root, Some(owner), Some(owner)).unwrap();
            for name in ["given", "rewritten", "set-user-ID", "program", "shared"] {
                chown(root.join(name), Some(owner + 1), Some(owner + 2)).unwrap();
            }
        }
        fill(&guest, &[("new", "5"), ("new program", "6"), ("rewritten", "7")]);
        for name in GIVEN {
            chown(guest.join(name), Some(OUTSIDE), Some(OUTSIDE)).unwrap();
        }
        let set = |name: &str, attribute: &str, value: &[u8]| {
            setxattr(guest.join(name), attribute, value, XattrFlags::empty()).unwrap();
        };
        for name in ["program", "new program"] {
            set(name, "security.capability", CAPABILITIES);
        }
        fs::set_permissions(guest.join("new program"), fs::Permissions::from_mode(0o6755)).unwrap();
        fs::set_permissions(guest.join("set-user-ID"), fs::Permissions::from_mode(0o4755)).unwrap();
        set("shared", "system.posix_acl_access", &acl_of(OUTSIDE));
        for path in [&host, &guest].into_iter().flat_map(|root| fs::read_dir(root).unwrap()) {
            set_time(&path.unwrap().path());
        }
        let range = vec!["100000:0:65536".parse().unwrap()];
        let owners = Owners { users: range.clone(), groups: range, ..Owners::default() };
        let staged = Staged::with_owners(&host, &guest, &owners);
        Scene { dir, staged }
    }

    fn host(&self, name: &str) -> Attributes {
        let path = self.dir.path().join("host").join(name);
        let found = fs::metadata(&path).unwrap();
        Attributes {
            owner: (found.uid(), found.gid()),
            permissions: found.mode() & 0o7777,
            has_capabilities: has(&path, "security.capability"),
            has_acl: has(&path, "system.posix_acl_access"),
        }
    }

    #[track_caller]
    fn assert_without_places(&self) {
        let (hosts, own) = ((100_001, 100_002), (0, 0));
        let expected = |owner, permissions| Attributes { owner, permissions, has_capabilities: false, has_acl: false };
        assert_eq!(self.host("new"), expected(own, 0o644), "who applies has it");
        assert_eq!(self.host("new program"), expected(own, 0o755));
        assert_eq!(self.host("given"), expected(hosts, 0o644), "it stays who had it");
        assert_eq!(self.host("rewritten"), expected(hosts, 0o644));
        assert_eq!(self.host("set-user-ID"), expected(hosts, 0o755));
        assert_eq!(self.host("program"), expected(hosts, 0o644));
        // The mask of an ACL that cannot be set gives the group nothing.
        assert_eq!(self.host("shared"), expected(hosts, 0o604));
    }
}

fn has(path: &Path, attribute: &str) -> bool {
    match getxattr(path, attribute, &mut [0; 256]) {
        Err(Errno::NODATA) => false,
        result => result.map(|_| true).unwrap(),
    }
}

/// An ACL with a named user (`include/uapi/linux/posix_acl_xattr.h`): owner, that user, group, mask and others.
fn acl_of(user: u32) -> Vec<u8> {
    let entry =
        |tag: u16, rights: u16, id: u32| [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat();
    let entries = [(1, 6, u32::MAX), (2, 7, user), (4, 0, u32::MAX), (16, 7, u32::MAX), (32, 4, u32::MAX)];
    let entries = entries.map(|(tag, rights, id)| entry(tag, rights, id)).concat();
    [2u32.to_le_bytes().to_vec(), entries].concat()
}

fn may_give_away(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("skipped: {test}: only root may give files to other users");
    }
    is_root
}

#[test]
fn what_has_no_owner_on_the_host_comes_without_one_and_without_rights() {
    if !may_give_away("what_has_no_owner_on_the_host_comes_without_one_and_without_rights") {
        return;
    }
    let mut scene = Scene::new();
    let report = scene.staged.apply().unwrap();
    scene.assert_without_places();
    assert_eq!(report.lost, LOST);
    assert!(report.conflicts.is_empty() && report.failures.is_empty(), "{report:?}");
    assert!(!report.complete && !report.is_whole());
    // It counts as applied: nothing is left that could be set later.
    let again = scene.staged.apply().unwrap();
    assert!(again.complete && again.done.is_empty() && again.lost.is_empty(), "{again:?}");
    scene.assert_without_places();
}

#[test]
fn what_came_without_its_owner_before_a_kill_is_told_after_it() {
    if !may_give_away("what_came_without_its_owner_before_a_kill_is_told_after_it") {
        return;
    }
    let killed = |dies: Option<u64>| {
        let mut scene = Scene::new();
        let faults = Arc::new(Faults { root: scene.dir.path().join("host"), dies, ..Faults::default() });
        go_wrong(Some(Arc::clone(&faults)));
        // It is dead.
        let _ = scene.staged.apply();
        go_wrong(None);
        scene.staged.run.reload();
        (scene, faults.count.load(std::sync::atomic::Ordering::Relaxed))
    };
    // The last call ends the apply, after the run has given up what is on the host.
    for at in 0..killed(None).1 - 1 {
        let (mut scene, _) = killed(Some(at));
        let report = scene.staged.apply().unwrap();
        assert_eq!(report.lost, LOST, "killed at {at}: {report:?}");
        assert!(!report.complete, "killed at {at}");
        scene.assert_without_places();
    }
}
