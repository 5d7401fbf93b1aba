//! The crate ext4-view as an independent reader of ext4.

use ext4_view::Ext4;
use inarch_tree::{FileType, Inode, InodeId, Timestamp, Tree};

/// Larger files are not read: the crate gives a file as a whole.
const LARGEST: u64 = 64 << 20;

/// Fails unless the crate finds what `tree` says, its files holding what `content` gives.
pub fn assert_same(tree: &Tree, fs: &Ext4, content: &dyn Fn(InodeId) -> Vec<u8>) {
    let mut directories = vec![InodeId::ROOT];
    while let Some(dir) = directories.pop() {
        let at = [b"/", &*tree.path(dir)].concat();
        let entries = fs.read_dir(at.as_slice()).unwrap().map(|entry| entry.unwrap().file_name().as_ref().to_vec());
        let is_own = |name: &[u8]| dir == InodeId::ROOT && name == b"lost+found";
        let mut found: Vec<Vec<u8>> = entries.filter(|name| name != b"." && name != b".." && !is_own(name)).collect();
        found.sort();
        let names = tree.entries(dir).map(|entry| entry.name.to_vec()).filter(|name| !is_own(name));
        assert_eq!(found, names.collect::<Vec<_>>(), "{}", at.escape_ascii());
        for entry in tree.entries(dir).filter(|entry| !is_own(entry.name)) {
            let (id, inode) = (entry.inode, tree.inode(entry.inode));
            let path = [b"/", &*tree.path(dir), b"/", entry.name].concat();
            // Version 1.0.0 refuses times whose lower 32 bits are negative.
            if (inode.mtime().seconds as i32) < 0 {
                continue;
            }
            assert_attributes(fs, &path, inode);
            match inode.file_type() {
                FileType::Regular if inode.size() <= LARGEST => {
                    assert!(fs.read(path.as_slice()).unwrap() == content(id), "content of {}", path.escape_ascii());
                }
                FileType::Directory => directories.push(id),
                // The crate takes longer names in a target for damage.
                FileType::Symlink
                    if tree.symlink_target(id).split(|byte| *byte == b'/').all(|name| name.len() < 256) =>
                {
                    assert_eq!(fs.read_link(path.as_slice()).unwrap().as_ref(), tree.symlink_target(id));
                }
                _ => {}
            }
        }
    }
}

fn assert_attributes(fs: &Ext4, path: &[u8], inode: &Inode) {
    let name = path.escape_ascii();
    let metadata = fs.symlink_metadata(path).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_eq!(u32::from(metadata.mode()), inode.mode() & 0o7777, "{name}");
    assert_eq!((metadata.uid(), metadata.gid()), (inode.uid(), inode.gid()), "{name}");
    let mtime = metadata.modified();
    assert_eq!(Timestamp { seconds: mtime.seconds(), nanoseconds: mtime.nanoseconds() }, inode.mtime(), "{name}");
    if inode.file_type() == FileType::Regular {
        assert_eq!(metadata.len(), inode.size(), "{name}");
    }
}
