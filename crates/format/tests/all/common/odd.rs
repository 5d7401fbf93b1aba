//! A tree with one of everything.

use inarch_tree::{Attributes, DataRange, Timestamp, Tree, Xattr};

use super::{attributes, builder, directory, file};

/// An extended attribute.
pub fn xattr(name: &str, value: &[u8]) -> Xattr {
    Xattr { name: name.as_bytes().into(), value: value.into() }
}

/// A POSIX ACL as `getxattr` gives it: user::rwx, user:1000:r--, group::r-x, mask::r-x, other::---.
pub fn acl() -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [(1u16, 7u16, u32::MAX), (2, 4, 1000), (4, 5, u32::MAX), (0x10, 5, u32::MAX), (0x20, 0, !0)]
    {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// `cap_net_raw=ep`, in version 2 of the format.
fn capability() -> Vec<u8> {
    [0x0200_0001u32, 1 << 13, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect()
}

/// One of everything that a directory can hold.
pub fn odd_tree() -> Tree {
    let mut b = builder();
    let set = b.intern_xattrs(vec![
        xattr("user.small", b"1"),
        xattr("security.capability", &capability()),
        xattr("system.posix_acl_access", &acl()),
    ]);
    let block = b.intern_xattrs(vec![xattr("user.larger", &[7; 500]), xattr("trusted.a", &[8; 500])]);
    let huge = b.intern_xattrs(vec![
        xattr("user.huge", &[9; 65_536]),
        xattr("user.large", &[10; 5000]),
        xattr("user.little", b"2"),
        xattr("user.empty", b""),
    ]);
    let old = Timestamp { seconds: -1_000_000_000, nanoseconds: 999_999_999 };
    let late = Timestamp { seconds: 13_569_465_600, nanoseconds: 1 };
    let never = Timestamp { seconds: i64::MAX, nanoseconds: u32::MAX };

    let long = b.add(&[b'0'; 255], &file(1)).unwrap();
    b.add(b"1bad\xFF\xFEutf8", &file(4096)).unwrap();
    b.add(b"2char", &Attributes { device: (1, 3), ..attributes(0o020666) }).unwrap();
    b.add(b"3block", &Attributes { device: (259, 70_000), ..attributes(0o060660) }).unwrap();
    b.add(b"4fifo", &attributes(0o010644)).unwrap();
    b.add(b"5socket", &attributes(0o140755)).unwrap();
    for (name, length) in [("6link1", 1), ("6link2", 59), ("6link3", 60), ("6link4", 4095)] {
        let link = b.add(name.as_bytes(), &attributes(0o120777)).unwrap();
        b.set_target(link, &vec![b't'; length]).unwrap();
    }
    let dir = b.add(b"7dir", &Attributes { xattrs: set, ..directory() }).unwrap();
    b.add(b"8in-block", &Attributes { xattrs: block, ..file(10) }).unwrap();
    b.add(b"8in-block-2", &Attributes { xattrs: block, ..directory() }).unwrap();
    b.add(b"8in-inode", &Attributes { xattrs: set, ..file(10) }).unwrap();
    b.add(b"8own-inode", &Attributes { xattrs: huge, ..file(0) }).unwrap();
    b.add(b"8own-inode-2", &Attributes { xattrs: huge, ..file(0) }).unwrap();
    b.add(b"9early", &Attributes { mtime: old, ctime: old, ..file(0) }).unwrap();
    b.add(b"9late", &Attributes { mtime: late, ctime: late, ..file(0) }).unwrap();
    b.add(b"9never", &Attributes { mtime: never, ctime: never, ..file(0) }).unwrap();
    let sparse = b.add(b"9sparse", &file(1 << 40)).unwrap();
    let range = |offset, length| DataRange { offset, length };
    b.set_sparse(sparse, &[range(0, 1), range(5000, 10), range(1 << 30, 300 << 10), range((1 << 40) - 1, 1)]).unwrap();
    let hole = b.add(b"9sparse-empty", &file(1 << 20)).unwrap();
    b.set_sparse(hole, &[]).unwrap();
    b.list(dir).unwrap();
    b.link(b"hard", long).unwrap();
    b.finish().unwrap()
}
