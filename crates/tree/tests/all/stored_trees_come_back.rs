//! A stored tree is loaded unchanged; invalid bytes are refused.

use inarch_tree::scan::{ScanOptions, scan};
use inarch_tree::{Attributes, Builder, DataRange, InodeId, LoadError, Timestamp, Tree, Xattr, XattrSetId};

/// A tree with every kind of object, hard links across directories, holes and attributes.
fn odd_tree() -> Tree {
    let times = |seconds| (Timestamp { seconds, nanoseconds: 999_999_999 }, Timestamp { seconds: -5, nanoseconds: 1 });
    let attributes = |mode, size| {
        let (mtime, ctime) = times(size as i64 - 3);
        Attributes {
            mode,
            size,
            uid: 1000,
            gid: u32::MAX - 1,
            mtime,
            ctime,
            source_ino: u64::MAX,
            ..Attributes::default()
        }
    };
    let mut builder = Builder::new(&attributes(0o040755, 0)).unwrap();
    let xattr = |name: &[u8]| Xattr { name: name.into(), value: vec![0, 255, 7].into() };
    let one = builder.intern_xattrs(vec![xattr(b"user.one")]);
    let two = builder.intern_xattrs(vec![xattr(b"user.two"), xattr(b"user.one")]);
    builder.list(InodeId::ROOT).unwrap();
    let device = Attributes { device: (4095, 1 << 19), xattrs: two, ..attributes(0o060600, 0) };
    builder.add(b"block", &device).unwrap();
    let dir = builder.add(b"dir", &Attributes { xattrs: one, ..attributes(0o041777, 0) }).unwrap();
    let file = builder.add(b"file", &attributes(0o104755, 1 << 40)).unwrap();
    let range = |offset, length| DataRange { offset, length };
    builder.set_sparse(file, &[range(0, 1), range(4096, 8192), range(1 << 39, 1 << 39)]).unwrap();
    let link = builder.add(b"link", &attributes(0o120777, 0)).unwrap();
    builder.set_target(link, b"../anywhere\xff").unwrap();
    builder.add(&[0xff; 255], &attributes(0o140755, 0)).unwrap();
    builder.list(dir).unwrap();
    builder.link(b"again", file).unwrap();
    builder.add(b"empty", &attributes(0o040700, 0)).unwrap();
    builder.add(b"fifo", &attributes(0o010644, 0)).unwrap();
    builder.finish().unwrap()
}

#[track_caller]
fn assert_equal(a: &Tree, b: &Tree) {
    assert_eq!((a.inode_count(), a.entry_count()), (b.inode_count(), b.entry_count()));
    for (id, was) in a.inodes() {
        let is = b.inode(id);
        assert_eq!(
            format!("{:?}", (was.mode(), was.uid(), was.gid(), was.size(), was.device(), was.mtime(), was.ctime())),
            format!("{:?}", (is.mode(), is.uid(), is.gid(), is.size(), is.device(), is.mtime(), is.ctime()))
        );
        assert_eq!((was.links(), was.source_ino(), was.xattrs()), (is.links(), is.source_ino(), is.xattrs()), "{id:?}");
        assert_eq!(a.xattrs(was.xattrs()), b.xattrs(is.xattrs()));
        assert_eq!((a.symlink_target(id), a.sparse_ranges(id)), (b.symlink_target(id), b.sparse_ranges(id)));
        assert!(a.entries(id).eq(b.entries(id)), "{id:?}");
        assert_eq!(a.path(id), b.path(id));
    }
}

#[test]
fn everything_comes_back() {
    let tree = odd_tree();
    let stored = tree.store();
    let loaded = Tree::load(&stored).unwrap();
    assert_equal(&tree, &loaded);
    assert_eq!(loaded.store(), stored);
    assert_eq!(loaded.inode(InodeId(1)).xattrs(), XattrSetId(2));
}

#[test]
fn a_scanned_tree_comes_back() {
    let scanned = scan("/usr/share/doc".as_ref(), &ScanOptions::default()).unwrap().tree;
    assert!(scanned.entry_count() > 100);
    let stored = scanned.store();
    assert!(stored.len() < 120 * scanned.entry_count() as usize, "{} bytes", stored.len());
    assert_equal(&scanned, &Tree::load(&stored).unwrap());
}

#[test]
fn what_is_cut_or_changed_is_refused() {
    let stored = odd_tree().store();
    for length in 0..stored.len() {
        assert!(Tree::load(&stored[..length]).is_err(), "cut to {length} bytes");
    }
    for at in 0..stored.len() {
        let mut bytes = stored.clone();
        bytes[at] ^= 0x55;
        assert!(Tree::load(&bytes).is_err(), "byte {at} changed");
    }
    assert_eq!(Tree::load(b"something else entirely").unwrap_err(), LoadError::NotATree);
    let mut newer = stored;
    newer[8] = 9;
    assert_eq!(Tree::load(&newer).unwrap_err(), LoadError::Version { found: 9 });
}

/// With a corrected checksum only the reader's own checks remain.
#[test]
fn what_no_checksum_tells_is_a_tree_or_refused() {
    let stored = odd_tree().store();
    let mut loaded = 0;
    for at in 16..stored.len() {
        for value in [0, 1, 0x7f, 0x80, 0xff, stored[at] ^ 1] {
            let mut bytes = stored.clone();
            bytes[at] = value;
            loaded += u32::from(load_as_valid(bytes).is_ok());
        }
        assert!(load_as_valid([&stored[..at], &[0xff; 12]].concat()).is_err());
    }
    assert!(loaded > 100, "only {loaded}: most of a tree's bytes are values that may be anything");
}

fn load_as_valid(mut bytes: Vec<u8>) -> Result<Tree, LoadError> {
    let checksum = crc32c::crc32c(&bytes[16..]);
    bytes[12..16].copy_from_slice(&checksum.to_le_bytes());
    Tree::load(&bytes)
}
