//! Owner maps change the owners of inodes and of the entries of ACLs.

use std::fs;
use std::os::unix::fs::chown;

use crate::support::{is_root, set_xattr};
use inarch_tree::scan::{OwnerMap, ScanOptions, scan};

#[test]
fn the_words_of_the_command_line() {
    let caller = OwnerMap::Map { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() };
    assert_eq!("map".parse(), Ok(caller));
    assert_eq!("host".parse(), Ok(OwnerMap::Host));
    assert_eq!("squash".parse(), Ok(OwnerMap::Squash { uid: 0, gid: 0 }));
    assert_eq!("7:4294967294".parse(), Ok(OwnerMap::Fixed { uid: 7, gid: 4_294_967_294 }));
    for wrong in ["", "7", "7:", ":7", "-1:0", "7:4294967295", "root:root", "MAP", "7:7:7"] {
        let error = wrong.parse::<OwnerMap>().unwrap_err().to_string();
        assert!(error.starts_with(&format!("the owner {wrong:?} is none of map")), "{error}");
    }
}

#[test]
fn ids_of_each_kind() {
    let ids = |map: OwnerMap| [0, 1000, 5].map(|id| (map.uid(id), map.gid(id)));
    assert_eq!(ids(OwnerMap::Host), [(0, 0), (1000, 1000), (5, 5)]);
    assert_eq!(ids(OwnerMap::Map { uid: 1000, gid: 5 }), [(0, 0), (0, 1000), (5, 0)]);
    assert_eq!(ids(OwnerMap::Squash { uid: 8, gid: 9 }), [(0, 0), (8, 9), (8, 9)]);
    assert_eq!(ids(OwnerMap::Fixed { uid: 8, gid: 9 }), [(8, 9), (8, 9), (8, 9)]);
}

/// A `posix_acl_xattr` of (tag, permissions, id).
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

const UNDEFINED: u32 = u32::MAX;

#[test]
fn entries_of_acls_that_come_to_name_one_user_are_joined() {
    let tail = [(0x10, 7, UNDEFINED), (0x20, 0, UNDEFINED)];
    let before = [
        &[(0x01, 6, UNDEFINED), (0x02, 4, 0), (0x02, 2, 1000), (0x02, 1, 1001), (0x04, 4, UNDEFINED)][..],
        &[(0x08, 4, 50), (0x08, 1, 60)],
        &tail,
    ]
    .concat();
    let mapped = |map: OwnerMap| {
        let mut value = acl(&before);
        map.acl(&mut value);
        value
    };
    assert_eq!(mapped(OwnerMap::Host), acl(&before));
    let after = [
        &[(0x01, 6, UNDEFINED), (0x02, 6, 0), (0x02, 1, 1001), (0x04, 4, UNDEFINED), (0x08, 1, 0), (0x08, 4, 50)][..],
        &tail,
    ]
    .concat();
    assert_eq!(mapped(OwnerMap::Map { uid: 1000, gid: 60 }), acl(&after));
    let after = [&[(0x01, 6, UNDEFINED), (0x02, 7, 3), (0x04, 4, UNDEFINED), (0x08, 5, 4)][..], &tail].concat();
    assert_eq!(mapped(OwnerMap::Fixed { uid: 3, gid: 4 }), acl(&after));
    for broken in [&b""[..], b"\x02\0\0", b"\x01\0\0\0", b"\x02\0\0\0\x02\0\x04\0\x01\0\0"] {
        let mut value = broken.to_vec();
        OwnerMap::Fixed { uid: 3, gid: 4 }.acl(&mut value);
        assert_eq!(value, broken, "what is no ACL stays");
    }
}

#[test]
fn a_scan_maps_inodes_and_acls() {
    if !is_root("files of other owners") {
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("file");
    fs::write(&file, "").unwrap();
    let entries = |user| {
        let first = [(0x01, 6, UNDEFINED), (0x02, 4, user), (0x04, 4, UNDEFINED)];
        acl(&[&first[..], &[(0x10, 4, UNDEFINED), (0x20, 0, UNDEFINED)]].concat())
    };
    set_xattr(&file, "system.posix_acl_access", &entries(1000));
    chown(&file, Some(1000), Some(77)).unwrap();
    let owner = OwnerMap::Map { uid: 1000, gid: 1000 };
    let tree = scan(root.path(), &ScanOptions { owner, ..ScanOptions::default() }).unwrap().tree;
    let inode = tree.inode(tree.lookup(b"file").unwrap());
    assert_eq!((inode.uid(), inode.gid()), (0, 77));
    assert_eq!(*tree.xattrs(inode.xattrs())[0].value, entries(0));
}
