//! Archives made by other programs read as what they were made of.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use inarch_block::read_content;
use inarch_format::{Opened, tar};
use inarch_tree::{FileType, InodeId};

fn content(opened: &Opened, inode: InodeId) -> Vec<u8> {
    let mut bytes = vec![0; opened.tree.inode(inode).size() as usize];
    read_content(&*opened.content, inode, 0, &mut bytes).unwrap();
    bytes
}

fn open(path: &Path) -> Opened {
    tar::open_file(File::open(path).unwrap(), path, path.parent().unwrap()).unwrap()
}

#[test]
fn gnu_tar() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("d");
    fs::create_dir_all(dir.join("a/b")).unwrap();
    fs::write(dir.join("a/b/c"), b"hello").unwrap();
    std::os::unix::fs::symlink("c", dir.join("a/b/l")).unwrap();
    for format in ["v7", "oldgnu", "gnu", "ustar", "pax"] {
        let out = scratch.path().join("x.tar");
        let status =
            Command::new("tar").arg("-cf").arg(&out).args(["--format", format, "-C"]).arg(&dir).arg(".").status();
        assert!(status.unwrap().success());
        let opened = open(&out);
        let c = opened.tree.lookup(b"a/b/c").unwrap();
        assert_eq!(content(&opened, c), b"hello", "{format}");
        let l = opened.tree.lookup(b"a/b/l").unwrap();
        assert_eq!(opened.tree.inode(l).file_type(), FileType::Symlink);
        assert_eq!(opened.tree.symlink_target(l), b"c");
        assert_eq!(opened.notes, [""; 0]);
    }
}
